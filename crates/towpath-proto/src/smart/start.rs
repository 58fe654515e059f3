//! Where following begins, and at which address.

use serde_json::Value;
use url::Url;

use super::follow::State;
use super::spec::{Order, Spec};
use crate::follow::FollowError;

/// The parameters of a range, which are no part of a base URL.
const RANGE: [&str; 5] = ["since", "until", "max", "timeout", "callback"];

/// The base URL to ask, in the order to synchronise by ("the client should repeatedly poll a feed that is ordered by
/// modified time"); with the order that was given, where that is another.
pub(super) fn feed_url(url: &str) -> Result<(String, Option<Order>), FollowError> {
    let parsed =
        Url::parse(url).map_err(|e| FollowError::Usage(format!("{url:?} is not an address: {e}")))?;
    if let Some(name) = RANGE.into_iter().find(|name| value(&parsed, name).is_some()) {
        return Err(FollowError::Usage(format!("{url:?} has the parameter {name}, and a base URL does not")));
    }
    let order = value(&parsed, "order").and_then(|order| Order::parse(&order));
    Ok((by_modified(&parsed), order.filter(|order| *order != Order::MODIFIED)))
}

/// The base URL of a page that another address answered with.
pub(super) fn base_of(page: &str) -> Option<String> {
    Some(by_modified(&Url::parse(page).ok()?))
}

/// What an address has for a parameter.
fn value(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
}

/// A feed's base URL in the order by modification. An order that the text does not have is the feed's own business.
fn by_modified(url: &Url) -> String {
    let name = |pair: &str| pair.split_once('=').map_or(pair, |(name, _)| name).to_owned();
    let pairs = url.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let mut pairs: Vec<&str> = pairs.filter(|pair| !RANGE.contains(&name(pair).as_str())).collect();
    match pairs.iter().position(|pair| name(pair) == "order") {
        Some(at) if pairs[at].strip_prefix("order=").and_then(Order::parse).is_none() => {}
        Some(at) => pairs[at] = "order=modified",
        None => pairs.push("order=modified"),
    }
    let mut base = url.clone();
    base.set_fragment(None);
    base.set_query(Some(&pairs.join("&")));
    base.to_string()
}

/// Whether two addresses have the same for a parameter.
pub(super) fn agree(asked: &str, answered: &str, name: &str) -> bool {
    let of = |url: &str| Url::parse(url).ok().and_then(|url| value(&url, name));
    of(asked) == of(answered)
}

/// A position as a person gives it: with its type, or a bare cursor.
pub(super) fn position_spec(position: &str) -> String {
    match Spec::parse(position) {
        Ok(spec) => spec.to_string(),
        Err(_) => format!("cursor:{position}"),
    }
}

pub(super) fn resume(url: &str, state: Value) -> Result<Option<String>, FollowError> {
    let usage =
        |reason: String| FollowError::Usage(format!("the state cannot be used for {url:?}: {reason}"));
    let state: State = serde_json::from_value(state).map_err(|e| usage(e.to_string()))?;
    if state.protocol != "smart" {
        return Err(usage(format!("it is of the protocol {:?}", state.protocol)));
    }
    if state.url != url {
        return Err(usage(format!("it is of {:?}", state.url)));
    }
    Ok(state.since)
}
