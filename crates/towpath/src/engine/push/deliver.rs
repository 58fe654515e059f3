//! The task that delivers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use towpath_proto::push::websub::delivery::{Carried, Outcome, Verdict};
use towpath_proto::push::websub::dispatch::{Dispatcher, Id, Send};
use towpath_proto::push::websub::signature::{self, Algorithm};

use super::{Subscribed, kept, page, verify};
use crate::client::CallError;
use crate::engine::Engine;
use crate::engine::roles::Lease;
use crate::stop::{Stop, stopped};

/// How often positions are kept.
const KEEP: Duration = Duration::from_secs(1);
/// The longest sleep before the clock is looked at again: clocks are set, machines are suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// When a subscriber is asked again whether it wants to go on, where too many were being asked.
const BUSY: Duration = Duration::from_secs(5);
/// How long deliveries may finish when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// A delivery that has ended.
struct Ended {
    id: Id,
    carried: Carried,
    outcome: Outcome,
}

/// Delivers what the logs have to all subscribers, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    engine.push.take_over(engine.config.hub, lease.clone());
    if let Err(e) = kept::load(&engine).await {
        tracing::error!("cannot read the subscriptions: {e}");
    }
    let mut under_way = JoinSet::new();
    let mut keep = interval(KEEP);
    keep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !*stop.borrow() {
        engine.push.take_moves();
        look_at_leases(&engine);
        start(&engine, &lease, &stop, &mut under_way);
        tokio::select! {
            Some(ended) = under_way.join_next(), if !under_way.is_empty() => report(ended),
            () = engine.push.bell.notified() => {}
            () = sleep(until_timeout(&engine)) => {}
            _ = keep.tick() => keep_positions(&engine).await,
            () = stopped(&stop) => {}
        }
    }
    let finishing = async {
        while let Some(ended) = under_way.join_next().await {
            report(ended);
        }
    };
    // What is not known to have arrived is sent again after the next start.
    let _ = timeout(GRACE, finishing).await;
    keep_positions(&engine).await;
    *engine.push.lease.lock() = None;
}

async fn keep_positions(engine: &Engine) {
    if let Err(e) = kept::keep_positions(engine).await {
        tracing::warn!("cannot keep where subscribers stand: {e}");
    }
}

fn until_timeout(engine: &Engine) -> Duration {
    let next = engine.push.subscribers.lock().poll_timeout();
    let wait =
        next.map(|next: Timestamp| Duration::try_from(next.duration_since(engine.now())).unwrap_or_default());
    wait.unwrap_or(LONGEST_SLEEP).clamp(Duration::from_millis(10), LONGEST_SLEEP)
}

/// Starts what is to be sent now, as far as there are connections. Whoever has made a delivery makes the next one:
/// there are never more tasks than connections.
fn start(engine: &Arc<Engine>, lease: &Lease, stop: &Stop, under_way: &mut JoinSet<()>) {
    while let Some((send, to)) = begin(engine, lease) {
        let (engine, lease, stop) = (engine.clone(), lease.clone(), stop.clone());
        under_way.spawn(async move {
            let mut work = Some((send, to));
            while let Some((send, to)) = work {
                let ended = deliver(&engine, &lease, &to, send).await;
                work = finish(&engine, &ended, *stop.borrow() || !lease.is_current());
            }
            // A host that was full may have room now, and what is to be looked at later has changed.
            engine.push.bell.notify_one();
        });
    }
}

type Work = (Send, Arc<Subscribed>);

fn next(subscribers: &mut Dispatcher<Arc<Subscribed>>, now: Timestamp) -> Option<Work> {
    let send = subscribers.poll_send(now)?;
    let to = subscribers.get(send.id)?.clone();
    Some((send, to))
}

fn begin(engine: &Engine, lease: &Lease) -> Option<Work> {
    if !lease.is_current() {
        return None;
    }
    next(&mut engine.push.subscribers.lock(), engine.now())
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended {
        tracing::error!("a delivery broke off: {e}");
    }
}

/// One delivery (WebSub 7).
async fn deliver(engine: &Arc<Engine>, lease: &Lease, to: &Subscribed, send: Send) -> Ended {
    let ended = |carried, outcome| Ended { id: send.id, carried, outcome };
    let nothing_known = Carried { through: send.after, looked: send.after };
    let page = match page::page(engine, to, send.after).await {
        Ok(page) => page,
        Err(e) => {
            tracing::warn!(feed = %to.topic.feed.id(), "cannot make what is to be pushed: {e}");
            return ended(nothing_known, Outcome::Refused(None));
        }
    };
    if page.body.is_empty() {
        return ended(page.carried, Outcome::Nothing);
    }
    let mut headers = page.headers.clone();
    if let Some(secret) = &to.subscription.secret {
        let algorithm = Algorithm::of(to.subscription.dialect);
        let signature = signature::sign(algorithm, secret.as_bytes(), &page.body);
        if let Ok(value) = HeaderValue::from_str(&signature) {
            headers.insert(HeaderName::from_static(signature::HEADER), value);
        }
    }
    // Making the page takes time, in which another node may have begun to deliver.
    if !lease.is_current() {
        return ended(nothing_known, Outcome::Refused(None));
    }
    ended(page.carried, post(engine, &to.subscription.callback, headers, page.body.clone()).await)
}

async fn post(engine: &Engine, callback: &str, headers: HeaderMap, body: Bytes) -> Outcome {
    let caller = match engine.push.caller() {
        Ok(caller) => caller,
        Err(e) => {
            tracing::error!("{e}");
            return Outcome::Refused(None);
        }
    };
    match caller.call(Method::POST, callback, headers, body).await {
        Ok(called) => match called.status {
            200..=299 => Outcome::Accepted,
            410 => Outcome::Gone,
            _ => Outcome::Refused(called.retry_after),
        },
        Err(CallError::Url(_) | CallError::NotPublic(_)) => Outcome::Refused(None),
        Err(error) => {
            tracing::debug!("{callback}: {error}");
            Outcome::Unreachable
        }
    }
}

/// Takes note of a delivery's end, and returns the next one to make, unless all is to end.
fn finish(engine: &Engine, ended: &Ended, is_last: bool) -> Option<Work> {
    let Ended { id, carried, outcome } = *ended;
    let (metrics, now) = (&engine.metrics, engine.now());
    match outcome {
        Outcome::Accepted => {
            metrics.pushes_ok.inc();
        }
        Outcome::Gone | Outcome::Refused(_) | Outcome::Unreachable => {
            metrics.pushes_failed.inc();
        }
        Outcome::Nothing => {}
    }
    let mut subscribers = engine.push.subscribers.lock();
    let verdict = subscribers.handle_end(now, id, carried, outcome);
    if verdict == Some(Verdict::Dropped)
        && let Some(to) = subscribers.get(id)
    {
        tracing::warn!("{} misses a delivery of {:?}", to.subscription.callback, to.topic);
    }
    let work = if is_last { None } else { next(&mut subscribers, now) };
    drop(subscribers);
    match verdict {
        Some(Verdict::Done | Verdict::Dropped) => {
            engine.push.unkept.lock().insert(id);
        }
        Some(Verdict::Ended) => engine.push.end(id),
        Some(Verdict::Retry(_)) | None => {}
    }
    work
}

/// "Hubs MUST enforce lease expirations" (WebSub 5.3.1).
fn look_at_leases(engine: &Arc<Engine>) {
    loop {
        let now = engine.now();
        let due = {
            let mut subscribers = engine.push.subscribers.lock();
            subscribers.poll_lease(now).and_then(|id| Some((id, subscribers.get(id)?.clone())))
        };
        let Some((id, to)) = due else { return };
        if to.subscription.end() <= now {
            engine.push.end(id);
            continue;
        }
        let (host, mut look) = (to.subscription.host(), to.subscription.end());
        if verify::refresh(engine, id, &to).is_err() {
            look = look.min(now.saturating_add(BUSY).unwrap_or(look));
        }
        engine.push.subscribers.lock().add(id, &to.topic.key, &host, 0, look, to.clone());
    }
}
