//! Carries the requests of a state machine to the network and the answers back.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use towpath_proto::follow::{Exchange, Request, RequestId, ResponseHead, TransferError};

use super::body::Body;
use super::clock::{Clock, SystemClock};
use super::fetch::Fetcher;
use super::heard::Heard;

/// Requests that are under way at once, at most.
const UNDER_WAY: usize = 8;

/// The requests of one exchange that are under way.
///
/// Every request has at most one piece of its body in memory, and the next one is only asked for once the
/// exchange has taken it: a slow consumer holds the publisher back.
pub(super) struct Carrier {
    fetcher: Fetcher,
    clock: Arc<dyn Clock>,
    /// What the answers say beside what they were asked for.
    pub(super) heard: Heard,
    under_way: FuturesUnordered<BoxFuture<'static, Happening>>,
    /// The requests that have not ended.
    open: HashSet<RequestId>,
    /// What came for a request that was asked ahead of time, and the request that it waits for.
    held: Vec<(RequestId, Happening)>,
}

/// What happened to a request.
struct Happening {
    id: RequestId,
    after: Option<RequestId>,
    part: Part,
}

enum Part {
    Head(ResponseHead, Body),
    Chunk(Bytes, Body),
    End(Result<(), TransferError>),
}

/// Whether an exchange can go on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Something may have changed: look at it again.
    Moved,
    /// The same, and an answer came to its end.
    Answered,
    /// Nothing is under way and nothing will ever happen again.
    Stuck,
}

impl Carrier {
    pub(super) fn new(fetcher: Fetcher) -> Self {
        Self::with_clock(fetcher, Arc::new(SystemClock))
    }

    pub(super) fn with_clock(fetcher: Fetcher, clock: Arc<dyn Clock>) -> Self {
        Self {
            fetcher,
            clock,
            heard: Heard::default(),
            under_way: FuturesUnordered::new(),
            open: HashSet::new(),
            held: Vec::new(),
        }
    }

    /// Sends what the exchange wants to ask, as far as there is room.
    pub(super) fn send<E: Exchange + ?Sized>(&mut self, exchange: &mut E) {
        while self.open.len() < UNDER_WAY {
            let Some(request) = exchange.poll_request(self.clock.now()) else { return };
            tracing::debug!(method = %request.method, url = request.url, "asking");
            self.open.insert(request.id);
            self.under_way.push(Box::pin(begin(self.fetcher.clone(), request)));
        }
    }

    /// Waits for the next thing that happens and tells the exchange. Safe to cancel.
    pub(super) async fn step<E: Exchange + ?Sized>(&mut self, exchange: &mut E) -> Step {
        let timer = exchange.poll_timeout().filter(|_| self.open.len() < UNDER_WAY);
        let Some(until) = timer else {
            return self.arrive(exchange).await;
        };
        let due = self.clock.sleep_until(until, !self.is_busy());
        tokio::select! {
            Some(happening) = self.under_way.next() => self.take(exchange, happening),
            () = due => Step::Moved,
        }
    }

    /// The same without regard to time-outs.
    pub(super) async fn arrive<E: Exchange + ?Sized>(&mut self, exchange: &mut E) -> Step {
        let Some(happening) = self.under_way.next().await else { return Step::Stuck };
        self.take(exchange, happening)
    }

    /// Whether requests are under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    /// Tells the exchange, or holds back what was asked ahead of time.
    fn take<E: Exchange + ?Sized>(&mut self, exchange: &mut E, happening: Happening) -> Step {
        match happening.after.filter(|after| self.open.contains(after)) {
            Some(after) => {
                self.held.push((after, happening));
                Step::Moved
            }
            None => self.tell(exchange, happening),
        }
    }

    fn tell<E: Exchange + ?Sized>(
        &mut self,
        exchange: &mut E,
        Happening { id, part, .. }: Happening,
    ) -> Step {
        let now = self.clock.now();
        match part {
            Part::Head(head, body) => {
                self.heard.head(now, id, &head);
                exchange.handle_head(now, id, head);
                self.under_way.push(Box::pin(read_on(id, body)));
            }
            Part::Chunk(chunk, body) => {
                self.heard.chunk(id, &chunk);
                exchange.handle_chunk(now, id, chunk);
                self.under_way.push(Box::pin(read_on(id, body)));
            }
            Part::End(result) => {
                self.heard.end(id);
                let step = if result.is_ok() { Step::Answered } else { Step::Moved };
                exchange.handle_end(now, id, result);
                self.open.remove(&id);
                if let Some(at) = self.held.iter().position(|(after, _)| *after == id) {
                    let (_, happening) = self.held.swap_remove(at);
                    self.tell(exchange, happening);
                }
                return step;
            }
        }
        Step::Moved
    }
}

async fn begin(fetcher: Fetcher, request: Request) -> Happening {
    let part = match fetcher.fetch(&request).await {
        Ok(fetched) => Part::Head(fetched.head, fetched.body),
        Err(error) => Part::End(Err(error)),
    };
    Happening { id: request.id, after: request.after, part }
}

async fn read_on(id: RequestId, mut body: Body) -> Happening {
    let part = match body.chunk().await {
        Ok(Some(chunk)) => Part::Chunk(chunk, body),
        Ok(None) => Part::End(Ok(())),
        Err(error) => Part::End(Err(error)),
    };
    Happening { id, after: None, part }
}
