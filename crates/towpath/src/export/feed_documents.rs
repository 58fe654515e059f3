//! Entry documents of a feed: the ones at which readers begin.

use std::sync::Arc;

use http::HeaderValue;
use http::header::CACHE_CONTROL;
use towpath_proto::diffdelta::headers::{archive_index_path, paths};
use towpath_proto::format::link;
use towpath_proto::history::wire::Syntax;

use crate::engine::Feed;
use crate::export::feed_state::ExportState;
use crate::export::tree::{ExportError, Tree};
use crate::export::tree_document::TreeDocument;
use crate::protocols::catalog::tree_description;
use crate::protocols::diffdelta::{export as chains, serve as diffdelta};
use crate::protocols::history::documents::{self as history, HistoryAddress, HistoryLookup};
use crate::protocols::replication::documents::{self as replication, PageAddress, PageLookup, PagePart};
use crate::protocols::replication::serve::snapshot_list;
use crate::protocols::replication::snapshot;

/// Documents of a feed that are replaced.
pub(super) struct EntryDocuments {
    /// Newest page of Data Replication, at its number.
    pub(super) newest_page: Option<TreeDocument>,
    /// Entry documents, in the order in which they are put.
    pub(super) pointers: Vec<TreeDocument>,
}

impl Tree {
    /// Builds the entry documents, and the newest page.
    pub(super) async fn entry_documents(
        &self,
        feed: &Arc<Feed>,
        state: &ExportState,
    ) -> Result<EntryDocuments, ExportError> {
        let (engine, id) = (&self.engine, feed.id().as_str());
        let mut pointers = Vec::new();
        let chains::ExportedDocuments { head, latest } = chains::current(engine, feed).await?;
        for (file, document) in [("latest.json", latest), ("head.json", head)] {
            let all = paths(Some(id), file);
            pointers.extend(all.into_iter().map(|path| TreeDocument::new(engine, path, &document)));
        }
        // The index may list more than the head; readers come to it from the head, so it is put first.
        let index = archive_index_path(Some(id));
        if let Some(document) = diffdelta::document(engine, &index, &["archive", id, "index.json"]).await? {
            pointers.insert(0, TreeDocument::new(engine, index, &document));
        }
        let mut newest_page = None;
        if let PageLookup::Page(document) =
            replication::page(engine, feed, PageAddress::Newest, PagePart::Whole).await?
        {
            let newest = TreeDocument::new(engine, format!("/feeds/{id}/replication"), &document);
            newest_page = own_path(&newest).map(|path| newest.also_at(path));
            pointers.push(newest);
        }
        for syntax in Syntax::ALL {
            let which = HistoryAddress::Newest;
            match history::document(engine, feed, syntax, which).await? {
                HistoryLookup::Document(document) => {
                    pointers.push(TreeDocument::new(engine, history::path(feed, syntax, which), &document));
                }
                // The newest document of a feed without `complete` always exists.
                _ => return Err(ExportError::TooLarge(feed.id().clone())),
            }
        }
        let snapshots = &state.snapshots;
        if let Some(last) = snapshots.last() {
            pointers.push(self.newest_snapshot(feed, last.id).await?);
        }
        let list = snapshot_list(engine, feed, snapshots);
        pointers.push(TreeDocument::of_answer(engine, format!("/feeds/{id}/snapshots"), list));
        let has = |name: &str| match name {
            "replication" => newest_page.is_some(),
            "snapshots" => !snapshots.is_empty(),
            _ => true,
        };
        let page = tree_description(engine, feed, has).await?;
        pointers.push(TreeDocument::of_answer(engine, format!("/feeds/{id}"), page));
        Ok(EntryDocuments { newest_page, pointers })
    }

    async fn newest_snapshot(&self, feed: &Feed, id: u64) -> Result<TreeDocument, ExportError> {
        let mut document =
            self.snapshot(feed, id).await?.also_at(format!("/feeds/{}/snapshots/latest", feed.id()));
        // The snapshot is immutable at its own address, but `latest` is replaced.
        let check = HeaderValue::from_static("no-cache");
        document.headers.insert(CACHE_CONTROL, check);
        Ok(document)
    }

    /// Builds the index of a snapshot.
    pub(super) async fn snapshot(&self, feed: &Feed, id: u64) -> Result<TreeDocument, ExportError> {
        let document = snapshot::index(&self.engine, feed, Some(id)).await?;
        let document = document.ok_or_else(|| ExportError::Moved(feed.id().clone()))?;
        Ok(TreeDocument::new(&self.engine, snapshot::index_path(feed, id), &document))
    }
}

/// Returns the path of a page of Data Replication, from its own link.
fn own_path(page: &TreeDocument) -> Option<String> {
    let links = link::from_headers(&page.headers, None);
    let own = link::target(&links, "self")?;
    own.find("/feeds/").map(|at| own[at..].to_owned())
}
