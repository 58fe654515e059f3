//! Crawls back along the pages to the start ("Pagination", "Consumer Algorithm").

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;

use crate::replication::wire::FeedPageHead;
use crate::replication::wire::ReplicationError;

// A hostile publisher can link to new URLs for ever. A million pages of a megabyte are more than any feed has.
/// Maximum number of pages of a crawl.
const MAX_PAGES: usize = 1_000_000;

/// The visited pages, as hashes of their URLs: eight bytes for each page.
#[derive(Debug, Default)]
pub(super) struct VisitedPages(HashSet<u64>);

impl VisitedPages {
    /// Records a page. Fails if it was visited before: "the feed must not form a loop".
    pub(super) fn visit(&mut self, url: &str) -> Result<(), ReplicationError> {
        // A collision would report a loop that is none: for a million pages the odds are about 1 in 37 million.
        if self.0.insert(hash(url)) { Ok(()) } else { Err(ReplicationError::Loop(url.to_owned())) }
    }
}

fn hash(url: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    url.hash(&mut hasher);
    hasher.finish()
}

/// End of a crawl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrawlGoal {
    /// The first page.
    Beginning,
    /// The first page older than this time.
    Time(Timestamp),
    /// The newest page: no crawl.
    Newest,
}

/// Decision at a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CrawlStep {
    /// Continue back to this page.
    Back(String),
    /// Walk forward from this page. `proven`: the page before it is older than the requested start.
    Start { page: String, proven: bool },
}

/// A crawl in progress.
#[derive(Debug)]
pub(super) struct BackwardCrawl {
    goal: CrawlGoal,
    visited: VisitedPages,
    /// The page whose `prev` led here.
    from: Option<FeedPageHead>,
}

impl BackwardCrawl {
    pub(super) fn new(goal: CrawlGoal) -> Self {
        Self { goal, visited: VisitedPages::default(), from: None }
    }

    /// Returns true after the first page.
    pub(super) fn has_begun(&self) -> bool {
        self.from.is_some()
    }

    /// Returns true if the crawl came to this page.
    pub(super) fn has_visited(&self, url: &str) -> bool {
        self.visited.0.contains(&hash(url))
    }

    /// Ends the crawl at the last page, because the one before it is missing. Returns that page without its `prev`.
    pub(super) fn end_early(&mut self) -> Option<FeedPageHead> {
        self.from.take().map(|last| FeedPageHead { prev: None, ..last })
    }

    /// Decides how to continue at a page. "The prev and next links of adjacent pages must match."
    pub(super) fn step(&mut self, head: FeedPageHead) -> Result<CrawlStep, ReplicationError> {
        if self.visited.0.len() >= MAX_PAGES {
            return Err(ReplicationError::TooManyPages { limit: MAX_PAGES });
        }
        self.visited.visit(&head.own)?;
        if let Some(from) = &self.from {
            let from = from.own.clone();
            match &head.next {
                None => return Err(ReplicationError::MissingNextLink { from }),
                Some(next) if *next != from => {
                    return Err(ReplicationError::InconsistentLinks {
                        from,
                        rel: "prev",
                        back: next.clone(),
                    });
                }
                Some(_) => {}
            }
        }
        // Strictly older: pages of the same second may have entities on both sides of the start.
        let is_older = matches!(self.goal, CrawlGoal::Time(time) if head.page.last_modified < time);
        let step = match (self.goal, &head.prev, &head.next) {
            (CrawlGoal::Newest, ..) => CrawlStep::Start { page: head.own.clone(), proven: true },
            // This page ends before the start, so the wanted entities begin on the next one.
            (_, _, Some(next)) if is_older => CrawlStep::Start { page: next.clone(), proven: true },
            // The newest page is older than the start: nothing to deliver yet, but it will grow.
            (_, _, None) if is_older => CrawlStep::Start { page: head.own.clone(), proven: true },
            (_, Some(prev), _) => CrawlStep::Back(prev.clone()),
            (goal, None, _) => {
                CrawlStep::Start { page: head.own.clone(), proven: goal == CrawlGoal::Beginning }
            }
        };
        self.from = Some(head);
        Ok(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::multipart::ContentType;
    use crate::replication::wire::PageHead;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Case G: pages 1<-2<-3 at t1<t2<t3.
    fn page(number: i64) -> FeedPageHead {
        FeedPageHead {
            page: PageHead {
                content_type: ContentType { boundary: "b".into() },
                last_modified: time(number * 10),
            },
            own: number.to_string(),
            prev: (number > 1).then(|| (number - 1).to_string()),
            next: (number < 3).then(|| (number + 1).to_string()),
            snapshot: None,
            etag: None,
        }
    }

    fn crawl(
        goal: CrawlGoal,
        entry: i64,
        page: impl Fn(i64) -> FeedPageHead,
    ) -> Result<(String, bool), ReplicationError> {
        let mut crawl = BackwardCrawl::new(goal);
        let mut head = page(entry);
        loop {
            match crawl.step(head)? {
                CrawlStep::Back(prev) => head = page(prev.parse().unwrap()),
                CrawlStep::Start { page, proven } => return Ok((page, proven)),
            }
        }
    }

    #[test]
    fn case_g_end_of_a_crawl() {
        assert_eq!(crawl(CrawlGoal::Beginning, 1, page), Ok(("1".into(), true)));
        assert_eq!(crawl(CrawlGoal::Beginning, 3, page), Ok(("1".into(), true)));
        assert_eq!(crawl(CrawlGoal::Time(time(20)), 1, page), Ok(("2".into(), true)));
        assert_eq!(crawl(CrawlGoal::Time(time(20)), 3, page), Ok(("2".into(), true)));
        assert_eq!(crawl(CrawlGoal::Time(time(25)), 3, page), Ok(("3".into(), true)));
        assert_eq!(crawl(CrawlGoal::Time(time(99)), 3, page), Ok(("3".into(), true)));
        assert_eq!(crawl(CrawlGoal::Newest, 3, page), Ok(("3".into(), true)));
        // Not proven: the entities of the page may still prove it.
        assert_eq!(crawl(CrawlGoal::Time(time(10)), 1, page), Ok(("1".into(), false)));
        assert_eq!(crawl(CrawlGoal::Time(time(10)), 3, page), Ok(("1".into(), false)));
    }

    #[test]
    fn case_g_an_older_page_without_next_breaks_the_list() {
        let broken = |number| FeedPageHead { next: None, ..page(number) };
        let error = crawl(CrawlGoal::Time(time(30)), 3, broken);
        assert_eq!(error, Err(ReplicationError::MissingNextLink { from: "3".into() }));
    }

    /// A publisher that makes up a `prev` for each page keeps no follower for ever.
    #[test]
    fn a_crawl_without_end_is_an_error() {
        let mut crawl = BackwardCrawl::new(CrawlGoal::Beginning);
        let endless = |number: i64| FeedPageHead {
            prev: Some((number + 1).to_string()),
            next: Some((number - 1).to_string()),
            ..page(number)
        };
        let error = (2..3_000_000).find_map(|number| crawl.step(endless(number)).err());
        let error = error.expect("the crawl ends").to_string();
        assert!(error.contains("1000000 pages"), "{error}");
    }

    #[test]
    fn pagination_links_must_match_and_form_no_loop() {
        let astray = |number| FeedPageHead { next: Some("9".into()), ..page(number) };
        let expected =
            ReplicationError::InconsistentLinks { from: "3".into(), rel: "prev", back: "9".into() };
        assert_eq!(crawl(CrawlGoal::Beginning, 3, astray), Err(expected));
        let to_itself = |number: i64| FeedPageHead { prev: Some(number.to_string()), ..page(number) };
        assert_eq!(crawl(CrawlGoal::Beginning, 2, to_itself), Err(ReplicationError::Loop("2".into())));
        let back_and_forth = |number: i64| {
            let other = Some((5 - number).to_string());
            FeedPageHead { prev: other.clone(), next: other, ..page(number) }
        };
        assert_eq!(crawl(CrawlGoal::Beginning, 2, back_and_forth), Err(ReplicationError::Loop("2".into())));
    }
}
