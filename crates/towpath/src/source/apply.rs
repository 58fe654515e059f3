//! Comparison of a loaded document with the known items, and the append of the difference.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use towpath_proto::diff::{Diff, DocumentOrder, GuardError, KnownItems, Listing, diff};
use towpath_proto::format::{FeedAbout, FeedDocument, Format, ProblemCounts};
use towpath_proto::{Item, NewChange};
use towpath_store::{AppendError, Expected, ReadError};
use tracing::Instrument as _;

use super::document::{LoadedPage, PageReader, add_page};
use super::poll_error::PollError;
use super::poll_summary::PollSummary;
use crate::blocking::blocking;
use crate::config::SourceConfig;
use crate::engine::roles::{self, Lease};
use crate::engine::{Engine, Feed};
use crate::spans::span;

/// Maximum number of new comparisons after concurrent appends to the feed.
// Clients may publish to a polled feed all the time, and the next poll compares again anyway.
const MAX_CONFLICTS: usize = 5;

/// Changes of a document were appended.
pub(super) struct AppliedDocument {
    pub(super) polled: PollSummary,
    /// Description that the source gives of itself.
    pub(super) about: FeedAbout,
}

/// A loaded document, which can be parsed more than once.
pub(super) struct DocumentReader<'a> {
    pub(super) source: &'a SourceConfig,
    pub(super) address: &'a str,
    pub(super) pages: &'a [LoadedPage],
    pub(super) has_more: bool,
}

impl DocumentReader<'_> {
    async fn read(&self) -> Result<FeedDocument, PollError> {
        let reader = PageReader::new(self.source);
        let mut document: Option<FeedDocument> = None;
        for (index, page) in self.pages.iter().enumerate() {
            let read = reader.read(page).await?;
            let address = || match index {
                0 => self.address.to_owned(),
                _ => format!("{}, page {}", self.address, index + 1),
            };
            let read = read.map_err(|source| PollError::Format { address: address(), source })?;
            match &mut document {
                None => document = Some(read),
                Some(document) => add_page(document, index + 1, read),
            }
        }
        let mut document = document.unwrap_or_else(|| FeedDocument::new(Format::Json));
        if self.has_more {
            let count = self.pages.len();
            document.problems.insert(0, format!("there are more than {count} pages (paging.max_pages)"));
            document.counts.warnings += 1;
        }
        Ok(document)
    }
}

/// Appends the difference between a document and the known items. Repeats the comparison after a concurrent append.
pub(super) async fn apply(
    engine: &Arc<Engine>,
    (feed, lease): (&Arc<Feed>, &Lease),
    reader: &DocumentReader<'_>,
) -> Result<AppliedDocument, PollError> {
    let source = reader.source;
    let mut conflicts = 0;
    loop {
        // Read again after a conflict, which is rare: a copy of all items would double the memory of every poll.
        let mut document = reader.read().await?;
        // Feed History's fh:complete declares the same in the document itself.
        let complete = source.complete || document.is_complete();
        if complete && !document.is_whole() {
            document
                .problems
                .insert(0, "nothing is removed, for an item that was left out may be any".into());
            document.counts.warnings += 1;
        }
        // Items beyond the limit of pages, and those that were left out, are not absent.
        let complete = complete && !reader.has_more && document.is_whole();
        let listing = if complete { Listing::Complete } else { Listing::Window };
        // Read before the items: an append in between makes the compare-and-append below fail.
        let head = engine.store.head(feed.id()).await?;
        let known = known(engine, feed, listing, &document).await?;
        document.drop_outdated();
        keep_newer(engine, feed, &known, &mut document).await?;
        let (guard, address) = (source.guard.into(), reader.address.to_owned());
        let about = document.about();
        // Hashing all items of a large document would stop the thread's other tasks.
        let comparing = blocking(move || {
            // Feeds list the newest entry first by convention; a mapped JSON array has no such order.
            let order = match document.format {
                Format::Json | Format::Ndjson => DocumentOrder::OldestFirst,
                _ => DocumentOrder::NewestFirst,
            };
            let items = std::mem::take(&mut document.items);
            let mut found = diff(&known, items, order, listing, guard)?;
            remove_deleted(&mut found, &known, &document);
            let polled = summary(&found, &document);
            Ok::<_, GuardError>((found.changes, polled))
        });
        let compared = comparing.await?;
        let (changes, polled) = compared.map_err(|source| PollError::Guard { address, source })?;
        // If another node has taken over the source, it may have appended from a newer document: stop here.
        roles::check(lease)?;
        match append(engine, feed, head.seq, changes).await {
            Err(PollError::Append(AppendError::Conflict { .. })) if conflicts < MAX_CONFLICTS => {
                conflicts += 1;
            }
            other => return other.map(|()| AppliedDocument { polled, about }),
        }
    }
}

async fn known(
    engine: &Engine,
    feed: &Feed,
    listing: Listing,
    document: &FeedDocument,
) -> Result<KnownItems, ReadError> {
    // Only a complete listing can remove items, so only then all known ids are loaded.
    if listing == Listing::Complete {
        return engine.store.content_hashes(feed.id(), None).await;
    }
    let items = document.items.iter().map(|item: &Item| item.id.clone());
    let deleted = document.deleted.iter().map(|entry| entry.id.clone());
    // A window of a large feed needs the hashes of its own entries only.
    let ids: Vec<String> = items.chain(deleted).collect();
    engine.store.content_hashes(feed.id(), Some(&ids)).await
}

/// Drops deletions that came before the version that is known: the document may have its item no more, and the marks of old
/// deletions still.
async fn keep_newer(
    engine: &Engine,
    feed: &Feed,
    known: &KnownItems,
    document: &mut FeedDocument,
) -> Result<(), ReadError> {
    let mut newer = HashSet::new();
    for entry in &document.deleted {
        let Some(when) = entry.when else { continue };
        if known.get(&entry.id).is_some_and(Option::is_some) {
            let latest = engine.store.latest(feed.id(), &entry.id).await?;
            let updated = latest.and_then(|latest| latest.item.updated);
            if updated.is_some_and(|updated| updated > when) {
                newer.insert(entry.id.clone());
            }
        }
    }
    document.deleted.retain(|entry| !newer.contains(&entry.id));
    Ok(())
}

/// Removes live items that the document marks as deleted (RFC 6721).
fn remove_deleted(found: &mut Diff, known: &KnownItems, document: &FeedDocument) {
    // An item that this document also changes was published again: the entry wins.
    // A document is foreign text, and may mark one item twice.
    let mut listed: HashSet<&str> = found.changes.iter().map(|change| change.item.id.as_str()).collect();
    let is_live = |id: &str| known.get(id).is_some_and(Option::is_some);
    let ids = document.deleted.iter().map(|entry| entry.id.as_str());
    let removed: Vec<NewChange> =
        ids.filter(|id| is_live(id) && listed.insert(id)).map(NewChange::delete).collect();
    found.removed += removed.len();
    found.changes.extend(removed);
}

async fn append(engine: &Engine, feed: &Feed, last: u64, changes: Vec<NewChange>) -> Result<(), PollError> {
    if !changes.is_empty() {
        let span = span!("append", feed = %feed.id(), changes = changes.len());
        engine.store.append(feed.id(), Expected::Last(last), changes).instrument(span).await?;
    }
    Ok(())
}

fn summary(found: &Diff, document: &FeedDocument) -> PollSummary {
    PollSummary {
        new: found.new,
        updated: found.updated,
        removed: found.removed,
        unchanged: Some(found.unchanged),
        bytes: None,
        problems: document.problems.iter().chain(&found.problems).cloned().collect(),
        counts: ProblemCounts {
            left_out: document.counts.left_out + found.left_out,
            warnings: document.counts.warnings,
        },
        error: None,
        next: Duration::ZERO,
        ended: false,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use towpath_proto::format::DeletedEntry;

    use super::*;

    fn document(ids: impl Iterator<Item = String>) -> FeedDocument {
        let mut document = FeedDocument::new(Format::Atom);
        document.deleted.extend(ids.map(|id| DeletedEntry { id, when: None }));
        document
    }

    #[test]
    fn deleted_entries_remove_live_unlisted_items_once() {
        let live = |id: &str| (id.to_owned(), Some(Item::new(id).content_hash()));
        let known = KnownItems::from_iter([live("a"), live("b"), ("c".into(), None)]);
        let changes = vec![NewChange::put(Item::new("b"))];
        let mut found = Diff { changes, ..Diff::default() };
        remove_deleted(
            &mut found,
            &known,
            &document(["a", "b", "a", "c", "d"].map(String::from).into_iter()),
        );
        assert_eq!(found.removed, 1);
        assert_eq!(found.changes[1..], [NewChange::delete("a")]);
    }

    /// Of an entry and a deletion of the same item the newer one counts; the entry, where a time is missing.
    #[test]
    fn an_item_that_is_listed_and_deleted_is_what_is_newer() {
        let time = |day: u8| format!("2024-01-{day:02}T00:00:00Z").parse::<Timestamp>().ok();
        let left = |updated: Option<u8>, when: Option<u8>| {
            let mut document = FeedDocument::new(Format::Atom);
            document.items.push(Item { updated: updated.and_then(time), ..Item::new("a") });
            document.deleted.push(DeletedEntry { id: "a".into(), when: when.and_then(time) });
            document.drop_outdated();
            (document.items.len(), document.deleted.len())
        };
        assert_eq!(left(Some(5), Some(2)), (1, 0));
        assert_eq!(left(Some(2), Some(5)), (0, 1));
        assert_eq!([left(None, Some(5)), left(Some(2), None), left(Some(2), Some(2))], [(1, 0); 3]);
    }

    /// A search of all changes for each entry would take longer than any test may run.
    #[test]
    fn many_deleted_entries_are_applied() {
        let ids = || (0..500_000).map(|number| format!("{number:08}"));
        let hash = Item::new("a").content_hash();
        let known = ids().map(|id| (id, Some(hash))).collect();
        let (mut found, document) = (Diff::default(), document(ids()));
        remove_deleted(&mut found, &known, &document);
        assert_eq!(found.removed, 500_000);
    }
}
