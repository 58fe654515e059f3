//! Stanzas as a small tree of elements, and their serialization.

use std::sync::Arc;

use super::ns;
use crate::format::xml::{push_attribute, push_text};

/// Element with a resolved namespace. Prefixes are dropped: they carry no meaning, and servers rewrite them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Local name.
    pub name: String,
    /// Namespace; empty for none.
    pub ns: Arc<str>,
    /// Attributes without namespace declarations.
    pub attributes: Vec<Attribute>,
    /// Child elements and text.
    pub nodes: Vec<ElementNode>,
}

/// Attribute of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Namespace; most attributes have none.
    pub ns: Option<Arc<str>>,
    /// Local name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// Child of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElementNode {
    /// Element.
    Element(Element),
    /// Character data.
    Text(String),
}

impl Element {
    /// Creates an empty element.
    pub fn new(name: &str, ns: &str) -> Self {
        Self { name: name.to_owned(), ns: ns.into(), attributes: Vec::new(), nodes: Vec::new() }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.attributes.push(Attribute { ns: None, name: name.to_owned(), value: value.into() });
        self
    }

    /// Adds an attribute if there is a value.
    #[must_use]
    pub fn with_some(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a child element.
    #[must_use]
    pub fn with_child(mut self, child: Element) -> Self {
        self.nodes.push(ElementNode::Element(child));
        self
    }

    /// Adds child elements.
    #[must_use]
    pub fn with_children(mut self, children: impl IntoIterator<Item = Element>) -> Self {
        self.nodes.extend(children.into_iter().map(ElementNode::Element));
        self
    }

    /// Adds text.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.nodes.push(ElementNode::Text(text.into()));
        self
    }

    /// Returns `true` if the element has this name and namespace.
    pub fn is(&self, name: &str, ns: &str) -> bool {
        self.name == name && *self.ns == *ns
    }

    /// Returns the value of the attribute with this name and no namespace.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|attribute| attribute.ns.is_none() && attribute.name == name);
        found.map(|attribute| attribute.value.as_str())
    }

    /// Iterates over the child elements.
    pub fn children(&self) -> impl Iterator<Item = &Element> {
        self.nodes.iter().filter_map(|node| match node {
            ElementNode::Element(element) => Some(element),
            ElementNode::Text(_) => None,
        })
    }

    /// Returns the first child element with this name and namespace.
    pub fn child(&self, name: &str, ns: &str) -> Option<&Element> {
        self.children().find(|child| child.is(name, ns))
    }

    /// Returns the element's own text, without that of child elements.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            if let ElementNode::Text(part) = node {
                text.push_str(part);
            }
        }
        text
    }

    /// Returns the text of the first child element with this name and namespace.
    pub fn child_text(&self, name: &str, ns: &str) -> Option<String> {
        self.child(name, ns).map(Self::text)
    }

    /// Appends the element as XML. `parent` is the default namespace at that position.
    pub fn write(&self, out: &mut String, parent: &str) {
        out.push('<');
        out.push_str(&self.name);
        // Declared only where it changes, as servers expect it in small stanzas.
        if *self.ns != *parent {
            push(out, "xmlns", &self.ns);
        }
        for (number, attribute) in self.attributes.iter().enumerate() {
            match attribute.ns.as_deref() {
                None => push(out, &attribute.name, &attribute.value),
                // The prefix xml is predefined and must not be declared.
                Some(ns::XML) => push(out, &format!("xml:{}", attribute.name), &attribute.value),
                Some(ns) => {
                    // The original prefix is not stored, so a fresh one is declared.
                    push(out, &format!("xmlns:a{number}"), ns);
                    push(out, &format!("a{number}:{}", attribute.name), &attribute.value);
                }
            }
        }
        if self.nodes.is_empty() {
            return out.push_str("/>");
        }
        out.push('>');
        for node in &self.nodes {
            match node {
                ElementNode::Element(element) => element.write(out, &self.ns),
                ElementNode::Text(text) => push_text(out, text),
            }
        }
        out.push_str("</");
        out.push_str(&self.name);
        out.push('>');
    }

    /// Returns the element as a standalone XML text.
    pub fn to_xml(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, "");
        out
    }
}

fn push(out: &mut String, name: &str, value: &str) {
    out.push(' ');
    out.push_str(name);
    out.push_str("=\"");
    push_attribute(out, value);
    out.push('"');
}

/// Appends an attribute to a start tag, for stanzas that are written without a tree.
pub(crate) fn write_attribute(out: &mut String, name: &str, value: &str) {
    push(out, name, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_declared_where_they_change() {
        let set = Element::new("set", ns::RSM).with_child(Element::new("max", ns::RSM).with_text("5<"));
        let pubsub = Element::new("pubsub", ns::PUBSUB)
            .with_child(Element::new("items", ns::PUBSUB).with("node", "a\"?b"))
            .with_child(set);
        assert_eq!(
            pubsub.to_xml(),
            "<pubsub xmlns=\"http://jabber.org/protocol/pubsub\"><items node=\"a&quot;?b\"/>\
             <set xmlns=\"http://jabber.org/protocol/rsm\"><max>5&lt;</max></set></pubsub>"
        );
        assert_eq!(Element::new("a", "").to_xml(), "<a/>");
    }

    #[test]
    fn attributes_of_other_namespaces_get_a_prefix() {
        let mut element = Element::new("a", "u:a");
        let attribute = |ns: &str| Attribute { ns: Some(ns.into()), name: "n".into(), value: "v".into() };
        element.attributes = vec![attribute(ns::XML), attribute("u:b")];
        assert_eq!(element.to_xml(), "<a xmlns=\"u:a\" xml:n=\"v\" xmlns:a1=\"u:b\" a1:n=\"v\"/>");
    }
}
