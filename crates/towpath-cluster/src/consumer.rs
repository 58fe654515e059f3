//! Consumer: reads the log in order and without gaps for the applying thread, and watches the log's end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use futures_util::StreamExt;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use towpath_store::WallClock;

use crate::address::ClusterAddress;
use crate::answer_confirmation::AnswerConfirmation;
use crate::apply::LogMessage;
use crate::checkpoint::{LogMark, ReplicaPosition};
use crate::health::{NodeHealth, ProblemOrigin};
use crate::nodes;
use crate::stream::{self, LogExtent, StreamError};

/// Number of messages per pull request.
pub(crate) const BATCH: usize = 128;
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Time after which JetStream removes the consumer of a node that is gone.
pub(crate) const INACTIVE: Duration = Duration::from_secs(60);
const EXPIRES: Duration = Duration::from_secs(30);
/// Timeout of a request to JetStream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before a retry.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Pause before an answer is confirmed that would stop the node.
const CONFIRM_PAUSE: Duration = Duration::from_secs(1);
/// Problem of a node that asks again.
const ASKED_AGAIN: &str = "the answer of the cluster does not fit this node's replica; asking again";
/// Pause before a retry of an error that only an operator can fix.
const STOPPED_PAUSE: Duration = Duration::from_secs(2);

/// Maximum number of messages that are read ahead of the applying thread.
pub(crate) const AHEAD: usize = 16_384;
/// Maximum size of the messages that are read ahead, in KiB.
pub(crate) const AHEAD_KIB: usize = 64 << 10;

/// Returns the size of a message in KiB, as the read-ahead budget counts it.
fn permits(bytes: usize) -> u32 {
    bytes.div_ceil(1024).clamp(1, AHEAD_KIB) as u32
}

/// State of the reading task.
pub(crate) struct LogConsumer {
    pub(crate) context: Context,
    pub(crate) address: ClusterAddress,
    /// Position of the last message that was sent to the applying thread.
    pub(crate) position: ReplicaPosition,
    pub(crate) messages: mpsc::Sender<LogMessage>,
    /// Budget of messages that are not applied yet, in KiB.
    pub(crate) ahead: Arc<Semaphore>,
    pub(crate) health: Arc<NodeHealth>,
    /// Highest feature level that this node supports.
    pub(crate) supported: u8,
    /// Identity of this node, which the log's consumer tells.
    pub(crate) node: u64,
    /// True if this node can begin anew from a snapshot when its process is started again.
    pub(crate) can_begin_anew: bool,
}

impl LogConsumer {
    /// Runs until the applying thread ends. `stalled` makes it start a new subscription.
    pub(crate) async fn run(mut self, stalled: Arc<Notify>) {
        let mut confirmation = AnswerConfirmation::default();
        while !self.messages.is_closed() {
            let ended = tokio::select! {
                ended = self.consume() => ended,
                () = stalled.notified() => Err(StreamError::Later("reading the log stalled".into())),
            };
            let (reason, pause) = match ended {
                Ok(()) => continue,
                Err(StreamError::Later(reason)) => {
                    confirmation.clear();
                    (reason, RETRY_PAUSE)
                }
                Err(StreamError::Never(reason) | StreamError::Removed(reason)) if !confirmation.confirm() => {
                    tracing::debug!(reason, "asking the log again");
                    (ASKED_AGAIN.into(), CONFIRM_PAUSE)
                }
                Err(StreamError::Removed(reason)) if self.can_begin_anew => {
                    // The readers of an open replica would not survive its replacement, so the process has to end.
                    let reason =
                        format!("{reason}; this process ends, and the next one begins from a snapshot");
                    self.health.fail(reason.clone());
                    (reason, STOPPED_PAUSE)
                }
                Err(StreamError::Never(reason) | StreamError::Removed(reason)) => {
                    self.health.stop(reason.clone());
                    (reason, STOPPED_PAUSE)
                }
            };
            self.health.set_problem(ProblemOrigin::Consumer, reason);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.messages.closed() => {}
            }
        }
    }

    /// Reads the log until an error, or until the applying thread ends.
    async fn consume(&mut self) -> Result<(), StreamError> {
        let later = |reason: &str| StreamError::Later(reason.to_owned());
        let opened = timeout(REQUEST_TIMEOUT, stream::open_existing(&self.context, &self.address)).await;
        let (stream, log) = opened.map_err(|_| later("the cluster does not answer"))??;
        let info = stream.cached_info();
        let checked =
            timeout(REQUEST_TIMEOUT, stream::check_position(&stream, info, log, &self.position)).await;
        checked.map_err(|_| later("the cluster does not answer"))??;
        // Asked in each attempt: an operator may have brought the lost messages back from a copy of the stream.
        if let Some(lost) = self.health.lost() {
            let found = timeout(REQUEST_TIMEOUT, stream::check_mark(&stream, info, &lost)).await;
            found.map_err(|_| later("the cluster does not answer"))??;
        }
        // Only problems of the log are over. A replica that cannot be written has closed this channel.
        if !self.messages.is_closed() {
            self.health.resume();
            self.health.clear_problem(ProblemOrigin::Consumer);
        }
        let config = pull::Config {
            deliver_policy: match self.position.at {
                0 => DeliverPolicy::All,
                at => DeliverPolicy::ByStartSequence { start_sequence: at + 1 },
            },
            // The replica has its own position, so acknowledgements would only cost messages.
            ack_policy: AckPolicy::None,
            // A consumer that its server loses is created again at the replica's position.
            memory_storage: true,
            description: Some(nodes::consumer_description(self.node, self.supported)),
            num_replicas: 1,
            inactive_threshold: INACTIVE,
            ..pull::Config::default()
        };
        let consumer = timeout(REQUEST_TIMEOUT, stream.create_consumer(config)).await;
        let consumer = consumer.map_err(|_| later("the cluster does not answer"))?;
        let consumer = consumer.map_err(|e| StreamError::Later(format!("cannot read the log: {e}")))?;
        let batches = consumer.stream().max_messages_per_batch(BATCH).heartbeat(HEARTBEAT).expires(EXPIRES);
        let mut messages = batches.messages().await.map_err(|e| StreamError::Later(e.to_string()))?;
        loop {
            let message = tokio::select! {
                message = messages.next() => message,
                () = self.messages.closed() => return Ok(()),
            };
            let message = message.ok_or_else(|| later("reading the log was interrupted"))?;
            let message =
                message.map_err(|e| StreamError::Later(format!("reading the log was interrupted: {e}")))?;
            let info = message.info().map_err(|e| StreamError::Later(e.to_string()))?;
            let at = info.stream_sequence;
            let time = u64::try_from(info.published.unix_timestamp_nanos()).unwrap_or_default();
            match at.checked_sub(self.position.at) {
                // A duplicate of an earlier message.
                None | Some(0) => continue,
                Some(1) => {}
                // A stream has no gaps after its first message, so a gap is a lost delivery.
                Some(_) => return Err(later("a message of the log was not delivered")),
            }
            let payload = message.message.payload;
            // By bytes and not only by messages: 16,384 large ones would fill the memory of a node that catches
            // up.
            let acquired = Arc::clone(&self.ahead).acquire_many_owned(permits(payload.len())).await;
            let Ok(permit) = acquired else {
                return Ok(());
            };
            let message = LogMessage::decode(at, time, payload, self.supported, permit);
            let mark = message.mark(log);
            if self.messages.send(message).await.is_err() {
                return Ok(());
            }
            // Only after the send: a message that was not delivered is read again.
            (self.position.at, self.position.mark) = (at, mark.or(self.position.mark));
        }
    }
}

/// Polls the log's end every second, and checks that the log still has the replica's last message.
///
/// It restarts the consumer where that stalls before the end, or where the log has lost messages. A mark is checked
/// until there is a response: a log that lost messages during an outage is detected even if it has grown again.
pub(crate) async fn watch(
    context: Context,
    name: String,
    health: Arc<NodeHealth>,
    clock: WallClock,
    stalled: Arc<Notify>,
) {
    let mut position = health.position();
    let mut idle_polls = 0;
    let mut unchecked = None;
    let mut confirmation = AnswerConfirmation::default();
    loop {
        let (asked, started) = (clock(), Instant::now());
        let before = *position.borrow_and_update();
        // Kept until there is an answer. After an outage, a newer mark could be one of a log that has lost this
        // one.
        unchecked = unchecked.or_else(|| health.mark());
        match timeout(REQUEST_TIMEOUT, log_end(&context, &name, unchecked.as_ref())).await {
            Ok(Ok(end)) => {
                unchecked = None;
                confirmation.clear();
                health.clear_problem(ProblemOrigin::Watch);
                // With the time before the question: the answer says how the log was at some time after that.
                health.log_ends(end.last_sequence, asked, started);
                health.set_log(end);
                idle_polls = if end.last_sequence > before { idle_polls + 1 } else { 0 };
            }
            Ok(Err(StreamError::Never(reason) | StreamError::Removed(reason))) if !confirmation.confirm() => {
                tracing::debug!(reason, "asking the log again");
            }
            Ok(Err(StreamError::Never(reason) | StreamError::Removed(reason))) => {
                if let Some(mark) = unchecked.filter(|_| health.stopped().is_none()) {
                    health.lose(mark, reason);
                    stalled.notify_one();
                }
            }
            Ok(Err(StreamError::Later(reason))) => health.set_problem(ProblemOrigin::Watch, reason),
            Err(_) => health.set_problem(ProblemOrigin::Watch, "the cluster does not answer".into()),
        }
        sleep(Duration::from_secs(1)).await;
        if *position.borrow() > before {
            idle_polls = 0;
        }
        // Six polls without progress: a heartbeat of the subscription would have reported a broken connection.
        if idle_polls > 5 {
            idle_polls = 0;
            stalled.notify_one();
        }
    }
}

/// Returns the log's extent, after checking that the log has a message.
async fn log_end(context: &Context, name: &str, mark: Option<&LogMark>) -> Result<LogExtent, StreamError> {
    let stream = context.get_stream(name).await;
    let stream = stream.map_err(|e| StreamError::Later(format!("the cluster does not answer: {e}")))?;
    let info = stream.cached_info();
    if let Some(mark) = mark {
        stream::check_mark(&stream, info, mark).await?;
    }
    Ok(LogExtent::of(&info.state))
}
