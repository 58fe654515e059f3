//! Report as JUnit XML, the common format of test results.

use towpath_proto::format::xml::{escape_attribute, escape_text};
use towpath_proto::report::{Finding, FindingOutcome, Level};

use super::super::terminal::{plain, plain_lines};
use super::result::CheckResult;
use super::text::level_name;

/// Formats a report: a test case for each rule.
///
/// Only a failed MUST is a failed test, as only that fails the check. A failed recommendation is output of its test.
pub(super) fn as_junit(result: &CheckResult<'_>) -> String {
    let findings = &result.report.findings;
    let count = |test: fn(&Finding) -> bool| findings.iter().filter(|finding| test(finding)).count();
    let numbers = format!(
        "tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\"",
        findings.len(),
        count(is_failure),
        count(|finding| finding.outcome == FindingOutcome::Skipped)
    );
    let name = attribute(&format!("{} as {}", result.url, result.protocol));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"towpath check\" {numbers}>\n\
         <testsuite name=\"{name}\" {numbers}>\n"
    );
    for finding in findings {
        let (class, level) = (attribute(&finding.section), level_name(finding.level));
        let case = format!("{level} {}", finding.rule);
        text.push_str(&format!("<testcase classname=\"{class}\" name=\"{}\"", attribute(&case)));
        text.push_str(&body(finding, level));
    }
    text.push_str("</testsuite>\n</testsuites>\n");
    text
}

fn is_failure(finding: &Finding) -> bool {
    finding.outcome == FindingOutcome::Fail && finding.level == Level::Must
}

fn body(finding: &Finding, level: &str) -> String {
    let detail = &finding.detail;
    let first = attribute(detail.lines().next().unwrap_or_default());
    let whole = escape_text(&plain_lines(detail)).into_owned();
    match finding.outcome {
        FindingOutcome::Pass => "/>\n".to_owned(),
        FindingOutcome::Skipped => format!("><skipped message=\"{first}\"/></testcase>\n"),
        FindingOutcome::Fail if is_failure(finding) => {
            format!("><failure type=\"{level}\" message=\"{first}\">{whole}</failure></testcase>\n")
        }
        FindingOutcome::Fail => format!("><system-out>{level} not met: {whole}</system-out></testcase>\n"),
    }
}

fn attribute(text: &str) -> String {
    escape_attribute(&plain(text)).into_owned()
}

#[cfg(test)]
mod tests {
    use towpath_proto::report::Rule;

    use super::super::result::tests::report;
    use super::*;

    #[test]
    fn only_a_failed_must_is_a_failure() {
        let mut report = report();
        report.judge(Rule::should("§7", "a <b> & \"c\""), Some("a\u{1b}[31m]]>".into()));
        let text = as_junit(&CheckResult { url: "http://x/?a&b", protocol: "smart", report: &report });
        assert!(
            text.contains("<testsuite name=\"http://x/?a&amp;b as smart\" tests=\"6\" failures=\"1\""),
            "{text}"
        );
        assert!(text.contains("skipped=\"1\""), "{text}");
        let failure = "<testcase classname=\"§6.1\" name=\"MUST the ETag is the cursor\">\
                       <failure type=\"MUST\" message=\"saw &quot;x&quot;\">";
        assert!(text.contains(failure), "{text}");
        assert!(text.contains("<skipped message=\"no source is in error\"/>"), "{text}");
        assert!(text.contains("<system-out>SHOULD not met: a\\u{1b}[31m]]&gt;</system-out>"), "{text}");
        assert!(towpath_proto::format::sniff::kind(&text) == towpath_proto::format::sniff::DocumentKind::Xml);
    }
}
