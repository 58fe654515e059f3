//! Preconditions of a change of an item.

use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName};
use towpath_proto::Change;

use crate::document::route_error::RouteError;

/// `If-Match` and `If-None-Match: *` (RFC 9110, section 13.1) on the item's version.
pub(super) struct ItemPrecondition {
    matching: Option<String>,
    absent: bool,
}

impl ItemPrecondition {
    /// Reads the headers of a change.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, RouteError> {
        let text = |name: HeaderName| {
            let value = headers.get(&name).map(|value| value.to_str().map(str::to_owned));
            value.transpose().map_err(|_| RouteError::bad_request(format!("{name} is not text")))
        };
        let absent = match text(IF_NONE_MATCH)?.as_deref() {
            None => false,
            Some("*") => true,
            // A list of tags would mean "unless it is one of these versions", which is not implemented.
            Some(_) => return Err(RouteError::bad_request("If-None-Match of a change can only be *")),
        };
        Ok(Self { matching: text(IF_MATCH)?, absent })
    }

    /// Fails if the item's latest version, `None` for an item that is not there, is not what the request expects.
    pub(super) fn check(&self, latest: Option<&Change>) -> Result<(), RouteError> {
        if self.absent && latest.is_some() {
            return Err(RouteError::precondition("the item is there already"));
        }
        let Some(list) = &self.matching else { return Ok(()) };
        // Also for `*`: it holds only if there is a current representation (RFC 9110, section 13.1.1).
        let Some(latest) = latest else { return Err(RouteError::precondition("there is no such item")) };
        let tag = format!("\"{}\"", latest.seq);
        // Tags here are numbers, so a comma inside of quotes cannot occur.
        if list == "*" || list.split(',').any(|one| one.trim() == tag) {
            return Ok(());
        }
        Err(RouteError::precondition(format!("the item's version is {tag}")))
    }
}
