//! Pull requests of Smart Feeds, answered from the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::time::{Instant, timeout};
use towpath_proto::change::Seq;
use towpath_proto::smart::log_read::{LogRead, LogReadHead, LogReadResult};
use towpath_proto::smart::pull::{FeedSettings, Pull, PullError, PullPage, PullStep};
use towpath_proto::smart::query::{PullQuery, QueryError};
use towpath_proto::smart::spec::{FeedOrder, OrderBy, PositionSpec};
use towpath_proto::{FeedId, Op};
use towpath_store::{ItemOrder, ReadLimit, SeqRange, Store};

use crate::config::TokenDigest;
use crate::document::route_error::RouteError;
use crate::engine::access::Access;
use crate::engine::request::{gone_feed, no_feed};
use crate::engine::{Engine, Feed};
use crate::protocols::smart::shared_poll::{
    PollKey, PullPollHandle, PullWaiter, SharedFormat, SharedResponse,
};
use crate::protocols::smart::state::{Smart, settings};
use crate::protocols::smart::wait_registry::{RunQuery, TooManyWaiters};
use crate::store_error::StoreError;

/// Longest wait of a request for the position of its cursor.
// A replica is usually behind by a round trip. After this, another node is the better choice.
const REPLICA_WAIT: Duration = Duration::from_secs(5);
/// Pages that are read for `last`.
// A feed of nothing but deletions must not be read to its beginning.
const MAX_LAST_PAGES: usize = 10;

/// Builds the response of a shared poll from its page.
pub type BuildResponse = fn(&PullRequest, &FeedSettings, &PullPage) -> SharedResponse;

/// A pull request of a reader who is authorised already.
#[derive(Clone)]
pub struct PullRequest {
    /// The engine that answers.
    pub engine: Arc<Engine>,
    /// The feed.
    pub feed: Arc<Feed>,
    /// The part of the feed that the reader may see.
    pub access: Access,
    /// Digest of the reader's token, for a private feed: tokens may be withdrawn while the request waits.
    pub reader: Option<TokenDigest>,
    /// End of the read link by which the request was authorised.
    pub expires: Option<Timestamp>,
    /// The parameters of the request.
    pub query: PullQuery,
}

/// A failed pull request.
#[derive(Debug, thiserror::Error)]
pub enum PullRequestError {
    /// The request cannot be answered as it is; mostly the client's fault.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Result of a pull request.
pub enum PullResult {
    /// A page.
    Page(Box<PullPage>),
    /// The request is at the head of the log, and may wait there.
    AtHead {
        /// Head of the log at that moment.
        after: Seq,
        /// The query to wait with: [`Pull::waiting_query`].
        query: Box<PullQuery>,
    },
}

impl PullRequest {
    /// Returns the settings by which the feed is published.
    pub fn settings(&self) -> &FeedSettings {
        settings(&self.engine, &self.feed)
    }

    /// Returns true unless the reader's token was withdrawn since the request was authorised.
    pub fn is_still_allowed(&self) -> bool {
        let access = |reader: TokenDigest| {
            self.engine.tokens.load().access_by_prefix(self.feed.id(), self.feed.log(), reader.as_bytes())
        };
        if self.expires.is_some_and(|expires| expires <= self.engine.now()) {
            return false;
        }
        // Public feeds have no reader, so this costs them nothing.
        self.reader.is_none_or(|reader| access(reader) == Some(self.access))
    }

    /// Answers from the log as it is now.
    ///
    /// A replica that is behind the request's cursor waits until it has that position.
    pub async fn run(&self) -> Result<PullResult, PullRequestError> {
        let behind = match self.run_once().await {
            Err(PullRequestError::Pull(PullError::Behind(seq))) => seq,
            result => return result,
        };
        let reached = self.engine.store.wait(self.feed.log(), behind.saturating_sub(1));
        match timeout(REPLICA_WAIT, reached).await {
            Ok(head) => head.map_err(StoreError::from)?,
            Err(_) => return Err(PullError::Behind(behind).into()),
        };
        self.run_once().await
    }

    /// Answers from the log, and again if retention let go of a part of it meanwhile.
    async fn run_once(&self) -> Result<PullResult, PullRequestError> {
        loop {
            let (horizon, result) = self.run_within_horizon().await?;
            // A page that was read across the move may lack deletions. Moves are seldom, so this ends.
            let head = self.engine.store.head(self.feed.log()).await.map_err(StoreError::from)?;
            if head.horizon == horizon {
                return Ok(result);
            }
        }
    }

    async fn run_within_horizon(&self) -> Result<(Seq, PullResult), PullRequestError> {
        let mut horizon = 0;
        let view = Smart::of(&self.engine).view(&self.engine, &self.feed, self.access);
        let mut pull = Pull::new(self.query.clone(), self.settings(), self.engine.now())
            .of_replica(self.engine.is_shared());
        let mut step = pull.begin();
        loop {
            match step {
                PullStep::Page(page) => return Ok((horizon, PullResult::Page(page))),
                // `waiting_query` is equal for all requests at one position, whatever their spelling.
                PullStep::Wait { after, .. } => {
                    let query = Box::new(pull.waiting_query());
                    return Ok((horizon, PullResult::AtHead { after, query }));
                }
                PullStep::Read(read) => {
                    let answer = read_log(self.engine.store.as_ref(), self.feed.log(), read).await?;
                    if let LogReadResult::Head(head) = &answer {
                        horizon = head.horizon;
                    }
                    // A filter that is behind the head would hide items that the page's cursor goes past.
                    if let (LogReadResult::Head(head), Some(view)) = (&answer, &view) {
                        view.catch_up(&self.engine, head.seq).await?;
                    }
                    step = match &view {
                        Some(view) => pull.handle_read(answer, Some(&*view.read()))?,
                        None => pull.handle_read(answer, None)?,
                    };
                }
            }
        }
    }

    /// Turns `last` into the position before that many items of the feed as it is now. Deleted ones do not count.
    pub async fn begin_with_last(&mut self) -> Result<(), PullRequestError> {
        let Some(mut wanted) = self.query.last.take() else { return Ok(()) };
        let by = self.query.order.by;
        let mut latest = self.clone();
        latest.query.order = FeedOrder { by, descending: true };
        latest.query.since = None;
        // Twice as many, since deletions are in the pages and do not count.
        latest.query.max = wanted.saturating_mul(2).min(self.settings().limits.max_items);
        let (mut start, mut horizon) = (0, 0);
        for _ in 0..MAX_LAST_PAGES {
            let page = latest.clone().run_without_waiting().await?;
            horizon = page.horizon;
            for change in page.changes.iter().filter(|change| change.op != Op::Delete) {
                start = by.position(change).saturating_sub(1);
                wanted -= 1;
                if wanted == 0 {
                    break;
                }
            }
            if wanted == 0 || !page.more {
                break;
            }
            latest.query.since = page.last_cursor.map(PositionSpec::Cursor);
        }
        self.query.since = Some(PositionSpec::Cursor(self.settings().tag.cursor_within(by, start, horizon)));
        Ok(())
    }

    /// Answers without waiting: always with a page, which may be empty.
    pub fn run_without_waiting(mut self) -> BoxFuture<'static, Result<PullPage, PullRequestError>> {
        self.query.timeout = Duration::ZERO;
        Box::pin(async move {
            match self.run().await? {
                PullResult::Page(page) => Ok(*page),
                // With a timeout of zero nothing can wait, so this would be a fault of ours.
                PullResult::AtHead { .. } => Err(PullError::UnexpectedResult.into()),
            }
        })
    }

    /// Returns a page with those of these items that exist, in the form that this request's reader may see, and the
    /// total. The query has a maximum of zero.
    pub async fn read_items(&self, ids: &[String]) -> Result<PullPage, PullRequestError> {
        // Brings a filter's view up to the head as well.
        let mut page = self.clone().run_without_waiting().await?;
        let view = Smart::of(&self.engine).view(&self.engine, &self.feed, self.access);
        for id in ids {
            let latest = self.engine.store.latest(self.feed.log(), id).await.map_err(StoreError::from)?;
            let shown = match &view {
                Some(view) => latest.and_then(|change| view.read().show(change)),
                None => latest,
            };
            page.changes.extend(shown);
        }
        Ok(page)
    }

    /// Returns the time until which this request may wait.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.query.timeout
    }

    /// Waits for the log to grow beyond `after`, for a response to `query`.
    ///
    /// The first waiter's request is run for all that join later. So it is run with `query`
    /// ([`Pull::waiting_query`]), in which nothing depends on this client alone.
    pub fn join(
        &self,
        query: PullQuery,
        after: Seq,
        format: SharedFormat,
        build: BuildResponse,
    ) -> Result<PullWaiter, TooManyWaiters> {
        let shared = Self { query: query.clone(), ..self.clone() };
        // With the access: readers with different filters must not share a page.
        let key = PollKey { feed: self.feed.id().clone(), access: self.access, query, format };
        let registry = &Smart::of(&self.engine).wait_registry;
        // By the log, not the feed: an append to a log wakes the waiters of its filters as well.
        let waiter = registry.join(self.feed.log(), key, || shared.into_query(build))?;
        self.check_head(after);
        // The hook of a removal that came before found no waiter.
        if self.removal().is_some() {
            registry.log_changed(self.feed.log());
        }
        Ok(waiter)
    }

    /// Joins a shared poll that waits for the log to grow beyond `after`. Returns `None` if the log has grown, if the
    /// poll is closed or if the registry is full: then the request must be run.
    pub fn rejoin(&self, shared_poll: &PullPollHandle, after: Seq) -> Option<PullWaiter> {
        // Checked before joining, too: a stale cache entry must not add a waiter.
        if self.feed.head.load(Ordering::Acquire) != after {
            return None;
        }
        let waiter = shared_poll.join()?;
        self.check_head(after);
        Some(waiter)
    }

    /// Runs the shared polls if an append came between reading the log and joining: its notification found no waiter.
    fn check_head(&self, after: Seq) {
        if self.feed.head.load(Ordering::Acquire) > after {
            Smart::of(&self.engine).wait_registry.log_changed(self.feed.log());
        }
    }

    /// Returns the error for a feed that was removed since the request was authorised.
    fn removal(&self) -> Option<RouteError> {
        let id = self.feed.id().as_str();
        // Those who waited for a private feed know of it.
        let error = || match self.engine.removed_feed(id) {
            Some(removed) => gone_feed(id, &removed),
            None => no_feed(&self.engine, id),
        };
        self.engine.feed(id).is_none().then(error)
    }

    fn into_query(self, build: BuildResponse) -> RunQuery<SharedResponse> {
        let request = Arc::new(self);
        Box::new(move || {
            let request = request.clone();
            Box::pin(async move {
                if let Some(error) = request.removal() {
                    return Some(SharedResponse::of_error(error));
                }
                match request.run().await {
                    Ok(PullResult::Page(page)) => Some(build(&request, request.settings(), &page)),
                    Ok(PullResult::AtHead { .. }) => None,
                    // The waiters stay: each runs its own request at its deadline, and reports an error that lasts.
                    Err(e) => {
                        tracing::warn!(feed = %request.feed.id(), error = %e, "cannot answer the waiting requests");
                        None
                    }
                }
            })
        })
    }
}

/// Reads from the store what a [`Pull`] needs next.
async fn read_log(store: &dyn Store, log: &FeedId, read: LogRead) -> Result<LogReadResult, StoreError> {
    Ok(match read {
        LogRead::Head => {
            let head = store.head(log).await?;
            LogReadResult::Head(LogReadHead {
                seq: head.seq,
                modified: head.modified,
                items: head.items,
                horizon: head.horizon,
            })
        }
        LogRead::LastBefore(time) => LogReadResult::Position(store.last_before(log, time).await?),
        LogRead::Latest(id) => LogReadResult::Item(store.latest(log, &id).await?.map(Box::new)),
        LogRead::Items { by, after, before, descending, items, bytes } => {
            let order = match by {
                OrderBy::Created => ItemOrder::Created,
                OrderBy::Modified => ItemOrder::Modified,
            };
            let range = SeqRange { after, before, descending };
            LogReadResult::Items(store.items(log, order, range, ReadLimit { items, bytes }).await?)
        }
    })
}

impl From<QueryError> for RouteError {
    fn from(error: QueryError) -> Self {
        Self::bad_request(error.to_string()).about(error.parameter())
    }
}

impl From<PullError> for RouteError {
    fn from(error: PullError) -> Self {
        match error {
            PullError::Query(error) => error.into(),
            PullError::UnknownId(_) => Self::not_found(error.to_string()),
            PullError::Behind(_) => Self::behind(error.to_string()),
            PullError::UnexpectedResult => Self::internal(error.to_string()),
        }
    }
}

impl From<PullRequestError> for RouteError {
    fn from(error: PullRequestError) -> Self {
        match error {
            PullRequestError::Pull(error) => error.into(),
            PullRequestError::Store(error) => error.into(),
        }
    }
}

impl From<TooManyWaiters> for RouteError {
    fn from(_: TooManyWaiters) -> Self {
        Self::busy("too many clients are waiting; ask again later, or with timeout=0")
    }
}
