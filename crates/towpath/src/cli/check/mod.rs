//! `towpath check`: reports a feed's conformance with its protocol's specification, once or on a schedule.

mod changes;
mod junit;
mod sarif;
mod text;
mod watch;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use towpath_client::{
    CallQueue, Fetcher, FollowPace, Protocol, checker, discover, drive_check, hub_checker, listen, locate,
};
use towpath_proto::follow::Checker as _;
use towpath_proto::report::Report;
use url::Url;

use self::junit::as_junit;
use self::sarif::as_sarif;
use self::text::as_text;
use self::watch::watch;

use super::account::AccountArgs;
use super::error::{CliError, Exit};
use super::feed_url::{listen_address, parse_feed, parse_url};
use super::follow::args::parse_every;
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
    /// Check again and again, and print what changed
    #[arg(long, conflicts_with = "callback")]
    watch: bool,
    /// Time between two checks
    #[arg(long, value_name = "TIME", default_value = "1h", requires = "watch", value_parser = parse_every)]
    every: Duration,
    /// Number of checks, after which to exit [default: until stopped]
    #[arg(long, value_name = "NUMBER", requires = "watch", value_parser = clap::value_parser!(u32).range(1..))]
    times: Option<u32>,
    /// File for the last report; a later run with it prints what changed since
    #[arg(long, value_name = "FILE", requires = "watch")]
    state: Option<PathBuf>,
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
    /// For reading
    Text,
    /// All findings; with --watch a line for each change
    Json,
    /// XML that build servers show as tests
    Junit,
    /// SARIF 2.1.0, which code hosts show as alerts
    Sarif,
}

/// A finished check.
struct CheckResult<'a> {
    url: &'a str,
    protocol: &'a str,
    report: &'a Report,
}

/// Checks a feed and prints the report; [`Exit::Failed`] if it violates a MUST.
pub(crate) async fn check(args: CheckArgs) -> Result<Exit, CliError> {
    log_to_stderr();
    let stop = stop::on_signal();
    if args.url.scheme() == "xmpp" {
        args.token.refuse_for_nodes()?;
        if args.watch {
            return Err(CliError::usage("--watch is for feeds over HTTP"));
        }
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
        Some(protocol) if args.watch => (protocol, located(&fetcher, &args.url, protocol).await),
        Some(protocol) => (protocol, args.url.to_string()),
        None => {
            let offer = discover(&fetcher, args.url.as_str(), FollowPace::Polled).await?;
            let text = format!("checking {} for {}, because {}", offer.url, offer.protocol, offer.why);
            eprintln!("towpath: {}", plain(&text));
            (offer.protocol, offer.url)
        }
    };
    if args.watch {
        return watch(&args, &fetcher, protocol, &url, &stop).await;
    }
    let mut url = url;
    let mut first = checker(protocol, &url)?;
    let mut finished = drive_check(&mut *first, &fetcher, &stop, CallQueue::none()).await;
    if finished && args.protocol.0.is_some() && !first.report().conforms() {
        // Perhaps the user named the feed's page. A feed that conforms costs no request for that.
        let found = located(&fetcher, &args.url, protocol).await;
        if found != url {
            (first, url) = (checker(protocol, &found)?, found);
            finished = drive_check(&mut *first, &fetcher, &stop, CallQueue::none()).await;
        }
    }
    print(&args, &url, protocol.name(), finished.then(|| first.report()))
}

/// Returns the URL of a protocol: the one that the feed's page names, as `follow` finds it, else the feed's own.
async fn located(fetcher: &Fetcher, url: &Url, protocol: Protocol) -> String {
    // A feed is checked for how it announces its SUP document.
    if protocol == Protocol::Sup {
        return url.to_string();
    }
    let found = locate(fetcher, url.as_str(), protocol).await.ok().flatten();
    let found = found.unwrap_or_else(|| url.to_string());
    if found != url.as_str() {
        eprintln!("towpath: checking {} for {protocol}", plain(&found));
    }
    found
}

/// Prints the report of a complete check.
fn print(args: &CheckArgs, url: &str, protocol: &str, report: Option<&Report>) -> Result<Exit, CliError> {
    let report = report.ok_or_else(|| CliError::failed("the check was stopped before it was complete"))?;
    write_out(&render(args.format, &CheckResult { url, protocol, report })?);
    Ok(if report.conforms() { Exit::Done } else { Exit::Failed })
}

/// Renders a report.
fn render(format: ReportFormat, result: &CheckResult<'_>) -> Result<String, CliError> {
    let failed = |error: serde_json::Error| CliError::failed(error.to_string());
    Ok(match format {
        ReportFormat::Text => as_text(result.url, result.protocol, result.report),
        ReportFormat::Json => as_json(result).map_err(failed)?,
        ReportFormat::Junit => as_junit(result),
        ReportFormat::Sarif => as_sarif(result).map_err(failed)?,
    })
}

/// Writes to standard output.
fn write_out(text: &str) {
    // A reader may close the pipe early, as `head` does; the exit code still tells the result.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
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
pub(super) mod tests {
    use towpath_proto::report::Level;

    use super::*;

    /// Returns a report with every outcome.
    pub(super) fn report() -> Report {
        let mut report = Report::default();
        report.must("§1.1", "there is a head", None);
        report.must("§6.1", "the ETag is the cursor", Some("saw \"x\"\nat /head.json".into()));
        report.should("§1.1", "the head is small", None);
        report.skip("§5", Level::Should, "errors are shown", "no source is in error");
        report.must("§1.1", "it is JSON", None);
        report
    }

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
