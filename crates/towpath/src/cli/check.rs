//! `towpath check`: reports a feed's conformance with its protocol's specification.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use serde::Serialize;
use towpath_client::{CallQueue, FollowPace, checker, discover, drive_check, hub_checker, listen};
use towpath_proto::follow::Checker as _;
use towpath_proto::report::{Finding, FindingOutcome, Level, Report};
use url::Url;

use super::account::AccountArgs;
use super::error::{CliError, Exit};
use super::feed_url::{listen_address, parse_feed, parse_url};
use super::logging::log_to_stderr;
use super::node::check_node;
use super::protocol_arg::{ProtocolArg, parse_protocol};
use super::read_token::ReadTokenArgs;
use super::terminal::{plain, visible_json};
use crate::stop;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// URL of the feed
    #[arg(value_parser = parse_feed)]
    url: Url,
    /// Protocol: auto, diffdelta, replication, history, smart, sup or rss
    #[arg(long, default_value = "auto", value_parser = parse_protocol)]
    protocol: ProtocolArg,
    /// Output format of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    /// Check the feed's hub: subscribe with this URL, which must reach --callback-listen
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    callback: Option<Url>,
    /// Address on which to receive the hub's calls [default: the callback's port]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "callback")]
    callback_listen: Option<SocketAddr>,
    #[command(flatten)]
    token: ReadTokenArgs,
    #[command(flatten)]
    account: AccountArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ReportFormat {
    Text,
    Json,
}

/// Checks a feed and prints the report; [`Exit::Failed`] if it violates a MUST.
pub(crate) async fn check(args: CheckArgs) -> Result<Exit, CliError> {
    log_to_stderr();
    let stop = stop::on_signal();
    if args.url.scheme() == "xmpp" {
        args.token.refuse_for_nodes()?;
        let (report, finished) = check_node(&args.url, &args.account, &stop).await?;
        return print(&args, args.url.as_str(), "xmpp", finished.then_some(&report));
    }
    let fetcher = args.token.fetcher([&args.url])?;
    if let Some(callback) = &args.callback {
        // With a callback the check is about the hub, not about the feed's documents.
        let (mut checker, key) = hub_checker(args.url.as_str(), callback.as_str());
        let calls = listen(args.callback_listen.unwrap_or_else(|| listen_address(callback)), key).await?;
        let finished = drive_check(&mut checker, &fetcher, &stop, calls).await;
        return print(&args, args.url.as_str(), "websub", finished.then(|| checker.report()));
    }
    let (protocol, url) = match args.protocol.0 {
        Some(protocol) => (protocol, args.url.to_string()),
        None => {
            let offer = discover(&fetcher, args.url.as_str(), FollowPace::Polled).await?;
            let text = format!("checking {} for {}, because {}", offer.url, offer.protocol, offer.why);
            eprintln!("towpath: {}", plain(&text));
            (offer.protocol, offer.url)
        }
    };
    let mut checker = checker(protocol, &url)?;
    let finished = drive_check(&mut *checker, &fetcher, &stop, CallQueue::none()).await;
    print(&args, &url, protocol.name(), finished.then(|| checker.report()))
}

/// Prints the report of a complete check.
fn print(args: &CheckArgs, url: &str, protocol: &str, report: Option<&Report>) -> Result<Exit, CliError> {
    let report = report.ok_or_else(|| CliError::failed("the check was stopped before it was complete"))?;
    let text = match args.format {
        ReportFormat::Text => as_text(url, protocol, report),
        ReportFormat::Json => as_json(url, protocol, report).map_err(|e| CliError::failed(e.to_string()))?,
    };
    // A reader may close the pipe early, as `head` does; the exit code still tells the result.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(if report.conforms() { Exit::Done } else { Exit::Failed })
}

fn as_json(url: &str, protocol: &str, report: &Report) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct CheckResult<'a> {
        url: &'a str,
        protocol: &'a str,
        conforms: bool,
        #[serde(flatten)]
        report: &'a Report,
    }
    let result = CheckResult { url, protocol, conforms: report.conforms(), report };
    let json = visible_json(serde_json::to_vec_pretty(&result)?);
    Ok(String::from_utf8_lossy(&json).into_owned() + "\n")
}

/// Formats the report: sections in the order of their first finding, each with MUSTs before SHOULDs.
fn as_text(url: &str, protocol: &str, report: &Report) -> String {
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
        for level in [Level::Must, Level::Should] {
            let of_level = |f: &&Finding| f.section == section && f.level == level;
            report.findings.iter().filter(of_level).for_each(|finding| write_finding(&mut text, finding));
        }
    }
    let counts = [Level::Must, Level::Should].map(|level| counts(report, level));
    let verdict = if report.conforms() { "conforms" } else { "does not conform" };
    let _ = writeln!(text, "\n{verdict}: {}; {}", counts[0], counts[1]);
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

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Must => "MUST",
        Level::Should => "SHOULD",
    }
}

fn outcome_name(outcome: FindingOutcome) -> &'static str {
    match outcome {
        FindingOutcome::Pass => "PASS",
        FindingOutcome::Fail => "FAIL",
        FindingOutcome::Skipped => "SKIP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        report.must("§1.1", "there is a head", None);
        report.must("§6.1", "the ETag is the cursor", Some("saw \"x\"\nat /head.json".into()));
        report.should("§1.1", "the head is small", None);
        report.skip("§5", Level::Should, "errors are shown", "no source is in error");
        report.must("§1.1", "it is JSON", None);
        report
    }

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

    #[test]
    fn the_json_report_has_the_result() {
        let text = as_json("http://x/", "diffdelta", &report()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["conforms"], false);
        assert_eq!(value["protocol"], "diffdelta");
        assert_eq!(value["findings"][1]["level"], "MUST");
        assert_eq!(value["findings"][1]["outcome"], "fail");
        assert_eq!(value["findings"].as_array().unwrap().len(), 5);
    }
}
