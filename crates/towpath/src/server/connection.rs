//! Connections of one worker: hyper's side of the server.
//!
//! A connection whose request waits for an append leaves hyper and is parked ([`long_poll`]). When hyper has to send
//! the answer to such a request, it gets the socket behind a stand-in for the request that was read before
//! ([`Rewind`]).
//!
//! [`long_poll`]: super::long_poll

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::maybe_done;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::admission::ConnectionPermit;
use super::browser_policy::BrowserPolicy;
use super::guarded_stream::{GuardedStream, RateLimits};
use super::http2;
use super::long_head::{self, RefusalFilter};
use super::long_poll::parked::{HEAD_TIMEOUT, ParkedConnection, Parker, UnparkedConnection};
use super::long_poll::rewind::Rewind;
use super::metrics::requests::RequestMetrics;
use super::response::respond;
use super::service::{ConnectionWorker, HttpService, MAX_HEAD, ParkSlot, ParkedRequest, with_age};
use super::tls::{HTTP2_PROTOCOL, TlsIdentity};
use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// Time that connections get to finish when the server stops.
// Long polls are answered at once when the server stops; this is for downloads under way.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Longest time that a client may take for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection as the acceptor hands it to a worker.
pub(super) struct Accepted {
    pub(super) stream: std::net::TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) permit: ConnectionPermit,
}

/// Serves accepted connections until the sender is dropped, then gives open ones [`GRACE`] to finish.
pub(super) async fn work(
    mut accepted: mpsc::UnboundedReceiver<Accepted>,
    engine: Arc<Engine>,
    tls: Option<Arc<TlsIdentity>>,
    stop: Stop,
) {
    let worker = new_worker(engine, tls, stop);
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
        tracing::warn!(seconds = GRACE.as_secs(), "closed the connections that did not finish in time");
    }
}

fn new_worker(engine: Arc<Engine>, tls: Option<Arc<TlsIdentity>>, stop: Stop) -> Arc<ConnectionWorker> {
    let browser_policy = BrowserPolicy::new(&engine.config);
    let limits =
        Arc::new(RateLimits { server: engine.server.clone(), memory: engine.response_memory.clone() });
    let (request_cache, requests) = (Mutex::default(), RequestMetrics::of(&engine).clone());
    Arc::new(ConnectionWorker { engine, stop, request_cache, browser_policy, requests, limits, tls })
}

/// Server of connections that are no sockets, such as streams in memory. They need no listener and no thread.
#[derive(Clone)]
pub struct StreamServer(Arc<ConnectionWorker>);

impl StreamServer {
    /// Creates a server of an engine's documents.
    pub fn new(engine: Arc<Engine>, stop: Stop) -> Self {
        Self(new_worker(engine, None, stop))
    }

    /// Serves the requests of a connection over HTTP/1.1, until it ends. Its long polls wait in hyper.
    pub async fn serve<S>(&self, stream: S, peer: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = GuardedStream::new(stream, self.0.limits.clone());
        let service = HttpService::new(self.0.clone(), peer);
        serve_unparked(stream, service, &self.0, peer).await;
    }
}

async fn serve(accepted: Accepted, worker: Arc<ConnectionWorker>) {
    // The permit lives as long as the connection.
    let Accepted { stream, peer, permit } = accepted;
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(e) => return tracing::warn!(%peer, error = %e, "cannot serve a connection"),
    };
    let stream = GuardedStream::new(stream, worker.limits.clone());
    if let Some(tls) = &worker.tls {
        return Box::pin(serve_tls(stream, tls.acceptor(), &worker, peer, permit)).await;
    }
    let mut next = UnparkedConnection::next_request(stream, Bytes::new());
    let (stopping, sleep) = (pin!(maybe_done(stopped(&worker.stop))), pin!(sleep_until(Instant::now())));
    let mut parker = Parker::new(sleep, stopping, &worker.stop, &worker.request_cache, &worker.requests);
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
    permit: ConnectionPermit,
) {
    let stream = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(e)) => return tracing::debug!(%peer, error = %e, "a TLS handshake failed"),
        Err(_) => return tracing::debug!(%peer, "a TLS handshake took too long"),
    };
    let service = HttpService::new(worker.clone(), peer);
    if stream.get_ref().1.alpn_protocol() == Some(HTTP2_PROTOCOL) {
        return http2::serve(stream, service, permit).await;
    }
    serve_unparked(stream, service, worker, peer).await;
}

/// Serves HTTP/1.1 over a stream that cannot be parked: its long polls wait in hyper.
async fn serve_unparked<S>(stream: S, service: HttpService, worker: &ConnectionWorker, peer: SocketAddr)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TokioIo::new(RefusalFilter::new(stream, 0));
    let mut connection = http1_builder().serve_connection(stream, service);
    let ended = tokio::select! {
        // First: hyper drops a connection that is shut down before it was polled.
        biased;
        ended = &mut connection => ended,
        () = stopped(&worker.stop) => {
            Pin::new(&mut connection).graceful_shutdown();
            (&mut connection).await
        }
    };
    if let Err(e) = ended {
        tracing::debug!(%peer, error = %e, "a connection failed");
        let parts = connection.into_parts();
        let filter = parts.io.into_inner();
        if let Some(fault) = filter.refused() {
            let stream = filter.into_inner();
            long_head::refuse(stream, &parts.read_buf, (fault, &e), &worker.engine, peer).await;
        }
    }
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    // No half-close: a client that has closed its side is gone, and its long poll must not hold a place.
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
    let UnparkedConnection { stream, answer, access, read, keep_alive } = connection;
    let (io, raw_request) = match &answer {
        Some(_) => (Rewind::after_request(stream, keep_alive, &read), None),
        None => (Rewind::new(stream, read.clone()), Some(read)),
    };
    let engine = &worker.engine;
    let answer = answer.map(|answer| with_age(engine, respond(answer)));
    let slot = ParkSlot::default();
    let service = HttpService::new(worker.clone(), peer).resumed(answer, access, raw_request, slot.clone());
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
            tracing::debug!(%peer, error = %e, "a connection failed");
            let parts = connection.into_parts();
            if let Some(fault) = parts.io.refused() {
                let (stream, _) = parts.io.into_parts();
                long_head::refuse(stream, &parts.read_buf, (fault, &e), engine, peer).await;
            }
            None
        }
        None => {
            let parked = slot.lock().take()?;
            let parts = connection.into_parts();
            Some(park(parts.io, parts.read_buf, parked, worker))
        }
    }
}

/// Takes a connection out of hyper, with the bytes after the request that were read.
fn park(io: Rewind, read_buf: Bytes, request: ParkedRequest, worker: &ConnectionWorker) -> ParkedConnection {
    let ParkedRequest { long_poll, keep_alive, raw_request, access } = request;
    let has_read_socket = io.has_read_socket();
    let (stream, rest) = io.into_parts();
    // Copied, so that hyper's buffer is not kept for the few bytes in it, mostly none.
    let read: Bytes = [read_buf, rest].concat().into();
    // Only then `raw_request` holds exactly the bytes of this request: not a part of it, and nothing after it.
    if let Some(request) = raw_request.filter(|_| keep_alive && !has_read_socket && read.is_empty()) {
        worker.request_cache.lock().insert(&request, &long_poll);
    }
    ParkedConnection { stream, read, long_poll, keep_alive, access }
}
