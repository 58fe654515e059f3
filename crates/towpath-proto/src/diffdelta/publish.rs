//! A source's documents and the chain of its cursors (sections 1, 2 and 5).
//!
//! A run that found deltas *mints*; a run that found none *carries*: new times, no change, the last deltas
//! kept for clients that skipped a run. What a mint or a carry returns is to be written in this order: the
//! snapshot (exclusively, never again), its index entry and the chain, `latest.json`, `head.json`.

use std::ops::Range;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::collapse::{Delta, StateDigest};
use super::cursor::Cursor;
use super::delta_item::{Rendered, Rendering};
use super::document::{Buckets, Envelope, Stamps, Written, json};
use super::wire::{
    DeltaCounts, GLOBAL, Head, ImpactReason, Snapshot, SourceError, SourceStatus, Sources, Status, TTL_SEC,
};
use crate::change::Seq;
use crate::feed_id::FeedId;

pub use super::site::Site;

/// How a source is, and since when.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The last fetch's failure, until one succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SourceError>,
    /// Whether the source is not fetched any more.
    #[serde(default)]
    pub disabled: bool,
    /// The last successful fetch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_ok_at: Option<Timestamp>,
}

impl Health {
    /// A fetch succeeded.
    pub fn succeeded(&mut self, now: Timestamp) {
        (self.error, self.disabled, self.last_ok_at) = (None, false, Some(now));
    }

    /// A fetch failed: `code` as `HTTP_503`, `TIMEOUT`, `NETWORK_ERROR`.
    pub fn failed(&mut self, code: impl Into<String>, http_status: Option<u16>) {
        let http_status = http_status.filter(|s| (100..600).contains(s));
        self.error = Some(SourceError { code: code.into(), http_status });
    }

    /// The status (section 5). A source that was never fetched is in error until it is.
    pub fn status(&self) -> Status {
        match (self.disabled, &self.error, self.last_ok_at) {
            (true, ..) => Status::Disabled,
            (false, Some(_), _) | (false, None, None) => Status::Error,
            (false, None, Some(_)) => Status::Ok,
        }
    }
}

/// The state of a chain of documents, kept by the publisher beside the documents themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// How many snapshots were minted.
    pub snapshots: u64,
    /// The place in the feed's log up to which changes are minted. Unused by the global feed.
    pub minted_seq: Seq,
    /// The cursor of the last mint; zero before the first.
    pub cursor: Cursor,
    /// The SHA-256 of `latest.json` as written.
    pub hash: Option<Cursor>,
    /// When `latest.json` was made.
    pub generated_at: Option<Timestamp>,
    /// When the last snapshot was minted.
    minted_at: Option<Timestamp>,
    /// The cursor parts of the snapshots that bear that time: no name is given twice.
    names: Vec<String>,
    /// What the items were when last minted.
    state: StateDigest,
    /// Where the buckets stand in `latest.json`.
    buckets: Option<Range<usize>>,
    /// How the source is.
    #[serde(default)]
    pub health: Health,
}

/// A snapshot that was minted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Where it is served, without the site's own path. The document is [`Published::latest`].
    pub path: String,
    /// Its line in the archive index.
    pub entry: Snapshot,
}

/// What a run publishes.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// `latest.json`.
    pub latest: Bytes,
    /// `head.json`.
    pub head: Bytes,
    /// The snapshot, where the run minted.
    pub snapshot: Option<NewSnapshot>,
    /// The chain from now on.
    pub chain: Chain,
}

/// Why a document could not be carried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the kept latest.json is not the one that the chain knows: {0}")]
pub struct CarryError(pub(super) &'static str);

/// A source as a publisher of documents.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Where it is served.
    pub site: &'a Site,
    /// Its name.
    pub id: &'a FeedId,
    /// How often a client should ask, in seconds; shown within the schema's 15 to 3600.
    pub ttl_sec: u64,
}

/// `ttl_sec` within the schema's bounds.
pub(super) fn clamp_ttl(ttl_sec: u64) -> u64 {
    ttl_sec.clamp(*TTL_SEC.start(), *TTL_SEC.end())
}

impl Source<'_> {
    /// Mints: what `deltas` show is new since the chain's last document. `upto` is the place of the log that
    /// they reach. Also for the first success without items (section 2.2: every chain begins with one).
    ///
    /// Returns the deltas as rendered too, for the global feed.
    pub fn mint(
        &self,
        chain: &Chain,
        upto: Seq,
        deltas: &[Delta],
        rendering: &Rendering<'_>,
        now: Timestamp,
    ) -> (Published, Vec<Rendered>) {
        let mut next = chain.clone();
        deltas.iter().for_each(|d| next.state.apply(d));
        next.minted_seq = upto;
        let mut rendered: Vec<Rendered> = deltas.iter().map(|d| rendering.render(d)).collect();
        let reason = deltas.iter().map(|d| d.reason).max().unwrap_or(ImpactReason::MetadataOnly);
        let mut counts = DeltaCounts::default();
        deltas.iter().for_each(|d| counts.add(d.kind));
        let status = SourceStatus {
            changed: true,
            cursor: next.state.cursor(),
            delta_counts: Some(counts),
            impact: Some(reason.impact()),
            impact_reason: Some(reason),
            prev_cursor: chain.cursor,
            ..self.status(chain, now)
        };
        let narrative = narrative(self.id.as_str(), counts);
        let envelope = self.envelope(status, narrative, Some(reason));
        let published = next.mint(self.channel(), &envelope, &Buckets::of(&mut rendered), now);
        (published, rendered)
    }

    /// Carries: nothing changed, whatever the source's health. `latest` is the document of the chain; its
    /// buckets are kept as they are. A chain that never minted has none yet: `latest` is then not looked at.
    pub fn carry(&self, chain: &Chain, latest: &[u8], now: Timestamp) -> Result<Published, CarryError> {
        let narrative = carried_narrative(self.id.as_str(), chain);
        let envelope = self.envelope(self.status(chain, now), narrative, None);
        chain.carry(self.channel(), &envelope, latest, now)
    }

    fn channel(&self) -> Channel<'_> {
        Channel { site: self.site, name: self.id.as_str() }
    }

    /// The source's entry in a `sources` object while nothing changes (section 5).
    pub fn status(&self, chain: &Chain, now: Timestamp) -> SourceStatus {
        let health = &chain.health;
        let status = health.status();
        let stale = status != Status::Ok;
        let because = |code: &str| SourceError { code: code.into(), http_status: None };
        let error = match status {
            Status::Ok => None,
            Status::Disabled => Some(because("DISABLED")),
            Status::Error => Some(health.error.clone().unwrap_or_else(|| because("NOT_YET_FETCHED"))),
        };
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

/// Whole seconds from `then` to `now`, none if the clock went back.
fn age(then: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.as_second() - then.as_second()).unwrap_or(0)
}

pub(super) fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn narrative(name: &str, counts: DeltaCounts) -> String {
    let DeltaCounts { new, updated, removed } = counts;
    if new + updated + removed == 0 {
        return format!("{name}: first successful fetch, no items yet.");
    }
    format!("{name}: {new} new, {updated} updated, {removed} removed.")
}

pub(super) fn carried_narrative(name: &str, chain: &Chain) -> String {
    if chain.snapshots == 0 {
        return format!("{name}: nothing fetched yet.");
    }
    format!("{name}: nothing changed since the deltas shown here.")
}

impl Chain {
    /// Whether nothing was ever minted: the source never had a successful fetch (section 2.1).
    pub fn is_unborn(&self) -> bool {
        self.snapshots == 0
    }

    /// Whether a snapshot that is not there may be one that this chain comes to later: its name is not older than what
    /// the chain has. Who has a copy of a chain says so, and not that the snapshot is gone.
    pub fn may_lead_to(&self, path: &str) -> bool {
        let stamp = path.rsplit('/').next().and_then(|file| file.split('_').next()).unwrap_or_default();
        let is_stamp = stamp.len() == "20260202T024001Z".len() && stamp.ends_with('Z');
        is_stamp && self.generated_at.is_none_or(|last| *stamp >= *name_stamp(last))
    }

    #[cfg(test)]
    pub(super) fn state_for_tests(&self) -> StateDigest {
        self.state
    }

    /// Completes a minted document; `self` has everything but the document's own values.
    pub(super) fn mint(
        mut self,
        channel: Channel<'_>,
        envelope: &Envelope,
        buckets: &Buckets,
        now: Timestamp,
    ) -> Published {
        let document = envelope.with(buckets.as_bytes());
        let cursor = document.cursor();
        let stamps = Stamps {
            cursor,
            prev_cursor: self.cursor,
            prev_generated_at: self.minted_at,
            prev_hash: self.hash,
            generated_at: self.name_time(cursor, now),
        };
        self.cursor = cursor;
        self.snapshots += 1;
        let written = document.write(&stamps);
        self.buckets = Some(written.buckets.clone());
        let snapshot = channel.snapshot(&stamps, &written);
        self.publish(channel, envelope, &stamps, written, Some(snapshot))
    }

    /// Completes a carried document.
    pub(super) fn carry(
        &self,
        channel: Channel<'_>,
        envelope: &Envelope,
        latest: &[u8],
        now: Timestamp,
    ) -> Result<Published, CarryError> {
        let kept = match &self.buckets {
            Some(range) => latest.get(range.clone()).ok_or(CarryError("it is shorter than its buckets"))?,
            None => Buckets::EMPTY,
        };
        if !(kept.starts_with(b"{\"flagged\":[") && kept.ends_with(b"]}")) {
            return Err(CarryError("its buckets do not stand where they should"));
        }
        let stamps = Stamps {
            cursor: self.cursor,
            prev_cursor: self.cursor,
            prev_generated_at: self.minted_at,
            prev_hash: self.hash,
            generated_at: self.not_before_the_last(now),
        };
        let written = envelope.with(kept).write(&stamps);
        let mut next = self.clone();
        next.buckets = self.buckets.is_some().then(|| written.buckets.clone());
        Ok(next.publish(channel, envelope, &stamps, written, None))
    }

    fn publish(
        mut self,
        channel: Channel<'_>,
        envelope: &Envelope,
        stamps: &Stamps,
        written: Written,
        snapshot: Option<NewSnapshot>,
    ) -> Published {
        self.hash = Some(written.hash);
        self.generated_at = Some(stamps.generated_at);
        let head = Head {
            changed: envelope.changed,
            cursor: stamps.cursor.to_string(),
            generated_at: stamps.generated_at.to_string(),
            hash: Some(written.hash.to_string()),
            latest_url: channel.site.link(&channel.latest_path()),
            prev_cursor: stamps.prev_cursor.to_string(),
            prev_generated_at: stamps.prev_generated_at.map(|time| time.to_string()),
            ttl_sec: envelope.ttl_sec,
        };
        Published { latest: written.bytes, head: json(&head), snapshot, chain: self }
    }

    /// Now in whole seconds, but never before the last document.
    fn not_before_the_last(&self, now: Timestamp) -> Timestamp {
        whole_second(now).max(self.generated_at.unwrap_or(Timestamp::MIN))
    }

    /// The time of a new snapshot: now, or the first later second in which no snapshot has its name yet.
    fn name_time(&mut self, cursor: Cursor, now: Timestamp) -> Timestamp {
        let mut time = self.not_before_the_last(now);
        if self.minted_at == Some(time) && self.names.contains(&cursor.short()) {
            time = time.checked_add(SignedDuration::from_secs(1)).unwrap_or(time);
        }
        if self.minted_at != Some(time) {
            self.names.clear();
            self.minted_at = Some(time);
        }
        self.names.push(cursor.short());
        time
    }
}

/// A chain's place among the resources: a source or the global feed.
#[derive(Clone, Copy)]
pub(super) struct Channel<'a> {
    pub(super) site: &'a Site,
    /// The source's name or `_global`.
    pub(super) name: &'a str,
}

impl Channel<'_> {
    fn latest_path(&self) -> String {
        match self.name {
            GLOBAL => "/diff/latest.json".to_owned(),
            source => format!("/diff/{source}/latest.json"),
        }
    }

    /// Section 1: `/archive/{source_id}/{YYYY}/{MM}/{DD}/{YYYYMMDDTHHMMSSZ}_{cursor_hex}.json`.
    fn snapshot(&self, stamps: &Stamps, written: &Written) -> NewSnapshot {
        let stamp = name_stamp(stamps.generated_at);
        let (year, month, day) = (&stamp[..4], &stamp[4..6], &stamp[6..8]);
        let (name, cursor) = (self.name, stamps.cursor.short());
        let path = format!("/archive/{name}/{year}/{month}/{day}/{stamp}_{cursor}.json");
        let entry = Snapshot {
            cursor: stamps.cursor.to_string(),
            generated_at: stamps.generated_at.to_string(),
            prev_cursor: stamps.prev_cursor.to_string(),
            sha256: written.hash.hex(),
            url: self.site.link(&path),
        };
        NewSnapshot { path, entry }
    }
}

/// A time as the names of snapshots have it.
fn name_stamp(time: Timestamp) -> String {
    time.to_string().replace(['-', ':'], "")
}

#[cfg(test)]
mod tests;
