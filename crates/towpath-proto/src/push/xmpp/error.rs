//! Stanza errors (RFC 6120, 8.3), with publish-subscribe's own conditions (XEP-0060).

use super::ns;
use super::stanza::Element;

/// Why a request is refused. The sender's fault, but for [`Self::INTERNAL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{condition}{}{text}", if text.is_empty() { "" } else { ": " })]
pub struct StanzaError {
    /// What the sender can do about it: `cancel`, `modify`, `auth` or `wait`.
    pub kind: &'static str,
    /// The condition of RFC 6120, 8.3.3.
    pub condition: &'static str,
    /// The condition of XEP-0060 beside it.
    pub pubsub: Option<&'static str>,
    /// With the condition `unsupported`: what is not.
    pub feature: Option<&'static str>,
    /// For a person.
    pub text: String,
}

impl StanzaError {
    const fn new(kind: &'static str, condition: &'static str) -> Self {
        Self { kind, condition, pubsub: None, feature: None, text: String::new() }
    }

    /// Not a request that makes sense.
    pub const BAD_REQUEST: Self = Self::new("modify", "bad-request");
    /// There is no such node.
    pub const ITEM_NOT_FOUND: Self = Self::new("cancel", "item-not-found");
    /// There is, and not for this sender.
    pub const FORBIDDEN: Self = Self::new("auth", "forbidden");
    /// Known, and not done here.
    pub const NOT_IMPLEMENTED: Self = Self::new("cancel", "feature-not-implemented");
    /// Unknown (RFC 6120, 8.4).
    pub const UNAVAILABLE: Self = Self::new("cancel", "service-unavailable");
    /// Not there for the moment (RFC 6120, 8.3.3.13).
    pub const ENDING: Self = Self::new("wait", "recipient-unavailable");
    /// Out of order.
    pub const UNEXPECTED: Self = Self::new("cancel", "unexpected-request");
    /// Larger than is taken.
    pub const TOO_LARGE: Self = Self::new("modify", "not-acceptable");
    /// Against a limit of this service.
    pub const POLICY: Self = Self::new("wait", "policy-violation");
    /// The service's own fault.
    pub const INTERNAL: Self = Self::new("wait", "internal-server-error");

    /// The same with a condition of XEP-0060.
    #[must_use]
    pub fn and(mut self, condition: &'static str) -> Self {
        self.pubsub = Some(condition);
        self
    }

    /// The same with a feature of XEP-0060 that is not supported.
    #[must_use]
    pub fn unsupported(mut self, feature: &'static str) -> Self {
        (self.pubsub, self.feature) = (Some("unsupported"), Some(feature));
        self
    }

    /// The same with words for a person.
    #[must_use]
    pub fn because(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// The element, in the stream's namespace.
    pub fn element(&self, stream: &str) -> Element {
        let mut error = Element::new("error", stream).with("type", self.kind);
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

/// The condition and the words of an error that somebody answered with, whatever its namespace.
pub fn read(stanza: &Element) -> Option<(String, String)> {
    let error = stanza.children().find(|child| child.name == "error")?;
    let of_rfc = |child: &&Element| *child.ns == *ns::STANZA_ERRORS;
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
