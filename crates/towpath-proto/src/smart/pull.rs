//! Answering a pull request ("Pull Interface", "HTTP Pull"): from a query to a page, by reads of the log.
//!
//! Call [`Pull::begin`], then do what the [`Step`] says: hand what was read to [`Pull::handle_answer`]; wait
//! until the log moves and answer [`Pull::waiting_query`], or call [`Pull::handle_timeout`] at the deadline; until
//! there is a [`Page`].

use jiff::Timestamp;

use super::cursor::{CursorKind, LogTag};
use super::filter::FilterView;
use super::name::Naming;
use super::plan::{Answer, Head, Read};
use super::query::{Limits, PullQuery, QueryError};
use super::resolve::{Context, End, Progress, Resolve};
use super::spec::{By, Spec};
use crate::change::{Change, Seq};
use crate::format::FeedLink;

/// How many items one answer looks at where a filter hides most of them. The answer then has a cursor, from
/// which the next one goes on, even if it has no item.
pub const MAX_SCANNED: usize = 10_000;

/// How many full pages of hidden items one answer looks at.
const MAX_SCANNED_PAGES: usize = 8;

/// How many items one read fetches where a filter hides some.
const FILTER_BATCH: usize = 500;

/// What a feed is to its clients.
#[derive(Debug, Clone)]
pub struct FeedSettings {
    /// The absolute address that is asked, without a query.
    pub base: String,
    /// The feed's title.
    pub title: String,
    /// Tells the log's cursors from those of others.
    pub tag: LogTag,
    /// Which cursors are given out.
    pub kind: CursorKind,
    /// What may be asked for.
    pub limits: Limits,
    /// Links of the feed that its Atom documents have beside those of the page.
    pub links: Vec<FeedLink>,
    /// Where it can be subscribed to, if it can ("HTTP Push": "the hub URL is defined by the feed").
    pub hub: Option<String>,
}

/// Why a pull request has no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The client's fault: 400.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The client's fault: 404.
    #[error("there is no item {0:?} to begin at")]
    UnknownId(String),
    /// Ours: an answer to another question than the one that was asked.
    #[error("the log was read in another way than asked for")]
    Answer,
}

/// What to do next.
#[derive(Debug)]
pub enum Step {
    /// Read the log, and call [`Pull::handle_answer`].
    Read(Read),
    /// Wait until the log reaches beyond `after`, and answer [`Pull::waiting_query`]; or until the deadline, and
    /// call [`Pull::handle_timeout`].
    Wait {
        /// The last place that was known.
        after: Seq,
        /// When to answer without items.
        deadline: Timestamp,
    },
    /// Here is the answer.
    Page(Box<Page>),
}

/// The answer to a pull request, whatever its format.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The items in the order that was asked for, as the reader may see them.
    pub changes: Vec<Change>,
    /// The cursor of the last item; of an empty page the one that was asked from, if it was one.
    pub last_cursor: Option<String>,
    /// Whether there is more to get from `last_cursor` right now.
    pub more: bool,
    /// How many items the feed has, tombstones included, as far as the reader may see them.
    pub total: u64,
    /// When the feed last changed; the Unix epoch if it never did.
    pub updated: Timestamp,
}

impl Page {
    /// A page without items.
    pub fn empty(total: u64, updated: Timestamp) -> Self {
        Self { changes: Vec::new(), last_cursor: None, more: false, total, updated }
    }
}

#[derive(Debug)]
enum Stage {
    Head,
    Resolve(Resolve, End),
    Items,
    Name(Naming),
    Idle,
}

/// A pull request on its way to a page.
#[derive(Debug)]
pub struct Pull {
    query: PullQuery,
    tag: LogTag,
    kind: CursorKind,
    limits: Limits,
    now: Timestamp,
    deadline: Timestamp,
    head: Head,
    /// The specs that are not resolved yet, with the end that each limits.
    specs: Vec<(Spec, End)>,
    after: Option<Seq>,
    before: Option<Seq>,
    /// What `since` means from here on, however the log moves.
    settled: Option<Spec>,
    stage: Stage,
    page: Page,
    scanned: usize,
    scanned_bytes: usize,
    shown_bytes: usize,
}

impl Pull {
    /// Begins to answer `query` at the time `now`.
    pub fn new(query: PullQuery, feed: &FeedSettings, now: Timestamp) -> Self {
        let (since, until) =
            if query.order.descending { (End::Before, End::After) } else { (End::After, End::Before) };
        let mut specs = Vec::new();
        specs.extend(query.until.clone().map(|spec| (spec, until)));
        specs.extend(query.since.clone().map(|spec| (spec, since)));
        Self {
            deadline: now
                .saturating_add(jiff::SignedDuration::try_from(query.timeout).unwrap_or_default())
                .unwrap_or(now),
            tag: feed.tag.clone(),
            kind: feed.kind,
            limits: feed.limits,
            now,
            head: Head { seq: 0, modified: Timestamp::UNIX_EPOCH, items: 0 },
            specs,
            after: None,
            before: None,
            settled: None,
            stage: Stage::Head,
            page: Page::empty(0, Timestamp::UNIX_EPOCH),
            scanned: 0,
            scanned_bytes: 0,
            shown_bytes: 0,
            query,
        }
    }

    /// The query that is answered.
    pub fn query(&self) -> &PullQuery {
        &self.query
    }

    /// The first step.
    pub fn begin(&mut self) -> Step {
        self.stage = Stage::Head;
        Step::Read(Read::Head)
    }

    /// What was read. `view` is the filter through which the reader sees the feed, brought up to the log's
    /// head.
    pub fn handle_answer(&mut self, answer: Answer, view: Option<&FilterView>) -> Result<Step, PullError> {
        match (std::mem::replace(&mut self.stage, Stage::Idle), answer) {
            (Stage::Head, Answer::Head(head)) => {
                self.head = head;
                self.page.updated = head.modified;
                self.page.total = view.map_or(head.items, FilterView::total);
                Ok(self.resolve_next())
            }
            (Stage::Resolve(resolve, end), answer) => {
                if let Answer::Item(Some(change)) = &answer
                    && view.is_some_and(|view| view.shows(change).is_none())
                {
                    return Err(PullError::UnknownId(change.item.id.clone()));
                }
                let progress = self.context(end).go_on(resolve, answer)?;
                Ok(self.resolved(progress, end))
            }
            (Stage::Items, Answer::Items(changes)) => Ok(self.take(changes, view)),
            (Stage::Name(naming), Answer::Place(start)) => Ok(self.name(naming.started(start))),
            (Stage::Name(naming), Answer::Items(changes)) => Ok(self.name(naming.counted(&changes))),
            _ => Err(PullError::Answer),
        }
    }

    /// What is to be answered instead of the query once the log has moved: the same for all who wait for the same,
    /// whatever they asked, so that one answer is everybody's. It waits as long as anybody may. (Not so at a
    /// deadline: an empty page echoes the cursor that its own client sent.)
    pub fn waiting_query(&self) -> PullQuery {
        PullQuery { since: self.settled.clone(), timeout: self.limits.max_timeout, ..self.query.clone() }
    }

    /// Nothing came until the deadline.
    pub fn handle_timeout(&mut self) -> Step {
        self.finish()
    }

    fn context(&self, end: End) -> Context<'_> {
        Context { tag: &self.tag, by: self.query.order.by, end, head: self.head }
    }

    fn resolve_next(&mut self) -> Step {
        let Some((spec, end)) = self.specs.pop() else { return self.read_items() };
        let progress = self.context(end).start(&spec);
        self.resolved(progress, end)
    }

    fn resolved(&mut self, progress: Progress, end: End) -> Step {
        match (progress, end) {
            (Progress::Read(resolve, read), end) => {
                self.stage = Stage::Resolve(resolve, end);
                return Step::Read(read);
            }
            (Progress::At(position), End::After) => self.settle(position),
            (Progress::At(position), End::Before) => self.before = position,
            (Progress::Ahead(span), _) => {
                self.after = Some(self.head.seq);
                self.settled = Some(Spec::Time(span));
            }
        }
        self.resolve_next()
    }

    /// The range begins after this position.
    fn settle(&mut self, position: Option<Seq>) {
        self.after = position;
        self.settled = position.map(|at| Spec::Cursor(self.tag.cursor(self.query.order.by, at)));
    }

    /// How many items the next read is to fetch: one more than can be sent, to see whether there is more.
    fn batch(&self) -> usize {
        let room = self.query.max + 1 - self.page.changes.len();
        if self.scanned == 0 { room } else { room.max(FILTER_BATCH) }
    }

    fn read_items(&mut self) -> Step {
        if self.query.max == 0 {
            return self.finish();
        }
        let order = self.query.order;
        // There is nothing behind the end. What came meanwhile comes next.
        if !order.descending && self.after.is_some_and(|after| after >= self.head.seq) {
            return self.end_page(None);
        }
        self.stage = Stage::Items;
        Step::Read(Read::Items {
            by: order.by,
            after: self.after,
            before: self.before,
            descending: order.descending,
            items: self.batch(),
            bytes: self.limits.page_bytes,
        })
    }

    fn take(&mut self, changes: Vec<Change>, view: Option<&FilterView>) -> Step {
        let (asked, count, mut read_bytes) = (self.batch(), changes.len(), 0);
        for change in changes {
            let (position, bytes) = (self.query.order.by.position(&change), size(&change));
            let shown = match view {
                Some(view) => view.show(change),
                None => Some(change),
            };
            if shown.is_some() && self.is_full() {
                self.page.more = true;
                return self.end_page(None);
            }
            self.advance(position);
            self.scanned += 1;
            read_bytes += bytes;
            if let Some(change) = shown {
                self.shown_bytes += bytes;
                self.page.changes.push(change);
            }
        }
        self.scanned_bytes += read_bytes;
        // A read that is short of both its limits has reached the end.
        if count == 0 || (count < asked && read_bytes < self.limits.page_bytes / 2) {
            return self.end_page(None);
        }
        if self.is_full() && self.shown_bytes >= self.limits.page_bytes {
            self.page.more = true;
            return self.end_page(None);
        }
        if self.scanned >= MAX_SCANNED || self.scanned_bytes >= MAX_SCANNED_PAGES * self.limits.page_bytes {
            self.page.more = true;
            return self.end_page(if self.query.order.descending { self.before } else { self.after });
        }
        self.read_items()
    }

    fn is_full(&self) -> bool {
        let count = self.page.changes.len();
        count == self.query.max || (count > 0 && self.shown_bytes >= self.limits.page_bytes)
    }

    /// Everything up to this position was looked at.
    fn advance(&mut self, position: Seq) {
        if self.query.order.descending {
            self.before = Some(position);
        } else {
            self.after = Some(position);
        }
    }

    /// Nothing more is to be read; the last cursor is still missing. `scanned` is where looking stopped, if
    /// that is not the last item.
    fn end_page(&mut self, scanned: Option<Seq>) -> Step {
        let by = self.query.order.by;
        let last = self.page.changes.last();
        if let (None, None) = (last, scanned) {
            let wait = self.query.can_grow() && self.now < self.deadline;
            if wait {
                // What a filter hides stays hidden where it is; only in the other order can an edit show it there.
                if by == By::Modified && self.scanned > 0 {
                    self.settle(self.after);
                }
                return Step::Wait { after: self.head.seq, deadline: self.deadline };
            }
            return self.finish();
        }
        match (scanned, last, self.kind) {
            (None, Some(change), CursorKind::Toc) => {
                let (naming, read) = Naming::new(by, change);
                self.stage = Stage::Name(naming);
                return Step::Read(read);
            }
            (None, Some(change), CursorKind::Sequence) => {
                self.page.last_cursor = Some(self.tag.cursor(by, by.position(change)));
            }
            (scanned, _, _) => self.page.last_cursor = scanned.map(|position| self.tag.cursor(by, position)),
        }
        self.finish()
    }

    fn name(&mut self, progress: (Naming, Option<Read>)) -> Step {
        let (naming, read) = progress;
        if let Some(read) = read {
            self.stage = Stage::Name(naming);
            return Step::Read(read);
        }
        self.page.last_cursor = Some(naming.cursor(&self.tag));
        self.finish()
    }

    fn finish(&mut self) -> Step {
        if self.page.changes.is_empty()
            && self.page.last_cursor.is_none()
            && let Some(Spec::Cursor(cursor)) = &self.query.since
        {
            self.page.last_cursor = Some(cursor.clone());
        }
        self.stage = Stage::Idle;
        let empty = Page::empty(self.page.total, self.page.updated);
        Step::Page(Box::new(std::mem::replace(&mut self.page, empty)))
    }
}

/// About how many bytes a change takes in a document.
fn size(change: &Change) -> usize {
    let item = &change.item;
    let texts = [&item.title, &item.summary, &item.url];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    200 + item.id.len() + texts + item.content.as_ref().map_or(0, |content| content.bytes.len())
}
