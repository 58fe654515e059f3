//! A client's stream (RFC 6120): TLS, authentication, resource binding, keepalive, reconnects.
//!
//! Connect when [`ClientSession::poll_connect`] returns `true`, then call
//! [`ClientSession::handle_connected`]. Pass input to [`ClientSession::handle_bytes`] and call
//! [`ClientSession::poll_received`]. Send [`ClientSession::poll_output`]. When [`ClientSession::poll_tls`]
//! returns `true`, start TLS and call [`ClientSession::handle_tls`]. Close when [`ClientSession::is_down`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::lifecycle::Incoming;
use super::lifecycle::{StreamLifecycle, StreamTimer, closing_tags, stream_error};
use super::reply::reply;
use super::stanza::{Element, write_attribute};
use super::stream::{Received, StreamLimits, StreamReader};
use super::{error, jid, ns};
use crate::follow::{Monotonic, Now};

const TLS: &str = "urn:ietf:params:xml:ns:xmpp-tls";
const SASL: &str = "urn:ietf:params:xml:ns:xmpp-sasl";
const BIND: &str = "urn:ietf:params:xml:ns:xmpp-bind";
const SESSION: &str = "urn:ietf:params:xml:ns:xmpp-session";

/// Default size of the largest stanza, in bytes.
pub(crate) const LARGEST_STANZA: usize = 4 << 20;
/// Bytes of a stanza for each of its elements and texts. An empty element takes 4 bytes, and far more in memory.
const BYTES_PER_NODE: usize = 40;

/// Protection of a connection against being read and changed on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionPrivacy {
    /// Neither encrypted nor within this machine: others may read it.
    Exposed,
    /// Encrypted, or within this machine: a password may be sent.
    Private,
}

/// SASL authentication (RFC 6120, section 6). Implemented outside this crate, because it needs passwords and
/// randomness.
pub trait Authenticate: Send {
    /// Selects an offered mechanism and returns it with the initial response; `None` if no mechanism is
    /// usable over a connection of this privacy.
    fn begin(&mut self, offered: &[String], privacy: ConnectionPrivacy) -> Option<(String, Vec<u8>)>;

    /// Returns the response to a challenge.
    ///
    /// # Errors
    ///
    /// Returns the problem of the challenge.
    fn respond(&mut self, challenge: &[u8]) -> Result<Vec<u8>, String>;

    /// Verifies the server's final data.
    ///
    /// # Errors
    ///
    /// Returns the reason why the server is not authenticated.
    fn finish(&mut self, data: &[u8]) -> Result<(), String>;
}

/// A client on a stream. It is also an [`Exchange`](crate::follow::Exchange) without requests, which provides
/// timers and the end.
pub trait OverXmpp: crate::follow::Exchange {
    /// Returns the session, which the caller transports.
    fn session(&mut self) -> &mut ClientSession;

    /// Processes received events and timers; call it after every event of the stream.
    fn handle_received(&mut self, now: Now);
}

/// Expected next step of opening the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoginStage {
    Features,
    Proceed,
    /// The caller must start TLS.
    Encrypting,
    Authenticating,
    Binding,
    Establishing,
}

/// State of the session.
pub struct ClientSession {
    jid: String,
    resource: String,
    limits: StreamLimits,
    authenticate: Box<dyn Authenticate>,
    lifecycle: StreamLifecycle,
    stage: LoginStage,
    privacy: ConnectionPrivacy,
    is_encrypted: bool,
    has_authenticated: bool,
    wants_session: bool,
    /// `true` if the account is refused: further attempts are useless.
    is_refused: bool,
    reader: StreamReader,
    output: String,
    own: Option<String>,
    /// Id that the server gave the stream; empty without one.
    stream_id: String,
}

impl std::fmt::Debug for ClientSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientSession")
            .field("jid", &self.jid)
            .field("lifecycle", &self.lifecycle)
            .finish_non_exhaustive()
    }
}

impl ClientSession {
    /// Creates a disconnected session of the account `jid` with a resource.
    pub fn new(jid: &str, resource: &str, authenticate: Box<dyn Authenticate>) -> Self {
        // Larger than a component's limits: a page with large items is a single stanza here.
        let limits = StreamLimits {
            stanza_bytes: LARGEST_STANZA,
            nodes: LARGEST_STANZA / BYTES_PER_NODE,
            ..StreamLimits::default()
        };
        Self {
            jid: jid::bare(jid).to_owned(),
            resource: resource.to_owned(),
            limits,
            authenticate,
            lifecycle: StreamLifecycle::default(),
            stage: LoginStage::Features,
            privacy: ConnectionPrivacy::Exposed,
            is_encrypted: false,
            has_authenticated: false,
            wants_session: false,
            is_refused: false,
            reader: StreamReader::new(limits),
            output: String::new(),
            own: None,
            stream_id: String::new(),
        }
    }

    /// Sets the largest stanza, and with it the number of a stanza's elements and texts.
    pub(crate) fn set_largest_stanza(&mut self, bytes: usize) {
        let nodes = bytes / BYTES_PER_NODE;
        self.limits = StreamLimits { stanza_bytes: bytes, nodes, ..self.limits };
        self.reader = StreamReader::new(self.limits);
    }

    /// Returns the largest stanza, in bytes.
    pub(crate) fn largest_stanza(&self) -> usize {
        self.limits.stanza_bytes
    }

    /// Returns `true` when it is time to connect.
    pub fn poll_connect(&mut self, now: Now) -> bool {
        !self.is_refused && self.lifecycle.poll_connect(now)
    }

    /// Records that the connection is established, without TLS: it is private if it stays within this machine.
    pub fn handle_connected(&mut self, now: Now, privacy: ConnectionPrivacy) {
        if self.lifecycle.is_connecting() {
            (self.privacy, self.is_encrypted, self.has_authenticated) = (privacy, false, false);
            self.open(now);
        }
    }

    /// Opens a stream, again after TLS and after authentication (RFC 6120, 4.2 and 4.3.3).
    fn open(&mut self, now: Now) {
        self.lifecycle.step(now);
        self.stage = LoginStage::Features;
        self.reader = StreamReader::new(self.limits);
        let mut header = String::from("<?xml version='1.0'?><stream:stream version=\"1.0\"");
        write_attribute(&mut header, "xmlns", ns::CLIENT);
        write_attribute(&mut header, "xmlns:stream", ns::STREAM);
        write_attribute(&mut header, "to", jid::domain(&self.jid));
        header.push('>');
        self.output = header;
    }

    /// Returns `true` when TLS must be started, after the pending output is sent.
    pub fn poll_tls(&self) -> bool {
        self.lifecycle.is_opening() && self.stage == LoginStage::Encrypting
    }

    /// Records that TLS is established and the server's certificate is valid.
    pub fn handle_tls(&mut self, now: Now) {
        if self.poll_tls() {
            (self.privacy, self.is_encrypted) = (ConnectionPrivacy::Private, true);
            self.open(now);
        }
    }

    /// Records that the connection failed or broke.
    pub fn handle_disconnected(&mut self, now: Now, reason: &str) {
        if !self.is_down() {
            self.fail(now, format!("the connection broke: {reason}"));
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
        // Data received before TLS must be discarded (RFC 6120, 5.4.3.3): an attacker could have injected it.
        while !self.is_down() && !self.poll_tls() {
            match self.reader.poll() {
                Ok(None) => return None,
                Ok(Some(received)) => {
                    let incoming = self.handle(now, received);
                    if incoming.is_some() {
                        return incoming;
                    }
                }
                Err(fault) => self.end(now, fault.reason.condition(), format!("the server sent {fault}")),
            }
        }
        None
    }

    fn handle(&mut self, now: Now, received: Received) -> Option<Incoming> {
        match received {
            Received::Opened(stream) if stream.is("stream", ns::STREAM) => {
                stream.attribute("id").unwrap_or_default().clone_into(&mut self.stream_id);
            }
            Received::Stanza(stanza) if stanza.is("error", ns::STREAM) => {
                let (condition, text) = stream_error(&stanza);
                self.fail(
                    now,
                    format!("the server refuses the stream with {condition} {text}").trim().into(),
                );
            }
            Received::Closed => self.end(now, "", "the server closed the stream".into()),
            Received::Stanza(stanza) if self.lifecycle.is_ready() => match reply(&stanza) {
                Some(reply) => self.send(&reply),
                None => return Some(Incoming::Stanza(stanza)),
            },
            Received::TooLarge(stanza) if self.lifecycle.is_ready() => {
                return Some(Incoming::TooLarge(stanza));
            }
            Received::Stanza(stanza) => return self.handle_opening(now, &stanza),
            _ => self.end(now, "bad-format", "the server violates RFC 6120 while opening the stream".into()),
        }
        None
    }

    fn handle_opening(&mut self, now: Now, stanza: &Element) -> Option<Incoming> {
        self.lifecycle.step(now);
        match (self.stage, stanza.name.as_str(), &*stanza.ns) {
            (LoginStage::Features, "features", ns::STREAM) => self.handle_features(now, stanza),
            (LoginStage::Proceed, "proceed", TLS) => self.stage = LoginStage::Encrypting,
            // RFC 6120, 5.4.2.2: the server closes the stream after it.
            (LoginStage::Proceed, "failure", TLS) => {
                self.end(now, "", "the server cannot encrypt the stream: it failed STARTTLS".into());
            }
            (LoginStage::Authenticating, "challenge", SASL) => self.challenged(now, stanza),
            (LoginStage::Authenticating, "success", SASL) => self.succeeded(now, stanza),
            (LoginStage::Authenticating, "failure", SASL) => self.refused(now, stanza),
            (LoginStage::Binding, "iq", _) => return self.bound(now, stanza),
            (LoginStage::Establishing, "iq", _) => return self.ready(now),
            _ => self.end(now, "bad-format", format!("the server sent {} out of turn", stanza.name)),
        }
        None
    }

    fn handle_features(&mut self, now: Now, features: &Element) {
        if self.has_authenticated {
            // Only if the feature is offered and not optional (RFC 6121, 1.4).
            // RFC 3921 required this step; servers still offer it for old clients.
            let session = features.children().find(|child| child.is("session", SESSION));
            self.wants_session = session.is_some_and(|session| session.child("optional", SESSION).is_none());
            let resource = Element::new("resource", BIND).with_text(self.resource.as_str());
            let bind = Element::new("bind", BIND).with_child(resource);
            self.stage = LoginStage::Binding;
            return self.send(
                &Element::new("iq", ns::CLIENT).with("type", "set").with("id", "bind").with_child(bind),
            );
        }
        let starttls = features.child("starttls", TLS).filter(|_| !self.is_encrypted);
        // Over loopback TLS is used if the server requires it (RFC 6120, 5.3.1), explicitly or by offering
        // nothing else.
        let is_demanded = |starttls: &Element| {
            starttls.child("required", TLS).is_some() || features.child("mechanisms", SASL).is_none()
        };
        let is_exposed = self.privacy == ConnectionPrivacy::Exposed;
        if starttls.is_some_and(|starttls| is_exposed || is_demanded(starttls)) {
            self.stage = LoginStage::Proceed;
            return self.send(&Element::new("starttls", TLS));
        }
        // Without TLS the password could be read on the network.
        if is_exposed {
            return self.end(now, "policy-violation", "the server does not encrypt".into());
        }
        let offered: Vec<String> = match features.child("mechanisms", SASL) {
            Some(list) => list.children().map(|child| child.text().trim().to_owned()).collect(),
            None => Vec::new(),
        };
        let Some((mechanism, initial)) = self.authenticate.begin(&offered, self.privacy) else {
            self.is_refused = true;
            return self.end(now, "", format!("the server offers no supported login mechanism: {offered:?}"));
        };
        self.stage = LoginStage::Authenticating;
        // RFC 6120, 6.4.2: an empty initial response is a single equals sign.
        let text = if initial.is_empty() { "=".to_owned() } else { STANDARD.encode(initial) };
        self.send(&Element::new("auth", SASL).with("mechanism", mechanism).with_text(text));
    }

    fn challenged(&mut self, now: Now, stanza: &Element) {
        let response = decode(stanza).and_then(|challenge| self.authenticate.respond(&challenge));
        match response {
            Ok(response) => self.send(&Element::new("response", SASL).with_text(STANDARD.encode(response))),
            Err(why) => self.end(now, "", format!("the server failed authentication: {why}")),
        }
    }

    fn succeeded(&mut self, now: Now, stanza: &Element) {
        match decode(stanza).and_then(|data| self.authenticate.finish(&data)) {
            Ok(()) => {
                self.has_authenticated = true;
                self.open(now);
            }
            Err(why) => self.end(now, "", format!("the server failed authentication: {why}")),
        }
    }

    fn refused(&mut self, now: Now, failure: &Element) {
        let condition = failure.children().find(|child| child.name != "text");
        let condition = condition.map_or("not-authorized", |child| child.name.as_str());
        // Any other failure is permanent: repeated attempts could lock the account.
        self.is_refused = condition != "temporary-auth-failure";
        self.end(now, "", format!("the server refuses the account {}: {condition}", self.jid));
    }

    fn bound(&mut self, now: Now, iq: &Element) -> Option<Incoming> {
        let own = iq.child("bind", BIND).and_then(|bind| bind.child_text("jid", BIND));
        let Some(own) = own.filter(|_| iq.attribute("type") == Some("result")) else {
            let (condition, _) = error::read(iq).unwrap_or_default();
            self.end(now, "", format!("the server gives no resource: {condition}"));
            return None;
        };
        // The server may assign another resource than requested.
        self.own = Some(own);
        if !self.wants_session {
            return self.ready(now);
        }
        self.stage = LoginStage::Establishing;
        let session = Element::new("session", SESSION);
        self.send(
            &Element::new("iq", ns::CLIENT).with("type", "set").with("id", "session").with_child(session),
        );
        None
    }

    fn ready(&mut self, now: Now) -> Option<Incoming> {
        self.lifecycle.open(now);
        Some(Incoming::Ready)
    }

    /// Returns the full address assigned by the server.
    pub fn own(&self) -> Option<&str> {
        self.own.as_deref()
    }

    /// Returns the id of the stream, which no other stream of its server has (RFC 6120, 4.7.3).
    pub(crate) fn stream_id(&self) -> &str {
        &self.stream_id
    }

    /// Queues a stanza.
    pub fn send(&mut self, stanza: &Element) {
        stanza.write(&mut self.output, ns::CLIENT);
    }

    fn end(&mut self, now: Now, condition: &str, problem: String) {
        self.fail(now, problem);
        self.output.push_str(&closing_tags(condition));
    }

    fn fail(&mut self, now: Now, problem: String) {
        self.lifecycle.fail(now, problem);
        self.own = None;
    }

    /// Returns `true` without a stream. Close the connection after the last output.
    pub fn is_down(&self) -> bool {
        self.lifecycle.is_down()
    }

    /// Returns `true` if stanzas may be sent.
    pub fn is_ready(&self) -> bool {
        self.lifecycle.is_ready()
    }

    /// Returns `true` if the account is refused, so that no further attempt is made.
    pub fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Returns the reason of the last failure, once while it stays the same.
    pub fn take_problem(&mut self) -> Option<String> {
        self.lifecycle.take_problem()
    }

    /// Returns pending output.
    pub fn poll_output(&mut self) -> Option<String> {
        (!self.output.is_empty()).then(|| std::mem::take(&mut self.output))
    }

    /// Ends the stream in order.
    pub fn close(&mut self) {
        if !self.is_down() {
            self.output.push_str(&closing_tags(""));
            self.lifecycle.end();
        }
    }

    /// Returns the time of the next call of [`Self::handle_timeout`] or [`Self::poll_connect`].
    pub fn poll_timeout(&self) -> Monotonic {
        if self.is_refused && self.is_down() { Monotonic::NEVER } else { self.lifecycle.poll_timeout() }
    }

    /// Handles timers that are due.
    pub fn handle_timeout(&mut self, now: Now) {
        match self.lifecycle.handle_timeout(now) {
            StreamTimer::Nothing => {}
            StreamTimer::Ping => {
                let ping = Element::new("iq", ns::CLIENT).with("type", "get").with("id", "ping");
                self.send(&ping.with_child(Element::new("ping", ns::PING)));
            }
            StreamTimer::Unreachable => self.fail(now, "the server cannot be reached in time".into()),
            StreamTimer::GivenUp(why) => self.end(now, "connection-timeout", why.into()),
        }
    }
}

fn decode(stanza: &Element) -> Result<Vec<u8>, String> {
    let text = stanza.text();
    let text = text.trim();
    if text.is_empty() || text == "=" {
        return Ok(Vec::new());
    }
    STANDARD.decode(text).map_err(|_| "its data is not Base 64".to_owned())
}
