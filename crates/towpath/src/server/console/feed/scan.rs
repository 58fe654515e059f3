//! Walks along a feed's items, newest first: all of them, those that match a search, or those of a past moment.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use regex::bytes::{Regex, RegexBuilder};
use towpath_proto::change::{Change, Seq};
use towpath_proto::risk::{Risk, Scorer};
use towpath_proto::{Item, Op};
use towpath_store::{ItemOrder, ReadError, ReadLimit, SeqRange, Store};

use super::super::text::{clip, name_of, plain};
use super::backwards::last_between;
use crate::engine::{Engine, Feed};

/// Items of a page.
pub(super) const ROWS: usize = 50;
/// Time after which a search shows what it found so far.
pub(in crate::server::console) const BUDGET: Duration = Duration::from_millis(250);
/// Bytes of items after which the clock is read.
const CLOCK_BYTES: usize = 1 << 20;
/// Longest part of a text that is searched, in bytes.
const MAX_SEARCHED: usize = 4 << 20;
/// Changes of one read.
const CHUNK: ReadLimit = ReadLimit { items: 200, bytes: 16 << 20 };
/// Most steps back along the versions of one item.
const MAX_STEPS: usize = 10_000;

/// Conditions on the items of a page.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// Each of these words occurs in the item.
    pub(super) words: Vec<Regex>,
    pub(super) tag: Option<String>,
    pub(super) is_flagged: bool,
    /// Position that all items come after.
    pub(super) after: Seq,
}

impl Conditions {
    /// Returns the patterns of a search's words, whatever their case.
    pub(super) fn words(text: &str) -> Vec<Regex> {
        // Each word is a pass over every text, and the query is a stranger's.
        let words = text.split_whitespace().take(16);
        // Escaped, so that it is found as typed. The engine is linear in the text whatever the pattern.
        let pattern = |word| RegexBuilder::new(&regex::escape(word)).case_insensitive(true).build();
        words.filter_map(|word| pattern(word).ok()).collect()
    }

    fn matches(&self, item: &Item, scorer: &Scorer) -> bool {
        self.tag.as_ref().is_none_or(|tag| item.tags.iter().any(|has| has.eq_ignore_ascii_case(tag)))
            && self.words.iter().all(|word| has_word(item, word))
            && (!self.is_flagged || scorer.score(item).is_flagged())
    }
}

fn has_word(item: &Item, word: &Regex) -> bool {
    let texts = [Some(&item.id), item.title.as_ref(), item.summary.as_ref(), item.url.as_ref()];
    // Over bytes: content need not be UTF-8.
    let has = |bytes: &[u8]| word.is_match(&bytes[..bytes.len().min(MAX_SEARCHED)]);
    let in_text = |text: &String| has(text.as_bytes());
    texts.into_iter().flatten().chain(&item.tags).any(in_text)
        || item.content.as_ref().is_some_and(|content| has(&content.bytes))
}

/// Returns the length of an item's texts, which decides how long a look at it takes.
fn length(item: &Item) -> usize {
    let texts = [Some(&item.id), item.title.as_ref(), item.summary.as_ref()].into_iter().flatten();
    texts.map(String::len).sum::<usize>() + item.content.as_ref().map_or(0, |content| content.bytes.len())
}

/// An item in a list. It holds no content: a page of items must not hold their megabytes.
#[derive(Debug, Clone)]
pub(in crate::server::console) struct ListedItem {
    pub(in crate::server::console) id: String,
    pub(in crate::server::console) name: String,
    pub(in crate::server::console) text: String,
    pub(in crate::server::console) media_type: Option<String>,
    pub(in crate::server::console) tags: Vec<String>,
    pub(in crate::server::console) modified: Timestamp,
    pub(in crate::server::console) is_first: bool,
    pub(in crate::server::console) risk: Risk,
}

impl ListedItem {
    fn new(change: &Change, scorer: &Scorer) -> Self {
        let item = &change.item;
        let content = item.content.as_ref();
        let shown = || content.and_then(|content| content.shown()).map(|(_, text)| text);
        let text = item.summary.as_deref().or_else(shown).unwrap_or_default();
        Self {
            id: item.id.clone(),
            name: name_of(item).into_owned(),
            text: plain(text, 280),
            media_type: content.map(|content| clip(&content.media_type, 60).into_owned()),
            tags: item.tags.iter().take(8).map(|tag| clip(tag, 40).into_owned()).collect(),
            modified: change.modified,
            is_first: change.is_first(),
            risk: scorer.score(item),
        }
    }
}

/// Items that a walk found, and where it goes on.
#[derive(Debug, Default)]
pub(super) struct FoundItems {
    pub(super) items: Vec<ListedItem>,
    /// Position before which the next page begins; `None` at the end.
    pub(super) next: Option<Seq>,
    /// Number of items that were looked at.
    pub(super) looked: u64,
    /// Time of the last item that was looked at.
    pub(super) back_to: Option<Timestamp>,
    /// True if the time was over before the page was full.
    pub(super) is_cut: bool,
}

/// Walk along a feed's items.
pub(super) struct Scan<'a> {
    pub(super) engine: &'a Engine,
    pub(super) feed: &'a Feed,
    pub(super) conditions: &'a Conditions,
    /// Position of a past moment, whose versions are shown; `None` for the present.
    pub(super) past: Option<Seq>,
}

impl Scan<'_> {
    /// Returns the items before a position.
    pub(super) async fn run(&self, before: Option<Seq>) -> Result<FoundItems, ReadError> {
        let until = Instant::now() + BUDGET;
        let (mut found, mut before, mut bytes) = (FoundItems::default(), before, 0);
        // Position of the last item of a full page: whether a page comes after it shows with the next item.
        let mut full = None;
        loop {
            let (changes, next) = self.chunk(before).await?;
            for change in &changes {
                let is_shown = self.is_shown(change, until).await?;
                if is_shown && full.is_some() {
                    found.next = full;
                    return Ok(found);
                }
                found.looked += 1;
                found.back_to = Some(change.modified);
                if is_shown {
                    found.items.push(ListedItem::new(change, &self.engine.scorer));
                    full = (found.items.len() == ROWS).then_some(change.seq);
                }
                bytes += length(&change.item);
                // The clock is read once in a while only, and each call makes some progress.
                let is_due = found.looked % 16 == 0 || bytes >= CLOCK_BYTES;
                let is_over = is_due && Instant::now() > until;
                bytes = if is_due { 0 } else { bytes };
                if is_over {
                    found.is_cut = full.is_none();
                    found.next = full.or(Some(change.seq).filter(|seq| *seq > self.conditions.after + 1));
                    return Ok(found);
                }
            }
            match next {
                Some(next) => before = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Reads the next changes before a position, newest first. Also returns where the chunk after it begins.
    async fn chunk(&self, before: Option<Seq>) -> Result<(Vec<Change>, Option<Seq>), ReadError> {
        match self.past {
            None => self.latest(before).await,
            Some(past) => self.log(before.unwrap_or(past + 1).min(past + 1)).await,
        }
    }

    async fn latest(&self, before: Option<Seq>) -> Result<(Vec<Change>, Option<Seq>), ReadError> {
        let range = SeqRange { after: Some(self.conditions.after), before, descending: true };
        let changes = self.engine.store.items(self.feed.log(), ItemOrder::Modified, range, CHUNK).await?;
        let next = changes.last().map(|change| change.seq);
        Ok((changes, next))
    }

    /// Reads a part of the log backwards.
    async fn log(&self, before: Seq) -> Result<(Vec<Change>, Option<Seq>), ReadError> {
        let floor = self.conditions.after;
        if before <= floor + 1 {
            return Ok((Vec::new(), None));
        }
        // A page has 50 rows, so more would often be read in vain.
        let start = before.saturating_sub(1 + 50).max(floor);
        let (store, log) = (self.engine.store.as_ref(), self.feed.log());
        let (mut changes, mut after) = (Vec::new(), start);
        while after + 1 < before {
            let count = usize::try_from(before - 1 - after).unwrap_or(usize::MAX);
            let limit = ReadLimit { items: count.min(CHUNK.items), ..CHUNK };
            let read = store.read(log, after, limit).await?;
            let Some(last) = read.last() else { break };
            after = last.seq;
            // Behind a gap the store goes on beyond the end.
            changes.extend(read.into_iter().take_while(|change| change.seq < before));
        }
        changes.reverse();
        let next = match changes.is_empty() && start > floor {
            // The old versions were let go: the walk goes on where there is one again.
            true => last_between(store, log, floor, start + 1).await?,
            false => (start > floor).then_some(start),
        };
        Ok((changes, next.map(|last| last + 1)))
    }

    async fn is_shown(&self, change: &Change, until: Instant) -> Result<bool, ReadError> {
        if change.op == Op::Delete
            || !self.conditions.matches(&change.item, &self.engine.scorer)
            || !matches_filter(self.engine, self.feed, &change.item)
        {
            return Ok(false);
        }
        let Some(past) = self.past else { return Ok(true) };
        let store = self.engine.store.as_ref();
        let visible = visible_at(store, self.feed, &change.item.id, past, until).await?;
        Ok(visible.is_some_and(|visible| visible.seq == change.seq))
    }
}

/// Returns true if a feed shows an item: a filter shows a part of another feed's items.
pub(in crate::server::console) fn matches_filter(engine: &Engine, feed: &Feed, item: &Item) -> bool {
    let risk = |item: &Item| engine.scorer.score(item).score;
    feed.config.filter.as_ref().is_none_or(|filter| filter.filter.matches(item, &risk))
}

/// Returns the version of an item that was the latest at a position of the log, which may be a deletion. Also `None` if
/// it is not found until a time.
pub(in crate::server::console) async fn visible_at(
    store: &dyn Store,
    feed: &Feed,
    id: &str,
    seq: Seq,
    until: Instant,
) -> Result<Option<Change>, ReadError> {
    let mut version = store.latest(feed.log(), id).await?;
    for _ in 0..MAX_STEPS {
        match version {
            // Each step reads a version with its content, which may be megabytes.
            Some(change) if change.seq > seq && Instant::now() > until => return Ok(None),
            Some(change) if change.seq > seq => {
                version = match change.previous {
                    Some(previous) => store.change(feed.log(), previous).await?,
                    None => None,
                };
            }
            version => return Ok(version),
        }
    }
    // Changed ten thousand times since: the walk would take seconds.
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use towpath_proto::{Content, FeedId, NewChange};
    use towpath_store::Expected;
    use towpath_store::memory::MemoryStore;

    use super::super::backwards::tests::store_with_gaps;
    use super::*;
    use crate::config::Config;

    async fn engine_with(changes: Vec<NewChange>) -> (Arc<Engine>, Arc<Feed>) {
        let config = Config::parse("[[feed]]\nid = 'aa'\n", std::path::Path::new("towpath.toml")).unwrap();
        let store = MemoryStore::new(Arc::new(Timestamp::now));
        let id = FeedId::new("aa").unwrap();
        for change in changes {
            store.append(&id, Expected::Any, vec![change]).await.unwrap();
        }
        let engine = crate::protocols::start(config, Arc::new(store)).await.unwrap();
        let feed = engine.feed("aa").unwrap();
        (engine, feed)
    }

    fn put(id: &str, text: &str) -> NewChange {
        let content = Some(Content::new("text/plain", text.to_owned()));
        NewChange::put(Item { content, title: Some(format!("Title of {id}")), ..Item::new(id) })
    }

    async fn ids(scan: &Scan<'_>, before: Option<Seq>) -> (Vec<String>, Option<Seq>) {
        let found = scan.run(before).await.unwrap();
        (found.items.into_iter().map(|item| item.id).collect(), found.next)
    }

    #[tokio::test]
    async fn items_newest_first_now_and_then() {
        let changes = vec![
            put("a", "one"),
            put("b", "two"),
            put("a", "THREE boats"),
            NewChange::delete("b"),
            put("c", "four"),
        ];
        let (engine, feed) = engine_with(changes).await;
        let all = Conditions::default();
        let scan = |past| Scan { engine: &engine, feed: &feed, conditions: &all, past };
        assert_eq!(ids(&scan(None), None).await.0, ["c", "a"]);
        for (past, expected) in
            [(5, vec!["c", "a"]), (4, vec!["a"]), (3, vec!["a", "b"]), (2, vec!["b", "a"]), (0, vec![])]
        {
            assert_eq!(ids(&scan(Some(past)), None).await.0, expected, "at {past}");
        }
        let some = Conditions { words: Conditions::words("title three BOATS"), ..Conditions::default() };
        let scan = Scan { engine: &engine, feed: &feed, conditions: &some, past: None };
        assert_eq!(ids(&scan, None).await.0, ["a"]);
        let later = Conditions { after: 3, ..Conditions::default() };
        let scan = Scan { engine: &engine, feed: &feed, conditions: &later, past: None };
        assert_eq!(ids(&scan, None).await.0, ["c"]);
    }

    #[tokio::test]
    async fn pages_of_the_present_and_the_past_join() {
        let (engine, feed) =
            engine_with((0..120).map(|n| put(&format!("{:03}", n % 70), &n.to_string())).collect()).await;
        let all = Conditions::default();
        for past in [None, Some(120)] {
            let scan = Scan { engine: &engine, feed: &feed, conditions: &all, past };
            let (first, next) = ids(&scan, None).await;
            let (second, end) = ids(&scan, next).await;
            assert_eq!((first.len(), second.len(), end), (50, 20, None), "{past:?}");
            assert_eq!((first[0].as_str(), second[19].as_str()), ("049", "050"));
        }
    }

    /// Pages at a past moment repeated the rows behind a gap, without end.
    #[tokio::test]
    async fn pages_of_a_past_moment_end_where_old_versions_were_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = store_with_gaps(folder.path()).await;
        let config = Config::parse("[[feed]]\nid = 'aa'\n", std::path::Path::new("towpath.toml")).unwrap();
        let engine = crate::protocols::start(config, Arc::new(store)).await.unwrap();
        let feed = engine.feed("aa").unwrap();
        let all = Conditions::default();
        // Changes 176 to 180 are of items that have an earlier version.
        let scan = Scan { engine: &engine, feed: &feed, conditions: &all, past: Some(177) };
        let (first, next) = ids(&scan, None).await;
        let (second, end) = ids(&scan, next).await;
        assert_eq!((first.len(), second.len(), end), (50, 10, None));
        let distinct: std::collections::HashSet<&String> = first.iter().chain(&second).collect();
        assert_eq!(distinct.len(), 60, "{first:?} {second:?}");
        engine.store.close().await;
    }

    #[tokio::test]
    async fn a_last_page_that_is_full_has_none_after_it() {
        let changes = (0..60).map(|n| put(&n.to_string(), "x"));
        let deletions = (0..10).map(|n| NewChange::delete(n.to_string()));
        let (engine, feed) = engine_with(changes.chain(deletions).collect()).await;
        let all = Conditions::default();
        let scan = Scan { engine: &engine, feed: &feed, conditions: &all, past: None };
        let (items, next) = ids(&scan, None).await;
        assert_eq!((items.len(), next), (50, None));
    }

    /// The clock was read after 16 items only, however large they are.
    #[tokio::test]
    async fn large_items_do_not_outlast_the_budget() {
        let large = "abcdefgh".repeat(512 << 10);
        let (engine, feed) = engine_with((0..16).map(|n| put(&n.to_string(), &large)).collect()).await;
        let words = (0..16).map(|n| format!("zq{n}x")).collect::<Vec<_>>().join(" ");
        let conditions = Conditions { words: Conditions::words(&words), ..Conditions::default() };
        let scan = Scan { engine: &engine, feed: &feed, conditions: &conditions, past: None };
        let found = scan.run(None).await.unwrap();
        assert!(found.is_cut && found.looked < 16, "{} items", found.looked);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let late = visible_at(engine.store.as_ref(), &feed, "0", 0, long_ago).await.unwrap();
        assert!(late.is_none());
    }

    #[test]
    fn words_are_no_patterns() {
        let words = Conditions::words("a.b* (c");
        assert_eq!(words.len(), 2);
        assert!(words[0].is_match(b"xA.B*y") && !words[0].is_match(b"aab"));
    }
}
