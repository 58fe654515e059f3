//! Filters: different feeds of the same data, in the same order ("As Abstract").
//!
//! A [`Filter`] selects the items of a feed. A [`FilterView`] applies it to a log and never drops an item that it
//! has shown, because "feeds do not expire items". An item that was shown and no longer matches is shown as deleted;
//! so is its deletion. For that, and for the count, the view holds eight bytes for every item it ever showed, and
//! reads every change of the log once.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::change::{Change, Op, Seq};
use crate::item::{Content, ContentHash, Item};

/// Selection of a feed's items: an item must meet every condition that is set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
// A misspelt condition must be an error: ignored, it would publish what it was to hide.
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// At least one of these tags, ignoring case.
    #[cfg_attr(feature = "schema", schemars(example = ["rust"]))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// None of these tags, ignoring case.
    #[cfg_attr(feature = "schema", schemars(example = ["draft"]))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_tags: Vec<String>,
    /// This text in the title, the summary or the content, ignoring case.
    #[cfg_attr(feature = "schema", schemars(example = &"overflow"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// An author with this name or e-mail address.
    #[cfg_attr(feature = "schema", schemars(example = "Ann Author"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// A risk score of at least this, from 0 to 1.
    #[cfg_attr(feature = "schema", schemars(example = 0.7))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_risk: Option<f64>,
    /// A risk score of at most this, from 0 to 1.
    #[cfg_attr(feature = "schema", schemars(example = 0.3))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_risk: Option<f64>,
}

/// Function that scores the risk of an item, from 0 to 1.
pub type RiskScore = dyn Fn(&Item) -> f64 + Send + Sync;

impl Filter {
    /// Returns true if an item meets every condition. `risk` is called only if the filter has a condition on it.
    pub fn matches(&self, item: &Item, risk: &(dyn Fn(&Item) -> f64 + Send + Sync)) -> bool {
        let tagged = |tag: &String| item.tags.iter().any(|has| same(has, tag));
        (self.tags.is_empty() || self.tags.iter().any(tagged))
            && !self.without_tags.iter().any(tagged)
            && self.author.as_ref().is_none_or(|author| by_author(item, author))
            && self.text.as_ref().is_none_or(|text| has_text(item, text))
            && self.fits_risk(item, risk)
    }

    fn fits_risk(&self, item: &Item, risk: &(dyn Fn(&Item) -> f64 + Send + Sync)) -> bool {
        if self.min_risk.is_none() && self.max_risk.is_none() {
            return true;
        }
        let score = risk(item);
        self.min_risk.is_none_or(|min| score >= min) && self.max_risk.is_none_or(|max| score <= max)
    }
}

fn same(a: &str, b: &str) -> bool {
    // Equal spelling needs no allocation.
    a == b || a.to_lowercase() == b.to_lowercase()
}

fn by_author(item: &Item, author: &str) -> bool {
    item.authors
        .iter()
        .any(|has| same(&has.name, author) || has.email.as_ref().is_some_and(|e| same(e, author)))
}

fn has_text(item: &Item, text: &str) -> bool {
    let text = text.to_lowercase();
    let content = item.content.as_ref().and_then(Content::text);
    let texts = [item.title.as_deref(), item.summary.as_deref(), content];
    texts.into_iter().flatten().any(|has| has.to_lowercase().contains(&text))
}

/// A filtered view of a log.
pub struct FilterView {
    filters: Vec<Filter>,
    risk: Box<RiskScore>,
    /// Last change that was applied.
    applied: Seq,
    /// Hashes of the ids of all items that were ever shown.
    shown: HashSet<u64>,
}

/// Items among some changes that match a view's filter.
#[derive(Debug)]
pub struct FilterMatches {
    shown: Vec<u64>,
    last: Seq,
}

/// Form in which a view shows an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemVisibility {
    /// The stored version, which may be a deletion.
    Unchanged,
    /// A deletion: the item was shown before and no longer matches.
    Deleted,
}

impl FilterView {
    /// Creates a view to which no change was applied.
    pub fn new(filter: Filter, risk: Box<RiskScore>) -> Self {
        Self::of_all(vec![filter], risk)
    }

    /// Creates a view of the items that every one of these filters lets through.
    pub fn of_all(filters: Vec<Filter>, risk: Box<RiskScore>) -> Self {
        Self { filters, risk, applied: 0, shown: HashSet::new() }
    }

    /// Returns the last change that was applied. A page needs every change up to its log head.
    pub fn applied(&self) -> Seq {
        self.applied
    }

    /// Applies the log's next changes, ascending and without a gap; changes that were applied before are skipped.
    pub fn apply(&mut self, changes: &[Change]) {
        let matches = self.find_matches(changes);
        self.add_matches(matches);
    }

    /// First half of [`Self::apply`]: finds the matches to [add](Self::add_matches).
    ///
    /// It reads every content, so a server runs it off its event loop and without the write lock.
    pub fn find_matches(&self, changes: &[Change]) -> FilterMatches {
        let new = changes.iter().filter(|change| change.seq > self.applied);
        let shown = new.filter(|change| self.passes(change)).map(|change| key(&change.item.id));
        FilterMatches { shown: shown.collect(), last: changes.last().map_or(0, |change| change.seq) }
    }

    /// Second half of [`Self::apply`]: adds the matches.
    pub fn add_matches(&mut self, matches: FilterMatches) {
        // The maximum, because another thread may have applied later changes meanwhile.
        self.applied = self.applied.max(matches.last);
        self.shown.extend(matches.shown);
    }

    /// Returns the number of items in the view, including items shown as deleted.
    pub fn total(&self) -> u64 {
        self.shown.len() as u64
    }

    fn passes(&self, change: &Change) -> bool {
        // A deletion has no content to match. It is shown if the item was (`visibility`).
        change.op != Op::Delete && self.filters.iter().all(|filter| filter.matches(&change.item, &self.risk))
    }

    /// Returns the form in which the latest version of an item is shown; `None` if it is hidden.
    pub fn visibility(&self, change: &Change) -> Option<ItemVisibility> {
        if self.passes(change) {
            return Some(ItemVisibility::Unchanged);
        }
        let was_shown = self.shown.contains(&key(&change.item.id));
        was_shown.then_some(match change.op {
            Op::Delete => ItemVisibility::Unchanged,
            Op::Put | Op::Patch => ItemVisibility::Deleted,
        })
    }

    /// Returns the latest version of an item in the form that is shown; `None` if it is hidden.
    pub fn show(&self, change: Change) -> Option<Change> {
        match self.visibility(&change)? {
            ItemVisibility::Unchanged => Some(change),
            ItemVisibility::Deleted => Some(as_deleted(change)),
        }
    }
}

impl std::fmt::Debug for FilterView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilterView").field("filters", &self.filters).field("applied", &self.applied).finish()
    }
}

// A hidden version must leak nothing: only id and times remain, as in a real deletion.
fn as_deleted(change: Change) -> Change {
    let item =
        Item { published: change.item.published, updated: change.item.updated, ..Item::new(change.item.id) };
    Change { op: Op::Delete, item, patch: None, entry_id: None, hash: ContentHash::default(), ..change }
}

// 64 bits of a digest instead of the id: a feed of a million items takes 8 MB and not the length of its ids.
fn key(id: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(id).into();
    u64::from_be_bytes([
        digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
    ])
}

#[cfg(test)]
mod tests;
