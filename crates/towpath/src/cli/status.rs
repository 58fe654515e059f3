//! `towpath status`: prints feeds, positions and source health.

use std::io::Write as _;

use serde_json::Value;

use super::error::{CliError, Exit};
use super::publish_target::{PublishTarget, TargetArgs};
use super::terminal::plain;
use crate::source::status::{feed_json, node_problems};

pub(crate) async fn status(args: &TargetArgs) -> Result<Exit, CliError> {
    // Asks the server if one runs: it knows the state of mirrors and has the folder locked.
    let target = args.open().await?;
    let (feeds, problems) = match &target {
        PublishTarget::Server(server) => server.feeds().await?,
        PublishTarget::Folder(engine) => {
            let mut feeds = Vec::new();
            for feed in engine.feeds() {
                feeds.push(feed_json(engine, &feed).await?);
            }
            // The server looks every second; a command has no time for that.
            let failure = engine.store.failure().map(|failure| failure.reason);
            let failure = failure.map(|reason| format!("the store takes no writes: {reason}"));
            (feeds, failure.into_iter().chain(node_problems(engine)).collect())
        }
    };
    target.close().await;
    // A closed standard output, as with `head`, is not an error.
    let _ = print(&feeds);
    for problem in &problems {
        eprintln!("towpath: {}", plain(problem));
    }
    Ok(if problems.is_empty() { Exit::Done } else { Exit::Failed })
}

/// Formats the protocol of a mirror.
fn by(source: &Value) -> String {
    source["protocol"].as_str().map_or_else(String::new, |protocol| format!(", by {protocol}"))
}

fn print(feeds: &[Value]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let width = feeds.iter().map(|feed| text(&feed["id"]).len()).max().unwrap_or(0).max(4);
    writeln!(out, "{:width$}  {:>9} {:>9}  {:28}  source", "feed", "position", "items", "modified")?;
    for feed in feeds {
        let modified = feed["modified"].as_str().unwrap_or("-");
        let source = match &feed["source"] {
            Value::Null => "published".to_owned(),
            source => match (source["error"]["message"].as_str(), source["last_ok"].as_str()) {
                (Some(message), _) => format!("{}: {message}", text(&source["error"]["code"])),
                (None, Some(at)) => format!("ok at {at}{}", by(source)),
                (None, None) => "not asked yet".to_owned(),
            },
        };
        let source = match feed["failure"].as_str() {
            Some(failure) => format!("{source}; {failure}"),
            None => source,
        };
        let (id, seq, live) = (text(&feed["id"]), text(&feed["seq"]), text(&feed["live"]));
        writeln!(out, "{id:width$}  {seq:>9} {live:>9}  {modified:28}  {}", plain(&source))?;
    }
    out.flush()
}
