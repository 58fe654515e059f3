//! The component's stream to its server (XEP-0114): opened, shown to be its own, kept alive, opened again.
//!
//! Call [`Connection::poll_connect`], and connect when it says so; then [`Connection::handle_connected`],
//! [`Connection::handle_bytes`] for what comes and [`Connection::poll_received`] for what that was. Send what
//! [`Connection::poll_output`] gives. Close when [`Connection::is_down`], and tell [`Connection::handle_disconnected`]
//! when it broke.

use jiff::{SignedDuration, Timestamp};
use sha1::{Digest, Sha1};

use super::ns;
use super::stanza::{Element, write_attribute};
use super::stream::{Limits, Received, StreamReader};

/// The first pause after a failure; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(60);
/// How long connecting, and each step of opening the stream, may take.
const OPENING: SignedDuration = SignedDuration::from_secs(30);
/// After how long a silence the server is asked whether it is there, and how long it may take to answer.
const SILENCE: SignedDuration = SignedDuration::from_secs(60);
/// How long a stream must have been good for the pauses to begin again.
const STEADY: SignedDuration = SignedDuration::from_secs(60);

/// How far the stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not there; to be connected at this time.
    Down(Timestamp),
    /// Being connected, until then at the latest.
    Connecting(Timestamp),
    /// Waiting for the server's start tag.
    Opening(Timestamp),
    /// Waiting for the server to believe.
    Handshaking(Timestamp),
    /// Open since the first time. At the second the server is asked whether it is there.
    Ready(Timestamp, Timestamp),
    /// It was asked, and has until then to answer.
    Doubtful(Timestamp, Timestamp),
}

/// What came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The stream is open: stanzas may be sent.
    Ready,
    /// A stanza.
    Stanza(Element),
    /// The start tag of one that was too large.
    TooLarge(Element),
}

/// The stream.
#[derive(Debug)]
pub struct Connection {
    jid: String,
    secret: String,
    limits: Limits,
    state: State,
    reader: StreamReader,
    output: String,
    failures: u32,
    /// Why it went down, where that was not told yet.
    problem: Option<String>,
    /// What was told last.
    told: Option<String>,
}

impl Connection {
    /// A stream that is not there yet, of the component called `jid`.
    pub fn new(jid: &str, secret: &str, limits: Limits) -> Self {
        Self {
            jid: jid.to_owned(),
            secret: secret.to_owned(),
            limits,
            state: State::Down(Timestamp::MIN),
            reader: StreamReader::new(limits),
            output: String::new(),
            failures: 0,
            problem: None,
            told: None,
        }
    }

    /// Whether to connect now.
    pub fn poll_connect(&mut self, now: Timestamp) -> bool {
        match self.state {
            State::Down(at) if now >= at => {
                self.state = State::Connecting(after(now, OPENING));
                true
            }
            _ => false,
        }
    }

    /// Connected: the stream is opened.
    pub fn handle_connected(&mut self, now: Timestamp) {
        if !matches!(self.state, State::Connecting(_)) {
            return;
        }
        self.state = State::Opening(after(now, OPENING));
        self.reader = StreamReader::new(self.limits);
        let mut header = String::from("<?xml version='1.0'?><stream:stream");
        write_attribute(&mut header, "xmlns", ns::COMPONENT);
        write_attribute(&mut header, "xmlns:stream", ns::STREAM);
        write_attribute(&mut header, "to", &self.jid);
        header.push('>');
        self.output = header;
    }

    /// The connection could not be made, or broke.
    pub fn handle_disconnected(&mut self, now: Timestamp, reason: &str) {
        if !self.is_down() {
            self.fail(now, format!("the connection broke: {reason}"));
        }
    }

    /// Takes what came.
    pub fn handle_bytes(&mut self, now: Timestamp, bytes: &[u8]) {
        if let State::Ready(since, _) | State::Doubtful(since, _) = self.state {
            self.state = State::Ready(since, after(now, SILENCE));
            if now.duration_since(since) >= STEADY {
                self.failures = 0;
            }
        }
        self.reader.push(bytes);
    }

    /// The next thing that came, if any.
    pub fn poll_received(&mut self, now: Timestamp) -> Option<Incoming> {
        while !self.is_down() {
            match self.reader.next() {
                Ok(None) => return None,
                Ok(Some(received)) => {
                    let incoming = self.take(now, received);
                    if incoming.is_some() {
                        return incoming;
                    }
                }
                Err(fault) => self.end(now, fault.reason.condition(), format!("the server sent {fault}")),
            }
        }
        None
    }

    fn take(&mut self, now: Timestamp, received: Received) -> Option<Incoming> {
        match (received, self.state) {
            (Received::Opened(stream), State::Opening(_)) => {
                self.opened(now, &stream);
                None
            }
            (Received::Stanza(stanza), _) if stanza.is("error", ns::STREAM) => {
                self.refused(now, &stanza);
                None
            }
            (Received::Stanza(stanza), State::Handshaking(_)) if stanza.is("handshake", ns::COMPONENT) => {
                self.state = State::Ready(now, after(now, SILENCE));
                self.told = None;
                Some(Incoming::Ready)
            }
            (Received::Stanza(stanza), State::Ready(..) | State::Doubtful(..)) => {
                Some(Incoming::Stanza(stanza))
            }
            (Received::TooLarge(stanza), State::Ready(..) | State::Doubtful(..)) => {
                Some(Incoming::TooLarge(stanza))
            }
            (Received::Closed, _) => {
                self.end(now, "", "the server closed the stream".into());
                None
            }
            _ => {
                self.end(now, "bad-format", "the server does not open the stream as XEP-0114 has it".into());
                None
            }
        }
    }

    /// XEP-0114, 3: the component "MUST send a handshake element", SHA-1 of the stream's id and the secret.
    fn opened(&mut self, now: Timestamp, stream: &Element) {
        if !stream.is("stream", ns::STREAM) {
            return self.end(now, "invalid-namespace", "the server does not speak XMPP".into());
        }
        // A stream error may follow instead, which says more.
        let Some(id) = stream.attribute("id") else { return };
        self.output.push_str("<handshake>");
        self.output.push_str(&handshake(id, &self.secret));
        self.output.push_str("</handshake>");
        self.state = State::Handshaking(after(now, OPENING));
    }

    fn refused(&mut self, now: Timestamp, error: &Element) {
        let of_rfc = |child: &&Element| *child.ns == *ns::STREAM_ERRORS;
        let condition = error.children().filter(of_rfc).find(|child| child.name != "text");
        let condition = condition.map_or("undefined-condition", |child| child.name.as_str());
        let text = error.child_text("text", ns::STREAM_ERRORS).unwrap_or_default();
        let advice = match condition {
            "not-authorized" => ", because the secret is not the one it has",
            "host-unknown" => ", because it has no component of this name",
            "conflict" => ", because another component has this name",
            _ => "",
        };
        let text: String = text.chars().take(200).collect();
        let joint = if text.is_empty() { "" } else { ": " };
        self.fail(now, format!("the server refuses the stream with {condition}{advice}{joint}{text}"));
    }

    /// Ends the stream with a stream error of our own, or without.
    fn end(&mut self, now: Timestamp, condition: &str, problem: String) {
        self.fail(now, problem);
        if !condition.is_empty() {
            self.output =
                format!("<stream:error><{condition} xmlns='{}'/></stream:error>", ns::STREAM_ERRORS);
        }
        self.output.push_str("</stream:stream>");
    }

    fn fail(&mut self, now: Timestamp, problem: String) {
        let pause = FIRST_PAUSE.checked_mul(1 << self.failures.min(16)).unwrap_or(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Down(after(now, pause.min(LONGEST_PAUSE)));
        self.output.clear();
        // "logged once": not again while it stays the same.
        if self.told.as_ref() != Some(&problem) {
            self.told = Some(problem.clone());
            self.problem = Some(problem);
        }
    }

    /// Whether it is not there: what is still connected is to be closed, once the last output is sent.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down(_))
    }

    /// Whether stanzas can be sent.
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(..) | State::Doubtful(..))
    }

    /// Why it went down, once for every new reason.
    pub fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    /// What is to be sent of the stream's own.
    pub fn poll_output(&mut self) -> Option<String> {
        (!self.output.is_empty()).then(|| std::mem::take(&mut self.output))
    }

    /// Ends the stream in good order.
    pub fn close(&mut self) {
        if !self.is_down() {
            self.output.push_str("</stream:stream>");
            self.state = State::Down(Timestamp::MAX);
        }
    }

    /// When to call [`Self::handle_timeout`] or [`Self::poll_connect`].
    pub fn poll_timeout(&self) -> Timestamp {
        match self.state {
            State::Down(at) | State::Connecting(at) | State::Opening(at) | State::Handshaking(at) => at,
            State::Ready(_, at) | State::Doubtful(_, at) => at,
        }
    }

    /// The time has come, perhaps.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        if now < self.poll_timeout() {
            return;
        }
        match self.state {
            State::Down(_) => {}
            State::Connecting(_) => self.fail(now, "the server cannot be reached in time".into()),
            State::Opening(_) | State::Handshaking(_) => {
                self.end(now, "connection-timeout", "the server does not open the stream in time".into());
            }
            State::Ready(since, _) => {
                self.ping();
                self.state = State::Doubtful(since, after(now, OPENING));
            }
            State::Doubtful(..) => {
                self.end(now, "connection-timeout", "the server has fallen silent".into());
            }
        }
    }

    /// Asks itself by way of the server (XEP-0199), which works with every server.
    fn ping(&mut self) {
        let mut ping = String::from("<iq type=\"get\" id=\"ping\"");
        write_attribute(&mut ping, "from", &self.jid);
        write_attribute(&mut ping, "to", &self.jid);
        self.output.push_str(&ping);
        self.output.push_str("><ping xmlns=\"urn:xmpp:ping\"/></iq>");
    }
}

fn after(now: Timestamp, pause: SignedDuration) -> Timestamp {
    now.saturating_add(pause).unwrap_or(Timestamp::MAX)
}

/// XEP-0114, 3: "SHA1( concat (sid, password))" in lowercase hexadecimal.
fn handshake(id: &str, secret: &str) -> String {
    hex::encode(Sha1::new().chain_update(id).chain_update(secret).finalize())
}

#[cfg(test)]
mod tests;
