//! The documents of a feed at which readers begin.

use std::sync::Arc;

use http::HeaderValue;
use http::header::CACHE_CONTROL;
use towpath_proto::diffdelta::headers::{archive_index_path, paths};
use towpath_proto::format::link;
use towpath_proto::history::wire::Syntax;

use super::document::TreeDocument;
use super::feed::Standing;
use super::{ExportError, Tree};
use crate::engine::diffdelta::{served as diffdelta, tree as chains};
use crate::engine::replication::{served, snapshot};
use crate::engine::{Feed, history};
use crate::server::pages::tree_json;
use crate::server::replication::snapshot_list;

/// The documents that are replaced again and again.
pub(super) struct Made {
    /// The newest page of Data Replication, at its number.
    pub(super) newest_page: Option<TreeDocument>,
    /// Those at which readers begin, in the order in which they are to be put.
    pub(super) pointers: Vec<TreeDocument>,
}

impl Tree {
    /// Makes them all, and the newest page.
    pub(super) async fn made(&self, feed: &Arc<Feed>, standing: &Standing) -> Result<Made, ExportError> {
        let (engine, id) = (&self.engine, feed.id().as_str());
        let mut pointers = Vec::new();
        let chains::Current { head, latest } = chains::current(engine, feed).await?;
        for (file, document) in [("latest.json", latest), ("head.json", head)] {
            let all = paths(Some(id), file);
            pointers.extend(all.into_iter().map(|path| TreeDocument::new(engine, path, &document)));
        }
        // It lists what the head has and maybe more; readers come to it from the head.
        let index = archive_index_path(Some(id));
        if let Some(document) = diffdelta::document(engine, &index, &["archive", id, "index.json"]).await? {
            pointers.insert(0, TreeDocument::new(engine, index, &document));
        }
        let mut newest_page = None;
        if let served::Found::Page(document) =
            served::page(engine, feed, served::Which::Newest, false).await?
        {
            let newest = TreeDocument::new(engine, format!("/feeds/{id}/replication"), &document);
            newest_page = own_path(&newest).map(|path| newest.also_at(path));
            pointers.push(newest);
        }
        for syntax in Syntax::ALL {
            let which = history::Which::Newest;
            match history::document(engine, feed, syntax, which).await? {
                history::Found::Document(document) => {
                    pointers.push(TreeDocument::new(engine, history::path(feed, syntax, which), &document));
                }
                _ => return Err(ExportError::TooLarge(feed.id().clone())),
            }
        }
        let snapshots = &standing.snapshots;
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
        let page = tree_json(engine, feed, has).await?;
        pointers.push(TreeDocument::of_answer(engine, format!("/feeds/{id}"), page));
        Ok(Made { newest_page, pointers })
    }

    async fn newest_snapshot(&self, feed: &Feed, id: u64) -> Result<TreeDocument, ExportError> {
        let mut document =
            self.snapshot(feed, id).await?.also_at(format!("/feeds/{}/snapshots/latest", feed.id()));
        let check = HeaderValue::from_static("no-cache");
        document.headers.insert(CACHE_CONTROL, check);
        Ok(document)
    }

    /// The index of a snapshot.
    pub(super) async fn snapshot(&self, feed: &Feed, id: u64) -> Result<TreeDocument, ExportError> {
        let document = snapshot::index(&self.engine, feed, Some(id)).await?;
        let document = document.ok_or_else(|| ExportError::Moved(feed.id().clone()))?;
        Ok(TreeDocument::new(&self.engine, snapshot::index_path(feed, id), &document))
    }
}

/// The path of a page of Data Replication, of whatever site.
fn own_path(page: &TreeDocument) -> Option<String> {
    let links = link::from_headers(&page.headers, None);
    let own = link::target(&links, "self")?;
    own.find("/feeds/").map(|at| own[at..].to_owned())
}
