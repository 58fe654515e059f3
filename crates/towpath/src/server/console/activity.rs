//! Changes of each feed by day: new, changed and removed items of the last 30 days.
//!
//! The counts are in memory with each feed that somebody looked at, and move on by the changes that were appended since. So
//! a view reads each change once, and an append costs nothing. After a start they begin with those that the store keeps
//! ([`change_counts`]). The rest is counted beside the view, or, if it is long, by the task that keeps them; the view says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use parking_lot::Mutex;
use towpath_proto::change::{Change, Seq};

use super::clock::{day_of, start_of};
use crate::engine::change_counts::{self, ChangeCounts, HourlyCounts, PAGE};
use crate::engine::{Engine, Feed};
use crate::store_error::StoreError;

/// Days that are counted.
pub(super) const DAYS: usize = 30;
/// Longest time that a view waits for counts.
const PATIENCE: Duration = Duration::from_millis(40);
/// Most changes that are counted for a view. More are left to the task that keeps the counts.
const MAX_BEHIND: Seq = 20_000;

/// Counts of the last days, oldest first, and the position up to which they count.
#[derive(Debug, Clone, Default)]
struct DailyCounts {
    upto: Seq,
    /// Day of the last entry, since 1970.
    last_day: i64,
    days: VecDeque<ChangeCounts>,
}

impl DailyCounts {
    /// Moves the window so that it ends with a day.
    fn roll(&mut self, today: i64) {
        if self.days.is_empty() {
            self.days = vec![ChangeCounts::default(); DAYS].into();
            self.last_day = today;
        }
        let passed = today.saturating_sub(self.last_day).clamp(0, DAYS as i64);
        for _ in 0..passed {
            self.days.pop_front();
            self.days.push_back(ChangeCounts::default());
        }
        self.last_day = self.last_day.max(today);
    }

    fn day(&mut self, day: i64) -> Option<&mut ChangeCounts> {
        // A mirror's clock may be ahead: such a change counts for today.
        let age = self.last_day - day.min(self.last_day);
        let index = usize::try_from(age).ok().and_then(|age| (DAYS - 1).checked_sub(age));
        index.and_then(|index| self.days.get_mut(index))
    }

    fn add(&mut self, changes: &[Change]) {
        for change in changes {
            self.upto = change.seq;
            if let Some(day) = self.day(day_of(change.modified)) {
                day.add(change);
            }
        }
    }

    /// Begins anew, with the counts that the store keeps.
    fn replace(&mut self, kept: &HourlyCounts, today: i64) {
        *self = Self { upto: kept.upto, ..Self::default() };
        self.roll(today);
        for (hour, counts) in &kept.hours {
            if let Some(day) = self.day(hour.div_euclid(24)) {
                day.add_all(*counts);
            }
        }
    }
}

/// Counts of a feed.
#[derive(Default)]
struct FeedActivity(Mutex<DailyCounts>);

/// State of the counting: one pass at a time.
#[derive(Default)]
struct CountingPass(AtomicBool);

/// Counts of a feed as a view shows them.
#[derive(Debug, Clone)]
pub(super) struct Activity {
    /// The last [`DAYS`] days, today last.
    pub(super) days: Vec<ChangeCounts>,
    /// True if the log is counted up to its head.
    pub(super) is_complete: bool,
}

/// Returns the counts of feeds, after waiting for a moment if their logs grew.
pub(super) async fn of_feeds(engine: &Arc<Engine>, feeds: &[Arc<Feed>], now: Timestamp) -> Vec<Activity> {
    let behind: Vec<Arc<Feed>> = feeds.iter().filter(|feed| !is_counted(feed)).cloned().collect();
    if !behind.is_empty() {
        // Beside the view, so that the count goes on when the view has waited long enough.
        let pass = engine.runtime.spawn(count(engine.clone(), behind, day_of(now)).boxed());
        let _ = tokio::time::timeout(PATIENCE, pass).await;
    }
    feeds.iter().map(|feed| of_feed(feed, day_of(now))).collect()
}

fn is_counted(feed: &Feed) -> bool {
    let head = feed.head.load(Ordering::Acquire);
    feed.extensions.get::<FeedActivity>().map_or(head == 0, |activity| activity.0.lock().upto >= head)
}

fn of_feed(feed: &Feed, today: i64) -> Activity {
    let is_complete = is_counted(feed);
    let Some(activity) = feed.extensions.get::<FeedActivity>() else {
        return Activity { days: vec![ChangeCounts::default(); DAYS], is_complete };
    };
    let mut counted = activity.0.lock();
    counted.roll(today);
    Activity { days: counted.days.iter().copied().collect(), is_complete }
}

/// Counts the logs of feeds up to their heads.
async fn count(engine: Arc<Engine>, feeds: Vec<Arc<Feed>>, today: i64) {
    let counting = engine.extensions.get_or_insert_with(CountingPass::default);
    // Two passes would count the same changes. The next view begins another one.
    if counting.0.swap(true, Ordering::AcqRel) {
        return;
    }
    for feed in feeds {
        if let Err(e) = count_feed(&engine, &feed, today).await {
            tracing::debug!(feed = %feed.id(), error = %e, "cannot count the changes by day");
        }
    }
    counting.0.store(false, Ordering::Release);
}

async fn count_feed(engine: &Engine, feed: &Feed, today: i64) -> Result<(), StoreError> {
    let activity = feed.extensions.get_or_insert_with(FeedActivity::default);
    let head = feed.head.load(Ordering::Acquire);
    let mut after = activity.0.lock().upto;
    if after == 0 || head.saturating_sub(after) > MAX_BEHIND {
        let (from, to) = (start_of(today - DAYS as i64 + 1), jiff::Timestamp::MAX);
        let kept = change_counts::read(engine, feed, from, to).await?;
        // Changes from before these days count for nothing here.
        let before = engine.store.last_before(feed.log(), from).await?;
        let kept = HourlyCounts { upto: kept.upto.max(before), ..kept };
        if kept.upto > after {
            after = kept.upto;
            activity.0.lock().replace(&kept, today);
        }
    }
    if head.saturating_sub(after) > MAX_BEHIND {
        return Ok(());
    }
    loop {
        let changes = engine.store.read(feed.log(), after, PAGE).await?;
        let Some(last) = changes.last() else { return Ok(()) };
        after = last.seq;
        {
            let mut counted = activity.0.lock();
            counted.roll(today);
            counted.add(&changes);
        }
        // Other tasks of the runtime go on between two reads.
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::{ContentHash, Item, Op};

    use super::*;

    fn change(seq: Seq, op: Op, previous: Option<Seq>, day: i64) -> Change {
        Change {
            seq,
            op,
            modified: start_of(day),
            created: start_of(day),
            first_seq: seq,
            previous,
            item: Item::new("a"),
            patch: None,
            entry_id: None,
            hash: ContentHash::default(),
        }
    }

    #[test]
    fn days_roll_on() {
        let mut counted = DailyCounts::default();
        counted.roll(100);
        counted.add(&[
            change(1, Op::Put, None, 60),
            change(2, Op::Put, None, 71),
            change(3, Op::Patch, Some(2), 100),
            change(4, Op::Delete, Some(3), 100),
            change(5, Op::Put, None, 900),
        ]);
        assert_eq!(counted.upto, 5);
        assert_eq!(counted.days[0], ChangeCounts { new: 1, changed: 0, removed: 0 });
        assert_eq!(counted.days[DAYS - 1], ChangeCounts { new: 1, changed: 1, removed: 1 });
        counted.roll(101);
        assert_eq!((counted.days[0].total(), counted.days[DAYS - 2].total()), (0, 3));
        counted.roll(1000);
        assert_eq!(counted.days.iter().map(|day| day.total()).sum::<u32>(), 0);
    }
}
