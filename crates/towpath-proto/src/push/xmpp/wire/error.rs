//! Stanza errors (RFC 6120, 8.3), with publish-subscribe's own conditions (XEP-0060).

use super::ns;
use super::stanza::Element;

/// Stanza error. The sender's fault, except for [`Self::INTERNAL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{condition}{}{text}", if text.is_empty() { "" } else { ": " })]
pub struct StanzaError {
    /// Error type, the action that the sender can take: `cancel`, `modify`, `auth` or `wait`.
    pub kind: &'static str,
    /// Condition of RFC 6120, 8.3.3.
    pub condition: &'static str,
    /// Additional condition of XEP-0060.
    pub pubsub: Option<&'static str>,
    /// Missing feature, for the condition `unsupported`.
    pub feature: Option<&'static str>,
    /// Explanation for a person.
    pub text: String,
}

impl StanzaError {
    const fn new(kind: &'static str, condition: &'static str) -> Self {
        Self { kind, condition, pubsub: None, feature: None, text: String::new() }
    }

    /// The request is malformed.
    pub const BAD_REQUEST: Self = Self::new("modify", "bad-request");
    /// The node does not exist.
    pub const ITEM_NOT_FOUND: Self = Self::new("cancel", "item-not-found");
    /// The node exists, but this sender has no access.
    pub const FORBIDDEN: Self = Self::new("auth", "forbidden");
    /// The request is known but not implemented.
    pub const NOT_IMPLEMENTED: Self = Self::new("cancel", "feature-not-implemented");
    /// The request is unknown (RFC 6120, 8.4).
    pub const UNAVAILABLE: Self = Self::new("cancel", "service-unavailable");
    /// The service is stopping (RFC 6120, 8.3.3.13).
    pub const ENDING: Self = Self::new("wait", "recipient-unavailable");
    /// The request is out of order.
    pub const UNEXPECTED: Self = Self::new("cancel", "unexpected-request");
    /// The stanza is too large.
    pub const TOO_LARGE: Self = Self::new("modify", "not-acceptable");
    /// A limit of this service is reached.
    pub const POLICY: Self = Self::new("wait", "policy-violation");
    /// Internal error of the service.
    pub const INTERNAL: Self = Self::new("wait", "internal-server-error");

    /// Adds a condition of XEP-0060.
    #[must_use]
    pub fn and(mut self, condition: &'static str) -> Self {
        self.pubsub = Some(condition);
        self
    }

    /// Adds a feature of XEP-0060 that is not supported.
    #[must_use]
    pub fn unsupported(mut self, feature: &'static str) -> Self {
        (self.pubsub, self.feature) = (Some("unsupported"), Some(feature));
        self
    }

    /// Adds an explanation for a person.
    #[must_use]
    pub fn because(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// Returns the element, in the stream's namespace.
    pub fn element(&self, stream: &str) -> Element {
        let mut error = Element::new("error", stream).with("type", self.kind);
        // RFC 6120, 8.3.2: the defined condition comes first.
        error = error.with_child(Element::new(self.condition, ns::STANZA_ERRORS));
        if !self.text.is_empty() {
            error = error.with_child(Element::new("text", ns::STANZA_ERRORS).with_text(self.text.as_str()));
        }
        match self.pubsub {
            Some(own) => {
                error.with_child(Element::new(own, ns::PUBSUB_ERRORS).with_some("feature", self.feature))
            }
            None => error,
        }
    }
}

/// Returns the condition and text of a received error, in any namespace.
pub fn read(stanza: &Element) -> Option<(String, String)> {
    let error = stanza.children().find(|child| child.name == "error")?;
    let of_rfc = |child: &&Element| *child.ns == *ns::STANZA_ERRORS;
    // The text element shares the namespace of the conditions.
    let condition = error.children().filter(of_rfc).find(|child| child.name != "text");
    let text = error.child_text("text", ns::STANZA_ERRORS).unwrap_or_default();
    Some((condition.map_or_else(|| "undefined-condition".to_owned(), |found| found.name.clone()), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_back() {
        let error = StanzaError::NOT_IMPLEMENTED.unsupported("publish").because("read only");
        let iq = Element::new("iq", "").with_child(error.element(""));
        assert_eq!(
            iq.to_xml(),
            "<iq><error type=\"cancel\"><feature-not-implemented xmlns=\"urn:ietf:params:xml:ns:xmpp-stanzas\"/>\
             <text xmlns=\"urn:ietf:params:xml:ns:xmpp-stanzas\">read only</text>\
             <unsupported xmlns=\"http://jabber.org/protocol/pubsub#errors\" feature=\"publish\"/></error></iq>"
        );
        assert_eq!(read(&iq), Some(("feature-not-implemented".into(), "read only".into())));
        assert_eq!(error.to_string(), "feature-not-implemented: read only");
    }
}
