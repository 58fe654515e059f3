//! Filters: different feeds for the same data, in the same order ("As Abstract").
//!
//! A [`Filter`] says which items a feed is to have. A [`FilterView`] applies it to a log without ever losing
//! an item that it has shown: "feeds do not expire items", so an item that was shown and no longer matches is
//! shown as deleted, and its deletion is shown. For that, and to count them, the view keeps eight bytes for
//! every item it ever showed, and sees every change of the log once.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::change::{Change, Op, Seq};
use crate::item::{Content, ContentHash, Item};

/// Which items a feed has: those that meet every condition that is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// At least one of these tags, whatever the case of their letters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// None of these tags.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_tags: Vec<String>,
    /// This text in the title, the summary or the content, whatever the case of the letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// An author with this name or e-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// A risk score of at least this, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_risk: Option<f64>,
    /// A risk score of at most this, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_risk: Option<f64>,
}

/// How risky an item is, from 0 to 1.
pub type RiskScore = dyn Fn(&Item) -> f64 + Send + Sync;

impl Filter {
    /// Whether an item meets every condition. `risk` is asked only where the filter has a condition on it.
    pub fn matches(&self, item: &Item, risk: &RiskScore) -> bool {
        let tagged = |tag: &String| item.tags.iter().any(|has| same(has, tag));
        (self.tags.is_empty() || self.tags.iter().any(tagged))
            && !self.without_tags.iter().any(tagged)
            && self.author.as_ref().is_none_or(|author| by_author(item, author))
            && self.text.as_ref().is_none_or(|text| has_text(item, text))
            && self.fits_risk(item, risk)
    }

    fn fits_risk(&self, item: &Item, risk: &RiskScore) -> bool {
        if self.min_risk.is_none() && self.max_risk.is_none() {
            return true;
        }
        let score = risk(item);
        self.min_risk.is_none_or(|min| score >= min) && self.max_risk.is_none_or(|max| score <= max)
    }
}

fn same(a: &str, b: &str) -> bool {
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

/// A log as a filter shows it.
pub struct FilterView {
    filter: Filter,
    risk: Box<RiskScore>,
    through: Seq,
    shown: HashSet<u64>,
}

/// What a view's filter thinks of changes.
#[derive(Debug)]
pub struct Judged {
    shown: Vec<u64>,
    through: Seq,
}

/// How a view shows an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// As it is, which may be deleted.
    AsItIs,
    /// As deleted: it was shown once, and is not to be seen any more.
    Gone,
}

impl FilterView {
    /// A view that has not seen any change.
    pub fn new(filter: Filter, risk: Box<RiskScore>) -> Self {
        Self { filter, risk, through: 0, shown: HashSet::new() }
    }

    /// The last change that was taken in. A page needs every change up to the head that it is told.
    pub fn through(&self) -> Seq {
        self.through
    }

    /// Takes in the log's next changes, ascending and without a gap; those known already are skipped.
    pub fn take_in(&mut self, changes: &[Change]) {
        let judged = self.judge(changes);
        self.add(judged);
    }

    /// The first half of [`Self::take_in`], which takes time in the order of the contents' length: what is to be
    /// [added](Self::add).
    pub fn judge(&self, changes: &[Change]) -> Judged {
        let new = changes.iter().filter(|change| change.seq > self.through);
        let shown = new.filter(|change| self.passes(change)).map(|change| key(&change.item.id));
        Judged { shown: shown.collect(), through: changes.last().map_or(0, |change| change.seq) }
    }

    /// The second half.
    pub fn add(&mut self, judged: Judged) {
        self.through = self.through.max(judged.through);
        self.shown.extend(judged.shown);
    }

    /// How many items the view has, those that are shown as deleted included.
    pub fn total(&self) -> u64 {
        self.shown.len() as u64
    }

    fn passes(&self, change: &Change) -> bool {
        change.op != Op::Delete && self.filter.matches(&change.item, &self.risk)
    }

    /// How the latest version of an item is shown; `None` if it is not.
    pub fn shows(&self, change: &Change) -> Option<Shown> {
        if self.passes(change) {
            return Some(Shown::AsItIs);
        }
        let known = self.shown.contains(&key(&change.item.id));
        known.then(|| if change.op == Op::Delete { Shown::AsItIs } else { Shown::Gone })
    }

    /// The latest version of an item as the view shows it; `None` if it does not.
    pub fn show(&self, change: Change) -> Option<Change> {
        match self.shows(&change)? {
            Shown::AsItIs => Some(change),
            Shown::Gone => Some(as_deleted(change)),
        }
    }
}

impl std::fmt::Debug for FilterView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilterView").field("filter", &self.filter).field("through", &self.through).finish()
    }
}

fn as_deleted(change: Change) -> Change {
    let item =
        Item { published: change.item.published, updated: change.item.updated, ..Item::new(change.item.id) };
    Change { op: Op::Delete, item, patch: None, entry_id: None, hash: ContentHash::default(), ..change }
}

fn key(id: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(id).into();
    u64::from_be_bytes([
        digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
    ])
}

#[cfg(test)]
mod tests {
    use super::super::tests::change;
    use super::*;
    use crate::item::Author;

    fn no_risk(_: &Item) -> f64 {
        0.0
    }

    fn tagged(seq: Seq, id: &str, tags: &[&str]) -> Change {
        let mut change = change(seq, id, i64::try_from(seq).unwrap());
        change.item.tags = tags.iter().map(|t| (*t).to_owned()).collect();
        change
    }

    #[test]
    fn every_condition_must_be_met() {
        let filter: Filter = toml::from_str(
            "tags = ['Rust']\nwithout_tags = ['spam']\ntext = 'TOW'\nauthor = 'Ann'\nmax_risk = 0.4",
        )
        .unwrap();
        let mut item = Item {
            tags: vec!["rust".into()],
            summary: Some("the towpath".into()),
            authors: vec![Author::named("Bob"), Author::named("ann")],
            ..Item::new("a")
        };
        assert!(filter.matches(&item, &no_risk));
        assert!(!filter.matches(&item, &|_| 0.5));
        item.tags.push("Spam".into());
        assert!(!filter.matches(&item, &no_risk));
        item.tags = vec!["go".into()];
        assert!(!filter.matches(&item, &no_risk));
        assert!(Filter::default().matches(&item, &|_| panic!("nobody asked for the risk")));
        assert!(toml::from_str::<Filter>("tag = ['x']").is_err());
    }

    /// As Abstract: feeds do not expire items, and items are never truly deleted.
    #[test]
    fn what_was_shown_stays_and_what_was_not_stays_hidden() {
        let filter = Filter { tags: vec!["x".into()], ..Filter::default() };
        let mut view = FilterView::new(filter, Box::new(no_risk));
        let mut gone = tagged(4, "a", &[]);
        gone.op = Op::Delete;
        let mut never = tagged(6, "b", &[]);
        never.op = Op::Delete;
        let log = [tagged(1, "a", &["x"]), tagged(2, "b", &["y"]), tagged(3, "a", &["y"])];
        view.take_in(&log);
        view.take_in(&log);
        assert_eq!((view.total(), view.through()), (1, 3));
        assert_eq!(view.show(log[1].clone()), None);
        let shown = view.show(log[2].clone()).unwrap();
        assert_eq!((shown.op, shown.item.tags.len(), shown.seq), (Op::Delete, 0, 3));
        view.take_in(&[gone.clone(), never.clone()]);
        assert_eq!(view.show(gone.clone()), Some(gone));
        assert_eq!(view.show(never), None);
        assert_eq!(view.total(), 1);
    }
}
