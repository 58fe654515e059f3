//! Parked connections: woken, answered and parked again without hyper.
//!
//! Ten thousand clients that wait for one feed are answered at once, and ask again at once. hyper would make its
//! buffers, parse the same request and make the same head for each of them. Here each client costs one write of the
//! shared bytes and one read of a cached request ([`super::request_cache`]). Anything else is left to hyper, together
//! with the bytes that were read.

use std::future::{Future, poll_fn};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use parking_lot::Mutex;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::poll::LongPoll;
use super::request_cache::{MAX_REQUEST, RequestCache};
use super::timer::ResettableTimer;
use crate::document::prebuilt::Answer;
use crate::protocols::smart::SharedResponse;
use crate::server::access_log::{AccessRecord, ResponseTiming};
use crate::server::guarded_stream::GuardedStream;
use crate::server::metrics::requests::{RequestMetrics, Route};
use crate::stop::Stop;

/// Longest time that a client may take to send a request's head, also the first byte of it.
// Against slow-header attacks (Slowloris), and idle connections that would hold a descriptor each.
pub(in crate::server) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Socket of a client.
pub(in crate::server) type ClientStream = GuardedStream<TcpStream>;

/// A connection taken back from hyper, because its request waits.
pub(in crate::server) struct ParkedConnection {
    pub(in crate::server) stream: ClientStream,
    /// The bytes that hyper read after the request.
    pub(in crate::server) read: Bytes,
    pub(in crate::server) long_poll: LongPoll,
    pub(in crate::server) keep_alive: bool,
    /// Record of the request, where requests are logged.
    pub(in crate::server) access: Option<Box<AccessRecord>>,
}

/// A connection to be handed to hyper.
pub(in crate::server) struct UnparkedConnection {
    pub(in crate::server) stream: ClientStream,
    /// The answer to the request that was parsed before, if there was one.
    pub(in crate::server) answer: Option<Answer>,
    /// Record of that request, where requests are logged.
    pub(in crate::server) access: Option<Box<AccessRecord>>,
    /// The bytes that were read after that request, or of the next one.
    pub(in crate::server) read: Bytes,
    /// The client keeps the connection open after the answer.
    pub(in crate::server) keep_alive: bool,
}

impl UnparkedConnection {
    /// A connection on which hyper reads a request, beginning with `read`.
    pub(in crate::server) fn next_request(stream: ClientStream, read: Bytes) -> Self {
        Self { stream, answer: None, access: None, read, keep_alive: true }
    }
}

/// Parks one connection again and again, with a timer and a stop signal that are set up once.
pub(in crate::server) struct Parker<'a, S> {
    timer: ResettableTimer<'a>,
    /// Ready once the server stops, and ready again whenever it is polled after that.
    pub(in crate::server) stopping: Pin<&'a mut S>,
    stop: &'a Stop,
    /// The waker that the timer and the stop signal hold.
    registered: Option<Waker>,
    cache: &'a Mutex<RequestCache>,
    requests: &'a RequestMetrics,
}

/// Event that ends a long poll.
enum PollEvent {
    Response(Arc<SharedResponse>),
    /// The deadline passed, or the server stops.
    Timeout,
    Disconnected,
}

/// Bytes that a client sends after its response.
enum NextRequest {
    Cached(LongPoll, Option<Box<AccessRecord>>),
    Uncached(Bytes),
}

impl<'a, S: Future<Output = ()>> Parker<'a, S> {
    pub(in crate::server) fn new(
        sleep: Pin<&'a mut Sleep>,
        stopping: Pin<&'a mut S>,
        stop: &'a Stop,
        cache: &'a Mutex<RequestCache>,
        requests: &'a RequestMetrics,
    ) -> Self {
        Self { timer: ResettableTimer::new(sleep), stopping, stop, registered: None, cache, requests }
    }

    /// Answers a long poll, and parks the connection again for each cached request. Returns the connection when hyper
    /// has to go on with it; `None` when it is closed.
    pub(in crate::server) async fn park(&mut self, parked: ParkedConnection) -> Option<UnparkedConnection> {
        let ParkedConnection { mut stream, read, mut long_poll, keep_alive, mut access } = parked;
        loop {
            let response = match self.poll_event(&mut stream, &long_poll).await {
                PollEvent::Response(response) => response,
                PollEvent::Timeout => {
                    let answer = Some(long_poll.respond_now().await);
                    return Some(UnparkedConnection { stream, answer, access, read, keep_alive });
                }
                PollEvent::Disconnected => return None,
            };
            // The client asks again with its token, and learns that it was withdrawn.
            if !long_poll.is_still_allowed() {
                return None;
            }
            if let Some(error) = &response.error {
                let answer = Some(long_poll.error_response(error));
                return Some(UnparkedConnection { stream, answer, access, read, keep_alive });
            }
            long_poll.request.engine.metrics.deliveries.long_polls.inc();
            // Leaves the registry before the write, which takes as long as the client lets it.
            drop(long_poll);
            // hyper pipelines the requests that are read already, and closes a connection that is not kept.
            if !keep_alive || !read.is_empty() {
                let answer = Some(response.answer());
                return Some(UnparkedConnection { stream, answer, access, read, keep_alive });
            }
            // A client that does not read is cut by the stream itself.
            response.write_http1(&mut stream).await.ok()?;
            // Shared responses are pages: timeouts and errors go by hyper.
            self.requests.count(Route::ITEMS, StatusCode::OK);
            if let Some(access) = &mut access {
                access.record_response(StatusCode::OK.as_u16(), ResponseTiming::AfterWait);
                access.add_bytes(response.body.len());
            }
            // An idle connection must not keep the response's body alive.
            drop(response);
            match self.next_request(&mut stream, access).await? {
                NextRequest::Cached(again, next) => (long_poll, access) = (again, next),
                NextRequest::Uncached(read) => return Some(UnparkedConnection::next_request(stream, read)),
            }
        }
    }

    async fn poll_event(&mut self, stream: &mut ClientStream, long_poll: &LongPoll) -> PollEvent {
        // One timer per connection, set again: making one for each poll would cost more than the poll.
        self.timer.set(long_poll.deadline());
        let mut has_next_request = false;
        poll_fn(|context| {
            // Before the socket: a client that has left still costs less than a look at every socket after each
            // append.
            if let Poll::Ready(response) = long_poll.poll_shared(context) {
                return Poll::Ready(PollEvent::Response(response));
            }
            // A peek shows either the end of the stream or the next request, not both: a client that has sent its next
            // request already is found to be gone only when it is answered.
            if !has_next_request
                && let Poll::Ready(peeked) = stream.get_ref().poll_peek(context, &mut ReadBuf::new(&mut [0]))
            {
                match peeked {
                    Ok(1..) => has_next_request = true,
                    // A client that closes its sending side counts as gone: most programs close both at once.
                    Ok(0) | Err(_) => return Poll::Ready(PollEvent::Disconnected),
                }
            }
            self.poll_timeout(context).map(|()| PollEvent::Timeout)
        })
        .await
    }

    /// Reads the next request of a connection, whose last one has this record.
    async fn next_request(
        &mut self,
        stream: &mut ClientStream,
        mut last: Option<Box<AccessRecord>>,
    ) -> Option<NextRequest> {
        if let Some(last) = &mut last {
            last.finish();
        }
        self.timer.set(Instant::now() + HEAD_TIMEOUT);
        poll_fn(|context| {
            // On the stack: a buffer in the future would be part of every idle connection.
            let mut buffer = [const { MaybeUninit::uninit() }; MAX_REQUEST];
            let mut buffer = ReadBuf::uninit(&mut buffer);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    // A request in two packets is not found, and hyper reads the rest of it.
                    Poll::Ready(Some(self.look_up(buffer.filled(), last.as_deref())))
                }
                // The end of the stream or an error: between requests, a client may leave without a word.
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => self.poll_timeout(context).map(|()| None),
            }
        })
        .await
    }

    fn look_up(&self, request: &[u8], last: Option<&AccessRecord>) -> NextRequest {
        let poll = self.cache.lock().join(request);
        // Copied only now: for a cached request the buffer on the stack suffices.
        let uncached = || NextRequest::Uncached(Bytes::copy_from_slice(request));
        let Some(poll) = poll else { return uncached() };
        match (last, poll.request.engine.logs_requests()) {
            (Some(last), true) => {
                let next = last.next_long_poll(&poll.request.engine, request);
                NextRequest::Cached(poll, next)
            }
            // A reload began the log. hyper parses the request, for a record with the client's address.
            (None, true) => uncached(),
            (_, false) => NextRequest::Cached(poll, None),
        }
    }

    /// Polls the timer and the stop signal.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let is_registered = self.registered.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        // Mostly neither has happened when a connection is polled; that is cheap to see, polling both is not.
        if is_registered && self.timer.is_registered() && matches!(self.stop.has_changed(), Ok(false)) {
            return Poll::Pending;
        }
        if self.timer.poll(context).is_ready() || self.stopping.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !is_registered {
            // Only now: both futures have taken this waker in the polls above.
            self.registered = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use futures_util::future::maybe_done;
    use tokio::io::AsyncWriteExt as _;
    use tokio::sync::watch;
    use tokio::time::{sleep, timeout};

    use crate::document::response_memory::ResponseMemory;
    use crate::server::guarded_stream::RateLimits;
    use crate::stop::stopped;

    use super::*;

    /// Returns the client's socket and the server's.
    async fn connect() -> (TcpStream, ClientStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = listener.accept().await.unwrap().0;
        (client, GuardedStream::new(stream, RateLimits::with_memory(ResponseMemory::new(1 << 20))))
    }

    fn uncached(next: Option<NextRequest>) -> Option<Bytes> {
        match next? {
            NextRequest::Uncached(read) => Some(read),
            NextRequest::Cached(..) => panic!("nothing is cached"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_without_a_next_request_is_disconnected_after_the_timeout() {
        let (_client, mut stream) = connect().await;
        let (sleep, stopping) = (pin!(sleep(Duration::ZERO)), pin!(pending::<()>()));
        let (cache, (_stopper, stop)) = (Mutex::default(), watch::channel(false));
        let requests = RequestMetrics::default();
        let mut parker = Parker::new(sleep, stopping, &stop, &cache, &requests);
        let begun = Instant::now();
        assert!(parker.next_request(&mut stream, None).await.is_none());
        assert!(begun.elapsed().abs_diff(HEAD_TIMEOUT) < Duration::from_millis(10), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn uncached_bytes_are_handed_on_as_they_came() {
        let (mut client, mut stream) = connect().await;
        let (sleep, stopping) = (pin!(sleep(Duration::ZERO)), pin!(maybe_done(pending::<()>())));
        let (cache, (_stopper, stop)) = (Mutex::default(), watch::channel(false));
        let requests = RequestMetrics::default();
        let mut parker = Parker::new(sleep, stopping, &stop, &cache, &requests);
        client.write_all(b"GE").await.unwrap();
        assert_eq!(uncached(parker.next_request(&mut stream, None).await).unwrap(), "GE");
        // One byte more than the buffer: the rest must come with the next read, not get lost.
        client.write_all(&[b'x'; MAX_REQUEST + 1]).await.unwrap();
        assert_eq!(uncached(parker.next_request(&mut stream, None).await).unwrap().len(), MAX_REQUEST);
        assert_eq!(uncached(parker.next_request(&mut stream, None).await).unwrap(), "x");
        drop(client);
        assert!(parker.next_request(&mut stream, None).await.is_none());
    }

    #[tokio::test]
    async fn a_stopping_server_waits_for_no_request() {
        let (_client, mut stream) = connect().await;
        let (cache, (stopper, stop)) = (Mutex::default(), watch::channel(false));
        let requests = RequestMetrics::default();
        let (sleep, stopping) = (pin!(sleep(Duration::ZERO)), pin!(maybe_done(stopped(&stop))));
        let mut parker = Parker::new(sleep, stopping, &stop, &cache, &requests);
        let early = timeout(Duration::from_millis(50), parker.next_request(&mut stream, None)).await;
        assert!(early.is_err());
        let later = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            stopper.send(true).unwrap();
        };
        let (next, ()) = tokio::join!(parker.next_request(&mut stream, None), later);
        assert!(next.is_none());
        assert!(parker.next_request(&mut stream, None).await.is_none(), "and each time after that");
    }
}
