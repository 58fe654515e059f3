//! One worker's connections: hyper's side of the server.
//!
//! A connection whose request waits for a feed to move is taken back from hyper, with its buffers and all: what
//! is left is the socket and the waiting ([`Held`]). The answer of all who waited alike is written once and sent
//! to each as it is ([`crowd`]). Any other answer hyper sends: it gets the socket again, behind a request line
//! that stands for the one that was read before ([`Resumed`]).

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONNECTION;
use http::{Method, Request, Response, Version};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::body::ReplyBody;
use super::document::Answer;
use super::resumed::Resumed;
use super::route::{self, Routed};
use super::smart::{Held, HeldAnswer};
use super::{Accepted, GRACE, crowd};
use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// How long a client may take to send a request's head.
pub(super) const HEAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// Serves what arrives until the sender is gone, then gives open connections [`GRACE`] to finish.
pub(super) async fn work(mut accepted: mpsc::UnboundedReceiver<Accepted>, engine: Arc<Engine>, stop: Stop) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            next = accepted.recv() => match next {
                Some((stream, peer)) => drop(connections.spawn(serve(stream, peer, engine.clone(), stop.clone()))),
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

async fn serve(stream: std::net::TcpStream, peer: SocketAddr, engine: Arc<Engine>, stop: Stop) {
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(e) => return tracing::warn!("cannot serve {peer}: {e}"),
    };
    let mut next = Exchange::first(stream);
    // What the exchange takes is on the heap, and gone while the connection waits.
    while let Some(waiting) = Box::pin(next.run(&engine, peer, &stop)).await {
        let Waiting { stream, read, held, keep_alive } = waiting;
        let answer = tokio::select! {
            biased;
            answer = held.answer(&stop) => answer,
            () = hung_up(&stream) => return,
        };
        next = match answer {
            HeldAnswer::Everybodys(told) if keep_alive && read.is_empty() => {
                match crowd::send(stream, &told, &stop).await {
                    Some(stream) => Exchange::first(stream),
                    None => return,
                }
            }
            answer => Exchange { stream, answer: Some(answer.into_answer()), read, keep_alive },
        };
    }
}

/// Returns once the client is gone. One that has sent its next request already is not known to be, until it is
/// answered.
async fn hung_up(stream: &TcpStream) {
    if let Ok(1..) = stream.peek(&mut [0]).await {
        std::future::pending::<()>().await;
    }
}

/// A connection to be handed to hyper.
struct Exchange {
    stream: TcpStream,
    /// The answer to the request that was read before.
    answer: Option<Answer>,
    /// What was read behind that request.
    read: Bytes,
    /// Whether the client wants to go on after the answer.
    keep_alive: bool,
}

/// A connection taken back from hyper, because its request waits.
struct Waiting {
    stream: TcpStream,
    read: Bytes,
    held: Held,
    keep_alive: bool,
}

impl Exchange {
    fn first(stream: TcpStream) -> Self {
        Self { stream, answer: None, read: Bytes::new(), keep_alive: true }
    }

    /// Serves requests until one waits, or the connection ends.
    async fn run(self, engine: &Arc<Engine>, peer: SocketAddr, stop: &Stop) -> Option<Waiting> {
        let Self { stream, answer, read, keep_alive } = self;
        let io = match &answer {
            Some(_) => Resumed::after_request(stream, keep_alive, &read),
            None => Resumed::new(stream),
        };
        let parked = Parked::default();
        let answer = Mutex::new(answer.map(respond));
        let requests =
            Requests { engine: engine.clone(), peer, stop: stop.clone(), answer, parked: parked.clone() };
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).half_close(false);
        let mut connection = builder.serve_connection(io, requests);
        let mut stopping = Some(Box::pin(stopped(stop)));
        let ended = poll_fn(|context| {
            loop {
                if let Poll::Ready(ended) = Pin::new(&mut connection).poll(context) {
                    return Poll::Ready(Some(ended));
                }
                if parked.lock().is_some() {
                    return Poll::Ready(None);
                }
                // Asked only after the first poll: hyper drops a connection that has not read anything yet.
                match stopping.as_mut().map(|stopping| stopping.as_mut().poll(context)) {
                    Some(Poll::Ready(())) => stopping = None,
                    _ => return Poll::Pending,
                }
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
                let (held, keep_alive) = parked.lock().take()?;
                let parts = connection.into_parts();
                let (stream, rest) = parts.io.into_parts();
                // Copied, so that hyper's buffer is not kept for the few bytes in it, mostly none.
                let read = [parts.read_buf, rest].concat().into();
                Some(Waiting { stream, read, held, keep_alive })
            }
        }
    }
}

/// Where a request that waits is put, and whether its connection goes on after it.
type Parked = Arc<Mutex<Option<(Held, bool)>>>;

/// The requests of one connection.
struct Requests {
    engine: Arc<Engine>,
    peer: SocketAddr,
    stop: Stop,
    /// The answer to a request that waited before hyper had the connection.
    answer: Mutex<Option<Response<ReplyBody>>>,
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
        if let Some(answer) = self.prebuilt(&request) {
            return Reply::Now(Some(respond(answer)));
        }
        let parked = can_be_parked(&request).then(|| (self.parked.clone(), is_kept_alive(&request)));
        let answer = route::answer(self.engine.clone(), self.peer, request, self.stop.clone());
        Reply::Later(Box::pin(later(answer, parked, self.stop.clone())))
    }
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
    parked: Option<(Parked, bool)>,
    stop: Stop,
) -> Response<ReplyBody> {
    match (pin!(answer).await, parked) {
        (Routed::Held(held), Some((parked, keep_alive))) => {
            *parked.lock() = Some((held, keep_alive));
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
        let path = request.uri().path_and_query()?.as_str();
        let document = self.engine.documents.get(path)?;
        if !document.is_acceptable(request.headers()) {
            return None;
        }
        let answer = document.answer(request.headers())?;
        self.engine.metrics.fast.inc();
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
