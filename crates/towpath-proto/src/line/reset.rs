//! Line of a feed that began anew.

use serde::{Deserialize, Serialize};

/// Line that says that a feed began anew: its items so far are void, and those that it has follow.
///
/// ```
/// use towpath_proto::line::ResetLine;
///
/// let line = serde_json::to_string(&ResetLine::new("http://example.com/".into()))?;
/// assert_eq!(line, r#"{"feed":"http://example.com/","op":"reset"}"#);
/// assert!(ResetLine::is(line.as_bytes()) && !ResetLine::is(br#"{"op":"delete","id":"reset"}"#));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetLine {
    /// Id or URL of the feed.
    #[serde(default)]
    pub feed: String,
    op: ResetOp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ResetOp {
    Reset,
}

impl ResetLine {
    /// Creates the line of a feed.
    pub fn new(feed: String) -> Self {
        Self { feed, op: ResetOp::Reset }
    }

    /// Returns whether a line says so.
    pub fn is(line: &[u8]) -> bool {
        // Most lines are changes, and large: the search costs less than a parse.
        memchr::memmem::find(line, br#""reset""#).is_some() && serde_json::from_slice::<Self>(line).is_ok()
    }
}
