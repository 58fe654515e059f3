//! Turns a document's versions into changes.

use std::collections::HashSet;

use jiff::Timestamp;

use super::HistoryFollower;
use super::document::{DocumentContents, EntryVersion};
use super::entries::{DocumentSeq, VersionStatus};
use super::position::EntryPosition;
use super::state::PendingStart;
use crate::change::Op;
use crate::diff::Listing;
use crate::follow::{Event, Followed};
use crate::history::wire::Predecessor;

/// Versions at the beginning of a document that a follow from within the history is not told.
#[derive(Debug, Default)]
struct EarlierVersions {
    /// Number of versions before the first entry to tell.
    entries: usize,
    /// Number of versions before the first deletion to tell.
    deletions: usize,
    /// Date before which versions are earlier, too.
    before: Option<Timestamp>,
}

impl EarlierVersions {
    /// Returns the versions of a log's document through the first one that is known.
    ///
    /// Documents list entries and deletions apart. So of one instant, only the order among each of them is that of the log.
    fn of_log(document: &DocumentContents, is_known: impl Fn(&EntryVersion) -> bool) -> Self {
        let mut found = Self::default();
        let known = document.versions.iter().enumerate().filter(|(_, version)| is_known(version));
        for (index, version) in known {
            let first = if version.is_deleted { &mut found.deletions } else { &mut found.entries };
            *first = if *first == 0 { index + 1 } else { *first };
            found.before = found.before.or(version.rank);
        }
        found
    }

    fn has(&self, index: usize, version: &EntryVersion) -> bool {
        let end = if version.is_deleted { self.deletions } else { self.entries };
        let is_before = |before: Timestamp| version.rank.is_some_and(|rank| rank < before);
        index < end || self.before.is_some_and(is_before)
    }
}

impl HistoryFollower {
    /// Applies a document and delivers its changes. A complete one also deletes the entries that it lacks.
    pub(super) fn apply(
        &mut self,
        document: DocumentContents,
        position: &str,
        seq: DocumentSeq,
        listing: Listing,
    ) {
        self.report_problems(position, &document);
        let mut deleted = Vec::new();
        if listing == Listing::Complete {
            let ids: HashSet<&str> = document.versions.iter().map(|v| v.item.id.as_str()).collect();
            deleted = self.state.entries.retain(&ids);
        }
        let earlier = self.earlier_versions(&document, position);
        // A deletion by absence has no version here: its place is the end of the document.
        let end = document.versions.last().map(|version| EntryPosition::after(version, position));
        let end = end.map_or_else(|| position.to_owned(), |end| end.to_string());
        for (index, version) in document.versions.into_iter().enumerate() {
            let status = self.state.entries.update(&version, seq, listing);
            self.dirty |= matches!(status, VersionStatus::New | VersionStatus::Newer);
            // Earlier versions are recorded only, like those before a start from now.
            if !earlier.has(index, &version) && self.is_delivered(&version, status) {
                let position = EntryPosition::after(&version, position).to_string();
                self.deliver(version, position);
            }
        }
        for id in deleted {
            self.dirty = true;
            self.deliver(EntryVersion::deleted(None, id), end.clone());
        }
    }

    /// Returns the versions of a document from before the start.
    fn earlier_versions(&mut self, document: &DocumentContents, url: &str) -> EarlierVersions {
        let mut earlier = self.before_known(document);
        let log_start = match self.state.start.clone() {
            Some(PendingStart::After(position)) => {
                let found = position.find(document);
                if found.is_none() {
                    let text = format!("{position}: this version of an entry is gone: all entries are told");
                    self.events.push_back(Event::Warning(text));
                }
                // Everything in later documents is new.
                self.state.start = Some(PendingStart::Beginning);
                earlier = match found {
                    // In its own document the entry has the place that it had when it was told.
                    Some(_) if document.is_log && !position.is_in(url) => {
                        EarlierVersions::of_log(document, |version| position.is_after(version))
                    }
                    Some(index) => EarlierVersions { entries: index + 1, deletions: index + 1, before: None },
                    None => EarlierVersions::default(),
                };
                found.and_then(|index| document.versions[index].rank)
            }
            Some(PendingStart::Document(_)) => document.versions.first().and_then(|version| version.rank),
            // A start to come begins with what is new.
            Some(PendingStart::Time(time)) => document.end_of_log().map(|end| end.min(time)),
            Some(PendingStart::Now) => document.end_of_log(),
            Some(PendingStart::Beginning) | None => None,
        };
        if document.is_log && self.state.log_start.is_none() && log_start.is_some() {
            self.state.log_start = log_start;
            self.dirty = true;
        }
        let log_start = self.state.log_start.filter(|_| document.is_log);
        EarlierVersions { before: earlier.before.max(log_start), ..earlier }
    }

    /// Returns the versions of a log's document that come before what is known, in a follow that began within the log.
    ///
    /// A publisher may divide its log otherwise later. Then a document has versions from before the start, too.
    fn before_known(&self, document: &DocumentContents) -> EarlierVersions {
        // Where documents are missing, what comes before a known version may be new.
        let is_whole = self.state.gaps.is_empty() && self.pass.failed.is_empty();
        if !document.is_log || self.state.log_start.is_none() || !is_whole {
            return EarlierVersions::default();
        }
        EarlierVersions::of_log(document, |version| self.state.entries.has_exactly(version))
    }

    /// Returns true if a log's document reaches back to what is known, in a follow that began within the log.
    pub(super) fn meets_known(&self, document: &DocumentContents) -> bool {
        let is_known = |version: &EntryVersion| self.state.entries.has_exactly(version);
        let is_within = document.is_log && self.state.log_start.is_some();
        is_within && (self.reaches_start(document) || document.versions.iter().any(is_known))
    }

    /// Returns true if a log's document has versions from before the start of a follow that began within the log.
    pub(super) fn reaches_start(&self, document: &DocumentContents) -> bool {
        let Some(start) = self.state.log_start.filter(|_| document.is_log) else { return false };
        document.versions.iter().any(|version| version.rank.is_some_and(|rank| rank < start))
    }

    fn is_delivered(&self, version: &EntryVersion, status: VersionStatus) -> bool {
        let is_in_range = match &self.state.start {
            // The entries are recorded only, so that the next pass delivers what is new since.
            Some(PendingStart::Now) => false,
            // An undated version may be new, and delivery is at least once.
            Some(PendingStart::Time(time)) => version.rank.is_none_or(|rank| rank >= *time),
            Some(PendingStart::Beginning | PendingStart::Document(_) | PendingStart::After(_)) | None => true,
        };
        // The deletion of an unknown entry is delivered too: the consumer may have the entry from before a restart.
        is_in_range && matches!(status, VersionStatus::New | VersionStatus::Newer)
    }

    fn deliver(&mut self, version: EntryVersion, position: String) {
        self.changes += 1;
        self.events.push_back(Event::Change(Box::new(Followed {
            feed: self.feed.clone(),
            op: if version.is_deleted { Op::Delete } else { Op::Put },
            modified: version.rank.or(version.item.published),
            item: version.item,
            patch: None,
            position,
            entry_id: None,
        })));
    }

    /// Warns once about changes that this feed cannot show, and whenever entries were missed.
    pub(super) fn warn_about_limits_of_feed(&mut self, document: &DocumentContents) {
        // Such a document never gets new entries, yet polling it looks healthy.
        if document.is_archive && !std::mem::replace(&mut self.state.is_warned, true) {
            self.dirty = true;
            let current = document.current.as_deref().unwrap_or("another URL");
            let text = format!("{} is an archive document: newer entries are at {current}", self.url);
            self.events.push_back(Event::Warning(text));
        }
        let limitation = match &document.predecessor {
            Predecessor::Unknown => {
                "this feed has no history: entries that come and go between two polls are missed"
            }
            Predecessor::Page(_) | Predecessor::LastPage => {
                "this feed has pages that move while they are read: changes during a pass may be missed"
            }
            Predecessor::Complete | Predecessor::Archive(_) | Predecessor::Beginning => return,
        };
        if !std::mem::replace(&mut self.state.is_warned, true) {
            self.dirty = true;
            self.events.push_back(Event::Warning(format!("{}: {limitation}", self.url)));
        }
        let entries = &self.state.entries;
        // If all known entries were edited, none need have been missed, so ids are compared and not versions.
        let is_disjoint = entries.len() > 0
            && !document.versions.is_empty()
            && !document.versions.iter().any(|version| entries.has_id(version));
        // With a history, the walk back reads the documents between, so nothing was missed.
        if document.predecessor != Predecessor::Unknown {
            return;
        }
        // A window that turned over exactly looks like this, too. Its entries are known at the next poll.
        if is_disjoint {
            self.incomplete(format!(
                "{}: none of its entries is known: some may have come and gone unseen since the last poll",
                self.url
            ));
        }
    }

    fn report_problems(&mut self, url: &str, document: &DocumentContents) {
        let Some(first) = document.problems.first() else { return };
        let more = match document.problems.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let text = format!("{url}: {first}{more}");
        // The newest document is read at every poll: a lasting problem would fill the log.
        if text != self.last_problem {
            self.last_problem.clone_from(&text);
            let is_left_out = document.left_out > 0;
            self.events.push_back(if is_left_out { Event::Incomplete(text) } else { Event::Warning(text) });
        }
    }
}
