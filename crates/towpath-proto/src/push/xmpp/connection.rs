//! The component's stream to its server (XEP-0114): opened, shown to be its own, kept alive, opened again.
//!
//! Call [`Connection::poll_connect`], and connect when it says so; then [`Connection::handle_connected`],
//! [`Connection::handle_bytes`] for what comes and [`Connection::poll_received`] for what that was. Send what
//! [`Connection::poll_output`] gives. Close when [`Connection::is_down`], and tell [`Connection::handle_disconnected`]
//! when it broke.

use jiff::Timestamp;
use sha1::{Digest, Sha1};

use super::link::{Due, Link, farewell, stream_error};
use super::ns;
use super::stanza::{Element, write_attribute};
use super::stream::{Limits, Received, StreamReader};

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
    link: Link,
    /// Whether the secret was shown.
    has_shown: bool,
    reader: StreamReader,
    output: String,
}

impl Connection {
    /// A stream that is not there yet, of the component called `jid`.
    pub fn new(jid: &str, secret: &str, limits: Limits) -> Self {
        Self {
            jid: jid.to_owned(),
            secret: secret.to_owned(),
            limits,
            link: Link::default(),
            has_shown: false,
            reader: StreamReader::new(limits),
            output: String::new(),
        }
    }

    /// Whether to connect now.
    pub fn poll_connect(&mut self, now: Timestamp) -> bool {
        self.link.poll_connect(now)
    }

    /// Connected: the stream is opened.
    pub fn handle_connected(&mut self, now: Timestamp) {
        if !self.link.is_connecting() {
            return;
        }
        self.link.step(now);
        self.has_shown = false;
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
            self.link.fail(now, format!("the connection broke: {reason}"));
            self.output.clear();
        }
    }

    /// Takes what came.
    pub fn handle_bytes(&mut self, now: Timestamp, bytes: &[u8]) {
        self.link.hear(now);
        self.reader.push(bytes);
    }

    /// The next thing that came, if any.
    pub fn poll_received(&mut self, now: Timestamp) -> Option<Incoming> {
        while !self.is_down() {
            match self.reader.poll() {
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
        let is_opening = self.link.is_opening();
        match received {
            Received::Opened(stream) if is_opening => self.opened(now, &stream),
            Received::Stanza(stanza) if stanza.is("error", ns::STREAM) => self.refused(now, &stanza),
            Received::Stanza(stanza)
                if is_opening && self.has_shown && stanza.is("handshake", ns::COMPONENT) =>
            {
                self.link.open(now);
                return Some(Incoming::Ready);
            }
            Received::Stanza(stanza) if self.link.is_ready() => return Some(Incoming::Stanza(stanza)),
            Received::TooLarge(stanza) if self.link.is_ready() => return Some(Incoming::TooLarge(stanza)),
            Received::Closed => self.end(now, "", "the server closed the stream".into()),
            _ => {
                let problem = "the server does not open the stream as XEP-0114 has it";
                self.end(now, "bad-format", problem.into());
            }
        }
        None
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
        self.has_shown = true;
        self.link.step(now);
    }

    fn refused(&mut self, now: Timestamp, error: &Element) {
        let (condition, text) = stream_error(error);
        let advice = match condition.as_str() {
            "not-authorized" => ", because the secret is not the one it has",
            "host-unknown" => ", because it has no component of this name",
            "conflict" => ", because another component has this name",
            _ => "",
        };
        let joint = if text.is_empty() { "" } else { ": " };
        self.link.fail(now, format!("the server refuses the stream with {condition}{advice}{joint}{text}"));
    }

    /// Ends the stream with a stream error of our own, or without.
    fn end(&mut self, now: Timestamp, condition: &str, problem: String) {
        self.link.fail(now, problem);
        self.output.push_str(&farewell(condition));
    }

    /// Whether it is not there: what is still connected is to be closed, once the last output is sent.
    pub fn is_down(&self) -> bool {
        self.link.is_down()
    }

    /// Whether stanzas can be sent.
    pub fn is_ready(&self) -> bool {
        self.link.is_ready()
    }

    /// Why it went down, once for every new reason.
    pub fn take_problem(&mut self) -> Option<String> {
        self.link.take_problem()
    }

    /// What is to be sent of the stream's own.
    pub fn poll_output(&mut self) -> Option<String> {
        (!self.output.is_empty()).then(|| std::mem::take(&mut self.output))
    }

    /// Ends the stream in good order, after these last stanzas.
    pub fn close(&mut self, last: &str) {
        if self.is_ready() {
            self.output.push_str(last);
        }
        if !self.is_down() {
            self.output.push_str(&farewell(""));
            self.link.end();
        }
    }

    /// When to call [`Self::handle_timeout`] or [`Self::poll_connect`].
    pub fn poll_timeout(&self) -> Timestamp {
        self.link.poll_timeout()
    }

    /// The time has come, perhaps.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        match self.link.handle_timeout(now) {
            Due::Nothing => {}
            Due::Ping => self.ping(),
            Due::Unreachable => self.link.fail(now, "the server cannot be reached in time".into()),
            Due::GivenUp(why) => self.end(now, "connection-timeout", why.into()),
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

/// XEP-0114, 3: "SHA1( concat (sid, password))" in lowercase hexadecimal.
fn handshake(id: &str, secret: &str) -> String {
    hex::encode(Sha1::new().chain_update(id).chain_update(secret).finalize())
}

#[cfg(test)]
mod tests;
