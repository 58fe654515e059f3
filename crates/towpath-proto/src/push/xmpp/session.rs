//! A client's stream (RFC 6120): opened, encrypted, authenticated, bound to a resource, kept alive, opened again.
//!
//! Call [`Session::poll_connect`], and connect when it says so; then [`Session::handle_connected`],
//! [`Session::handle_bytes`] and [`Session::poll_received`] for what came. Send what [`Session::poll_output`] gives;
//! then, when [`Session::poll_tls`] says so, encrypt the connection and call [`Session::handle_tls`]. Close when
//! [`Session::is_down`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;

use super::connection::Incoming;
use super::link::{Due, Link, farewell, stream_error};
use super::stanza::{Element, write_attribute};
use super::stream::{Limits, Received, StreamReader};
use super::{error, jid, ns};

const TLS: &str = "urn:ietf:params:xml:ns:xmpp-tls";
const SASL: &str = "urn:ietf:params:xml:ns:xmpp-sasl";
const BIND: &str = "urn:ietf:params:xml:ns:xmpp-bind";
const SESSION: &str = "urn:ietf:params:xml:ns:xmpp-session";

/// Shows who one is (SASL, RFC 6120, section 6): what it takes randomness and passwords for is not done here.
pub trait Authenticate: Send {
    /// The mechanism to use of those that are offered, and the first message; `None` where none can be. `is_safe` says
    /// that nobody can listen.
    fn begin(&mut self, offered: &[String], is_safe: bool) -> Option<(String, Vec<u8>)>;

    /// The answer to a challenge, or why there is none.
    ///
    /// # Errors
    ///
    /// What is wrong with the challenge.
    fn respond(&mut self, challenge: &[u8]) -> Result<Vec<u8>, String>;

    /// Whether the server has shown who it is.
    ///
    /// # Errors
    ///
    /// Why it cannot be believed.
    fn finish(&mut self, data: &[u8]) -> Result<(), String>;
}

/// What goes over a client's stream. Beside it the shell knows it as an [`Exchange`](crate::follow::Exchange) that asks
/// for nothing, for when it has something to do and when it is finished.
pub trait OverXmpp: crate::follow::Exchange {
    /// The stream, which the shell carries.
    fn session(&mut self) -> &mut Session;

    /// Looks at what has come, and at the time: to be called after whatever happened to the stream.
    fn handle_received(&mut self, now: Timestamp);
}

/// What is waited for while the stream is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Features,
    Proceed,
    /// The shell is to encrypt.
    Encrypting,
    Authenticating,
    Binding,
    Establishing,
}

/// The stream.
pub struct Session {
    jid: String,
    resource: String,
    limits: Limits,
    authenticate: Box<dyn Authenticate>,
    link: Link,
    stage: Stage,
    /// Whether the connection may stay as it is: encrypted, or within this machine.
    is_safe: bool,
    is_encrypted: bool,
    has_authenticated: bool,
    wants_session: bool,
    /// The account cannot be used: no further attempt makes sense.
    is_refused: bool,
    reader: StreamReader,
    output: String,
    own: Option<String>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("jid", &self.jid).field("link", &self.link).finish_non_exhaustive()
    }
}

impl Session {
    /// A stream that is not there yet, of the account `jid`, with this resource.
    pub fn new(jid: &str, resource: &str, authenticate: Box<dyn Authenticate>) -> Self {
        let limits = Limits { stanza_bytes: 4 << 20, nodes: 100_000, ..Limits::default() };
        Self {
            jid: jid::bare(jid).to_owned(),
            resource: resource.to_owned(),
            limits,
            authenticate,
            link: Link::default(),
            stage: Stage::Features,
            is_safe: false,
            is_encrypted: false,
            has_authenticated: false,
            wants_session: false,
            is_refused: false,
            reader: StreamReader::new(limits),
            output: String::new(),
            own: None,
        }
    }

    /// Whether to connect now.
    pub fn poll_connect(&mut self, now: Timestamp) -> bool {
        !self.is_refused && self.link.poll_connect(now)
    }

    /// Connected. `is_safe`: within this machine, where nobody can listen.
    pub fn handle_connected(&mut self, now: Timestamp, is_safe: bool) {
        if self.link.is_connecting() {
            (self.is_safe, self.is_encrypted, self.has_authenticated) = (is_safe, false, false);
            self.open(now);
        }
    }

    /// RFC 6120, 4.2 and 4.3.3: a new stream, also after encryption and authentication.
    fn open(&mut self, now: Timestamp) {
        self.link.step(now);
        self.stage = Stage::Features;
        self.reader = StreamReader::new(self.limits);
        let mut header = String::from("<?xml version='1.0'?><stream:stream version=\"1.0\"");
        write_attribute(&mut header, "xmlns", ns::CLIENT);
        write_attribute(&mut header, "xmlns:stream", ns::STREAM);
        write_attribute(&mut header, "to", jid::domain(&self.jid));
        header.push('>');
        self.output = header;
    }

    /// Whether the connection is to be encrypted now, what was to be sent being sent.
    pub fn poll_tls(&self) -> bool {
        self.link.is_opening() && self.stage == Stage::Encrypting
    }

    /// It is encrypted, and with the right one.
    pub fn handle_tls(&mut self, now: Timestamp) {
        if self.poll_tls() {
            (self.is_safe, self.is_encrypted) = (true, true);
            self.open(now);
        }
    }

    /// The connection could not be made, or broke.
    pub fn handle_disconnected(&mut self, now: Timestamp, reason: &str) {
        if !self.is_down() {
            self.fail(now, format!("the connection broke: {reason}"));
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
        // What came before the encryption counts for nothing (RFC 6120, 5.4.3.3).
        while !self.is_down() && !self.poll_tls() {
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
        match received {
            Received::Opened(stream) if stream.is("stream", ns::STREAM) => {}
            Received::Stanza(stanza) if stanza.is("error", ns::STREAM) => {
                let (condition, text) = stream_error(&stanza);
                self.fail(
                    now,
                    format!("the server refuses the stream with {condition} {text}").trim().into(),
                );
            }
            Received::Closed => self.end(now, "", "the server closed the stream".into()),
            Received::Stanza(stanza) if self.link.is_ready() => return Some(Incoming::Stanza(stanza)),
            Received::TooLarge(stanza) if self.link.is_ready() => return Some(Incoming::TooLarge(stanza)),
            Received::Stanza(stanza) => return self.take_opening(now, &stanza),
            _ => self.end(now, "bad-format", "the server does not open the stream as RFC 6120 has it".into()),
        }
        None
    }

    fn take_opening(&mut self, now: Timestamp, stanza: &Element) -> Option<Incoming> {
        self.link.step(now);
        match (self.stage, stanza.name.as_str(), &*stanza.ns) {
            (Stage::Features, "features", ns::STREAM) => self.take_features(now, stanza),
            (Stage::Proceed, "proceed", TLS) => self.stage = Stage::Encrypting,
            (Stage::Authenticating, "challenge", SASL) => self.challenged(now, stanza),
            (Stage::Authenticating, "success", SASL) => self.succeeded(now, stanza),
            (Stage::Authenticating, "failure", SASL) => self.refused(now, stanza),
            (Stage::Binding, "iq", _) => return self.bound(now, stanza),
            (Stage::Establishing, "iq", _) => return self.ready(now),
            _ => self.end(now, "bad-format", format!("the server sent {} out of turn", stanza.name)),
        }
        None
    }

    fn take_features(&mut self, now: Timestamp, features: &Element) {
        if self.has_authenticated {
            // RFC 6121, 1.4: only where it is offered and not optional.
            let session = features.children().find(|child| child.is("session", SESSION));
            self.wants_session = session.is_some_and(|session| session.child("optional", SESSION).is_none());
            let resource = Element::new("resource", BIND).with_text(self.resource.as_str());
            let bind = Element::new("bind", BIND).with_child(resource);
            self.stage = Stage::Binding;
            return self.send(
                &Element::new("iq", ns::CLIENT).with("type", "set").with("id", "bind").with_child(bind),
            );
        }
        let starttls = features.child("starttls", TLS).filter(|_| !self.is_encrypted);
        // What stays within this machine is encrypted where the server demands it (RFC 6120, 5.3.1): it says so, or
        // offers nothing else.
        let is_demanded = |starttls: &Element| {
            starttls.child("required", TLS).is_some() || features.child("mechanisms", SASL).is_none()
        };
        if starttls.is_some_and(|starttls| !self.is_safe || is_demanded(starttls)) {
            self.stage = Stage::Proceed;
            return self.send(&Element::new("starttls", TLS));
        }
        if !self.is_safe {
            return self.end(now, "policy-violation", "the server does not encrypt".into());
        }
        let offered: Vec<String> = match features.child("mechanisms", SASL) {
            Some(list) => list.children().map(|child| child.text().trim().to_owned()).collect(),
            None => Vec::new(),
        };
        let Some((mechanism, initial)) = self.authenticate.begin(&offered, self.is_safe) else {
            self.is_refused = true;
            return self.end(now, "", format!("the server offers none of our ways to log in: {offered:?}"));
        };
        self.stage = Stage::Authenticating;
        // RFC 6120, 6.4.2: an empty initial response is a single equals sign.
        let text = if initial.is_empty() { "=".to_owned() } else { STANDARD.encode(initial) };
        self.send(&Element::new("auth", SASL).with("mechanism", mechanism).with_text(text));
    }

    fn challenged(&mut self, now: Timestamp, stanza: &Element) {
        let response = decode(stanza).and_then(|challenge| self.authenticate.respond(&challenge));
        match response {
            Ok(response) => self.send(&Element::new("response", SASL).with_text(STANDARD.encode(response))),
            Err(why) => self.end(now, "", format!("the server cannot be believed: {why}")),
        }
    }

    fn succeeded(&mut self, now: Timestamp, stanza: &Element) {
        match decode(stanza).and_then(|data| self.authenticate.finish(&data)) {
            Ok(()) => {
                self.has_authenticated = true;
                self.open(now);
            }
            Err(why) => self.end(now, "", format!("the server cannot be believed: {why}")),
        }
    }

    fn refused(&mut self, now: Timestamp, failure: &Element) {
        let condition = failure.children().find(|child| child.name != "text");
        let condition = condition.map_or("not-authorized", |child| child.name.as_str());
        self.is_refused = condition != "temporary-auth-failure";
        self.end(now, "", format!("the server refuses the account {}: {condition}", self.jid));
    }

    fn bound(&mut self, now: Timestamp, iq: &Element) -> Option<Incoming> {
        let own = iq.child("bind", BIND).and_then(|bind| bind.child_text("jid", BIND));
        let Some(own) = own.filter(|_| iq.attribute("type") == Some("result")) else {
            let (condition, _) = error::read(iq).unwrap_or_default();
            self.end(now, "", format!("the server gives no resource: {condition}"));
            return None;
        };
        self.own = Some(own);
        if !self.wants_session {
            return self.ready(now);
        }
        self.stage = Stage::Establishing;
        let session = Element::new("session", SESSION);
        self.send(
            &Element::new("iq", ns::CLIENT).with("type", "set").with("id", "session").with_child(session),
        );
        None
    }

    fn ready(&mut self, now: Timestamp) -> Option<Incoming> {
        self.link.open(now);
        Some(Incoming::Ready)
    }

    /// Its own address, with the resource that it was given.
    pub fn own(&self) -> Option<&str> {
        self.own.as_deref()
    }

    /// Sends a stanza.
    pub fn send(&mut self, stanza: &Element) {
        stanza.write(&mut self.output, ns::CLIENT);
    }

    fn end(&mut self, now: Timestamp, condition: &str, problem: String) {
        self.fail(now, problem);
        self.output.push_str(&farewell(condition));
    }

    fn fail(&mut self, now: Timestamp, problem: String) {
        self.link.fail(now, problem);
        self.own = None;
    }

    /// Whether there is no stream: what is still connected is to be closed, once the last output is sent.
    pub fn is_down(&self) -> bool {
        self.link.is_down()
    }

    /// Whether stanzas can be sent.
    pub fn is_ready(&self) -> bool {
        self.link.is_ready()
    }

    /// Whether the account cannot be used, so that no further attempt is made.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Why it went down, once for every new reason.
    pub fn take_problem(&mut self) -> Option<String> {
        self.link.take_problem()
    }

    /// What is to be sent.
    pub fn poll_output(&mut self) -> Option<String> {
        (!self.output.is_empty()).then(|| std::mem::take(&mut self.output))
    }

    /// Ends the stream in good order.
    pub fn close(&mut self) {
        if !self.is_down() {
            self.output.push_str(&farewell(""));
            self.link.end();
        }
    }

    /// When to call [`Self::handle_timeout`] or [`Self::poll_connect`].
    pub fn poll_timeout(&self) -> Timestamp {
        if self.is_refused && self.is_down() { Timestamp::MAX } else { self.link.poll_timeout() }
    }

    /// The time has come, perhaps.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        match self.link.handle_timeout(now) {
            Due::Nothing => {}
            Due::Ping => {
                let ping = Element::new("iq", ns::CLIENT).with("type", "get").with("id", "ping");
                self.send(&ping.with_child(Element::new("ping", ns::PING)));
            }
            Due::Unreachable => self.fail(now, "the server cannot be reached in time".into()),
            Due::GivenUp(why) => self.end(now, "connection-timeout", why.into()),
        }
    }
}

fn decode(stanza: &Element) -> Result<Vec<u8>, String> {
    let text = stanza.text();
    let text = text.trim();
    if text.is_empty() || text == "=" {
        return Ok(Vec::new());
    }
    STANDARD.decode(text).map_err(|_| "what it sent is not Base 64".to_owned())
}
