//! `towpath import`: a file's items, in batches, with a progress bar.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde::de::IgnoredAny;
use towpath_proto::diff::{Guard, Known, Listing, diff};
use towpath_proto::format::{self, ReadOptions};
use towpath_proto::line::Line;
use towpath_proto::{FeedId, NewChange};

use super::CliError;
use super::publish::Target;

/// Lines of a batch: the server appends each as one.
const BATCH_LINES: usize = 1000;
/// Bytes after which a batch is sent, however few its lines.
const BATCH_BYTES: usize = 4 << 20;
/// How long a first line may be to be looked at whole, in bytes: as long as the server lets a batch be.
const MAX_FIRST_LINE: u64 = 64 << 20;
/// The largest document that is not NDJSON, in bytes.
const MAX_DOCUMENT: u64 = 1 << 30;

/// Publishes a file's items and returns how many there were. Nothing of a batch with a bad line is published;
/// the batches before it are.
pub(crate) async fn import(target: &Target, feed: &FeedId, file: &Path) -> Result<usize, CliError> {
    let failed = |e: std::io::Error| CliError::failed(format!("cannot read {}: {e}", file.display()));
    let (input, length) = open(file).map_err(failed)?;
    let bar = progress(length);
    let mut input = BufReader::with_capacity(1 << 20, bar.wrap_read(input));
    let start = first_line(&mut input, MAX_FIRST_LINE).map_err(failed)?;
    let is_lines = is_lines(&start);
    let input = Cursor::new(start).chain(input);
    let imported = if is_lines {
        import_lines(target, feed, file, input).await
    } else {
        import_document(target, feed, file, input).await
    };
    bar.finish_and_clear();
    imported
}

fn open(file: &Path) -> std::io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    if file == Path::new("-") {
        return Ok((Box::new(std::io::stdin()), None));
    }
    let opened = File::open(file)?;
    let length = opened.metadata()?.len();
    Ok((Box::new(opened), Some(length)))
}

fn progress(length: Option<u64>) -> ProgressBar {
    let Some(length) = length else { return ProgressBar::new_spinner() };
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(length);
    style.map(|style| bar.clone().with_style(style)).unwrap_or(bar)
}

/// The input up to the end of its first line that is not blank, however many pieces it comes in; no more than
/// `most` bytes.
fn first_line(input: &mut impl BufRead, most: u64) -> std::io::Result<Vec<u8>> {
    let mut input = input.take(most);
    let (mut start, mut from) = (Vec::new(), 0);
    while input.read_until(b'\n', &mut start)? > 0 && start[from..].trim_ascii().is_empty() {
        from = start.len();
    }
    Ok(start)
}

/// What a JSON Feed has and a line of the item format has not.
#[derive(Deserialize)]
struct FeedFields {
    version: Option<IgnoredAny>,
    items: Option<IgnoredAny>,
}

/// Whether the input, of which `start` is the first line, begins with a line of the item format: an object on one line
/// and nothing that makes it a JSON Feed. Empty input is lines too: none.
fn is_lines(start: &[u8]) -> bool {
    let first = start.trim_ascii();
    if !first.starts_with(b"{") {
        return first.is_empty();
    }
    if let Ok(line) = serde_json::from_slice::<FeedFields>(first) {
        return line.version.is_none() && line.items.is_none();
    }
    // One that is cut off or too long: what only an item line begins with decides.
    !start.ends_with(b"\n") && (first.starts_with(b"{\"feed\":") || first.starts_with(b"{\"op\":"))
}

async fn import_lines(
    target: &Target,
    feed: &FeedId,
    file: &Path,
    mut input: impl BufRead,
) -> Result<usize, CliError> {
    let (mut imported, mut number, mut bytes) = (0, 0_usize, 0);
    let (mut batch, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line);
        let end = read.map_err(|e| CliError::failed(format!("cannot read {}: {e}", file.display())))? == 0;
        number += 1;
        if !line.trim_ascii().is_empty() {
            let change = Line::parse(&line).and_then(Line::into_change);
            let place = |e| CliError::failed(format!("{}, line {number}: {e}", file.display()));
            batch.push(change.map_err(place)?);
            bytes += line.len();
        }
        if end || batch.len() == BATCH_LINES || bytes >= BATCH_BYTES {
            imported += batch.len();
            if !batch.is_empty() {
                target.append(feed, std::mem::take(&mut batch)).await?;
            }
            bytes = 0;
        }
        if end {
            return Ok(imported);
        }
    }
}

async fn import_document(
    target: &Target,
    feed: &FeedId,
    file: &Path,
    input: impl Read,
) -> Result<usize, CliError> {
    let place = |e: &dyn std::fmt::Display| CliError::failed(format!("{}: {e}", file.display()));
    let mut bytes = Vec::new();
    input.take(MAX_DOCUMENT).read_to_end(&mut bytes).map_err(|e| place(&e))?;
    let document = format::read(&bytes, &ReadOptions::default()).map_err(|e| place(&e))?;
    for problem in &document.problems {
        eprintln!("{}: left out: {problem}", file.display());
    }
    // Against nothing: every item once, oldest first.
    let found = diff(&Known::new(), document.items, true, Listing::Window, Guard::default())
        .map_err(|e| place(&e))?;
    for problem in &found.problems {
        eprintln!("{}: left out: {problem}", file.display());
    }
    let count = found.changes.len();
    let mut changes: Vec<NewChange> = found.changes;
    while !changes.is_empty() {
        let rest = changes.split_off(changes.len().min(BATCH_LINES));
        target.append(feed, std::mem::replace(&mut changes, rest)).await?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(input: &[u8]) -> bool {
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
            assert!(judged(lines.as_bytes()), "{lines}");
        }
        for document in
            ["<rss/>", "[]", "{\n\"items\":[]}", "{\"version\":\"x\"}", "{\"items\":[]}\n", "{\"op\":\n1}"]
        {
            assert!(!judged(document.as_bytes()), "{document}");
        }
        let long = format!("{{\"id\":\"a\",\"item\":{{\"title\":\"{}\"}}}}\n", "x".repeat(1 << 20));
        assert!(judged(long.as_bytes()));
    }

    #[test]
    fn no_more_is_looked_at_than_a_line_may_have() {
        for endless in [b'{', b'\n'] {
            let mut endless = BufReader::new(std::io::repeat(endless));
            assert_eq!(first_line(&mut endless, 100_000).unwrap().len(), 100_000);
        }
    }
}
