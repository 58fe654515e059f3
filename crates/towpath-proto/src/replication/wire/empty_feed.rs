//! The problem document of an empty feed.

use crate::format::DocumentLimits;
use crate::format::budget::Budget;
use crate::format::json_value::read_value;
use serde_json::{Value, json};

/// The `type` of the problem document (RFC 9457) of an empty feed.
///
/// An empty feed answers 404, because a multipart page cannot be empty.
pub const EMPTY_FEED: &str = "urn:towpath:empty-feed";

/// Returns the problem document of an empty feed. Send it with 404 as `application/problem+json`.
pub fn empty_feed() -> Value {
    json!({
        "type": EMPTY_FEED,
        "title": "The feed is empty",
        "status": 404,
        "detail": "Nothing has been published yet, and a multipart page cannot be empty. Ask again later.",
        "empty": true,
    })
}

/// Returns true if a problem document states that the feed is empty.
pub(in crate::replication) fn says_empty(body: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(body) else { return false };
    // Any response may come here, and a small one could take a hundred times its size.
    let mut budget = Budget::new(text.len(), DocumentLimits::default());
    let Ok(problem) = read_value(text, &mut budget) else { return false };
    // Either is enough, so that other publishers can state it without our URN.
    problem.get("type").and_then(Value::as_str) == Some(EMPTY_FEED)
        || problem.get("empty") == Some(&Value::Bool(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problem_document_states_that_the_feed_is_empty() {
        assert!(says_empty(empty_feed().to_string().as_bytes()));
        assert!(!says_empty(b"{\"status\":404}") && !says_empty(b"<html>"));
    }
}
