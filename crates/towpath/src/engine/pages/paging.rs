//! Dividing a feed's log into pages.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::sync::MutexGuard;
use towpath_proto::change::{Change, Seq};
use towpath_proto::replication::pages::{PageSpan, Pager};
use towpath_store::{Condition, StoreError, Table, Write};

use super::table::{self, Sealed};
use super::{READ, cleanup, limits};
use crate::engine::record;
use crate::engine::replication::served::{build, keep_sealed};
use crate::engine::replication::table::Made;
use crate::engine::{Engine, Feed};

/// How often it is gone on where other nodes seal the same pages.
const TRIES: usize = 20;

/// How far a feed's log is divided into pages.
pub(super) struct Paging {
    pager: Pager,
    /// The last place that stands on a page.
    reached: Seq,
    /// The last sealed page, and its record as it is stored.
    last: Option<PageSpan>,
    stored: Option<Bytes>,
    /// Why it does not go on.
    stuck: Option<Stuck>,
}

/// A page that is full and cannot be sealed, because nothing can be written for now.
struct Stuck {
    page: PageSpan,
    error: StoreError,
}

impl Paging {
    async fn load(engine: &Engine, feed: &Feed) -> Result<Self, StoreError> {
        let key = table::last_key(feed.id());
        let stored = engine.store.get(Table::Chains, &key).await?;
        let last: Option<PageSpan> = stored.as_ref().map(|value| record::parse(&key, value)).transpose()?;
        let pager = Pager::after(last.as_ref(), limits(feed));
        Ok(Self { pager, reached: last.map_or(0, |page| page.last), last, stored, stuck: None })
    }

    /// Stores sealed pages. From here on they have a `next`: the change that sealed the last of them is in the
    /// log, so that the link leads to a page.
    async fn keep(&mut self, engine: &Engine, feed: &Feed, sealed: &[Sealed]) -> Result<(), StoreError> {
        let Some(last) = sealed.last() else { return Ok(()) };
        let record = |page: &Sealed| record::put(table::page_key(feed.id(), page.span.number), page);
        let mut writes: Vec<Write> = sealed.iter().map(record).collect();
        let key = table::last_key(feed.id());
        let unmoved = Condition { table: Table::Chains, key: key.clone(), value: self.stored.clone() };
        let write = record::put(key, &last.span);
        let stored = write.value.clone();
        writes.push(write);
        engine.store.write(writes, vec![unmoved]).await?;
        (self.last, self.stored) = (Some(last.span), stored);
        Ok(())
    }
}

/// Seals what was left at the last end, if that is more than a page. Less waits until somebody asks.
pub(super) async fn begin(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<(), StoreError> {
    // In this order: what is sealed is never behind the head.
    let kept = Paging::load(engine, feed).await?;
    let head = engine.store.head(feed.id()).await?;
    if head.seq - kept.reached > limits(feed).entities { catch_up(engine, feed).await } else { Ok(()) }
}

/// Puts every change of the log on a page.
pub(super) async fn catch_up(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<(), StoreError> {
    let mut held = caught_up(engine, feed).await?;
    let stuck = held.take_if(|paging| paging.stuck.is_some()).and_then(|paging| paging.stuck);
    stuck.map_or(Ok(()), |stuck| Err(stuck.error))
}

/// The same; the result is how far the log is divided, and stays so while it is held. Where nothing can be written,
/// that is no further than to the end of the first page that would have to be sealed: it can be read all the same.
async fn caught_up<'a>(
    engine: &Arc<Engine>,
    feed: &'a Arc<Feed>,
) -> Result<MutexGuard<'a, Option<Box<Paging>>>, StoreError> {
    let mut held = feed.pages.paging.lock().await;
    for _ in 0..TRIES {
        match go_on(engine, feed, &mut held).await {
            // Another node has sealed the same page: the same bytes, by the same rules.
            Err(StoreError::Condition) => {}
            done => return done.map(|()| held),
        }
    }
    Err(StoreError::Condition)
}

async fn go_on(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    held: &mut Option<Box<Paging>>,
) -> Result<(), StoreError> {
    // Where anything fails, what is stored is read anew.
    let mut paging = match held.take() {
        Some(paging) if paging.stuck.is_none() => paging,
        _ => Box::new(Paging::load(engine, feed).await?),
    };
    // The newest page's changes, as far as they were read just now.
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
                let page = build(engine, feed, &span, std::mem::take(&mut open)).await?;
                sealed.push(Sealed { span, made: Made::of(&page) });
                newest = Some(page);
            }
            paging.reached = change.seq;
            open.push(change);
        }
        match (paging.keep(engine, feed, &sealed).await, sealed.first()) {
            (Ok(()), _) => {}
            (Err(error @ (StoreError::Write(_) | StoreError::Unavailable { .. })), Some(first)) => {
                paging.stuck = Some(Stuck { page: first.span, error });
                break;
            }
            (Err(error), _) => return Err(error),
        }
        if let (Some(sealed), Some(page)) = (sealed.last(), newest) {
            // Whoever follows asks for the page that was sealed last.
            keep_sealed(engine, feed, sealed, page).await?;
        }
    }
    *held = Some(paging);
    Ok(())
}

/// How a feed's log is divided, at one moment.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Division {
    /// The last sealed page.
    pub(in crate::engine) last: Option<PageSpan>,
    /// The newest page; none while the feed is empty.
    pub(in crate::engine) open: Option<PageSpan>,
}

/// Puts every change of the log on a page, and says how that divides it.
pub(in crate::engine) async fn divided(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
) -> Result<Division, StoreError> {
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

/// The number of the sealed page that holds a place, which is on one of the pages `numbers`, or the first or last
/// of them where it is before or behind. Logarithmic.
pub(in crate::engine) async fn number_at(
    engine: &Engine,
    feed: &Feed,
    place: Seq,
    numbers: RangeInclusive<u64>,
) -> Result<u64, StoreError> {
    // The last page that begins at the place or before it is in first..=last.
    let (mut first, mut last) = numbers.into_inner();
    while first < last {
        let middle = first + (last - first).div_ceil(2);
        let page = table::sealed(engine.store.as_ref(), feed.id(), middle).await?;
        if page.is_some_and(|page| page.span.first <= place) {
            first = middle;
        } else {
            last = middle - 1;
        }
    }
    Ok(first)
}

/// The page on which the first change of a time or later stands; the newest page where there is none yet, the
/// oldest listed page where that one was let go. None while the feed is empty. Logarithmic.
pub async fn page_since(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    time: Timestamp,
) -> Result<Option<u64>, StoreError> {
    let wanted = engine.store.last_before(feed.id(), time).await? + 1;
    page_at(engine, feed, wanted).await
}

/// The page on which a place of the log stands; the newest page where that is not taken yet, the oldest listed page
/// where its page was let go. None while the feed is empty. Logarithmic.
pub(in crate::engine) async fn page_at(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    place: Seq,
) -> Result<Option<u64>, StoreError> {
    let Division { last, open: Some(open) } = divided(engine, feed).await? else { return Ok(None) };
    if place >= open.first {
        return Ok(Some(open.number));
    }
    let first = cleanup(engine, feed).await?.first_page.max(1);
    let sealed = last.map_or(0, |page| page.number).max(first);
    number_at(engine, feed, place, first..=sealed).await.map(Some)
}
