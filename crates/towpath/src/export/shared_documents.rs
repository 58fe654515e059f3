//! The documents over all feeds: put when all feeds that they name are in the tree.

use std::collections::BTreeMap;

use http::header::ETAG;
use towpath_proto::diffdelta::discovery::{self, KNOWN_ISSUES_PATH};
use towpath_proto::diffdelta::headers::{archive_index_path, paths};
use towpath_proto::diffdelta::wire::GLOBAL;
use towpath_proto::sup::publish::PERIODS;

use crate::document::prebuilt::{Document, Valid};
use crate::export::summary::ExportSummary;
use crate::export::tree::{ExportError, Tree};
use crate::export::tree_document::TreeDocument;
use crate::export::tree_state::SharedState;
use crate::protocols::catalog::public_list;
use crate::protocols::diffdelta::site::site;
use crate::protocols::diffdelta::{archive_path, export as chains, serve as diffdelta};
use crate::protocols::sup::serve as sup;

/// Attempts while feeds are created.
const TRIES: usize = 5;

/// A document, and the fingerprint that tells whether it changed.
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
    pub(super) async fn export_shared(&self, summary: &mut ExportSummary) -> Result<(), ExportError> {
        let store = self.engine.store.as_ref();
        let before = self.states.shared(store).await?;
        for _ in 0..TRIES {
            let pointers = self.shared_pointers().await?;
            // A feed may have been created since. Documents that name it must come after it.
            let listed = self.engine.feeds().into_iter().filter(|feed| feed.is_listed());
            let missing: Vec<_> = listed.filter(|feed| !self.has(feed.id())).collect();
            if missing.is_empty() {
                return self.put_shared(pointers, &before).await;
            }
            if !summary.failed.is_empty() {
                summary.failed.push("the documents over all feeds wait for those feeds".into());
                return Ok(());
            }
            // Those first: a global document must not name a feed that the tree lacks.
            self.export_feeds(missing, summary).await?;
        }
        Ok(())
    }

    async fn put_shared(&self, pointers: Vec<Pointer>, before: &SharedState) -> Result<(), ExportError> {
        let listed = self
            .contents
            .lock()
            .as_ref()
            .map_or(before.listed, |contents| contents.last_move.max(before.listed));
        let mut after = SharedState { archives: before.archives, listed, pointers: BTreeMap::new() };
        for one in chains::snapshots(&self.engine, GLOBAL, before.archives).await? {
            let path = archive_path(&one.url);
            if let Some(document) = diffdelta::document(&self.engine, path, &["archive", GLOBAL, ""]).await? {
                self.put(&TreeDocument::new(&self.engine, path, &document)).await?;
            }
            after.archives += 1;
        }
        // Durable before the documents that lead to them are put.
        if after.archives > before.archives {
            self.target.sync().await?;
        }
        for Pointer { document, fingerprint } in pointers {
            let is_news = match before.pointers.get(&document.path) {
                // Its bytes hold the time of making. Without new updates, putting it would only cost a write.
                Some(known) if document.path.starts_with("/sup") => {
                    listed > before.listed || *known != fingerprint
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
            self.target.sync().await?;
            self.write(vec![self.states.save_shared(&after)]).await?;
        }
        Ok(())
    }

    /// Returns the documents over all feeds, each after the documents that it links to.
    async fn shared_pointers(&self) -> Result<Vec<Pointer>, ExportError> {
        let engine = &self.engine;
        let mut pointers = Vec::new();
        // Its bytes differ with each build, so the fingerprint is only the tree's address.
        let listed = self.sup().into_iter();
        pointers.extend(listed.map(|document| Pointer { document, fingerprint: engine.base_url.clone() }));
        for (path, _) in discovery::schemas(site(engine)) {
            if let Some(document) = diffdelta::document(engine, &path, &["schema", "v1", ""]).await? {
                pointers.push(TreeDocument::new(engine, path, &document).into());
            }
        }
        if let Some(document) = diffdelta::document(engine, KNOWN_ISSUES_PATH, &[]).await? {
            pointers.push(TreeDocument::new(engine, KNOWN_ISSUES_PATH, &document).into());
        }
        if let Some(chains::ExportedDocuments { head, latest }) = chains::current_global(engine).await {
            let path = archive_index_path(None);
            if let Some(document) =
                diffdelta::document(engine, &path, &["archive", GLOBAL, "index.json"]).await?
            {
                pointers.push(TreeDocument::new(engine, path, &document).into());
            }
            // Fingerprint by the cursor: a carry alone is no reason to put them.
            for (file, document) in [("latest.json", latest), ("head.json", head)] {
                let document = TreeDocument::new(engine, paths(None, file).remove(0), &document);
                let fingerprint = document.header(ETAG.as_str()).unwrap_or_default().to_owned();
                pointers.push(Pointer { document, fingerprint });
            }
        }
        if let Ok(feeds) = public_list(engine) {
            pointers.push(TreeDocument::of_answer(engine, "/feeds", feeds).into());
        }
        pointers.extend(
            self.target.configuration(&engine.base_url, &engine.cors_policy()).into_iter().map(Pointer::from),
        );
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

    /// Returns a SUP document for each period: file hosts ignore queries.
    fn sup(&self) -> Vec<TreeDocument> {
        let path = |period| {
            if period == sup::DEFAULT_PERIOD { "/sup.json".to_owned() } else { format!("/sup/{period}.json") }
        };
        let offered: BTreeMap<u64, String> = PERIODS
            .into_iter()
            .map(|period| (period, format!("{}{}", self.engine.base_url, path(period))))
            .collect();
        let contents = self.contents.lock();
        let Some(contents) = contents.as_ref() else { return Vec::new() };
        let now = self.engine.now();
        let document = |period| {
            let published = contents.moves.document_offering(now, period, offered.clone());
            let headers = sup::headers(&published);
            let document = Document::new(published.body.into(), headers, Valid::UntilReplaced);
            TreeDocument::new(&self.engine, path(period), &document)
        };
        // `/sup.json` is the last: it names the documents of the other periods.
        PERIODS.into_iter().rev().map(document).collect()
    }
}

/// Returns the manifest without webhooks: a static site has no hub.
fn without_webhooks(mut document: TreeDocument) -> TreeDocument {
    let Ok(mut value) = serde_json::from_slice::<serde_json::Value>(&document.body) else { return document };
    if let Some(webhooks) = value.pointer_mut("/capabilities/webhooks_supported") {
        *webhooks = false.into();
        document.body = value.to_string().into();
    }
    document
}
