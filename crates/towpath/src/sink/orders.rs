//! Orders of operators: pause, resume, and sending dead letters again. They are stored, so they outlast a restart and reach
//! the node that runs the sink.

use towpath_store::Precondition;

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

/// Stores the orders of a sink, and wakes its task.
pub(super) async fn save(
    engine: &Engine,
    sink: &SinkEntry,
    control: &SinkControl,
    conditions: Vec<Precondition>,
) -> Result<(), StoreError> {
    engine.store.write(vec![json_record::put(sink.control_key(), control)], conditions).await?;
    sink.wake();
    Ok(())
}

/// Places an order. Placing it twice changes nothing more.
///
/// # Errors
///
/// [`StoreError`] if the sink's record of orders cannot be read or written.
pub(crate) async fn place(engine: &Engine, sink: &SinkEntry, order: Order) -> Result<(), StoreError> {
    let mut control = load(engine, sink).await?;
    match order {
        Order::Pause => (control.paused, control.reason) = (true, None),
        Order::Resume => (control.paused, control.reason) = (false, None),
        Order::Resend => control.resends += 1,
    }
    save(engine, sink, &control, Vec::new()).await
}
