//! Findings of a check of stored state.

use serde::Serialize;
use towpath_proto::FeedId;

/// Difference of stored state from what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The feed, where it is known.
    pub(crate) feed: Option<String>,
    /// Place in its state, such as a page.
    pub(crate) place: String,
    /// Difference from what should be there.
    pub(crate) problem: String,
}

/// List of findings.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<Finding>);

impl Findings {
    /// Adds a finding.
    pub(crate) fn add(
        &mut self,
        feed: Option<&str>,
        place: impl Into<String>,
        problem: impl std::fmt::Display,
    ) {
        let (feed, problem) = (feed.map(str::to_owned), problem.to_string());
        self.0.push(Finding { feed, place: place.into(), problem });
    }

    /// Adds a finding about a feed if something does not hold.
    pub(crate) fn expect(&mut self, holds: bool, feed: &FeedId, place: &str, problem: &str) {
        if !holds {
            self.add(Some(feed.as_str()), place, problem);
        }
    }
}
