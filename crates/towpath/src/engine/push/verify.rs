//! A request to the hub, from the form to a subscription that is verified.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use jiff::Timestamp;
use parking_lot::Mutex;
use towpath_proto::push::websub::dispatch::{Full, Id};
use towpath_proto::push::websub::request::{SubscriptionRequest, Verify};
use towpath_proto::push::websub::subscription::{Subscription, TooLarge, host_of};
use towpath_proto::push::websub::verify::{Answer, Verdict, Verification, denial};
use towpath_proto::push::websub::{Dialect, Mode};
use towpath_store::StoreError;

use super::{Subscribed, Topic, kept};
use crate::client::{CallError, SetupError};
use crate::engine::Engine;
use crate::engine::smart::Access;
use crate::random::unguessable;

/// How many verifications may be under way, and of these with one host.
const MAX_ASKING: usize = 2000;
const MAX_ASKING_HOST: usize = 200;
/// How long to wait where the store takes no writes before what was verified is kept.
const KEEP_PAUSE: Duration = Duration::from_secs(1);

/// Why a request is refused at once.
#[derive(Debug, thiserror::Error)]
pub enum SubscribeError {
    /// The callback may not be called: the subscriber's fault.
    #[error("hub.callback: {0}")]
    Callback(#[from] CallError),
    /// Too much to keep: the subscriber's fault.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// As many subscriptions as there may be.
    #[error(transparent)]
    Full(#[from] Full),
    /// As many verifications as there may be.
    #[error("too many subscriptions are being verified")]
    Busy,
    /// The subscriber, asked synchronously, did not mean it.
    #[error("not verified: {0}")]
    NotVerified(String),
    /// Ours.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Ours.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// A request, with what the hub knows of who sent it.
#[derive(Debug)]
pub struct Asking {
    /// What is asked for.
    pub request: SubscriptionRequest,
    /// Of which topic.
    pub topic: Topic,
    /// What its sender may read of that.
    pub access: Access,
    /// As whom, where not everybody may.
    pub reader: Option<String>,
}

/// How a request was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was verified: 204 (0.3 section 6.1.2).
    Verified,
    /// It will be: 202.
    Accepted,
}

/// The verifications under way, by host.
#[derive(Debug, Default)]
pub(super) struct AskingNow(Mutex<(usize, HashMap<String, usize>)>);

impl AskingNow {
    fn enter(&self, host: &str) -> Result<(), SubscribeError> {
        let mut now = self.0.lock();
        let of_host = now.1.get(host).copied().unwrap_or(0);
        if now.0 >= MAX_ASKING || of_host >= MAX_ASKING_HOST {
            return Err(SubscribeError::Busy);
        }
        now.0 += 1;
        now.1.insert(host.to_owned(), of_host + 1);
        Ok(())
    }

    fn leave(&self, host: &str) {
        let mut now = self.0.lock();
        now.0 = now.0.saturating_sub(1);
        if let Some(of_host) = now.1.get_mut(host) {
            *of_host -= 1;
            if *of_host == 0 {
                now.1.remove(host);
            }
        }
    }
}

/// Takes a request: refuses it at once, or has it verified, now or later.
///
/// # Errors
///
/// [`SubscribeError`].
pub async fn subscribe(engine: &Arc<Engine>, asking: Asking) -> Result<Taken, SubscribeError> {
    let push = &engine.push;
    push.caller()?.check(&asking.request.callback)?;
    let host = host_of(&asking.request.callback);
    let lease = push.leases.grant(asking.request.lease_seconds);
    // As large as it will be.
    subscription(&asking, lease, engine.now())?;
    let id = Subscription::id(&asking.topic.key, &asking.request.callback);
    {
        let subscribers = push.subscribers.lock();
        if asking.request.mode == Mode::Subscribe && subscribers.get(id).is_none() {
            subscribers.room(&asking.topic.key, &host)?;
        }
    }
    if engine.is_shared() {
        // A subscriber that said yes relies on it: none is asked where its yes could not be kept.
        engine.store.write(Vec::new(), Vec::new()).await?;
    }
    push.asking.enter(&host)?;
    let (is_sync, at) = (asking.request.verify == Verify::Sync, engine.clone());
    let verified = engine.runtime.spawn(async move {
        let verified = verify(&at, asking, lease, id).await;
        at.push.asking.leave(&host);
        verified
    });
    if !is_sync {
        return Ok(Taken::Accepted);
    }
    match verified.await {
        Ok(Ok(())) => Ok(Taken::Verified),
        Ok(Err(error)) => Err(error),
        Err(e) => Err(SubscribeError::NotVerified(e.to_string())),
    }
}

fn subscription(asking: &Asking, lease: Duration, ends: Timestamp) -> Result<Subscription, TooLarge> {
    Subscription::new(&asking.request, &asking.topic.key, lease, ends, asking.reader.as_deref())
}

/// Asks the subscriber until it is known whether it meant it, and does as it said.
async fn verify(engine: &Arc<Engine>, asking: Asking, lease: Duration, id: Id) -> Result<(), SubscribeError> {
    let challenge = format!("{:032x}", unguessable());
    let mut verification = Verification::new(asking.request.clone(), lease, challenge);
    let ends = loop {
        let url = verification.ask(engine.now());
        let called = engine.push.caller()?.call(Method::GET, &url, HeaderMap::new(), Bytes::new()).await;
        let answer = match &called {
            Ok(called) => Answer::Response { status: called.status, body: &called.body },
            Err(_) => Answer::Nothing,
        };
        match verification.handle_answer(engine.now(), answer) {
            Verdict::Confirmed(ends) => break ends,
            Verdict::Refused(mut reason) => {
                if let Err(error) = called {
                    reason = format!("{reason}: {error}");
                }
                let request = &asking.request;
                tracing::info!("{} of {} is not verified: {reason}", request.mode.name(), request.callback);
                return Err(SubscribeError::NotVerified(reason));
            }
            Verdict::Again(at) => {
                let wait = Duration::try_from(at.duration_since(engine.now())).unwrap_or_default();
                tokio::time::sleep(wait).await;
            }
        }
    };
    loop {
        let done = match asking.request.mode {
            Mode::Subscribe => begin(engine, &asking, lease, ends, id).await,
            Mode::Unsubscribe => {
                engine.push.remove(id);
                kept::forget(engine.store.as_ref(), id, Vec::new()).await.map_err(SubscribeError::from)
            }
        };
        match done {
            // The subscriber has said yes and relies on it: what cannot be kept now is kept as soon as it can be.
            Err(SubscribeError::Store(StoreError::Unavailable { reason, .. }))
                if asking.request.verify != Verify::Sync && engine.now() < ends =>
            {
                tracing::warn!("{} is verified and cannot be kept yet: {reason}", asking.request.callback);
                tokio::time::sleep(KEEP_PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn begin(
    engine: &Arc<Engine>,
    asking: &Asking,
    lease: Duration,
    ends: Timestamp,
    id: Id,
) -> Result<(), SubscribeError> {
    let subscription = subscription(asking, lease, ends)?;
    let known = match engine.is_shared() {
        // Where it stands is known to the node that delivers, and kept now and then.
        true => kept::position(engine.store.as_ref(), id).await?,
        false => engine.push.subscribers.lock().position(id),
    };
    if known.is_none() {
        // Others may have come meanwhile.
        let full = engine.push.subscribers.lock().room(&asking.topic.key, &subscription.host());
        if let Err(full) = full {
            tell(engine, &denial(&subscription.callback, &asking.request.topic, &full.to_string())).await;
            return Err(full.into());
        }
    }
    let position = match known {
        Some(position) => position,
        None => kept::end(engine, &asking.topic).await?,
    };
    let _keeping = engine.push.keeping.read().await;
    let new = if known.is_some() && engine.is_shared() { None } else { Some(position) };
    kept::keep(engine.store.as_ref(), id, &subscription, new).await?;
    let (topic, access) = (Arc::new(asking.topic.clone()), asking.access);
    engine.push.add(engine, id, position, Subscribed { subscription, topic, access });
    Ok(())
}

/// Tells a callback something that needs no answer.
pub(super) async fn tell(engine: &Engine, url: &str) {
    if let Ok(caller) = engine.push.caller()
        && let Err(e) = caller.call(Method::GET, url, HeaderMap::new(), Bytes::new()).await
    {
        tracing::debug!("a subscriber cannot be told that it is denied: {e}");
    }
}

/// Asks a PubSubHubbub 0.3 subscriber whether it wants to go on (section 6.3).
///
/// # Errors
///
/// [`SubscribeError::Busy`]: to be tried again.
pub(super) fn refresh(engine: &Arc<Engine>, id: Id, subscribed: &Subscribed) -> Result<(), SubscribeError> {
    let (subscription, topic) = (&subscribed.subscription, &subscribed.topic);
    debug_assert_eq!(subscription.dialect, Dialect::PubSubHubbub);
    let Some(asking_topic) = Topic::of_key(engine, &topic.key, subscribed.access) else { return Ok(()) };
    let asking = Asking {
        request: subscription.renewal(&topic.url(engine)),
        topic: asking_topic,
        access: subscribed.access,
        reader: subscription.reader.as_deref().map(str::to_owned),
    };
    let lease = Duration::from_secs(subscription.lease.into());
    let host = subscription.host();
    engine.push.asking.enter(&host)?;
    let engine = engine.clone();
    engine.runtime.clone().spawn(async move {
        // What came of it was logged; without a yes the lease ends by itself.
        let _ = verify(&engine, asking, lease, id).await;
        engine.push.asking.leave(&host);
    });
    Ok(())
}
