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
    use towpath_proto::report::Level;

    use super::*;

    /// Returns a report with every outcome.
    pub(crate) fn report() -> Report {
        let mut report = Report::default();
        report.must("§1.1", "there is a head", None);
        report.must("§6.1", "the ETag is the cursor", Some("saw \"x\"\nat /head.json".into()));
        report.should("§1.1", "the head is small", None);
        report.skip("§5", Level::Should, "errors are shown", "no source is in error");
        report.must("§1.1", "it is JSON", None);
        report
    }
}
