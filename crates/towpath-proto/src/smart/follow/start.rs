//! Start positions, resets and base URLs of a follower.

use serde_json::Value;
use url::Url;

use super::SmartFollower;
use super::state::SmartFollowState;
use crate::follow::{Event, FeedReset, FollowError};
use crate::smart::wire::spec::{FeedOrder, PositionSpec};

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

/// Returns the position spec of user input: with its type, or a bare cursor.
pub(super) fn position_spec(position: &str) -> String {
    match PositionSpec::parse(position) {
        Ok(spec) => spec.to_string(),
        Err(_) => format!("cursor:{position}"),
    }
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
