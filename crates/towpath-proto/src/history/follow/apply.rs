//! From a document's versions to changes.

use std::collections::HashSet;

use super::HistoryFollower;
use super::memory::{Slot, Verdict};
use super::place::Start;
use super::reading::{Reading, Version};
use crate::change::Op;
use crate::follow::{Event, Followed};
use crate::history::wire::Way;
use crate::item::Item;

impl HistoryFollower {
    /// Takes what the document at an address says, and tells what is new. A `whole` document says by what it
    /// leaves out, too.
    pub(super) fn apply(&mut self, reading: Reading, position: &str, slot: Slot, whole: bool) {
        self.say_problems(position, &reading.problems);
        let mut gone = Vec::new();
        if whole {
            let ids: HashSet<&str> = reading.versions.iter().map(|v| v.item.id.as_str()).collect();
            gone = self.place.entries.keep_only(&ids);
        }
        for version in reading.versions {
            let verdict = self.place.entries.take(&version, slot, whole);
            self.dirty |= matches!(verdict, Verdict::New | Verdict::Newer);
            if self.is_told(&version, verdict) {
                self.tell(version, position);
            }
        }
        for id in gone {
            self.dirty = true;
            self.tell(Version { item: Item::new(id), rank: None, gone: true }, position);
        }
    }

    fn is_told(&self, version: &Version, verdict: Verdict) -> bool {
        let is_wanted = match &self.place.start {
            Some(Start::Now) => false,
            Some(Start::Time(time)) => version.rank.is_none_or(|rank| rank >= *time),
            Some(Start::Beginning | Start::Document(_)) | None => true,
        };
        // A deletion of what is not known here is told too: the consumer may know it, from before a restart.
        is_wanted && matches!(verdict, Verdict::New | Verdict::Newer)
    }

    fn tell(&mut self, version: Version, position: &str) {
        self.changes += 1;
        self.events.push_back(Event::Change(Box::new(Followed {
            feed: self.feed.clone(),
            op: if version.gone { Op::Delete } else { Op::Put },
            modified: version.rank.or(version.item.published),
            item: version.item,
            patch: None,
            position: position.to_owned(),
            entry_id: None,
        })));
    }

    /// Says once what this feed cannot promise, and whenever that came to pass.
    pub(super) fn say_what_to_expect(&mut self, reading: &Reading) {
        if reading.is_archive && !std::mem::replace(&mut self.place.told, true) {
            self.dirty = true;
            let current = reading.current.as_deref().unwrap_or("another address");
            let text = format!("{} is an archive document: what is new is at {current}", self.url);
            self.events.push_back(Event::Warning(text));
        }
        let promise = match &reading.way {
            Way::Unknown => {
                "this feed does not tell its past: what comes and goes between two requests is missed"
            }
            Way::Page(_) | Way::LastPage => {
                "this feed has pages that move while they are read: what changes meanwhile may be missed"
            }
            Way::Complete | Way::Archive(_) | Way::Beginning => return,
        };
        if !std::mem::replace(&mut self.place.told, true) {
            self.dirty = true;
            self.events.push_back(Event::Warning(format!("{}: {promise}", self.url)));
        }
        let entries = &self.place.entries;
        // Where all of them were edited, nothing need have gone unseen.
        let is_strange = entries.len() > 0
            && !reading.versions.is_empty()
            && !reading.versions.iter().any(|version| entries.knows(version));
        if is_strange && reading.way == Way::Unknown {
            self.incomplete(format!(
                "{}: none of its entries is known: some came and went unseen since it was last read",
                self.url
            ));
        }
    }

    fn say_problems(&mut self, url: &str, problems: &[String]) {
        let Some(first) = problems.first() else { return };
        let more = match problems.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let text = format!("{url}: {first}{more}");
        if text != self.last_problem {
            self.events.push_back(Event::Warning(text.clone()));
            self.last_problem = text;
        }
    }
}
