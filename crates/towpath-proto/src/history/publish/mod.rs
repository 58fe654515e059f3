//! Documents from ranges of a feed's log.
//!
//! The log is divided into the same pages as for Data Replication ([`crate::replication::pages`]). With N the number of
//! the last sealed page, and `{url}` the feed's URL:
//!
//! | URL | [`HistoryDocument`] | changes | valid |
//! |---|---|---|---|
//! | `{url}/atom` | [`HistoryDocument::Newest`] | the last few of page N and the open page | until the next append |
//! | `{url}/atom/{first}-{last}` | [`HistoryDocument::Window`] or [`HistoryDocument::Part`] | this range | permanently |
//! | `{url}/atom/{n}`, n < N | [`HistoryDocument::Archive`] | page n | permanently |
//! | `{url}/atom/{N}` | [`HistoryDocument::LastArchive`] | page N | until page N + 1 is sealed |
//!
//! The last sealed page has no `next-archive` yet. An archive document links to the next one, and "it would be
//! an error to link to it before completion" (RFC 5005, section 4).
//!
//! The newest document begins in page N or in the open page. Between it and the page before stand parts of that page
//! ([`EarlierDocument`]), so `prev-archive` leads to every change. Readers that poll load few items, and those that stayed
//! away load no part twice.
//!
//! Permanent documents depend only on the feed's name and URL and the page's changes, so neither a new title nor
//! retention changes a byte of them. A link to a removed predecessor stays; the predecessor responds with 410.
//!
//! A document has only the last change of each id, as an entry or as an `at:deleted-entry` (RFC 6721), newest first.
//! A patch appears as the whole patched item. An item's own `updated` need not differ between versions. The attribute
//! `modified` in our namespace does, and our followers use it ([`crate::format::document::DocumentEntry`]).

mod parts;

use std::collections::HashSet;

use jiff::Timestamp;

pub use self::parts::{EarlierDocument, LogPage, MIN_PART};

use super::wire::{CURRENT, NEXT_ARCHIVE, PREV, PREV_ARCHIVE, Syntax, THIS};
use crate::change::{Change, Op, Seq};
use crate::format::document::{DocumentEntry, DocumentHead, EntryIds};
use crate::format::{DeletedEntry, FeedLink, atom, json_feed, link, rss};
use crate::item::Author;

/// Properties of a feed in its documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedInfo {
    /// The feed's absolute URL without a trailing slash: `https://…/feeds/{name}`.
    pub url: String,
    /// The feed's name, which never changes: the title of permanent documents.
    pub name: String,
    /// The feed's title.
    pub title: String,
    /// Absolute URL of the feed's web page.
    pub home: Option<String>,
    /// The feed's language tag.
    pub lang: Option<String>,
    /// Description of the feed.
    pub description: Option<String>,
    /// Absolute URL of the feed's image.
    pub image: Option<String>,
    /// Author of the feed.
    pub author: Option<Author>,
    /// Absolute links of every document, such as [`SUP`](super::wire::SUP). Permanent documents have them too, so they must
    /// depend on the URL only.
    pub links: Vec<FeedLink>,
    /// Absolute URLs of the hubs of the newest document (WebSub, section 4). Permanent documents have no hub.
    pub hubs: Vec<String>,
}

/// A range of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogWindow {
    /// The first change.
    pub first: Seq,
    /// The last change; less than `first` while the log is empty.
    pub last: Seq,
    /// The document with the changes before `first`, if any.
    pub prev: Option<EarlierDocument>,
}

/// Identifier of a document of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryDocument {
    /// The document that followers poll ("subscription document", RFC 5005, section 4).
    Newest(LogWindow),
    /// The newest document at the time when it covered this range ("snapshot", -00, section 4).
    Window(LogWindow),
    /// A part of a page, between the newest document and the page before. It has no `next-archive`: a longer part will
    /// replace it.
    Part(LogWindow),
    /// The archive document of a page, by page number.
    Archive(u64),
    /// The archive document of the last sealed page, which cannot name the next one yet.
    LastArchive(u64),
    /// The whole feed ("complete feed", RFC 5005, section 2), for feeds without history.
    Complete,
    /// The delivery of a hub: only the last changes of the newest document ("MAY reduce the payload to a diff", WebSub,
    /// section 7). It has no links to older entries.
    Push,
}

impl HistoryDocument {
    /// Returns true if the document has older entries than the newest one.
    fn is_archive(&self) -> bool {
        matches!(self, Self::Part(_) | Self::Archive(_) | Self::LastArchive(_))
    }

    /// Returns true if the document does not change with the feed's description.
    fn is_permanent(&self) -> bool {
        matches!(self, Self::Window(_) | Self::Part(_)) || self.is_archive()
    }
}

impl FeedInfo {
    /// Returns the URL of the newest document.
    pub fn newest_url(&self, syntax: Syntax) -> String {
        format!("{}/{}", self.url, syntax.name())
    }

    /// Returns the URL of the archive document of a page.
    pub fn page_url(&self, syntax: Syntax, number: u64) -> String {
        format!("{}/{}/{number}", self.url, syntax.name())
    }

    /// Returns the URL of the document of a window.
    pub fn window_url(&self, syntax: Syntax, window: &LogWindow) -> String {
        self.range_url(syntax, window.first, window.last)
    }

    fn range_url(&self, syntax: Syntax, first: Seq, last: Seq) -> String {
        format!("{}/{}/{first}-{last}", self.url, syntax.name())
    }

    fn earlier_url(&self, syntax: Syntax, earlier: EarlierDocument) -> String {
        match earlier {
            EarlierDocument::Page(number) => self.page_url(syntax, number),
            EarlierDocument::Part { first, last } => self.range_url(syntax, first, last),
        }
    }

    /// Returns the links of a document: its own URL and those of its neighbours, then [`Self::links`].
    pub fn document_links(&self, syntax: Syntax, document: &HistoryDocument) -> Vec<FeedLink> {
        let newest = self.newest_url(syntax);
        let mut links: Vec<(&str, String)> = Vec::new();
        let prev = match document {
            HistoryDocument::Newest(window) => {
                links.push(("self", newest));
                // An empty log has no range that `this` could name.
                if window.first <= window.last {
                    links.push((THIS, self.window_url(syntax, window)));
                }
                window.prev
            }
            HistoryDocument::Window(window) | HistoryDocument::Part(window) => {
                let own = self.window_url(syntax, window);
                links.extend([("self", own.clone()), (THIS, own), (CURRENT, newest)]);
                window.prev
            }
            HistoryDocument::Archive(number) | HistoryDocument::LastArchive(number) => {
                let own = self.page_url(syntax, *number);
                links.extend([("self", own.clone()), (THIS, own), (CURRENT, newest)]);
                if matches!(document, HistoryDocument::Archive(_)) {
                    links.push((NEXT_ARCHIVE, self.page_url(syntax, number + 1)));
                }
                Some(number - 1).filter(|number| *number > 0).map(EarlierDocument::Page)
            }
            HistoryDocument::Complete | HistoryDocument::Push => {
                links.push(("self", newest));
                None
            }
        };
        if let Some(prev) = prev.map(|earlier| self.earlier_url(syntax, earlier)) {
            // JSON Feed has no archives, only `next_url`, which leads to older items.
            links.extend((syntax == Syntax::JsonFeed).then(|| ("next", prev.clone())));
            links.extend([(PREV, prev.clone()), (PREV_ARCHIVE, prev)]);
        }
        let links = links.into_iter().map(|(rel, href)| {
            let media_type = Some(syntax.media_type().to_owned());
            FeedLink { rel: rel.to_owned(), href, media_type }
        });
        // A hub delivers the newest document, so permanent ones need no link to it.
        let hubs = self.hubs.iter().filter(|_| !document.is_permanent());
        let hubs = hubs.map(|hub| FeedLink { rel: "hub".into(), href: hub.clone(), media_type: None });
        links.chain(hubs).chain(self.links.iter().cloned()).collect()
    }

    /// Returns the links as lines of the header `Link` (RFC 8288), so that a follower can walk back by HEAD.
    pub fn link_headers(&self, syntax: Syntax, document: &HistoryDocument) -> Vec<String> {
        self.document_links(syntax, document).iter().map(|l| link::write(&l.href, &l.rel)).collect()
    }

    /// Writes a document.
    ///
    /// `changes` are the document's range of the log in log order; for a complete feed the last change of each item,
    /// oldest first.
    pub fn document(&self, syntax: Syntax, document: &HistoryDocument, changes: &[Change]) -> String {
        let ids_base = format!("{}/items/", self.url);
        let updated = changes.last().map_or(Timestamp::UNIX_EPOCH, |change| change.modified);
        let is_permanent = document.is_permanent();
        // A title may change; a permanent document must not.
        let title = if is_permanent || self.title.trim().is_empty() { &self.name } else { &self.title };
        let mut head = DocumentHead::new(&self.url, title, updated);
        // RFC 4287, section 4.2.6: an id must be an IRI, so other ids are made one below this base.
        head.ids = EntryIds { base: &ids_base, always_own_id: false };
        if !is_permanent {
            (head.home, head.lang) = (self.home.as_deref(), self.lang.as_deref());
            (head.description, head.image) = (self.description.as_deref(), self.image.as_deref());
            head.author = self.author.as_ref();
        }
        head.links = self.document_links(syntax, document);
        head.stateful =
            (*document != HistoryDocument::Push).then_some(*document != HistoryDocument::Complete);
        head.complete = *document == HistoryDocument::Complete;
        head.archive = document.is_archive();
        // RFC 4287, section 4.1.1: two entries with one id would be one entry, with no way to order them.
        let mut seen = HashSet::with_capacity(changes.len());
        let last = changes.iter().rev().filter(|change| seen.insert(change.item.id.as_str()));
        let (deletions, items): (Vec<&Change>, Vec<&Change>) =
            last.partition(|change| change.op == Op::Delete);
        // A complete document deletes by omission, so it needs no tombstones (RFC 5005, section 2).
        if !head.complete {
            head.deleted = deletions.into_iter().map(deleted).collect();
        }
        let entries = items.into_iter().map(entry);
        match syntax {
            Syntax::Atom => atom::write(&head, entries),
            Syntax::Rss => rss::write(&head, entries),
            Syntax::JsonFeed => json_feed::write(&head, entries),
        }
    }
}

fn deleted(change: &Change) -> DeletedEntry {
    DeletedEntry { id: change.item.id.clone(), when: Some(change.modified) }
}

fn entry(change: &Change) -> DocumentEntry<'_> {
    let tells_modified = change.item.updated != Some(change.modified);
    DocumentEntry { tells_modified, ..DocumentEntry::new(&change.item, change.modified) }
}

#[cfg(test)]
mod tests;
