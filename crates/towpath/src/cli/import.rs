//! `towpath import`: publishes a file's items in batches, with a progress bar.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use towpath_proto::diff::{DocumentOrder, Guard, KnownItems, Listing, diff};
use towpath_proto::format::{self, ReadOptions};
use towpath_proto::line::{Line, ResetLine};
use towpath_proto::{FeedId, NewChange};

use super::error::CliError;
use super::progress::LateBar;
use super::publish_target::PublishTarget;
use super::receipt::Receipt;
use crate::plural::counted;

/// Maximum number of lines in a batch; the server appends each batch atomically.
const BATCH_LINES: usize = 1000;
/// Size in bytes at which a batch is sent before it is full.
const BATCH_BYTES: usize = 4 << 20;
/// Maximum size in bytes of a first line, for format detection: the server's limit of a batch.
const MAX_FIRST_LINE: u64 = 64 << 20;
/// Maximum size in bytes of a document other than NDJSON.
const MAX_DOCUMENT: u64 = 1 << 30;

/// Message about a line that says that the followed feed began anew.
const RESET: &str = "warning: the followed feed began anew; items that it no longer has are not deleted here";

/// Result of an import.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    pub(crate) receipt: Receipt,
    /// Number of items of the file that were left out; each was told.
    pub(crate) left_out: usize,
}

/// Publishes a file's items.
///
/// A batch with an invalid line is rejected as a whole; the batches before it stay published.
pub(crate) async fn import(target: &PublishTarget, feed: &FeedId, file: &Path) -> Result<Imported, CliError> {
    let failed = |e: std::io::Error| CliError::failed(format!("cannot read {}: {e}", file.display()));
    let (input, length) = open(file).map_err(failed)?;
    let late = progress(length);
    let bar = late.counter();
    // The first line decides the format, so it is read ahead and put back in front.
    let mut input = BufReader::with_capacity(1 << 20, bar.wrap_read(input));
    let start = first_line(&mut input, MAX_FIRST_LINE).map_err(failed)?;
    let is_lines = is_lines(&start);
    let input = Cursor::new(start).chain(input);
    let mut imported = Imported::default();
    let done = if is_lines {
        import_lines(target, feed, file, input, &mut imported.receipt).await
    } else {
        import_document(target, feed, file, input, &mut imported).await
    };
    match (done, imported.receipt.appended + imported.receipt.unchanged) {
        (Ok(()), _) => Ok(imported),
        (Err(e), 0) => Err(e),
        (Err(e), count) => {
            let message = format!("{e}; published before it: {}", counted(count, "change"));
            Err(CliError { message, ..e })
        }
    }
}

fn open(file: &Path) -> std::io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    if file == Path::new("-") {
        return Ok((Box::new(std::io::stdin()), None));
    }
    let opened = File::open(file)?;
    let length = opened.metadata()?.len();
    Ok((Box::new(opened), Some(length)))
}

fn progress(length: Option<u64>) -> LateBar {
    // The length of standard input is unknown.
    let Some(length) = length else { return LateBar::new("{spinner} {bytes}, {bytes_per_sec}, {elapsed}") };
    let late = LateBar::new("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    late.counter().set_length(length);
    late
}

/// Reads up to the end of the first line that is not blank, at most `max` bytes.
fn first_line(input: &mut impl BufRead, max: u64) -> std::io::Result<Vec<u8>> {
    let mut input = input.take(max);
    let (mut start, mut from) = (Vec::new(), 0);
    while input.read_until(b'\n', &mut start)? > 0 && start[from..].trim_ascii().is_empty() {
        from = start.len();
    }
    Ok(start)
}

/// Members that a JSON Feed has and a line of the item format lacks.
#[derive(Deserialize)]
struct FeedFields {
    version: Option<IgnoredAny>,
    items: Option<IgnoredAny>,
}

/// Returns true if the input, which begins with `start`, is NDJSON: an object on one line that is not a JSON Feed.
///
/// Empty input counts as NDJSON without lines.
fn is_lines(start: &[u8]) -> bool {
    let first = start.trim_ascii();
    if !first.starts_with(b"{") {
        return first.is_empty();
    }
    // Parses without building values: a first line may have 64 MiB.
    if let Ok(line) = serde_json::from_slice::<FeedFields>(first) {
        return line.version.is_none() && line.items.is_none();
    }
    // Truncated or too long to parse: its first member decides.
    !start.ends_with(b"\n") && (first.starts_with(b"{\"feed\":") || first.starts_with(b"{\"op\":"))
}

async fn import_lines(
    target: &PublishTarget,
    feed: &FeedId,
    file: &Path,
    mut input: impl BufRead,
    imported: &mut Receipt,
) -> Result<(), CliError> {
    let (mut number, mut bytes) = (0_usize, 0);
    let (mut batch, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line);
        let end = read.map_err(|e| CliError::failed(format!("cannot read {}: {e}", file.display())))? == 0;
        number += 1;
        if ResetLine::is(&line) {
            eprintln!("{}, line {number}: {RESET}", file.display());
        } else if !line.trim_ascii().is_empty() {
            let place = |e: &dyn std::fmt::Display| {
                CliError::failed(format!("{}, line {number}: {e}", file.display()))
            };
            let parsed = Line::parse(&line).map_err(|e| place(&e))?;
            if parsed.publish_at.is_some() {
                // Ignored, it would publish at once what was meant for later.
                let what =
                    format!("publish_at is for a running server: POST the line to /feeds/{feed}/items");
                return Err(place(&what));
            }
            batch.push(parsed.into_change().map_err(|e| place(&e))?);
            bytes += line.len();
        }
        // Large lines fill a batch by size: the server limits the body of a request.
        if end || batch.len() == BATCH_LINES || bytes >= BATCH_BYTES {
            if !batch.is_empty() {
                imported.add(target.append(feed, std::mem::take(&mut batch)).await?);
            }
            bytes = 0;
        }
        if end {
            return Ok(());
        }
    }
}

async fn import_document(
    target: &PublishTarget,
    feed: &FeedId,
    file: &Path,
    input: impl Read,
    imported: &mut Imported,
) -> Result<(), CliError> {
    let place = |e: &dyn std::fmt::Display| CliError::failed(format!("{}: {e}", file.display()));
    let mut bytes = Vec::new();
    input.take(MAX_DOCUMENT).read_to_end(&mut bytes).map_err(|e| place(&e))?;
    let mut document = format::read(&bytes, &ReadOptions::default()).map_err(|e| place(&e))?;
    for problem in &document.problems {
        eprintln!("{}: {problem}", file.display());
    }
    document.drop_outdated();
    // A diff against an empty feed lists every item once, oldest first.
    let found = diff(
        &KnownItems::new(),
        document.items,
        DocumentOrder::NewestFirst,
        Listing::Window,
        Guard::default(),
    )
    .map_err(|e| place(&e))?;
    for problem in &found.problems {
        eprintln!("{}: left out: {problem}", file.display());
    }
    imported.left_out = document.counts.left_out + found.problems.len();
    let mut changes: Vec<NewChange> = found.changes;
    changes.extend(document.deleted.into_iter().map(|entry| NewChange::delete(entry.id)));
    while !changes.is_empty() {
        let rest = changes.split_off(changes.len().min(BATCH_LINES));
        imported.receipt.add(target.append(feed, std::mem::replace(&mut changes, rest)).await?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected(input: &[u8]) -> bool {
        is_lines(&first_line(&mut BufReader::with_capacity(3, input), MAX_FIRST_LINE).unwrap())
    }

    #[test]
    fn the_first_line_decides() {
        for lines in [
            "",
            " \n\r\n",
            "{\"id\":\"a\"}",
            "\n \n{\"id\":\"a\"}\n{",
            "{\"id\":\"a\",\"item\":{\"items\":[]}}\nnonsense",
            "{\"op\":\"delete\",\"id\":",
        ] {
            assert!(detected(lines.as_bytes()), "{lines}");
        }
        for document in
            ["<rss/>", "[]", "{\n\"items\":[]}", "{\"version\":\"x\"}", "{\"items\":[]}\n", "{\"op\":\n1}"]
        {
            assert!(!detected(document.as_bytes()), "{document}");
        }
        let long = format!("{{\"id\":\"a\",\"item\":{{\"title\":\"{}\"}}}}\n", "x".repeat(1 << 20));
        assert!(detected(long.as_bytes()));
    }

    #[test]
    fn format_detection_reads_a_limited_number_of_bytes() {
        for endless in [b'{', b'\n'] {
            let mut endless = BufReader::new(std::io::repeat(endless));
            assert_eq!(first_line(&mut endless, 100_000).unwrap().len(), 100_000);
        }
    }
}
