//! Differences between two reports on a feed.

use serde::Serialize;
use towpath_proto::report::{Finding, FindingOutcome, Level, Report};

use super::super::terminal::plain;
use super::text::{level_name, outcome_name};

/// A rule with another outcome than before.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct OutcomeChange<'a> {
    pub(super) section: &'a str,
    pub(super) level: Level,
    pub(super) rule: &'a str,
    /// `None` if the rule was not tested before.
    pub(super) before: Option<FindingOutcome>,
    /// `None` if the rule is no longer tested.
    pub(super) after: Option<FindingOutcome>,
    /// Observation, if the rule fails or is skipped now.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) detail: &'a str,
}

/// Returns the rules whose outcome changed. Details alone are no change: they have counts and addresses that move.
pub(super) fn changes<'a>(before: &'a Report, after: &'a Report) -> Vec<OutcomeChange<'a>> {
    let find = |report: &'a Report, finding: &Finding| {
        // A report has about a hundred findings, so the linear search does not matter.
        let mut findings = report.findings.iter();
        findings.find(|other| other.section == finding.section && other.rule == finding.rule)
    };
    let change = |finding: &'a Finding, before, after, detail| OutcomeChange {
        section: &finding.section,
        level: finding.level,
        rule: &finding.rule,
        before,
        after,
        detail,
    };
    let now = after.findings.iter().filter_map(|finding| {
        let before = find(before, finding).map(|other| other.outcome);
        // Which rules apply depends on the document's elements: a rule that comes or goes is news only as a failure.
        let is_news = before.is_some() || finding.outcome == FindingOutcome::Fail;
        let is_same = before == Some(finding.outcome);
        (!is_same && is_news).then(|| change(finding, before, Some(finding.outcome), &finding.detail))
    });
    let gone = before
        .findings
        .iter()
        .filter(|finding| find(after, finding).is_none() && finding.outcome == FindingOutcome::Fail);
    now.chain(gone.map(|finding| change(finding, Some(finding.outcome), None, ""))).collect()
}

impl OutcomeChange<'_> {
    /// Formats the change as text, with the observation on lines of its own.
    pub(super) fn text(&self) -> String {
        let name = |outcome: Option<FindingOutcome>| outcome.map_or("none", outcome_name);
        let mut text = format!(
            "  {} -> {}  {:<6}  {}: {}\n",
            name(self.before),
            name(self.after),
            level_name(self.level),
            plain(self.section),
            plain(self.rule)
        );
        for line in self.detail.lines() {
            text.push_str(&format!("                {}\n", plain(line)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::report::Rule;

    use super::*;

    #[test]
    fn outcomes_that_changed_are_told() {
        let (mut before, mut after) = (Report::default(), Report::default());
        before.judge(Rule::must("§1", "stays"), None);
        before.judge(Rule::must("§1", "breaks"), None);
        before.judge(Rule::should("§2", "goes"), Some("x".into()));
        before.pass_over(&[Rule::must("§3", "was skipped")], "why");
        before.judge(Rule::must("§3", "goes and held"), None);
        after.judge(Rule::must("§1", "stays"), None);
        after.judge(Rule::must("§1", "breaks"), Some("now 404".into()));
        after.judge(Rule::must("§4", "comes"), Some("y".into()));
        after.judge(Rule::must("§4", "comes and holds"), None);
        let found = changes(&before, &after);
        let told: Vec<String> = found.iter().map(OutcomeChange::text).collect();
        let expected = [
            "  PASS -> FAIL  MUST    §1: breaks\n                now 404\n",
            "  none -> FAIL  MUST    §4: comes\n                y\n",
            "  FAIL -> none  SHOULD  §2: goes\n",
        ];
        assert_eq!(told, expected);
        assert_eq!(changes(&before, &before), []);
        // Another detail of the same failure is no change.
        let mut again = after.clone();
        again.findings[1].detail = "now 410".into();
        assert_eq!(changes(&after, &again), []);
    }
}
