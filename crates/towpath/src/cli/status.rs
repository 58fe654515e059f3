//! `towpath status`: prints feeds, positions and source health.

use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use clap::Args;
use indicatif::HumanBytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::error::{CliError, Exit};
use super::open;
use super::probe::{Probe, probe};
use super::publish_target::{FoundTarget, PublishTarget, TargetArgs};
use super::sink;
use super::style::{Colour, OutputFormat, Painter, now_on_terminal, shown_time as shown, written};
use super::terminal::plain;
use crate::source::status::{cluster_json, feed_json, node_problems, sinks_json};

/// Interval of `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);
/// Moves the cursor to the first place, and erases the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Form of the output; `json` is an object with `feeds`, `sinks` and `problems`
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    /// Print it again every two seconds, until interrupted
    #[arg(long)]
    watch: bool,
    /// Ask only for the state of the server itself, and print its answer: for supervisors and containers. The exit code is
    /// 0 whatever becomes of sources, sinks and exports
    #[arg(long, value_enum, value_name = "STATE", conflicts_with_all = ["format", "watch"])]
    probe: Option<Probe>,
}

/// State of a server, or of its folder.
struct NodeStatus {
    /// Feeds with their states.
    feeds: Vec<Value>,
    /// Sinks with their states, for those who may see them.
    sinks: Vec<Value>,
    /// Log of the node's cluster; null for a single server, and for those who may not see it.
    cluster: Value,
    /// Faults of the node.
    problems: Vec<String>,
}

pub(crate) async fn status(args: &StatusArgs) -> Result<Exit, CliError> {
    if let Some(state) = args.probe {
        return probe(&args.target, state).await;
    }
    if args.watch {
        return watch(args).await;
    }
    let status = read(args.target.open().await?).await?;
    written(show(args, &status))?;
    Ok(if status.problems.is_empty() { Exit::Done } else { Exit::Failed })
}

/// Prints the status again and again, until interrupted or nobody reads it any more.
async fn watch(args: &StatusArgs) -> Result<Exit, CliError> {
    // The first failure tells of a wrong command. Later ones pass, such as while the server restarts.
    let (mut status, mut origin) = read_target(&args.target, None).await?;
    loop {
        if std::io::stdout().is_terminal() {
            print!("{CLEAR}");
        }
        if let Err(e) = show(args, &status) {
            written(Err(e))?;
            return Ok(if status.problems.is_empty() { Exit::Done } else { Exit::Failed });
        }
        let mut was_cut_off = false;
        (status, origin) = loop {
            tokio::time::sleep(INTERVAL).await;
            match read_target(&args.target, Some(origin)).await {
                Ok(found) => break found,
                Err(e) if !std::mem::replace(&mut was_cut_off, true) => {
                    eprintln!("towpath: {}; asking again until it answers", plain(&e.to_string()));
                }
                Err(_) => {}
            }
        };
    }
}

/// Origin of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusOrigin {
    Server,
    Folder,
}

/// Reads the status, and returns its origin. `last` is the origin of the status before this one.
///
/// Once a server was there, the folder is left to it: a command that had it open would keep the next server from starting.
async fn read_target(
    target: &TargetArgs,
    last: Option<StatusOrigin>,
) -> Result<(NodeStatus, StatusOrigin), CliError> {
    match target.find().await? {
        FoundTarget::Server(server) => Ok((read(PublishTarget::Server(server)).await?, StatusOrigin::Server)),
        FoundTarget::Folder(_) if last == Some(StatusOrigin::Server) => {
            Err(CliError::failed("the server stopped"))
        }
        FoundTarget::Folder(config) => {
            Ok((read(PublishTarget::Folder(open::engine(*config).await?)).await?, StatusOrigin::Folder))
        }
    }
}

/// Prints the status, and its problems to standard error.
fn show(args: &StatusArgs, status: &NodeStatus) -> std::io::Result<()> {
    let printed = match args.format {
        OutputFormat::Text => print(status, now_on_terminal()),
        OutputFormat::Json => print_json(status),
    };
    for problem in &status.problems {
        eprintln!("towpath: {}", plain(problem));
    }
    printed
}

/// Reads the status of a server, which knows the state of mirrors, or of a folder.
async fn read(target: PublishTarget) -> Result<NodeStatus, CliError> {
    let read = match &target {
        PublishTarget::Server(server) => {
            let (feeds, mut problems, cluster) = server.feeds().await?;
            let sinks = server.visible_sinks().await?;
            // A server without feeds of its own tells no problems in its list of feeds.
            for problem in sinks.iter().filter_map(sink::problem) {
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
            NodeStatus { feeds, sinks, cluster, problems }
        }
        PublishTarget::Folder(engine) => {
            let mut feeds = Vec::new();
            for feed in engine.feeds() {
                feeds.push(feed_json(engine, &feed).await?);
            }
            // The server looks every second; a command has no time for that.
            let failure = engine.store.failure().map(|failure| failure.reason);
            let failure = failure.map(|reason| format!("the store takes no writes: {reason}"));
            let problems = failure.into_iter().chain(node_problems(engine)).collect();
            let (sinks, cluster) = (sinks_json(engine).await?, cluster_json(engine).await);
            NodeStatus { feeds, sinks, cluster, problems }
        }
    };
    target.close().await;
    Ok(read)
}

fn print_json(status: &NodeStatus) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let NodeStatus { feeds, sinks, cluster, problems } = status;
    let object = json!({ "feeds": feeds, "sinks": sinks, "cluster": cluster, "problems": problems });
    writeln!(out, "{object}")?;
    out.flush()
}

/// Formats the protocol of a mirror, and what pushes a source.
fn by(source: &Value) -> String {
    let protocol =
        source["protocol"].as_str().map_or_else(String::new, |protocol| format!(", by {protocol}"));
    let push = match (source["push"]["state"].as_str(), source["push"]["problem"].as_str()) {
        (Some("subscribed"), _) => ", pushed".to_owned(),
        (_, Some(problem)) => format!(", not pushed: {problem}"),
        _ => String::new(),
    };
    protocol + &push
}

/// Prints tables. With the present time, their times are relative.
fn print(status: &NodeStatus, now: Option<Timestamp>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    print_feeds(&mut out, &status.feeds, now)?;
    if !status.sinks.is_empty() {
        let time = |time: &str| shown(time, now);
        write!(out, "\n{}", sink::table(&status.sinks, time))?;
    }
    if let Some(cluster) = cluster_line(&status.cluster, now) {
        writeln!(out, "\n{cluster}")?;
    }
    out.flush()
}

/// Describes the log of the node's cluster; `None` for a single server.
fn cluster_line(cluster: &Value, now: Option<Timestamp>) -> Option<String> {
    let number = |key: &str| cluster[key].as_u64();
    let (first, last, bytes, level) = (number("first")?, number("last")?, number("bytes")?, number("level")?);
    let snapshot = match (cluster["snapshot"]["sequence"].as_u64(), cluster["snapshot"]["made"].as_str()) {
        (Some(sequence), Some(made)) => format!("last snapshot at {sequence}, {}", shown(made, now)),
        _ => "no snapshot".to_owned(),
    };
    let behind = last.saturating_sub(number("applied")?);
    let behind = if behind > 0 { format!("; this node is {behind} behind") } else { String::new() };
    Some(format!(
        "cluster log: messages {first} to {last}, {}; feature level {level}; {snapshot}{behind}",
        HumanBytes(bytes)
    ))
}

/// Describes a hub of others that was not told of the feed's last change.
fn hub_problem(hub: &Value) -> Option<String> {
    Some(format!("hub {} is not told: {}", hub["url"].as_str()?, hub["error"].as_str()?))
}

fn print_feeds(out: &mut impl Write, feeds: &[Value], now: Option<Timestamp>) -> std::io::Result<()> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        // A filter has no log of its own.
        Value::Null => "-".to_owned(),
        value => value.to_string(),
    };
    let width = feeds.iter().map(|feed| text(&feed["id"]).len()).max().unwrap_or(0).max(4);
    let times = if now.is_some() { 13 } else { 28 };
    let painter = Painter::of(&std::io::stdout());
    writeln!(out, "{:width$}  {:>9} {:>9}  {:times$}  source", "feed", "position", "items", "modified")?;
    for feed in feeds {
        let modified = feed["modified"].as_str().map_or_else(|| "-".to_owned(), |time| shown(time, now));
        let source = match &feed["source"] {
            Value::Null => "published".to_owned(),
            source => match (source["error"]["message"].as_str(), source["last_ok"].as_str()) {
                (Some(message), _) => format!("{}: {message}", text(&source["error"]["code"])),
                (None, Some(at)) if now.is_some() => format!("ok {}{}", shown(at, now), by(source)),
                (None, Some(at)) => format!("ok at {at}{}", by(source)),
                (None, None) => "not asked yet".to_owned(),
            },
        };
        let mut source = source;
        let is_failing = feed["source"]["error"].is_object() || feed["failure"].is_string();
        let hubs = feed["hubs"].as_array().into_iter().flatten().filter_map(hub_problem);
        for problem in feed["failure"].as_str().map(str::to_owned).into_iter().chain(hubs) {
            source = format!("{source}; {problem}");
        }
        let (id, seq, live) = (text(&feed["id"]), text(&feed["seq"]), text(&feed["live"]));
        let source = plain(&source);
        let source = if is_failing { painter.paint(Colour::Red, &source) } else { source };
        writeln!(out, "{id:width$}  {seq:>9} {live:>9}  {modified:times$}  {source}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_a_cluster_is_one_line() {
        let mut cluster =
            json!({ "first": 17, "last": 400, "applied": 400, "bytes": 2048, "level": 2, "snapshot": null });
        let line = "cluster log: messages 17 to 400, 2.00 KiB; feature level 2; no snapshot";
        assert_eq!(cluster_line(&cluster, None).as_deref(), Some(line));
        cluster["snapshot"] = json!({ "sequence": 380, "made": "2026-03-01T10:00:00Z" });
        cluster["applied"] = 390.into();
        let line = cluster_line(&cluster, Some("2026-03-01T10:05:30Z".parse().unwrap())).unwrap();
        assert!(line.ends_with("last snapshot at 380, 5 min ago; this node is 10 behind"), "{line}");
        assert_eq!(cluster_line(&Value::Null, None), None);
    }
}
