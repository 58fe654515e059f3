//! The callback of a follower that is pushed to: a small server for one address.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use towpath_proto::follow::{Call, Reply};

/// The largest delivery, in bytes.
const MAX_BODY: usize = 64 << 20;
/// How many connections are served at the same time.
const CONNECTIONS: usize = 64;
/// How long a hub may take to send a request.
const PATIENCE: Duration = Duration::from_secs(30);
/// Calls that wait to be answered.
const WAITING: usize = 16;

/// The callback cannot be listened for. The user's fault, or the machine's.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} for what is pushed: {source}")]
pub struct ListenError {
    addr: SocketAddr,
    source: std::io::Error,
}

/// A call that waits for its answer.
#[derive(Debug)]
pub struct Called {
    /// What was sent.
    pub call: Call,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Reply>,
}

/// The calls that come to a follower.
#[derive(Debug)]
pub struct Calls(Option<mpsc::Receiver<Called>>);

impl Calls {
    /// None, ever.
    pub fn none() -> Self {
        Self(None)
    }

    /// Those that come through a channel.
    pub fn of(calls: mpsc::Receiver<Called>) -> Self {
        Self(Some(calls))
    }

    /// The next one. Safe to cancel.
    pub async fn next(&mut self) -> Called {
        if let Some(calls) = &mut self.0
            && let Some(called) = calls.recv().await
        {
            return called;
        }
        self.0 = None;
        std::future::pending().await
    }
}

/// Listens for calls whose query has `key` in it, until the calls are dropped. All others are told 404.
///
/// # Errors
///
/// [`ListenError`].
pub async fn listen(addr: SocketAddr, key: String) -> Result<Calls, ListenError> {
    let listener = TcpListener::bind(addr).await.map_err(|source| ListenError { addr, source })?;
    let (calls, taken) = mpsc::channel(WAITING);
    tokio::spawn(accept(listener, Arc::from(key), calls));
    Ok(Calls::of(taken))
}

async fn accept(listener: TcpListener, key: Arc<str>, calls: mpsc::Sender<Called>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = calls.closed() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (key, calls) = (key.clone(), calls.clone());
                tokio::spawn(async move {
                    serve(stream, &key, &calls).await;
                    drop(permit);
                });
            }
            Err(e) => {
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, key: &str, calls: &mpsc::Sender<Called>) {
    let answer = |request| async move {
        let reply = answer(request, key, calls).await;
        let mut response = Response::new(Full::new(reply.body));
        *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::NOT_FOUND);
        Ok::<_, Infallible>(response)
    };
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    if let Err(e) = builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await {
        tracing::debug!("a hub's connection: {e}");
    }
}

async fn answer(request: Request<Incoming>, key: &str, calls: &mpsc::Sender<Called>) -> Reply {
    let query = request.uri().query().unwrap_or_default().to_owned();
    if !query.split('&').any(|pair| pair == key) {
        return Reply::status(404);
    }
    let (parts, body) = request.into_parts();
    let body = match tokio::time::timeout(PATIENCE, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return Reply::status(413),
        Err(_) => return Reply::status(408),
    };
    hand_over(calls, Call { method: parts.method, query, headers: parts.headers, body }).await
}

/// Has a call answered by whoever takes it from the other end.
pub async fn hand_over(calls: &mpsc::Sender<Called>, call: Call) -> Reply {
    let (reply, replied) = oneshot::channel();
    let unanswered = Reply { status: 503, body: Bytes::new() };
    if calls.send(Called { call, reply }).await.is_err() {
        return unanswered;
    }
    replied.await.unwrap_or(unanswered)
}
