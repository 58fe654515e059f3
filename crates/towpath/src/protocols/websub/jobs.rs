//! Verifications and denials that a node has to make.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use towpath_client::{
    AddressGate, CallbackClient, CallbackOptions, DriverClock as _, SetupError, SystemClock, Transport,
};
use towpath_proto::follow::{Monotonic, Now};
use towpath_proto::push::websub::address_block::AddressBlock;
use towpath_proto::push::websub::dispatch::SubscriptionId;
use towpath_proto::push::websub::verification_queue::{VerificationLimits, VerificationQueue};
use towpath_proto::push::websub::verify::IntentVerification;

use crate::protocols::websub::order::{RequestOrder, RequestTicket};
use crate::protocols::websub::request::{SubscribeError, SubscribeRequest};
use crate::protocols::websub::subscriber::VerifiedSubscriber;

/// Returns the present, by both clocks. Timers run on monotonic time, dates are stored.
pub(super) fn now() -> Now {
    SystemClock.now()
}

/// A request that is being verified.
pub(super) struct PendingVerification {
    pub(super) request: SubscribeRequest,
    pub(super) lease: Duration,
    pub(super) id: SubscriptionId,
    pub(super) ticket: RequestTicket,
    /// Subscription that the hub renews by itself.
    pub(super) renews: Option<Arc<VerifiedSubscriber>>,
    pub(super) verification: IntentVerification,
    /// Client that waits for the result.
    pub(super) done: Option<oneshot::Sender<Result<(), SubscribeError>>>,
}

/// A task of the queue.
pub(super) enum VerificationJob {
    /// Asks the callback to confirm.
    Ask(Box<PendingVerification>),
    /// Stores the result of a confirmed request, whose lease ends at this time.
    // Boxed, or each of many thousand entries would have the size of the largest.
    Save(Box<PendingVerification>, Monotonic, Option<AddressBlock>),
    /// Tells a callback that its subscription is denied, by this URL.
    Deny(String),
}

/// Verifications of this node.
pub(super) struct Verifier {
    pub(super) queue: Arc<Mutex<TimedQueue>>,
    pub(super) order: RequestOrder,
    /// Wakes the timer when an earlier time has been set.
    pub(super) wake: Arc<Notify>,
    /// Tells that a verification does not run any more.
    pub(super) ended: Notify,
    calls: CallbackOptions,
    client: OnceLock<CallbackClient>,
}

/// Verifications, and the task that waits for the next time.
pub(super) struct TimedQueue {
    pub(super) jobs: VerificationQueue<VerificationJob>,
    /// True while a task waits for the next time.
    pub(super) has_timer: bool,
}

impl Verifier {
    pub(super) fn new(limits: VerificationLimits, calls: CallbackOptions) -> Self {
        let queue = TimedQueue { jobs: VerificationQueue::new(limits), has_timer: false };
        Self {
            queue: Arc::new(Mutex::new(queue)),
            order: RequestOrder::default(),
            wake: Arc::default(),
            ended: Notify::new(),
            calls,
            client: OnceLock::new(),
        }
    }

    /// Returns the HTTP client, which counts each connection against the budget of its address. The first call says
    /// what sends its requests in place of the network.
    ///
    /// # Errors
    ///
    /// TLS that cannot be set up.
    pub(super) fn client(
        &self,
        transport: Option<Arc<dyn Transport>>,
    ) -> Result<&CallbackClient, SetupError> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let queue = self.queue.clone();
        let admit = move |address| queue.lock().jobs.admit(now().monotonic, AddressBlock::of(address));
        let made = CallbackClient::gated(self.calls, AddressGate::new(admit))?.with_transport(transport);
        Ok(self.client.get_or_init(|| made))
    }
}

impl VerificationJob {
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Ask(pending) | Self::Save(pending, ..) => &pending.request.form.callback,
            Self::Deny(url) => url,
        }
    }
}
