//! Result of a confirmed request: a stored subscription, or its end.

use std::sync::Arc;

use towpath_proto::follow::Monotonic;
use towpath_proto::push::websub::Mode;
use towpath_proto::push::websub::address_block::AddressBlock;

use crate::engine::Engine;
use crate::protocols::websub::jobs::{PendingVerification, now};
use crate::protocols::websub::request::{SubscribeError, removal_reason};
use crate::protocols::websub::state::HubState;
use crate::protocols::websub::stored;

/// Stores the result of a confirmed request, unless that of a later one is stored already.
pub(super) async fn apply_confirmed(
    engine: &Arc<Engine>,
    pending: &PendingVerification,
    ends: Monotonic,
    address: Option<AddressBlock>,
) -> Result<(), SubscribeError> {
    let id = pending.id;
    let turn = pending.ticket.turn().await.ok_or(SubscribeError::Overridden)?;
    let hub = HubState::of(engine);
    if let Some(renewed) = &pending.renews
        // Another node may have changed it.
        && hub.subscribers.lock().get(id).is_some_and(|known| known.subscription != renewed.subscription)
    {
        return Err(SubscribeError::Overridden);
    }
    match pending.request.form.mode {
        Mode::Subscribe => begin(engine, pending, ends, address).await?,
        Mode::Unsubscribe => {
            // Removed here at once, so that no further delivery begins.
            hub.remove(id);
            stored::delete(engine.store.as_ref(), id, Vec::new()).await?;
        }
    }
    turn.finish();
    Ok(())
}

async fn begin(
    engine: &Arc<Engine>,
    pending: &PendingVerification,
    ends: Monotonic,
    address: Option<AddressBlock>,
) -> Result<(), SubscribeError> {
    let PendingVerification { request, lease, id, .. } = pending;
    let id = *id;
    require_feed(engine, request.topic.feed.id().as_str())?;
    let subscription = request.subscription(*lease, now().date_of(ends))?.confirmed_by(address);
    let known = match engine.is_shared() {
        // The delivering node knows the position, and stores it from time to time.
        true => stored::position(engine.store.as_ref(), id).await?,
        false => HubState::of(engine).subscribers.lock().position(id),
    };
    if known.is_none() {
        // Other subscriptions may have filled the hub meanwhile.
        let address = subscription.address();
        HubState::of(engine).subscribers.lock().check_limits(&request.topic.key, &address)?;
    }
    let position = match known {
        Some(position) => position,
        None => stored::end(engine, &request.topic).await?,
    };
    // Until it is in memory: else `save_positions` would not find it there, and delete it.
    let _saving = HubState::of(engine).saving.read().await;
    let new = if known.is_some() && engine.is_shared() { None } else { Some(position) };
    stored::save(engine.store.as_ref(), id, &subscription, new).await?;
    let (topic, access) = (Arc::new(request.topic.clone()), request.access);
    let feed = topic.feed.id().clone();
    HubState::of(engine).add(id, position, subscription, topic, access);
    // A removal meanwhile may have ended the subscriptions before this one was among them.
    if let Err(gone) = require_feed(engine, feed.as_str()) {
        HubState::of(engine).end(id);
        return Err(gone);
    }
    Ok(())
}

/// Fails for a feed that is not served any more.
fn require_feed(engine: &Engine, feed: &str) -> Result<(), SubscribeError> {
    if engine.feed(feed).is_some() {
        return Ok(());
    }
    Err(SubscribeError::Gone(removal_reason(engine, feed)))
}
