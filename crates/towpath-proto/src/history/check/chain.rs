//! Rules of the drafts and RFC 5005 for a document and its neighbours.

use std::collections::HashMap;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::rules;
use crate::format::FeedDocument;
use crate::history::wire::{CURRENT, NEXT_ARCHIVE, PREV, PREV_ARCHIVE, Predecessor, THIS};
use crate::item::ContentHash;
use crate::report::Report;

/// A checked document: its links and the hashes of its entries.
#[derive(Debug)]
pub(super) struct CheckedDocument {
    pub(super) url: String,
    // Only a digest is kept: a check may read more than 20 documents of up to 64 MiB.
    digest: [u8; 32],
    pub(super) predecessor: Predecessor,
    pub(super) this: Option<String>,
    prev: Option<String>,
    prev_archive: Option<String>,
    next_archive: Option<String>,
    current: Option<String>,
    is_archive: bool,
    /// -00's flag, which the later drafts replaced. `None` in their feeds.
    stateful: Option<bool>,
    updated: Option<Timestamp>,
    entries: HashMap<String, (Option<Timestamp>, ContentHash)>,
}

impl CheckedDocument {
    pub(super) fn new(url: &str, body: &[u8], feed: &FeedDocument) -> Self {
        let link = |rel| feed.link(rel).map(str::to_owned);
        let mut modified: HashMap<usize, Timestamp> = feed.modified.iter().copied().collect();
        let mut entry = |(index, item): (usize, &crate::Item)| {
            // Our `modified` differs between two versions even if the entry's own `updated` does not.
            let time = modified.remove(&index).or(item.updated);
            (item.id.clone(), (time, item.content_hash()))
        };
        Self {
            url: url.to_owned(),
            digest: Sha256::digest(body).into(),
            predecessor: Predecessor::of(feed),
            this: link(THIS),
            prev: link(PREV),
            prev_archive: link(PREV_ARCHIVE),
            next_archive: link(NEXT_ARCHIVE),
            current: link(CURRENT),
            is_archive: feed.archive,
            stateful: feed.stateful.filter(|_| has_first_flag(body)),
            updated: feed.updated,
            entries: feed.items.iter().enumerate().map(&mut entry).collect(),
        }
    }

    /// Compares the body of a second request byte by byte. `None` means that it is equal.
    pub(super) fn difference(&self, body: &[u8]) -> Option<String> {
        let digest: [u8; 32] = Sha256::digest(body).into();
        (digest != self.digest).then(|| format!("{} has other bytes at the second request", self.url))
    }

    /// Tests a document's own flag and links.
    pub(super) fn test_links(&self, report: &mut Report) {
        let url = &self.url;
        if self.stateful == Some(true) {
            report.judge(rules::HAS_THIS, self.this.is_none().then(|| url.clone()));
        }
        for (rule, target) in [(rules::THIS_URI, &self.this), (rules::PREV_URI, &self.prev)] {
            let Some(target) = target else { continue };
            let problem = (!is_http(target)).then(|| format!("{url}: {target:?}"));
            report.judge(rule, problem);
        }
        for target in [&self.prev_archive, &self.next_archive, &self.current].into_iter().flatten() {
            let problem = (!is_http(target)).then(|| format!("{url}: {target:?}"));
            report.judge(rules::ARCHIVE_URI, problem);
        }
        let has_older = self.prev_archive.is_some() || self.prev.is_some();
        if self.predecessor == Predecessor::Complete {
            let problem =
                has_older.then(|| format!("{url} is marked as complete and links to older documents"));
            report.judge(rules::COMPLETE, problem);
        }
    }

    /// Tests the subscription document.
    pub(super) fn test_newest(&self, report: &mut Report) {
        // An archive document never has a new entry, so whoever polls it misses everything.
        let problem = self.is_archive.then(|| format!("{} has fh:archive", self.url));
        report.judge(rules::SUBSCRIPTION, problem);
        if let Some(this) = &self.this {
            // The newest document changes under its URL, so its own URL cannot be the permanent one.
            let problem = (*this == self.url).then(|| this.clone());
            report.judge(rules::THIS_UNIQUE, problem);
        }
    }

    /// Tests the document at the newest document's `this`.
    pub(super) fn test_snapshot(&self, report: &mut Report, newest: &Self) {
        let ids = |document: &Self| {
            let mut ids: Vec<&String> = document.entries.keys().collect();
            ids.sort();
            ids.into_iter().cloned().collect::<Vec<_>>()
        };
        let problem = (ids(self) != ids(newest)).then(|| format!("{} has other entries", self.url));
        report.judge(rules::THIS_ENTRIES, problem);
    }

    /// Tests a document that `newer` links to; `feed` is the URL of the subscription document.
    pub(super) fn test_older(
        &self,
        report: &mut Report,
        newer: &Self,
        feed: &str,
        is_reached_from_feed: bool,
    ) {
        let url = &self.url;
        if newer.prev.as_ref() == Some(url)
            && let Some(this) = &self.this
        {
            let problem = (this != url).then(|| format!("the 'this' of {url} is {this}"));
            report.judge(rules::PREV_THIS, problem);
        }
        if newer.prev_archive.as_ref() == Some(url) {
            self.test_archive(report, newer, feed, is_reached_from_feed);
        }
        let problem = match (self.updated, newer.updated) {
            (Some(older), Some(newer)) if older > newer => {
                Some(format!("{url} was updated at {older}, {newer}"))
            }
            _ => None,
        };
        report.judge(rules::UPDATED_ORDER, problem);
        // A follower cannot tell which of two versions with equal dates is the later.
        let ambiguous = self.entries.iter().find(|(id, version)| {
            let other = newer.entries.get(*id);
            other.is_some_and(|other| other.0 == version.0 && other.1 != version.1)
        });
        let problem = ambiguous.map(|(id, _)| format!("{id:?} differs in {url} and {}", newer.url));
        report.judge(rules::VERSION_DATES, problem);
    }

    fn test_archive(&self, report: &mut Report, newer: &Self, feed: &str, is_reached_from_feed: bool) {
        let here = || self.url.clone();
        report.judge(rules::MARKED, (!self.is_archive).then(here));
        let problem = match self.current.as_deref() {
            Some(current) if current == feed => None,
            current => Some(format!("{}: {current:?}", self.url)),
        };
        report.judge(rules::CURRENT, problem);
        // The newer document is the subscription document here, which is never a `next-archive`.
        if is_reached_from_feed {
            return report.pass_over(&[rules::NEXT_ARCHIVE], "only the newest archive document was read");
        }
        let problem = match self.next_archive.as_ref() {
            Some(next) if *next == newer.url => None,
            next => Some(format!("{}: {next:?}, although {} links to it", self.url, newer.url)),
        };
        report.judge(rules::NEXT_ARCHIVE, problem);
    }
}

/// Returns true if a document has -00's flag, in either case (see the interpretation notes).
fn has_first_flag(body: &[u8]) -> bool {
    [&b":Stateful"[..], b":stateful", b"<Stateful", b"<stateful"]
        .into_iter()
        .any(|name| memchr::memmem::find(body, name).is_some())
}

fn is_http(target: &str) -> bool {
    url::Url::parse(target).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}
