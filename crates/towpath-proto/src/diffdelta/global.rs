//! The global feed (section 1): every source's deltas in one document, with a chain of its own.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::delta_item::Rendered;
use super::document::{Buckets, Envelope};
use super::publish::{CarryError, Chain, Channel, Published, Site, Source, carried_narrative, clamp_ttl};
use super::wire::{DeltaCounts, GLOBAL, ImpactReason, Kind, SourceStatus, Sources};
use crate::feed_id::FeedId;

/// The state of the global feed's chain, kept by the publisher beside its documents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GlobalChain {
    /// The chain itself.
    pub chain: Chain,
    /// How many snapshots of each source the global feed has told of. A source that has more minted while
    /// the publisher went down: give those snapshots to [`Pending::recover`].
    pub included: BTreeMap<FeedId, Included>,
}

/// How far the global feed has told of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Included {
    /// The source's cursor then.
    pub cursor: super::Cursor,
    /// How many snapshots it had then.
    pub snapshots: u64,
}

/// What the sources minted since the global feed's last document.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    items: BTreeMap<(FeedId, String), Rendered>,
    bytes: usize,
}

impl Pending {
    /// Nothing minted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes what a source minted ([`Source::mint`] returns it). Several mints of one source are given in
    /// their order; an item that was in one of them already is told once, by what happened to it altogether.
    pub fn add(&mut self, rendered: Vec<Rendered>) {
        for mut item in rendered {
            let key = (item.source.clone(), item.id.clone());
            if let Some(earlier) = self.items.remove(&key) {
                self.bytes -= earlier.len();
                item.reason = item.reason.max(earlier.reason);
                match merged(earlier.kind, item.kind) {
                    Some(kind) => item.kind = kind,
                    None => continue,
                }
            }
            self.bytes += item.len();
            self.items.insert(key, item);
        }
    }

    /// Takes a snapshot that a source minted, read back: after a restart.
    pub fn recover(&mut self, source: &FeedId, snapshot: &[u8]) -> Result<(), serde_json::Error> {
        self.add(Rendered::read_all(source, snapshot)?);
        Ok(())
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether it is time to mint: the bounds are those of a source's window.
    pub fn is_full(&self) -> bool {
        self.items.len() >= super::Window::MAX_CHANGES || self.bytes >= super::Window::MAX_BYTES
    }
}

/// What happened to an item altogether.
fn merged(earlier: Kind, later: Kind) -> Option<Kind> {
    match (earlier, later) {
        (Kind::New, Kind::Removed) => None,
        (Kind::New, _) => Some(Kind::New),
        (_, Kind::Removed) => Some(Kind::Removed),
        (Kind::Updated | Kind::Removed, _) => Some(Kind::Updated),
    }
}

/// The global feed as a publisher of documents.
#[derive(Clone, Copy)]
pub struct Global<'a> {
    /// Where it is served.
    pub site: &'a Site,
    /// How often a client should ask, in seconds; shown within the schema's 15 to 3600.
    pub ttl_sec: u64,
}

impl Global<'_> {
    /// Mints what is pending, with every source's real cursor. `sources` are all sources with their chains as
    /// they now are. Also for the first success of any source, with nothing pending.
    pub fn mint(
        &self,
        state: &GlobalChain,
        sources: &[(Source<'_>, &Chain)],
        pending: Pending,
        now: Timestamp,
    ) -> (Published, GlobalChain) {
        let mut rendered: Vec<Rendered> = pending.items.into_values().collect();
        let mut tallies: BTreeMap<FeedId, Tally> = BTreeMap::new();
        let mut total = Tally::default();
        for item in &rendered {
            tallies.entry(item.source.clone()).or_default().add(item);
            total.add(item);
        }
        let shown = self.sources(sources, now, |source, chain, status| {
            let before = state.included.get(source.id).map(|i| i.cursor).unwrap_or_default();
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
        let narrative = format!(
            "{} of {} sources changed: {} new, {} updated, {} removed.",
            shown.values().filter(|s| s.changed).count(),
            shown.len(),
            total.counts.new,
            total.counts.updated,
            total.counts.removed
        );
        let envelope = self.envelope(shown, narrative, Some(total.reason()));
        let published = state.chain.clone().mint(self.channel(), &envelope, &Buckets::of(&mut rendered), now);
        let next = GlobalChain { chain: published.chain.clone(), included: included(sources) };
        (published, next)
    }

    /// Carries: no source minted deltas. `latest` is the chain's document; its buckets are kept.
    pub fn carry(
        &self,
        state: &GlobalChain,
        sources: &[(Source<'_>, &Chain)],
        latest: &[u8],
        now: Timestamp,
    ) -> Result<(Published, GlobalChain), CarryError> {
        let shown = self.sources(sources, now, |_, _, _| {});
        let envelope = self.envelope(shown, carried_narrative("all sources", &state.chain), None);
        let published = state.chain.carry(self.channel(), &envelope, latest, now)?;
        let next = GlobalChain { chain: published.chain.clone(), included: included(sources) };
        Ok((published, next))
    }

    fn channel(&self) -> Channel<'_> {
        Channel { site: self.site, name: GLOBAL }
    }

    fn sources(
        &self,
        sources: &[(Source<'_>, &Chain)],
        now: Timestamp,
        change: impl Fn(&Source<'_>, &Chain, &mut SourceStatus),
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

/// What happened to several items.
#[derive(Clone, Copy, Default)]
struct Tally {
    counts: DeltaCounts,
    reason: Option<ImpactReason>,
}

impl Tally {
    fn add(&mut self, item: &Rendered) {
        self.counts.add(item.kind);
        self.reason = self.reason.max(Some(item.reason));
    }

    /// What matters most; metadata only where there are no items.
    fn reason(&self) -> ImpactReason {
        self.reason.unwrap_or(ImpactReason::MetadataOnly)
    }
}

fn included(sources: &[(Source<'_>, &Chain)]) -> BTreeMap<FeedId, Included> {
    let included = sources.iter().map(|(source, chain)| {
        (source.id.clone(), Included { cursor: chain.cursor, snapshots: chain.snapshots })
    });
    included.collect()
}
