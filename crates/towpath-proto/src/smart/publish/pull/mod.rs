//! State machine of a pull request ("Pull Interface", "HTTP Pull"): from a query to a page, by reads of the log.
//!
//! Call [`Pull::begin`], then perform each [`PullStep`] until there is a [`PullPage`]. Pass the result of a read to
//! [`Pull::handle_read`]. To wait, park the request: after an append run [`Pull::waiting_query`], at the deadline call
//! [`Pull::handle_timeout`].

mod resolve;
mod toc_encoder;

use jiff::Timestamp;

use self::resolve::{PendingResolve, RangeEnd, ResolveContext, ResolveProgress};
use self::toc_encoder::TocEncoder;
use super::cursor::{self, CursorKind, LogTag, ParsedCursor};
pub use super::error::PullError;
use super::filter::FilterView;
use super::log_read::{LogRead, LogReadHead, LogReadResult};
pub use super::page::PullPage;
use super::query::{PullLimits, PullQuery};
pub use super::settings::FeedSettings;
use crate::change::{Change, Seq};
use crate::smart::wire::spec::{OrderBy, PositionSpec};

/// Maximum number of items that are read for one page if a filter hides most of them. The page then has a cursor to
/// continue from, even if it has no items.
pub const MAX_SCANNED: usize = 10_000;

// Hidden items may be large, so counting them does not bound the bytes.
/// Maximum number of full pages of hidden items that are read for one page.
const MAX_SCANNED_PAGES: usize = 8;

/// Number of items per read if a filter hides some.
const FILTER_BATCH: usize = 500;

/// The next step of a pull request.
#[derive(Debug)]
pub enum PullStep {
    /// Read the log, and call [`Pull::handle_read`].
    Read(LogRead),
    /// Wait until the log has a change after `after`, then run [`Pull::waiting_query`]. At the deadline call
    /// [`Pull::handle_timeout`].
    Wait {
        /// The head of the log when it was read.
        after: Seq,
        /// Time to respond without items.
        deadline: Timestamp,
    },
    /// Respond with this page.
    Page(Box<PullPage>),
}

#[derive(Debug)]
enum PullStage {
    ReadHead,
    Resolve(PendingResolve, RangeEnd),
    ReadItems,
    EncodeCursor(TocEncoder),
    Idle,
}

/// A pull request in progress.
#[derive(Debug)]
pub struct Pull {
    query: PullQuery,
    tag: LogTag,
    kind: CursorKind,
    is_replica: bool,
    limits: PullLimits,
    now: Timestamp,
    deadline: Timestamp,
    head: LogReadHead,
    /// Position specs still to be resolved, with the end of the range that each limits.
    specs: Vec<(PositionSpec, RangeEnd)>,
    after: Option<Seq>,
    before: Option<Seq>,
    /// `since` of the waiting query: a position that later appends do not change.
    waiting_since: Option<PositionSpec>,
    stage: PullStage,
    page: PullPage,
    scanned: usize,
    scanned_bytes: usize,
    page_bytes: usize,
}

impl Pull {
    /// Creates the state machine for a request that arrived at `now`.
    pub fn new(query: PullQuery, feed: &FeedSettings, now: Timestamp) -> Self {
        // In a descending order `since` is the later end: the names follow the order, not the log.
        let (since, until) = if query.order.descending {
            (RangeEnd::Before, RangeEnd::After)
        } else {
            (RangeEnd::After, RangeEnd::Before)
        };
        let mut specs = Vec::new();
        specs.extend(query.until.clone().map(|spec| (spec, until)));
        specs.extend(query.since.clone().map(|spec| (spec, since)));
        Self {
            deadline: now
                .saturating_add(jiff::SignedDuration::try_from(query.timeout).unwrap_or_default())
                .unwrap_or(now),
            tag: feed.tag.clone(),
            kind: feed.kind,
            is_replica: false,
            limits: feed.limits,
            now,
            head: LogReadHead { seq: 0, modified: Timestamp::UNIX_EPOCH, items: 0, horizon: 0 },
            specs,
            after: None,
            before: None,
            waiting_since: None,
            stage: PullStage::ReadHead,
            page: PullPage::empty(0, Timestamp::UNIX_EPOCH),
            scanned: 0,
            scanned_bytes: 0,
            page_bytes: 0,
            query,
        }
    }

    /// States whether other replicas of the log may be ahead. Then a cursor beyond its head is [`PullError::Behind`].
    #[must_use]
    pub fn of_replica(self, is_replica: bool) -> Self {
        Self { is_replica, ..self }
    }

    /// Returns the query.
    pub fn query(&self) -> &PullQuery {
        &self.query
    }

    /// Returns the first step.
    pub fn begin(&mut self) -> PullStep {
        self.stage = PullStage::ReadHead;
        PullStep::Read(LogRead::Head)
    }

    /// Handles the result of a read.
    ///
    /// `view` is the reader's filtered view, with every change up to the log's head applied.
    pub fn handle_read(
        &mut self,
        result: LogReadResult,
        view: Option<&FilterView>,
    ) -> Result<PullStep, PullError> {
        match (std::mem::replace(&mut self.stage, PullStage::Idle), result) {
            (PullStage::ReadHead, LogReadResult::Head(head)) => {
                self.head = head;
                self.check_positions()?;
                self.page.updated = head.modified;
                self.page.horizon = head.horizon;
                self.page.total = view.map_or(head.items, FilterView::total);
                Ok(self.resolve_next())
            }
            (PullStage::Resolve(pending, end), result) => {
                // A hidden item is unknown to this reader: its id must not reveal that it exists.
                if let LogReadResult::Item(Some(change)) = &result
                    && view.is_some_and(|view| view.visibility(change).is_none())
                {
                    return Err(PullError::UnknownId(change.item.id.clone()));
                }
                let progress = self.context(end).resume(pending, result)?;
                Ok(self.handle_progress(progress, end))
            }
            (PullStage::ReadItems, LogReadResult::Items(changes)) => Ok(self.add_items(changes, view)),
            (PullStage::EncodeCursor(encoder), LogReadResult::Position(start)) => {
                Ok(self.encode_cursor(encoder.started(start)))
            }
            (PullStage::EncodeCursor(encoder), LogReadResult::Items(changes)) => {
                Ok(self.encode_cursor(encoder.counted(&changes)))
            }
            _ => Err(PullError::UnexpectedResult),
        }
    }

    /// Returns the query to run after an append.
    ///
    /// It is equal for all requests that wait at the same position, so they share one response; its timeout is the
    /// longest allowed. A response at the deadline is not shared: an empty page echoes its own client's cursor.
    pub fn waiting_query(&self) -> PullQuery {
        PullQuery {
            since: self.waiting_since.clone(),
            timeout: self.limits.max_timeout,
            has_timeout: true,
            ..self.query.clone()
        }
    }

    /// Handles the deadline: nothing was appended until then.
    pub fn handle_timeout(&mut self) -> PullStep {
        self.finish()
    }

    fn context(&self, end: RangeEnd) -> ResolveContext<'_> {
        ResolveContext { tag: &self.tag, by: self.query.order.by, end, head: self.head }
    }

    /// Fails if a replica does not have a position of the query yet.
    fn check_positions(&self) -> Result<(), PullError> {
        for (spec, _) in self.specs.iter().filter(|_| self.is_replica) {
            if let PositionSpec::Cursor(text) = spec
                && let Some(seq) =
                    cursor::read(text, &self.tag, self.query.order.by).and_then(ParsedCursor::seq)
                && seq > self.head.seq
            {
                return Err(PullError::Behind(seq));
            }
        }
        Ok(())
    }

    fn resolve_next(&mut self) -> PullStep {
        let Some((spec, end)) = self.specs.pop() else { return self.read_items() };
        let progress = self.context(end).start(&spec);
        self.handle_progress(progress, end)
    }

    fn handle_progress(&mut self, progress: ResolveProgress, end: RangeEnd) -> PullStep {
        match (progress, end) {
            (ResolveProgress::Read(pending, read), end) => {
                self.stage = PullStage::Resolve(pending, end);
                return PullStep::Read(read);
            }
            (ResolveProgress::At(Some(position)), RangeEnd::After) if self.is_behind_horizon(position) => {
                self.page.reset = true;
                self.begin_after(None);
            }
            (ResolveProgress::At(position), RangeEnd::After) => self.begin_after(position),
            (ResolveProgress::At(position), RangeEnd::Before) => self.before = position,
            (ResolveProgress::Unknown, RangeEnd::After) => {
                // Followers go up an order. In a descending one this end is `until`.
                self.page.reset = !self.query.order.descending;
                self.begin_after(None);
            }
            (ResolveProgress::Unknown, RangeEnd::Before) => self.before = None,
            (ResolveProgress::Ahead(span), _) => {
                // Appends before that time are outside the range, so the wait is for the time and not for the head.
                self.after = Some(self.head.seq);
                self.waiting_since = Some(PositionSpec::Time(span));
            }
        }
        self.resolve_next()
    }

    /// Returns true if deletions after the client's position may have been let go, so that it has to begin anew.
    ///
    /// A client that begins at the start is not behind, nor is one that replays what is left up to the horizon. By
    /// creation nobody is told of later versions, so nothing is missed. A time is a choice, not what a client has.
    fn is_behind_horizon(&self, position: Seq) -> bool {
        let (order, horizon) = (self.query.order, self.head.horizon);
        if order.descending || order.by != OrderBy::Modified || position == 0 || position >= horizon {
            return false;
        }
        let Some(PositionSpec::Cursor(text)) = &self.query.since else { return false };
        !matches!(cursor::read(text, &self.tag, order.by), Some(ParsedCursor::Replay(_, since)) if since == horizon)
    }

    /// Returns the cursor of a position, as this request read the log.
    fn cursor(&self, position: Seq) -> String {
        self.tag.cursor_within(self.query.order.by, position, self.head.horizon)
    }

    /// Sets the begin of the range: after this position.
    fn begin_after(&mut self, position: Option<Seq>) {
        self.after = position;
        self.waiting_since = position.map(|at| PositionSpec::Cursor(self.cursor(at)));
    }

    /// Returns the number of items of the next read: one more than fits, to learn if there is more.
    fn batch_size(&self) -> usize {
        // Without a filter the first read is exact. If it hid items, larger reads reach visible ones in fewer steps.
        let room = self.query.max + 1 - self.page.changes.len();
        if self.scanned == 0 { room } else { room.max(FILTER_BATCH) }
    }

    fn read_items(&mut self) -> PullStep {
        // Zero asks for the total only (RSM); HTTP refuses it.
        if self.query.max == 0 {
            return self.finish();
        }
        let order = self.query.order;
        // Nothing is after the head that was read. Later appends belong to the next page.
        if !order.descending && self.after.is_some_and(|after| after >= self.head.seq) {
            return self.end_page(None);
        }
        self.stage = PullStage::ReadItems;
        PullStep::Read(LogRead::Items {
            by: order.by,
            after: self.after,
            before: self.before,
            descending: order.descending,
            items: self.batch_size(),
            bytes: self.limits.page_bytes,
        })
    }

    fn add_items(&mut self, changes: Vec<Change>, view: Option<&FilterView>) -> PullStep {
        let (requested, count, mut read_bytes) = (self.batch_size(), changes.len(), 0);
        for change in changes {
            let (position, bytes) = (self.query.order.by.position(&change), approximate_size(&change));
            let shown = match view {
                Some(view) => view.show(change),
                None => Some(change),
            };
            // One visible item more than fits proves that there is a next page.
            if shown.is_some() && self.is_full() {
                self.page.more = true;
                return self.end_page(None);
            }
            self.advance(position);
            self.scanned += 1;
            read_bytes += bytes;
            if let Some(change) = shown {
                self.page_bytes += bytes;
                self.page.changes.push(change);
            }
        }
        self.scanned_bytes += read_bytes;
        // A read that is below both its limits has reached the end. Half the bytes: sizes are approximate.
        if count == 0 || (count < requested && read_bytes < self.limits.page_bytes / 2) {
            return self.end_page(None);
        }
        // Full by bytes, without an item to spare: more is assumed, and the next page may be empty.
        if self.is_full() && self.page_bytes >= self.limits.page_bytes {
            self.page.more = true;
            return self.end_page(None);
        }
        // Bounded work: a filter that hides a million items must not hold a thread for all of them.
        if self.scanned >= MAX_SCANNED || self.scanned_bytes >= MAX_SCANNED_PAGES * self.limits.page_bytes {
            self.page.more = true;
            return self.end_page(if self.query.order.descending { self.before } else { self.after });
        }
        self.read_items()
    }

    fn is_full(&self) -> bool {
        let count = self.page.changes.len();
        count == self.query.max || (count > 0 && self.page_bytes >= self.limits.page_bytes)
    }

    /// Moves the begin of the remaining range past this position.
    fn advance(&mut self, position: Seq) {
        if self.query.order.descending {
            self.before = Some(position);
        } else {
            self.after = Some(position);
        }
    }

    /// Ends reading; only the last cursor is missing. `scanned` is the last position that was read, if it is not that of
    /// the last item.
    fn end_page(&mut self, scanned: Option<Seq>) -> PullStep {
        let by = self.query.order.by;
        let last = self.page.changes.last();
        if let (None, None) = (last, scanned) {
            // An empty page of an open range: a long poll, until the deadline.
            // A reset is told at once: a shared response to waiters could not tell it.
            let wait = self.query.can_grow() && self.now < self.deadline && !self.page.reset;
            if wait {
                // A hidden version stays hidden, so in this order the wait can begin after it, and all readers of
                // the filter share one. By creation an edit can make an item visible at its old position.
                if by == OrderBy::Modified && self.scanned > 0 {
                    self.begin_after(self.after);
                }
                return PullStep::Wait { after: self.head.seq, deadline: self.deadline };
            }
            return self.finish();
        }
        match (scanned, last, self.kind) {
            // T+O+C has no room for a horizon, and every feed accepts both kinds.
            (None, Some(change), CursorKind::Toc)
                if by == OrderBy::Created || by.position(change) >= self.head.horizon =>
            {
                let (encoder, read) = TocEncoder::new(by, change);
                self.stage = PullStage::EncodeCursor(encoder);
                return PullStep::Read(read);
            }
            (None, Some(change), _) => self.page.last_cursor = Some(self.cursor(by.position(change))),
            // Only the position of a hidden item is known, so a T+O+C feed has a sequence cursor here too.
            (scanned, _, _) => self.page.last_cursor = scanned.map(|position| self.cursor(position)),
        }
        self.finish()
    }

    fn encode_cursor(&mut self, progress: (TocEncoder, Option<LogRead>)) -> PullStep {
        let (encoder, read) = progress;
        if let Some(read) = read {
            self.stage = PullStage::EncodeCursor(encoder);
            return PullStep::Read(read);
        }
        self.page.last_cursor = Some(encoder.cursor(&self.tag));
        self.finish()
    }

    fn finish(&mut self) -> PullStep {
        // A cursor of this log, so that the client is told once.
        if self.page.reset && self.page.last_cursor.is_none() {
            let start = self.after.unwrap_or_default();
            self.page.last_cursor = Some(self.cursor(start));
        }
        // A client that polls an idle feed keeps its cursor: without it, it would begin again.
        if self.page.changes.is_empty()
            && self.page.last_cursor.is_none()
            && let Some(PositionSpec::Cursor(cursor)) = &self.query.since
        {
            self.page.last_cursor = Some(cursor.clone());
        }
        self.stage = PullStage::Idle;
        let empty = PullPage::empty(self.page.total, self.page.updated);
        PullStep::Page(Box::new(std::mem::replace(&mut self.page, empty)))
    }
}

/// Returns the approximate size of a change in a document, in bytes.
fn approximate_size(change: &Change) -> usize {
    let item = &change.item;
    let texts = [&item.title, &item.summary, &item.url];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    // 200 bytes for names, times and brackets.
    200 + item.id.len() + texts + item.content.as_ref().map_or(0, |content| content.bytes.len())
}

#[cfg(test)]
mod tests;
