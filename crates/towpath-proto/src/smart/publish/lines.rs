//! Pages as lines of `docs/change-format.md`.

use super::page::PullPage;
use super::query::PullQuery;
use super::settings::FeedSettings;
use crate::change::Change;
use crate::line::{Line, ResetLine};
use crate::smart::wire::spec::OrderBy;

/// Media type of lines of JSON.
pub const LINES_TYPE: &str = "application/x-ndjson";

/// Returns the line of an item, as a page in the order `by` has it.
///
/// Its position is the item's cursor. It has no patch: a page leaves out versions that were replaced.
pub fn line(feed: &FeedSettings, by: OrderBy, change: &Change) -> Line {
    Line::of_state(&feed.name, change, feed.tag.cursor(by, by.position(change)))
}

pub(super) fn line_of_page(feed: &FeedSettings, by: OrderBy, page: &PullPage, change: &Change) -> Line {
    Line::of_state(&feed.name, change, page.cursor(&feed.tag, by, change))
}

/// Writes a page as lines, after the line of a reset if the page tells one.
pub fn lines(feed: &FeedSettings, query: &PullQuery, page: &PullPage) -> Vec<u8> {
    let mut out = Vec::new();
    if page.reset {
        push(&mut out, &ResetLine::new(feed.name.clone()));
    }
    for change in &page.changes {
        push(&mut out, &line_of_page(feed, query.order.by, page, change));
    }
    out
}

fn push(out: &mut Vec<u8>, line: &impl serde::Serialize) {
    // A line cannot fail to be written: all its keys are text, and the writer is a vector.
    let written = serde_json::to_writer(&mut *out, line);
    debug_assert!(written.is_ok());
    out.push(b'\n');
}
