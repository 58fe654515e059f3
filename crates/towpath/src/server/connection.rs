//! One worker's connections: hyper's side of the server.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::body::ReplyBody;
use super::document::Answer;
use super::{Accepted, GRACE, route};
use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// How long a client may take to send a request's head.
const HEAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

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
    let stream = match tokio::net::TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(e) => return tracing::warn!("cannot serve {peer}: {e}"),
    };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).half_close(false);
    let connection = builder.serve_connection(TokioIo::new(stream), Requests { engine, peer });
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!("connection of {peer}: {e}");
    }
}

/// The requests of one connection.
struct Requests {
    engine: Arc<Engine>,
    peer: SocketAddr,
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Reply;

    fn call(&self, request: Request<Incoming>) -> Reply {
        match self.prebuilt(&request) {
            Some(answer) => Reply::Now(Some(respond(answer))),
            None => Reply::Later(Box::pin(route::answer(self.engine.clone(), self.peer, request))),
        }
    }
}

impl Requests {
    /// The fast path: a document in memory, and no body to read or compress.
    fn prebuilt(&self, request: &Request<Incoming>) -> Option<Answer> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        let path = request.uri().path_and_query()?.as_str();
        let answer = self.engine.documents.get(path)?.answer(request.headers())?;
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
