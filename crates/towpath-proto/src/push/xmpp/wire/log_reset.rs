//! The sign that a log began anew, in a response with items: our own addition, as the header `Towpath-Reset` over HTTP.

use super::stanza::Element;
use crate::format::xml::TOWPATH;

/// The log does not know the position that was asked for: the page begins at the log's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogReset {
    /// Bare cursor from which to go on, if the page has no items that tell one.
    pub cursor: Option<String>,
}

impl LogReset {
    /// Returns the element.
    pub fn element(&self) -> Element {
        let element = Element::new("reset", TOWPATH);
        match &self.cursor {
            Some(cursor) => element.with("cursor", cursor.as_str()),
            None => element,
        }
    }

    /// Reads the sign of a response, if it has one.
    pub fn read(pubsub: &Element) -> Option<Self> {
        let element = pubsub.child("reset", TOWPATH)?;
        Some(Self { cursor: element.attribute("cursor").map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_comes_back() {
        let pubsub = Element::new("pubsub", "p");
        assert_eq!(LogReset::read(&pubsub), None);
        for reset in [LogReset { cursor: None }, LogReset { cursor: Some("m0-a".into()) }] {
            let pubsub = pubsub.clone().with_child(reset.element());
            assert_eq!(LogReset::read(&pubsub), Some(reset));
        }
    }
}
