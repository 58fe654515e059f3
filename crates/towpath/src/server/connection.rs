//! One worker's connections: hyper's side of the server.
//!
//! A connection whose request waits for a feed to move is taken back from hyper, with its buffers and all: what
//! is left is the socket and the waiting ([`Held`]). The answer of all who waited alike is written once and sent
//! to each as it is, and those who ask for the next one in the same words wait again without hyper ([`crowd`]). Any
//! other answer hyper sends: it gets the socket again, behind a request line that stands for the one that was read
//! before ([`Resumed`]).
//!
//! [`crowd`]: super::crowd

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::maybe_done;
use http::header::{CONNECTION, HOST};
use http::{Method, Request, Response, Version};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::body::ReplyBody;
use super::crowd::Patience;
use super::document::Answer;
use super::problem::Problem;
use super::rearm::Rearms;
use super::resumed::Resumed;
use super::route::{self, Routed};
use super::smart::Held;
use super::{Accepted, GRACE, replica};
use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// How long a client may take to send a request's head.
pub(super) const HEAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// What the connections of one worker share.
struct Worker {
    engine: Arc<Engine>,
    stop: Stop,
    rearms: Mutex<Rearms>,
}

/// Serves what arrives until the sender is gone, then gives open connections [`GRACE`] to finish.
pub(super) async fn work(mut accepted: mpsc::UnboundedReceiver<Accepted>, engine: Arc<Engine>, stop: Stop) {
    let worker = Arc::new(Worker { engine, stop, rearms: Mutex::default() });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            next = accepted.recv() => match next {
                Some((stream, peer)) => drop(connections.spawn(serve(stream, peer, worker.clone()))),
                None => break,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, finished).await.is_err() {
        tracing::warn!("some connections did not finish in time");
    }
}

async fn serve(stream: std::net::TcpStream, peer: SocketAddr, worker: Arc<Worker>) {
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(e) => return tracing::warn!("cannot serve {peer}: {e}"),
    };
    let mut next = Exchange::request(stream, Bytes::new());
    let (stopping, sleep) = (pin!(maybe_done(stopped(&worker.stop))), pin!(sleep_until(Instant::now())));
    let mut patience = Patience::new(sleep, stopping, &worker.stop, &worker.rearms);
    // What the exchange takes is on the heap, and gone while the connection waits.
    while let Some(waiting) = Box::pin(next.run(&worker, peer, patience.stopping.as_mut())).await {
        match patience.wait(waiting).await {
            Some(exchange) => next = exchange,
            None => return,
        }
    }
}

/// A connection to be handed to hyper.
pub(super) struct Exchange {
    stream: TcpStream,
    /// The answer to the request that was read before.
    answer: Option<Answer>,
    /// What was read behind that request, or of the next one.
    read: Bytes,
    /// Whether the client wants to go on after the answer.
    keep_alive: bool,
}

/// A connection taken back from hyper, because its request waits.
pub(super) struct Waiting {
    pub(super) stream: TcpStream,
    pub(super) read: Bytes,
    pub(super) held: Held,
    pub(super) keep_alive: bool,
}

impl Exchange {
    /// A request is to come, or what is left of it.
    pub(super) fn request(stream: TcpStream, read: Bytes) -> Self {
        Self { stream, answer: None, read, keep_alive: true }
    }

    /// A request was read, and this is its answer.
    pub(super) fn answer(stream: TcpStream, answer: Answer, read: Bytes, keep_alive: bool) -> Self {
        Self { stream, answer: Some(answer), read, keep_alive }
    }

    /// Serves requests until one waits, or the connection ends.
    async fn run(
        self,
        worker: &Arc<Worker>,
        peer: SocketAddr,
        mut stopping: Pin<&mut impl Future<Output = ()>>,
    ) -> Option<Waiting> {
        let Self { stream, answer, read, keep_alive } = self;
        let (io, request) = match &answer {
            Some(_) => (Resumed::after_request(stream, keep_alive, &read), None),
            None => (Resumed::new(stream, read.clone()), Some(read)),
        };
        let engine = &worker.engine;
        let answer = Mutex::new(answer.map(|answer| aged(engine, respond(answer))));
        let (parked, request) = (Parked::default(), Mutex::new(request));
        let requests = Requests { worker: worker.clone(), peer, answer, request, parked: parked.clone() };
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).half_close(false);
        let mut connection = builder.serve_connection(io, requests);
        let mut is_stopping = false;
        let ended = poll_fn(|context| {
            loop {
                if let Poll::Ready(ended) = Pin::new(&mut connection).poll(context) {
                    return Poll::Ready(Some(ended));
                }
                if parked.lock().is_some() {
                    return Poll::Ready(None);
                }
                // Asked only after the first poll: hyper drops a connection that has not read anything yet.
                if is_stopping || stopping.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                is_stopping = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        });
        match ended.await {
            Some(Ok(())) => None,
            Some(Err(e)) => {
                tracing::debug!("connection of {peer}: {e}");
                None
            }
            None => {
                let Park { held, keep_alive, request } = parked.lock().take()?;
                let parts = connection.into_parts();
                let has_read_on = parts.io.has_read_on();
                let (stream, rest) = parts.io.into_parts();
                // Copied, so that hyper's buffer is not kept for the few bytes in it, mostly none.
                let read: Bytes = [parts.read_buf, rest].concat().into();
                if let Some(request) = request.filter(|_| keep_alive && !has_read_on && read.is_empty()) {
                    worker.rearms.lock().remember(&request, &held);
                }
                Some(Waiting { stream, read, held, keep_alive })
            }
        }
    }
}

/// Where a request that waits is put.
type Parked = Arc<Mutex<Option<Park>>>;

/// A request that waits.
struct Park {
    held: Held,
    /// Whether its connection goes on after it.
    keep_alive: bool,
    /// What was read before hyper had the connection, if this is its first request: all of it or some, or more.
    request: Option<Bytes>,
}

/// The requests of one connection.
struct Requests {
    worker: Arc<Worker>,
    peer: SocketAddr,
    /// The answer to a request that waited before hyper had the connection.
    answer: Mutex<Option<Response<ReplyBody>>>,
    /// What was read before of the first request.
    request: Mutex<Option<Bytes>>,
    parked: Parked,
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Reply;

    fn call(&self, request: Request<Incoming>) -> Reply {
        if let Some(response) = self.answer.lock().take() {
            return Reply::Now(Some(response));
        }
        let read = self.request.lock().take();
        if !has_one_host(&request) {
            let problem =
                Problem::bad_request("an HTTP/1.1 request has one Host header (RFC 9112, section 3.2)");
            return Reply::Now(Some(respond(problem.answer())));
        }
        if let Some(answer) = self.prebuilt(&request) {
            return Reply::Now(Some(aged(&self.worker.engine, respond(answer))));
        }
        let parking = can_be_parked(&request).then(|| Parking {
            parked: self.parked.clone(),
            keep_alive: is_kept_alive(&request),
            request: read,
        });
        let Worker { engine, stop, .. } = &*self.worker;
        let (engine, stop) = (engine.clone(), stop.clone());
        let answer = route::answer(engine.clone(), self.peer, request, stop.clone());
        Reply::Later(Box::pin(async move { aged(&engine, later(answer, parking, stop).await) }))
    }
}

/// RFC 9112, section 3.2: one that has none, or two, is refused.
fn has_one_host(request: &Request<Incoming>) -> bool {
    request.version() < Version::HTTP_11 || request.headers().get_all(HOST).iter().count() == 1
}

/// How a request is put where those are that wait.
struct Parking {
    parked: Parked,
    keep_alive: bool,
    request: Option<Bytes>,
}

/// Whether a connection can be taken from hyper while this request waits: nothing of it is left to be read.
fn can_be_parked(request: &Request<Incoming>) -> bool {
    request.method() == Method::GET && request.version() == Version::HTTP_11 && request.body().is_end_stream()
}

fn is_kept_alive(request: &Request<Incoming>) -> bool {
    let options = request.headers().get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    !options.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}

async fn later(
    answer: impl Future<Output = Routed>,
    parking: Option<Parking>,
    stop: Stop,
) -> Response<ReplyBody> {
    match (pin!(answer).await, parking) {
        (Routed::Held(held), Some(Parking { parked, keep_alive, request })) => {
            *parked.lock() = Some(Park { held, keep_alive, request });
            // Whoever polls hyper looks there next, and drops this.
            std::future::pending().await
        }
        (routed, _) => routed.respond(&stop).await,
    }
}

impl Requests {
    /// The fast path: a document in memory, and no body to read or compress.
    fn prebuilt(&self, request: &Request<Incoming>) -> Option<Answer> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        if request.headers().contains_key(replica::POSITION) {
            return None;
        }
        let path = request.uri().path_and_query()?.as_str();
        let document = self.worker.engine.documents.get(path)?;
        if !document.is_acceptable(request.headers()) {
            return None;
        }
        let answer = document.answer(request.headers())?;
        self.worker.engine.metrics.fast.inc();
        Some(answer)
    }
}

/// An answer as hyper wants it.
pub(super) fn respond(answer: Answer) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::from(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
}

/// The same, saying how old it may be.
fn aged(engine: &Engine, mut response: Response<ReplyBody>) -> Response<ReplyBody> {
    replica::say_age(engine, response.headers_mut());
    response
}

/// An answer that is there already, or one that is being made.
enum Reply {
    Now(Option<Response<ReplyBody>>),
    Later(Pin<Box<dyn Future<Output = Response<ReplyBody>> + Send>>),
}

impl Future for Reply {
    type Output = Result<Response<ReplyBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Now(response) => {
                response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)))
            }
            Self::Later(future) => future.as_mut().poll(context).map(Ok),
        }
    }
}
