//! Report as text for a person.

use std::fmt::Write as _;

use towpath_proto::report::{Finding, FindingOutcome, Level, Report};

use super::super::terminal::plain;

/// Levels in the order of a report.
const LEVELS: [Level; 3] = [Level::Must, Level::Should, Level::Advice];

/// Formats the report: sections in the order of their first finding, each with MUSTs before SHOULDs.
pub(super) fn as_text(url: &str, protocol: &str, report: &Report) -> String {
    let mut text = format!("{} as {protocol}\n", plain(url));
    let mut sections: Vec<&str> = Vec::new();
    for finding in &report.findings {
        // A report has tens of findings, so the linear search does not matter.
        if !sections.contains(&finding.section.as_str()) {
            sections.push(&finding.section);
        }
    }
    for section in sections {
        let _ = writeln!(text, "\n{}", plain(section));
        for level in LEVELS {
            let of_level = |f: &&Finding| f.section == section && f.level == level;
            report.findings.iter().filter(of_level).for_each(|finding| write_finding(&mut text, finding));
        }
    }
    let has_advice = report.findings.iter().any(|f| f.level == Level::Advice);
    let counted = LEVELS.into_iter().filter(|level| *level != Level::Advice || has_advice);
    let counts: Vec<String> = counted.map(|level| counts(report, level)).collect();
    let verdict = if report.conforms() { "conforms" } else { "does not conform" };
    let _ = writeln!(text, "\n{verdict}: {}", counts.join("; "));
    text
}

fn write_finding(text: &mut String, finding: &Finding) {
    let (level, outcome) = (level_name(finding.level), outcome_name(finding.outcome));
    let _ = writeln!(text, "  {outcome}  {level:<6}  {}", plain(&finding.rule));
    // Details quote the server's response, hence the escapes.
    for line in finding.detail.lines() {
        let _ = writeln!(text, "                {}", plain(line));
    }
}

fn counts(report: &Report, level: Level) -> String {
    let count = |outcome| report.count(level, outcome);
    let (pass, fail, skip) =
        (count(FindingOutcome::Pass), count(FindingOutcome::Fail), count(FindingOutcome::Skipped));
    format!("{} {pass} passed, {fail} failed, {skip} skipped", level_name(level))
}

/// Returns a level's name in reports.
pub(super) fn level_name(level: Level) -> &'static str {
    match level {
        Level::Must => "MUST",
        Level::Should => "SHOULD",
        Level::Advice => "ADVICE",
    }
}

/// Returns an outcome's name in reports.
pub(super) fn outcome_name(outcome: FindingOutcome) -> &'static str {
    match outcome {
        FindingOutcome::Pass => "PASS",
        FindingOutcome::Fail => "FAIL",
        FindingOutcome::Skipped => "SKIP",
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::report;
    use super::*;

    #[test]
    fn the_text_groups_by_section_and_counts() {
        let expected = "http://x/ as diffdelta

§1.1
  PASS  MUST    there is a head
  PASS  MUST    it is JSON
  PASS  SHOULD  the head is small

§6.1
  FAIL  MUST    the ETag is the cursor
                saw \"x\"
                at /head.json

§5
  SKIP  SHOULD  errors are shown
                no source is in error

does not conform: MUST 2 passed, 1 failed, 0 skipped; SHOULD 1 passed, 0 failed, 1 skipped
";
        assert_eq!(as_text("http://x/", "diffdelta", &report()), expected);
    }
}
