//! Turns a document's versions into changes.

use std::collections::HashSet;

use super::HistoryFollower;
use super::document::{DocumentContents, EntryVersion};
use super::entries::{DocumentSeq, VersionStatus};
use super::state::PendingStart;
use crate::change::Op;
use crate::follow::{Event, Followed};
use crate::history::wire::Predecessor;
use crate::item::Item;

impl HistoryFollower {
    /// Applies a document and delivers its changes. A `whole` document also deletes the entries that it lacks.
    pub(super) fn apply(
        &mut self,
        document: DocumentContents,
        position: &str,
        seq: DocumentSeq,
        whole: bool,
    ) {
        self.warn_about_problems(position, &document.problems);
        let mut deleted = Vec::new();
        if whole {
            let ids: HashSet<&str> = document.versions.iter().map(|v| v.item.id.as_str()).collect();
            deleted = self.state.entries.retain(&ids);
        }
        for version in document.versions {
            let status = self.state.entries.update(&version, seq, whole);
            self.dirty |= matches!(status, VersionStatus::New | VersionStatus::Newer);
            if self.is_delivered(&version, status) {
                self.deliver(version, position);
            }
        }
        for id in deleted {
            self.dirty = true;
            self.deliver(EntryVersion { item: Item::new(id), rank: None, is_deleted: true }, position);
        }
    }

    fn is_delivered(&self, version: &EntryVersion, status: VersionStatus) -> bool {
        let is_in_range = match &self.state.start {
            // The entries are recorded only, so that the next pass delivers what is new since.
            Some(PendingStart::Now) => false,
            // An undated version may be new, and delivery is at least once.
            Some(PendingStart::Time(time)) => version.rank.is_none_or(|rank| rank >= *time),
            Some(PendingStart::Beginning | PendingStart::Document(_)) | None => true,
        };
        // The deletion of an unknown entry is delivered too: the consumer may have the entry from before a restart.
        is_in_range && matches!(status, VersionStatus::New | VersionStatus::Newer)
    }

    fn deliver(&mut self, version: EntryVersion, position: &str) {
        self.changes += 1;
        self.events.push_back(Event::Change(Box::new(Followed {
            feed: self.feed.clone(),
            op: if version.is_deleted { Op::Delete } else { Op::Put },
            modified: version.rank.or(version.item.published),
            item: version.item,
            patch: None,
            position: position.to_owned(),
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
        // A window that turned over exactly looks like this, too, and a feed of one entry does at every poll. So this
        // is said once, and again only after a poll that met a known entry.
        if is_disjoint && !std::mem::replace(&mut self.state.is_gap_reported, true) {
            self.dirty = true;
            self.incomplete(format!(
                "{}: none of its entries is known: some may have come and gone unseen since the last poll",
                self.url
            ));
        } else if !is_disjoint && document.versions.iter().any(|version| entries.has_id(version)) {
            self.dirty |= std::mem::take(&mut self.state.is_gap_reported);
        }
    }

    fn warn_about_problems(&mut self, url: &str, problems: &[String]) {
        let Some(first) = problems.first() else { return };
        let more = match problems.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let text = format!("{url}: {first}{more}");
        // The newest document is read at every poll: a lasting problem would fill the log.
        if text != self.last_problem {
            self.events.push_back(Event::Warning(text.clone()));
            self.last_problem = text;
        }
    }
}
