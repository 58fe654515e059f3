//! Documents from stretches of a feed's log.
//!
//! The log is cut into the same pages as for Data Replication ([`crate::replication::pages`]). With N the
//! number of the last sealed page, and `{url}` the feed's address:
//!
//! | address | [`Place`] | changes | kept |
//! |---|---|---|---|
//! | `{url}/atom` | [`Place::Newest`] | page N and the open page | until the log moves |
//! | `{url}/atom/{first}-{last}` | [`Place::Window`] | these, `first` being a page's first | for ever |
//! | `{url}/atom/{n}`, n < N | [`Place::Archive`] | page n | for ever |
//! | `{url}/atom/{N}` | [`Place::Window`] of page N | page N | until page N + 1 is sealed |
//!
//! The last sealed page is no archive document yet, for such a one names the archive after it, and "it would
//! be an error to link to it before completion" (RFC 5005, section 4). Nothing is missed by that: the newest
//! document shows the whole of page N, and its `prev-archive` is page N - 1.
//!
//! What is kept for ever is made of the feed's name and address and the page's changes alone, so that neither
//! a new title nor retention changes a byte of it: the link to a predecessor that is gone stays, and the
//! predecessor answers 410.
//!
//! Within a document only the last change of an id stands, as an entry or as an `at:deleted-entry`
//! (RFC 6721), newest first. A patch is shown as the whole item after it. An item's own `updated` need
//! not tell its versions apart, nor when they came; `modified` in our namespace does, which followers of ours
//! go by ([`crate::format::document::Entry`]).

use std::collections::HashSet;

use jiff::Timestamp;

use super::wire::{CURRENT, NEXT_ARCHIVE, PREV, PREV_ARCHIVE, Syntax, THIS};
use crate::change::{Change, Op, Seq};
use crate::format::document::{Entry, EntryIds, Head};
use crate::format::{DeletedEntry, FeedLink, atom, json_feed, link, rss};

/// What documents say of their feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedInfo {
    /// The feed's address, absolute and without a slash at its end: `https://…/feeds/{name}`.
    pub url: String,
    /// Its name, which never changes: the title of documents that are kept for ever.
    pub name: String,
    /// Its title.
    pub title: String,
    /// The page that it belongs to, absolute.
    pub home: Option<String>,
    /// Its language tag.
    pub lang: Option<String>,
    /// Links of every document, absolute: [`SUP`](super::wire::SUP). They follow from the address, for documents
    /// that are kept for ever have them too.
    pub links: Vec<FeedLink>,
    /// Where the newest document can be subscribed to (WebSub, section 4), absolute. Documents that stay as they are
    /// do not name it.
    pub hub: Option<String>,
}

/// A stretch of the log that begins with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The first change.
    pub first: Seq,
    /// The last change; less than `first` while the log is empty.
    pub last: Seq,
    /// The number of the page before `first`, where there is one.
    pub prev: Option<u64>,
}

/// Which document of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// What subscribers ask for again and again ("subscription document", RFC 5005, section 4).
    Newest(Window),
    /// The newest document as it was when the window was its stretch ("snapshot", -00, section 4).
    Window(Window),
    /// The archive document of a page, by the page's number.
    Archive(u64),
    /// All that there is ("complete feed", RFC 5005, section 2), for feeds whose past does not count.
    Complete,
    /// What a hub delivers: the last changes of the newest document and no others ("MAY reduce the payload to a diff",
    /// WebSub, section 7). It says nothing of the feed's past.
    Push,
}

impl Place {
    /// Whether the document stays as it is.
    fn is_kept(&self) -> bool {
        matches!(self, Self::Window(_) | Self::Archive(_))
    }
}

impl FeedInfo {
    /// The address of the newest document.
    pub fn newest_url(&self, syntax: Syntax) -> String {
        format!("{}/{}", self.url, syntax.name())
    }

    /// The address of the document of a page.
    pub fn page_url(&self, syntax: Syntax, number: u64) -> String {
        format!("{}/{}/{number}", self.url, syntax.name())
    }

    /// The address of the document of a window.
    pub fn window_url(&self, syntax: Syntax, window: &Window) -> String {
        format!("{}/{}/{}-{}", self.url, syntax.name(), window.first, window.last)
    }

    /// The links of a document: its own address and those of its neighbours, then [`Self::links`].
    pub fn document_links(&self, syntax: Syntax, place: &Place) -> Vec<FeedLink> {
        let newest = self.newest_url(syntax);
        let mut links: Vec<(&str, String)> = Vec::new();
        let prev = match place {
            Place::Newest(window) => {
                links.push(("self", newest));
                if window.first <= window.last {
                    links.push((THIS, self.window_url(syntax, window)));
                }
                window.prev
            }
            Place::Window(window) => {
                let own = self.window_url(syntax, window);
                links.extend([("self", own.clone()), (THIS, own), (CURRENT, newest)]);
                window.prev
            }
            Place::Archive(number) => {
                let own = self.page_url(syntax, *number);
                links.extend([("self", own.clone()), (THIS, own), (CURRENT, newest)]);
                links.push((NEXT_ARCHIVE, self.page_url(syntax, number + 1)));
                Some(number - 1).filter(|number| *number > 0)
            }
            Place::Complete | Place::Push => {
                links.push(("self", newest));
                None
            }
        };
        if let Some(prev) = prev.map(|number| self.page_url(syntax, number)) {
            // JSON Feed's next_url leads to older items.
            links.extend((syntax == Syntax::JsonFeed).then(|| ("next", prev.clone())));
            links.extend([(PREV, prev.clone()), (PREV_ARCHIVE, prev)]);
        }
        let links = links.into_iter().map(|(rel, href)| {
            let media_type = Some(syntax.media_type().to_owned());
            FeedLink { rel: rel.to_owned(), href, media_type }
        });
        let hub = self.hub.iter().filter(|_| !place.is_kept());
        let hub = hub.map(|hub| FeedLink { rel: "hub".into(), href: hub.clone(), media_type: None });
        links.chain(hub).chain(self.links.iter().cloned()).collect()
    }

    /// The same as lines of the header `Link` (RFC 8288), so that HEAD is enough to find the way back.
    pub fn link_headers(&self, syntax: Syntax, place: &Place) -> Vec<String> {
        self.document_links(syntax, place).iter().map(|l| link::write(&l.href, &l.rel)).collect()
    }

    /// The document of a place. `changes` are the place's stretch of the log in its order; of a complete feed
    /// the last change of each item, oldest first.
    pub fn document(&self, syntax: Syntax, place: &Place, changes: &[Change]) -> String {
        let ids_base = format!("{}/items/", self.url);
        let updated = changes.last().map_or(Timestamp::UNIX_EPOCH, |change| change.modified);
        let is_kept = place.is_kept();
        let title = if is_kept || self.title.trim().is_empty() { &self.name } else { &self.title };
        let mut head = Head::new(&self.url, title, updated);
        head.ids = EntryIds { base: &ids_base, always_own_id: false };
        if !is_kept {
            (head.home, head.lang) = (self.home.as_deref(), self.lang.as_deref());
        }
        head.links = self.document_links(syntax, place);
        head.stateful = (*place != Place::Push).then_some(*place != Place::Complete);
        head.complete = *place == Place::Complete;
        head.archive = matches!(place, Place::Archive(_));
        let mut seen = HashSet::with_capacity(changes.len());
        let last = changes.iter().rev().filter(|change| seen.insert(change.item.id.as_str()));
        let (gone, there): (Vec<&Change>, Vec<&Change>) = last.partition(|change| change.op == Op::Delete);
        if !head.complete {
            head.deleted = gone.into_iter().map(deleted).collect();
        }
        let entries = there.into_iter().map(entry);
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

fn entry(change: &Change) -> Entry<'_> {
    let tells_modified = change.item.updated != Some(change.modified);
    Entry { tells_modified, ..Entry::new(&change.item, change.modified) }
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
