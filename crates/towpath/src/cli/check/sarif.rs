//! Report as SARIF 2.1.0 (OASIS), which code hosts show as alerts.

use serde_json::{Value, json};
use towpath_proto::report::{Finding, FindingOutcome, Level};

use super::super::terminal::{plain_lines, visible_json};
use super::result::CheckResult;
use super::text::level_name;

/// Formats a report: a rule for each finding, and a result for each failure.
pub(super) fn as_sarif(result: &CheckResult<'_>) -> serde_json::Result<String> {
    let findings = &result.report.findings;
    let rules: Vec<Value> = findings.iter().map(rule).collect();
    let failed = findings.iter().enumerate().filter(|(_, f)| f.outcome == FindingOutcome::Fail);
    let results: Vec<Value> = failed.map(|(index, f)| failure(index, f, result.url)).collect();
    let driver = json!({
        "name": "towpath",
        "semanticVersion": env!("CARGO_PKG_VERSION"),
        "rules": rules,
    });
    let log = json!({
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": driver},
            "automationDetails": {"id": format!("towpath-check/{}/", result.protocol)},
            "results": results,
        }],
    });
    let json = visible_json(serde_json::to_vec_pretty(&log)?);
    Ok(String::from_utf8_lossy(&json).into_owned() + "\n")
}

fn rule(finding: &Finding) -> Value {
    json!({
        "id": id(finding),
        "shortDescription": {"text": finding.rule},
        "fullDescription": {"text": format!("{} {}: {}", level_name(finding.level), finding.section, finding.rule)},
        "defaultConfiguration": {"level": severity(finding.level)},
    })
}

fn failure(index: usize, finding: &Finding, url: &str) -> Value {
    let text = format!("{}: {}", finding.rule, plain_lines(&finding.detail));
    let mut location = json!({"artifactLocation": {"uri": url}});
    if let Some((line, column)) = place(&finding.detail) {
        location["region"] = json!({"startLine": line});
        if let Some(column) = column {
            location["region"]["startColumn"] = json!(column);
        }
    }
    json!({
        "ruleId": id(finding),
        "ruleIndex": index,
        "level": severity(finding.level),
        "message": {"text": text.trim_end_matches([':', ' '])},
        "locations": [{"physicalLocation": location}],
        // Hosts match alerts of several runs by this. Details move, so only the rule and the address count.
        "partialFingerprints": {"rule/v1": format!("{} {url}", id(finding))},
    })
}

/// Returns a rule's identifier: its section and text in lower case, joined by hyphens.
fn id(finding: &Finding) -> String {
    let text = format!("{} {}", finding.section, finding.rule).to_lowercase();
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '.' && c != '_');
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

fn severity(level: Level) -> &'static str {
    match level {
        Level::Must => "error",
        Level::Should => "warning",
        Level::Advice => "note",
    }
}

/// Returns the line and column that a detail names, as `line 12:` or `line 12, column 3:`.
fn place(detail: &str) -> Option<(u64, Option<u64>)> {
    let (_, rest) = detail.split_once("line ")?;
    let (line, column) = match rest.split_once(':')?.0.split_once(", column ") {
        Some((line, column)) => (line, Some(column.parse().ok()?)),
        None => (rest.split_once(':')?.0, None),
    };
    Some((line.parse().ok().filter(|line| *line > 0)?, column))
}

#[cfg(test)]
mod tests {
    use towpath_proto::report::Rule;

    use super::super::result::tests::report;
    use super::*;

    #[test]
    fn failures_are_results_with_their_rules() {
        let mut report = report();
        report.judge(
            Rule::should("RFC 4287 §4.1.1", "A feed has a link"),
            Some("http://x/: entry 3, line 12: none".into()),
        );
        let text = as_sarif(&CheckResult { url: "http://x/", protocol: "rss", report: &report }).unwrap();
        let log: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(log["version"], "2.1.0");
        let run = &log["runs"][0];
        let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 6);
        let results = run["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        for result in results {
            let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
            assert_eq!(rules[index]["id"], result["ruleId"]);
        }
        assert_eq!(results[0]["level"], "error");
        assert_eq!(results[1]["level"], "warning");
        assert_eq!(results[1]["ruleId"], "rfc-4287-4.1.1-a-feed-has-a-link");
        let place = &results[1]["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "http://x/");
        assert_eq!(place["region"]["startLine"], 12);
    }

    #[test]
    fn details_name_lines_and_columns() {
        assert_eq!(place("http://x/: entry 3, line 12: none"), Some((12, None)));
        assert_eq!(place("http://x/: line 48, column 3: ill-formed document"), Some((48, Some(3))));
        assert_eq!(place("http://x/: line 0: none"), None);
        assert_eq!(place("http://x/: no line"), None);
    }
}
