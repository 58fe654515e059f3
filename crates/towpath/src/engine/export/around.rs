//! The documents over all feeds: put when all feeds that they name are in the tree.

use std::collections::BTreeMap;

use http::header::ETAG;
use towpath_proto::diffdelta::discovery::{self, KNOWN_ISSUES_PATH};
use towpath_proto::diffdelta::headers::{archive_index_path, paths};
use towpath_proto::diffdelta::wire::GLOBAL;
use towpath_proto::sup::publish::PERIODS;

use super::document::TreeDocument;
use super::state::Around;
use super::{ExportError, Summary, Tree};
use crate::engine::diffdelta::{served as diffdelta, tree as chains};
use crate::engine::sup;
use crate::server::document::{Document, Valid};
use crate::server::pages;

/// How often it is begun anew because there are new feeds.
const TRIES: usize = 5;

/// A document, and what tells whether it is news.
struct Pointer {
    document: TreeDocument,
    fingerprint: String,
}

impl From<TreeDocument> for Pointer {
    fn from(document: TreeDocument) -> Self {
        Self { fingerprint: document.fingerprint(), document }
    }
}

impl Tree {
    /// Puts what is new over all feeds.
    pub(super) async fn export_around(&self, summary: &mut Summary) -> Result<(), ExportError> {
        let store = self.engine.store.as_ref();
        let before = self.states.around(store).await?;
        for _ in 0..TRIES {
            let pointers = self.pointers_around().await?;
            // A feed may have been made since: what names it comes after it.
            let listed = self.engine.feeds().into_iter().filter(|feed| feed.is_listed());
            let missing: Vec<_> = listed.filter(|feed| !self.has(feed.id())).collect();
            if missing.is_empty() {
                return self.put_around(pointers, &before).await;
            }
            if !summary.failed.is_empty() {
                summary.failed.push("the documents over all feeds wait for those feeds".into());
                return Ok(());
            }
            self.export_feeds(missing, summary).await?;
        }
        Ok(())
    }

    async fn put_around(&self, pointers: Vec<Pointer>, before: &Around) -> Result<(), ExportError> {
        let told = self.there.lock().as_ref().map_or(before.told, |there| there.last_move.max(before.told));
        let mut after = Around { archives: before.archives, told, pointers: BTreeMap::new() };
        for one in chains::snapshots(&self.engine, GLOBAL, before.archives).await? {
            let path = chains::path(&one.url);
            if let Some(document) = diffdelta::document(&self.engine, path, &["archive", GLOBAL, ""]).await? {
                self.put(&TreeDocument::new(&self.engine, path, &document)).await?;
            }
            after.archives += 1;
        }
        if after.archives > before.archives {
            self.target.settle().await?;
        }
        for Pointer { document, fingerprint } in pointers {
            let is_news = match before.pointers.get(&document.path) {
                Some(known) if document.path.starts_with("/sup") => {
                    told > before.told || *known != fingerprint
                }
                known => known != Some(&fingerprint),
            };
            if is_news {
                self.put(&document).await?;
            } else {
                self.count_unchanged(1);
            }
            after.pointers.insert(document.path, fingerprint);
        }
        self.count_unchanged(before.archives);
        if after != *before {
            self.target.settle().await?;
            self.write(vec![self.states.save_around(&after)]).await?;
        }
        Ok(())
    }

    /// In the order in which they are to be put: what they lead to is there before.
    async fn pointers_around(&self) -> Result<Vec<Pointer>, ExportError> {
        let engine = &self.engine;
        let mut pointers = Vec::new();
        // Each time it is made it is another one; whether it is put depends on who moved.
        let told = self.sup().into_iter();
        pointers.extend(told.map(|document| Pointer { document, fingerprint: engine.base_url.clone() }));
        for (path, _) in discovery::schemas(&engine.site) {
            if let Some(document) = diffdelta::document(engine, &path, &["schema", "v1", ""]).await? {
                pointers.push(TreeDocument::new(engine, path, &document).into());
            }
        }
        if let Some(document) = diffdelta::document(engine, KNOWN_ISSUES_PATH, &[]).await? {
            pointers.push(TreeDocument::new(engine, KNOWN_ISSUES_PATH, &document).into());
        }
        if let Some(chains::Current { head, latest }) = chains::global(engine).await {
            let path = archive_index_path(None);
            if let Some(document) =
                diffdelta::document(engine, &path, &["archive", GLOBAL, "index.json"]).await?
            {
                pointers.push(TreeDocument::new(engine, path, &document).into());
            }
            // That nothing happened once more is no news.
            for (file, document) in [("latest.json", latest), ("head.json", head)] {
                let document = TreeDocument::new(engine, paths(None, file).remove(0), &document);
                let fingerprint = document.header(ETAG.as_str()).unwrap_or_default().to_owned();
                pointers.push(Pointer { document, fingerprint });
            }
        }
        if let Ok(feeds) = pages::feeds(engine) {
            pointers.push(TreeDocument::of_answer(engine, "/feeds", feeds).into());
        }
        pointers.extend(self.target.configuration(&engine.base_url).into_iter().map(Pointer::from));
        for (path, segments) in [
            ("/healthz.json", ["healthz.json", ""]),
            ("/diff/sources.json", ["diff", "sources.json"]),
            ("/.well-known/diffdelta.json", [".well-known", "diffdelta.json"]),
        ] {
            let segments = if segments[1].is_empty() { &segments[..1] } else { &segments[..] };
            if let Some(document) = diffdelta::document(engine, path, segments).await? {
                let document = without_webhooks(TreeDocument::new(engine, path, &document));
                let fingerprint = document.fingerprint_without_times();
                pointers.push(Pointer { document, fingerprint });
            }
        }
        Ok(pointers)
    }

    /// Which feeds moved in the tree lately: a document for each period, for no query counts here.
    fn sup(&self) -> Vec<TreeDocument> {
        let path = |period| {
            if period == sup::DEFAULT_PERIOD { "/sup.json".to_owned() } else { format!("/sup/{period}.json") }
        };
        let offered: BTreeMap<u64, String> = PERIODS
            .into_iter()
            .map(|period| (period, format!("{}{}", self.engine.base_url, path(period))))
            .collect();
        let there = self.there.lock();
        let Some(there) = there.as_ref() else { return Vec::new() };
        let now = self.engine.now();
        let document = |period| {
            let published = there.moves.document_offering(now, period, offered.clone());
            let headers = sup::headers(&published);
            let document = Document::new(published.body.into(), headers, Valid::UntilReplaced);
            TreeDocument::new(&self.engine, path(period), &document)
        };
        PERIODS.into_iter().rev().map(document).collect()
    }
}

/// The manifest of a site that nobody can subscribe at.
fn without_webhooks(mut document: TreeDocument) -> TreeDocument {
    let Ok(mut value) = serde_json::from_slice::<serde_json::Value>(&document.body) else { return document };
    if let Some(webhooks) = value.pointer_mut("/capabilities/webhooks_supported") {
        *webhooks = false.into();
        document.body = value.to_string().into();
    }
    document
}
