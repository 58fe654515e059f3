//! Subscriptions and calls that other nodes wrote.

use std::sync::Arc;

use crate::engine::Engine;
use crate::protocols::websub::state::HubState;
use crate::protocols::websub::{calls, load, stored};
use crate::store_error::StoreError;

/// Notes a write to a key of the table. Returns true if [`apply_remote`] must follow.
pub(crate) fn on_subscription_written(engine: &Engine, key: &[u8]) -> bool {
    match stored::id_of(key) {
        Some(id) => {
            HubState::of(engine).on_subscription_written(id);
            true
        }
        None => calls::on_call_written(engine, key),
    }
}

/// Reads all subscriptions, which another node may deliver to: this node checks their number against the limits.
///
/// # Errors
///
/// [`StoreError`] if the subscriptions cannot be read.
pub(crate) async fn recover(engine: &Arc<Engine>) -> Result<(), StoreError> {
    load::load(engine).await
}

/// Reads the subscriptions and calls that other nodes wrote. Returns false if one could not be read, which the next
/// call reads again.
pub(crate) async fn apply_remote(engine: &Arc<Engine>) -> bool {
    // Calls first: a hub waits for their answers.
    let mut is_done = calls::apply_remote(engine).await;
    for id in HubState::of(engine).take_written() {
        if let Err(e) = load::refresh(engine, id).await {
            tracing::error!(error = %e, "cannot read a subscription");
            HubState::of(engine).on_subscription_written(id);
            is_done = false;
        }
    }
    is_done
}
