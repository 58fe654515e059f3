//! Pool of HTTP/1.1 connections without TLS, with little overhead: a hub sends tens of thousands of requests a second.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpStream, lookup_host};
use url::{Host, Url};

use super::callback::{AddressGate, CallbackError, CallbackOptions, CallbackRequest, CallbackResponse};
use super::callback_body::{BodySource, UnreadBody};
use super::explain::root_cause;

/// Maximum time that an idle connection is kept.
const MAX_IDLE_TIME: Duration = Duration::from_secs(20);
/// Maximum number of idle connections to all hosts.
const MAX_IDLE_CONNECTIONS: usize = 4096;

const USER_AGENT_VALUE: HeaderValue =
    HeaderValue::from_static(concat!("towpath/", env!("CARGO_PKG_VERSION")));

/// Sends requests over pooled connections without TLS.
#[derive(Debug, Clone)]
pub(super) struct Http1Pool {
    options: CallbackOptions,
    gate: Option<AddressGate>,
    idle: Arc<Mutex<IdleConnections>>,
}

/// A connection that can take a request.
#[derive(Debug)]
struct IdleConnection {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// Splits an http URL into authority and request target; `None` if it needs a full parser.
fn split(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (authority, target) = rest.split_at(rest.find('/')?);
    // Whatever is not in normal form is left to the URL parser: two spellings of one host must not share a pool entry.
    let is_normal = |b: u8| {
        b.is_ascii_graphic()
            // These are percent-encoded by the URL parser, so as they stand they are not in normal form.
            && !matches!(b, b'#' | b'\\' | b'"' | b'<' | b'>' | b'{' | b'}' | b'`' | b'^' | b'|')
    };
    // A path with "/." may contain dot segments, which the URL parser removes.
    (target.bytes().all(is_normal) && !target.contains("/.")).then_some((authority, target))
}

/// Idle connections by authority. The one used last is reused first, so that the others can expire.
#[derive(Debug, Default)]
struct IdleConnections {
    by_authority: HashMap<String, Vec<IdleConnection>>,
    count: usize,
}

impl IdleConnections {
    fn take(&mut self, authority: &str) -> Option<IdleConnection> {
        let idle = self.by_authority.get_mut(authority)?;
        while let Some(last) = idle.pop() {
            self.count -= 1;
            if last.sender.is_ready() && last.since.elapsed() < MAX_IDLE_TIME {
                return Some(last);
            }
        }
        self.by_authority.remove(authority);
        None
    }

    fn put_back(&mut self, authority: &str, sender: SendRequest<Full<Bytes>>, limit: usize) {
        // Eviction only when the pool is full: a scan after each request would cost more than idle sockets.
        if self.count >= MAX_IDLE_CONNECTIONS {
            self.evict_expired();
        }
        if sender.is_closed() || self.count >= MAX_IDLE_CONNECTIONS || limit == 0 {
            return;
        }
        let since = Instant::now();
        match self.by_authority.get_mut(authority) {
            Some(idle) if idle.len() >= limit => return,
            Some(idle) => idle.push(IdleConnection { sender, since }),
            None => {
                self.by_authority.insert(authority.to_owned(), vec![IdleConnection { sender, since }]);
            }
        }
        self.count += 1;
    }

    /// Drops connections that are closed or were idle for too long.
    fn evict_expired(&mut self) {
        for idle in self.by_authority.values_mut() {
            idle.retain(|idle| idle.since.elapsed() < MAX_IDLE_TIME && !idle.sender.is_closed());
        }
        self.by_authority.retain(|_, idle| !idle.is_empty());
        self.count = self.by_authority.values().map(Vec::len).sum();
    }
}

/// Body of a response, with the connection that it comes over.
pub(super) struct PooledBody {
    idle: Arc<Mutex<IdleConnections>>,
    authority: Box<str>,
    /// Maximum number of idle connections to the host.
    limit: usize,
    sender: SendRequest<Full<Bytes>>,
    incoming: Incoming,
}

impl PooledBody {
    /// Reads the next piece; `None` at the end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, CallbackError> {
        while let Some(frame) = self.incoming.frame().await {
            let frame = frame.map_err(|e| CallbackError::Connect(root_cause(&e)))?;
            // Trailers have no data.
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Returns the connection to the pool. Unread bytes of the body would be taken for the next response.
    pub(super) async fn put_back(self) {
        let Self { idle, authority, limit, mut sender, .. } = self;
        if sender.ready().await.is_ok() {
            idle.lock().put_back(&authority, sender, limit);
        }
    }
}

impl Http1Pool {
    pub(super) fn new(options: CallbackOptions, gate: Option<AddressGate>) -> Self {
        Self { options, gate, idle: Arc::default() }
    }

    /// Sends a request over an idle connection; returns the request if there is none.
    ///
    /// Connections are pooled under the authority's normal form, and only after its address was checked. A request
    /// that names the same authority in that form therefore needs neither parsing nor name resolution.
    pub(super) async fn call_idle<'a>(
        &self,
        request: CallbackRequest<'a>,
    ) -> Result<Result<(CallbackResponse, UnreadBody), CallbackError>, CallbackRequest<'a>> {
        let url = request.url;
        let Some((authority, target)) = split(url) else { return Err(request) };
        let Some(IdleConnection { mut sender, .. }) = self.idle.lock().take(authority) else {
            return Err(request);
        };
        let (method, body) = (request.method.clone(), request.body.clone());
        let request = match http_request(target, authority, request) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        match sender.try_send_request(request).await {
            Ok(response) => Ok(Ok(self.received(authority, sender, response))),
            Err(mut error) => match error.take_message() {
                // The peer closed the idle connection and no byte was sent, so that even a POST may be repeated.
                Some(unsent) => {
                    let headers = unsent.into_parts().0.headers;
                    Err(CallbackRequest { method, url, headers, body })
                }
                None => Ok(Err(CallbackError::Connect(root_cause(error.error())))),
            },
        }
    }

    /// Sends a request over a new connection to its parsed URL.
    pub(super) async fn call(
        &self,
        url: &Url,
        request: CallbackRequest<'_>,
    ) -> Result<(CallbackResponse, UnreadBody), CallbackError> {
        let authority = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let request = http_request(target, authority, request)?;
        let (mut sender, address) = self.connect(url).await?;
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|e| CallbackError::Connect(root_cause(&e)))?;
        let (head, body) = self.received(authority, sender, response);
        Ok((CallbackResponse { address: Some(address), ..head }, body))
    }

    fn received(
        &self,
        authority: &str,
        sender: SendRequest<Full<Bytes>>,
        response: Response<Incoming>,
    ) -> (CallbackResponse, UnreadBody) {
        let (parts, incoming) = response.into_parts();
        let limit = self.options.idle_connections;
        let body =
            PooledBody { idle: self.idle.clone(), authority: authority.into(), limit, sender, incoming };
        (CallbackResponse::head(parts.status, &parts.headers), UnreadBody(BodySource::Http1(body)))
    }

    /// Opens a connection to the first of the host's permitted addresses that accepts one.
    async fn connect(&self, url: &Url) -> Result<(SendRequest<Full<Bytes>>, IpAddr), CallbackError> {
        let connecting = async {
            let addresses = self.resolve(url).await?;
            let mut failure = CallbackError::Connect("the name has no address".into());
            for address in addresses {
                if let Some(Err(error)) = self.gate.as_ref().map(|gate| gate.check(address.ip())) {
                    failure = error;
                    continue;
                }
                match open(address).await {
                    Ok(sender) => return Ok((sender, address.ip())),
                    // As in a browser, every address of the name is tried: the first may be an unreachable IPv6
                    // one.
                    Err(reason) => failure = CallbackError::Connect(reason),
                }
            }
            Err(failure)
        };
        let limit = self.options.connect_timeout;
        tokio::time::timeout(limit, connecting).await.unwrap_or(Err(CallbackError::Timeout(limit)))
    }

    async fn resolve(&self, url: &Url) -> Result<Vec<SocketAddr>, CallbackError> {
        let port = url.port_or_known_default().unwrap_or(80);
        let addresses = match url.host() {
            Some(Host::Ipv4(address)) => vec![SocketAddr::new(IpAddr::V4(address), port)],
            Some(Host::Ipv6(address)) => vec![SocketAddr::new(IpAddr::V6(address), port)],
            Some(Host::Domain(name)) => {
                let resolved = lookup_host((name, port)).await;
                resolved.map_err(|e| CallbackError::Connect(e.to_string()))?.collect()
            }
            None => return Err(CallbackError::Url("it has no host".into())),
        };
        Ok(self.options.policy().filter(addresses)?)
    }
}

async fn open(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
    // Head and body may be two writes; Nagle's algorithm would delay the second by a round trip.
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| root_cause(&e))?;
    // hyper drives the connection in a task of its own; the sender ends it when dropped.
    tokio::spawn(async move {
        if let Err(e) = connection.await {
            tracing::debug!(error = %e, "callback connection failed");
        }
    });
    Ok(sender)
}

/// Builds the request as it is sent, with the target in origin form (RFC 9112, section 3.2.1).
fn http_request(
    target: &str,
    authority: &str,
    request: CallbackRequest<'_>,
) -> Result<Request<Full<Bytes>>, CallbackError> {
    let CallbackRequest { method, headers, body, .. } = request;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() =
        target.parse().map_err(|e: http::uri::InvalidUri| CallbackError::Url(e.to_string()))?;
    *request.headers_mut() = headers;
    let host = HeaderValue::from_str(authority).map_err(|e| CallbackError::Url(e.to_string()))?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(USER_AGENT, USER_AGENT_VALUE);
    Ok(request)
}
