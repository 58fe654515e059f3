//! Requests over connections without TLS, with as little as possible between the caller and the socket: a hub makes
//! tens of thousands of them in a second.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpStream, lookup_host};
use url::{Host, Url};

use super::callback::{CallError, CallOptions, Called, MAX_ANSWER, public};
use super::explain::root_cause;

/// How long a connection may wait for its next request.
const IDLE: Duration = Duration::from_secs(20);
/// How many connections wait at the most, whatever they lead to.
const MAX_IDLE: usize = 4096;

const AGENT: HeaderValue = HeaderValue::from_static(concat!("towpath/", env!("CARGO_PKG_VERSION")));

/// Calls over connections without TLS.
#[derive(Debug, Clone)]
pub(super) struct Plain {
    options: CallOptions,
    idle: Arc<Mutex<Idle>>,
}

/// A connection that takes a request.
#[derive(Debug)]
struct Open {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// A request that has not been sent.
pub(super) type Unsent = (Method, HeaderMap, Bytes);

/// Host and port of an address without TLS, and what is asked for there.
fn split(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let (authority, target) = rest.split_at(rest.find('/')?);
    // What does not stand there in its normal form is left to a real parser.
    let is_normal = |b: u8| {
        b.is_ascii_graphic()
            && !matches!(b, b'#' | b'\\' | b'"' | b'<' | b'>' | b'{' | b'}' | b'`' | b'^' | b'|')
    };
    (target.bytes().all(is_normal) && !target.contains("/.")).then_some((authority, target))
}

/// Connections that wait for a request, by host and port. The last one to come is the first one to go.
#[derive(Debug, Default)]
struct Idle {
    open: HashMap<String, Vec<Open>>,
    count: usize,
}

impl Idle {
    fn take(&mut self, authority: &str) -> Option<Open> {
        let open = self.open.get_mut(authority)?;
        while let Some(last) = open.pop() {
            self.count -= 1;
            if last.sender.is_ready() && last.since.elapsed() < IDLE {
                return Some(last);
            }
        }
        self.open.remove(authority);
        None
    }

    fn give_back(&mut self, authority: &str, sender: SendRequest<Full<Bytes>>, limit: usize) {
        if self.count >= MAX_IDLE {
            self.tidy();
        }
        if sender.is_closed() || self.count >= MAX_IDLE {
            return;
        }
        let since = Instant::now();
        match self.open.get_mut(authority) {
            Some(open) if open.len() >= limit => return,
            Some(open) => open.push(Open { sender, since }),
            None => drop(self.open.insert(authority.to_owned(), vec![Open { sender, since }])),
        }
        self.count += 1;
    }

    /// Lets go of what waited too long.
    fn tidy(&mut self) {
        for open in self.open.values_mut() {
            open.retain(|open| open.since.elapsed() < IDLE && !open.sender.is_closed());
        }
        self.open.retain(|_, open| !open.is_empty());
        self.count = self.open.values().map(Vec::len).sum();
    }
}

impl Plain {
    pub(super) fn new(options: CallOptions) -> Self {
        Self { options, idle: Arc::default() }
    }

    /// Sends a request over a connection that waits for one; the request comes back where there is none.
    ///
    /// Connections wait under hosts in their normal form, so that whoever names one names it in that form: of what
    /// its address leads to nothing else needs to be known.
    pub(super) async fn call_again(
        &self,
        (method, headers, body): Unsent,
        url: &str,
    ) -> Result<Result<Called, CallError>, Unsent> {
        let Some((authority, target)) = split(url) else { return Err((method, headers, body)) };
        let Some(Open { mut sender, .. }) = self.idle.lock().take(authority) else {
            return Err((method, headers, body));
        };
        let (again, kept) = (method.clone(), body.clone());
        let request = match request(method, target, authority, headers, body) {
            Ok(request) => request,
            Err(error) => return Ok(Err(error)),
        };
        match sender.try_send_request(request).await {
            Ok(response) => Ok(self.finish(authority, sender, response).await),
            Err(mut error) => match error.take_message() {
                // The peer closed the connection while it waited: nothing of the request has gone.
                Some(unsent) => Err((again, unsent.into_parts().0.headers, kept)),
                None => Ok(Err(CallError::Connect(root_cause(error.error())))),
            },
        }
    }

    /// Sends a request over a new connection and reads its answer.
    pub(super) async fn call(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Called, CallError> {
        let authority = &url[url::Position::BeforeHost..url::Position::AfterPort];
        let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
        let request = request(method, target, authority, headers, body)?;
        let mut sender = self.connect(url).await?;
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|e| CallError::Connect(root_cause(&e)))?;
        self.finish(authority, sender, response).await
    }

    /// Reads an answer and keeps its connection for the next request.
    async fn finish(
        &self,
        authority: &str,
        mut sender: SendRequest<Full<Bytes>>,
        response: Response<Incoming>,
    ) -> Result<Called, CallError> {
        let (called, is_whole) = read(response).await?;
        if is_whole && sender.ready().await.is_ok() {
            self.idle.lock().give_back(authority, sender, self.options.idle_connections);
        }
        Ok(called)
    }

    /// A new connection, to an address that may be called.
    async fn connect(&self, url: &Url) -> Result<SendRequest<Full<Bytes>>, CallError> {
        let connecting = async {
            let found = self.resolve(url).await?;
            let mut failure = CallError::Connect("the name has no address".into());
            for address in found {
                match open(address).await {
                    Ok(sender) => return Ok(sender),
                    Err(reason) => failure = CallError::Connect(reason),
                }
            }
            Err(failure)
        };
        let limit = self.options.connect_timeout;
        tokio::time::timeout(limit, connecting).await.unwrap_or(Err(CallError::Timeout(limit)))
    }

    async fn resolve(&self, url: &Url) -> Result<Vec<SocketAddr>, CallError> {
        let port = url.port_or_known_default().unwrap_or(80);
        let found = match url.host() {
            Some(Host::Ipv4(address)) => vec![SocketAddr::new(IpAddr::V4(address), port)],
            Some(Host::Ipv6(address)) => vec![SocketAddr::new(IpAddr::V6(address), port)],
            Some(Host::Domain(name)) => {
                let found = lookup_host((name, port)).await.map_err(|e| CallError::Connect(e.to_string()))?;
                found.collect()
            }
            None => return Err(CallError::Url("there is no host in it".into())),
        };
        if self.options.allow_private { Ok(found) } else { public(found) }
    }
}

async fn open(address: SocketAddr) -> Result<SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| root_cause(&e))?;
    tokio::spawn(async move {
        if let Err(e) = connection.await {
            tracing::debug!("a callback's connection: {e}");
        }
    });
    Ok(sender)
}

fn request(
    method: Method,
    target: &str,
    authority: &str,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, CallError> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = target.parse().map_err(|e: http::uri::InvalidUri| CallError::Url(e.to_string()))?;
    *request.headers_mut() = headers;
    let host = HeaderValue::from_str(authority).map_err(|e| CallError::Url(e.to_string()))?;
    request.headers_mut().insert(HOST, host);
    request.headers_mut().insert(USER_AGENT, AGENT);
    Ok(request)
}

/// Reads an answer, and says whether all of it was read.
async fn read(response: Response<Incoming>) -> Result<(Called, bool), CallError> {
    let (parts, mut incoming) = response.into_parts();
    let mut called = Called::head(parts.status, &parts.headers);
    let mut body = BytesMut::new();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|e| CallError::Connect(root_cause(&e)))?;
        if let Some(data) = frame.data_ref() {
            body.extend_from_slice(data);
        }
        if body.len() > MAX_ANSWER {
            return Ok((called, false));
        }
    }
    called.body = body.freeze();
    Ok((called, true))
}
