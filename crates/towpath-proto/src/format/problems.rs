//! Problems of a document: the first hundred in words, all of them in numbers.

/// Maximum number of listed problems; further ones are counted.
const MAX_LISTED: usize = 100;

/// Numbers of a document's problems. The list of problems may be cut; these are not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProblemCounts {
    /// Items and deleted entries that were left out.
    pub left_out: usize,
    /// Problems that left out no item, such as a malformed date.
    pub warnings: usize,
}

/// Collector of a document's problems.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    listed: Vec<String>,
    counts: ProblemCounts,
}

impl Problems {
    /// Adds a problem that leaves out no item.
    pub(crate) fn warn(&mut self, text: impl FnOnce() -> String) {
        self.counts.warnings += 1;
        self.list(text);
    }

    /// Adds an item that is left out, with the reason.
    pub(crate) fn leave_out(&mut self, text: impl FnOnce() -> String) {
        self.counts.left_out += 1;
        self.list(text);
    }

    fn list(&mut self, text: impl FnOnce() -> String) {
        // A large document may be wrong everywhere; the list must stay readable and bounded.
        if self.listed.len() < MAX_LISTED {
            self.listed.push(text());
        }
    }

    /// Returns `true` without any problem.
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Adds the problems of a later step.
    pub(crate) fn append(&mut self, later: (Vec<String>, ProblemCounts)) {
        let (listed, counts) = later;
        let room = MAX_LISTED.saturating_sub(self.listed.len());
        // The last line of a cut list counts the rest, which the sum below does anew.
        let is_cut = counts.left_out + counts.warnings > MAX_LISTED;
        let kept = listed.len() - usize::from(is_cut);
        self.listed.extend(listed.into_iter().take(kept.min(room)));
        self.counts.left_out += counts.left_out;
        self.counts.warnings += counts.warnings;
    }

    /// Returns the list, which ends with the number of problems beyond it, and the numbers.
    pub(crate) fn into_parts(mut self) -> (Vec<String>, ProblemCounts) {
        let unlisted = self.counts.left_out + self.counts.warnings - self.listed.len();
        if unlisted > 0 {
            self.listed.push(format!("and {unlisted} more"));
        }
        (self.listed, self.counts)
    }
}
