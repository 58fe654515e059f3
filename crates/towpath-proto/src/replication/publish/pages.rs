//! Division of a feed's log into pages, and retention of pages.
//!
//! Pages are numbered from 1. The first change that does not fit on a page *seals* it and begins the next page,
//! so a `next` link never leads to an empty page. A [`PageSpan`] is stored for each sealed page. The newest page
//! is the rest of the log after them, and needs no record.
//!
//! Crash safety: a page is served as sealed (with its `next`) only after its span is stored, and spans are
//! stored in order. Until then readers see the newest page without a `next`. After a crash, equal changes give
//! the equal span again. If the limits changed meanwhile, the page is sealed elsewhere; no reader saw it sealed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::change::{Change, Seq};
use crate::replication::wire::entity;

/// Size limits of a page. A page has at least one change, of any size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLimits {
    /// Total bytes of the bodies.
    pub bytes: u64,
    /// Number of entities.
    pub entities: u64,
}

impl Default for PageLimits {
    /// 1 MB and 1,000 entities.
    fn default() -> Self {
        Self { bytes: 1_000_000, entities: 1_000 }
    }
}

/// The range of the log on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageSpan {
    /// Number of the page, from 1.
    pub number: u64,
    /// Sequence number of the first change.
    pub first: Seq,
    /// Sequence number of the last change.
    pub last: Seq,
    /// Total bytes of the bodies.
    pub bytes: u64,
    /// Time of the first change.
    pub oldest: Timestamp,
    /// Time of the last change, which is the page's Last-Modified.
    pub modified: Timestamp,
}

/// Assigns changes to pages, in the order of the log.
#[derive(Debug, Clone)]
pub struct Pager {
    limits: PageLimits,
    number: u64,
    open: Option<PageSpan>,
}

impl Pager {
    /// Continues after the last sealed page. Push the change after its last one next.
    pub fn after(sealed: Option<&PageSpan>, limits: PageLimits) -> Self {
        Self { limits, number: sealed.map_or(1, |page| page.number + 1), open: None }
    }

    /// Adds the next change of the log. Returns the previous page if the change seals it.
    pub fn push(&mut self, change: &Change) -> Option<PageSpan> {
        self.push_sized(change.seq, entity::body_len(change), change.modified)
    }

    /// Like [`push`](Self::push), from a change's sequence number, body length and time.
    pub fn push_sized(&mut self, seq: Seq, bytes: u64, modified: Timestamp) -> Option<PageSpan> {
        let mut sealed = None;
        if let Some(open) = &mut self.open {
            let entities = open.last - open.first + 1;
            // An entity larger than the limit begins a page and is alone on it: the next one never fits.
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

    /// Returns the newest page so far; `None` before the first change.
    pub fn open(&self) -> Option<PageSpan> {
        self.open
    }
}

/// Retention of a feed's pages, and the grace period of unlisted pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Highest age of a page's last change, in seconds. Older pages are unlisted.
    pub age: Option<i64>,
    /// Highest total size in bytes. The oldest pages are unlisted while it is exceeded.
    pub bytes: Option<u64>,
    /// Position up to which the log lets go of old versions. Pages that end there are unlisted.
    pub up_to: Option<Seq>,
    /// Seconds for which an unlisted page is still served, before it is gone (410).
    pub grace: i64,
}

/// Progress of retention in a feed; stored with the page table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cleanup {
    /// Number of the oldest listed page, which has no `prev`. 0 or 1 if no page was unlisted.
    pub first_page: u64,
    /// Pages below this number are gone (410).
    pub gone_below: u64,
}

/// Availability of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// Linked from other pages.
    Listed,
    /// No longer linked, but served until the grace period ends.
    Unlinked,
    /// Gone: answered with 410.
    Gone,
}

impl Cleanup {
    /// Returns the availability of a page.
    pub fn state(&self, number: u64) -> PageState {
        match number {
            _ if number < self.gone_below => PageState::Gone,
            _ if number < self.first_page => PageState::Unlinked,
            _ => PageState::Listed,
        }
    }

    /// Returns true if a page has a `prev` link. The oldest listed page and unlisted pages have none.
    pub fn has_prev(&self, number: u64) -> bool {
        number > 1 && number > self.first_page
    }
}

/// Record of a decision to unlist pages; stored until they are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnlinkedPages {
    /// Number of the page that became the oldest listed one.
    pub first_page: u64,
    /// Time of the decision.
    pub at: Timestamp,
}

impl Retention {
    /// Decides which pages to unlist and which to drop ("A prev link may be removed from an older page as part
    /// of a gradual cleanup process").
    ///
    /// `sealed` are the spans of the listed sealed pages, oldest first; the newest page is never unlisted.
    /// `pending` are earlier decisions whose grace period is not over. Store the result before acting on it.
    /// The `prev` link goes first, and the pages before it only after the grace period. A reader on its way
    /// along `prev` therefore never meets a missing page.
    pub fn decide(
        &self,
        now: Timestamp,
        sealed: &[PageSpan],
        cleanup: Cleanup,
        pending: &mut Vec<UnlinkedPages>,
    ) -> Cleanup {
        // Spans of unlisted pages may still be stored; they do not count again.
        let listed: Vec<&PageSpan> = sealed.iter().filter(|p| p.number >= cleanup.first_page).collect();
        let mut bytes: u64 = listed.iter().map(|p| p.bytes).sum();
        let mut first_page = cleanup.first_page;
        for page in listed {
            let too_old =
                self.age.is_some_and(|age| page.modified.as_second() < now.as_second().saturating_sub(age));
            let too_much = self.bytes.is_some_and(|limit| bytes > limit);
            let let_go = self.up_to.is_some_and(|seq| page.last <= seq);
            if !too_old && !too_much && !let_go {
                break;
            }
            bytes -= page.bytes;
            // Always from the oldest end, so the listed pages stay a contiguous range.
            first_page = page.number + 1;
        }
        if first_page > cleanup.first_page {
            pending.push(UnlinkedPages { first_page, at: now });
        }
        let mut gone_below = cleanup.gone_below;
        pending.retain(|unlinked| {
            // Wall-clock time: the record outlives restarts. Saturating, because the configuration may name
            // any number.
            let over = unlinked.at.as_second().saturating_add(self.grace) <= now.as_second();
            if over {
                gone_below = gone_below.max(unlinked.first_page);
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
    fn case_n_a_restart_continues_after_the_sealed_pages() {
        let sizes = [4, 4, 4, 6, 15, 1, 3, 3, 9];
        let limits = PageLimits { bytes: 10, entities: 3 };
        let mut whole = Pager::after(None, limits);
        let all: Vec<PageSpan> = (0..sizes.len())
            .filter_map(|n| whole.push_sized(n as u64 + 1, sizes[n], time(n as i64)))
            .collect();
        // For any number of spans stored before the crash, the rest must come out the same.
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
    fn immutability_prev_is_removed_first_and_pages_go_after_the_grace_period() {
        let retention = Retention { age: Some(250), bytes: None, up_to: None, grace: 60 };
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
        let retention = Retention { age: None, bytes: Some(25), up_to: None, grace: 0 };
        let mut pending = Vec::new();
        let after = retention.decide(time(0), &spans(5), Cleanup::default(), &mut pending);
        assert_eq!(after, Cleanup { first_page: 4, gone_below: 4 });
        assert!(pending.is_empty());
        let keep_all = Retention { age: None, bytes: None, up_to: None, grace: 0 };
        assert_eq!(keep_all.decide(time(0), &spans(5), after, &mut pending), after);
    }
}
