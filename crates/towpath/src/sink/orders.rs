//! Orders of operators: pause, resume, and sending dead letters again. They are stored, so they outlast a restart and reach
//! the node that runs the sink.

use towpath_store::{Precondition, Table};

use crate::engine::sinks::{SinkControl, SinkEntry};
use crate::engine::{Engine, json_record};
use crate::store_error::StoreError;

/// An order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Deliver nothing until resumed.
    Pause,
    /// Deliver from where it stopped, at once.
    Resume,
    /// Send all dead letters again, then go on.
    Resend,
}

/// Reads the orders of a sink.
///
/// # Errors
///
/// [`StoreError`] if the sink's record of orders cannot be read.
pub(crate) async fn load(engine: &Engine, sink: &SinkEntry) -> Result<SinkControl, StoreError> {
    let stored = json_record::load(engine.store.as_ref(), &sink.control_key()).await?;
    Ok(stored.unwrap_or_default())
}

/// Pauses a sink by itself, for a reason. Does nothing if its orders are not `read` any more: an operator placed one since.
pub(super) async fn pause(
    engine: &Engine,
    sink: &SinkEntry,
    read: &SinkControl,
    reason: String,
    conditions: Vec<Precondition>,
) -> Result<(), StoreError> {
    let pause = |control: &mut SinkControl| {
        let is_as_read = control == read;
        if is_as_read {
            (control.paused, control.reason) = (true, Some(reason.clone()));
        }
        is_as_read
    };
    change(engine, sink, conditions, pause).await
}

/// Changes the orders of a sink as they are stored, and wakes its task. `edit` returns false to leave them.
async fn change(
    engine: &Engine,
    sink: &SinkEntry,
    conditions: Vec<Precondition>,
    edit: impl Fn(&mut SinkControl) -> bool,
) -> Result<(), StoreError> {
    let (store, key) = (engine.store.as_ref(), sink.control_key());
    if json_record::change(store, Table::Chains, &key, &conditions, edit).await? {
        sink.wake();
    }
    Ok(())
}

/// Places an order. Placing it twice changes nothing more.
///
/// # Errors
///
/// [`StoreError`] if the sink's record of orders cannot be read or written, or others wrote it at each of the tries.
pub(crate) async fn place(engine: &Engine, sink: &SinkEntry, order: Order) -> Result<(), StoreError> {
    let edit = |control: &mut SinkControl| {
        match order {
            Order::Pause => (control.paused, control.reason) = (true, None),
            Order::Resume => (control.paused, control.reason) = (false, None),
            Order::Resend => control.resends += 1,
        }
        true
    };
    change(engine, sink, Vec::new(), edit).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Barrier;

    use super::*;
    use crate::protocols::failing_store;

    const CONFIG: &str = "[[sink]]\nname = \"copy\"\nfeeds = [\"*\"]\ninto = \"dir:/nowhere\"\n";

    #[tokio::test]
    async fn orders_at_a_time_are_all_kept() {
        let (engine, store) = failing_store::engine(CONFIG).await;
        let sink = engine.sinks.get("copy").unwrap();
        let barrier = Arc::new(Barrier::new(2));
        *store.write_gate.lock() = Some(("control", barrier.clone()));
        let (at, of) = (engine.clone(), sink.clone());
        let pausing = tokio::spawn(async move { place(&at, &of, Order::Pause).await });
        // The other task runs up to the gate: nothing else makes it wait.
        tokio::task::yield_now().await;
        *store.write_gate.lock() = None;
        place(&engine, &sink, Order::Resend).await.unwrap();
        barrier.wait().await;
        pausing.await.unwrap().unwrap();
        let control = load(&engine, &sink).await.unwrap();
        assert_eq!((control.paused, control.resends), (true, 1));
    }

    #[tokio::test]
    async fn a_sink_that_stops_by_itself_undoes_no_order() {
        let (engine, _store) = failing_store::engine(CONFIG).await;
        let sink = engine.sinks.get("copy").unwrap();
        let read = load(&engine, &sink).await.unwrap();
        place(&engine, &sink, Order::Resend).await.unwrap();
        pause(&engine, &sink, &read, "refused".into(), Vec::new()).await.unwrap();
        let control = load(&engine, &sink).await.unwrap();
        assert_eq!((control.paused, control.resends), (false, 1));
        pause(&engine, &sink, &control, "refused".into(), Vec::new()).await.unwrap();
        let control = load(&engine, &sink).await.unwrap();
        assert_eq!((control.paused, control.reason.as_deref(), control.resends), (true, Some("refused"), 1));
    }
}
