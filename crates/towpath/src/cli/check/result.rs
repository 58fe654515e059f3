//! Result of a check.

use towpath_proto::report::Report;

/// A finished check.
pub(super) struct CheckResult<'a> {
    pub(super) url: &'a str,
    pub(super) protocol: &'a str,
    pub(super) report: &'a Report,
}

#[cfg(test)]
pub(crate) mod tests {
    use towpath_proto::report::Rule;

    use super::*;

    /// Returns a report with every outcome.
    pub(crate) fn report() -> Report {
        let mut report = Report::default();
        report.judge(Rule::must("§1.1", "there is a head"), None);
        report.judge(Rule::must("§6.1", "the ETag is the cursor"), Some("saw \"x\"\nat /head.json".into()));
        report.judge(Rule::should("§1.1", "the head is small"), None);
        report.pass_over(&[Rule::should("§5", "errors are shown")], "no source is in error");
        report.judge(Rule::must("§1.1", "it is JSON"), None);
        report
    }
}
