//! The way back from the newest document and forward again: which documents there are, and which of them are
//! still at hand.

use std::collections::{HashSet, VecDeque};

use url::Url;

use super::memory::Slot;
use super::reading::Fetched;
use crate::history::wire::Way;

/// One pass over a feed's documents.
#[derive(Debug, Default)]
pub(super) struct Crawl {
    /// The newest document, which is read last.
    pub(super) newest: Option<Fetched>,
    /// The documents before it, the newest first; those that are read are taken off the end.
    pub(super) chain: Vec<Link>,
    /// Documents at hand: their index in the chain, ascending.
    kept: VecDeque<(usize, Fetched)>,
    kept_bytes: usize,
    visited: HashSet<String>,
    /// Bytes of all documents that were fetched.
    pub(super) bytes: u64,
    /// The way back is asked for by HEAD.
    pub(super) by_head: bool,
    /// A permanent document that ends the way back and is not read itself.
    pub(super) passed_over: Option<String>,
    /// Documents that did not answer on the way forward, since the last that did.
    pub(super) silent: Vec<(String, Slot)>,
}

/// A document on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) url: String,
    /// It stays as it is.
    pub(super) is_permanent: bool,
}

/// Why the way back ends at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// It was visited in this pass.
    Loop,
    /// It is no address that can be asked.
    Scheme,
    /// It is at another host, which was not to be followed.
    Host,
    /// Enough documents or bytes.
    Limit(String),
}

impl Link {
    /// Where a document's way back leads to.
    pub(super) fn of(way: &Way) -> Option<Self> {
        match way {
            Way::Archive(url) => Some(Self { url: url.clone(), is_permanent: true }),
            Way::Page(url) => Some(Self { url: url.clone(), is_permanent: false }),
            Way::Complete | Way::Beginning | Way::LastPage | Way::Unknown => None,
        }
    }
}

impl Crawl {
    /// A pass that begins at an address.
    pub(super) fn new(url: &str) -> Self {
        let mut crawl = Self::default();
        crawl.visited.insert(without_fragment(url).to_owned());
        crawl
    }

    /// Whether `url` can be gone back to from a feed at `from`.
    pub(super) fn visit(&mut self, url: &str, from: &str, limits: &Limits) -> Result<(), Stop> {
        let parsed = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(parsed) = parsed else { return Err(Stop::Scheme) };
        let own = Url::parse(from).ok();
        if !limits.other_hosts && own.is_some_and(|own| own.host_str() != parsed.host_str()) {
            return Err(Stop::Host);
        }
        if self.visited.len() > limits.documents {
            return Err(Stop::Limit(format!("{} documents", limits.documents)));
        }
        if self.bytes > limits.bytes {
            return Err(Stop::Limit(format!("{} bytes", limits.bytes)));
        }
        if !self.visited.insert(without_fragment(url).to_owned()) {
            return Err(Stop::Loop);
        }
        Ok(())
    }

    /// Keeps a document of the chain's end for the way forward. Of all together no more than `limit` bytes are
    /// kept, and those that are needed first.
    pub(super) fn keep(&mut self, fetched: Fetched, limit: usize) {
        let Some(index) = self.chain.len().checked_sub(1) else { return };
        self.kept_bytes += fetched.body.len();
        self.kept.push_back((index, fetched));
        while self.kept_bytes > limit {
            let Some((_, dropped)) = self.kept.pop_front() else { break };
            self.kept_bytes -= dropped.body.len();
        }
    }

    /// The document at the chain's end, where it is at hand.
    pub(super) fn take_kept(&mut self) -> Option<Fetched> {
        let wanted = self.chain.len().checked_sub(1)?;
        self.kept.back().filter(|(index, _)| *index == wanted)?;
        let (_, fetched) = self.kept.pop_back()?;
        self.kept_bytes -= fetched.body.len();
        Some(fetched)
    }
}

/// How far to go.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How many documents one pass reads, at most.
    pub documents: usize,
    /// How many bytes one pass reads, at most.
    pub bytes: u64,
    /// The largest document, in bytes.
    pub document: u64,
    /// How many bytes of documents are held between the way back and the way forward; the others are fetched
    /// twice, or asked for by HEAD first where the publisher's headers have the links.
    pub kept: usize,
    /// Follow links to other hosts. Archives are often kept elsewhere, and what is there can do no more to the
    /// feed than its own host could; addresses that are not http or https are never followed.
    pub other_hosts: bool,
}

impl Default for Limits {
    /// 100,000 documents, 64 GiB, documents up to 64 MiB; 8 MiB are held; other hosts are followed.
    fn default() -> Self {
        Self { documents: 100_000, bytes: 64 << 30, document: 64 << 20, kept: 8 << 20, other_hosts: true }
    }
}

pub(super) fn without_fragment(url: &str) -> &str {
    url.split('#').next().unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(size: usize) -> Fetched {
        Fetched { url: String::new(), content_type: None, body: vec![b' '; size].into() }
    }

    #[test]
    fn the_documents_that_are_needed_first_are_kept() {
        let mut crawl = Crawl::default();
        for number in 0..5 {
            crawl.chain.push(Link { url: number.to_string(), is_permanent: true });
            crawl.keep(fetched(10 + number), 30);
        }
        assert_eq!(crawl.take_kept().map(|f| f.body.len()), Some(14));
        assert!(crawl.take_kept().is_none(), "the chain's end was not taken off");
        crawl.chain.pop();
        assert_eq!(crawl.take_kept().map(|f| f.body.len()), Some(13));
        crawl.chain.pop();
        assert!(crawl.take_kept().is_none(), "dropped: it is fetched again");
        assert_eq!(crawl.kept_bytes, 0);
    }

    #[test]
    fn where_the_way_back_ends() {
        let limits = Limits { documents: 3, other_hosts: false, ..Limits::default() };
        let home = "http://a.example/feed";
        let mut crawl = Crawl::new(home);
        assert_eq!(crawl.visit(home, home, &limits), Err(Stop::Loop));
        assert_eq!(crawl.visit("http://a.example/feed#x", home, &limits), Err(Stop::Loop));
        assert_eq!(crawl.visit("file:///etc/passwd", home, &limits), Err(Stop::Scheme));
        assert_eq!(crawl.visit("relative", home, &limits), Err(Stop::Scheme));
        assert_eq!(crawl.visit("http://b.example/1", home, &limits), Err(Stop::Host));
        for number in 1..4 {
            assert_eq!(crawl.visit(&format!("http://a.example/{number}"), home, &limits), Ok(()));
        }
        assert!(matches!(crawl.visit("http://a.example/9", home, &limits), Err(Stop::Limit(_))));
    }
}
