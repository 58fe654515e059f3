//! Where following begins.

use serde_json::Value;
use url::Url;

use super::follow::State;
use super::spec::Spec;
use super::wire::with_parameter;
use crate::follow::FollowError;

/// The base URL to ask, with an order.
pub(super) fn feed_url(url: &str) -> Result<String, FollowError> {
    let parsed =
        Url::parse(url).map_err(|e| FollowError::Usage(format!("{url:?} is not an address: {e}")))?;
    let has = |name: &str| parsed.query_pairs().any(|(known, _)| known == name);
    if let Some(name) = ["since", "until", "max", "timeout", "callback"].into_iter().find(|name| has(name)) {
        return Err(FollowError::Usage(format!("{url:?} has the parameter {name}, and a base URL does not")));
    }
    let mut plain = parsed.clone();
    plain.set_fragment(None);
    Ok(if has("order") { plain.to_string() } else { with_parameter(plain.as_str(), "order", "modified") })
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
