//! `towpath tail`: the last changes of a feed, and then each as it comes.

use std::io::Write as _;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use towpath_proto::smart::publish::lines;
use towpath_proto::smart::spec::OrderBy;
use towpath_proto::{FeedId, Op};
use towpath_store::{ItemOrder, ReadLimit, SeqRange};

use super::error::{CliError, Exit};
use super::publish_target::{PublishTarget, TargetArgs, feed_id, known_feed};
use super::server_commands::{ServerCommands, position_of};
use super::style::{Colour, OutputFormat, Painter, written};
use super::terminal::{plain, visible_json};
use crate::engine::Engine;
use crate::protocols::smart::settings;

/// Seconds that the server holds a request while nothing comes.
const HOLD: u64 = 50;
/// Time until a server that does not answer is asked again.
const RETRY: Duration = Duration::from_secs(2);
/// Most bytes that are read from a folder.
const MAX_BYTES: usize = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// Id of the feed
    feed: String,
    /// Number of changes to begin with
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    /// End after these, and do not wait for more
    #[arg(long)]
    once: bool,
    /// Form of the output; `json` is the lines of `towpath follow`
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

/// Prints the changes of a feed.
pub(crate) async fn tail(args: TailArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let target = args.target.open().await?;
    let tailed = match &target {
        PublishTarget::Server(server) => from_server(&args, server, &feed).await,
        PublishTarget::Folder(engine) => from_folder(&args, engine, &feed).await,
    };
    target.close().await;
    tailed.map(|()| Exit::Done)
}

async fn from_server(args: &TailArgs, server: &ServerCommands, feed: &FeedId) -> Result<(), CliError> {
    let mut since = None;
    if args.lines > 0 {
        // Latest first, so that deletions are among them; `last` leaves those out.
        let latest = format!("order=-modified&as=line&timeout=0&max={}", args.lines);
        let mut changes = server.lines(feed, &latest).await?;
        changes.reverse();
        since = changes.last().and_then(|change| position_of(change));
        if let Err(e) = print(args.format, &changes) {
            return written(Err(e));
        }
    }
    if args.once {
        return Ok(());
    }
    let mut since = match since {
        Some(since) => since,
        None => server.end_of(feed).await?,
    };
    let mut is_cut_off = false;
    loop {
        let query = format!("as=line&timeout={HOLD}&since={since}");
        let changes = match server.lines(feed, &query).await {
            Ok(changes) => changes,
            // A refusal is the server's word; a server that restarts says none.
            Err(e) if e.is_refusal => return Err(e),
            Err(e) => {
                if !std::mem::replace(&mut is_cut_off, true) {
                    eprintln!("towpath: {e}; asking again until it answers");
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        is_cut_off = false;
        if let Some(position) = changes.last().and_then(|change| position_of(change)) {
            since = position;
        }
        if let Err(e) = print(args.format, &changes) {
            return written(Err(e));
        }
    }
}

async fn from_folder(args: &TailArgs, engine: &Engine, id: &FeedId) -> Result<(), CliError> {
    let feed = known_feed(engine, id)?;
    let range = SeqRange { after: None, before: None, descending: true };
    let limit = ReadLimit { items: args.lines, bytes: MAX_BYTES };
    let mut changes = match args.lines {
        // A read has one change at least.
        0 => Vec::new(),
        _ => engine.store.items(feed.log(), ItemOrder::Modified, range, limit).await?,
    };
    changes.reverse();
    let mut printed = Vec::new();
    for change in &changes {
        let line = lines::line(settings(engine, &feed), OrderBy::Modified, change);
        printed.push(to_raw_value(&line).map_err(|e| CliError::failed(e.to_string()))?);
    }
    written(print(args.format, &printed))?;
    if !args.once {
        eprintln!("towpath: no server has the data folder open, so nothing more comes");
    }
    Ok(())
}

fn print(format: OutputFormat, changes: &[Box<RawValue>]) -> std::io::Result<()> {
    let stdout = std::io::stdout();
    let painter = Painter::of(&stdout);
    let mut out = stdout.lock();
    for change in changes {
        match format {
            OutputFormat::Json => {
                // The text, not a value: numbers, and members that repeat, stay as they are.
                out.write_all(&visible_json(change.get().as_bytes().to_vec()))?;
                out.write_all(b"\n")?;
            }
            OutputFormat::Text => {
                writeln!(out, "{}", line(&serde_json::from_str(change.get())?, painter))?;
            }
        }
    }
    out.flush()
}

/// Formats a change for people.
fn line(change: &Value, painter: Painter) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let op = text(&change["op"]);
    let colour = if op == Op::Delete.as_str() { Colour::Red } else { Colour::Green };
    // Whole seconds: when two changes were in one second, their order says the rest.
    let time: String = text(&change["modified"]).replace('T', " ").chars().take(19).collect();
    let title = match &change["item"]["title"] {
        Value::String(title) => format!("  {}", plain(title)),
        _ => String::new(),
    };
    let op = painter.paint(colour, &format!("{op:6}"));
    format!(
        "{}  {op}  {}{title}",
        painter.paint(Colour::Dim, &time),
        painter.paint(Colour::Bold, &plain(&text(&change["id"])))
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_for_people() {
        let change = json!({
            "op": "put", "id": "a\u{1b}", "modified": "2026-03-01T10:00:00.123Z", "item": { "title": "T" },
        });
        assert_eq!(line(&change, Painter::plain()), "2026-03-01 10:00:00  put     a\\u{1b}  T");
        let gone = json!({ "op": "delete", "id": "a", "modified": "2026-03-01T10:00:00Z" });
        assert_eq!(line(&gone, Painter::plain()), "2026-03-01 10:00:00  delete  a");
    }
}
