//! Reports of conformance checks.

use serde::{Deserialize, Serialize};

use crate::follow::ReadLimits;

/// Requirement level of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// Required for conformance.
    Must,
    /// Recommended.
    Should,
    /// Good practice that the specification only suggests, or that readers are known to need.
    Advice,
}

/// Outcome of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingOutcome {
    /// The feed meets the rule.
    Pass,
    /// The feed violates the rule.
    Fail,
    /// The rule could not be checked.
    Skipped,
}

/// Rule of a specification, with its outcome for the feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Section of the specification, as `§2.3`.
    pub section: String,
    /// MUST, SHOULD or advice.
    pub level: Level,
    /// Requirement, as a sentence.
    pub rule: String,
    /// Outcome.
    pub outcome: FindingOutcome,
    /// Observation and its location, if the rule failed or was skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Rule of a specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Section of the specification, as `§2.3`.
    pub section: &'static str,
    /// MUST, SHOULD or advice.
    pub level: Level,
    /// Requirement, as a sentence.
    pub text: &'static str,
}

impl Rule {
    /// Creates a required rule.
    pub const fn must(section: &'static str, text: &'static str) -> Self {
        Self { section, level: Level::Must, text }
    }

    /// Creates a recommended rule.
    pub const fn should(section: &'static str, text: &'static str) -> Self {
        Self { section, level: Level::Should, text }
    }

    /// Creates a suggestion.
    pub const fn advice(section: &'static str, text: &'static str) -> Self {
        Self { section, level: Level::Advice, text }
    }
}

/// Declares rules as a table, and `ALL` in the table's order.
macro_rules! rules {
    ($($name:ident: $section:literal $level:ident $text:literal;)*) => {
        $(pub(crate) const $name: $crate::report::Rule =
            $crate::report::Rule { section: $section, level: $crate::report::Level::$level, text: $text };)*
        /// All rules of the table.
        pub(crate) const ALL: &[$crate::report::Rule] = &[$($name),*];
    };
}
pub(crate) use rules;

/// Findings about a feed, in the order of the checks.
///
/// A rule that is checked repeatedly, for example for every snapshot of an archive, is a single finding: the
/// first failure decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Findings, in order.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Records a check of a rule: passed if `problem` is `None`, else failed.
    ///
    /// A problem that names a limit of what is read is one of the check, so the rule is skipped.
    pub fn judge(&mut self, rule: Rule, problem: Option<String>) {
        match problem {
            None => self.record(rule, FindingOutcome::Pass, String::new()),
            Some(problem) if names_limit(&problem) => {
                self.record(rule, FindingOutcome::Skipped, format!("not checked: {problem}"));
            }
            Some(problem) => self.record(rule, FindingOutcome::Fail, problem),
        }
    }

    /// Records rules that could not be checked, with the reason.
    pub fn pass_over(&mut self, rules: &[Rule], why: &str) {
        for rule in rules {
            self.record(*rule, FindingOutcome::Skipped, why.to_owned());
        }
    }

    fn record(&mut self, rule: Rule, outcome: FindingOutcome, detail: String) {
        let Rule { section, level, text } = rule;
        let known = self.findings.iter_mut().find(|f| f.section == section && f.rule == text);
        let Some(known) = known else {
            let (section, rule) = (section.to_owned(), text.to_owned());
            self.findings.push(Finding { section, level, rule, outcome, detail });
            return;
        };
        let worse = match (known.outcome, outcome) {
            (FindingOutcome::Fail, _) | (_, FindingOutcome::Skipped) => false,
            (_, FindingOutcome::Fail) | (FindingOutcome::Skipped, _) => true,
            (FindingOutcome::Pass, FindingOutcome::Pass) => false,
        };
        if worse {
            known.outcome = outcome;
            known.detail = detail;
        }
    }

    /// Returns `true` if no MUST failed.
    pub fn conforms(&self) -> bool {
        !self.findings.iter().any(|f| f.level == Level::Must && f.outcome == FindingOutcome::Fail)
    }

    /// Counts the findings of a level with an outcome.
    pub fn count(&self, level: Level, outcome: FindingOutcome) -> usize {
        self.findings.iter().filter(|f| f.level == level && f.outcome == outcome).count()
    }
}

/// Returns true if a text ends with the name of a limit of reading, as the errors of readers do.
fn names_limit(problem: &str) -> bool {
    // At the end only: what a publisher sent may be quoted before.
    let name = problem.strip_suffix(')').and_then(|start| start.rsplit_once("(limit: "));
    name.is_some_and(|(_, name)| ReadLimits::NAMES.iter().any(|(known, _)| *known == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUST: Rule = Rule::must("§1", "rule");

    #[test]
    fn the_first_failure_of_a_rule_stays() {
        let mut report = Report::default();
        // Any result replaces a skip.
        report.pass_over(&[MUST], "nothing there");
        report.judge(MUST, None);
        assert_eq!(report.findings[0].outcome, FindingOutcome::Pass);
        report.judge(MUST, Some("first".into()));
        report.judge(MUST, Some("second".into()));
        report.judge(MUST, None);
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.findings[0].detail, "first");
        assert!(!report.conforms());
    }

    #[test]
    fn a_limit_of_the_check_is_no_failure() {
        let mut report = Report::default();
        report.judge(MUST, Some("http://a.example/: refused: more than 2 items (limit: items)".into()));
        assert_eq!(report.findings[0].outcome, FindingOutcome::Skipped);
        assert!(report.findings[0].detail.starts_with("not checked: http://a.example/"));
        report.judge(MUST, Some("the feed has a (limit: of its own)".into()));
        assert_eq!(report.findings[0].outcome, FindingOutcome::Fail);
    }

    #[test]
    fn a_failed_should_still_conforms() {
        let mut report = Report::default();
        report.judge(Rule::should("§1", "rule"), Some("no".into()));
        assert!(report.conforms());
        assert_eq!(report.count(Level::Should, FindingOutcome::Fail), 1);
    }
}
