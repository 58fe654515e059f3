//! The chain of a feed's cursors and documents (sections 1 and 2).
//!
//! A chain is a value: minting or carrying returns the next one. The caller stores it together with the
//! snapshot and its index entry, so a crash leaves either the old chain or the new one.

use std::ops::Range;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::collapse::StateDigest;
use super::delta_item::RenderedItem;
use super::document::{Buckets, Envelope, VolatileMembers, WrittenDocument, json};
use super::health::SourceHealth;
use super::repeats::{MintTimes, Repeats};
use super::site::SiteUrl;
use super::source::clamp_ttl;
use crate::change::Seq;
use crate::diffdelta::wire::cursor::Cursor;
use crate::diffdelta::wire::headers::MUTABLE_SEC;
use crate::diffdelta::wire::{GLOBAL, HeadDocument, SnapshotEntry};

/// State of a chain of documents; the publisher stores it beside the documents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentChain {
    /// Number of minted snapshots.
    pub snapshots: u64,
    /// Last sequence number whose change is minted. Unused by the global feed.
    pub minted_seq: Seq,
    /// Cursor of the last mint; zero before the first.
    pub cursor: Cursor,
    /// The SHA-256 of `latest.json` as written.
    pub hash: Option<Cursor>,
    /// Time of `latest.json`.
    pub generated_at: Option<Timestamp>,
    /// Time of the last snapshot.
    minted_at: Option<Timestamp>,
    /// Short cursors of the snapshots with that time, so that no file name is used twice.
    names: Vec<String>,
    /// Times of the last mints, by which their changes are repeated.
    #[serde(default)]
    mint_times: MintTimes,
    /// Digest of the live items at the last mint.
    pub(super) state: StateDigest,
    /// Byte range of the buckets in `latest.json`.
    buckets: Option<Range<usize>>,
    /// Health of the source.
    #[serde(default)]
    pub health: SourceHealth,
}

/// A minted snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Path of the snapshot below the base URL. Its content is [`PublishedDocuments::latest`].
    pub path: String,
    /// The snapshot's entry in the archive index.
    pub entry: SnapshotEntry,
}

/// The documents that a run publishes.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedDocuments {
    /// `latest.json`.
    pub latest: Bytes,
    /// `head.json`.
    pub head: Bytes,
    /// The snapshot, if the run minted.
    pub snapshot: Option<NewSnapshot>,
    /// The new state of the chain.
    pub chain: DocumentChain,
    /// Bytes of the changes of earlier mints in the documents of a mint.
    pub repeated_bytes: usize,
}

/// Error: the stored document does not match the chain, so it cannot be carried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored latest.json does not match the chain: {0}")]
pub struct CarryError(pub(super) &'static str);

pub(super) fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

pub(super) fn carried_narrative(name: &str, chain: &DocumentChain) -> String {
    if chain.snapshots == 0 {
        return format!("{name}: nothing fetched yet.");
    }
    format!("{name}: nothing changed since the deltas shown here.")
}

impl DocumentChain {
    /// Returns true before the first mint: the source never had a successful fetch (section 2.1).
    pub fn is_unpublished(&self) -> bool {
        self.snapshots == 0
    }

    /// Returns true until every reader who polls each `ttl_sec` has seen the last mint: that time and the
    /// lifetime of a cached copy must pass. A carry before would show them `changed: false`.
    pub fn is_fresh(&self, ttl_sec: u64, now: Timestamp) -> bool {
        let seconds = clamp_ttl(ttl_sec) + MUTABLE_SEC;
        let age = |minted: Timestamp| now.as_second().saturating_sub(minted.as_second());
        // A clock that was set back must not keep the document for longer.
        self.minted_at.is_some_and(|minted| u64::try_from(age(minted)).is_ok_and(|age| age < seconds))
    }

    /// Returns true if a missing snapshot may be published later, because its name is not older than the chain.
    ///
    /// A node with a lagging replica then answers 503 instead of 404, which would mean that the file is gone.
    pub fn may_publish_later(&self, path: &str) -> bool {
        let stamp = path.rsplit('/').next().and_then(|file| file.split('_').next()).unwrap_or_default();
        // Names sort by time as text. A path of any other form was never a snapshot and is simply missing.
        let is_stamp = stamp.len() == "20260202T024001Z".len() && stamp.ends_with('Z');
        is_stamp && self.generated_at.is_none_or(|last| *stamp >= *name_stamp(last))
    }

    pub(super) fn minted_at(&self) -> Option<Timestamp> {
        self.minted_at
    }

    pub(super) fn mint_times(&self) -> &MintTimes {
        &self.mint_times
    }

    #[cfg(test)]
    pub(super) fn state_digest_for_tests(&self) -> StateDigest {
        self.state
    }

    /// Mints a document. `self` is the chain with all values but those of the document itself.
    pub(super) fn mint(
        mut self,
        paths: ChainPaths<'_>,
        envelope: &Envelope,
        (items, repeats): (&[RenderedItem], &Repeats),
        now: Timestamp,
    ) -> PublishedDocuments {
        let buckets = Buckets::of(items.iter().chain(repeats.items()).collect());
        let document = envelope.with(buckets.len(), |text| buckets.write(text));
        // Computed before the volatile members are known: they are not part of it.
        let cursor = document.cursor();
        let stamps = VolatileMembers {
            cursor,
            prev_cursor: self.cursor,
            prev_generated_at: self.minted_at,
            prev_hash: self.hash,
            generated_at: self.name_time(cursor, now),
        };
        self.cursor = cursor;
        self.snapshots += 1;
        self.mint_times.add(self.snapshots, stamps.generated_at, envelope.ttl_sec);
        let written = document.write(&stamps);
        self.buckets = Some(written.buckets.clone());
        let snapshot = paths.snapshot(&stamps, &written);
        let published = self.publish(paths, envelope, &stamps, written, Some(snapshot));
        PublishedDocuments { repeated_bytes: repeats.bytes(), ..published }
    }

    /// Carries the chain's document: new times, the same buckets.
    pub(super) fn carry(
        &self,
        paths: ChainPaths<'_>,
        envelope: &Envelope,
        latest: &[u8],
        now: Timestamp,
    ) -> Result<PublishedDocuments, CarryError> {
        // The stored buckets are copied as bytes. Parsing and rendering them again for every run without changes
        // would cost as much as a mint.
        let buckets = match &self.buckets {
            Some(range) => {
                latest.get(range.clone()).ok_or(CarryError("the file ends before its buckets do"))?
            }
            None => Buckets::EMPTY,
        };
        // Guards against a stored document of another chain, for example after a partial restore.
        if !(buckets.starts_with(b"{\"flagged\":[") && buckets.ends_with(b"]}")) {
            return Err(CarryError("the buckets are not at the stored range"));
        }
        let stamps = VolatileMembers {
            // Section 2.3: `changed` is false, so `cursor` must equal `prev_cursor`.
            cursor: self.cursor,
            prev_cursor: self.cursor,
            prev_generated_at: self.minted_at,
            prev_hash: self.hash,
            generated_at: self.next_time(now),
        };
        let document = envelope.with(buckets.len(), |text| text.extend_from_slice(buckets));
        let written = document.write(&stamps);
        let mut next = self.clone();
        // Times of another length move the buckets.
        next.buckets = self.buckets.is_some().then(|| written.buckets.clone());
        Ok(next.publish(paths, envelope, &stamps, written, None))
    }

    fn publish(
        mut self,
        paths: ChainPaths<'_>,
        envelope: &Envelope,
        stamps: &VolatileMembers,
        written: WrittenDocument,
        snapshot: Option<NewSnapshot>,
    ) -> PublishedDocuments {
        self.hash = Some(written.hash);
        self.generated_at = Some(stamps.generated_at);
        let head = HeadDocument {
            changed: envelope.changed,
            cursor: stamps.cursor.to_string(),
            generated_at: stamps.generated_at.to_string(),
            hash: Some(written.hash.to_string()),
            latest_url: paths.site.link(&paths.latest_path()),
            prev_cursor: stamps.prev_cursor.to_string(),
            // Tells a follower which of two snapshots with the same cursor came before (A, B, A).
            prev_generated_at: stamps.prev_generated_at.map(|time| time.to_string()),
            ttl_sec: envelope.ttl_sec,
        };
        PublishedDocuments {
            latest: written.bytes,
            head: json(&head),
            snapshot,
            chain: self,
            repeated_bytes: 0,
        }
    }

    /// Returns `now` in whole seconds, but never a time before the last document.
    fn next_time(&self, now: Timestamp) -> Timestamp {
        whole_second(now).max(self.generated_at.unwrap_or(Timestamp::MIN))
    }

    /// Returns the time of a new snapshot: now, or one second later if its file name is taken.
    ///
    /// A cursor may come back within a second (A, B, A). Snapshots are immutable, so the name must differ.
    pub(super) fn name_time(&mut self, cursor: Cursor, now: Timestamp) -> Timestamp {
        // The clock may have been set back. Times in the chain never decrease.
        let mut time = self.next_time(now);
        if self.minted_at == Some(time) && self.names.contains(&cursor.short()) {
            time = time.checked_add(SignedDuration::from_secs(1)).unwrap_or(time);
        }
        // Only names within the newest second can collide, so older ones need not be kept.
        if self.minted_at != Some(time) {
            self.names.clear();
            self.minted_at = Some(time);
        }
        self.names.push(cursor.short());
        time
    }
}

/// The paths of a chain's documents, for a source or the global feed.
#[derive(Clone, Copy)]
pub(super) struct ChainPaths<'a> {
    pub(super) site: &'a SiteUrl,
    /// Name of the source, or `_global`.
    pub(super) name: &'a str,
}

impl ChainPaths<'_> {
    fn latest_path(&self) -> String {
        match self.name {
            // Section 1 has no folder for the global feed's documents, only for its archive.
            GLOBAL => "/diff/latest.json".to_owned(),
            source => format!("/diff/{source}/latest.json"),
        }
    }

    /// Section 1: `/archive/{source_id}/{YYYY}/{MM}/{DD}/{YYYYMMDDTHHMMSSZ}_{cursor_hex}.json`.
    fn snapshot(&self, stamps: &VolatileMembers, written: &WrittenDocument) -> NewSnapshot {
        let stamp = name_stamp(stamps.generated_at);
        let (year, month, day) = (&stamp[..4], &stamp[4..6], &stamp[6..8]);
        let (name, cursor) = (self.name, stamps.cursor.short());
        let path = format!("/archive/{name}/{year}/{month}/{day}/{stamp}_{cursor}.json");
        let entry = SnapshotEntry {
            cursor: stamps.cursor.to_string(),
            generated_at: stamps.generated_at.to_string(),
            prev_cursor: stamps.prev_cursor.to_string(),
            sha256: written.hash.hex(),
            url: self.site.link(&path),
        };
        NewSnapshot { path, entry }
    }
}

/// Formats a time as the names of snapshots have it.
fn name_stamp(time: Timestamp) -> String {
    time.to_string().replace(['-', ':'], "")
}
