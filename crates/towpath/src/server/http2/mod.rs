//! HTTP/2 over TLS, for clients that choose it (ALPN). Plain connections and HTTP/1.1 never come here.
//!
//! HTTP/2 has a flow control of its own: a client can ask for a body and give no window for it, so that no socket
//! waits. Therefore each stream has an account of its waits ([`paced`]), by the same limits as a socket.

mod account;
mod paced;
mod streams;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::HOST;
use http::{HeaderValue, Method, Request, Response, Uri};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http2::Builder;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};

use self::paced::PacedBody;
use self::streams::{ConnectionStreams, StreamExecutor};
use super::admission::{ConnectionPermit, StreamPermit};
use super::long_head;
use super::long_poll::parked::HEAD_TIMEOUT;
use super::problem::Problem;
use super::response::{ResponseBody, respond};
use super::service::{HttpService, MAX_HEAD, ServiceFuture};
use crate::document::route_error::RouteError;
use crate::stop::stopped;

/// Most requests that one connection may have open.
// RFC 9113, section 6.5.2 recommends no less than 100.
const MAX_STREAMS: u32 = 100;
/// Bytes of all request bodies that a connection may send before they are read, and of one.
// Uploads are read at once or refused at once. So this is not held for long, and only limits how fast they are.
const WINDOW: u32 = 1 << 20;
const STREAM_WINDOW: u32 = 256 << 10;
/// Bytes of one response that may wait for the socket. The rest stays a shared body.
const SEND_BUFFER: usize = 64 << 10;
/// Length from which a body counts as memory of responses: a stream without a window holds it, however small.
const MIN_HELD: usize = 1 << 10;
/// Interval of asking whether a client is still there, while its requests wait.
const PING_INTERVAL: Duration = Duration::from_secs(60);
/// Time that a client has to answer that question, or to close an idle connection.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves the requests of a TLS connection.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    service: HttpService,
    permit: ConnectionPermit,
) {
    let (worker, peer) = (service.worker.clone(), service.peer);
    let streams = Arc::new(ConnectionStreams::new(worker.limits.clone()));
    let service = Http2Service { inner: service.holding_from(MIN_HELD), permit };
    let builder = builder(StreamExecutor(streams.clone()));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stopping = pin!(stopped(&worker.stop));
    let (mut is_closing, mut look) = (false, Instant::now() + HEAD_TIMEOUT);
    loop {
        tokio::select! {
            // First: hyper drops a connection that is shut down before it was polled.
            biased;
            ended = connection.as_mut() => {
                if let Err(e) = ended {
                    tracing::debug!(%peer, error = %e, "a connection failed");
                }
                return;
            }
            () = &mut stopping, if !is_closing => {
                is_closing = true;
                look = Instant::now() + PING_TIMEOUT;
                connection.as_mut().graceful_shutdown();
            }
            // At once, without GOAWAY: a client that does this ignores it, and each further reset costs work.
            () = streams.too_many_cancelled() => {
                return tracing::debug!(%peer, "closed a connection: too many requests were cancelled");
            }
            () = sleep_until(look) => match streams.next_check(HEAD_TIMEOUT) {
                Some(next) => look = next,
                // The client was asked to close, and does not.
                None if is_closing => return,
                None => {
                    is_closing = true;
                    look = Instant::now() + PING_TIMEOUT;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

fn builder(executor: StreamExecutor) -> Builder<StreamExecutor> {
    let mut builder = Builder::new(executor);
    builder.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    builder.max_concurrent_streams(MAX_STREAMS).max_send_buf_size(SEND_BUFFER);
    builder.initial_connection_window_size(WINDOW).initial_stream_window_size(STREAM_WINDOW);
    // Twice the limit: h2 refuses longer heads without a body, and a little too long is what happens to people.
    // The cast is lossless: a few KiB.
    builder.max_header_list_size(2 * MAX_HEAD as u32);
    // Rapid reset (CVE-2023-44487, RUSTSEC-2024-0003): requests that end before they were looked at, and own resets.
    builder.max_pending_accept_reset_streams(20).max_local_error_reset_streams(100);
    builder
}

/// Service for the requests of one HTTP/2 connection.
struct Http2Service {
    inner: HttpService,
    permit: ConnectionPermit,
}

impl Service<Request<Incoming>> for Http2Service {
    type Response = Response<PacedBody>;
    type Error = std::convert::Infallible;
    type Future = StreamResponse;

    fn call(&self, request: Request<Incoming>) -> StreamResponse {
        let refused = |error: RouteError| StreamResponse {
            inner: ServiceFuture::ready(respond(Problem::from(error).response())),
            permit: None,
        };
        let permit = match self.permit.admit_stream() {
            Ok(permit) => permit,
            Err(error) => return refused(RouteError::busy(error.to_string())),
        };
        // h2 lets twice as much through (see `builder`), so that this can answer with a reason.
        if is_long(&request) {
            let answer =
                long_head::respond_with_refusal(self.inner.worker.engine.clone(), self.inner.peer, &request);
            return StreamResponse { inner: ServiceFuture::ready(respond(answer)), permit: None };
        }
        match as_http1(request) {
            Ok(request) => StreamResponse { inner: self.inner.call(request), permit: Some(permit) },
            Err(error) => refused(error),
        }
    }
}

/// Returns true if a request's head is longer than one of HTTP/1.1 may be.
fn is_long<B>(request: &Request<B>) -> bool {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    path + fields.sum::<usize>() > MAX_HEAD
}

/// Gives a request the form that it would have over HTTP/1.1, so that every check sees the same host.
fn as_http1<B: Body>(mut request: Request<B>) -> Result<Request<B>, RouteError> {
    let bad = |reason: &str| RouteError::bad_request(format!("{reason} (RFC 9113, section 8.3.1)"));
    // There is no tunnel here, and CONNECT has no `:path` to go by.
    if request.method() == Method::CONNECT {
        return Err(RouteError::method("GET, HEAD, OPTIONS"));
    }
    // Its bytes would stay in memory as long as the request waits.
    if matches!(*request.method(), Method::GET | Method::HEAD) && !request.body().is_end_stream() {
        return Err(RouteError::bad_request("a GET or HEAD request over HTTP/2 has no body here"));
    }
    if let Some(authority) = request.uri().authority() {
        let authority = authority.as_str();
        if authority.contains('@') {
            return Err(bad("an :authority has no user name"));
        }
        // A proxy may have checked the one, and the DNS rebinding check would see the other.
        if request.headers().get_all(HOST).iter().any(|host| host.as_bytes() != authority.as_bytes()) {
            return Err(bad("Host and :authority name different hosts"));
        }
        // The characters of an authority are those of a header value.
        let host = HeaderValue::from_str(authority).map_err(|_| bad("the :authority is malformed"))?;
        request.headers_mut().insert(HOST, host);
    } else if request.headers().get_all(HOST).iter().count() != 1 {
        return Err(bad("a request has an :authority or one Host header"));
    }
    let path = request.uri().path_and_query().cloned().ok_or_else(|| bad("a request has a :path"))?;
    // Origin form, as over HTTP/1.1: caches and routes go by it.
    *request.uri_mut() = Uri::from(path);
    Ok(request)
}

/// Response to a request, with a body that is paced.
struct StreamResponse {
    inner: ServiceFuture,
    permit: Option<StreamPermit>,
}

impl Future for StreamResponse {
    type Output = Result<Response<PacedBody>, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let response = std::task::ready!(Pin::new(&mut self.inner).poll(context))?;
        // The body holds it until the response was sent: a response that waits for its client is what the limit
        // counts.
        let permit = self.permit.take();
        Poll::Ready(Ok(response.map(|body: ResponseBody| PacedBody::new(body, permit))))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Empty, Full};

    use super::*;

    fn host(uri: &str, headers: &[&'static str]) -> Result<String, RouteError> {
        let mut request = Request::builder().uri(uri);
        for host in headers {
            request = request.header(HOST, *host);
        }
        let request = as_http1(request.body(Empty::<Bytes>::new()).unwrap())?;
        assert_eq!(request.uri(), "/feeds?x=1");
        assert_eq!(request.headers().get_all(HOST).iter().count(), 1);
        Ok(request.headers()[HOST].to_str().unwrap().to_owned())
    }

    #[test]
    fn every_check_sees_the_authority() {
        assert_eq!(host("https://evil.example/feeds?x=1", &[]).unwrap(), "evil.example");
        assert_eq!(host("https://a:1/feeds?x=1", &["a:1"]).unwrap(), "a:1");
        assert_eq!(host("/feeds?x=1", &["a"]).unwrap(), "a");
        for (uri, hosts) in [
            ("https://evil.example/feeds?x=1", &["localhost"][..]),
            ("https://a/feeds?x=1", &["a", "b"]),
            ("/feeds?x=1", &["a", "b"]),
            ("/feeds?x=1", &[]),
            ("https://localhost@evil/feeds?x=1", &[]),
        ] {
            assert!(host(uri, hosts).is_err(), "{uri} {hosts:?}");
        }
    }

    #[test]
    fn a_waiting_request_holds_no_body() {
        let request = |method: Method| {
            let request = Request::builder().method(method).uri("https://a/x");
            as_http1(request.body(Full::new(Bytes::from_static(b"x"))).unwrap())
        };
        assert!(request(Method::GET).is_err() && request(Method::HEAD).is_err());
        assert!(request(Method::PUT).is_ok());
        let connect = Request::builder().method(Method::CONNECT).uri("a:1").body(Empty::<Bytes>::new());
        assert!(as_http1(connect.unwrap()).is_err());
    }
}
