//! A report in the format that the user asked for.

use serde::Serialize;
use towpath_proto::report::Report;

use super::super::error::CliError;
use super::super::style::print_output;
use super::super::terminal::visible_json;
use super::args::ReportFormat;
use super::junit::as_junit;
use super::result::CheckResult;
use super::sarif::as_sarif;
use super::text::as_text;

/// Renders a report.
pub(super) fn render(format: ReportFormat, result: &CheckResult<'_>) -> Result<String, CliError> {
    let failed = |error: serde_json::Error| CliError::failed(error.to_string());
    Ok(match format {
        ReportFormat::Text => as_text(result.url, result.protocol, result.report),
        ReportFormat::Json => as_json(result).map_err(failed)?,
        ReportFormat::Junit => as_junit(result),
        ReportFormat::Sarif => as_sarif(result).map_err(failed)?,
    })
}

/// Writes to standard output.
pub(super) fn write_out(text: &str) -> Result<(), CliError> {
    // The report names the URL that the user named, perhaps with a password.
    print_output(towpath_client::redact::credentials(text))
}

fn as_json(result: &CheckResult<'_>) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct JsonReport<'a> {
        url: &'a str,
        protocol: &'a str,
        conforms: bool,
        #[serde(flatten)]
        report: &'a Report,
    }
    let CheckResult { url, protocol, report } = *result;
    let json = JsonReport { url, protocol, conforms: report.conforms(), report };
    let json = visible_json(serde_json::to_vec_pretty(&json)?);
    Ok(String::from_utf8_lossy(&json).into_owned() + "\n")
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::report;
    use super::*;

    #[test]
    fn the_json_report_has_the_result() {
        let text =
            as_json(&CheckResult { url: "http://x/", protocol: "diffdelta", report: &report() }).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["conforms"], false);
        assert_eq!(value["protocol"], "diffdelta");
        assert_eq!(value["findings"][1]["level"], "MUST");
        assert_eq!(value["findings"][1]["outcome"], "fail");
        assert_eq!(value["findings"].as_array().unwrap().len(), 5);
    }
}
