//! `towpath import`: a file's items, in batches, with a progress bar.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
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
/// The largest document that is not NDJSON, in bytes.
const MAX_DOCUMENT: u64 = 1 << 30;

/// Publishes a file's items and returns how many there were. Nothing of a batch with a bad line is published;
/// the batches before it are.
pub(crate) async fn import(target: &Target, feed: &FeedId, file: &Path) -> Result<usize, CliError> {
    let failed = |e: std::io::Error| CliError::failed(format!("cannot read {}: {e}", file.display()));
    let (input, length) = open(file).map_err(failed)?;
    let bar = progress(length);
    let mut input = BufReader::with_capacity(1 << 20, bar.wrap_read(input));
    let start = input.fill_buf().map_err(failed)?;
    let imported = if is_lines(start) {
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

/// Whether the input begins with a line of the item format: an object on one line with an `id` and nothing that
/// makes it a JSON Feed. Empty input is lines too: none.
fn is_lines(start: &[u8]) -> bool {
    let start = start.trim_ascii_start();
    if start.is_empty() {
        return true;
    }
    let first = start.split(|b| *b == b'\n').next().unwrap_or_default();
    if let Ok(line) = serde_json::from_slice::<serde_json::Value>(first) {
        return line.is_object() && line.get("version").is_none() && line.get("items").is_none();
    }
    // A line longer than the buffer cannot be read yet: what an item line begins with decides.
    first.len() == start.len() && (first.starts_with(b"{\"feed\":") || first.starts_with(b"{\"op\":"))
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
