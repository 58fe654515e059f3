//! Requests to the hub: refused at once, or verified.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use towpath_client::random::unguessable;
use towpath_proto::push::websub::dispatch::SubscriptionId;
use towpath_proto::push::websub::request::VerifyMode;
use towpath_proto::push::websub::subscription::{HubSubscription, address_of};
use towpath_proto::push::websub::verify::IntentVerification;
use towpath_proto::push::websub::{Dialect, Mode};

use crate::engine::Engine;
use crate::protocols::websub::jobs::{PendingVerification, VerificationJob};
use crate::protocols::websub::request::{SubscribeError, SubscribeRequest, SubscribeResult};
use crate::protocols::websub::state::{HubState, VerifiedSubscriber};
use crate::protocols::websub::topic::Topic;
use crate::protocols::websub::verifier::submit;
use crate::store_error::StoreError;

/// Processes a request: refuses it at once, or has it verified, now or later.
///
/// # Errors
///
/// [`SubscribeError`].
pub async fn subscribe(
    engine: &Arc<Engine>,
    request: SubscribeRequest,
) -> Result<SubscribeResult, SubscribeError> {
    let hub = HubState::of(engine);
    // Before anything is stored or called: literal private addresses are refused at once (SSRF).
    hub.caller()?.check(&request.form.callback)?;
    let lease = hub.leases.grant(request.form.lease_seconds);
    // Checks the size: the stored subscription will be as large as this one.
    request.subscription(lease, engine.now())?;
    let id = HubSubscription::id(&request.topic.key, &request.form.callback);
    {
        let subscribers = hub.subscribers.lock();
        if request.form.mode == Mode::Subscribe && subscribers.get(id).is_none() {
            subscribers.check_limits(&request.topic.key, &address_of(&request.form.callback))?;
        }
    }
    if engine.is_shared() {
        // A subscriber that confirms relies on its subscription. So none is asked while the store takes no writes.
        engine.store.write(Vec::new(), Vec::new()).await.map_err(StoreError::from)?;
    }
    let is_sync = request.form.verify == VerifyMode::Sync;
    let (done, result) = oneshot::channel();
    let requester = request.requester;
    let pending = pending(request, lease, id, is_sync.then_some(done));
    submit(engine, requester, VerificationJob::Ask(pending))?;
    if !is_sync {
        return Ok(SubscribeResult::Accepted);
    }
    match result.await {
        Ok(result) => result.map(|()| SubscribeResult::Verified),
        Err(_) => Err(SubscribeError::Evicted),
    }
}

fn pending(
    request: SubscribeRequest,
    lease: Duration,
    id: SubscriptionId,
    done: Option<oneshot::Sender<Result<(), SubscribeError>>>,
) -> Box<PendingVerification> {
    // Unguessable: only who receives the request can echo it.
    let challenge = format!("{:032x}", unguessable());
    let verification = IntentVerification::new(request.form.clone(), lease, challenge);
    Box::new(PendingVerification { request, lease, id, verification, done })
}

/// Asks a PubSubHubbub 0.3 subscriber to confirm its subscription again (section 6.3).
///
/// # Errors
///
/// [`SubscribeError::Busy`]: try again later.
pub(crate) fn refresh(
    engine: &Arc<Engine>,
    id: SubscriptionId,
    subscribed: &VerifiedSubscriber,
) -> Result<(), SubscribeError> {
    let (subscription, topic) = (&subscribed.subscription, &subscribed.topic);
    debug_assert_eq!(subscription.dialect, Dialect::PubSubHubbub);
    // The feed left the configuration: the lease runs out by itself.
    let Some(topic_again) = Topic::of_key(engine, &topic.key, subscribed.access) else { return Ok(()) };
    let request = SubscribeRequest {
        form: subscription.renewal(&topic.url(engine)),
        topic: topic_again,
        access: subscribed.access,
        reader: subscription.reader.as_deref().map(str::to_owned),
        requester: None,
    };
    let lease = Duration::from_secs(subscription.lease.into());
    // The result is logged. Without a confirmation the lease expires by itself.
    submit(engine, None, VerificationJob::Ask(pending(request, lease, id, None)))?;
    Ok(())
}
