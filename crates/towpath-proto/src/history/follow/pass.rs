//! A pass over a feed: the chain of documents found by walking back, and the cache for reading forward.

use std::collections::{HashSet, VecDeque};

use url::Url;

use super::document::FetchedDocument;
use super::entries::DocumentSeq;
use crate::follow::MAX_DOCUMENT;
use crate::history::wire::Predecessor;

/// A pass over a feed's documents.
#[derive(Debug, Default)]
pub(super) struct HistoryPass {
    /// The newest document, which is applied last.
    pub(super) newest: Option<FetchedDocument>,
    /// The documents before it, the newest first. Reading forward removes them from the end.
    pub(super) chain: Vec<DocumentLink>,
    /// Cached documents with their index in the chain, ascending.
    cached: VecDeque<(usize, FetchedDocument)>,
    cached_bytes: usize,
    visited: HashSet<String>,
    /// Bytes of all fetched documents.
    pub(super) bytes: u64,
    /// True to walk back by HEAD.
    pub(super) by_head: bool,
    /// A permanent document that ends the walk back and is not read.
    pub(super) skipped: Option<String>,
    /// Documents that failed while reading forward, since the last success.
    pub(super) failed: Vec<(String, DocumentSeq)>,
    /// Last document of the passes before, if they had entries.
    pub(super) known: Option<DocumentSeq>,
    /// True if the pass met a document or an entry of the passes before, false if all of its entries are unknown.
    pub(super) has_met_known: Option<bool>,
    /// True if the oldest document that was read has none before it.
    pub(super) has_beginning: Option<bool>,
}

/// Link to an older document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DocumentLink {
    pub(super) url: String,
    /// True if the document never changes.
    pub(super) is_permanent: bool,
}

/// Reason to end the walk back at a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WalkEnd {
    /// The URL was visited in this pass.
    Loop,
    /// The URL is not http or https.
    Scheme,
    /// The URL is at another host, which the options exclude.
    Host,
    /// A limit of documents or bytes is reached.
    Limit(String),
}

impl DocumentLink {
    /// Returns the link to older entries, if any.
    pub(super) fn of(predecessor: &Predecessor) -> Option<Self> {
        match predecessor {
            Predecessor::Archive(url) => Some(Self { url: url.clone(), is_permanent: true }),
            Predecessor::Page(url) => Some(Self { url: url.clone(), is_permanent: false }),
            Predecessor::Complete | Predecessor::Beginning | Predecessor::LastPage | Predecessor::Unknown => {
                None
            }
        }
    }
}

impl HistoryPass {
    /// Creates a pass that begins at a URL.
    pub(super) fn new(url: &str) -> Self {
        let mut crawl = Self::default();
        // Fragments do not distinguish documents: `#1`, `#2` and so on would hide a loop.
        crawl.visited.insert(without_fragment(url).to_owned());
        crawl
    }

    /// Marks a further URL of a fetched document as visited.
    pub(super) fn mark_visited(&mut self, url: &str) {
        self.visited.insert(without_fragment(url).to_owned());
    }

    /// Marks `url` as visited, or returns the reason not to walk back to it from the feed at `from`.
    pub(super) fn visit(&mut self, url: &str, from: &str, limits: &CrawlLimits) -> Result<(), WalkEnd> {
        let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(parsed) = parsed else { return Err(WalkEnd::Scheme) };
        let own = Url::parse(from).ok();
        if !limits.other_hosts && own.is_some_and(|own| own.host_str() != parsed.host_str()) {
            return Err(WalkEnd::Host);
        }
        // A hostile publisher can link to new URLs for ever.
        if self.visited.len() > limits.documents {
            return Err(WalkEnd::Limit(format!("{} documents", limits.documents)));
        }
        // Tested between documents, so the sum can exceed the limit by one document.
        if self.bytes > limits.bytes {
            return Err(WalkEnd::Limit(format!("{} bytes", limits.bytes)));
        }
        if !self.visited.insert(without_fragment(url).to_owned()) {
            return Err(WalkEnd::Loop);
        }
        Ok(())
    }

    /// Caches the document at the chain's end for reading forward.
    ///
    /// The cache holds at most `limit` bytes, and the documents that are read first.
    pub(super) fn cache(&mut self, fetched: FetchedDocument, limit: usize) {
        let Some(index) = self.chain.len().checked_sub(1) else { return };
        self.cached_bytes += fetched.body.len();
        self.cached.push_back((index, fetched));
        while self.cached_bytes > limit {
            // The front is nearest to the newest document, and is read last.
            let Some((_, dropped)) = self.cached.pop_front() else { break };
            self.cached_bytes -= dropped.body.len();
        }
    }

    /// Removes the document at the chain's end from the cache, if it is there.
    pub(super) fn take_cached(&mut self) -> Option<FetchedDocument> {
        let end = self.chain.len().checked_sub(1)?;
        // The document at the end may have been dropped, or requested by HEAD only.
        self.cached.back().filter(|(index, _)| *index == end)?;
        let (_, fetched) = self.cached.pop_back()?;
        self.cached_bytes -= fetched.body.len();
        Some(fetched)
    }
}

/// Limits of one pass.
#[derive(Debug, Clone)]
pub struct CrawlLimits {
    /// Maximum number of documents.
    pub documents: usize,
    /// Maximum bytes of all documents.
    pub bytes: u64,
    /// Maximum size of a document, in bytes.
    pub document: u64,
    /// Maximum bytes of documents cached between walking back and reading forward. The others are fetched twice, or
    /// requested by HEAD first if the publisher's headers have the links.
    pub cached: usize,
    /// True to follow links to other hosts.
    ///
    /// Archives are often at other hosts, and such a host can do no more harm to the feed than its own. URLs that are not
    /// http or https are never followed.
    pub other_hosts: bool,
}

impl Default for CrawlLimits {
    /// 100,000 documents, 64 GiB, documents up to 128 MiB, a cache of 8 MiB; other hosts are followed.
    fn default() -> Self {
        let (documents, document) = (100_000, MAX_DOCUMENT);
        Self { documents, bytes: 64 << 30, document, cached: 8 << 20, other_hosts: true }
    }
}

pub(super) fn without_fragment(url: &str) -> &str {
    url.split('#').next().unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(size: usize) -> FetchedDocument {
        FetchedDocument {
            url: String::new(),
            content_type: None,
            links: Vec::new(),
            body: vec![b' '; size].into(),
        }
    }

    #[test]
    fn the_documents_that_are_read_first_are_cached() {
        let mut crawl = HistoryPass::default();
        for number in 0..5 {
            crawl.chain.push(DocumentLink { url: number.to_string(), is_permanent: true });
            crawl.cache(fetched(10 + number), 30);
        }
        assert_eq!(crawl.take_cached().map(|f| f.body.len()), Some(14));
        assert!(crawl.take_cached().is_none(), "the chain still has its end");
        crawl.chain.pop();
        assert_eq!(crawl.take_cached().map(|f| f.body.len()), Some(13));
        crawl.chain.pop();
        assert!(crawl.take_cached().is_none(), "dropped: it is fetched again");
        assert_eq!(crawl.cached_bytes, 0);
    }

    #[test]
    fn the_walk_back_ends_with_a_reason() {
        let limits = CrawlLimits { documents: 3, other_hosts: false, ..CrawlLimits::default() };
        let home = "http://a.example/feed";
        let mut crawl = HistoryPass::new(home);
        assert_eq!(crawl.visit(home, home, &limits), Err(WalkEnd::Loop));
        assert_eq!(crawl.visit("http://a.example/feed#x", home, &limits), Err(WalkEnd::Loop));
        assert_eq!(crawl.visit("file:///etc/passwd", home, &limits), Err(WalkEnd::Scheme));
        assert_eq!(crawl.visit("relative", home, &limits), Err(WalkEnd::Scheme));
        assert_eq!(crawl.visit("http://b.example/1", home, &limits), Err(WalkEnd::Host));
        for number in 1..4 {
            assert_eq!(crawl.visit(&format!("http://a.example/{number}"), home, &limits), Ok(()));
        }
        assert!(matches!(crawl.visit("http://a.example/9", home, &limits), Err(WalkEnd::Limit(_))));
    }
}
