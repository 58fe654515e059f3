//! Headers of a push (XEP-0131; "XMPP Pull/Push").

use super::ns;
use super::stanza::Element;

/// Names of the headers, which are advertised (XEP-0131, 3.2).
pub const NAMES: [&str; 3] = ["TotalItems", "PreviousCursor", "LastCursor"];

/// Headers of a push: its position in the feed. Cursors are bare here, without their type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PushHeaders {
    /// "the number of items in the feed".
    pub total: Option<u64>,
    /// "the cursor value of the last item in the feed prior to the feed update"; none before the first.
    pub previous: Option<String>,
    /// "the cursor value of the last item returned".
    pub last: Option<String>,
}

impl PushHeaders {
    /// Returns the element with the headers.
    pub fn element(&self) -> Element {
        let total = self.total.map(|total| total.to_string());
        let values = [total.as_ref(), self.previous.as_ref(), self.last.as_ref()];
        let header = |(name, value): (&str, Option<&String>)| {
            let header = Element::new("header", ns::SHIM).with("name", name);
            value.map(|value| header.with_text(value.as_str()))
        };
        Element::new("headers", ns::SHIM).with_children(NAMES.into_iter().zip(values).filter_map(header))
    }

    /// Reads the headers of a message. Names are compared without case, as in RFC 2822, which SHIM's headers
    /// come from.
    pub fn read(message: &Element) -> Self {
        let Some(headers) = message.child("headers", ns::SHIM) else { return Self::default() };
        let value = |name: &str| {
            let named = |child: &&Element| {
                child.is("header", ns::SHIM)
                    && child.attribute("name").is_some_and(|known| known.eq_ignore_ascii_case(name))
            };
            let text = headers.children().find(named).map(Element::text)?;
            // An empty header says nothing, as if it were absent.
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let [total, previous, last] = NAMES.map(value);
        Self { total: total.and_then(|text| text.parse().ok()), previous, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        for headers in [
            PushHeaders {
                total: Some(427),
                previous: Some("f4ac5920".into()),
                last: Some("64fc10d2".into()),
            },
            PushHeaders { total: Some(1), previous: None, last: Some("<&".into()) },
            PushHeaders::default(),
        ] {
            let message = Element::new("message", "").with_child(headers.element());
            assert_eq!(PushHeaders::read(&message), headers);
        }
        assert_eq!(PushHeaders::read(&Element::new("message", "")), PushHeaders::default());
    }
}
