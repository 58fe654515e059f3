//! Which change stands on which page, and which pages are kept.
//!
//! Pages number from 1. A page is *sealed* by the first change that has no room on it; that change begins
//! the next page, so a `next` link never leads to an empty page. What is kept is one [`PageSpan`] for each
//! sealed page; the newest page is what follows the last of them in the log, and needs no record.
//!
//! The rule that makes a crash harmless: a page is served as sealed (with its `next`) only once its span is
//! stored, and spans are stored in order. Before that, readers see the newest page without a `next`, filled
//! as far as it goes. After a crash the same changes give the same span again; should the limits have been
//! changed meanwhile, the page is sealed elsewhere, and nobody has seen it sealed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::change::{Change, Seq};

/// How much a page takes. At least one change is on every page, whatever its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimits {
    /// Bytes of all bodies together.
    pub bytes: u64,
    /// How many entities.
    pub entities: u64,
}

impl Default for PageLimits {
    /// 1 MB and 1,000 entities.
    fn default() -> Self {
        Self { bytes: 1_000_000, entities: 1_000 }
    }
}

/// A page's stretch of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageSpan {
    /// The page's number, from 1.
    pub number: u64,
    /// Its first change.
    pub first: Seq,
    /// Its last change.
    pub last: Seq,
    /// Bytes of all bodies together.
    pub bytes: u64,
    /// When its first change was made.
    pub oldest: Timestamp,
    /// When its last change was made: the page's Last-Modified.
    pub modified: Timestamp,
}

/// Fills pages in the order of the log.
#[derive(Debug, Clone)]
pub struct Pager {
    limits: PageLimits,
    number: u64,
    open: Option<PageSpan>,
}

impl Pager {
    /// Goes on after the last sealed page; the next change to push is the one after its last.
    pub fn after(sealed: Option<&PageSpan>, limits: PageLimits) -> Self {
        Self { limits, number: sealed.map_or(1, |page| page.number + 1), open: None }
    }

    /// Adds the next change of the log. Returns the page that is sealed by it, because the change had no
    /// room there.
    pub fn push(&mut self, change: &Change) -> Option<PageSpan> {
        self.push_sized(change.seq, super::entity::body_len(change), change.modified)
    }

    /// The same for a change of which the place, the body's length and the time are known.
    pub fn push_sized(&mut self, seq: Seq, bytes: u64, modified: Timestamp) -> Option<PageSpan> {
        let mut sealed = None;
        if let Some(open) = &mut self.open {
            let entities = open.last - open.first + 1;
            if open.bytes + bytes <= self.limits.bytes && entities < self.limits.entities {
                *open = PageSpan { last: seq, bytes: open.bytes + bytes, modified, ..*open };
                return None;
            }
            sealed = Some(*open);
            self.number += 1;
        }
        let number = self.number;
        self.open = Some(PageSpan { number, first: seq, last: seq, bytes, oldest: modified, modified });
        sealed
    }

    /// The newest page so far; `None` before the first change.
    pub fn open(&self) -> Option<PageSpan> {
        self.open
    }
}

/// How much of a feed's history is kept, and for how long a page that has lost its place in the list can
/// still be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Pages whose last change is older than this are let go, in seconds.
    pub age: Option<i64>,
    /// The oldest pages are let go while all together have more than so many bytes.
    pub bytes: Option<u64>,
    /// How long a page that was let go is still served, in seconds; after that it is gone (410).
    pub grace: i64,
}

/// What retention has done to a feed so far; kept with the page table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cleanup {
    /// The number of the oldest page that is still in the list: it has no `prev`. 0 and 1: nothing was let go.
    pub first_page: u64,
    /// Pages below this number are gone.
    pub gone_below: u64,
}

/// How a page is to be answered for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// In the list.
    Listed,
    /// Out of the list, still to be read until the grace period is over.
    Unlinked,
    /// Answered with 410.
    Gone,
}

impl Cleanup {
    /// How to answer for a page.
    pub fn state(&self, number: u64) -> PageState {
        match number {
            _ if number < self.gone_below => PageState::Gone,
            _ if number < self.first_page => PageState::Unlinked,
            _ => PageState::Listed,
        }
    }

    /// Whether a page has a `prev` link: the oldest listed page has none, and what was let go has none.
    pub fn has_prev(&self, number: u64) -> bool {
        number > 1 && number > self.first_page
    }
}

/// One page that was let go at a time, oldest first; kept until it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetGo {
    /// The page that became the oldest.
    pub first_page: u64,
    /// When.
    pub at: Timestamp,
}

impl Retention {
    /// Decides what to let go and what to drop ("A prev link may be removed from an older page as part of a
    /// gradual cleanup process").
    ///
    /// `sealed` are the spans of the sealed pages that are listed, oldest first; the newest page is always
    /// kept. `pending` are the earlier decisions that have not come to their end. Store the result before
    /// acting on it: first the `prev` of the oldest kept page goes, and only after the grace period do the
    /// pages before it, so that never a page is missing in the middle.
    pub fn decide(
        &self,
        now: Timestamp,
        sealed: &[PageSpan],
        cleanup: Cleanup,
        pending: &mut Vec<LetGo>,
    ) -> Cleanup {
        let listed: Vec<&PageSpan> = sealed.iter().filter(|p| p.number >= cleanup.first_page).collect();
        let mut bytes: u64 = listed.iter().map(|p| p.bytes).sum();
        let mut first_page = cleanup.first_page;
        for page in listed {
            let too_old =
                self.age.is_some_and(|age| page.modified.as_second() < now.as_second().saturating_sub(age));
            let too_much = self.bytes.is_some_and(|limit| bytes > limit);
            if !too_old && !too_much {
                break;
            }
            bytes -= page.bytes;
            first_page = page.number + 1;
        }
        if first_page > cleanup.first_page {
            pending.push(LetGo { first_page, at: now });
        }
        let mut gone_below = cleanup.gone_below;
        pending.retain(|let_go| {
            let over = let_go.at.as_second().saturating_add(self.grace) <= now.as_second();
            if over {
                gone_below = gone_below.max(let_go.first_page);
            }
            !over
        });
        Cleanup { first_page, gone_below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The sizes on each page, the newest page last.
    fn assigned(sizes: &[u64], bytes: u64, entities: u64) -> Vec<Vec<u64>> {
        let mut pager = Pager::after(None, PageLimits { bytes, entities });
        let mut pages = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            pages.extend(pager.push_sized(index as u64 + 1, *size, time(index as i64)));
        }
        pages.extend(pager.open());
        for (index, page) in pages.iter().enumerate() {
            assert_eq!(page.number, index as u64 + 1);
            assert_eq!(
                (page.oldest, page.modified),
                (time(page.first as i64 - 1), time(page.last as i64 - 1))
            );
        }
        pages.iter().map(|p| sizes[p.first as usize - 1..p.last as usize].to_vec()).collect()
    }

    #[test]
    fn case_l_page_assignment() {
        assert!(assigned(&[], 10, 10).is_empty());
        assert_eq!(assigned(&[4, 4, 4, 6, 15, 1], 10, 100), [vec![4, 4], vec![4, 6], vec![15], vec![1]]);
        assert_eq!(assigned(&[1; 5], 100, 2), [vec![1, 1], vec![1, 1], vec![1]]);
        assert_eq!(assigned(&[4, 4, 2, 9, 1], 10, 2), [vec![4, 4], vec![2], vec![9, 1]]);
        assert_eq!(assigned(&[9, 2], 10, 2), [vec![9], vec![2]]);
    }

    #[test]
    fn case_k_page_assignment() {
        let words = |text: &str| text.split(',').map(|w| w.len() as u64).collect::<Vec<_>>();
        assert_eq!(assigned(&words("Hello,World,I,am,a,Snapshot"), 5, 100).len(), 4);
        assert_eq!(assigned(&words("Hello,World,I,am,a,Snapshot"), 100, 2).len(), 3);
        let pages = assigned(&words("Hello World!,Test,of,a,Snapshot"), 10, 3);
        assert_eq!(pages, [vec![12], vec![4, 2, 1], vec![8]]);
    }

    #[test]
    fn case_n_a_restart_goes_on_where_the_sealed_pages_end() {
        let sizes = [4, 4, 4, 6, 15, 1, 3, 3, 9];
        let limits = PageLimits { bytes: 10, entities: 3 };
        let mut whole = Pager::after(None, limits);
        let all: Vec<PageSpan> = (0..sizes.len())
            .filter_map(|n| whole.push_sized(n as u64 + 1, sizes[n], time(n as i64)))
            .collect();
        // Whatever number of spans was stored before the crash, the rest comes out the same.
        for stored in 0..=all.len() {
            let last = stored.checked_sub(1).map(|n| &all[n]);
            let mut pager = Pager::after(last, limits);
            let begin = last.map_or(0, |page| page.last as usize);
            let rest: Vec<PageSpan> = (begin..sizes.len())
                .filter_map(|n| pager.push_sized(n as u64 + 1, sizes[n], time(n as i64)))
                .collect();
            assert_eq!(rest, all[stored..]);
            assert_eq!(pager.open(), whole.open());
        }
    }

    fn spans(count: u64) -> Vec<PageSpan> {
        let span = |n: u64| PageSpan {
            number: n,
            first: n,
            last: n,
            bytes: 10,
            oldest: time(n as i64 * 100),
            modified: time(n as i64 * 100),
        };
        (1..=count).map(span).collect()
    }

    #[test]
    fn immutability_prev_is_removed_from_the_oldest_kept_page_first_and_pages_go_after_the_grace_period() {
        let retention = Retention { age: Some(250), bytes: None, grace: 60 };
        let mut pending = Vec::new();
        let before = Cleanup::default();
        assert!(before.has_prev(2) && !before.has_prev(1));
        let first = retention.decide(time(500), &spans(5), before, &mut pending);
        assert_eq!(first, Cleanup { first_page: 3, gone_below: 0 });
        assert!(!first.has_prev(3) && first.has_prev(4));
        assert_eq!(first.state(2), PageState::Unlinked);
        assert_eq!(first.state(3), PageState::Listed);
        let kept = retention.decide(time(559), &spans(5)[2..], first, &mut pending);
        assert_eq!(kept.state(2), PageState::Unlinked);
        let gone = retention.decide(time(560), &spans(5)[2..], kept, &mut pending);
        assert_eq!((gone.state(2), gone.state(4)), (PageState::Gone, PageState::Listed));
        // Page 3 has become too old meanwhile.
        assert_eq!((gone.state(3), pending.len()), (PageState::Unlinked, 1));
    }

    #[test]
    fn the_oldest_pages_go_while_there_are_too_many_bytes() {
        let retention = Retention { age: None, bytes: Some(25), grace: 0 };
        let mut pending = Vec::new();
        let after = retention.decide(time(0), &spans(5), Cleanup::default(), &mut pending);
        assert_eq!(after, Cleanup { first_page: 4, gone_below: 4 });
        assert!(pending.is_empty());
        let keep_all = Retention { age: None, bytes: None, grace: 0 };
        assert_eq!(keep_all.decide(time(0), &spans(5), after, &mut pending), after);
    }
}
