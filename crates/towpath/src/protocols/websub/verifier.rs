//! Requests to callbacks that have not agreed to them yet: verifications and denials.
//!
//! Each attempt is a task. Between attempts a verification is an entry of the queue, without a task.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::timeout;
use towpath_client::callback::CallbackResponse as Response;
use towpath_client::{CallbackError, CallbackRequest};
use towpath_proto::follow::Monotonic;
use towpath_proto::push::websub::address_block::AddressBlock;
use towpath_proto::push::websub::request::VerifyMode;
use towpath_proto::push::websub::verification_queue::{QueueFull, VerificationId};
use towpath_proto::push::websub::verify::{CallbackResponse, VerificationOutcome, denial};

use crate::engine::Engine;
use crate::protocols::websub::confirm::apply_confirmed;
use crate::protocols::websub::jobs::{PendingVerification, VerificationJob, now};
use crate::protocols::websub::request::SubscribeError;
use crate::protocols::websub::state::HubState;
use crate::stop::{Stop, stopped};

/// Pause before a verified subscription is stored again, while the store takes no writes.
const SAVE_RETRY: Duration = Duration::from_secs(1);
/// Time that verifications get to finish when the server stops.
const GRACE: Duration = Duration::from_secs(5);
/// Shortest and longest sleep of the timer. Monotonic time stands still while a machine is suspended.
const SLEEP: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// Queues a job for a client, and begins what may begin.
pub(super) fn submit(
    engine: &Arc<Engine>,
    requester: Option<IpAddr>,
    job: VerificationJob,
) -> Result<(), QueueFull> {
    // By block of addresses: one client with a /64 must not fill the queue.
    let requester = requester.map(AddressBlock::of);
    let address = AddressBlock::of_url(job.url());
    let needs_timer = {
        let mut queue = HubState::of(engine).verifier.queue.lock();
        queue.jobs.submit(requester, address, job)?;
        // Set under the queue's lock: of two submissions at once, one starts the timer.
        !std::mem::replace(&mut queue.has_timer, true)
    };
    if needs_timer {
        engine.runtime.spawn(run_timer(Arc::downgrade(engine)));
    }
    begin_due(engine);
    Ok(())
}

/// Calls a callback to tell it that its subscription is denied, if its address may get a request.
pub(super) fn notify_denial(engine: &Arc<Engine>, url: String) {
    if let Err(e) = submit(engine, None, VerificationJob::Deny(url)) {
        tracing::debug!(error = %e, "cannot tell a subscriber that it is denied");
    }
}

/// Begins what is due, until no verification is left. Holds the engine only while it works.
async fn run_timer(engine: Weak<Engine>) {
    loop {
        let Some(at) = engine.upgrade() else { return };
        begin_due(&at);
        let wait = {
            let mut queue = HubState::of(&at).verifier.queue.lock();
            if queue.jobs.is_empty() {
                // In the same lock as the look at the queue: a job that is submitted after it starts a timer of its
                // own.
                queue.has_timer = false;
                return;
            }
            queue.jobs.poll_timeout().map_or(SLEEP.1, |due| due.since(now().monotonic))
        };
        let wake = HubState::of(&at).verifier.wake.clone();
        // A server that stops must not wait for the timer.
        drop(at);
        // Either the time has come, or an earlier one was set.
        let _ = timeout(wait.clamp(SLEEP.0, SLEEP.1), wake.notified()).await;
    }
}

/// Begins the jobs that are due, as far as slots are free.
fn begin_due(engine: &Arc<Engine>) {
    loop {
        let (due, evicted) = {
            let mut queue = HubState::of(engine).verifier.queue.lock();
            // The lock is released before anything is spawned or logged.
            (queue.jobs.poll(now().monotonic), queue.jobs.take_evicted())
        };
        for job in evicted {
            tracing::debug!(callback = %job.url(), "a subscription is not verified: too many others wait");
        }
        let Some((id, job)) = due else { return };
        let engine = engine.clone();
        engine.runtime.clone().spawn(async move {
            perform(&engine, id, job).await;
            // Its slot is free now, and the timer may sleep for a minute.
            begin_due(&engine);
            let verifier = &HubState::of(&engine).verifier;
            verifier.wake.notify_one();
            verifier.ended.notify_one();
        });
    }
}

/// Waits for the stop signal, then for the verifications that run. The clients were told that they are accepted.
pub(crate) async fn finish_verifications(engine: Arc<Engine>, stop: Stop) {
    stopped(&stop).await;
    let verifier = &HubState::of(&engine).verifier;
    let finishing = async {
        while verifier.queue.lock().jobs.running() > 0 {
            verifier.ended.notified().await;
        }
    };
    let _ = timeout(GRACE, finishing).await;
}

async fn perform(engine: &Arc<Engine>, id: VerificationId, job: VerificationJob) {
    match job {
        VerificationJob::Ask(pending) => ask(engine, id, pending).await,
        VerificationJob::Save(pending, ends, address) => save(engine, id, pending, ends, address).await,
        VerificationJob::Deny(url) => match call(engine, &url).await {
            Err(SubscribeError::Callback(CallbackError::NotAdmitted(address))) => {
                deny_later(engine, id, address, VerificationJob::Deny(url));
            }
            result => {
                if let Err(e) = result {
                    tracing::debug!(error = %e, "cannot tell a subscriber that it is denied");
                }
                HubState::of(engine).verifier.queue.lock().jobs.handle_end(id);
            }
        },
    }
}

fn deny_later(engine: &Engine, id: VerificationId, address: IpAddr, job: VerificationJob) {
    let mut queue = HubState::of(engine).verifier.queue.lock();
    queue.jobs.handle_denied(now().monotonic, id, AddressBlock::of(address), job);
}

async fn call(engine: &Engine, url: &str) -> Result<Response, SubscribeError> {
    let hub = HubState::of(engine);
    let client = hub.verifier.client(hub.transport())?;
    Ok(client.call(CallbackRequest::get(url)).await?)
}

/// Asks a callback once.
async fn ask(engine: &Arc<Engine>, id: VerificationId, mut pending: Box<PendingVerification>) {
    // The client learns the address of the callback only while it connects, and may be refused then.
    let before = pending.verification.clone();
    let url = pending.verification.request_url(now().monotonic);
    let called = call(engine, &url).await;
    let answer = match &called {
        Err(SubscribeError::Callback(CallbackError::NotAdmitted(address))) => {
            // Nothing was sent, so it was no attempt.
            pending.verification = before;
            return deny_later(engine, id, *address, VerificationJob::Ask(pending));
        }
        Ok(called) => CallbackResponse::Response { status: called.status, body: &called.body },
        Err(_) => CallbackResponse::None,
    };
    let verifier = &HubState::of(engine).verifier;
    match pending.verification.handle_response(now().monotonic, answer) {
        VerificationOutcome::Confirmed(ends) => {
            let address = called.ok().and_then(|called| called.address).map(AddressBlock::of);
            if let Some(address) = address {
                verifier.queue.lock().jobs.handle_confirmed(now().monotonic, address);
            }
            save(engine, id, pending, ends, address).await;
        }
        VerificationOutcome::Refused(mut reason) => {
            if let Err(error) = called {
                reason = format!("{reason}: {error}");
            }
            let form = &pending.request.form;
            tracing::debug!(mode = form.mode.name(), callback = form.callback, %reason, "a request is not verified");
            finish(engine, id, pending, Err(SubscribeError::NotVerified(reason)));
        }
        VerificationOutcome::RetryAt(at) => {
            verifier.queue.lock().jobs.handle_retry(id, at, VerificationJob::Ask(pending));
        }
    }
}

/// Stores the result of a confirmed request.
async fn save(
    engine: &Arc<Engine>,
    id: VerificationId,
    pending: Box<PendingVerification>,
    ends: Monotonic,
    address: Option<AddressBlock>,
) {
    // The limits are checked again here: others may have taken the last places while the callback was asked.
    let done = apply_confirmed(engine, &pending, ends, address).await;
    let now = now().monotonic;
    if let Err(error @ (SubscribeError::Full(_) | SubscribeError::Gone(_))) = &done {
        let form = &pending.request.form;
        notify_denial(engine, denial(&form.callback, &form.topic, &error.to_string()));
    }
    if let Err(error @ SubscribeError::Overridden) = &done {
        tracing::debug!(callback = pending.request.form.callback, %error, "a confirmed request is dropped");
    }
    match done {
        // The subscriber has confirmed and relies on it, so storing is tried until it works.
        Err(SubscribeError::Store(error))
            if error.retry_after().is_some()
                // A synchronous client waits with its request open, and is better told of the failure (PubSubHubbub
                // 0.3, section 6.1).
                && pending.request.form.verify != VerifyMode::Sync
                && now < ends =>
        {
            tracing::debug!(
                callback = pending.request.form.callback,
                %error,
                "a subscription is verified and cannot be stored yet"
            );
            let job = VerificationJob::Save(pending, ends, address);
            HubState::of(engine).verifier.queue.lock().jobs.handle_retry(id, now + SAVE_RETRY, job);
        }
        done => finish(engine, id, pending, done),
    }
}

fn finish(
    engine: &Engine,
    id: VerificationId,
    pending: Box<PendingVerification>,
    result: Result<(), SubscribeError>,
) {
    HubState::of(engine).verifier.queue.lock().jobs.handle_end(id);
    if let Some(done) = pending.done {
        // The client may have disconnected.
        let _ = done.send(result);
    }
}
