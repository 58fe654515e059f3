//! The component's stream to its server (XEP-0114): handshake, keepalive, reconnects.
//!
//! Connect when [`ComponentStream::poll_connect`] returns `true`, then call
//! [`ComponentStream::handle_connected`]. Pass input to [`ComponentStream::handle_bytes`] and call
//! [`ComponentStream::poll_received`]. Send [`ComponentStream::poll_output`]. Close when
//! [`ComponentStream::is_down`], and report a broken connection to [`ComponentStream::handle_disconnected`].

use sha1::{Digest, Sha1};

use crate::follow::{Monotonic, Now};
use crate::push::xmpp::wire::lifecycle::{
    Incoming, StreamLifecycle, StreamTimer, closing_tags, stream_error,
};
use crate::push::xmpp::wire::ns;
use crate::push::xmpp::wire::stanza::{Element, write_attribute};
use crate::push::xmpp::wire::stream::{Received, StreamLimits, StreamReader};

/// State of the stream.
#[derive(Debug)]
pub struct ComponentStream {
    jid: String,
    secret: String,
    limits: StreamLimits,
    lifecycle: StreamLifecycle,
    /// `true` once the handshake was sent.
    sent_handshake: bool,
    reader: StreamReader,
    output: String,
}

impl ComponentStream {
    /// Creates a disconnected stream of the component with the domain `jid`.
    pub fn new(jid: &str, secret: &str, limits: StreamLimits) -> Self {
        Self {
            jid: jid.to_owned(),
            secret: secret.to_owned(),
            limits,
            lifecycle: StreamLifecycle::default(),
            sent_handshake: false,
            reader: StreamReader::new(limits),
            output: String::new(),
        }
    }

    /// Returns `true` when it is time to connect.
    pub fn poll_connect(&mut self, now: Now) -> bool {
        self.lifecycle.poll_connect(now)
    }

    /// Opens the stream on a new connection.
    pub fn handle_connected(&mut self, now: Now) {
        if !self.lifecycle.is_connecting() {
            return;
        }
        self.lifecycle.step(now);
        self.sent_handshake = false;
        // Bytes of a broken stream must not reach the next one.
        self.reader = StreamReader::new(self.limits);
        let mut header = String::from("<?xml version='1.0'?><stream:stream");
        write_attribute(&mut header, "xmlns", ns::COMPONENT);
        write_attribute(&mut header, "xmlns:stream", ns::STREAM);
        write_attribute(&mut header, "to", &self.jid);
        header.push('>');
        self.output = header;
    }

    /// Records that the connection failed or broke.
    pub fn handle_disconnected(&mut self, now: Now, reason: &str) {
        if !self.is_down() {
            self.lifecycle.fail(now, format!("the connection broke: {reason}"));
            // Nothing can be sent any more, and the next stream begins with its own header.
            self.output.clear();
        }
    }

    /// Appends received bytes.
    pub fn handle_bytes(&mut self, now: Now, bytes: &[u8]) {
        self.lifecycle.record_input(now);
        self.reader.push(bytes);
    }

    /// Returns the next event, if any.
    pub fn poll_received(&mut self, now: Now) -> Option<Incoming> {
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

    fn take(&mut self, now: Now, received: Received) -> Option<Incoming> {
        let is_opening = self.lifecycle.is_opening();
        match received {
            Received::Opened(stream) if is_opening => self.opened(now, &stream),
            Received::Stanza(stanza) if stanza.is("error", ns::STREAM) => self.refused(now, &stanza),
            // Before the handshake was sent, a server's acceptance would prove nothing.
            Received::Stanza(stanza)
                if is_opening && self.sent_handshake && stanza.is("handshake", ns::COMPONENT) =>
            {
                self.lifecycle.open(now);
                return Some(Incoming::Ready);
            }
            Received::Stanza(stanza) if self.lifecycle.is_ready() => return Some(Incoming::Stanza(stanza)),
            // A single oversized stanza must not end everybody's stream.
            Received::TooLarge(stanza) if self.lifecycle.is_ready() => {
                return Some(Incoming::TooLarge(stanza));
            }
            Received::Closed => self.end(now, "", "the server closed the stream".into()),
            _ => {
                let problem = "the server violates XEP-0114 while opening the stream";
                self.end(now, "bad-format", problem.into());
            }
        }
        None
    }

    /// Answers the stream's start tag. XEP-0114, 3: the component "MUST send a handshake element", SHA-1 of
    /// the stream's id and the secret.
    fn opened(&mut self, now: Now, stream: &Element) {
        if !stream.is("stream", ns::STREAM) {
            return self.end(now, "invalid-namespace", "the server does not speak XMPP".into());
        }
        // A stream error may follow a start tag without an id, and gives a better reason.
        let Some(id) = stream.attribute("id") else { return };
        self.output.push_str("<handshake>");
        self.output.push_str(&handshake(id, &self.secret));
        self.output.push_str("</handshake>");
        self.sent_handshake = true;
        self.lifecycle.step(now);
    }

    fn refused(&mut self, now: Now, error: &Element) {
        let (condition, text) = stream_error(error);
        let advice = match condition.as_str() {
            // These three are mistakes in the configuration, so the operator gets the cause.
            // ejabberd refuses a name that it does not know in this way, too.
            "not-authorized" => {
                ", because the secret is not the one it has, or it has no component of this name"
            }
            "host-unknown" => ", because it has no component of this name",
            "conflict" => ", because another component has this name",
            _ => "",
        };
        let joint = if text.is_empty() { "" } else { ": " };
        self.lifecycle
            .fail(now, format!("the server refuses the stream with {condition}{advice}{joint}{text}"));
    }

    /// Ends the stream, with a stream error if `condition` is not empty.
    fn end(&mut self, now: Now, condition: &str, problem: String) {
        self.lifecycle.fail(now, problem);
        self.output.push_str(&closing_tags(condition));
    }

    /// Returns `true` without a stream. Close the connection after the last output.
    pub fn is_down(&self) -> bool {
        self.lifecycle.is_down()
    }

    /// Returns `true` if stanzas may be sent.
    pub fn is_ready(&self) -> bool {
        self.lifecycle.is_ready()
    }

    /// Returns the reason of the last failure, once while it stays the same.
    pub fn take_problem(&mut self) -> Option<String> {
        self.lifecycle.take_problem()
    }

    /// Returns the stream's own output.
    pub fn poll_output(&mut self) -> Option<String> {
        (!self.output.is_empty()).then(|| std::mem::take(&mut self.output))
    }

    /// Ends the stream in order, after these last stanzas.
    pub fn close(&mut self, last: &str) {
        if self.is_ready() {
            self.output.push_str(last);
        }
        if !self.is_down() {
            self.output.push_str(&closing_tags(""));
            self.lifecycle.end();
        }
    }

    /// Returns the time of the next call of [`Self::handle_timeout`] or [`Self::poll_connect`].
    pub fn poll_timeout(&self) -> Monotonic {
        self.lifecycle.poll_timeout()
    }

    /// Handles timers that are due.
    pub fn handle_timeout(&mut self, now: Now) {
        match self.lifecycle.handle_timeout(now) {
            StreamTimer::Nothing => {}
            StreamTimer::Ping => self.ping(),
            StreamTimer::Unreachable => {
                self.lifecycle.fail(now, "the server cannot be reached in time".into());
            }
            StreamTimer::GivenUp(why) => self.end(now, "connection-timeout", why.into()),
        }
    }

    /// Pings the component's own address through the server (XEP-0199). Every server supports that: it only
    /// routes the stanza.
    fn ping(&mut self) {
        let mut ping = String::from("<iq type=\"get\" id=\"ping\"");
        write_attribute(&mut ping, "from", &self.jid);
        write_attribute(&mut ping, "to", &self.jid);
        self.output.push_str(&ping);
        self.output.push_str("><ping xmlns=\"urn:xmpp:ping\"/></iq>");
    }
}

/// Returns the handshake. XEP-0114, 3: "SHA1( concat (sid, password))" in lowercase hexadecimal.
fn handshake(id: &str, secret: &str) -> String {
    hex::encode(Sha1::new().chain_update(id).chain_update(secret).finalize())
}

#[cfg(test)]
mod tests;
