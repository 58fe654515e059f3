//! "Pagination" and "Consumer Algorithm": back along the pages to where following begins.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;

use crate::replication::ReplicationError;
use crate::replication::wire::FeedPageHead;

/// Pages that were visited. Keeps eight bytes a page, whatever the length of its address.
#[derive(Debug, Default)]
pub(super) struct Visited(HashSet<u64>);

impl Visited {
    /// "The feed must not form a loop": fails where the page was visited before.
    pub(super) fn visit(&mut self, url: &str) -> Result<(), ReplicationError> {
        let mut hasher = DefaultHasher::new();
        url.hash(&mut hasher);
        if self.0.insert(hasher.finish()) { Ok(()) } else { Err(ReplicationError::Loop(url.to_owned())) }
    }
}

/// How far to go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// To the first page.
    Beginning,
    /// To the first page that is older than this.
    Time(Timestamp),
    /// Not at all.
    Newest,
}

/// Where to go from a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Back to this page.
    Back(String),
    /// Forward from this page. `proven`: the page before it is older than the time that was asked for.
    Start { page: String, proven: bool },
}

/// A crawl under way.
#[derive(Debug)]
pub(super) struct Crawl {
    goal: Goal,
    visited: Visited,
    /// The page whose `prev` led here.
    from: Option<FeedPageHead>,
}

impl Crawl {
    pub(super) fn new(goal: Goal) -> Self {
        Self { goal, visited: Visited::default(), from: None }
    }

    /// Whether a page was visited already.
    pub(super) fn is_under_way(&self) -> bool {
        self.from.is_some()
    }

    /// Decides at a page. "The prev and next links of adjacent pages must match."
    pub(super) fn step(&mut self, head: FeedPageHead) -> Result<Step, ReplicationError> {
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
        let is_older = matches!(self.goal, Goal::Time(time) if head.page.last_modified < time);
        let step = match (self.goal, &head.prev, &head.next) {
            (Goal::Newest, ..) => Step::Start { page: head.own.clone(), proven: true },
            (_, _, Some(next)) if is_older => Step::Start { page: next.clone(), proven: true },
            (_, _, None) if is_older => Step::Start { page: head.own.clone(), proven: true },
            (_, Some(prev), _) => Step::Back(prev.clone()),
            (goal, None, _) => Step::Start { page: head.own.clone(), proven: goal == Goal::Beginning },
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
            etag: None,
        }
    }

    fn crawl(
        goal: Goal,
        entry: i64,
        page: impl Fn(i64) -> FeedPageHead,
    ) -> Result<(String, bool), ReplicationError> {
        let mut crawl = Crawl::new(goal);
        let mut head = page(entry);
        loop {
            match crawl.step(head)? {
                Step::Back(prev) => head = page(prev.parse().unwrap()),
                Step::Start { page, proven } => return Ok((page, proven)),
            }
        }
    }

    #[test]
    fn case_g_where_a_crawl_ends() {
        assert_eq!(crawl(Goal::Beginning, 1, page), Ok(("1".into(), true)));
        assert_eq!(crawl(Goal::Beginning, 3, page), Ok(("1".into(), true)));
        assert_eq!(crawl(Goal::Time(time(20)), 1, page), Ok(("2".into(), true)));
        assert_eq!(crawl(Goal::Time(time(20)), 3, page), Ok(("2".into(), true)));
        assert_eq!(crawl(Goal::Time(time(25)), 3, page), Ok(("3".into(), true)));
        assert_eq!(crawl(Goal::Time(time(99)), 3, page), Ok(("3".into(), true)));
        assert_eq!(crawl(Goal::Newest, 3, page), Ok(("3".into(), true)));
        // Not old enough, unless the page's entities prove otherwise.
        assert_eq!(crawl(Goal::Time(time(10)), 1, page), Ok(("1".into(), false)));
        assert_eq!(crawl(Goal::Time(time(10)), 3, page), Ok(("1".into(), false)));
    }

    #[test]
    fn case_g_an_older_page_without_next_breaks_the_list() {
        let broken = |number| FeedPageHead { next: None, ..page(number) };
        let error = crawl(Goal::Time(time(30)), 3, broken);
        assert_eq!(error, Err(ReplicationError::MissingNextLink { from: "3".into() }));
    }

    #[test]
    fn pagination_links_must_match_and_form_no_loop() {
        let astray = |number| FeedPageHead { next: Some("9".into()), ..page(number) };
        let expected =
            ReplicationError::InconsistentLinks { from: "3".into(), rel: "prev", back: "9".into() };
        assert_eq!(crawl(Goal::Beginning, 3, astray), Err(expected));
        let to_itself = |number: i64| FeedPageHead { prev: Some(number.to_string()), ..page(number) };
        assert_eq!(crawl(Goal::Beginning, 2, to_itself), Err(ReplicationError::Loop("2".into())));
        let back_and_forth = |number: i64| {
            let other = Some((5 - number).to_string());
            FeedPageHead { prev: other.clone(), next: other, ..page(number) }
        };
        assert_eq!(crawl(Goal::Beginning, 2, back_and_forth), Err(ReplicationError::Loop("2".into())));
    }
}
