//! Request driver: sends the requests of a state machine and hands the responses back to it.

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use towpath_proto::follow::{Exchange, Request, RequestId, ResponseHead, TransferError};

use super::body::StreamingBody;
use super::clock::{DriverActivity, DriverClock, SystemClock};
use super::fetch::Fetcher;
use super::memory_budget::BodyShare;
use super::problem::is_problem;
use super::response_hints::ResponseHints;

/// Maximum number of requests in flight at once.
const MAX_IN_FLIGHT: usize = 8;

/// The requests in flight of one exchange.
///
/// Each request has at most one chunk of its body in memory. The next chunk is read only after the exchange has
/// handled the last one, so a slow consumer applies backpressure to the publisher.
pub(super) struct RequestDriver {
    fetcher: Fetcher,
    clock: Arc<dyn DriverClock>,
    /// SUP links and `Retry-After`, collected from the responses.
    pub(super) hints: ResponseHints,
    in_flight: FuturesUnordered<BoxFuture<'static, IoEvent>>,
    /// Requests that are sent ahead, before their first poll.
    ahead: Vec<BoxFuture<'static, IoEvent>>,
    /// Requests that have not ended.
    open: HashSet<RequestId>,
    /// Events of prefetched requests, each with the request that must end first.
    deferred: Vec<(RequestId, IoEvent)>,
}

/// An event on one request in flight.
struct IoEvent {
    id: RequestId,
    after: Option<RequestId>,
    part: ResponsePart,
}

enum ResponsePart {
    Head(ResponseHead, StreamingBody),
    /// The head of a problem document with its first piece, so that an error at the head has the reason.
    Problem(ResponseHead, Bytes, StreamingBody),
    Chunk(Bytes, StreamingBody),
    /// The end, and the memory of the body, which is read now.
    End(Result<(), TransferError>, Option<BodyShare>),
}

/// Result of waiting for one event of an exchange.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExchangeProgress {
    /// The exchange may have new events or requests.
    Advanced,
    /// Like `Advanced`, and a response arrived whole.
    ResponseComplete,
    /// No request is in flight and no timer is set.
    Idle,
}

impl RequestDriver {
    pub(super) fn new(fetcher: Fetcher) -> Self {
        Self::with_clock(fetcher, Arc::new(SystemClock))
    }

    pub(super) fn with_clock(fetcher: Fetcher, clock: Arc<dyn DriverClock>) -> Self {
        Self {
            fetcher,
            clock,
            hints: ResponseHints::default(),
            in_flight: FuturesUnordered::new(),
            ahead: Vec::new(),
            open: HashSet::new(),
            deferred: Vec::new(),
        }
    }

    /// Returns the fetcher of the requests.
    pub(super) fn fetcher(&self) -> Fetcher {
        self.fetcher.clone()
    }

    /// Returns the clock of the timers.
    pub(super) fn clock(&self) -> Arc<dyn DriverClock> {
        self.clock.clone()
    }

    /// Sends the exchange's requests, up to [`MAX_IN_FLIGHT`].
    ///
    /// Returns true if there was one.
    pub(super) fn send<E: Exchange + ?Sized>(&mut self, exchange: &mut E) -> bool {
        let fetcher = self.fetcher.clone();
        let before = self.open.len();
        self.send_by(exchange, |_, _| fetcher.clone());
        self.open.len() > before
    }

    /// Like [`send`](Self::send), with a fetcher for each request.
    pub(super) fn send_by<E: Exchange + ?Sized>(
        &mut self,
        exchange: &mut E,
        fetcher: impl Fn(&E, RequestId) -> Fetcher,
    ) {
        while self.open.len() < MAX_IN_FLIGHT {
            // The exchange is asked only while a slot is free: it may choose a better request later.
            let Some(request) = exchange.poll_request(self.clock.now()) else { return };
            tracing::debug!(method = %request.method, url = request.url, "sending request");
            // Counts a request until its body ends; the set of futures lacks it while a chunk is handled.
            self.open.insert(request.id);
            let fetcher = fetcher(exchange, request.id);
            let is_ahead = request.after.is_some();
            let sending = Box::pin(send_request(fetcher, request));
            if is_ahead { self.ahead.push(sending) } else { self.in_flight.push(sending) }
        }
    }

    /// Waits for the next event or the exchange's timer, and handles it. Cancel-safe.
    pub(super) async fn next_event<E: Exchange + ?Sized>(&mut self, exchange: &mut E) -> ExchangeProgress {
        // With no free slot a timer could only ask for a request that cannot be sent.
        let timer = exchange.poll_timeout().filter(|_| self.open.len() < MAX_IN_FLIGHT);
        let Some(until) = timer else {
            return self.next_response(exchange).await;
        };
        self.start_ahead().await;
        // A simulated clock may advance only while nothing is in flight.
        let activity = if self.is_busy() { DriverActivity::Busy } else { DriverActivity::Idle };
        let due = self.clock.sleep_until(until, activity);
        tokio::select! {
            Some(event) = self.in_flight.next() => self.accept(exchange, event),
            () = due => ExchangeProgress::Advanced,
        }
    }

    /// Waits for the next event of a request in flight, ignoring the exchange's timer. Cancel-safe.
    pub(super) async fn next_response<E: Exchange + ?Sized>(&mut self, exchange: &mut E) -> ExchangeProgress {
        self.start_ahead().await;
        // The only await that takes something. Cancelled before it returns, it has taken nothing.
        let Some(event) = self.in_flight.next().await else { return ExchangeProgress::Idle };
        self.accept(exchange, event)
    }

    /// Puts requests that are sent ahead on their way. Otherwise they would wait while the body that has arrived is read.
    async fn start_ahead(&mut self) {
        if self.ahead.is_empty() {
            return;
        }
        // A future does nothing before its first poll. `in_flight` would poll it with the next event only.
        while let Some(mut sending) = self.ahead.pop() {
            let polled = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
            self.in_flight.push(match polled {
                Poll::Ready(event) => Box::pin(std::future::ready(event)),
                Poll::Pending => sending,
            });
        }
        // Lets the connection's task write them.
        tokio::task::yield_now().await;
    }

    /// Returns true while requests are in flight.
    pub(super) fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    /// Passes an event to the exchange, or defers it until the request it must follow has ended.
    fn accept<E: Exchange + ?Sized>(&mut self, exchange: &mut E, event: IoEvent) -> ExchangeProgress {
        match event.after.filter(|after| self.open.contains(after)) {
            Some(after) => {
                self.deferred.push((after, event));
                ExchangeProgress::Advanced
            }
            None => self.dispatch(exchange, event),
        }
    }

    fn dispatch<E: Exchange + ?Sized>(
        &mut self,
        exchange: &mut E,
        IoEvent { id, part, .. }: IoEvent,
    ) -> ExchangeProgress {
        let now = self.clock.now();
        match part {
            ResponsePart::Head(head, body) => {
                self.hints.handle_head(now.wall, id, &head);
                exchange.handle_head(now, id, head);
                self.in_flight.push(Box::pin(read_chunk(id, body)));
            }
            ResponsePart::Problem(head, first, body) => {
                self.hints.handle_head(now.wall, id, &head);
                self.hints.handle_problem(&head, &first);
                exchange.handle_head(now, id, head);
                exchange.handle_chunk(now, id, first);
                self.in_flight.push(Box::pin(read_chunk(id, body)));
            }
            ResponsePart::Chunk(chunk, body) => {
                self.hints.handle_chunk(id, &chunk);
                exchange.handle_chunk(now, id, chunk);
                self.in_flight.push(Box::pin(read_chunk(id, body)));
            }
            ResponsePart::End(result, share) => {
                self.hints.handle_end(id);
                let progress = if result.is_ok() {
                    ExchangeProgress::ResponseComplete
                } else {
                    ExchangeProgress::Advanced
                };
                // The exchange sees the end before the next deferred head, in the order that it asked for.
                exchange.handle_end(now, id, result);
                drop(share);
                self.open.remove(&id);
                // The request that blocked a prefetched response has ended: its head is delivered now.
                if let Some(at) = self.deferred.iter().position(|(after, _)| *after == id) {
                    let (_, event) = self.deferred.swap_remove(at);
                    self.dispatch(exchange, event);
                }
                return progress;
            }
        }
        ExchangeProgress::Advanced
    }
}

async fn send_request(fetcher: Fetcher, request: Request) -> IoEvent {
    let part = match fetcher.fetch(&request).await {
        Ok(mut response) if is_problem(&response.head) => {
            // Small documents come in one piece. Without one the error goes without a reason.
            let first = response.body.chunk().await.ok().flatten().unwrap_or_default();
            ResponsePart::Problem(response.head, first, response.body)
        }
        Ok(response) => ResponsePart::Head(response.head, response.body),
        Err(error) => ResponsePart::End(Err(error), None),
    };
    IoEvent { id: request.id, after: request.after, part }
}

async fn read_chunk(id: RequestId, mut body: StreamingBody) -> IoEvent {
    let part = match body.chunk().await {
        Ok(Some(chunk)) => ResponsePart::Chunk(chunk, body),
        Ok(None) => ResponsePart::End(Ok(()), body.take_share()),
        Err(error) => ResponsePart::End(Err(error), body.take_share()),
    };
    IoEvent { id, after: None, part }
}
