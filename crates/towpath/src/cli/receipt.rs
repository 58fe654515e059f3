//! Receipts for what a command published, as the server gives them.

use serde::Serialize;
use towpath_client::PublishReport;

use super::terminal::plain;
use crate::plural::counted;

/// Numbers of a batch, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Receipt {
    /// Changes that were appended.
    pub(crate) appended: usize,
    /// Changes of items that were there.
    pub(crate) changed: usize,
    /// Items that stay as they were.
    pub(crate) unchanged: usize,
    /// Position at which the log ends.
    pub(crate) last: u64,
}

impl From<PublishReport> for Receipt {
    fn from(report: PublishReport) -> Self {
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let PublishReport { appended, changed, unchanged, last, .. } = report;
        Self { appended: count(appended), changed: count(changed), unchanged: count(unchanged), last }
    }
}

impl Receipt {
    /// Adds the receipt of the next batch.
    pub(crate) fn add(&mut self, next: Self) {
        self.appended += next.appended;
        self.changed += next.changed;
        self.unchanged += next.unchanged;
        self.last = next.last;
    }

    /// Describes a put of one item.
    pub(crate) fn of_put(&self, feed: &str, id: &str) -> String {
        let id = plain(id);
        match (self.appended, self.changed) {
            (0, _) => format!("item {id} of feed {feed} stays as it was: it has this content already"),
            (_, 0) => format!("published item {id} in feed {feed}: new, change {}", self.last),
            _ => format!("published item {id} in feed {feed}: changed, change {}", self.last),
        }
    }

    /// Describes an import.
    pub(crate) fn of_import(&self, feed: &str) -> String {
        let read = self.appended + self.unchanged;
        let Self { appended, changed, unchanged, .. } = self;
        if *appended == 0 {
            return format!("nothing new for feed {feed}: {} unchanged", counted(*unchanged, "change"));
        }
        let created = appended.saturating_sub(*changed);
        format!(
            "imported {} into {feed}: {created} new or removed, {changed} changed, {unchanged} unchanged",
            counted(read, "change")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_say_what_happened() {
        let receipt = |appended, changed, unchanged| Receipt { appended, changed, unchanged, last: 7 };
        assert_eq!(receipt(1, 0, 0).of_put("aa", "x\n"), "published item x\\n in feed aa: new, change 7");
        assert_eq!(receipt(1, 1, 0).of_put("aa", "x"), "published item x in feed aa: changed, change 7");
        assert!(receipt(0, 0, 1).of_put("aa", "x").contains("stays as it was"));
        assert_eq!(receipt(0, 0, 3).of_import("aa"), "nothing new for feed aa: 3 changes unchanged");
        let mut total = receipt(3, 1, 2);
        total.add(receipt(1, 0, 0));
        assert_eq!(
            total.of_import("aa"),
            "imported 6 changes into aa: 3 new or removed, 1 changed, 2 unchanged"
        );
    }
}
