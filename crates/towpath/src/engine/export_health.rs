//! Static trees that cannot be kept, as operators see them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::engine::Engine;

/// Trees that this node is to keep, by base URL, each with its failure if the last export failed.
#[derive(Debug, Default)]
pub(crate) struct ExportHealth(Mutex<BTreeMap<String, Option<ExportFailure>>>);

/// Failure of the exports of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportFailure {
    /// Error of the last export.
    pub(crate) message: String,
    /// Time of the first failure in a row.
    pub(crate) since: Timestamp,
}

impl ExportHealth {
    /// Returns the health of an engine's exports.
    pub(crate) fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }

    /// Records the end of an export. `failure` is the reason why the tree, or a part of it, is not current.
    pub(crate) fn record(&self, tree: &str, failure: Option<&str>, now: Timestamp) {
        let mut trees = self.0.lock();
        let last = trees.entry(tree.to_owned()).or_default();
        *last = failure.map(|message| {
            let since = last.as_ref().map_or(now, |failure| failure.since);
            ExportFailure { message: message.to_owned(), since }
        });
    }

    /// Returns the numbers of trees that fail, and of all; `None` if no tree is kept.
    pub(crate) fn counts(&self) -> Option<(usize, usize)> {
        let trees = self.0.lock();
        let failing = trees.values().filter(|failure| failure.is_some()).count();
        (!trees.is_empty()).then_some((failing, trees.len()))
    }

    /// Returns the trees that fail.
    pub(crate) fn failures(&self) -> Vec<(String, ExportFailure)> {
        let trees = self.0.lock();
        trees.iter().filter_map(|(tree, failure)| Some((tree.clone(), failure.clone()?))).collect()
    }

    /// Returns a sentence for each tree that fails.
    pub(crate) fn problems(&self) -> Vec<String> {
        let text =
            |(tree, failure): (String, ExportFailure)| format!("cannot export {tree}: {}", failure.message);
        self.failures().into_iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_lasts_from_the_first_export_that_failed() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let health = ExportHealth::default();
        assert_eq!((health.counts(), health.problems()), (None, vec![]));
        health.record("https://cdn.example", None, at(1));
        assert_eq!(health.counts(), Some((0, 1)));
        for second in [2, 3] {
            health.record("https://cdn.example", Some("tree: the disk is full"), at(second));
        }
        assert_eq!(health.counts(), Some((1, 1)));
        assert_eq!(health.failures()[0].1.since, at(2));
        assert_eq!(health.problems(), ["cannot export https://cdn.example: tree: the disk is full"]);
        health.record("https://cdn.example", None, at(4));
        assert_eq!((health.counts(), health.problems()), (Some((0, 1)), vec![]));
    }
}
