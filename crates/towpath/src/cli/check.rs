//! `towpath check`: whether a feed does what its protocol's text demands.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;

use clap::{Args, ValueEnum};
use serde::Serialize;
use towpath_proto::follow::Checker as _;
use towpath_proto::report::{Finding, Level, Outcome, Report};
use url::Url;

use super::follow::{ProtocolArg, parse_feed, parse_protocol, parse_url, where_to_listen};
use super::node::{AccountArgs, check_node};
use super::read_token::ReadTokenArgs;
use super::terminal::plain;
use super::{CliError, Exit};
use crate::client::{Calls, checker, discover, drive_check, hub_checker, listen};
use crate::stop;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The feed's address
    #[arg(value_parser = parse_feed)]
    url: Url,
    /// auto, diffdelta, replication, history, smart, sup or rss
    #[arg(long, default_value = "auto", value_parser = parse_protocol)]
    protocol: ProtocolArg,
    /// How to print the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Check the feed's hub: subscribe with this address, which leads to --callback-listen
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    callback: Option<Url>,
    /// Where to wait for the hub's calls [default: the callback's port]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "callback")]
    callback_listen: Option<SocketAddr>,
    #[command(flatten)]
    token: ReadTokenArgs,
    #[command(flatten)]
    account: AccountArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Checks a feed and prints the report. [`Exit::Failed`] if a MUST is not met.
pub(crate) async fn check(args: CheckArgs) -> Result<Exit, CliError> {
    super::log_to_stderr();
    let stop = stop::on_signal();
    if args.url.scheme() == "xmpp" {
        args.token.refuse_for_nodes()?;
        let (report, finished) = check_node(&args.url, &args.account, &stop).await?;
        return print(&args, args.url.as_str(), "xmpp", finished.then_some(&report));
    }
    let fetcher = args.token.fetcher([&args.url])?;
    if let Some(callback) = &args.callback {
        let (mut checker, key) = hub_checker(args.url.as_str(), callback.as_str());
        let calls = listen(args.callback_listen.unwrap_or_else(|| where_to_listen(callback)), key).await?;
        let finished = drive_check(&mut checker, &fetcher, &stop, calls).await;
        return print(&args, args.url.as_str(), "websub", finished.then(|| checker.report()));
    }
    let (protocol, url) = match args.protocol.0 {
        Some(protocol) => (protocol, args.url.to_string()),
        None => {
            let offer = discover(&fetcher, args.url.as_str()).await?;
            eprintln!("towpath: checking {} for {}, because {}", offer.url, offer.protocol, offer.why);
            (offer.protocol, offer.url)
        }
    };
    let mut checker = checker(protocol, &url)?;
    let finished = drive_check(&mut *checker, &fetcher, &stop, Calls::none()).await;
    print(&args, &url, protocol.name(), finished.then(|| checker.report()))
}

/// Prints the report of a check that has ended.
fn print(args: &CheckArgs, url: &str, protocol: &str, report: Option<&Report>) -> Result<Exit, CliError> {
    let report = report.ok_or_else(|| CliError::failed("the check was stopped before its end"))?;
    let text = match args.format {
        Format::Text => as_text(url, protocol, report),
        Format::Json => as_json(url, protocol, report).map_err(|e| CliError::failed(e.to_string()))?,
    };
    // The exit code says the result even to whoever does not read the report to its end.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(if report.conforms() { Exit::Done } else { Exit::Failed })
}

fn as_json(url: &str, protocol: &str, report: &Report) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Checked<'a> {
        url: &'a str,
        protocol: &'a str,
        conforms: bool,
        #[serde(flatten)]
        report: &'a Report,
    }
    let checked = Checked { url, protocol, conforms: report.conforms(), report };
    Ok(serde_json::to_string_pretty(&checked)? + "\n")
}

/// Every section in the order in which it was first looked at, its MUSTs before its SHOULDs.
fn as_text(url: &str, protocol: &str, report: &Report) -> String {
    let mut text = format!("{} as {protocol}\n", plain(url));
    let mut sections: Vec<&str> = Vec::new();
    for finding in &report.findings {
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
    for line in finding.detail.lines() {
        let _ = writeln!(text, "                {}", plain(line));
    }
}

fn counts(report: &Report, level: Level) -> String {
    let count = |outcome| report.count(level, outcome);
    let (pass, fail, skip) = (count(Outcome::Pass), count(Outcome::Fail), count(Outcome::Skipped));
    format!("{} {pass} passed, {fail} failed, {skip} skipped", level_name(level))
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Must => "MUST",
        Level::Should => "SHOULD",
    }
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Pass => "PASS",
        Outcome::Fail => "FAIL",
        Outcome::Skipped => "SKIP",
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
    fn the_json_says_whether_the_feed_conforms() {
        let text = as_json("http://x/", "diffdelta", &report()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["conforms"], false);
        assert_eq!(value["protocol"], "diffdelta");
        assert_eq!(value["findings"][1]["level"], "MUST");
        assert_eq!(value["findings"][1]["outcome"], "fail");
        assert_eq!(value["findings"].as_array().unwrap().len(), 5);
    }
}
