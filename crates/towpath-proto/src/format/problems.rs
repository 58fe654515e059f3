//! Problems of a document: a hundred of them in words, those of items left out first, all of them in numbers.

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
        // A large document may be wrong everywhere; the list must stay readable and bounded.
        if self.listed.len() < MAX_LISTED {
            self.listed.push(text());
        }
    }

    /// Adds an item that is left out, with the reason.
    pub(crate) fn leave_out(&mut self, text: impl FnOnce() -> String) {
        let index = self.counts.left_out;
        self.counts.left_out += 1;
        if index < MAX_LISTED {
            // A lost item is worse than a problem that lost none.
            self.listed.truncate(MAX_LISTED - 1);
            self.listed.insert(index, text());
        }
    }

    /// Returns `true` without any problem.
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Adds the problems of a later step.
    pub(crate) fn append(&mut self, later: (Vec<String>, ProblemCounts)) {
        let (mut listed, counts) = later;
        // The last line of a cut list counts the rest, which the sum below does anew.
        let is_cut = counts.left_out + counts.warnings > MAX_LISTED;
        listed.truncate(listed.len() - usize::from(is_cut));
        let warnings = listed.split_off(counts.left_out.min(listed.len()));
        let unlisted = (counts.left_out - listed.len(), counts.warnings - warnings.len());
        listed.into_iter().for_each(|text| self.leave_out(|| text));
        warnings.into_iter().for_each(|text| self.warn(|| text));
        self.counts.left_out += unlisted.0;
        self.counts.warnings += unlisted.1;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(warnings: usize, left_out: usize) -> Problems {
        let mut problems = Problems::default();
        (0..warnings).for_each(|number| problems.warn(|| format!("w{number}")));
        (0..left_out).for_each(|number| problems.leave_out(|| format!("l{number}")));
        problems
    }

    #[test]
    fn items_left_out_are_listed_first() {
        let (listed, counts) = problems(2, 2).into_parts();
        assert_eq!(listed, ["l0", "l1", "w0", "w1"]);
        assert_eq!((counts.left_out, counts.warnings), (2, 2));
        let (listed, _) = problems(150, 3).into_parts();
        assert_eq!(
            (listed.len(), &listed[2..4], &listed[100][..]),
            (101, &["l2".into(), "w0".into()][..], "and 53 more")
        );
        let (listed, _) = problems(5, 150).into_parts();
        assert_eq!((listed.len(), &listed[99][..], &listed[100][..]), (101, "l99", "and 55 more"));
    }

    #[test]
    fn problems_of_a_later_step_keep_the_order() {
        let mut first = problems(1, 1);
        first.append(problems(1, 1).into_parts());
        let (listed, counts) = first.into_parts();
        assert_eq!(listed, ["l0", "l0", "w0", "w0"]);
        assert_eq!((counts.left_out, counts.warnings), (2, 2));
        for (warnings, left_out) in [(150, 150), (150, 0), (90, 20), (0, 150)] {
            let mut first = problems(10, 10);
            first.append(problems(warnings, left_out).into_parts());
            let (listed, counts) = first.into_parts();
            assert_eq!((counts.left_out, counts.warnings), (10 + left_out, 10 + warnings));
            assert_eq!(listed[100], format!("and {} more", left_out + warnings - 80));
            let first_left_out = listed.iter().take_while(|text| text.starts_with('l')).count();
            assert_eq!(first_left_out, (10 + left_out).min(100));
        }
    }
}
