//! Documents over all sources, with their health at the time of the request.
//!
//! They show ages, so they are not in the cache. With tens of thousands of feeds one takes tens of milliseconds: it is
//! made apart from the threads that serve, once for all who ask at the time, and kept for a moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::Instant;
use towpath_proto::FeedId;
use towpath_proto::diffdelta::cursor::Cursor;
use towpath_proto::diffdelta::discovery::{self, NodeHealth};
use towpath_proto::diffdelta::headers::Resource;
use towpath_proto::diffdelta::publish::{DocumentChain, SourcePublisher};
use towpath_proto::diffdelta::wire::GLOBAL;

use crate::document::prebuilt::{Document, Valid};
use crate::engine::health_parts::HealthParts;
use crate::engine::work::blocking;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::documents::make;
use crate::protocols::diffdelta::recovery::Recovery;
use crate::protocols::diffdelta::site::{site, source};
use crate::protocols::diffdelta::state::DiffDelta;
use crate::store_error::StoreError;

/// Longest time for which a document is kept. Its ages are whole seconds.
const LONGEST: Duration = Duration::from_secs(1);
/// Time for which a document is kept, as a multiple of the time that it took. So requests cost at most a twentieth of a
/// core, and a document of few feeds is always new.
const KEPT: u32 = 20;

/// A document over all sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SiteDocument {
    /// `/.well-known/diffdelta.json`.
    Manifest,
    /// `/diff/sources.json`.
    Sources,
    /// `/healthz.json`.
    Health,
}

/// A document, if there is one, and the time until which it is kept.
type KeptDocument = (Instant, Option<Arc<Document>>);

/// The last documents of an engine.
#[derive(Default)]
struct SiteDocuments([Mutex<Option<KeptDocument>>; 3]);

/// Returns such a document. Those who ask while it is made wait for it.
pub(super) async fn site_document(
    engine: &Arc<Engine>,
    which: SiteDocument,
) -> Result<Option<Arc<Document>>, StoreError> {
    if which != SiteDocument::Manifest {
        Recovery::of(engine).wait().await?;
    }
    let documents = engine.extensions.get_or_insert_with(|| Arc::new(SiteDocuments::default()));
    let mut kept = documents.0[which as usize].lock().await;
    // An export writes what is true when it writes.
    if let Some((until, document)) = kept.as_ref().filter(|_| !engine.is_tree)
        && Instant::now() < *until
    {
        return Ok(document.clone());
    }
    let (at, chains) = (engine.clone(), DiffDelta::of(engine).global.sources().await);
    let (document, took) = blocking(move || {
        let began = Instant::now();
        (build(&at, &chains, which).map(Arc::new), began.elapsed())
    })
    .await?;
    *kept = Some((Instant::now() + (took * KEPT).min(LONGEST), document.clone()));
    Ok(document)
}

fn build(engine: &Engine, chains: &BTreeMap<FeedId, DocumentChain>, which: SiteDocument) -> Option<Document> {
    let feeds: Vec<Arc<Feed>> = engine.feeds().into_iter().filter(|feed| feed.is_listed()).collect();
    let unpublished = DocumentChain::default();
    let shown: Vec<(SourcePublisher<'_>, &DocumentChain)> = feeds
        .iter()
        .map(|feed| (source(engine, feed), chains.get(feed.id()).unwrap_or(&unpublished)))
        .collect();
    let now = engine.now();
    let (resource, body): (Resource, Bytes) = match which {
        SiteDocument::Sources => (Resource::Sources, discovery::sources(site(engine), &shown, now)),
        SiteDocument::Health => {
            (Resource::Health, discovery::healthz(&shown, &node_health(engine, &feeds), now))
        }
        // Its schema has at least one source, and it names the global feed, which does not exist without one.
        SiteDocument::Manifest if shown.is_empty() => return None,
        SiteDocument::Manifest => {
            let sources: Vec<SourcePublisher<'_>> = shown.iter().map(|(source, _)| *source).collect();
            let ttl_sec = sources.iter().map(|source| source.ttl_sec).min().unwrap_or(300);
            (Resource::Manifest, discovery::manifest(site(engine), &sources, ttl_sec, now))
        }
    };
    Some(make(resource, Cursor::ZERO, body, Valid::UntilReplaced))
}

/// Returns what `/healthz.json` says beside the sources. It names listed feeds only.
fn node_health(engine: &Engine, listed: &[Arc<Feed>]) -> NodeHealth {
    let is_listed = |name: &String| name == GLOBAL || listed.iter().any(|feed| feed.id().as_str() == name);
    let damaged_reads = engine.store_damage().map_or(0, |damage| damage.reads);
    let mut publish_failed = engine.failures.feeds();
    let failed = publish_failed.len();
    publish_failed.retain(is_listed);
    // A tree is no server: nothing would bring its numbers up to date.
    let sinks = engine.sinks.counts().filter(|_| !engine.is_tree);
    let parts = HealthParts::of(engine);
    NodeHealth { replica_age: engine.replica_age(), damaged_reads, failed, publish_failed, sinks, parts }
}
