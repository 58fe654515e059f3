//! HTTP listener for a follower's callback: receives a hub's verification requests and deliveries.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use towpath_proto::follow::{Call, Reply};

/// Maximum size of a delivery, in bytes.
const MAX_BODY: usize = 64 << 20;
/// Maximum number of connections served at once.
const MAX_CONNECTIONS: usize = 64;
/// Maximum time for a hub to send a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Capacity of the queue of calls that the follower has not handled yet.
const QUEUED_CALLS: usize = 16;

/// The listener cannot be bound. The user's fault, or the machine's.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr} for the hub's callback requests: {source}")]
pub struct ListenError {
    addr: SocketAddr,
    source: std::io::Error,
}

/// A callback request that awaits its reply.
#[derive(Debug)]
pub struct PendingCall {
    /// The request.
    pub call: Call,
    /// Channel for the reply.
    pub reply: oneshot::Sender<Reply>,
}

/// Queue of callback requests for a follower.
#[derive(Debug)]
pub struct CallQueue(Option<mpsc::Receiver<PendingCall>>);

impl CallQueue {
    /// Queue that never receives a call.
    pub fn none() -> Self {
        Self(None)
    }

    /// Queue fed by a channel.
    pub fn from_channel(calls: mpsc::Receiver<PendingCall>) -> Self {
        Self(Some(calls))
    }

    /// Waits for the next call. Cancel-safe.
    pub async fn next(&mut self) -> PendingCall {
        if let Some(calls) = &mut self.0
            && let Some(call) = calls.recv().await
        {
            return call;
        }
        // A closed channel would return at once each time and spin the caller's select loop.
        self.0 = None;
        std::future::pending().await
    }
}

/// Listens for requests whose query contains the parameter `key`, until the queue is dropped. Others get 404, deliveries 410.
///
/// The unguessable `key` keeps strangers from injecting deliveries (WebSub, section 8.2).
///
/// # Errors
///
/// [`ListenError`].
pub async fn listen(addr: SocketAddr, key: String) -> Result<CallQueue, ListenError> {
    let listener = TcpListener::bind(addr).await.map_err(|source| ListenError { addr, source })?;
    let (calls, queue) = mpsc::channel(QUEUED_CALLS);
    tokio::spawn(accept(listener, Arc::from(key), calls));
    Ok(CallQueue::from_channel(queue))
}

async fn accept(listener: TcpListener, key: Arc<str>, calls: mpsc::Sender<PendingCall>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // The permit is taken before accept: beyond the limit, connections wait in the kernel's backlog.
        let Ok(permit) = slots.clone().acquire_owned().await else { return };
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
                // Out of file descriptors, most often: a pause lets some close instead of spinning here.
                tracing::warn!(error = %e, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, key: &str, calls: &mpsc::Sender<PendingCall>) {
    let respond = |request| async move {
        let reply = respond(request, key, calls).await;
        let mut response = Response::new(Full::new(reply.body));
        *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::NOT_FOUND);
        Ok::<_, Infallible>(response)
    };
    let mut builder = http1::Builder::new();
    // Without a timeout, 64 silent connections would block the callback (slowloris).
    builder.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    if let Err(e) = builder.serve_connection(TokioIo::new(stream), service_fn(respond)).await {
        tracing::debug!(error = %e, "hub connection failed");
    }
}

async fn respond(request: Request<Incoming>, key: &str, calls: &mpsc::Sender<PendingCall>) -> Reply {
    let query = request.uri().query().unwrap_or_default().to_owned();
    if !query.split('&').any(|pair| pair == key) {
        return unknown_callback(request.method());
    }
    let (parts, body) = request.into_parts();
    let body = match tokio::time::timeout(REQUEST_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return Reply::status(413),
        Err(_) => return Reply::status(408),
    };
    forward_call(calls, Call { method: parts.method, query, headers: parts.headers, body }).await
}

/// Returns the reply to a call without the key of a follower. A stranger learns nothing about the callback.
///
/// Each follower has a key of its own, so a delivery is for one before it. 410 ends its subscription (WebSub, section 7).
pub fn unknown_callback(method: &Method) -> Reply {
    Reply::status(if method == Method::POST { 410 } else { 404 })
}

/// Forwards a call to the follower and waits for its reply; 503 if the follower is gone.
pub async fn forward_call(calls: &mpsc::Sender<PendingCall>, call: Call) -> Reply {
    let (reply, replied) = oneshot::channel();
    // 503 makes the hub retry the delivery later.
    let unavailable = Reply { status: 503, body: Bytes::new() };
    if calls.send(PendingCall { call, reply }).await.is_err() {
        return unavailable;
    }
    replied.await.unwrap_or(unavailable)
}
