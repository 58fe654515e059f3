//! Publishes the documents of a single source (sections 1, 2 and 5).

use jiff::Timestamp;

use super::chain::{
    CarryError, ChainPaths, DocumentChain, PublishedDocuments, carried_narrative, whole_second,
};
use super::collapse::Delta;
use super::delta_item::RenderedItem;
use super::document::Envelope;
use super::repeats::Repeats;
use super::site::SiteUrl;
use crate::change::Seq;
use crate::diffdelta::wire::{
    DeltaCounts, FetchStatus, ImpactReason, SourceStatus, Sources, StatusError, TTL_SEC,
};
use crate::feed_id::FeedId;

/// Publisher of a source's documents.
#[derive(Clone, Copy)]
pub struct SourcePublisher<'a> {
    /// Base URL of the site.
    pub site: &'a SiteUrl,
    /// Name of the source.
    pub id: &'a FeedId,
    /// Poll interval for clients, in seconds; clamped to the schema's 15 to 3600.
    pub ttl_sec: u64,
    /// Description for people, in the list of sources.
    pub about: SourceAbout<'a>,
}

/// Description of a source in the list of sources.
#[derive(Debug, Clone, Copy, Default)]
pub struct SourceAbout<'a> {
    /// Title.
    pub name: &'a str,
    /// Description; may be empty.
    pub description: &'a str,
    /// URL of the page that the source is about.
    pub homepage: Option<&'a str>,
    /// Tags by which clients filter.
    pub tags: &'a [String],
}

/// Clamps `ttl_sec` to the schema's bounds.
pub(super) fn clamp_ttl(ttl_sec: u64) -> u64 {
    ttl_sec.clamp(*TTL_SEC.start(), *TTL_SEC.end())
}

impl SourcePublisher<'_> {
    /// Mints a document of the changes since the chain's last one.
    ///
    /// `upto` is the last sequence number that `deltas` cover. Also called with no deltas on the first success,
    /// because every chain begins with a snapshot (section 2.2). `rendered` has the deltas as items, which callers
    /// may render side by side.
    pub fn mint(
        &self,
        chain: &DocumentChain,
        upto: Seq,
        (deltas, rendered): (&[Delta], &[RenderedItem]),
        repeats: Repeats,
        now: Timestamp,
    ) -> PublishedDocuments {
        let mut next = chain.clone();
        // The digest includes this mint's deltas, so that equal contents have equal cursors.
        deltas.iter().for_each(|d| next.state.apply(d));
        next.minted_seq = upto;
        // Without deltas this is the first success, for which the reason is metadata only.
        let reason = deltas.iter().map(|d| d.reason).max().unwrap_or(ImpactReason::MetadataOnly);
        let mut counts = DeltaCounts::default();
        deltas.iter().for_each(|d| counts.add(d.kind));
        let status = SourceStatus {
            changed: true,
            // The source's cursor would be circular in its own document: a digest of the live items stands
            // in.
            cursor: next.state.cursor(),
            delta_counts: Some(counts),
            impact: Some(reason.impact()),
            impact_reason: Some(reason),
            prev_cursor: chain.cursor,
            ..self.status(chain, now)
        };
        let repeats = repeats.without(rendered, |source| source == self.id);
        let narrative = narrative(self.id.as_str(), counts) + &repeats.narrative();
        let envelope = self.envelope(status, narrative, Some(reason));
        next.mint(self.paths(), &envelope, (rendered, &repeats), now)
    }

    /// Carries the chain's document forward: no item changed, but the source's health may have.
    ///
    /// `latest` is the chain's current document; its buckets are copied. Before the first mint there is none,
    /// and `latest` is ignored.
    pub fn carry(
        &self,
        chain: &DocumentChain,
        latest: &[u8],
        now: Timestamp,
    ) -> Result<PublishedDocuments, CarryError> {
        let narrative = carried_narrative(self.id.as_str(), chain);
        let envelope = self.envelope(self.status(chain, now), narrative, None);
        chain.carry(self.paths(), &envelope, latest, now)
    }

    fn paths(&self) -> ChainPaths<'_> {
        ChainPaths { site: self.site, name: self.id.as_str() }
    }

    /// Returns the source's entry in a `sources` object for a run without changes (section 5).
    pub fn status(&self, chain: &DocumentChain, now: Timestamp) -> SourceStatus {
        let health = &chain.health;
        let status = health.status();
        let stale = status != FetchStatus::Ok;
        let because = |code: &str| StatusError { code: code.into(), http_status: None };
        // Section 5: every source in error or disabled states a code.
        let error = match status {
            FetchStatus::Ok => None,
            FetchStatus::Disabled => Some(because("DISABLED")),
            // A source that was never fetched is in error without a failure to name.
            FetchStatus::Error => Some(health.error.clone().unwrap_or_else(|| because("NOT_YET_FETCHED"))),
        };
        // Shown only while stale. Otherwise each run would change the document of a source without news.
        let last_ok_at = health.last_ok_at.filter(|_| stale);
        SourceStatus {
            changed: false,
            cursor: chain.cursor,
            delta_counts: None,
            error,
            impact: None,
            impact_reason: None,
            last_ok_at: last_ok_at.map(whole_second),
            prev_cursor: chain.cursor,
            stale: stale.then_some(true),
            stale_age_sec: last_ok_at.map(|ok| age(ok, now)),
            status,
            ttl_sec: clamp_ttl(self.ttl_sec),
        }
    }

    fn envelope(&self, status: SourceStatus, narrative: String, reason: Option<ImpactReason>) -> Envelope {
        Envelope {
            narrative,
            changed: status.changed,
            reason,
            source_id: Some(self.id.clone()),
            status: Some(status.status),
            ttl_sec: status.ttl_sec,
            sources: Sources::from([(self.id.to_string(), status)]),
        }
    }
}

/// Returns the whole seconds from `then` to `now`, or 0 if the clock was set back.
fn age(then: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.as_second() - then.as_second()).unwrap_or(0)
}

fn narrative(name: &str, counts: DeltaCounts) -> String {
    let DeltaCounts { new, updated, removed } = counts;
    if new + updated + removed == 0 {
        return format!("{name}: first successful fetch, no items yet.");
    }
    format!("{name}: {new} new, {updated} updated, {removed} removed.")
}
