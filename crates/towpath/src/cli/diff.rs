//! `towpath diff`: what differs between two versions of an item.

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};
use towpath_proto::change::Seq;
use towpath_proto::line::Line;
use towpath_proto::{FeedId, Item};

use super::error::{CliError, Exit};
use super::publish_target::{PublishTarget, TargetArgs, feed_id, known_feed};
use super::style::{Colour, OutputFormat, Painter, now_on_terminal, print_output, shown_time};
use super::terminal::plain;
use crate::engine::item_versions::{ItemVersion, ItemVersions, version, versions};
use crate::server::console::difference::{FieldDifference, LineKind, compare};

/// Most versions that are looked at for the one before the last.
// Each version is a read of the log, and a person looks at a few.
const VERSIONS: usize = 100;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Id of the feed
    feed: String,
    /// Id of the item
    id: String,
    /// Number of the change that made the old version [default: the one before the new version]
    old: Option<Seq>,
    /// Number of the change that made the new version [default: the latest]
    new: Option<Seq>,
    /// List the versions instead
    #[arg(long)]
    versions: bool,
    /// Form of the output
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    target: TargetArgs,
}

/// Prints what differs between two versions.
pub(crate) async fn diff(args: DiffArgs) -> Result<Exit, CliError> {
    let feed = feed_id(&args.feed)?;
    let target = args.target.open().await?;
    // Closed also after an error, so that the next command finds the folder free.
    let printed = compared(&args, &target, &feed).await;
    target.close().await;
    print_output(printed?)?;
    Ok(Exit::Done)
}

async fn compared(args: &DiffArgs, target: &PublishTarget, feed: &FeedId) -> Result<String, CliError> {
    let listed = list(target, feed, &args.id).await?;
    if args.versions {
        return Ok(match args.format {
            OutputFormat::Json => format!("{}\n", json!(listed)),
            OutputFormat::Text => list_text(&listed, now_on_terminal()),
        });
    }
    let latest = listed.versions.first().map(|version| version.seq);
    let new = args.new.or(latest).ok_or_else(|| CliError::failed("the item has no version"))?;
    let before =
        || listed.versions.iter().find(|version| version.seq == new).and_then(|version| version.previous);
    let Some(old) = args.old.or_else(before) else {
        return Err(CliError::failed(format!(
            "item {:?} of feed {feed} has one version, change {new}: there is nothing to compare it with",
            args.id
        )));
    };
    let (one, other) = (item(target, feed, &args.id, old).await?, item(target, feed, &args.id, new).await?);
    let differences = compare(&one, &other);
    Ok(match args.format {
        OutputFormat::Json => format!("{}\n", as_json(feed, &args.id, (old, new), &differences)),
        OutputFormat::Text => {
            let painter = Painter::of(&std::io::stdout());
            as_text((old, new), &listed.versions, &differences, painter, now_on_terminal())
        }
    })
}

async fn list(target: &PublishTarget, feed: &FeedId, id: &str) -> Result<ItemVersions, CliError> {
    match target {
        PublishTarget::Server(server) => server.versions(feed, id).await,
        PublishTarget::Folder(engine) => {
            let feed = known_feed(engine, feed)?;
            let latest = engine.store.latest(feed.log(), id).await?;
            let latest =
                latest.ok_or_else(|| CliError::failed(format!("feed {} has no item {id:?}", feed.id())))?;
            Ok(versions(engine.store.as_ref(), feed.log(), id, latest.seq, VERSIONS).await?)
        }
    }
}

/// Reads a version of an item. A deletion is an item without anything.
async fn item(target: &PublishTarget, feed: &FeedId, id: &str, seq: Seq) -> Result<Item, CliError> {
    match target {
        PublishTarget::Server(server) => {
            let line = server.version(feed, id, seq).await?;
            let change = Line::parse(&line).and_then(Line::into_change);
            Ok(change.map_err(|e| CliError::failed(format!("change {seq} of feed {feed}: {e}")))?.item)
        }
        PublishTarget::Folder(engine) => {
            let known = known_feed(engine, feed)?;
            let found = version(engine.store.as_ref(), known.log(), id, seq).await?;
            let missing = || {
                CliError::failed(if seq <= known.horizon() {
                    format!("change {seq} of feed {feed} is no longer kept")
                } else {
                    format!("change {seq} of feed {feed} is none of item {id:?}")
                })
            };
            Ok(found.ok_or_else(missing)?.item)
        }
    }
}

fn list_text(listed: &ItemVersions, now: Option<Timestamp>) -> String {
    let row = |version: &ItemVersion| {
        let previous = version.previous.map_or_else(|| "-".to_owned(), |seq| seq.to_string());
        let time = shown_time(&version.modified.to_string(), now);
        [version.seq.to_string(), version.op.as_str().to_owned(), time, previous]
    };
    let rows: Vec<_> = listed.versions.iter().map(row).collect();
    super::style::table(["change", "op", "modified", "before it"], &rows)
}

fn kind_name(kind: LineKind) -> &'static str {
    match kind {
        LineKind::Same => "same",
        LineKind::Removed => "removed",
        LineKind::Added => "added",
        LineKind::Skipped => "skipped",
    }
}

fn as_json(feed: &FeedId, id: &str, (old, new): (Seq, Seq), differences: &[FieldDifference]) -> Value {
    let field = |field: &FieldDifference| {
        let lines = field.lines.iter().map(|line| {
            let text: String = line.parts.iter().map(|(_, text)| text.as_str()).collect();
            json!({ "kind": kind_name(line.kind), "old": line.old, "new": line.new, "text": text })
        });
        json!({ "field": field.name, "lines": lines.collect::<Vec<_>>(), "is_cut": field.is_cut })
    };
    let fields: Vec<Value> = differences.iter().map(field).collect();
    json!({ "feed": feed, "id": id, "old": old, "new": new, "fields": fields })
}

fn as_text(
    (old, new): (Seq, Seq),
    listed: &[ItemVersion],
    differences: &[FieldDifference],
    painter: Painter,
    now: Option<Timestamp>,
) -> String {
    let about = |seq: Seq| {
        let known = listed.iter().find(|version| version.seq == seq);
        let time = known.map(|version| shown_time(&version.modified.to_string(), now));
        time.map_or_else(|| format!("change {seq}"), |time| format!("change {seq}, {time}"))
    };
    if differences.is_empty() {
        return format!("{} and {} have the same item\n", about(old), about(new));
    }
    let mut text = format!(
        "{}\n{}\n",
        painter.paint(Colour::Red, &format!("--- {}", about(old))),
        painter.paint(Colour::Green, &format!("+++ {}", about(new)))
    );
    for field in differences {
        text.push_str(&format!("{}\n", painter.paint(Colour::Cyan, &format!("@@ {}", field.name))));
        for line in &field.lines {
            // Text of publishers must not steer the terminal.
            let whole: String = line.parts.iter().map(|(_, part)| plain(part)).collect();
            let shown = match line.kind {
                LineKind::Same => format!("  {whole}"),
                LineKind::Skipped => painter.paint(Colour::Dim, "  …"),
                LineKind::Removed => painter.paint(Colour::Red, &format!("- {whole}")),
                LineKind::Added => painter.paint(Colour::Green, &format!("+ {whole}")),
            };
            text.push_str(shown.trim_end());
            text.push('\n');
        }
        if field.is_cut {
            text.push_str(&format!("{}\n", painter.paint(Colour::Dim, "  the rest is too long to compare")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_compared_by_line() {
        let item = |title: &str| Item { title: Some(title.into()), ..Item::new("a") };
        let differences = compare(&item("Ten boats"), &item("Ten ships"));
        let text = as_text((3, 7), &[], &differences, Painter::plain(), None);
        assert_eq!(text, "--- change 3\n+++ change 7\n@@ title\n- Ten boats\n+ Ten ships\n");
        let none = as_text((3, 7), &[], &[], Painter::plain(), None);
        assert_eq!(none, "change 3 and change 7 have the same item\n");
        let json = as_json(&FeedId::new("aa").unwrap(), "a", (3, 7), &differences);
        assert_eq!(
            json["fields"][0]["lines"][1],
            json!({ "kind": "added", "old": null, "new": 1, "text": "Ten ships" })
        );
    }
}
