//! Start positions, resets and base URLs of a follower.

use serde_json::Value;
use strsim::damerau_levenshtein;
use url::Url;

use super::SmartFollower;
use super::state::SmartFollowState;
use crate::follow::{Event, FeedReset, FollowError, StartFrom, meant, no_start};
use crate::smart::wire::spec::{FeedOrder, PositionSpec, PositionSpecError};

/// Parameters of a range, which are not part of a base URL.
const RANGE: [&str; 5] = ["since", "until", "max", "timeout", "callback"];

impl SmartFollower {
    /// Reports that the publisher began anew. Its page begins at its start.
    pub(super) fn begin_anew(&mut self, url: &str) {
        let since = self.state.since.as_deref().unwrap_or_default();
        let reason = format!("{url}: the publisher began anew: its log does not know the position {since:?}");
        self.events.push_back(Event::Reset(FeedReset { feed: self.state.url.clone(), reason }));
        // Times and cursors of the log before mean nothing in this one.
        self.last_modified = None;
        self.returns.clear();
    }
}

/// Returns the base URL in the order to synchronise by ("the client should repeatedly poll a feed that is ordered by
/// modified time"), and the order of `url` if it is another.
pub(super) fn feed_url(url: &str) -> Result<(String, Option<FeedOrder>), FollowError> {
    let parsed = Url::parse(url).map_err(|e| FollowError::Usage(format!("{url:?} is not a URL: {e}")))?;
    // With a range most changes would never appear.
    if let Some(name) = RANGE.into_iter().find(|name| value(&parsed, name).is_some()) {
        return Err(FollowError::Usage(format!(
            "{url:?} has the parameter {name}, which a base URL cannot have"
        )));
    }
    let order = value(&parsed, "order").and_then(|order| FeedOrder::parse(&order));
    Ok((by_modified(&parsed), order.filter(|order| *order != FeedOrder::MODIFIED)))
}

/// Returns the base URL of a page's URL.
pub(super) fn base_of(page: &str) -> Option<String> {
    Some(by_modified(&Url::parse(page).ok()?))
}

/// Returns the value of a parameter.
pub(super) fn value(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Returns a feed's base URL in the order by modification. An order that the text does not define is left unchanged.
fn by_modified(url: &Url) -> String {
    let name = |pair: &str| pair.split_once('=').map_or(pair, |(name, _)| name).to_owned();
    let pairs = url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<&str> = pairs.filter(|pair| !RANGE.contains(&name(pair).as_str())).collect();
    match pairs.iter().position(|pair| name(pair) == "order") {
        // An order that only the publisher knows has no known replacement.
        Some(at) if pairs[at].strip_prefix("order=").and_then(FeedOrder::parse).is_none() => {}
        Some(at) => pairs[at] = "order=modified",
        None => pairs.push("order=modified"),
    }
    let mut base = url.clone();
    // A fragment never reaches a server, and would make two states of one feed.
    base.set_fragment(None);
    base.set_query(Some(&pairs.join("&")));
    base.to_string()
}

/// Returns true if two URLs have the same value of a parameter.
pub(super) fn agree(requested: &str, target: &str, name: &str) -> bool {
    let of = |url: &str| Url::parse(url).ok().and_then(|url| value(&url, name));
    of(requested) == of(target)
}

/// Start positions of a Smart Feed, for errors.
const POSITIONS: &str = "a cursor, or cursor:CURSOR for one that looks like something else, or id:ID";

/// Returns the position spec of user input: with its type, or a bare cursor.
///
/// # Errors
///
/// [`FollowError::Usage`] for what looks like a mistyped word, time or type. A publisher would take it for an unknown
/// cursor, and send everything.
pub(super) fn start_spec(position: &str) -> Result<String, FollowError> {
    let is_mistyped = match PositionSpec::parse(position) {
        Ok(spec) => return Ok(spec.to_string()),
        Err(PositionSpecError::Time(_)) => true,
        Err(PositionSpecError::Form(_)) => {
            meant(position).is_some() || matches!(position, "cursor:" | "id:" | "time:")
        }
        Err(PositionSpecError::Type(_)) => position.split_once(':').is_some_and(|(kind, _)| {
            meant(position).is_some()
                || ["cursor", "time"].iter().any(|known| damerau_levenshtein(kind, known) == 1)
        }),
    };
    if is_mistyped { Err(no_start(position, POSITIONS)) } else { Ok(format!("cursor:{position}")) }
}

/// Returns the position after a publisher's cursor: bare, or with its type if it would be read as something else.
pub(super) fn position_of(cursor: &str) -> String {
    let spec = PositionSpec::Cursor(cursor.to_owned()).to_string();
    let is_position = matches!(StartFrom::parse(cursor), Ok(StartFrom::Position(_)));
    if is_position && start_spec(cursor).as_ref() == Ok(&spec) { cursor.to_owned() } else { spec }
}

/// Returns the position of a checkpoint. A state of another feed or protocol is the user's error.
pub(super) fn resume(url: &str, state: Value) -> Result<Option<String>, FollowError> {
    let usage =
        |reason: String| FollowError::Usage(format!("the state cannot be used for {url:?}: {reason}"));
    let state: SmartFollowState = serde_json::from_value(state).map_err(|e| usage(e.to_string()))?;
    if state.protocol != "smart" {
        return Err(usage(format!("it is of the protocol {:?}", state.protocol)));
    }
    // Cursors mean nothing to another feed.
    if state.url != url {
        return Err(usage(format!("it is of {:?}", state.url)));
    }
    Ok(state.since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_start_positions_are_refused() {
        for text in [
            "begining",
            "Now",
            "2024-13-01",
            "2024-01-01T10:00:00",
            "1h",
            "curser:a",
            "tme:1",
            "cursor:",
            "time:noon",
        ] {
            let error = start_spec(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("cursor:CURSOR"), "{error}");
        }
    }

    #[test]
    fn a_position_is_read_as_the_cursor_that_it_was_made_of() {
        for cursor in ["m12-0a1b2c3d4e", "1389003527_0_3678689003", "12", "a:b", "é"] {
            assert_eq!(position_of(cursor), cursor);
        }
        for cursor in [
            "1h",
            "now",
            "begining",
            "2024-01-01",
            "2024-01-01T10:00:00Z",
            "2024-01-01 10:00",
            "cursor:a",
            "id:1",
            "time:1",
            "time:noon",
        ] {
            let StartFrom::Position(position) = StartFrom::parse(&position_of(cursor)).unwrap() else {
                panic!("{cursor}")
            };
            assert_eq!(start_spec(&position).unwrap_or_default(), format!("cursor:{cursor}"), "{cursor}");
        }
    }
}
