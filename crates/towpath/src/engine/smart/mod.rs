//! Every feed as a Smart Feed: pull requests answered from the log, now or once it moves.

mod view;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::smart::cursor::LogTag;
use towpath_proto::smart::plan::{Answer, Head, Read};
use towpath_proto::smart::pull::{FeedSettings, Page, Pull, PullError, Step};
use towpath_proto::smart::query::{Limits, PullQuery};
use towpath_proto::smart::spec::By;
use towpath_store::{Condition, Limit, Order, Store, StoreError, Stretch, Table, Write};

use super::waiters::{self, Ask};
use super::{Engine, Feed, Metrics};
use crate::config::{Config, FeedConfig};
use crate::random::unguessable;

pub use super::waiters::Full;
pub use view::View;

/// What the engine holds for Smart Feeds.
pub struct Smart {
    /// Who waits.
    pub waiters: Arc<Waiters>,
    pub(super) identity: String,
    views: Mutex<view::Views>,
}

/// Those who wait for a page.
pub type Waiters = waiters::Waiters<Question, Told>;
/// The place of one of them.
pub type Seat = waiters::Seat<Question, Told>;
/// Those who wait for the same page.
pub type Company = waiters::Company<Question, Told>;

/// What those who wait together wait for: all that their answer is made of, the log apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Question {
    feed: FeedId,
    access: Access,
    query: PullQuery,
    form: Form,
}

/// What a reader may see of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// All of it.
    Whole,
    /// What the filter of this one of its configured readers lets through.
    Reader(usize),
}

/// What a page is made into. Pages that are made differently are not shared.
pub type Form = u8;

/// Makes the answer of all who wait alike.
pub type Render = fn(&Asked, &FeedSettings, &Page) -> Told;

/// An answer as it is sent, for any number of clients.
#[derive(Debug)]
pub struct Told {
    /// Its headers.
    pub headers: http::HeaderMap,
    /// Its body.
    pub body: bytes::Bytes,
    /// From which cursor the next one goes on.
    pub cursor: Option<String>,
    /// Head and body as they are written to a socket, once somebody wants them.
    pub written: std::sync::OnceLock<bytes::Bytes>,
}

/// A pull request of somebody.
#[derive(Clone)]
pub struct Asked {
    /// Where.
    pub engine: Arc<Engine>,
    /// Which feed.
    pub feed: Arc<Feed>,
    /// What the reader may see.
    pub access: Access,
    /// What is asked for.
    pub query: PullQuery,
}

/// Why a pull request has no page.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The client's fault, mostly.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The store's.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far a pull request came.
pub enum Outcome {
    /// To its page.
    Page(Box<Page>),
    /// To the end of the log, where it may wait for more.
    Wait {
        /// Where the log ended.
        after: Seq,
        /// What to wait for: [`Pull::waiting_query`].
        query: Box<PullQuery>,
    },
}

impl Smart {
    pub(super) fn new(config: &Config, identity: String, metrics: &Metrics) -> Self {
        let waiters = Arc::new(Waiters::new(config.server.waiters, metrics.waiters.clone()));
        Self { waiters, identity, views: Mutex::default() }
    }

    /// What a feed is to its readers.
    pub(super) fn settings(&self, engine: &Engine, feed: &Feed) -> FeedSettings {
        let config = &feed.config;
        FeedSettings {
            base: format!("{}/feeds/{}/items", engine.base_url, config.id()),
            title: config.title().to_owned(),
            tag: LogTag::new(&format!("{}/{}", self.identity, config.id())),
            kind: config.cursor,
            limits: limits(config, engine.config.server.longest_wait),
            links: feed.links(engine),
            hub: Some(engine.hub_url(config.id())),
        }
    }

    fn view(&self, engine: &Engine, feed: &Feed, access: Access) -> Option<Arc<View>> {
        let filter = match access {
            Access::Reader(index) => feed.config.readers.get(index)?.filter.as_ref()?,
            Access::Whole => &feed.config.filter.as_ref()?.filter,
        };
        let mut views = self.views.lock();
        let key = (feed.id().clone(), access);
        let new = || Arc::new(View::new(feed.log().clone(), filter.clone(), engine.scorer.clone()));
        Some(views.entry(key).or_insert_with(new).clone())
    }

    /// Has every filter see its feed's log, so that the first reader need not wait for that.
    pub async fn warm_up(engine: &Arc<Engine>) {
        for feed in engine.feeds() {
            let readers = (0..feed.config.readers.len()).map(Access::Reader);
            for access in readers.chain([Access::Whole]) {
                let Some(view) = engine.smart.view(engine, &feed, access) else { continue };
                if let Err(e) = view.catch_up(engine, Seq::MAX).await {
                    tracing::error!(feed = %feed.id(), "cannot filter: {e}");
                }
            }
        }
    }
}

fn limits(config: &FeedConfig, max_timeout: Duration) -> Limits {
    let default = Limits::default();
    let max_items = config.page_items.map_or(default.max_items, usize::from);
    Limits {
        default_items: default.default_items.min(max_items),
        max_items,
        page_bytes: config.page_bytes.map_or(default.page_bytes, usize::from),
        max_timeout,
    }
}

const IDENTITY: &[u8] = b"smart/identity";

/// What tells this folder's cursors from those of any other, and of any later one at the same address. The SUP-IDs of
/// feeds that not everybody may read are made of it, too: nobody may guess it.
pub(super) async fn identity(store: &dyn Store, is_shared: bool) -> Result<String, StoreError> {
    if let Some(kept) = store.get(Table::Sources, IDENTITY).await? {
        return Ok(hex::encode(kept));
    }
    let new = unguessable().to_be_bytes().to_vec();
    let write = Write { table: Table::Sources, key: IDENTITY.to_vec(), value: Some(new.clone().into()) };
    if is_shared {
        // The first of all nodes decides for all.
        let unwritten = Condition { table: Table::Sources, key: IDENTITY.to_vec(), value: None };
        match store.write(vec![write], vec![unwritten]).await {
            Ok(()) | Err(StoreError::Condition) => {}
            Err(e) => return Err(e),
        }
        let kept = store.get(Table::Sources, IDENTITY).await?;
        return Ok(hex::encode(kept.unwrap_or_default()));
    }
    // A full disk is no reason not to serve. Cursors then end with this run, and those who follow begin again.
    if let Err(e) = store.write(vec![write], Vec::new()).await {
        tracing::warn!("cursors will not outlast this run: {e}");
    }
    Ok(hex::encode(new))
}

impl Asked {
    /// What the feed is to its readers.
    pub fn settings(&self) -> &FeedSettings {
        self.feed.settings(&self.engine)
    }

    /// Answers from the log as it is.
    pub async fn run(&self) -> Result<Outcome, AskError> {
        let view = self.engine.smart.view(&self.engine, &self.feed, self.access);
        let mut pull = Pull::new(self.query.clone(), self.settings(), self.engine.now());
        let mut step = pull.begin();
        loop {
            match step {
                Step::Page(page) => return Ok(Outcome::Page(page)),
                Step::Wait { after, .. } => {
                    return Ok(Outcome::Wait { after, query: Box::new(pull.waiting_query()) });
                }
                Step::Read(read) => {
                    let answer = read_log(self.engine.store.as_ref(), self.feed.log(), read).await?;
                    if let (Answer::Head(head), Some(view)) = (&answer, &view) {
                        view.catch_up(&self.engine, head.seq).await?;
                    }
                    step = match &view {
                        Some(view) => pull.handle_answer(answer, Some(&*view.read()))?,
                        None => pull.handle_answer(answer, None)?,
                    };
                }
            }
        }
    }

    /// The answer without waiting, in any case a page.
    pub fn at_once(mut self) -> BoxFuture<'static, Result<Page, AskError>> {
        self.query.timeout = Duration::ZERO;
        Box::pin(async move {
            match self.run().await? {
                Outcome::Page(page) => Ok(*page),
                Outcome::Wait { .. } => Err(PullError::Answer.into()),
            }
        })
    }

    /// Until when this request may wait.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.query.timeout
    }

    /// Waits for the log to move beyond `after`, for an answer to `query`. The first who waits for it asks for all, so
    /// nothing of what he asked himself may be in it.
    pub fn join(&self, query: PullQuery, after: Seq, form: Form, render: Render) -> Result<Seat, Full> {
        let asked = Self { query: query.clone(), ..self.clone() };
        let question = Question { feed: self.feed.id().clone(), access: self.access, query, form };
        let waiters = &self.engine.smart.waiters;
        let seat = waiters.join(self.feed.log(), question, || asked.ask(render))?;
        self.has_joined(after);
        Ok(seat)
    }

    /// Joins those who wait already for the log to move beyond `after`. `None` where that is not to be known without
    /// asking: the log has moved, or they do not wait any more, or as many wait as may.
    pub fn join_again(&self, company: &Company, after: Seq) -> Option<Seat> {
        if self.feed.head.load(Ordering::Acquire) != after {
            return None;
        }
        let seat = company.join()?;
        self.has_joined(after);
        Some(seat)
    }

    /// The log may have moved between the reading and the joining.
    fn has_joined(&self, after: Seq) {
        if self.feed.head.load(Ordering::Acquire) > after {
            self.engine.smart.waiters.moved(self.feed.log());
        }
    }

    fn ask(self, render: Render) -> Ask<Told> {
        let asked = Arc::new(self);
        Box::new(move || {
            let asked = asked.clone();
            Box::pin(async move {
                match asked.run().await {
                    Ok(Outcome::Page(page)) => Some(render(&asked, asked.settings(), &page)),
                    Ok(Outcome::Wait { .. }) => None,
                    // They wait on: each is answered at its deadline, with a problem if it is still there.
                    Err(e) => {
                        tracing::warn!(feed = %asked.feed.id(), "cannot answer those who wait: {e}");
                        None
                    }
                }
            })
        })
    }
}

/// Reads what a pull wants to know.
async fn read_log(store: &dyn Store, log: &FeedId, read: Read) -> Result<Answer, StoreError> {
    Ok(match read {
        Read::Head => {
            let head = store.head(log).await?;
            Answer::Head(Head { seq: head.seq, modified: head.modified, items: head.items })
        }
        Read::LastBefore(time) => Answer::Place(store.last_before(log, time).await?),
        Read::Latest(id) => Answer::Item(store.latest(log, &id).await?.map(Box::new)),
        Read::Items { by, after, before, descending, items, bytes } => {
            let order = match by {
                By::Created => Order::Created,
                By::Modified => Order::Modified,
            };
            let stretch = Stretch { after, before, descending };
            Answer::Items(store.items(log, order, stretch, Limit { items, bytes }).await?)
        }
    })
}

#[cfg(test)]
mod tests {
    use towpath_store::embedded::{EmbeddedStore, Options};

    use super::identity;

    /// A generator that begins from a number, whatever that is, would give the same again.
    #[tokio::test]
    async fn nobody_guesses_an_identity() {
        let mut made = Vec::new();
        for _ in 0..2 {
            let folder = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(folder.path(), Options::default()).unwrap();
            fastrand::seed(7);
            let new = identity(&store, false).await.unwrap();
            assert_eq!(identity(&store, false).await.unwrap(), new, "it is kept");
            made.push(new);
        }
        assert_ne!(made[0], made[1]);
        assert_eq!(made[0].len(), 32);
    }
}
