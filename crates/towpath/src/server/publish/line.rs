//! Lines that are published.

use jiff::Timestamp;
use towpath_proto::NewChange;
use towpath_proto::line::Line;

use super::urls::UrlRule;
use crate::document::route_error::RouteError;

/// Change of a batch.
#[derive(Debug)]
pub(in crate::server) struct PublishedLine {
    /// The change.
    pub(in crate::server) change: NewChange,
    /// Time at which it is to be published.
    pub(in crate::server) publish_at: Option<Timestamp>,
}

/// Reads one line. `place` and `pointer` say where it stands in the body.
pub(in crate::server) fn line(
    text: &[u8],
    place: &str,
    pointer: &str,
    urls: UrlRule,
) -> Result<PublishedLine, RouteError> {
    let error = |e: &dyn std::fmt::Display| RouteError::bad_request(format!("{place}: {e}"));
    let line = Line::parse(text).map_err(|e| error(&e))?;
    let publish_at = line.publish_at;
    let change = line.into_change().map_err(|e| error(&e))?;
    urls.check(&change.item).map_err(|(at, reason)| {
        let at = format!("{pointer}{at}");
        error(&format_args!("{at}: {reason}")).at(at)
    })?;
    Ok(PublishedLine { change, publish_at })
}
