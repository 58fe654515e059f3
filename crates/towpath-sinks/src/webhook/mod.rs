//! Webhooks: batches of changes are posted to a URL, as Standard Webhooks 1.0 has it.
//!
//! Each message is delivered at least once, and the messages of one receiver in order. A message that fails is sent
//! again with the same id, after waits that grow from seconds to hours. So receivers forget an id that they have seen.

mod message;
mod signature;
mod verdict;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use tokio::time::Instant;
use towpath_client::sink::{Sink, SinkBatch, SinkError};
use towpath_client::{
    CallbackClient, CallbackError, CallbackOptions, CallbackRequest, CallbackResponse, Transport, redact,
};

use self::message::{LineHash, Message, MessageLine, divide};
pub use self::signature::{SecretError, WebhookSecret, signed_headers};
use self::verdict::{Attempts, Verdict};

/// Variable with the secrets of a webhook that is named on a command line, with white space between them.
const SECRETS_VARIABLE: &str = "TOWPATH_WEBHOOK_SECRET";

/// Settings of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebhookOptions {
    /// Secrets that sign each message; several while receivers change theirs. Without any, messages are not signed.
    pub secrets: Vec<WebhookSecret>,
    /// Maximum number of changes in a message.
    pub batch: usize,
    /// Maximum size of a message's changes in bytes; a single change may exceed it.
    pub batch_bytes: usize,
    /// Time that the receiver has for its answer.
    pub timeout: Duration,
    /// Time after which a receiver that takes nothing gets no further attempts.
    pub give_up: Duration,
    /// Permits private and loopback addresses.
    pub allow_private: bool,
    /// Time for which the receiver had taken nothing when an earlier process ended. It counts towards `give_up`.
    pub failing_for: Duration,
}

impl WebhookOptions {
    /// Sets [`secrets`](Self::secrets).
    #[must_use]
    pub fn with_secrets(mut self, secrets: Vec<WebhookSecret>) -> Self {
        self.secrets = secrets;
        self
    }

    /// Sets [`batch`](Self::batch).
    #[must_use]
    pub fn with_batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// Sets [`batch_bytes`](Self::batch_bytes).
    #[must_use]
    pub fn with_batch_bytes(mut self, batch_bytes: usize) -> Self {
        self.batch_bytes = batch_bytes;
        self
    }

    /// Sets [`timeout`](Self::timeout).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets [`give_up`](Self::give_up).
    #[must_use]
    pub fn with_give_up(mut self, give_up: Duration) -> Self {
        self.give_up = give_up;
        self
    }

    /// Sets [`allow_private`](Self::allow_private).
    #[must_use]
    pub fn with_allow_private(mut self, allow_private: bool) -> Self {
        self.allow_private = allow_private;
        self
    }

    /// Sets [`failing_for`](Self::failing_for).
    #[must_use]
    pub fn with_failing_for(mut self, failing_for: Duration) -> Self {
        self.failing_for = failing_for;
        self
    }
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            secrets: Vec::new(),
            batch: 100,
            batch_bytes: 1 << 20,
            timeout: Duration::from_secs(20),
            give_up: Duration::from_secs(5 * 24 * 3600),
            allow_private: false,
            failing_for: Duration::ZERO,
        }
    }
}

impl WebhookOptions {
    /// Returns the options for a URL that a user names on a command line.
    ///
    /// # Errors
    ///
    /// The message for a variable that has no secret.
    pub fn from_environment() -> Result<Self, String> {
        let text = std::env::var(SECRETS_VARIABLE).unwrap_or_default();
        let secrets = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        let secrets = secrets.map_err(|e: SecretError| format!("{SECRETS_VARIABLE}: {e}"))?;
        // No stranger has chosen the address.
        Ok(Self { secrets, allow_private: true, ..Self::default() })
    }
}

/// A URL that takes changes. Its text form has no credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookDestination {
    url: String,
    options: WebhookOptions,
}

impl WebhookDestination {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// The message for another scheme or a bad URL.
    pub fn parse(url: &str, options: WebhookOptions) -> Result<Self, String> {
        let parsed = url::Url::parse(url).map_err(|e| format!("it is no URL: {e}"))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err("write webhook: and an http or https URL".into());
        }
        if options.batch == 0 {
            return Err("a message has at least one change: set batch to 1 or more".into());
        }
        Ok(Self { url: parsed.into(), options })
    }
}

impl fmt::Display for WebhookDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact::url(&self.url))
    }
}

impl fmt::Debug for WebhookDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookDestination({self})")
    }
}

/// Sink that posts changes to a URL.
pub struct WebhookSink {
    to: WebhookDestination,
    client: Option<CallbackClient>,
    transport: Option<Arc<dyn Transport>>,
    attempts: Attempts,
    /// Begin of the failures in a row in this process.
    failing_since: Option<Instant>,
    /// Failures in a row before this process.
    failing_before: Duration,
    /// Lines of the current batch that were delivered, which a further attempt leaves out. Counted: after a reset the same
    /// lines may come again, and so may the reset.
    delivered: HashMap<LineHash, u32>,
}

impl fmt::Debug for WebhookSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebhookSink({})", self.to)
    }
}

impl WebhookSink {
    /// Creates the sink of a URL.
    pub fn new(to: WebhookDestination) -> Self {
        let (attempts, delivered, failing_before) =
            (Attempts::default(), HashMap::new(), to.options.failing_for);
        Self { to, client: None, transport: None, attempts, failing_since: None, failing_before, delivered }
    }

    /// Returns a sink whose messages are sent by `transport`, if there is one.
    #[must_use]
    pub fn with_transport(self, transport: Option<Arc<dyn Transport>>) -> Self {
        Self { transport, ..self }
    }

    /// Returns the HTTP client, which refuses addresses that are not permitted.
    fn client(&mut self) -> Result<CallbackClient, SinkError> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let WebhookOptions { allow_private, timeout, .. } = self.to.options;
        let limits = CallbackOptions::default()
            .with_allow_private(allow_private)
            .with_timeout(timeout)
            .with_idle_connections(2);
        let client = CallbackClient::new(limits).map_err(|e| SinkError::refused(e.to_string()))?;
        let client = client.with_transport(self.transport.clone());
        // At the start: a URL that can never work is an error now, and not after days of attempts.
        client.check(&self.to.url).map_err(|e| match e {
            // Tried again: the configuration may permit it by then.
            CallbackError::NotPublic(_) => SinkError::unavailable(format!(
                "cannot deliver to {}: {e}; set allow_private to deliver to a private address",
                self.to
            )),
            e => SinkError::refused(format!("cannot deliver to {}: {e}", self.to)),
        })?;
        Ok(self.client.insert(client).clone())
    }

    /// Posts a message once.
    async fn post(&mut self, message: &Message, lines: usize) -> Result<Verdict, SinkError> {
        let client = self.client()?;
        let headers = signed_headers(&self.to.options.secrets, &message.id, &message.body);
        let (method, body) = (Method::POST, message.body.clone());
        let answer = client.call_for_head(CallbackRequest { method, url: &self.to.url, headers, body }).await;
        let answer = match answer {
            // The status is the acknowledgement. The body may say why a message is refused, and may be cut off or endless.
            Ok((head, body)) => Ok(CallbackResponse { body: body.read_to_show().await, ..head }),
            Err(e) => Err(e),
        };
        Ok(self.attempts.judge(&answer, lines, fastrand::u64(..)))
    }

    /// Delivers lines as one message. Halves it as long as the receiver refuses it, down to the line at fault.
    ///
    /// # Errors
    ///
    /// The first line that is refused, as an item: it is set aside before the next message is sent, or a crash in between,
    /// and a receiver that fails meanwhile, would have it tried all over again.
    async fn deliver(&mut self, source: &str, lines: Vec<MessageLine>) -> Result<(), SinkError> {
        let mut waiting = vec![lines];
        while let Some(mut lines) = waiting.pop() {
            let message = Message::new(source, &lines);
            match self.post(&message, lines.len()).await? {
                Verdict::Delivered => {
                    (self.failing_since, self.failing_before) = (None, Duration::ZERO);
                    for line in &lines {
                        *self.delivered.entry(line.hash).or_default() += 1;
                    }
                }
                Verdict::Refused(reason) if lines.len() == 1 => {
                    return Err(SinkError::item(lines[0].index, reason));
                }
                Verdict::Refused(_) => {
                    let second = lines.split_off(lines.len() / 2);
                    // The first half is sent first: order is kept.
                    waiting.extend([second, lines]);
                }
                Verdict::Retry { reason, wait } => return Err(self.unavailable(&reason, wait)),
                Verdict::Gone(reason) => {
                    return Err(SinkError::refused(format!("cannot deliver to {}: {reason}", self.to)));
                }
            }
        }
        Ok(())
    }

    fn unavailable(&mut self, reason: &str, wait: Duration) -> SinkError {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        let shown = &self.to;
        // With the time before a restart, or a server that is restarted each day would never give up.
        if self.failing_before.saturating_add(since.elapsed()) >= self.to.options.give_up {
            let time =
                jiff::SignedDuration::try_from(self.to.options.give_up).unwrap_or(jiff::SignedDuration::MAX);
            return SinkError::refused(format!(
                "gave up on {shown} after {time:#}, because {reason}; nothing is lost"
            ));
        }
        SinkError::Unavailable {
            message: format!("cannot deliver to {shown}: {reason}"),
            retry_after: Some(wait),
        }
    }
}

#[async_trait]
impl Sink for WebhookSink {
    async fn open(&mut self, _source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        self.client().map(|_| None)
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        let mut lines = Vec::with_capacity(batch.events.len());
        for (index, event) in batch.events.iter().enumerate() {
            let line = MessageLine::new(index, event);
            lines.push(line.ok_or_else(|| SinkError::item(index, "it cannot be written as JSON"))?);
        }
        // A batch that failed half-way comes again whole. The receiver has the first lines already.
        let mut delivered = self.delivered.clone();
        lines.retain(|line| match delivered.get_mut(&line.hash).filter(|count| **count > 0) {
            Some(count) => {
                *count -= 1;
                false
            }
            None => true,
        });
        for message in divide(lines, self.to.options.batch, self.to.options.batch_bytes) {
            self.deliver(&batch.source, message).await?;
        }
        self.delivered.clear();
        Ok(())
    }

    fn keeps_checkpoint(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
