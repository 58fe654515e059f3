//! Dividing a feed's log into pages.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::MutexGuard;
use towpath_proto::change::{Change, Seq};
use towpath_proto::replication::pages::{PageSpan, Pager};
use towpath_store::{Precondition, Table, TableWrite};

use crate::engine::{Engine, Feed, json_record};
use crate::protocols::pages::cleanup::{cleanup, versioned_cleanup};
use crate::protocols::pages::log_range::{READ, build_page, limits};
use crate::protocols::pages::state::Pages;
use crate::protocols::pages::table::{self, PageHeaders, SealedPage};
use crate::store_error::StoreError;

/// Attempts while other nodes seal the same pages.
// Each conflict means that another node sealed a page, so the log gets divided in any case.
const TRIES: usize = 20;

/// Progress of a feed's division into pages.
pub(crate) struct Paging {
    pager: Pager,
    /// Last position that is on a page.
    reached: Seq,
    /// The last sealed page, and its record as it is stored.
    last: Option<PageSpan>,
    stored: Option<Bytes>,
    /// Cause why sealing does not continue.
    stuck: Option<UnsealedPage>,
}

/// State of one feed's paging; `None` before a page was needed.
#[derive(Default)]
struct FeedPaging(tokio::sync::Mutex<Option<Box<Paging>>>);

fn feed_paging(feed: &Feed) -> &tokio::sync::Mutex<Option<Box<Paging>>> {
    &feed.extensions.get_or_insert_with(FeedPaging::default).0
}

/// A full page that cannot be sealed, because the store takes no writes for now.
struct UnsealedPage {
    page: PageSpan,
    error: StoreError,
}

impl Paging {
    async fn load(engine: &Engine, feed: &Feed) -> Result<Self, StoreError> {
        let key = table::last_key(feed.id());
        let stored = engine.store.get(Table::Chains, &key).await?;
        let last: Option<PageSpan> =
            stored.as_ref().map(|value| json_record::parse(&key, value)).transpose()?;
        let pager = Pager::after(last.as_ref(), limits(feed));
        Ok(Self { pager, reached: last.map_or(0, |page| page.last), last, stored, stuck: None })
    }

    /// Stores the records of sealed pages.
    ///
    /// From here on the pages have a `next` link. The change that sealed the last of them is in the log, so the link
    /// leads to a page.
    async fn save(&mut self, engine: &Engine, feed: &Feed, sealed: &[SealedPage]) -> Result<(), StoreError> {
        let Some(last) = sealed.last() else { return Ok(()) };
        let record = |page: &SealedPage| json_record::put(table::page_key(feed.id(), page.span.number), page);
        let mut writes: Vec<TableWrite> = sealed.iter().map(record).collect();
        let key = table::last_key(feed.id());
        // Only one node may follow the last sealed page, or page numbers would be given twice.
        let unmoved = Precondition { table: Table::Chains, key: key.clone(), value: self.stored.clone() };
        let write = json_record::put(key, &last.span);
        let stored = write.value.clone();
        writes.push(write);
        engine.store.write(writes, vec![unmoved]).await?;
        (self.last, self.stored) = (Some(last.span), stored);
        Ok(())
    }
}

/// Seals the pages that the last run left open, if there is more than one. Less waits for a request.
pub(super) async fn recover(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<(), StoreError> {
    // In this order: sealed pages never end behind the head that is read after them.
    let paging = Paging::load(engine, feed).await?;
    let head = engine.store.head(feed.id()).await?;
    // Fewer changes wait for a request: reading every feed's log would delay the start.
    if head.seq - paging.reached > limits(feed).entities { catch_up(engine, feed).await } else { Ok(()) }
}

/// Puts every change of the log on a page.
pub(crate) async fn catch_up(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<(), StoreError> {
    let mut held = caught_up(engine, feed).await?;
    let stuck = held.take_if(|paging| paging.stuck.is_some()).and_then(|paging| paging.stuck);
    stuck.map_or(Ok(()), |stuck| Err(stuck.error))
}

/// Puts every change of the log on a page, and returns the locked progress.
///
/// If the store takes no writes, the progress ends with the first page that cannot be sealed: readers can still read.
async fn caught_up<'a>(
    engine: &Arc<Engine>,
    feed: &'a Arc<Feed>,
) -> Result<MutexGuard<'a, Option<Box<Paging>>>, StoreError> {
    let mut held = feed_paging(feed).lock().await;
    let mut tries = 1;
    loop {
        match divide(engine, feed, &mut held).await {
            // Another node sealed the same page by the same rules, so with the same bytes.
            Err(error) if error.is_conflict() && tries < TRIES => tries += 1,
            done => return done.map(|()| held),
        }
    }
}

async fn divide(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    held: &mut Option<Box<Paging>>,
) -> Result<(), StoreError> {
    // After any failure the stored state is read again.
    let mut paging = match held.take() {
        Some(paging) if paging.stuck.is_none() => paging,
        _ => Box::new(Paging::load(engine, feed).await?),
    };
    // Changes of the newest page that this call read.
    let mut open: Vec<Change> = Vec::new();
    loop {
        let changes = engine.store.read(feed.id(), paging.reached, READ).await?;
        if changes.is_empty() {
            break;
        }
        let mut sealed = Vec::new();
        let mut newest = None;
        for change in changes {
            if let Some(span) = paging.pager.push(&change) {
                let page = build_page(engine, feed, &span, std::mem::take(&mut open)).await?;
                sealed.push(SealedPage { span, made: PageHeaders::of(&page) });
                newest = Some(page);
            }
            paging.reached = change.seq;
            // After `push`: the change that seals a page is the first of the next one.
            open.push(change);
        }
        match (paging.save(engine, feed, &sealed).await, sealed.first()) {
            (Ok(()), _) => {}
            // A full disk must not stop readers: the page is shown open, without `next`.
            (Err(error), Some(first)) if error.is_transient() => {
                paging.stuck = Some(UnsealedPage { page: first.span, error });
                break;
            }
            (Err(error), _) => return Err(error),
        }
        if let (Some(sealed), Some(page)) = (sealed.last(), newest) {
            // Followers ask for the page that was sealed last, so it is cached at once.
            let cleanup = versioned_cleanup(engine, feed).await?;
            for listener in Pages::of(engine).listeners() {
                (listener.sealed)(engine, feed, sealed, &page, cleanup);
            }
        }
    }
    *held = Some(paging);
    Ok(())
}

/// Division of a feed's log at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Division {
    /// Last sealed page.
    pub(crate) last: Option<PageSpan>,
    /// Newest page; none while the feed is empty.
    pub(crate) open: Option<PageSpan>,
}

/// Puts every change of the log on a page, and returns the division.
pub(crate) async fn divided(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<Division, StoreError> {
    let held = caught_up(engine, feed).await?;
    let paging = held.as_ref();
    Ok(Division {
        last: paging.and_then(|paging| paging.last),
        open: paging.and_then(|paging| match &paging.stuck {
            Some(stuck) => Some(stuck.page),
            None => paging.pager.open(),
        }),
    })
}

/// Returns the number of the sealed page that holds a position, searching the pages `numbers`.
///
/// A position before or after them gives the first or the last page. Logarithmic.
pub(crate) async fn number_at(
    engine: &Engine,
    feed: &Feed,
    position: Seq,
    numbers: RangeInclusive<u64>,
) -> Result<u64, StoreError> {
    // The last page that begins at the position or before it is in first..=last.
    let (mut first, mut last) = numbers.into_inner();
    while first < last {
        // Rounded up: with two left, rounding down would never move `first`.
        let middle = first + (last - first).div_ceil(2);
        let page = table::sealed_page(engine.store.as_ref(), feed.id(), middle).await?;
        if page.is_some_and(|page| page.span.first <= position) {
            first = middle;
        } else {
            last = middle - 1;
        }
    }
    Ok(first)
}

/// Returns the page of the first change at `time` or later.
///
/// Returns the newest page if there is no such change yet, and the oldest listed page if that page was removed; `None`
/// while the feed is empty. Logarithmic.
///
/// # Errors
///
/// [`StoreError`] if the log or the records of pages cannot be read.
pub async fn page_since(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    time: Timestamp,
) -> Result<Option<u64>, StoreError> {
    // Equal times belong together: a reader from that time must get all of them.
    let wanted = engine.store.last_before(feed.id(), time).await? + 1;
    page_at(engine, feed, wanted).await
}

/// Returns the page of a position.
///
/// Returns the newest page if the log does not reach the position, and the oldest listed page if its page was removed;
/// `None` while the feed is empty. Logarithmic.
pub(crate) async fn page_at(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    position: Seq,
) -> Result<Option<u64>, StoreError> {
    let Division { last, open: Some(open) } = divided(engine, feed).await? else { return Ok(None) };
    if position >= open.first {
        return Ok(Some(open.number));
    }
    let first = cleanup(engine, feed).await?.first_page.max(1);
    // The range must not be empty while every sealed page is removed.
    let sealed = last.map_or(0, |page| page.number).max(first);
    number_at(engine, feed, position, first..=sealed).await.map(Some)
}
