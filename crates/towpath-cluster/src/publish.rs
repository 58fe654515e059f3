//! Publishes what callers want written: what waits together goes out as one message, several messages at a time, and
//! each caller is answered when this node has applied its command.

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
use towpath_store::embedded::command::Outcome;
use towpath_store::{AppendError, Appended, Clock, StoreError};

use crate::apply::Event;
use crate::frame::{HEADER, Holds, LogId};
use crate::health::Health;
use crate::window::{Message, Piece, Window};

/// How large a message becomes by taking more commands.
const MESSAGE_BYTES: usize = 256 << 10;
/// How many requests wait here before those who bring more are held up.
pub(crate) const QUEUE: usize = 1024;
const TICK: Duration = Duration::from_millis(100);
/// How long a message waits for those who were just answered and are likely to ask again.
const GATHER: Duration = Duration::from_millis(1);
/// How long handing a message to the connection may take.
const HAND_OVER: Duration = Duration::from_secs(1);
/// What a caller who was refused is told to wait.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A command, and who waits for it.
#[derive(Debug)]
pub(crate) struct Request {
    /// The command as the log will have it.
    pub(crate) command: Vec<u8>,
    pub(crate) deadline: Instant,
    pub(crate) reply: Reply,
}

/// Who waits for a command.
#[derive(Debug)]
pub(crate) enum Reply {
    Append(oneshot::Sender<Result<Appended, AppendError>>),
    Write(oneshot::Sender<Result<(), StoreError>>),
}

impl Reply {
    /// Answers one who may have stopped listening.
    fn answer(self, outcome: Outcome) {
        match (self, outcome) {
            (Self::Append(reply), Outcome::Append(outcome)) => drop(reply.send(outcome)),
            (Self::Write(reply), Outcome::Write(outcome)) => drop(reply.send(outcome)),
            (reply, _) => reply.refuse("the log has another command in its place".into()),
        }
    }

    fn refuse(self, reason: String) {
        let error = StoreError::Unavailable { reason, retry_after: RETRY_AFTER };
        match self {
            Self::Append(reply) => drop(reply.send(Err(error.into()))),
            Self::Write(reply) => drop(reply.send(Err(error))),
        }
    }
}

/// See the module's text.
pub(crate) struct Publisher {
    client: Client,
    subject: String,
    /// Where acknowledgements come to, followed by session and number.
    inbox: String,
    acknowledgements: Subscriber,
    clock: Clock,
    health: Arc<Health>,
    window: Window<Reply>,
    /// The window's session, for the thread that applies.
    ours: Arc<AtomicU64>,
    waiting: VecDeque<Request>,
    /// How many requests had better be together before they go out, since so many were a moment ago; none once
    /// that was waited for.
    crowd: usize,
    /// Parts of a command that wait for room.
    parts: VecDeque<Piece<Reply>>,
    connected: bool,
    /// Why the log refused what was last published.
    refusal: Option<String>,
}

impl Publisher {
    /// Ready to publish to a log.
    pub(crate) async fn new(
        client: Client,
        name: &str,
        log: LogId,
        clock: Clock,
        health: Arc<Health>,
        ours: Arc<AtomicU64>,
    ) -> Result<Self, String> {
        let inbox = client.new_inbox();
        let acknowledgements = client.subscribe(format!("{inbox}.*.*")).await.map_err(|e| e.to_string())?;
        let window = Window::new(log, fastrand::u64(..));
        ours.store(window.session(), Ordering::Release);
        Ok(Self {
            connected: client.connection_state() == State::Connected,
            client,
            subject: crate::stream::subject(name),
            inbox,
            acknowledgements,
            clock,
            health,
            window,
            ours,
            waiting: VecDeque::new(),
            crowd: 0,
            parts: VecDeque::new(),
            refusal: None,
        })
    }

    /// Runs until nobody can bring requests any more and everyone was answered.
    pub(crate) async fn run(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        mut events: mpsc::UnboundedReceiver<Event>,
    ) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        let gathered = sleep(GATHER);
        tokio::pin!(gathered);
        while open || !self.is_idle() {
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Some(event) => {
                        self.applied(event).await;
                        gathered.as_mut().reset(tokio::time::Instant::now() + GATHER);
                    }
                    None => return self.refuse_all("this node follows the log no more"),
                },
                acknowledgement = self.acknowledgements.next() => match acknowledgement {
                    Some(message) => self.acknowledged(&message).await,
                    None => return self.refuse_all("the connection is closed"),
                },
                request = requests.recv(), if open && self.waiting.len() < QUEUE => match request {
                    Some(request) => {
                        self.waiting.push_back(request);
                        while self.waiting.len() < QUEUE && let Ok(request) = requests.try_recv() {
                            self.waiting.push_back(request);
                        }
                    }
                    None => open = false,
                },
                () = &mut gathered, if self.crowd > 0 => self.crowd = 0,
                _ = tick.tick() => self.tick().await,
            }
            self.publish_waiting().await;
        }
    }

    fn is_idle(&self) -> bool {
        self.window.is_empty() && self.waiting.is_empty() && self.parts.is_empty()
    }

    async fn applied(&mut self, event: Event) {
        match event {
            Event::Applied { session, number, outcomes } => {
                let replies = self.window.applied(session, number, Instant::now());
                self.crowd = replies.len() + self.waiting.len();
                let mut outcomes = outcomes.into_iter();
                for reply in replies {
                    match outcomes.next() {
                        Some(outcome) => reply.answer(outcome),
                        None => reply.refuse("the log has fewer commands in its place".into()),
                    }
                }
            }
            Event::Skipped { header, due } => {
                let again = self.window.skipped(&header, due, Instant::now());
                self.ours.store(self.window.session(), Ordering::Release);
                self.publish(again).await;
            }
        }
    }

    async fn acknowledged(&mut self, message: &async_nats::Message) {
        let Some((session, number)) = self.which(&message.subject) else { return };
        if session != self.window.session() || message.status == Some(StatusCode::NO_RESPONDERS) {
            // Nobody leads the stream just now: what is not acknowledged is published again.
            return;
        }
        match serde_json::from_slice(&message.payload) {
            Ok(Response::<PublishAck>::Ok(_)) => {
                self.refusal = None;
                self.window.stored(session, number, Instant::now());
            }
            Ok(Response::Err { error }) if error.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE => {}
            Ok(Response::Err { error }) => {
                let reason = format!("JetStream refuses what is published: {error}");
                self.give_up(&reason);
                self.refusal = Some(reason);
            }
            Err(error) => tracing::warn!(%error, "an acknowledgement that cannot be read"),
        }
    }

    /// Session and number of a message that an acknowledgement is for.
    fn which(&self, subject: &str) -> Option<(u64, u64)> {
        let (session, number) = subject.strip_prefix(&self.inbox)?.strip_prefix('.')?.split_once('.')?;
        Some((session.parse().ok()?, number.parse().ok()?))
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        let connected = self.client.connection_state() == State::Connected;
        let reconnected = connected && !self.connected;
        self.connected = connected;
        if self.window.is_overdue(now) {
            let why = self.why();
            self.give_up(&format!("the cluster did not acknowledge in time{why}"));
        }
        while let Some(request) = pop_front_if(&mut self.waiting, |request| request.deadline <= now) {
            let why = self.why();
            request.reply.refuse(format!("it was not published, and is not there{why}"));
        }
        if let Some(reason) = self.health.stopped() {
            self.refuse_all(&reason);
        }
        if reconnected || connected && self.window.is_stalled(now) {
            let again = self.window.again(now);
            self.publish(again).await;
        }
    }

    /// What is known to be wrong, to follow another sentence.
    fn why(&self) -> String {
        let problem = match self.client.connection_state() {
            State::Connected => self.refusal.clone().or_else(|| self.health.problem()),
            State::Disconnected | State::Pending => {
                let problem = self.health.problem().map(|p| format!(": {p}")).unwrap_or_default();
                Some(format!("there is no connection{problem}"))
            }
        };
        problem.map(|problem| format!(" ({problem})")).unwrap_or_default()
    }

    fn give_up(&mut self, reason: &str) {
        let unknown = format!("{reason}; whether it will be there is not known");
        let mut given_up = self.window.give_up();
        self.ours.store(self.window.session(), Ordering::Release);
        // What is left of a command whose first parts are given up.
        while let Some(part) = pop_front_if(&mut self.parts, |part| part.parts > 0) {
            given_up.extend(part.replies);
        }
        given_up.into_iter().for_each(|reply| reply.refuse(unknown.clone()));
    }

    fn refuse_all(&mut self, reason: &str) {
        self.give_up(reason);
        let waiting = self.waiting.drain(..).map(|request| request.reply);
        let parts = self.parts.drain(..).flat_map(|part| part.replies);
        waiting
            .chain(parts)
            .for_each(|reply| reply.refuse(format!("it was not published, and is not there ({reason})")));
    }

    /// Publishes as much of what waits as may be on its way.
    async fn publish_waiting(&mut self) {
        let connected = self.client.connection_state() == State::Connected;
        while connected && !self.window.is_full() && !(self.had_better_wait() && self.is_slack()) {
            let Some(piece) = self.next_piece() else { return };
            let message = self.window.push(piece, (self.clock)(), Instant::now());
            self.publish(vec![message]).await;
        }
    }

    /// Whether more is likely to come before what waits could be of use: the fewer messages, the less work for
    /// servers and nodes.
    fn had_better_wait(&self) -> bool {
        !self.window.is_empty() || self.waiting.len() < self.crowd
    }

    /// Whether what waits would not fill a message.
    fn is_slack(&self) -> bool {
        let mut bytes = 0;
        self.parts.is_empty()
            && self.waiting.iter().all(|request| {
                bytes += request.command.len();
                bytes < MESSAGE_BYTES
            })
    }

    fn next_piece(&mut self) -> Option<Piece<Reply>> {
        if let Some(part) = self.parts.pop_front() {
            return Some(part);
        }
        let room = self.client.max_payload().saturating_sub(HEADER).clamp(1, MESSAGE_BYTES);
        let first = self.waiting.pop_front()?;
        if first.command.len() > room {
            self.cut(first, room);
            return self.parts.pop_front();
        }
        let deadline = first.deadline;
        let mut payload = vec![0; HEADER];
        payload.extend_from_slice(&first.command);
        let mut replies = vec![first.reply];
        let fits = |payload: &Vec<u8>, next: &Request| payload.len() - HEADER + next.command.len() <= room;
        while let Some(next) = pop_front_if(&mut self.waiting, |next| fits(&payload, next)) {
            payload.extend_from_slice(&next.command);
            replies.push(next.reply);
        }
        Some(Piece { holds: Holds::Commands, parts: 0, payload, replies, deadline })
    }

    /// Cuts a command that is larger than a message.
    fn cut(&mut self, request: Request, room: usize) {
        let Request { command, deadline, reply } = request;
        let mut reply = Some(reply);
        let count = command.len().div_ceil(room);
        for (parts, part) in (0u32..).zip(command.chunks(room)) {
            let is_last = parts as usize + 1 == count;
            let holds = if is_last { Holds::LastPart } else { Holds::Part };
            let replies = if is_last { reply.take().into_iter().collect() } else { Vec::new() };
            let payload = [&[0; HEADER][..], part].concat();
            self.parts.push_back(Piece { holds, parts, payload, replies, deadline });
        }
    }

    async fn publish(&self, messages: Vec<Message>) {
        for Message { session, number, payload } in messages {
            if self.client.connection_state() != State::Connected {
                // All that is not acknowledged is published again once there is a connection.
                return;
            }
            let reply = format!("{}.{session}.{number}", self.inbox);
            let published = self.client.publish_with_reply(self.subject.clone(), reply, payload);
            if let Ok(Err(error)) = timeout(HAND_OVER, published).await {
                self.health.report(format!("publishing: {error}"));
            }
        }
    }
}

/// Takes the first of a queue where it is wanted. (The standard library has this from 1.93 on.)
fn pop_front_if<T>(queue: &mut VecDeque<T>, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(wanted) { queue.pop_front() } else { None }
}
