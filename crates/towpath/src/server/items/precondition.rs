//! Preconditions of a change of an item.

use http::header::{IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use http::{HeaderMap, HeaderName};
use jiff::Timestamp;
use towpath_proto::Change;
use towpath_proto::format::http_date;

use crate::document::route_error::RouteError;

/// `If-Match`, `If-None-Match: *` and `If-Unmodified-Since` (RFC 9110, section 13.1) on the item's version.
pub(super) struct ItemPrecondition {
    matching: Option<String>,
    absent: bool,
    /// Ignored beside `If-Match`, and so is text that is no date (section 13.1.4).
    unmodified_since: Option<Timestamp>,
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
        let matching = text(IF_MATCH)?;
        let since = headers.get(IF_UNMODIFIED_SINCE).filter(|_| matching.is_none());
        let unmodified_since = since.and_then(|since| http_date::parse(since.to_str().ok()?).ok());
        Ok(Self { matching, absent, unmodified_since })
    }

    /// Fails if the item's latest version, `None` for an item that is not there, is not what the request expects.
    pub(super) fn check(&self, latest: Option<&Change>) -> Result<(), RouteError> {
        if self.absent && latest.is_some() {
            return Err(RouteError::precondition("the item is there already"));
        }
        if let (Some(since), Some(latest)) = (self.unmodified_since, latest)
            // Dates have whole seconds.
            && latest.modified.as_second() > since.as_second()
        {
            let modified = http_date::write(latest.modified);
            return Err(RouteError::precondition(format!("the item was modified at {modified}")));
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
