//! Routes of DiffDelta: `/diff/…`, `/archive/…`, `/schema/…`, `/healthz.json` and the manifest.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CACHE_CONTROL;
use http::{HeaderValue, Request, StatusCode};
use serde_json::json;
use towpath_proto::diffdelta::cursor::Cursor;
use towpath_proto::diffdelta::discovery::{self, KNOWN_ISSUES_PATH};
use towpath_proto::diffdelta::headers::Resource;
use towpath_proto::diffdelta::wire::GLOBAL;
use towpath_store::{StoreFailure, Table};

use crate::document::prebuilt::{Answer, Document, Valid};
use crate::document::respond::{respond, whole};
use crate::document::route_error::RouteError;
use crate::engine::health_parts::HealthParts;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::documents::{forget, make, put};
use crate::protocols::diffdelta::export::snapshots;
use crate::protocols::diffdelta::recovery::Recovery;
use crate::protocols::diffdelta::site::site;
use crate::protocols::diffdelta::site_documents::{SiteDocument, site_document};
use crate::protocols::diffdelta::state::DiffDelta;
use crate::protocols::diffdelta::stored::StoredChain;
use crate::protocols::diffdelta::{global_stored, source_chain};
use crate::store_error::StoreError;

/// Longest wait for a snapshot that another node minted, and the interval of looking for it.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(2);
const SNAPSHOT_POLL: Duration = Duration::from_millis(20);

/// Drops a chain's documents from the cache if the chain was written `since`: they may be older than the stored chain.
fn forget_if_written(engine: &Engine, name: &str, since: u64) {
    if DiffDelta::of(engine).writes(name) != since {
        forget(engine, name);
    }
}

/// Answers a request for a DiffDelta document.
///
/// # Errors
///
/// No such document, or a store that cannot be read.
pub(crate) async fn get<B>(
    engine: &Arc<Engine>,
    segments: &[&str],
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    if let (["healthz.json"], Some(failure)) = (segments, engine.store_failure()) {
        return Ok(unhealthy(engine, &failure));
    }
    let path = request.uri().path();
    let document = document(engine, path, segments).await?;
    let document = document.ok_or_else(|| RouteError::not_found(format!("there is nothing at {path}")))?;
    respond(document, request.headers()).await
}

/// Answers `/healthz.json` while nothing can be written: load balancers and supervisors look at the status code.
fn unhealthy(engine: &Engine, failure: &StoreFailure) -> Answer {
    // The reason names files of this machine, so it is in the log only.
    let error = match failure {
        StoreFailure { is_full: true, .. } => "the disk is full; writes go on once there is space",
        StoreFailure { is_final: true, .. } => "the store takes no writes; the process has to be restarted",
        _ => "the store takes no writes; it is being opened again",
    };
    let now = engine.now().to_string();
    let body = json!({
        "generated_at": now, "status": "unhealthy", "error": error,
        "ok": false, "service": discovery::SERVICE, "time": now, "parts": HealthParts::of(engine),
    });
    let mut answer =
        whole(StatusCode::SERVICE_UNAVAILABLE, "application/json; charset=utf-8", body.to_string());
    answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Returns the document at a path, built if it is not cached; `None` if there is none.
pub(crate) async fn document(
    engine: &Arc<Engine>,
    path: &str,
    segments: &[&str],
) -> Result<Option<Arc<Document>>, StoreError> {
    match segments {
        ["diff", file @ ("head.json" | "latest.json")] => global_document(engine, path, file).await,
        ["diff", "source", id, file @ ("head.json" | "latest.json")]
        | ["diff", id, file @ ("head.json" | "latest.json")] => {
            let Some(feed) = engine.feed(id).filter(|feed| !feed.is_filter()) else { return Ok(None) };
            feed_document(engine, &feed, path, file).await.map(Some)
        }
        // Before the other archive arms: these do not check whether a removed feed was public.
        ["archive", name, ..] if !has_archive(engine, name).await? => Ok(None),
        ["archive", name, "index.json"] => index(engine, path, name).await.map(Some),
        ["archive", name, ..] => snapshot(engine, path, name).await,
        ["diff", "sources.json"] => site_document(engine, SiteDocument::Sources).await,
        ["healthz.json"] => site_document(engine, SiteDocument::Health).await,
        [".well-known", "diffdelta.json"] => site_document(engine, SiteDocument::Manifest).await,
        ["schema", "v1", _] => Ok(schema(engine, path)),
        _ if path == KNOWN_ISSUES_PATH => {
            Ok(Some(keep(engine, path, Resource::KnownIssues, discovery::known_issues(), Valid::Immutable)))
        }
        _ => Ok(None),
    }
}

/// Returns a document of the global feed. It is cached when it is published, and built here after an eviction.
async fn global_document(
    engine: &Arc<Engine>,
    path: &str,
    file: &str,
) -> Result<Option<Arc<Document>>, StoreError> {
    if let Some(document) = engine.documents.get(path) {
        return Ok(Some(document));
    }
    Recovery::of(engine).wait().await?;
    // Before the read, so that a write during it is noticed.
    let since = DiffDelta::of(engine).writes(GLOBAL);
    let current = match engine.is_shared() {
        true => global_stored::load_shared(engine).await?,
        false => DiffDelta::of(engine).global.current().await,
    };
    let Some((chain, head, latest)) = current else { return Ok(None) };
    let shown = put(engine, GLOBAL, &chain, head, latest);
    forget_if_written(engine, GLOBAL, since);
    Ok(Some(shown.named(file)))
}

/// Returns a document of a feed, as its last run published it.
async fn feed_document(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    path: &str,
    file: &str,
) -> Result<Arc<Document>, StoreError> {
    Recovery::publish_first(engine, feed).await?;
    // A run that publishes meanwhile would be overwritten in the cache by this older document.
    let _chain = DiffDelta::chain_lock(feed).lock().await;
    if let Some(document) = engine.documents.get(path) {
        return Ok(document);
    }
    let name = feed.id().as_str();
    let since = DiffDelta::of(engine).writes(name);
    let stored = StoredChain::load(engine.store.as_ref(), name).await?;
    let (chain, head, latest) = source_chain::current(engine, feed, &stored).await?;
    let shown = put(engine, name, &chain, head, latest);
    forget_if_written(engine, name, since);
    Ok(shown.named(file))
}

/// Returns true if a name has an archive.
///
/// Section 1.3 forbids deleting archives: a feed that was removed from the configuration keeps its archive, provided
/// that it was public throughout.
async fn has_archive(engine: &Engine, name: &str) -> Result<bool, StoreError> {
    match engine.feed(name) {
        // The access to a feed that exists was checked by routing.
        Some(feed) => Ok(!feed.is_filter()),
        None if name == GLOBAL => Ok(true),
        None => Ok(StoredChain::load(engine.store.as_ref(), name).await?.is_public()),
    }
}

async fn index(engine: &Arc<Engine>, path: &str, name: &str) -> Result<Arc<Document>, StoreError> {
    let known = engine.feed(name);
    match &known {
        Some(feed) => Recovery::publish_first(engine, feed).await?,
        None => Recovery::of(engine).wait().await?,
    }
    // A concurrent mint would be missing from the cached index, so it waits for this lock.
    let _chain = match &known {
        Some(feed) => Some(DiffDelta::chain_lock(feed).lock().await),
        None => None,
    };
    let _global = match name {
        GLOBAL => Some(DiffDelta::of(engine).global.hold().await),
        _ => None,
    };
    let since = DiffDelta::of(engine).writes(name);
    let snapshots = snapshots(engine, name, 0).await?;
    let body = discovery::archive_index(name, snapshots);
    let document = keep(engine, path, Resource::ArchiveIndex, body, Valid::UntilReplaced);
    forget_if_written(engine, name, since);
    Ok(document)
}

/// Returns a snapshot.
///
/// A snapshot that another node may just have minted is waited for: to a reader, 404 means that it was deleted.
async fn snapshot(engine: &Arc<Engine>, path: &str, name: &str) -> Result<Option<Arc<Document>>, StoreError> {
    let begun = tokio::time::Instant::now();
    let stored = || async {
        let body = engine.store.get(Table::Documents, path.as_bytes()).await?;
        Ok(body.map(|body| keep(engine, path, Resource::Snapshot, body, Valid::Immutable)))
    };
    loop {
        if let Some(document) = stored().await? {
            return Ok(Some(document));
        }
        let is_of_a_chain = || name == GLOBAL || engine.feed(name).is_some();
        // Only a cluster mints elsewhere; and made-up names must not hold requests for two seconds.
        if !engine.is_shared() || !is_of_a_chain() {
            return Ok(None);
        }
        if !StoredChain::load(engine.store.as_ref(), name).await?.chain().may_publish_later(path) {
            // It may have arrived between the two reads.
            return stored().await;
        }
        if begun.elapsed() > SNAPSHOT_WAIT {
            let reason = format!("this node does not have {path} yet");
            return Err(StoreError::Unavailable { reason, retry_after: Duration::from_secs(1) });
        }
        tokio::time::sleep(SNAPSHOT_POLL).await;
    }
}

fn schema(engine: &Engine, path: &str) -> Option<Arc<Document>> {
    let (path, body) = discovery::schemas(site(engine)).into_iter().find(|(known, _)| known == path)?;
    Some(keep(engine, &path, Resource::Schema, body, Valid::Immutable))
}

fn keep(engine: &Engine, path: &str, resource: Resource, body: Bytes, valid: Valid) -> Arc<Document> {
    engine.documents.put(path, make(resource, Cursor::ZERO, body, valid))
}
