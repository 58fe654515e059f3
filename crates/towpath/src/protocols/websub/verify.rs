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
use crate::protocols::websub::order::RequestTicket;
use crate::protocols::websub::request::{SubscribeError, SubscribeRequest, SubscribeResult};
use crate::protocols::websub::state::HubState;
use crate::protocols::websub::subscriber::VerifiedSubscriber;
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
    let ticket = hub.verifier.order.request(id);
    let mut pending = pending(request, lease, id, ticket);
    pending.done = is_sync.then_some(done);
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
    ticket: RequestTicket,
) -> Box<PendingVerification> {
    // Unguessable: only who receives the request can echo it.
    let challenge = format!("{:032x}", unguessable());
    let verification = IntentVerification::new(request.form.clone(), lease, challenge);
    Box::new(PendingVerification { request, lease, id, ticket, renews: None, verification, done: None })
}

/// Asks a PubSubHubbub 0.3 subscriber to confirm its subscription again (section 6.3).
///
/// # Errors
///
/// [`SubscribeError::Busy`]: try again later.
pub(crate) fn refresh(
    engine: &Arc<Engine>,
    id: SubscriptionId,
    subscribed: &Arc<VerifiedSubscriber>,
) -> Result<(), SubscribeError> {
    debug_assert_eq!(subscribed.subscription.dialect, Dialect::PubSubHubbub);
    if let Some(renewal) = renewal(engine, id, subscribed) {
        // The result is logged. Without a confirmation the lease expires by itself.
        submit(engine, None, VerificationJob::Ask(renewal))?;
    }
    Ok(())
}

/// Returns the request by which the hub renews a subscription; `None` for one that ends.
fn renewal(
    engine: &Engine,
    id: SubscriptionId,
    subscribed: &Arc<VerifiedSubscriber>,
) -> Option<Box<PendingVerification>> {
    let (subscription, topic) = (&subscribed.subscription, &subscribed.topic);
    let hub = HubState::of(engine);
    let ticket = hub.verifier.order.renewal(id);
    // After the ticket: a subscription whose end was applied meanwhile must not come back.
    hub.subscribers.lock().get(id)?;
    let request = SubscribeRequest {
        form: subscription.renewal(&topic.url(engine)),
        // The feed may have left the configuration: the lease runs out by itself.
        topic: Topic::of_key(engine, &topic.key, subscribed.access)?,
        access: subscribed.access,
        reader: subscription.reader.as_deref().map(str::to_owned),
        requester: None,
    };
    let mut pending = pending(request, Duration::from_secs(subscription.lease.into()), id, ticket);
    pending.renews = Some(subscribed.clone());
    Some(pending)
}

#[cfg(test)]
mod tests {
    use towpath_proto::push::websub::request::SubscriptionRequest;

    use super::*;
    use crate::engine::access::Access;
    use crate::protocols::failing_store;
    use crate::protocols::websub::confirm::apply_confirmed;
    use crate::protocols::websub::jobs::now;

    const LEASE: Duration = Duration::from_secs(1000);

    fn request(engine: &Engine, mode: Mode, secret: &str) -> Box<PendingVerification> {
        let topic = Topic::of_key(engine, "notes?", Access::Whole).unwrap();
        let form = SubscriptionRequest {
            mode,
            dialect: Dialect::PubSubHubbub,
            topic: topic.url(engine),
            callback: "http://127.0.0.1:9/".into(),
            lease_seconds: None,
            secret: Some(secret.into()),
            verify: VerifyMode::Async,
            verify_token: None,
        };
        let id = HubSubscription::id(&topic.key, &form.callback);
        let request = SubscribeRequest { form, topic, access: Access::Whole, reader: None, requester: None };
        pending(request, LEASE, id, HubState::of(engine).verifier.order.request(id))
    }

    async fn apply(engine: &Arc<Engine>, confirmed: &PendingVerification) -> bool {
        match apply_confirmed(engine, confirmed, now().after(LEASE), None).await {
            Ok(()) => true,
            Err(SubscribeError::Overridden) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn subscriber(engine: &Engine, id: SubscriptionId) -> Option<Arc<VerifiedSubscriber>> {
        HubState::of(engine).subscribers.lock().get(id).cloned()
    }

    /// WebSub 5.1: each request "MUST override the previous subscription state". A renewal (0.3 section 6.3) is retried for
    /// hours, with the secret of the subscription that it renews.
    #[tokio::test]
    async fn a_renewal_overrides_no_request() {
        let (engine, _) = failing_store::engine("[[feed]]\nid = \"notes\"\n").await;
        let (one, two) = (request(&engine, Mode::Subscribe, "one"), request(&engine, Mode::Subscribe, "two"));
        let id = one.id;
        assert!(apply(&engine, &one).await);
        let first = renewal(&engine, id, &subscriber(&engine, id).unwrap()).unwrap();
        assert!(apply(&engine, &two).await);
        assert!(!apply(&engine, &first).await);
        let second = renewal(&engine, id, &subscriber(&engine, id).unwrap()).unwrap();
        assert!(apply(&engine, &second).await);
        let known = subscriber(&engine, id).unwrap();
        assert_eq!(known.subscription.secret.as_deref(), Some("two"));
        let third = renewal(&engine, id, &known).unwrap();
        assert!(apply(&engine, &request(&engine, Mode::Unsubscribe, "")).await);
        assert!(!apply(&engine, &third).await);
        assert!(subscriber(&engine, id).is_none() && renewal(&engine, id, &known).is_none());
    }

    /// Another node may have changed the subscription: its requests have no place among those of this one.
    #[tokio::test]
    async fn a_renewal_does_not_undo_a_change_of_another_node() {
        let (engine, _) = failing_store::engine("[[feed]]\nid = \"notes\"\n").await;
        let one = request(&engine, Mode::Subscribe, "one");
        assert!(apply(&engine, &one).await);
        let known = subscriber(&engine, one.id).unwrap();
        let renewal = renewal(&engine, one.id, &known).unwrap();
        let mut changed = known.subscription.clone();
        changed.secret = Some("two".into());
        HubState::of(&engine).add(one.id, 0, changed, known.topic.clone(), known.access);
        assert!(!apply(&engine, &renewal).await);
    }
}
