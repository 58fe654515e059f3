//! NATS JetStream: a message for each change, with an id by which the stream drops repetitions.
//!
//! Each change is stored at least once. A repetition after a crash or a lost acknowledgement has the same `Nats-Msg-Id`,
//! and the stream drops it within its duplicate window (two minutes unless it is set otherwise).
//!
//! After a reset a feed may send the same changes at the same positions once more, and these must not be dropped. So the
//! sink waits for the duplicate window to pass before it sends what follows a reset, or saves the position behind it.

mod destination;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::future::IntoFuture as _;
use std::time::Duration;

use async_nats::jetstream::context::{Context, PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, jetstream};
use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};
use towpath_client::sink::{RefusedItem, Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::Followed;

pub use self::destination::NatsDestination;

/// Maximum number of messages that wait for their acknowledgement.
const IN_FLIGHT: usize = 256;
/// Time that a server has to connect or to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Room for the headers of a message within the server's limit.
const HEADER_BYTES: usize = 1024;
/// Duplicate window of a stream that this user may not ask about: JetStream's own default.
const USUAL_WINDOW: Duration = Duration::from_secs(120);
/// Added to the window, because it is counted by the server's clock and from the message's arrival.
const WINDOW_MARGIN: Duration = Duration::from_millis(500);

/// Sink that publishes changes to a subject of JetStream.
pub struct NatsSink {
    to: NatsDestination,
    session: Option<Session>,
    /// Messages of the current batch that the stream has, which a further attempt leaves out: the number of resets in
    /// front of each, and its id. A reset may be followed by changes with the same ids as before it.
    stored: HashSet<(usize, String)>,
    /// Random part of the ids of resets: one that is sent again after a restart is a further reset.
    run: u128,
    /// Number of resets in the batches before the current one.
    resets: usize,
    /// End of the duplicate window after the last reset.
    quiet_until: Option<Instant>,
}

struct Session {
    client: Client,
    context: Context,
    /// Time for which the stream knows the ids of messages.
    window: Duration,
}

/// A message to publish.
struct NewMessage {
    id: String,
    /// Number of resets in front of it in its batch.
    resets: usize,
    subject: String,
    payload: Bytes,
    is_reset: bool,
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NatsSink({})", self.to)
    }
}

/// A message that was sent, and the future of its acknowledgement.
struct SentMessage {
    id: String,
    resets: usize,
    subject: String,
    acknowledged: PublishAckFuture,
}

impl NatsSink {
    /// Creates the sink of a subject. It connects when it is opened.
    pub fn new(to: NatsDestination) -> Self {
        let run = fastrand::u128(..);
        Self { to, session: None, stored: HashSet::new(), run, resets: 0, quiet_until: None }
    }

    async fn connect(&mut self) -> Result<(), SinkError> {
        if self.session.is_some() {
            return Ok(());
        }
        let mut options = ConnectOptions::new()
            .name("towpath sink")
            .require_tls(self.to.tls)
            .connection_timeout(TIMEOUT)
            .request_timeout(Some(TIMEOUT))
            .ping_interval(Duration::from_secs(5));
        if let Some((user, password)) = &self.to.user {
            options = options.user_and_password(user.clone(), password.clone());
        }
        if let Some(file) = &self.to.credentials {
            options = options.credentials_file(file).await.map_err(|e| {
                SinkError::refused(format!(
                    "cannot read the credentials of {} in {}: {e}",
                    self.to,
                    file.display()
                ))
            })?;
        }
        if let Some(ca) = &self.to.ca {
            options = options.add_root_certificates(ca.clone());
        }
        let client = options.connect(self.to.servers.clone()).await.map_err(|e| {
            let message = format!("cannot connect to {}: {e}", self.to);
            match e.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    SinkError::refused(format!("{message}: check user and password"))
                }
                ConnectErrorKind::ServerParse => SinkError::refused(message),
                _ => SinkError::unavailable(message),
            }
        })?;
        let context = jetstream::new(client.clone());
        self.session = Some(Session { client, context, window: USUAL_WINDOW });
        Ok(())
    }

    /// Refuses a subject that no stream takes, before anything is sent to it. Reads the stream's duplicate window.
    async fn check_stream(&mut self) -> Result<(), SinkError> {
        let subject = self.to.subject("feed");
        let Some(Session { context, window, .. }) = &mut self.session else { return Ok(()) };
        match context.stream_by_subject(subject.clone()).await {
            Ok(name) => {
                if let Ok(stream) = context.get_stream(name).await {
                    *window = stream.cached_info().config.duplicate_window;
                }
                Ok(())
            }
            Err(e) if e.to_string().contains("not found") => {
                Err(SinkError::refused(self.no_stream(&subject)))
            }
            // Without the right to ask, the first message shows it.
            Err(_) => Ok(()),
        }
    }

    /// Fails while the stream may still know ids from before a reset.
    fn check_quiet(&self) -> Result<(), SinkError> {
        let wait = self.quiet_until.map_or(Duration::ZERO, |until| until.duration_since(Instant::now()));
        if wait.is_zero() {
            return Ok(());
        }
        let seconds = wait.as_secs() + 1;
        Err(SinkError::Unavailable {
            message: format!(
                "a feed began anew: {} must forget the message ids of before, for {seconds} seconds more",
                self.to
            ),
            retry_after: Some(wait),
        })
    }

    fn no_stream(&self, subject: &str) -> String {
        format!(
            "no stream of {} takes the subject {subject}: create one, such as with `nats stream add CHANGES --subjects \
             '{subject}' --defaults`",
            self.to
        )
    }

    /// Publishes the messages that the stream does not have, and waits for all acknowledgements.
    async fn publish(&mut self, messages: Vec<NewMessage>) -> Result<(), SinkError> {
        let mut waiting: VecDeque<SentMessage> = VecDeque::new();
        for NewMessage { id, resets, subject, payload, is_reset } in messages {
            let key = (resets, id);
            if self.stored.contains(&key) {
                continue;
            }
            let id = key.1;
            // Before each message, not once: the batch may hold a reset, after which the window is open again.
            self.check_quiet()?;
            // A reset is not sent before all changes in front of it are stored.
            let most = if is_reset { 0 } else { IN_FLIGHT - 1 };
            while waiting.len() > most
                && let Some(first) = waiting.pop_front()
            {
                self.acknowledge(first).await?;
            }
            let Some(Session { context, .. }) = &self.session else {
                return Err(SinkError::unavailable(format!("the connection to {} is closed", self.to)));
            };
            let message = PublishMessage::build().payload(payload).message_id(&id);
            let sent = timeout(TIMEOUT, context.send_publish(subject.clone(), message)).await;
            let sent = sent.map_err(|_| SinkError::unavailable(format!("{} takes no messages", self.to)))?;
            let acknowledged = sent.map_err(|e| self.failed(&subject, &e))?;
            waiting.push_back(SentMessage { id, resets, subject, acknowledged });
            if is_reset && let Some(reset) = waiting.pop_front() {
                self.acknowledge(reset).await?;
                let window = self.session.as_ref().map_or(USUAL_WINDOW, |session| session.window);
                self.quiet_until = Some(Instant::now() + window + WINDOW_MARGIN);
            }
        }
        while let Some(first) = waiting.pop_front() {
            self.acknowledge(first).await?;
        }
        // The position behind a reset is saved after the window only: a restart would not know of it.
        self.check_quiet()
    }

    async fn acknowledge(&mut self, message: SentMessage) -> Result<(), SinkError> {
        let SentMessage { id, resets, subject, acknowledged } = message;
        acknowledged.into_future().await.map_err(|e| self.failed(&subject, &e))?;
        // Remembered until the batch is complete: after a lost connection only the rest is sent again.
        self.stored.insert((resets, id));
        Ok(())
    }

    fn failed(&self, subject: &str, error: &PublishError) -> SinkError {
        match error.kind() {
            // Also while the stream's servers elect a leader: it is waited for.
            PublishErrorKind::StreamNotFound => SinkError::unavailable(self.no_stream(subject)),
            _ => SinkError::unavailable(format!("cannot publish to {}: {error}", self.to)),
        }
    }

    /// Makes the messages of a batch; refuses changes that are larger than the server's limit.
    fn messages(&self, batch: &SinkBatch) -> Result<Vec<NewMessage>, SinkError> {
        let limit =
            self.session.as_ref().map_or(usize::MAX, |session| session.client.server_info().max_payload);
        let (mut messages, mut refused) = (Vec::with_capacity(batch.events.len()), Vec::new());
        let mut resets = 0;
        for (index, event) in batch.events.iter().enumerate() {
            let line = event.to_json();
            // Refused here, where the item is known. The server would close the connection of a message above
            // its limit.
            if line.len() + HEADER_BYTES > limit {
                let message =
                    format!("it has {} bytes, and the server takes messages of {limit}", line.len());
                refused.push(RefusedItem { index, message });
                continue;
            }
            let id = match event {
                SinkEvent::Change(change) => id(&batch.source, change),
                SinkEvent::Reset(_) => format!("reset-{:032x}-{}-{index}", self.run, self.resets),
            };
            let (subject, is_reset) = (self.to.subject(&event.feed()), event.change().is_none());
            messages.push(NewMessage { id, resets, subject, payload: line.into(), is_reset });
            resets += usize::from(is_reset);
        }
        if refused.is_empty() { Ok(messages) } else { Err(SinkError::Items(refused)) }
    }
}

/// Returns the id of a change's message: equal for equal changes at one position of a source, also after a restart.
fn id(source: &str, change: &Followed) -> String {
    let mut hash = Sha256::new_with_prefix(source);
    // Not of the line: a later version of this program may write it otherwise.
    for part in ["", &change.feed, &change.position, &change.item.id, change.op.as_str()] {
        hash.update(part);
        hash.update([0]);
    }
    // One position may have another version of the item the next time, if it is that of a document.
    let length = change.item.content.as_ref().map_or(0, |content| content.bytes.len());
    hash.update(format!("{:?} {length}", change.modified.map(Timestamp::as_nanosecond)));
    hex::encode(&hash.finalize()[..16])
}

#[async_trait]
impl Sink for NatsSink {
    async fn open(&mut self, _source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        self.connect().await?;
        self.check_stream().await?;
        Ok(None)
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        self.connect().await?;
        let messages = self.messages(batch)?;
        self.publish(messages).await?;
        self.stored.clear();
        self.resets += batch.events.iter().filter(|event| event.change().is_none()).count();
        Ok(())
    }

    fn keeps_checkpoint(&self) -> bool {
        false
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        if let Some(Session { client, .. }) = self.session.take() {
            // Everything is acknowledged already.
            let _ = timeout(TIMEOUT, client.drain()).await;
        }
        Ok(())
    }
}
