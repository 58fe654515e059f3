//! The task that delivers to subscribers.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until, timeout};
use towpath_client::{CallbackError, CallbackRequest};
use towpath_proto::follow::{Backoff, Monotonic};
use towpath_proto::push::websub::delivery::{AfterDelivery, DeliveredRange, DeliveryOutcome};
use towpath_proto::push::websub::dispatch::{Dispatcher, DueDelivery, EndedDelivery, SLOW_ANSWER};
use towpath_proto::push::websub::signature::{self, Algorithm};
use tracing::Instrument as _;

use crate::engine::Engine;
use crate::engine::access::access_of;
use crate::engine::roles::Lease;
use crate::protocols::websub::jobs::now;
use crate::protocols::websub::state::HubState;
use crate::protocols::websub::subscriber::VerifiedSubscriber;
use crate::protocols::websub::{ended, load, page, stored, verify};
use crate::spans::span;
use crate::stop::{Stop, stopped};

/// Interval of storing positions.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Longest sleep until the clock is read again: monotonic time stands still while a machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Time until a subscriber is asked again to renew, if too many were being asked.
const RENEWAL_RETRY: Duration = Duration::from_secs(5);
/// Waits between attempts to read the subscriptions.
const LOAD_BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(300));
/// Time that deliveries get to finish when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// Delivers to all subscribers until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    HubState::of(&engine).take_over(engine.config.hub, lease.clone());
    let mut loading = SubscriptionLoad::default();
    loading.attempt(&engine).await;
    let mut under_way = JoinSet::new();
    let mut save = interval(SAVE_INTERVAL);
    // After a slow write, the missed ticks must not follow all at once.
    save.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !*stop.borrow() {
        ended::end_removed(&engine);
        // First of the deliveries: those started below include these appends.
        HubState::of(&engine).dispatch_appends();
        check_leases(&engine);
        start(&engine, &lease, &stop, &mut under_way);
        tokio::select! {
            Some(ended) = under_way.join_next(), if !under_way.is_empty() => report(ended),
            () = HubState::of(&engine).wake.notified() => {}
            () = sleep(until_timeout(&engine)) => {}
            _ = save.tick() => save_positions(&engine).await,
            () = loading.due() => loading.attempt(&engine).await,
            () = stopped(&stop) => {}
        }
    }
    let finishing = async {
        while let Some(ended) = under_way.join_next().await {
            report(ended);
        }
    };
    // A delivery without a response is sent again after the next start.
    let _ = timeout(GRACE, finishing).await;
    save_positions(&engine).await;
    // After the last write of positions, which needs the lease as its precondition.
    *HubState::of(&engine).lease.lock() = None;
}

/// Reading of the stored subscriptions, which is repeated until all were read.
#[derive(Default)]
struct SubscriptionLoad {
    failures: u32,
    /// Time of the next attempt, if the last one failed.
    next: Option<tokio::time::Instant>,
}

impl SubscriptionLoad {
    async fn attempt(&mut self, engine: &Arc<Engine>) {
        let loaded = load::load(engine).await;
        self.next = loaded.is_err().then(|| {
            self.failures = self.failures.saturating_add(1);
            tokio::time::Instant::now() + LOAD_BACKOFF.jittered(self.failures, fastrand::u64(..))
        });
        // No reason to stop: the subscriptions that were read get their deliveries.
        if let Err(e) = loaded {
            tracing::error!(error = %e, "cannot read all subscriptions, and try again");
        }
    }

    /// Returns at the time of the next attempt.
    async fn due(&self) {
        match self.next {
            Some(next) => sleep_until(next).await,
            None => std::future::pending().await,
        }
    }
}

async fn save_positions(engine: &Engine) {
    if let Err(e) = stored::save_positions(engine).await {
        tracing::warn!(error = %e, "cannot store the positions of subscribers");
    }
}

fn until_timeout(engine: &Engine) -> Duration {
    let next = HubState::of(engine).subscribers.lock().poll_timeout();
    let wait = next.map(|next| next.since(now().monotonic));
    // At least 10 ms: a subscriber that is due but waits for a free connection must not spin the loop.
    wait.unwrap_or(LONGEST_SLEEP).clamp(Duration::from_millis(10), LONGEST_SLEEP)
}

/// Starts the deliveries that are due, as far as connections are free. A task that finished a delivery makes the next
/// one, so there are never more tasks than connections.
fn start(engine: &Arc<Engine>, lease: &Lease, stop: &Stop, under_way: &mut JoinSet<()>) {
    while let Some((send, to)) = next_delivery(engine, lease) {
        let (engine, lease, stop) = (engine.clone(), lease.clone(), stop.clone());
        under_way.spawn(async move {
            let mut work = Some((send, to));
            while let Some((send, to)) = work {
                let ended = deliver_or_refuse(&engine, &lease, &to, send).await;
                work = finish(&engine, ended, *stop.borrow() || !lease.is_current());
            }
            // A busy host may have a free connection now, and the next timeout may have changed.
            HubState::of(&engine).wake.notify_one();
        });
    }
}

type DeliveryJob = (DueDelivery, Arc<VerifiedSubscriber>);

fn next(subscribers: &mut Dispatcher<Arc<VerifiedSubscriber>>, now: Monotonic) -> Option<DeliveryJob> {
    let send = subscribers.poll_delivery(now)?;
    let to = subscribers.get(send.id)?.clone();
    Some((send, to))
}

fn next_delivery(engine: &Engine, lease: &Lease) -> Option<DeliveryJob> {
    if !lease.is_current() {
        return None;
    }
    next(&mut HubState::of(engine).subscribers.lock(), now().monotonic)
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended {
        tracing::error!(error = %e, "a delivery panicked");
    }
}

/// Makes a delivery. One that panics counts as refused, or its subscriber and its connection would stay busy.
async fn deliver_or_refuse(
    engine: &Arc<Engine>,
    lease: &Lease,
    to: &VerifiedSubscriber,
    send: DueDelivery,
) -> EndedDelivery {
    let delivered = AssertUnwindSafe(deliver(engine, lease, to, send)).catch_unwind().await;
    delivered.unwrap_or_else(|_| {
        tracing::error!(callback = to.subscription.callback, feed = %to.topic.feed.id(), "a delivery panicked");
        ended_without(send, DeliveryOutcome::Refused(None))
    })
}

/// Returns the end of a delivery that sent nothing.
fn ended_without(send: DueDelivery, outcome: DeliveryOutcome) -> EndedDelivery {
    let range = DeliveredRange { through: send.after, scanned: send.after };
    EndedDelivery { id: send.id, range, outcome, took: Duration::ZERO }
}

/// Makes a delivery (WebSub 7).
async fn deliver(
    engine: &Arc<Engine>,
    lease: &Lease,
    to: &VerifiedSubscriber,
    send: DueDelivery,
) -> EndedDelivery {
    // Tokens can be withdrawn while the server runs. The subscription then ends as with 410 from its callback.
    // Also if the token still reads the feed, but another part of it: the subscriber asked for what it could see then.
    let access = access_of(&to.topic.feed, &engine.tokens.load(), to.subscription.reader.as_deref());
    if access != Some(to.access) {
        tracing::info!(feed = %to.topic.feed.id(), "a subscription ended: its token was withdrawn");
        return ended_without(send, DeliveryOutcome::Gone);
    }
    let page = match page::page(engine, to, send.after).await {
        Ok(page) => page,
        Err(e) => {
            tracing::warn!(feed = %to.topic.feed.id(), error = %e, "cannot build a delivery");
            return ended_without(send, DeliveryOutcome::Refused(None));
        }
    };
    if page.body.is_empty() {
        return EndedDelivery { range: page.carried, ..ended_without(send, DeliveryOutcome::Nothing) };
    }
    let mut headers = page.headers.clone();
    if let Some(secret) = &to.subscription.secret {
        let algorithm = Algorithm::of(to.subscription.dialect);
        let signature = signature::sign(algorithm, secret.as_bytes(), &page.body);
        if let Ok(value) = HeaderValue::from_str(&signature) {
            headers.insert(HeaderName::from_static(signature::HEADER), value);
        }
    }
    // Building the page takes time, in which another node may have taken over the role.
    if !lease.is_current() {
        return ended_without(send, DeliveryOutcome::Refused(None));
    }
    let begun = Instant::now();
    let span = span!("delivery", otel.kind = "client", feed = %to.topic.feed.id());
    let posting = post(engine, &to.subscription.callback, send, headers, page.body.clone());
    let outcome = posting.instrument(span).await;
    EndedDelivery { id: send.id, range: page.carried, outcome, took: begun.elapsed() }
}

async fn post(
    engine: &Engine,
    callback: &str,
    send: DueDelivery,
    headers: HeaderMap,
    body: Bytes,
) -> DeliveryOutcome {
    let hub = HubState::of(engine);
    let caller = match hub.caller() {
        Ok(caller) => caller,
        Err(e) => {
            tracing::error!(error = %e, "cannot deliver to subscribers");
            return DeliveryOutcome::Refused(None);
        }
    };
    let request = CallbackRequest { method: Method::POST, url: callback, headers, body };
    // Pinned, so that the call goes on after the timeout instead of being sent twice.
    let mut call = pin!(caller.call_for_head(request));
    let called = match timeout(SLOW_ANSWER, &mut call).await {
        Ok(called) => called,
        Err(_) => {
            if !hub.subscribers.lock().handle_overdue(send.id) {
                tracing::debug!(callback, "a subscriber answers slowly, and others wait");
                return DeliveryOutcome::TooSlow;
            }
            // It left its connection to others.
            hub.wake.notify_one();
            call.await
        }
    };
    match called {
        Ok((response, body)) => {
            // "The response body from the subscriber MUST be ignored" (WebSub 7). Within the delivery, so that bodies
            // which never end do not pile up connections.
            body.drain().await;
            match response.status {
                200..=299 => DeliveryOutcome::Accepted,
                // "the hub MAY terminate the subscription if it receives that code" (WebSub, section 7).
                410 => DeliveryOutcome::Gone,
                _ => DeliveryOutcome::Refused(response.retry_after),
            }
        }
        // Counts as refused: the name may lead to a private address now, and to the subscriber again later.
        Err(CallbackError::Url(_) | CallbackError::NotPublic(_)) => DeliveryOutcome::Refused(None),
        Err(error) => {
            tracing::debug!(callback, %error, "a subscriber was not reached");
            DeliveryOutcome::Unreachable
        }
    }
}

/// Reports a finished delivery, and returns the next one unless the task is to stop.
fn finish(engine: &Engine, ended: EndedDelivery, is_last: bool) -> Option<DeliveryJob> {
    let EndedDelivery { id, outcome, .. } = ended;
    let (metrics, now) = (&engine.metrics, now().monotonic);
    match outcome {
        DeliveryOutcome::Accepted => {
            metrics.pushes_ok.inc();
            metrics.deliveries.websub.inc();
        }
        DeliveryOutcome::Gone
        | DeliveryOutcome::Refused(_)
        | DeliveryOutcome::Unreachable
        | DeliveryOutcome::TooSlow => {
            metrics.pushes_failed.inc();
        }
        DeliveryOutcome::Nothing => {}
    }
    let mut subscribers = HubState::of(engine).subscribers.lock();
    let verdict = subscribers.handle_end(now, ended);
    if verdict == Some(AfterDelivery::Dropped)
        && let Some(to) = subscribers.get(id)
    {
        HubState::of(engine).missed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(callback = to.subscription.callback, feed = %to.topic.feed.id(), "a subscriber misses a delivery");
    }
    // In the lock of the end: the connection goes to this task's next delivery, so tasks never outnumber connections.
    let work = if is_last { None } else { next(&mut subscribers, now) };
    drop(subscribers);
    match verdict {
        Some(AfterDelivery::Done | AfterDelivery::Dropped) => {
            HubState::of(engine).unsaved.lock().insert(id);
        }
        Some(AfterDelivery::Ended) => HubState::of(engine).end(id),
        Some(AfterDelivery::Retry(_)) | None => {}
    }
    work
}

/// "Hubs MUST enforce lease expirations" (WebSub 5.3.1).
fn check_leases(engine: &Arc<Engine>) {
    loop {
        let now = now();
        let due = {
            let mut subscribers = HubState::of(engine).subscribers.lock();
            subscribers.poll_lease(now.monotonic).and_then(|id| Some((id, subscribers.get(id)?.clone())))
        };
        let Some((id, to)) = due else { return };
        if to.ends <= now.monotonic {
            HubState::of(engine).end(id);
            continue;
        }
        // Due before the end of the lease only in PubSubHubbub 0.3 (section 6.3): the hub asks whether it is to go on.
        let mut look = to.ends;
        if verify::refresh(engine, id, &to).is_err() {
            look = look.min(now.after(RENEWAL_RETRY));
        }
        HubState::of(engine).subscribers.lock().set_lease(id, look);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::future::BoxFuture;
    use towpath_client::{Transport, TransportBody};
    use towpath_proto::push::websub::Dialect;
    use towpath_proto::push::websub::subscription::HubSubscription;
    use towpath_proto::{Item, NewChange};
    use towpath_store::Expected;

    use super::*;
    use crate::engine::access::Access;
    use crate::protocols::failing_store;
    use crate::protocols::websub::topic::Topic;

    const CONFIG: &str = "[[feed]]\nid = \"notes\"\n[server]\nallow_private_callbacks = true\n";

    #[derive(Debug)]
    struct PanickingTransport;

    impl Transport for PanickingTransport {
        fn send(
            &self,
            _: http::Request<Bytes>,
        ) -> BoxFuture<'static, io::Result<http::Response<TransportBody>>> {
            panic!("a fault of the program")
        }
    }

    fn subscription() -> HubSubscription {
        HubSubscription {
            topic: "notes?".into(),
            callback: "http://127.0.0.1:9/".into(),
            secret: None,
            dialect: Dialect::WebSub,
            verify_token: None,
            ends: jiff::Timestamp::now().as_second() + 1000,
            lease: 1000,
            reader: None,
            address: None,
        }
    }

    #[tokio::test]
    async fn a_delivery_that_panics_is_repeated() {
        let (engine, store) = failing_store::engine(CONFIG).await;
        let (lease, (_stop, stopping)) = (Lease::alone("hub"), tokio::sync::watch::channel(false));
        let hub = HubState::of(&engine);
        hub.set_transport(Arc::new(PanickingTransport));
        hub.take_over(engine.config.hub, lease.clone());
        let (subscription, topic) =
            (subscription(), Topic::of_key(&engine, "notes?", Access::Whole).unwrap());
        let id = HubSubscription::id(&topic.key, &subscription.callback);
        let feed = topic.feed.id().clone();
        hub.add(id, 0, subscription, topic.into(), Access::Whole);
        let change = NewChange::put(Item::new("a"));
        towpath_store::Store::append(&*store, &feed, Expected::Any, vec![change]).await.unwrap();
        hub.dispatch_appends();
        let mut under_way = JoinSet::new();
        start(&engine, &lease, &stopping, &mut under_way);
        assert_eq!((under_way.len(), hub.subscribers.lock().running()), (1, 1));
        under_way.join_next().await.unwrap().unwrap();
        let subscribers = hub.subscribers.lock();
        assert_eq!((subscribers.running(), subscribers.failing().collect::<Vec<_>>()), (0, vec![id]));
    }

    #[tokio::test(start_paused = true)]
    async fn subscriptions_that_could_not_be_read_are_read_again() {
        let (engine, store) = failing_store::engine(CONFIG).await;
        let subscription = subscription();
        let id = HubSubscription::id(&subscription.topic, &subscription.callback);
        stored::save(engine.store.as_ref(), id, &subscription, Some(0)).await.unwrap();
        *store.scan_fault.lock() = Some("s/");
        let (stop, stopping) = tokio::sync::watch::channel(false);
        let delivering = tokio::spawn(run(engine.clone(), Lease::alone("hub"), stopping));
        let read = async {
            let mut looks = interval(Duration::from_millis(100));
            while HubState::of(&engine).is_empty() {
                looks.tick().await;
            }
        };
        timeout(Duration::from_secs(60), read).await.expect("the subscription is read");
        assert!(store.scan_fault.lock().is_none());
        stop.send_replace(true);
        delivering.await.unwrap();
    }
}
