//! Findings of one document: the first failure of each rule with its place, and the number of further ones.

use std::collections::HashMap;

use crate::report::{Level, Report, Rule};

/// Failures of a rule in one document.
#[derive(Debug, Default)]
struct RuleFailures {
    first: Option<String>,
    more: u64,
}

/// Findings by rule, in the order in which the rules first applied.
#[derive(Debug, Default)]
pub(super) struct DocumentFindings {
    rules: Vec<(Rule, RuleFailures)>,
    positions: HashMap<(&'static str, &'static str), usize>,
}

impl DocumentFindings {
    /// Records that a rule applies, and a failure if `problem` returns one.
    ///
    /// The problem's text is made for the first failure only, so that many failures cost little.
    pub(super) fn judge(&mut self, rule: Rule, holds: bool, problem: impl FnOnce() -> String) {
        let next = self.rules.len();
        let position = *self.positions.entry((rule.section, rule.text)).or_insert(next);
        if position == next {
            self.rules.push((rule, RuleFailures::default()));
        }
        let Some((_, failures)) = self.rules.get_mut(position).filter(|_| !holds) else { return };
        match failures.first {
            None => failures.first = Some(problem()),
            Some(_) => failures.more += 1,
        }
    }

    /// Returns the first failure of a MUST, with its rule.
    pub(super) fn first_must(self) -> Option<String> {
        let failed = |(rule, failures): (Rule, RuleFailures)| Some((rule, failures.first?));
        let mut failed = self.rules.into_iter().filter_map(failed);
        let (rule, first) = failed.find(|(rule, _)| rule.level == Level::Must)?;
        Some(format!("{}: {}: {first}", rule.section, rule.text))
    }

    /// Moves the findings to a report. Details name the document.
    pub(super) fn report(self, report: &mut Report, url: &str) {
        for (rule, RuleFailures { first, more }) in self.rules {
            let problem = first.map(|first| match more {
                0 => format!("{url}: {first}"),
                more => format!("{url}: {first} (and {more} more)"),
            });
            report.judge(rule, problem);
        }
    }
}
