//! Way to a page by index (XEP-0059, 2.6). The log keeps no count of the items before one, so the items between the
//! nearer end and the page are read and skipped.

use super::MAX_ITEMS;
use crate::push::xmpp::wire::error::StanzaError;
use crate::push::xmpp::wire::rsm::RsmPlan;
use crate::smart::pull::{FeedSettings, PullPage};
use crate::smart::query::PullQuery;
use crate::smart::spec::{FeedOrder, PositionSpec};

/// Maximum number of items that are skipped for one request.
const MAX_SKIPPED: u64 = 10_000;

/// Walk to the item before a page.
#[derive(Debug)]
pub(super) struct IndexWalk {
    /// Query of the page, without its bounds.
    query: PullQuery,
    /// Index of the page's first item.
    first: u64,
    /// Order in which items are skipped: from the nearer end.
    order: FeedOrder,
    /// Number of items still to skip; `None` until the total is known.
    left: Option<u64>,
}

/// Next step of a walk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WalkStep {
    /// Read this, and go on with the result.
    Skip(PullQuery),
    /// Read this: it is the page, or an empty one if there is no such index.
    Page(RsmPlan),
}

impl IndexWalk {
    /// Begins a walk to the page of `plan`, whose index is `first`. Returns the first query.
    pub(super) fn begin(plan: RsmPlan, first: u64) -> (Self, PullQuery) {
        // A maximum of zero asks for the total, which tells the nearer end.
        let count = PullQuery { max: 0, ..plan.query.clone() };
        (Self { order: count.order, query: plan.query, first, left: None }, count)
    }

    /// Returns the next step after a page was read.
    ///
    /// # Errors
    ///
    /// `feature-not-implemented` if the index is too far from both ends.
    pub(super) fn step(&mut self, feed: &FeedSettings, page: &PullPage) -> Result<WalkStep, StanzaError> {
        let by = self.query.order.by;
        let left = match self.left {
            None if self.first >= page.total => return Ok(self.beyond()),
            None => return self.choose_end(page.total),
            Some(left) => left.saturating_sub(page.changes.len() as u64),
        };
        let last = page.changes.last().map(|change| page.cursor(&feed.tag, by, change));
        self.left = Some(left);
        match (left, last.or_else(|| page.last_cursor.clone())) {
            (0, Some(cursor)) => {
                let query = PullQuery { since: Some(PositionSpec::Cursor(cursor)), ..self.query.clone() };
                Ok(WalkStep::Page(RsmPlan { query, backwards: false, index: Some(self.first), reset: false }))
            }
            (1.., Some(cursor)) if page.more => Ok(self.skip(Some(cursor), left)),
            // Items went away meanwhile.
            _ => Ok(self.beyond()),
        }
    }

    fn choose_end(&mut self, total: u64) -> Result<WalkStep, StanzaError> {
        // From the end, the item before the page is skipped as well: the page begins after it.
        let from_end = total - self.first + 1;
        let left = self.first.min(from_end);
        if left > MAX_SKIPPED {
            let why = format!("an index is within {MAX_SKIPPED} items of either end; use after or before");
            return Err(StanzaError::NOT_IMPLEMENTED.because(why));
        }
        if from_end < self.first {
            self.order = FeedOrder { descending: !self.order.descending, ..self.order };
        }
        self.left = Some(left);
        Ok(self.skip(None, left))
    }

    fn skip(&self, since: Option<String>, left: u64) -> WalkStep {
        let max = usize::try_from(left).unwrap_or(MAX_ITEMS).min(MAX_ITEMS);
        let since = since.map(PositionSpec::Cursor);
        WalkStep::Skip(PullQuery { order: self.order, since, max, ..self.query.clone() })
    }

    /// An empty page, with the total only.
    fn beyond(&self) -> WalkStep {
        let query = PullQuery { max: 0, ..self.query.clone() };
        WalkStep::Page(RsmPlan { query, backwards: false, index: None, reset: false })
    }
}
