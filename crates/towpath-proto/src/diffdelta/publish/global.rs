//! Publishes the global feed (section 1): the deltas of all sources in one document, with its own chain.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::chain::{CarryError, ChainPaths, DocumentChain, PublishedDocuments, carried_narrative};
use super::collapse::DeltaWindow;
use super::delta_item::RenderedItem;
use super::document::Envelope;
use super::repeats::Repeats;
use super::site::SiteUrl;
use super::source::{SourcePublisher, clamp_ttl};
use crate::diffdelta::wire::cursor::Cursor;
use crate::diffdelta::wire::{DeltaCounts, DeltaKind, GLOBAL, ImpactReason, SourceStatus, Sources};
use crate::feed_id::FeedId;

/// Bytes that a document has for each source beside its changes: its status, with cursors and URLs.
const STATUS_BYTES: usize = 512;

/// State of the global feed's chain; the publisher stores it beside the documents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalChain {
    /// The chain itself.
    pub chain: DocumentChain,
    /// The snapshots of each source that the global feed has published.
    ///
    /// A source may have minted more before a crash. Pass those snapshots to [`PendingDeltas::recover`].
    pub included: BTreeMap<FeedId, IncludedSource>,
}

/// The part of a source's chain that the global feed has published.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncludedSource {
    /// Cursor of the source at that time.
    pub cursor: Cursor,
    /// Number of the source's snapshots at that time.
    pub snapshots: u64,
}

/// Deltas that sources minted since the global feed's last document.
#[derive(Debug, Clone, Default)]
pub struct PendingDeltas {
    items: BTreeMap<(FeedId, String), RenderedItem>,
    bytes: usize,
}

impl PendingDeltas {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the items that [`SourcePublisher::mint`] returned.
    ///
    /// Mints of a source must be added in their order. Several changes of an item are merged into their net
    /// change.
    pub fn add(&mut self, rendered: Vec<RenderedItem>) {
        for mut item in rendered {
            // Several mints of a source may come before the next global one.
            match self.items.entry((item.source.clone(), item.id.clone())) {
                Entry::Vacant(vacant) => {
                    self.bytes += item.len();
                    vacant.insert(item);
                }
                Entry::Occupied(mut occupied) => {
                    let earlier = occupied.get();
                    self.bytes -= earlier.len();
                    item.reason = item.reason.max(earlier.reason);
                    match merged(earlier.kind, item.kind) {
                        Some(kind) => {
                            item.kind = kind;
                            self.bytes += item.len();
                            occupied.insert(item);
                        }
                        // Created and removed since the last global document: no reader saw it.
                        None => drop(occupied.remove()),
                    }
                }
            }
        }
    }

    /// Adds a stored snapshot of a source, after a restart.
    pub fn recover(&mut self, snapshot: &[u8]) -> Result<(), serde_json::Error> {
        let mut items = RenderedItem::parse_document(snapshot)?;
        // The snapshot of their own mint has them, too.
        items.retain(|item| item.changed_in.is_none());
        self.add(items);
        Ok(())
    }

    /// Returns true if nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns true at the size limit, beside the states of so many `sources`. Mint then.
    ///
    /// The limit is that of a source's window. Each document says something of every source, so with many sources the
    /// limit is higher: minting then costs no more for each change than it does with few.
    pub fn is_full(&self, sources: usize) -> bool {
        self.items.len() >= DeltaWindow::MAX_CHANGES.max(sources)
            || self.bytes >= DeltaWindow::MAX_BYTES.max(sources.saturating_mul(STATUS_BYTES))
    }
}

/// Merges two changes of an item into their net change; `None` if they cancel out.
fn merged(earlier: DeltaKind, later: DeltaKind) -> Option<DeltaKind> {
    match (earlier, later) {
        // Read as: state before the first change, state after the last.
        (DeltaKind::New, DeltaKind::Removed) => None,
        (DeltaKind::New, _) => Some(DeltaKind::New),
        (_, DeltaKind::Removed) => Some(DeltaKind::Removed),
        // Removed and new again counts as updated: readers still have the version before.
        (DeltaKind::Updated | DeltaKind::Removed, _) => Some(DeltaKind::Updated),
    }
}

/// Publisher of the global feed's documents.
#[derive(Clone, Copy)]
pub struct GlobalPublisher<'a> {
    /// Base URL of the site.
    pub site: &'a SiteUrl,
    /// Poll interval for clients, in seconds; clamped to the schema's 15 to 3600.
    pub ttl_sec: u64,
}

impl GlobalPublisher<'_> {
    /// Mints the pending deltas, with the current cursor of every source.
    ///
    /// `sources` are all sources with their current chains. Also called on the first success of any source,
    /// with nothing pending.
    pub fn mint(
        &self,
        state: &GlobalChain,
        sources: &[(SourcePublisher<'_>, &DocumentChain)],
        pending: PendingDeltas,
        repeats: Repeats,
        now: Timestamp,
    ) -> (PublishedDocuments, GlobalChain) {
        let rendered: Vec<RenderedItem> = pending.items.into_values().collect();
        let mut tallies: BTreeMap<FeedId, Tally> = BTreeMap::new();
        let mut total = Tally::default();
        for item in &rendered {
            tallies.entry(item.source.clone()).or_default().add(item);
            total.add(item);
        }
        let shown = self.sources(sources, now, |source, chain, status| {
            // The zero cursor stands for a source that the global feed has not published yet.
            let before = state.included.get(source.id).map(|i| i.cursor).unwrap_or_default();
            // By cursor and not by pending items: a first success mints without any.
            if chain.cursor == before {
                return;
            }
            let tally = tallies.get(source.id).copied().unwrap_or_default();
            status.changed = true;
            status.prev_cursor = before;
            status.delta_counts = Some(tally.counts);
            status.impact = Some(tally.reason().impact());
            status.impact_reason = Some(tally.reason());
        });
        let repeats = repeats.without(&rendered, |source| shown.contains_key(source.as_str()));
        let narrative = format!(
            "{} of {} sources changed: {} new, {} updated, {} removed.{}",
            shown.values().filter(|s| s.changed).count(),
            shown.len(),
            total.counts.new,
            total.counts.updated,
            total.counts.removed,
            repeats.narrative()
        );
        let envelope = self.envelope(shown, narrative, Some(total.reason()));
        let published = state.chain.clone().mint(self.paths(), &envelope, (&rendered, &repeats), now);
        // The sources' chains as they were for this document; a restart continues from there.
        let next = GlobalChain { chain: published.chain.clone(), included: included(sources) };
        (published, next)
    }

    /// Carries the document forward: no source minted deltas. The buckets of `latest` are copied.
    pub fn carry(
        &self,
        state: &GlobalChain,
        sources: &[(SourcePublisher<'_>, &DocumentChain)],
        latest: &[u8],
        now: Timestamp,
    ) -> Result<(PublishedDocuments, GlobalChain), CarryError> {
        let shown = self.sources(sources, now, |_, _, _| {});
        let envelope = self.envelope(shown, carried_narrative("all sources", &state.chain), None);
        let published = state.chain.carry(self.paths(), &envelope, latest, now)?;
        let next = GlobalChain { chain: published.chain.clone(), included: included(sources) };
        Ok((published, next))
    }

    fn paths(&self) -> ChainPaths<'_> {
        ChainPaths { site: self.site, name: GLOBAL }
    }

    fn sources(
        &self,
        sources: &[(SourcePublisher<'_>, &DocumentChain)],
        now: Timestamp,
        change: impl Fn(&SourcePublisher<'_>, &DocumentChain, &mut SourceStatus),
    ) -> Sources {
        let shown = sources.iter().map(|(source, chain)| {
            let mut status = source.status(chain, now);
            change(source, chain, &mut status);
            (source.id.to_string(), status)
        });
        shown.collect()
    }

    fn envelope(&self, sources: Sources, narrative: String, reason: Option<ImpactReason>) -> Envelope {
        Envelope {
            narrative,
            changed: reason.is_some(),
            reason,
            source_id: None,
            status: None,
            ttl_sec: clamp_ttl(self.ttl_sec),
            sources,
        }
    }
}

/// Counts of changes and their highest impact reason.
#[derive(Clone, Copy, Default)]
struct Tally {
    counts: DeltaCounts,
    reason: Option<ImpactReason>,
}

impl Tally {
    fn add(&mut self, item: &RenderedItem) {
        self.counts.add(item.kind);
        self.reason = self.reason.max(Some(item.reason));
    }

    /// Returns the highest reason, or `MetadataOnly` without items.
    fn reason(&self) -> ImpactReason {
        self.reason.unwrap_or(ImpactReason::MetadataOnly)
    }
}

fn included(sources: &[(SourcePublisher<'_>, &DocumentChain)]) -> BTreeMap<FeedId, IncludedSource> {
    let included = sources.iter().map(|(source, chain)| {
        (source.id.clone(), IncludedSource { cursor: chain.cursor, snapshots: chain.snapshots })
    });
    included.collect()
}
