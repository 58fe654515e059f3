//! Rows of the list of feeds: read, filtered, sorted, paged.

use std::cmp::Reverse;
use std::sync::Arc;

use towpath_store::LogHead;

use super::super::activity::{self, Activity};
use super::super::health::{self, FeedState, Health};
use super::super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::engine::Feed;

/// Rows of a page.
pub(super) const ROWS: usize = 100;

/// Column by which the feeds are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortBy {
    Title,
    Items,
    Changed,
    State,
}

impl SortBy {
    pub(super) const ALL: [Self; 4] = [Self::Title, Self::State, Self::Items, Self::Changed];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Title => "title",
            Self::Items => "items",
            Self::Changed => "changed",
            Self::State => "state",
        }
    }

    fn of(name: Option<&str>) -> Self {
        Self::ALL.into_iter().find(|by| name == Some(by.name())).unwrap_or(Self::Title)
    }
}

/// A feed in the list.
pub(super) struct FeedRow {
    pub(super) feed: Arc<Feed>,
    /// Head of its log; `None` for a filter, which has none of its own.
    pub(super) head: Option<LogHead>,
    pub(super) health: Health,
    pub(super) activity: Option<Activity>,
}

impl FeedRow {
    /// Returns the kind of a feed by where its items come from.
    pub(super) fn kind(&self) -> &'static str {
        let config = &self.feed.config;
        match () {
            () if self.feed.is_filter() => "filter",
            () if config.mirrored().is_some() => "mirror",
            () if self.feed.is_polled() => "polled",
            () => "published",
        }
    }
}

/// A page of the list.
pub(super) struct FeedList {
    pub(super) rows: Vec<FeedRow>,
    /// Number of feeds that the reader may read.
    pub(super) total: usize,
    /// Number of them that the filter lets through.
    pub(super) matching: usize,
    /// Number of this page, from 1.
    pub(super) page: usize,
    pub(super) pages: usize,
    pub(super) sort: SortBy,
    /// Number of feeds in each state.
    pub(super) states: Vec<(FeedState, usize)>,
}

/// Reads the page of the list that the query asks for.
pub(super) async fn read(visit: &Visit) -> Result<FeedList, RouteError> {
    let feeds = visit.feeds();
    let total = feeds.len();
    let mut rows = Vec::with_capacity(total);
    for (feed, _) in feeds {
        let head = match feed.is_filter() {
            true => None,
            false => Some(visit.engine.store.head(feed.log()).await?),
        };
        let health = health::of_feed(visit, &feed).await?;
        rows.push(FeedRow { feed, head, health, activity: None });
    }
    let count = |state| rows.iter().filter(|row: &&FeedRow| row.health.state == state).count();
    let states =
        FeedState::ALL.into_iter().map(|state| (state, count(state))).filter(|(_, count)| *count > 0);
    let states = states.collect();
    let (text, state) = (visit.query.search().0.to_lowercase(), visit.query.get("state"));
    rows.retain(|row| {
        state.is_none_or(|state| row.health.state.name() == state)
            && (text.is_empty() || has_text(row, &text))
    });
    let sort = SortBy::of(visit.query.get("sort"));
    sort_rows(&mut rows, sort);
    let (matching, pages) = (rows.len(), rows.len().div_ceil(ROWS).max(1));
    let asked = visit.query.number("page")?.unwrap_or(1);
    let page = usize::try_from(asked).unwrap_or(pages).clamp(1, pages);
    let mut rows: Vec<FeedRow> = rows.into_iter().skip((page - 1) * ROWS).take(ROWS).collect();
    add_activity(visit, &mut rows).await;
    Ok(FeedList { rows, total, matching, page, pages, sort, states })
}

fn has_text(row: &FeedRow, text: &str) -> bool {
    let config = &row.feed.config;
    row.feed.id().as_str().contains(text)
        || config.title().to_lowercase().contains(text)
        || config.tags.iter().any(|tag| tag.to_lowercase().contains(text))
        || row.health.reason.to_lowercase().contains(text)
}

fn sort_rows(rows: &mut [FeedRow], by: SortBy) {
    match by {
        // Sorted by id already, which decides among equals.
        SortBy::Title => rows.sort_by_cached_key(|row| row.feed.config.title().to_lowercase()),
        SortBy::Items => rows.sort_by_key(|row| Reverse(row.head.map(|head| head.live))),
        SortBy::Changed => rows.sort_by_key(|row| Reverse(row.head.map(|head| head.modified))),
        SortBy::State => rows.sort_by_key(|row| row.health.state),
    }
}

async fn add_activity(visit: &Visit, rows: &mut [FeedRow]) {
    // A filter has no log of its own to count.
    let with_log = |row: &FeedRow| !row.feed.is_filter();
    let feeds: Vec<Arc<Feed>> = rows.iter().filter(|row| with_log(row)).map(|row| row.feed.clone()).collect();
    let mut counted = activity::of_feeds(&visit.engine, &feeds, visit.now).await.into_iter();
    for row in rows.iter_mut().filter(|row| with_log(row)) {
        row.activity = counted.next();
    }
}
