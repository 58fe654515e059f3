//! Grammar of an XML format as data: elements with their attributes, values and children, each with its rule.

use crate::report::Rule;

/// Test of a value.
pub(super) type ValueTest = fn(&str) -> bool;

/// Allowed body of an element.
#[derive(Clone, Copy)]
pub(super) enum Body {
    /// Child elements, and no text.
    Elements,
    /// Text, and no child elements.
    Text,
    /// Text that must fit.
    Value(ValueTest, Rule),
    /// As [`Self::Value`], with white space around it ignored.
    Trimmed(ValueTest, Rule),
    /// Nothing.
    Empty(Rule),
    /// A text construct of Atom (RFC 4287, section 3.1), which `type` selects.
    Construct,
    /// A content of Atom (RFC 4287, section 4.1.3).
    Content,
    /// Anything.
    Any,
}

/// Element of a format.
pub(super) struct Element {
    pub(super) ns: &'static str,
    pub(super) name: &'static str,
    pub(super) body: Body,
    pub(super) attributes: &'static [Attribute],
    pub(super) children: &'static [Child],
}

/// Attribute of an element.
pub(super) struct Attribute {
    pub(super) name: &'static str,
    /// Rule by which the attribute is there.
    pub(super) required: Option<Rule>,
    pub(super) value: Option<(ValueTest, Rule)>,
}

/// Child of an element with its cardinality.
pub(super) struct Child {
    pub(super) element: &'static Element,
    pub(super) min: u32,
    pub(super) max: u32,
    /// Rule of the cardinality; `None` if any number is allowed.
    pub(super) rule: Option<Rule>,
}

impl Element {
    /// An element without attributes or children.
    pub(super) const fn new(ns: &'static str, name: &'static str, body: Body) -> Self {
        Self { ns, name, body, attributes: &[], children: &[] }
    }

    pub(super) const fn with(self, attributes: &'static [Attribute], children: &'static [Child]) -> Self {
        Self { attributes, children, ..self }
    }
}

impl Attribute {
    /// An optional attribute whose value must fit.
    pub(super) const fn value(name: &'static str, test: ValueTest, rule: Rule) -> Self {
        Self { name, required: None, value: Some((test, rule)) }
    }

    /// A required attribute whose value must fit.
    pub(super) const fn needed(name: &'static str, required: Rule, test: ValueTest, rule: Rule) -> Self {
        Self { name, required: Some(required), value: Some((test, rule)) }
    }

    /// An optional attribute with any value.
    pub(super) const fn any(name: &'static str) -> Self {
        Self { name, required: None, value: None }
    }
}

/// A child that may occur any number of times.
pub(super) const fn many(element: &'static Element) -> Child {
    Child { element, min: 0, max: u32::MAX, rule: None }
}

/// A child that may occur once.
pub(super) const fn maybe(element: &'static Element, rule: Rule) -> Child {
    Child { element, min: 0, max: 1, rule: Some(rule) }
}

/// A child that occurs once.
pub(super) const fn once(element: &'static Element, rule: Rule) -> Child {
    Child { element, min: 1, max: 1, rule: Some(rule) }
}

/// A child that may occur so many times.
pub(super) const fn up_to(max: u32, element: &'static Element, rule: Rule) -> Child {
    Child { element, min: 0, max, rule: Some(rule) }
}
