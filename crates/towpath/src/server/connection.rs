//! Connections of one worker: hyper's side of the server.
//!
//! A connection whose request waits for an append leaves hyper and is parked ([`long_poll`]). When hyper has to send
//! the answer to such a request, it gets the socket behind a stand-in for the request that was read before
//! ([`Rewind`]).
//!
//! [`long_poll`]: super::long_poll

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::maybe_done;
use http::header::{CONNECTION, HOST, ORIGIN};
use http::{Method, Request, Response, Version};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::admission::ConnectionPermit;
use super::browser_policy::BrowserPolicy;
use super::guarded_stream::{GuardedStream, RateLimits};
use super::long_poll::parked::{HEAD_TIMEOUT, ParkedConnection, Parker, UnparkedConnection};
use super::long_poll::poll::LongPoll;
use super::long_poll::request_cache::RequestCache;
use super::long_poll::rewind::Rewind;
use super::problem::Problem;
use super::response::{ResponseBody, respond};
use super::route::{self, Routed};
use super::tls::TlsIdentity;
use crate::document::prebuilt::Answer;
use crate::document::response_memory::ResponseMemory;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::server::read_your_writes::{POSITION, set_age};
use crate::stop::{Stop, stopped};

/// Time that connections get to finish when the server stops.
// Long polls are answered at once when the server stops; this is for downloads under way.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Longest head of a request, in bytes. It is also the size of hyper's buffers.
// Thousands of clients that send a head slowly hold a buffer each.
const MAX_HEAD: usize = 32 << 10;

/// Longest time that a client may take for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection as the acceptor hands it to a worker.
pub(super) struct Accepted {
    pub(super) stream: std::net::TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) permit: ConnectionPermit,
}

/// State shared by the connections of one worker.
struct ConnectionWorker {
    engine: Arc<Engine>,
    stop: Stop,
    request_cache: Mutex<RequestCache>,
    browser_policy: BrowserPolicy,
    limits: Arc<RateLimits>,
    tls: Option<Arc<TlsIdentity>>,
}

/// Serves accepted connections until the sender is dropped, then gives open ones [`GRACE`] to finish.
pub(super) async fn work(
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
    engine: Arc<Engine>,
    tls: Option<Arc<TlsIdentity>>,
    stop: Stop,
) {
    let browser_policy = BrowserPolicy::new(&engine.config);
    let server = &engine.config.server;
    let (grace, min_rate, memory) = (server.rate_grace, server.min_rate, engine.response_memory.clone());
    let limits = Arc::new(RateLimits { grace, min_rate, memory });
    let request_cache = Mutex::default();
    let worker = Arc::new(ConnectionWorker { engine, stop, request_cache, browser_policy, limits, tls });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            next = accepted.recv() => match next {
                Some(connection) => drop(connections.spawn(serve(connection, worker.clone()))),
                None => break,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    let finished = async { while connections.join_next().await.is_some() {} };
    if timeout(GRACE, finished).await.is_err() {
        tracing::warn!("closed the connections that did not finish within {} s", GRACE.as_secs());
    }
}

async fn serve(accepted: Accepted, worker: Arc<ConnectionWorker>) {
    // The permit lives as long as the connection.
    let Accepted { stream, peer, permit: _permit } = accepted;
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(e) => return tracing::warn!("cannot serve the connection of {peer}: {e}"),
    };
    let stream = GuardedStream::new(stream, worker.limits.clone());
    if let Some(tls) = &worker.tls {
        return Box::pin(serve_tls(stream, tls.acceptor(), &worker, peer)).await;
    }
    let mut next = UnparkedConnection::next_request(stream, Bytes::new());
    let (stopping, sleep) = (pin!(maybe_done(stopped(&worker.stop))), pin!(sleep_until(Instant::now())));
    let mut parker = Parker::new(sleep, stopping, &worker.stop, &worker.request_cache);
    // Boxed: hyper's state is freed while the connection is parked, so an idle long poll takes 2 kB.
    while let Some(parked) = Box::pin(serve_http(next, &worker, peer, parker.stopping.as_mut())).await {
        match parker.park(parked).await {
            Some(unparked) => next = unparked,
            None => return,
        }
    }
}

/// Serves the requests of a TLS connection. Its long polls wait in hyper: a parked connection is written to past hyper,
/// and would have to be encrypted there.
async fn serve_tls(
    stream: GuardedStream<TcpStream>,
    acceptor: TlsAcceptor,
    worker: &Arc<ConnectionWorker>,
    peer: SocketAddr,
) {
    let stream = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => return tracing::debug!("TLS handshake of {peer}: {e}"),
        Err(_) => return tracing::debug!("TLS handshake of {peer}: it took too long"),
    };
    let (answer, raw_request) = (Mutex::default(), Mutex::default());
    let service = HttpService { worker: worker.clone(), peer, answer, raw_request, slot: None };
    let mut connection = pin!(http1_builder().serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        // First: hyper drops a connection that is shut down before it was polled.
        biased;
        ended = connection.as_mut() => ended,
        () = stopped(&worker.stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!("connection of {peer}: {e}");
    }
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).half_close(false);
    builder.max_buf_size(MAX_HEAD);
    builder
}

/// Has hyper serve requests until one waits, or until the connection ends.
async fn serve_http(
    connection: UnparkedConnection,
    worker: &Arc<ConnectionWorker>,
    peer: SocketAddr,
    mut stopping: Pin<&mut impl Future<Output = ()>>,
) -> Option<ParkedConnection> {
    let UnparkedConnection { stream, answer, read, keep_alive } = connection;
    let (io, raw_request) = match &answer {
        Some(_) => (Rewind::after_request(stream, keep_alive, &read), None),
        None => (Rewind::new(stream, read.clone()), Some(read)),
    };
    let engine = &worker.engine;
    let answer = Mutex::new(answer.map(|answer| with_age(engine, respond(answer))));
    let (slot, raw_request) = (ParkSlot::default(), Mutex::new(raw_request));
    let service = HttpService { worker: worker.clone(), peer, answer, raw_request, slot: Some(slot.clone()) };
    let mut connection = http1_builder().serve_connection(io, service);
    let mut is_stopping = false;
    // Order matters: hyper first, because only its poll can put a request into the slot.
    let ended = poll_fn(|context| {
        loop {
            if let Poll::Ready(ended) = Pin::new(&mut connection).poll(context) {
                return Poll::Ready(Some(ended));
            }
            if slot.lock().is_some() {
                return Poll::Ready(None);
            }
            // Only after the first poll: hyper drops a connection that has not read anything yet.
            if is_stopping || stopping.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            is_stopping = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
    });
    match ended.await {
        Some(Ok(())) => None,
        // Clients that vanish are normal, so this is no warning.
        Some(Err(e)) => {
            tracing::debug!("connection of {peer}: {e}");
            None
        }
        None => {
            let ParkedRequest { long_poll, keep_alive, raw_request } = slot.lock().take()?;
            let parts = connection.into_parts();
            let has_read_socket = parts.io.has_read_socket();
            let (stream, rest) = parts.io.into_parts();
            // Copied, so that hyper's buffer is not kept for the few bytes in it, mostly none.
            let read: Bytes = [parts.read_buf, rest].concat().into();
            // Only then `raw_request` holds exactly the bytes of this request: not a part of it, and nothing after it.
            if let Some(request) = raw_request.filter(|_| keep_alive && !has_read_socket && read.is_empty()) {
                worker.request_cache.lock().insert(&request, &long_poll);
            }
            Some(ParkedConnection { stream, read, long_poll, keep_alive })
        }
    }
}

/// Slot in which a waiting request leaves hyper.
type ParkSlot = Arc<Mutex<Option<ParkedRequest>>>;

/// A request that waits, and its connection's part of it.
struct ParkedRequest {
    long_poll: LongPoll,
    /// The connection stays open after the response.
    keep_alive: bool,
    /// The bytes that were read before hyper had the connection, if this is its first request. They may be a part of
    /// the request, or more than it.
    raw_request: Option<Bytes>,
}

/// Service for the requests of one connection.
struct HttpService {
    worker: Arc<ConnectionWorker>,
    peer: SocketAddr,
    /// The answer to the request that waited before hyper had the connection.
    answer: Mutex<Option<Response<ResponseBody>>>,
    /// The bytes of the first request that were read before hyper had the connection.
    raw_request: Mutex<Option<Bytes>>,
    /// `None` if the connection cannot be parked.
    slot: Option<ParkSlot>,
}

impl Service<Request<Incoming>> for HttpService {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ServiceFuture;

    fn call(&self, request: Request<Incoming>) -> ServiceFuture {
        if let Some(response) = self.answer.lock().take() {
            return ServiceFuture::Now(Some(response));
        }
        // Taken for the first request only: the later ones were read by hyper itself.
        let raw_request = self.raw_request.lock().take();
        // With two Host headers, a proxy and this server could see different hosts.
        if !has_one_host(&request) {
            let problem =
                RouteError::bad_request("an HTTP/1.1 request has one Host header (RFC 9112, section 3.2)");
            return ServiceFuture::Now(Some(respond(Problem::from(problem).answer())));
        }
        let ConnectionWorker { engine, browser_policy, .. } = &*self.worker;
        if let Err(error) = browser_policy.check(&request, &engine.cors) {
            return ServiceFuture::Now(Some(respond(Problem::from(error).answer())));
        }
        if let Some(answer) = self.prebuilt(&request) {
            return ServiceFuture::Now(Some(with_age(&self.worker.engine, respond(answer))));
        }
        let slot = self.slot.clone().filter(|_| can_be_parked(&request));
        let park = slot.map(|slot| {
            let keep_alive = is_kept_alive(&request);
            move |long_poll| *slot.lock() = Some(ParkedRequest { long_poll, keep_alive, raw_request })
        });
        let ConnectionWorker { engine, stop, .. } = &*self.worker;
        let (engine, stop) = (engine.clone(), stop.clone());
        let answer = route::answer(engine.clone(), self.peer, request, stop.clone());
        ServiceFuture::Later(Box::pin(async move {
            with_age(&engine, routed(answer, park, &engine.response_memory, stop).await)
        }))
    }
}

/// Checks that a request has exactly one Host header (RFC 9112, section 3.2).
fn has_one_host(request: &Request<Incoming>) -> bool {
    // HTTP/1.0 has no Host header, and old clients send none.
    request.version() < Version::HTTP_11 || request.headers().get_all(HOST).iter().count() == 1
}

/// Returns true if the connection can leave hyper while this request waits: no body is left to be read.
fn can_be_parked(request: &Request<Incoming>) -> bool {
    request.method() == Method::GET && request.version() == Version::HTTP_11 && request.body().is_end_stream()
}

fn is_kept_alive(request: &Request<Incoming>) -> bool {
    let options = request.headers().get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    !options.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}

/// Waits for a routed request's response. A long poll is parked instead, if that is possible.
async fn routed(
    answer: impl Future<Output = Routed>,
    park: Option<impl FnOnce(LongPoll)>,
    memory: &Arc<ResponseMemory>,
    stop: Stop,
) -> Response<ResponseBody> {
    let routed = within(memory, pin!(answer).await);
    match (routed, park) {
        // A parked poll gets the bytes of a shared response, which names no origin.
        (Routed::LongPoll(long_poll), Some(park)) if long_poll.origin.is_none() => {
            park(long_poll);
            // `serve_http` looks into the slot after each poll of hyper, and drops this future.
            std::future::pending().await
        }
        (routed, _) => routed.respond(&stop).await,
    }
}

/// Counts an answer's body while it is sent. Beyond the limit, large bodies are refused.
fn within(memory: &Arc<ResponseMemory>, routed: Routed) -> Routed {
    match routed {
        Routed::Answer(answer) if memory.refuses(&answer.body) => {
            let busy =
                RouteError::busy("too many responses wait for slow clients ([server] response_mib); retry");
            Problem::from(busy).answer().into()
        }
        Routed::Answer(answer) => Routed::Answer(Answer { body: memory.hold(answer.body), ..answer }),
        routed => routed,
    }
}

impl HttpService {
    /// The fast path: a document in memory that needs no compression.
    fn prebuilt(&self, request: &Request<Incoming>) -> Option<Answer> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        // The document may be older than the position that this client has seen.
        if request.headers().contains_key(POSITION) {
            return None;
        }
        let path = request.uri().path_and_query()?.as_str();
        let document = self.worker.engine.documents.get(path)?;
        // Routing negotiates properly, and may build the other representation.
        if !document.is_acceptable(request.headers()) {
            return None;
        }
        let mut answer = document.answer(request.headers())?;
        let cors = &self.worker.engine.cors;
        if cors.is_per_request() {
            cors.add_for(request.headers().get(ORIGIN), &mut answer.headers);
        }
        self.worker.engine.metrics.fast.inc();
        Some(answer)
    }
}

/// Adds the header that says how old the answer may be.
fn with_age(engine: &Engine, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    set_age(engine, response.headers_mut());
    response
}

/// A response that is ready, or one that is being made.
enum ServiceFuture {
    Now(Option<Response<ResponseBody>>),
    Later(Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>),
}

impl Future for ServiceFuture {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Now(response) => {
                // hyper polls no future again that was ready, so pending is never seen.
                response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)))
            }
            Self::Later(future) => future.as_mut().poll(context).map(Ok),
        }
    }
}
