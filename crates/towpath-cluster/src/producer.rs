//! Producer: publishes callers' requests to the log.
//!
//! Requests that wait together go out as one message, and several messages are in flight. A caller gets its reply
//! when this node has applied its command, so that it reads its own writes here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::response::Response;
use async_nats::{Client, StatusCode, Subscriber};
use futures_util::StreamExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use towpath_proto::feed_id::FeedId;
use towpath_store::embedded::command::CommandResult;
use towpath_store::{AppendError, Appended, WallClock, WriteError};

use crate::apply::ApplyEvent;
use crate::frame::{HEADER, LogId, PayloadKind};
use crate::health::NodeHealth;
use crate::in_flight::{InFlightWindow, MessageDraft, OutgoingMessage};
use crate::request_queue::{LogRequestError, STOPPED};

/// Size up to which commands are added to a message.
const MESSAGE_BYTES: usize = 256 << 10;
/// Capacity of the queue of waiting requests. Callers wait for room beyond it.
pub(crate) const QUEUE: usize = 1024;
/// Interval of checks of deadlines and of the connection.
const TICK: Duration = Duration::from_millis(100);
/// Time that a message waits for callers that just got a reply and are likely to send the next request.
const GATHER: Duration = Duration::from_millis(1);
/// Timeout of writing a message to the connection.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a refused caller should retry.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Encoded command with its deadline and its reply.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    /// Command as the log carries it.
    pub(crate) command: Vec<u8>,
    /// Feature level that a node needs to decide it.
    pub(crate) level: u8,
    pub(crate) deadline: Instant,
    pub(crate) reply: ReplySender,
}

/// Channel for the result of a command.
#[derive(Debug)]
pub(crate) enum ReplySender {
    Append(FeedId, oneshot::Sender<Result<Appended, AppendError>>),
    Write(oneshot::Sender<Result<(), WriteError>>),
    Level(oneshot::Sender<Result<u8, LogRequestError>>),
}

impl ReplySender {
    /// Sends the result. The caller may have dropped its future, which is no error.
    fn send(self, result: CommandResult) {
        match (self, result) {
            (Self::Append(_, reply), CommandResult::Append(result)) => drop(reply.send(result)),
            (Self::Write(reply), CommandResult::Write(result)) => drop(reply.send(result)),
            (Self::Level(reply), CommandResult::Level(level)) => drop(reply.send(Ok(level))),
            (reply, _) => {
                reply.fail(LogRequestError::Unknown("the log has another command in its place".into()));
            }
        }
    }

    fn fail(self, error: LogRequestError) {
        match self {
            Self::Append(feed, reply) => drop(reply.send(Err(error.append_to(&feed)))),
            Self::Write(reply) => drop(reply.send(Err(error.into()))),
            Self::Level(reply) => drop(reply.send(Err(error))),
        }
    }
}

/// State of the producing task.
pub(crate) struct Producer {
    client: Client,
    subject: String,
    /// Subject prefix of acknowledgements; session and number follow.
    inbox: String,
    acknowledgements: Subscriber,
    clock: WallClock,
    health: Arc<NodeHealth>,
    window: InFlightWindow<ReplySender>,
    /// Session of the window, shared with the applying thread.
    own_session: Arc<AtomicU64>,
    waiting: VecDeque<PendingRequest>,
    /// Number of requests to gather before publishing: as many as were active a moment ago. Zero once [`GATHER`] is over.
    gather_target: usize,
    /// Parts of a large command that wait for room in the window.
    parts: VecDeque<MessageDraft<ReplySender>>,
    connected: bool,
    /// Error with which JetStream refused the last message.
    refusal: Option<String>,
}

impl Producer {
    /// Creates a producer for a log.
    pub(crate) async fn new(
        client: Client,
        name: &str,
        log: LogId,
        clock: WallClock,
        health: Arc<NodeHealth>,
        own_session: Arc<AtomicU64>,
    ) -> Result<Self, String> {
        // One inbox for all: the subject of a reply names its message.
        let inbox = client.new_inbox();
        let acknowledgements = client.subscribe(format!("{inbox}.*.*")).await.map_err(|e| e.to_string())?;
        let window = InFlightWindow::new(log, fastrand::u64(..));
        // Before the first message: the applying thread must know the session when the message comes back.
        own_session.store(window.session(), Ordering::Release);
        Ok(Self {
            connected: client.connection_state() == State::Connected,
            client,
            subject: crate::stream::subject(name),
            inbox,
            acknowledgements,
            clock,
            health,
            window,
            own_session,
            waiting: VecDeque::new(),
            gather_target: 0,
            parts: VecDeque::new(),
            refusal: None,
        })
    }

    /// Runs until the queue is closed and every request has its reply.
    pub(crate) async fn run(
        mut self,
        mut requests: mpsc::Receiver<PendingRequest>,
        mut events: mpsc::UnboundedReceiver<ApplyEvent>,
    ) {
        let mut tick = interval(TICK);
        // After a pause of the process one check is enough. A burst of them would only repeat it.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        let gathered = sleep(GATHER);
        tokio::pin!(gathered);
        while open || !self.is_idle() {
            tokio::select! {
                // Results first: replies free the window before more requests are taken.
                biased;
                event = events.recv() => match event {
                    Some(event) => {
                        self.applied(event).await;
                        gathered.as_mut().reset(tokio::time::Instant::now() + GATHER);
                    }
                    None => return self.refuse_all(STOPPED),
                },
                acknowledgement = self.acknowledgements.next() => match acknowledgement {
                    Some(message) => self.acknowledged(&message).await,
                    None => return self.refuse_all("the connection to the cluster is closed"),
                },
                request = requests.recv(), if open && self.waiting.len() < QUEUE => match request {
                    Some(request) => {
                        self.waiting.push_back(request);
                        // All at once, so that they share a message.
                        while self.waiting.len() < QUEUE && let Ok(request) = requests.try_recv() {
                            self.waiting.push_back(request);
                        }
                    }
                    None => open = false,
                },
                () = &mut gathered, if self.gather_target > 0 => self.gather_target = 0,
                _ = tick.tick() => self.tick().await,
            }
            self.publish_waiting().await;
        }
    }

    fn is_idle(&self) -> bool {
        self.window.is_empty() && self.waiting.is_empty() && self.parts.is_empty()
    }

    async fn applied(&mut self, event: ApplyEvent) {
        match event {
            ApplyEvent::Applied { session, number, results } => {
                let replies = self.window.applied(session, number, Instant::now());
                // As many callers as were answered just now are likely to send again. A message that waits for
                // them carries all.
                self.gather_target = replies.len() + self.waiting.len();
                let mut results = results.into_iter();
                for reply in replies {
                    match results.next() {
                        Some(result) => reply.send(result),
                        None => {
                            reply.fail(LogRequestError::Unknown(
                                "the log has fewer commands in its place".into(),
                            ));
                        }
                    }
                }
            }
            ApplyEvent::Skipped { header, expected } => {
                let again = self.window.skipped(&header, expected, Instant::now());
                self.own_session.store(self.window.session(), Ordering::Release);
                self.publish(again).await;
            }
        }
    }

    async fn acknowledged(&mut self, message: &async_nats::Message) {
        let Some((session, number)) = self.parse_subject(&message.subject) else { return };
        // An acknowledgement of an earlier session is of a message whose callers were told already.
        if session != self.window.session() || message.status == Some(StatusCode::NO_RESPONDERS) {
            // The stream has no leader now. Messages without an acknowledgement are published again later.
            return;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(Response::<PublishAck>::Ok(_)) => {
                self.refusal = None;
                // Stored is not applied. Callers get their results when this node's replica has the message.
                self.window.stored(session, number, Instant::now());
            }
            // Temporary: the window publishes the message again.
            Ok(Response::Err { error }) if error.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE => {}
            Ok(Response::Err { error }) => {
                let reason = format!("JetStream refused a message: {error}");
                self.abandon(&reason);
                self.refusal = Some(reason);
            }
            Err(error) => tracing::warn!(%error, "cannot parse an acknowledgement of JetStream"),
        }
    }

    /// Parses session and number of the acknowledged message.
    fn parse_subject(&self, subject: &str) -> Option<(u64, u64)> {
        let (session, number) = subject.strip_prefix(&self.inbox)?.strip_prefix('.')?.split_once('.')?;
        Some((session.parse().ok()?, number.parse().ok()?))
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        let connected = self.client.connection_state() == State::Connected;
        let reconnected = connected && !self.connected;
        self.connected = connected;
        if self.window.is_overdue(now) {
            let why = self.problem_suffix();
            self.abandon(&format!("the cluster did not acknowledge in time{why}"));
        }
        // All requests have the same timeout, so the queue is ordered by deadline.
        while let Some(request) = pop_front_if(&mut self.waiting, |request| request.deadline <= now) {
            let why = self.problem_suffix();
            request.reply.fail(LogRequestError::Refused(format!("the request timed out{why}")));
        }
        // Only an operator can help: waiting for the deadline would not.
        if let Some(reason) = self.health.stopped() {
            self.refuse_all(&reason);
        }
        // A new connection may have lost messages of the old one, without waiting for the timeout.
        if reconnected || connected && self.window.is_stalled(now) {
            let again = self.window.retransmit(now);
            self.publish(again).await;
        }
    }

    /// Returns the known problem in parentheses, to append to a sentence.
    fn problem_suffix(&self) -> String {
        let problem = match self.client.connection_state() {
            State::Connected => self.refusal.clone().or_else(|| self.health.problem()),
            State::Disconnected | State::Pending => {
                let problem = self.health.problem().map(|p| format!(": {p}")).unwrap_or_default();
                Some(format!("there is no connection{problem}"))
            }
        };
        problem.map(|problem| format!(" ({problem})")).unwrap_or_default()
    }

    fn abandon(&mut self, reason: &str) {
        let mut abandoned = self.window.abandon();
        self.own_session.store(self.window.session(), Ordering::Release);
        // The remaining parts of a command whose first parts are abandoned.
        while let Some(part) = pop_front_if(&mut self.parts, |part| part.parts > 0) {
            abandoned.extend(part.replies);
        }
        abandoned.into_iter().for_each(|reply| reply.fail(LogRequestError::Unknown(reason.to_owned())));
    }

    fn refuse_all(&mut self, reason: &str) {
        self.abandon(reason);
        let waiting = self.waiting.drain(..).map(|request| request.reply);
        let parts = self.parts.drain(..).flat_map(|part| part.replies);
        waiting.chain(parts).for_each(|reply| reply.fail(LogRequestError::Refused(reason.to_owned())));
    }

    /// Publishes waiting requests as far as the window allows.
    async fn publish_waiting(&mut self) {
        let connected = self.client.connection_state() == State::Connected;
        while connected && !self.window.is_full() && !(self.expects_more() && self.has_room()) {
            let Some(draft) = self.next_message() else { return };
            let message = self.window.push(draft, (self.clock)(), Instant::now());
            self.publish(vec![message]).await;
        }
    }

    /// Returns true where more requests are likely to arrive soon.
    ///
    /// Fewer messages are less work for servers and nodes: one that is not full is in flight at a time.
    fn expects_more(&self) -> bool {
        !self.window.is_empty() || self.waiting.len() < self.gather_target
    }

    /// Returns true where the waiting requests do not fill a message.
    fn has_room(&self) -> bool {
        let mut bytes = 0;
        self.parts.is_empty()
            && self.waiting.iter().all(|request| {
                bytes += request.command.len();
                bytes < MESSAGE_BYTES
            })
    }

    fn next_message(&mut self) -> Option<MessageDraft<ReplySender>> {
        if let Some(part) = self.parts.pop_front() {
            return Some(part);
        }
        // The limit is the server's, and may change with a reconnection.
        let room = self.client.max_payload().saturating_sub(HEADER).clamp(1, MESSAGE_BYTES);
        let first = self.waiting.pop_front()?;
        if first.command.len() > room {
            self.split(first, room);
            return self.parts.pop_front();
        }
        let deadline = first.deadline;
        let mut payload = vec![0; HEADER];
        payload.extend_from_slice(&first.command);
        let mut replies = vec![first.reply];
        // Every message names the level, so that a node that is too old stops wherever it begins to read.
        let mut level = first.level.max(self.health.level());
        let fits =
            |payload: &Vec<u8>, next: &PendingRequest| payload.len() - HEADER + next.command.len() <= room;
        while let Some(next) = pop_front_if(&mut self.waiting, |next| fits(&payload, next)) {
            payload.extend_from_slice(&next.command);
            level = level.max(next.level);
            replies.push(next.reply);
        }
        Some(MessageDraft { level, kind: PayloadKind::Commands, parts: 0, payload, replies, deadline })
    }

    /// Splits a command that is larger than a message into parts.
    fn split(&mut self, request: PendingRequest, room: usize) {
        let PendingRequest { command, level, deadline, reply } = request;
        let level = level.max(self.health.level());
        let mut reply = Some(reply);
        let count = command.len().div_ceil(room);
        for (parts, part) in (0u32..).zip(command.chunks(room)) {
            let is_last = parts as usize + 1 == count;
            let kind = if is_last { PayloadKind::LastPart } else { PayloadKind::Part };
            // The result belongs to the last part: with it the command is complete.
            let replies = if is_last { reply.take().into_iter().collect() } else { Vec::new() };
            let payload = [&[0; HEADER][..], part].concat();
            self.parts.push_back(MessageDraft { level, kind, parts, payload, replies, deadline });
        }
    }

    async fn publish(&self, messages: Vec<OutgoingMessage>) {
        for OutgoingMessage { session, number, payload } in messages {
            if self.client.connection_state() != State::Connected {
                // Messages without an acknowledgement are published again after the reconnection.
                return;
            }
            let reply = format!("{}.{session}.{number}", self.inbox);
            let published = self.client.publish_with_reply(self.subject.clone(), reply, payload);
            if let Ok(Err(error)) = timeout(SEND_TIMEOUT, published).await {
                self.health.report(format!("cannot publish: {error}"));
            }
        }
    }
}

/// Pops the first element if `wanted` accepts it. The standard library has this from 1.93 on.
fn pop_front_if<T>(queue: &mut VecDeque<T>, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(wanted) { queue.pop_front() } else { None }
}
