//! DiffDelta's documents as they are served.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use towpath_proto::diffdelta::cursor::Cursor;
use towpath_proto::diffdelta::discovery::{self, KNOWN_ISSUES_PATH};
use towpath_proto::diffdelta::headers::{self, Resource, archive_index_path};
use towpath_proto::diffdelta::publish::{Chain, Source};
use towpath_proto::diffdelta::wire::GLOBAL;
use towpath_store::{StoreError, Table};

use super::kept::Kept;
use super::{source, tree};
use crate::engine::{Engine, Feed};
use crate::server::document::{Document, Valid};

/// How long a snapshot is waited for that other nodes may have, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);

/// A chain's current documents.
pub(super) struct Shown {
    head: Arc<Document>,
    latest: Arc<Document>,
}

impl Shown {
    fn named(self, file: &str) -> Arc<Document> {
        if file == "head.json" { self.head } else { self.latest }
    }
}

/// Serves a chain's current documents from memory, at all of their addresses, from now on.
pub(super) fn put(engine: &Engine, name: &str, chain: &Chain, head: Bytes, latest: Bytes) -> Shown {
    let source = (name != GLOBAL).then_some(name);
    let put = |file, resource, body| {
        let paths = headers::paths(source, file);
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        engine.documents.put_all(&paths, made(resource, chain.cursor, body, Valid::UntilReplaced))
    };
    engine.documents.forget(&archive_index_path(source));
    Shown {
        head: put("head.json", Resource::Head, head),
        latest: put("latest.json", Resource::Latest, latest),
    }
}

/// A document with the headers of its kind. Its tag is its cursor, whatever the coding (section 6.1).
pub(super) fn made(resource: Resource, cursor: Cursor, body: Bytes, valid: Valid) -> Document {
    let headers = resource.headers(cursor, &body);
    Document::new(body, headers, valid).with_one_tag()
}

/// Forgets a chain's documents: they are made again from what is stored when somebody asks.
pub(in crate::engine) fn forget(engine: &Engine, name: &str) {
    let source = (name != GLOBAL).then_some(name);
    for path in ["head.json", "latest.json"].into_iter().flat_map(|file| headers::paths(source, file)) {
        engine.documents.forget(&path);
    }
    engine.documents.forget(&archive_index_path(source));
}

/// Forgets them if the chain was written since: what was put may be older than what is stored.
fn forget_if_written(engine: &Engine, name: &str, since: u64) {
    if engine.replica.writes(name) != since {
        forget(engine, name);
    }
}

/// The document at a path that is none of the server's other addresses, made if it is not in memory.
/// `None` where there is none.
pub(crate) async fn document(
    engine: &Arc<Engine>,
    path: &str,
    segments: &[&str],
) -> Result<Option<Arc<Document>>, StoreError> {
    match segments {
        ["diff", file @ ("head.json" | "latest.json")] => global(engine, path, file).await,
        ["diff", "source", id, file @ ("head.json" | "latest.json")]
        | ["diff", id, file @ ("head.json" | "latest.json")] => {
            let Some(feed) = engine.feed(id).filter(|feed| !feed.is_filter()) else { return Ok(None) };
            feed_document(engine, &feed, path, file).await.map(Some)
        }
        ["archive", name, ..] if !has_archive(engine, name).await? => Ok(None),
        ["archive", name, "index.json"] => index(engine, path, name).await.map(Some),
        ["archive", name, ..] => snapshot(engine, path, name).await,
        ["diff", "sources.json"] => around(engine, Around::Sources).await,
        ["healthz.json"] => around(engine, Around::Health).await,
        [".well-known", "diffdelta.json"] => around(engine, Around::Manifest).await,
        ["schema", "v1", _] => Ok(schema(engine, path)),
        _ if path == KNOWN_ISSUES_PATH => {
            Ok(Some(keep(engine, path, Resource::KnownIssues, discovery::known_issues(), Valid::Immutable)))
        }
        _ => Ok(None),
    }
}

/// A document of the global feed: always in memory once it was made; made again where memory ran out.
async fn global(engine: &Arc<Engine>, path: &str, file: &str) -> Result<Option<Arc<Document>>, StoreError> {
    if let Some(document) = engine.documents.get(path) {
        return Ok(Some(document));
    }
    let since = engine.replica.writes(GLOBAL);
    let current = match engine.is_shared() {
        true => super::global::shared(engine).await?,
        false => engine.diffdelta.global.current().await,
    };
    let Some((chain, head, latest)) = current else { return Ok(None) };
    let shown = put(engine, GLOBAL, &chain, head, latest);
    forget_if_written(engine, GLOBAL, since);
    Ok(Some(shown.named(file)))
}

/// Makes a feed's documents as its last run made them.
async fn feed_document(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    path: &str,
    file: &str,
) -> Result<Arc<Document>, StoreError> {
    let _alone = feed.publishing.lock().await;
    if let Some(document) = engine.documents.get(path) {
        return Ok(document);
    }
    let name = feed.id().as_str();
    let since = engine.replica.writes(name);
    let kept = Kept::load(engine.store.as_ref(), name).await?;
    let (chain, head, latest) = source::current(engine, feed, &kept).await?;
    let shown = put(engine, name, &chain, head, latest);
    forget_if_written(engine, name, since);
    Ok(shown.named(file))
}

/// Whether a name has an archive: section 1.3 forbids to delete one, so that of a feed which the configuration does
/// not name any more stays, if everybody could read all of it.
async fn has_archive(engine: &Engine, name: &str) -> Result<bool, StoreError> {
    match engine.feed(name) {
        Some(feed) => Ok(!feed.is_filter()),
        None if name == GLOBAL => Ok(true),
        None => Ok(Kept::load(engine.store.as_ref(), name).await?.is_public()),
    }
}

async fn index(engine: &Arc<Engine>, path: &str, name: &str) -> Result<Arc<Document>, StoreError> {
    let known = engine.feed(name);
    // A mint in between would be missing from an index that is kept: it waits until this one is.
    let _alone = match &known {
        Some(feed) => Some(feed.publishing.lock().await),
        None => None,
    };
    let since = engine.replica.writes(name);
    let snapshots = tree::snapshots(engine, name, 0).await?;
    let body = discovery::archive_index(name, snapshots);
    let document = keep(engine, path, Resource::ArchiveIndex, body, Valid::UntilReplaced);
    forget_if_written(engine, name, since);
    Ok(document)
}

/// A snapshot. One that another node may have minted a moment ago is waited for, and never said not to be there: to a
/// reader that would mean that it is gone.
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
        if !engine.is_shared() || !is_of_a_chain() {
            return Ok(None);
        }
        if !Kept::load(engine.store.as_ref(), name).await?.chain().may_lead_to(path) {
            // It may have come between the two looks.
            return stored().await;
        }
        if begun.elapsed() > PATIENCE {
            let reason = format!("this node does not have {path} yet");
            return Err(StoreError::Unavailable { reason, retry_after: Duration::from_secs(1) });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn schema(engine: &Engine, path: &str) -> Option<Arc<Document>> {
    let (path, body) = discovery::schemas(&engine.site).into_iter().find(|(known, _)| known == path)?;
    Some(keep(engine, &path, Resource::Schema, body, Valid::Immutable))
}

fn keep(engine: &Engine, path: &str, resource: Resource, body: Bytes, valid: Valid) -> Arc<Document> {
    engine.documents.put(path, made(resource, Cursor::ZERO, body, valid))
}

/// The documents that show all sources as they are right now.
#[derive(Clone, Copy)]
enum Around {
    Manifest,
    Sources,
    Health,
}

/// Made for each request: they say how old things are.
async fn around(engine: &Arc<Engine>, which: Around) -> Result<Option<Arc<Document>>, StoreError> {
    let chains = engine.diffdelta.global.sources().await;
    let mut feeds = engine.feeds();
    feeds.retain(|feed| feed.is_listed());
    let unborn = Chain::default();
    let shown: Vec<(Source<'_>, &Chain)> = feeds
        .iter()
        .map(|feed| (source::source(engine, feed), chains.get(feed.id()).unwrap_or(&unborn)))
        .collect();
    let now = engine.now();
    let (resource, body) = match which {
        Around::Sources => (Resource::Sources, discovery::sources(&engine.site, &shown, now)),
        Around::Health => (Resource::Health, discovery::healthz(&shown, engine.replica_age(), now)),
        Around::Manifest => {
            let sources: Vec<Source<'_>> = shown.iter().map(|(source, _)| *source).collect();
            let ttl_sec = sources.iter().map(|source| source.ttl_sec).min().unwrap_or(300);
            (Resource::Manifest, discovery::manifest(&engine.site, &sources, ttl_sec, now))
        }
    };
    Ok(Some(Arc::new(made(resource, Cursor::ZERO, body, Valid::UntilReplaced))))
}
