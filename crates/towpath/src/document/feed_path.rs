//! Segments of a path, and the feed that it belongs to.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::document::route_error::RouteError;

/// Returns the feed's name in the decoded segments of a path, if the path can be a feed's.
pub(crate) fn feed_in<'a>(segments: &[&'a str]) -> Option<&'a str> {
    match segments {
        ["diff", "source", feed, ..] | ["feeds" | "diff" | "archive", feed, ..] => Some(feed),
        _ => None,
    }
}

/// Splits a path into decoded segments.
pub(crate) fn segments(path: &str) -> Result<Vec<Cow<'_, str>>, RouteError> {
    let parts = path.strip_prefix('/').unwrap_or(path).split('/');
    // Decoded after the split: an encoded slash belongs to an item's id.
    let decode = |part| percent_decode_str(part).decode_utf8();
    parts.map(decode).collect::<Result<_, _>>().map_err(|_| RouteError::bad_request("the path is not UTF-8"))
}
