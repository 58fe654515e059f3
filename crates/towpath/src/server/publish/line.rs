//! Lines that are published.

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;
use towpath_proto::NewChange;
use towpath_proto::line::{Line, LineError};

use super::urls::UrlRule;
use crate::document::route_error::RouteError;

/// Place of a change in the body that it came with.
#[derive(Debug, Clone, Copy)]
pub(in crate::server) enum BodyPlace {
    /// A line of NDJSON, by its number from 1.
    Line(usize),
    /// An item of a JSON array, by its index from 0.
    Item(usize),
    /// The only one, as errors name it.
    Only(&'static str),
}

impl fmt::Display for BodyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(number) => write!(f, "line {number}"),
            Self::Item(index) => write!(f, "item {}", index + 1),
            Self::Only(name) => f.write_str(name),
        }
    }
}

impl BodyPlace {
    /// Returns the pointer to the change within the body; `None` where a pointer cannot lead to it, or need not.
    pub(super) fn pointer(self) -> Option<String> {
        match self {
            Self::Item(index) => Some(format!("/{index}")),
            Self::Line(_) | Self::Only(_) => None,
        }
    }
}

/// Change of a batch.
#[derive(Debug)]
pub(in crate::server) struct PublishedLine {
    /// Its place in the body.
    pub(super) place: BodyPlace,
    /// The change.
    pub(in crate::server) change: NewChange,
    /// Time at which it is to be published.
    pub(in crate::server) publish_at: Option<Timestamp>,
}

/// Reads one line.
pub(in crate::server) fn line(
    text: &[u8],
    place: BodyPlace,
    urls: UrlRule,
) -> Result<PublishedLine, RouteError> {
    let error = |e: &dyn fmt::Display| RouteError::bad_request(format!("{place}: {e}"));
    let line = Line::parse(text).map_err(|e| {
        let told = match place {
            // The parser counts from the start of this line.
            BodyPlace::Line(_) => error(&e.to_string().replace(" at line 1 column ", " at column ")),
            BodyPlace::Item(_) | BodyPlace::Only(_) => error(&e),
        };
        match e {
            LineError::Json { pointer, .. } if !pointer.is_empty() => {
                told.at(format!("{}{pointer}", place.pointer().unwrap_or_default()))
            }
            _ => told,
        }
    })?;
    let publish_at = line.publish_at;
    let change = line.into_change().map_err(|e| error(&e))?;
    urls.check(&change.item).map_err(|(at, reason)| {
        let at = format!("{}{at}", place.pointer().unwrap_or_default());
        error(&format_args!("{at}: {reason}")).at(at)
    })?;
    Ok(PublishedLine { place, change, publish_at })
}

/// Returns the text of a line whose JSON content is apart, as it was written. As a value it would lose long numbers.
pub(in crate::server) fn with_json(line: &Value, json: Option<&str>) -> String {
    let mut text = line.to_string();
    if let Some(json) = json {
        // Every line has a member, such as its id, so a comma comes before this one.
        text.pop();
        text.extend([",\"json\":", json, "}"]);
    }
    text
}
