//! What a conformance check found.

use serde::Serialize;

/// How much a text demands of a publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// Not conforming without it.
    Must,
    /// Recommended.
    Should,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The feed does as the text says.
    Pass,
    /// It does not.
    Fail,
    /// There was nothing to see it by.
    Skipped,
}

/// One demand of a text, and whether the feed meets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The text's section, as `§2.3`.
    pub section: String,
    /// MUST or SHOULD.
    pub level: Level,
    /// What is demanded, as a sentence.
    pub rule: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was seen and where, if the rule failed or was skipped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// One demand of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The text's section, as `§2.3`.
    pub section: &'static str,
    /// MUST or SHOULD.
    pub level: Level,
    /// What is demanded, as a sentence.
    pub text: &'static str,
}

impl Rule {
    /// One without which a feed does not conform.
    pub const fn must(section: &'static str, text: &'static str) -> Self {
        Self { section, level: Level::Must, text }
    }

    /// One that is recommended.
    pub const fn should(section: &'static str, text: &'static str) -> Self {
        Self { section, level: Level::Should, text }
    }
}

/// All findings on one feed, in the order in which they were made.
///
/// A rule that is looked at in many places (every snapshot of an archive, say) is one finding: the first
/// failure decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// One for each rule.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Notes that `rule` was looked at: met where `problem` is `None`, broken as it says otherwise.
    pub fn check(&mut self, section: &str, level: Level, rule: &str, problem: Option<String>) {
        let outcome = if problem.is_some() { Outcome::Fail } else { Outcome::Pass };
        self.note(section, level, rule, outcome, problem.unwrap_or_default());
    }

    /// Notes that a rule was looked at: met where `problem` is `None`.
    pub fn judge(&mut self, rule: Rule, problem: Option<String>) {
        self.check(rule.section, rule.level, rule.text, problem);
    }

    /// Notes that rules could not be looked at, and why.
    pub fn pass_over(&mut self, rules: &[Rule], why: &str) {
        for rule in rules {
            self.skip(rule.section, rule.level, rule.text, why);
        }
    }

    /// Notes a MUST: met where `problem` is `None`.
    pub fn must(&mut self, section: &str, rule: &str, problem: Option<String>) {
        self.check(section, Level::Must, rule, problem);
    }

    /// Notes a SHOULD: met where `problem` is `None`.
    pub fn should(&mut self, section: &str, rule: &str, problem: Option<String>) {
        self.check(section, Level::Should, rule, problem);
    }

    /// Notes that `rule` could not be looked at, and why.
    pub fn skip(&mut self, section: &str, level: Level, rule: &str, why: &str) {
        self.note(section, level, rule, Outcome::Skipped, why.to_owned());
    }

    fn note(&mut self, section: &str, level: Level, rule: &str, outcome: Outcome, detail: String) {
        let known = self.findings.iter_mut().find(|f| f.section == section && f.rule == rule);
        let Some(known) = known else {
            let (section, rule) = (section.to_owned(), rule.to_owned());
            self.findings.push(Finding { section, level, rule, outcome, detail });
            return;
        };
        let worse = match (known.outcome, outcome) {
            (Outcome::Fail, _) | (_, Outcome::Skipped) => false,
            (_, Outcome::Fail) | (Outcome::Skipped, _) => true,
            (Outcome::Pass, Outcome::Pass) => false,
        };
        if worse {
            known.outcome = outcome;
            known.detail = detail;
        }
    }

    /// Whether no MUST failed.
    pub fn conforms(&self) -> bool {
        !self.findings.iter().any(|f| f.level == Level::Must && f.outcome == Outcome::Fail)
    }

    /// How many findings of a level ended so.
    pub fn count(&self, level: Level, outcome: Outcome) -> usize {
        self.findings.iter().filter(|f| f.level == level && f.outcome == outcome).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_of_a_rule_stays() {
        let mut report = Report::default();
        report.skip("§1", Level::Must, "rule", "nothing there");
        report.must("§1", "rule", None);
        assert_eq!(report.findings[0].outcome, Outcome::Pass);
        report.must("§1", "rule", Some("first".into()));
        report.must("§1", "rule", Some("second".into()));
        report.must("§1", "rule", None);
        assert_eq!(report.findings.len(), 1);
        assert_eq!(report.findings[0].detail, "first");
        assert!(!report.conforms());
    }

    #[test]
    fn a_failed_should_still_conforms() {
        let mut report = Report::default();
        report.should("§1", "rule", Some("no".into()));
        assert!(report.conforms());
        assert_eq!(report.count(Level::Should, Outcome::Fail), 1);
    }
}
