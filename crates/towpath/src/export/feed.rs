//! Exporting one feed: its documents, in the order in which they are put.
//!
//! 1. Documents that nothing links to yet: archives, sealed pages, pages of snapshots.
//! 2. Documents that link to those and can be reached already ([`ReachablePages`]), such as the page that was the
//!    newest, with its new link to the next.
//! 3. The entry documents, at which readers begin.
//! 4. Removals of documents that nothing links to any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use towpath_proto::FeedId;
use towpath_proto::diffdelta::headers::IMMUTABLE;
use towpath_proto::format::link;
use towpath_proto::history::wire::{Syntax, THIS};

use crate::document::prebuilt::{Document, Valid};
use crate::engine::Feed;
use crate::engine::attachments::{self, Attachment, KeptFile};
use crate::export::feed_documents::EntryDocuments;
use crate::export::feed_state::ExportState;
use crate::export::file_type::stored_type;
use crate::export::paths::{file_path, obsolete_paths, page_path, past_path, snapshot_page_path};
use crate::export::tree::{ExportError, Tree, together};
use crate::export::tree_document::TreeDocument;
use crate::export::tree_state::{ExportedFeed, FeedExtent, WindowRange};
use crate::protocols::diffdelta::{archive_path, export as chains, serve as diffdelta};
use crate::protocols::history::documents::{self as history, HistoryAddress, HistoryLookup};
use crate::protocols::pages::{Division, divided};
use crate::protocols::replication::documents::{self as replication, PageAddress, PageLookup, PagePart};
use crate::protocols::replication::snapshot;

/// A feed whose documents are in the tree, except for its entry documents.
pub(super) struct StagedFeed {
    pub(super) feed: Arc<Feed>,
    pub(super) before: ExportedFeed,
    pub(super) extent: FeedExtent,
    made: EntryDocuments,
}

impl StagedFeed {
    /// Bytes of the documents that it holds in memory.
    pub(super) fn bytes(&self) -> usize {
        self.made.pointers.iter().map(|document| document.body.len()).sum()
    }

    /// Returns true if the feed changed since its last export.
    pub(super) fn has_moved(&self) -> bool {
        self.before.done.as_ref().is_none_or(|done| done.seq != self.extent.seq)
    }
}

/// A document that is built when its turn comes.
enum DocumentToPut {
    File(Attachment),
    Archive(String),
    Page(u64),
    Past(Syntax, HistoryAddress),
    SnapshotPage(u64, u64),
    Snapshot(u64),
}

/// Sealed pages that a tree's readers can have reached.
struct ReachablePages {
    /// All pages up to this one exist, with their links to the next.
    surely: u64,
    /// A killed export may have put the pages up to this one.
    maybe: u64,
}

impl ReachablePages {
    fn of(before: &ExportedFeed) -> Self {
        let sealed = |extent: &Option<FeedExtent>| extent.as_ref().map_or(0, |extent| extent.sealed);
        let surely = sealed(&before.done);
        Self { surely, maybe: surely.max(sealed(&before.begun)) }
    }

    /// Returns true if a reader may be at a page whose successor does not exist.
    ///
    /// The successor must be put before the page, and so on backwards. All others can be put in any order.
    fn is_open(&self, number: u64) -> bool {
        (self.surely..=self.maybe).contains(&number)
    }
}

impl Tree {
    /// Puts the new documents of a feed, except for its entry documents. Returns `None` if nothing changed.
    pub(super) async fn stage(&self, feed: Arc<Feed>) -> Result<Option<StagedFeed>, ExportError> {
        let store = self.engine.store.as_ref();
        let before = self.states.load(store, feed.id()).await?;
        let state = ExportState::of(&self.engine, &feed).await?;
        // Another node may still mint the last changes or begin the chain. No append says when, so export again.
        let is_to_begin = state.chain.snapshots == 0 && feed.config.source.is_none();
        if state.chain.minted_seq < state.seq || is_to_begin {
            self.late.lock().push(feed.id().clone());
        }
        if before.begun.is_none() && before.done.as_ref().is_some_and(|done| state.is(done)) {
            return Ok(None);
        }
        // Built before the division is read, so that every page they link to is in it.
        let made = self.entry_documents(&feed, &state).await?;
        let division = divided(&self.engine, &feed).await?;
        let open = division.open.map(|page| page_path(feed.id(), page.number));
        // Pages were sealed between the two reads: the links would not fit, so the feed is tried again.
        if made.newest_page.as_ref().map(|page| &page.path) != open.as_ref() {
            return Err(ExportError::Moved(feed.id().clone()));
        }
        let extent = self.extent(&feed, state, &division, &made, &before).await?;
        let staged = StagedFeed { feed, before, extent, made };
        // Before the first put: after a crash, the next export knows what may exist.
        self.store_begun(&staged).await?;
        self.put_past(&staged).await?;
        Ok(Some(staged))
    }

    /// Stores the extent of a feed that is about to be put.
    async fn store_begun(&self, staged: &StagedFeed) -> Result<(), ExportError> {
        let begun = staged.before.with_begun(&staged.extent);
        let write = self.states.save(staged.feed.id(), &begun);
        self.write(vec![write]).await
    }

    /// Puts all documents except for the entry documents.
    async fn put_past(&self, staged: &StagedFeed) -> Result<(), ExportError> {
        let StagedFeed { feed, before, extent, made } = staged;
        // Other settings change every document, so nothing counts as there.
        let done = before.done.as_ref().filter(|done| done.settings == extent.settings);
        let (first, then) = self.documents_to_put(staged, done).await?;
        let puts = first.into_iter().map(|ask| self.make_and_put(feed, ask));
        // All of these before any of `then`, which may link to them.
        together(puts).await?;
        // If another page was sealed meanwhile, the archive document of the last one links to a page not put yet.
        if divided(&self.engine, feed).await?.last.map_or(0, |page| page.number) != extent.sealed {
            return Err(ExportError::Moved(feed.id().clone()));
        }
        let is_there = before.begun.is_none() && done.is_some_and(|done| done.newest == extent.newest);
        if let (Some(page), false) = (&made.newest_page, is_there) {
            self.put(page).await?;
        }
        for ask in then {
            self.make_and_put(feed, ask).await?;
        }
        Ok(())
    }

    /// Puts the entry documents that changed.
    pub(super) fn put_entries<'a>(
        &'a self,
        staged: &'a StagedFeed,
    ) -> BoxFuture<'a, Result<(), ExportError>> {
        async move {
            let ExportedFeed { done, begun, .. } = &staged.before;
            // After a killed export, any entry document may be a newer one, so none counts as known.
            let known = done.as_ref().filter(|_| begun.is_none()).map(|done| &done.pointers);
            for document in &staged.made.pointers {
                let is_there = known.and_then(|known| known.get(&document.path));
                match is_there == staged.extent.pointers.get(&document.path) {
                    true => self.count_unchanged(1),
                    false => self.put(document).await?,
                }
            }
            Ok(())
        }
        .boxed()
    }

    /// Removes documents that nothing links to any more.
    pub(super) fn remove_unlinked<'a>(
        &'a self,
        staged: &'a StagedFeed,
    ) -> BoxFuture<'a, Result<(), ExportError>> {
        async move {
            let (id, new) = (staged.feed.id(), &staged.extent);
            // Both: a killed export may have put what the finished state lacks.
            for old in [&staged.before.begun, &staged.before.done].into_iter().flatten() {
                for path in old.pointers.keys().filter(|path| !new.pointers.contains_key(*path)) {
                    self.remove(path).await?;
                }
                for path in obsolete_paths(id, old, new) {
                    match new.complete {
                        // A feed that is no longer complete has its pages again.
                        true => self.remove(&path).await?,
                        // Immutable documents still link to pages that retention drops.
                        false => self.remove_for_good(&path).await?,
                    }
                }
            }
            Ok(())
        }
        .boxed()
    }

    /// Removes all documents of a feed that exist or may exist.
    pub(super) async fn drop_feed(&self, id: &FeedId, exported: &ExportedFeed) -> Result<(), ExportError> {
        let nothing = FeedExtent::default();
        for old in [&exported.begun, &exported.done].into_iter().flatten() {
            // Entry documents go first: readers must not be led to removed pages.
            for path in old.pointers.keys().rev() {
                self.remove(path).await?;
            }
            for path in obsolete_paths(id, old, &nothing) {
                self.remove(&path).await?;
            }
            // One more than sealed: the newest page is at its number as well.
            for number in old.gone_below.max(1)..=old.sealed + 1 {
                self.remove(&page_path(id, number)).await?;
                for syntax in Syntax::ALL {
                    self.remove(&past_path(id, syntax, &number.to_string())).await?;
                }
            }
        }
        for one in chains::snapshots(&self.engine, id.as_str(), 0).await? {
            self.remove(archive_path(&one.url)).await?;
        }
        Ok(())
    }

    pub(super) async fn extent(
        &self,
        feed: &Feed,
        state: ExportState,
        division: &Division,
        made: &EntryDocuments,
        before: &ExportedFeed,
    ) -> Result<FeedExtent, ExportError> {
        let ExportState { settings, seq, chain, cleanup, snapshots } = state;
        let done = before.done.as_ref();
        let of_newest = made.pointers.iter().filter_map(window);
        let of_last = division.last.filter(|_| !feed.config.complete).map(|page| (page.first, page.last));
        let mut windows: BTreeSet<WindowRange> = of_newest.chain(of_last).collect();
        let parts: Vec<_> = windows.iter().flat_map(|w| history::parts_before(division, w.0, w.1)).collect();
        windows.extend(parts);
        // A reader of the previous version may still request the copy that it names. One that walks back comes to parts
        // that are older; the newest pages keep theirs.
        let mut past = done.map(|done| done.windows.clone()).unwrap_or_default();
        let older = done.iter().flat_map(|done| &done.past_windows);
        past.extend(older.filter(|w| history::is_recent_part(division, w.0, w.1)));
        let files = attachments::list(self.engine.store.as_ref(), feed.id()).await?;
        Ok(FeedExtent {
            files: files.iter().filter_map(|file| file_path(feed.id(), file)).collect(),
            settings,
            seq,
            // Of before the documents were made. A mint since then is put with them, and again with the next export.
            archives: chain.snapshots,
            complete: feed.config.complete,
            first_page: cleanup.first_page,
            gone_below: cleanup.gone_below,
            sealed: division.last.map_or(0, |page| page.number),
            newest: made.newest_page.as_ref().map(TreeDocument::fingerprint).unwrap_or_default(),
            snapshots: snapshots.iter().map(|one| (one.id, one.pages)).collect(),
            past_windows: past.into_iter().filter(|window| !windows.contains(window)).collect(),
            windows: windows.into_iter().collect(),
            pointers: made
                .pointers
                .iter()
                .map(|document| (document.path.clone(), document.fingerprint()))
                .collect(),
        })
    }

    /// Returns the documents to put in any order, and then those to put in this order.
    async fn documents_to_put(
        &self,
        staged: &StagedFeed,
        done: Option<&FeedExtent>,
    ) -> Result<(Vec<DocumentToPut>, Vec<DocumentToPut>), ExportError> {
        let StagedFeed { feed, extent: new, .. } = staged;
        let (mut first, mut then) = (Vec::new(), Vec::new());
        let archived = done.map_or(0, |done| done.archives);
        for one in chains::snapshots(&self.engine, feed.id().as_str(), archived).await? {
            first.push(DocumentToPut::Archive(archive_path(&one.url).to_owned()));
        }
        for file in attachments::list(self.engine.store.as_ref(), feed.id()).await? {
            let path = file_path(feed.id(), &file).filter(|path| new.files.contains(path));
            if path.is_some_and(|path| done.is_none_or(|done| !done.files.contains(&path))) {
                first.push(DocumentToPut::File(file));
            }
        }
        let low = new.gone_below.max(1);
        let last = done.map_or(0, |done| done.sealed);
        let reached = ReachablePages::of(&staged.before);
        for number in (low.max(last + 1)..=new.sealed).rev() {
            let at = if reached.is_open(number.saturating_sub(1)) { &mut then } else { &mut first };
            at.push(DocumentToPut::Page(number));
        }
        // Pages that lost their link to the one before.
        if done.is_some_and(|done| done.first_page != new.first_page) {
            then.extend((low..=new.first_page.min(last)).map(DocumentToPut::Page));
        }
        if !new.complete {
            // The page that was last sealed did not link to the next one.
            let from = if new.sealed > last { low.max(last) } else { low.max(last + 1) };
            for number in (from..=new.sealed).rev() {
                let at = if reached.is_open(number) { &mut then } else { &mut first };
                at.extend(past(HistoryAddress::Page(number)));
            }
            let known = done.map_or(&[][..], |done| &done.windows);
            let windows = new.windows.iter().filter(|window| !known.contains(window));
            first.extend(windows.flat_map(|(first, last)| past(HistoryAddress::Window(*first, *last))));
        }
        for (id, pages) in &new.snapshots {
            if done.is_none_or(|done| !done.snapshots.contains(&(*id, *pages))) {
                first.extend((0..*pages).map(|number| DocumentToPut::SnapshotPage(*id, number)));
                then.push(DocumentToPut::Snapshot(*id));
            }
        }
        Ok((first, then))
    }

    /// Puts an uploaded file. One whose item was deleted meanwhile is left out.
    async fn put_file(&self, feed: &Feed, file: &Attachment) -> Result<(), ExportError> {
        let content = attachments::load(self.engine.store.as_ref(), feed.id(), &file.key).await?;
        let (Some(content), Some(path)) = (content, file_path(feed.id(), file)) else { return Ok(()) };
        let media_type = match &content {
            KeptFile::Whole(content) => &content.media_type,
            KeptFile::Chunked(file) => &file.media_type,
        };
        let mut headers = HeaderMap::new();
        if let Ok(media_type) = HeaderValue::from_str(stored_type(media_type)) {
            headers.insert(CONTENT_TYPE, media_type);
        }
        // Its address has its digest.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(IMMUTABLE));
        let document = |body| Document::uncoded(body, headers, Valid::Immutable);
        match content {
            KeptFile::Whole(content) => {
                self.put(&TreeDocument::new(&self.engine, path, &document(content.bytes))).await
            }
            KeptFile::Chunked(file) => {
                let size = file.size;
                let pieces = file.stream(self.engine.store.clone(), feed.id().clone(), 0, size);
                let document = TreeDocument::new(&self.engine, path, &document(Bytes::new()));
                self.put_pieces(&document, pieces.boxed()).await
            }
        }
    }

    /// Builds a document and puts it.
    fn make_and_put<'a>(
        &'a self,
        feed: &'a Arc<Feed>,
        ask: DocumentToPut,
    ) -> BoxFuture<'a, Result<(), ExportError>> {
        async move {
            let (engine, moved) = (&self.engine, || ExportError::Moved(feed.id().clone()));
            let (path, document) = match ask {
                DocumentToPut::File(file) => return self.put_file(feed, &file).await,
                DocumentToPut::Archive(path) => {
                    let document =
                        diffdelta::document(engine, &path, &["archive", feed.id().as_str(), ""]).await?;
                    (path, document.ok_or_else(moved)?)
                }
                DocumentToPut::Page(number) => {
                    let which = PageAddress::Number(number);
                    match replication::page(engine, feed, which, PagePart::Whole).await? {
                        PageLookup::Page(document) => (page_path(feed.id(), number), document),
                        _ => return Err(moved()),
                    }
                }
                DocumentToPut::Past(syntax, which) => {
                    match history::document(engine, feed, syntax, which).await? {
                        HistoryLookup::Document(document) => (history::path(feed, syntax, which), document),
                        _ => return Err(moved()),
                    }
                }
                DocumentToPut::SnapshotPage(id, number) => {
                    match snapshot::page(engine, feed, id, number, PagePart::Whole).await? {
                        PageLookup::Page(document) => (snapshot_page_path(feed.id(), id, number), document),
                        _ => return Err(moved()),
                    }
                }
                DocumentToPut::Snapshot(id) => return self.put(&self.snapshot(feed, id).await?).await,
            };
            self.put(&TreeDocument::new(engine, path, &document)).await
        }
        .boxed()
    }
}

fn past(which: HistoryAddress) -> impl Iterator<Item = DocumentToPut> {
    Syntax::ALL.into_iter().map(move |syntax| DocumentToPut::Past(syntax, which))
}

/// Returns the range that a document of Feed History names as its immutable copy.
fn window(document: &TreeDocument) -> Option<WindowRange> {
    let links = link::from_headers(&document.headers, None);
    let (_, name) = link::target(&links, THIS)?.rsplit_once('/')?;
    let (first, last) = name.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}
