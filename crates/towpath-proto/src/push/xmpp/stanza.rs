//! A stanza as a small tree of elements, and writing it.

use std::sync::Arc;

use super::ns;
use crate::format::xml::{push_attribute, push_text};

/// An element with its namespace resolved. Prefixes are not kept: they mean nothing, and servers change them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Its name without prefix.
    pub name: String,
    /// Its namespace; empty where it has none.
    pub ns: Arc<str>,
    /// Its attributes, those that declare namespaces left out.
    pub attributes: Vec<Attribute>,
    /// What is in it.
    pub nodes: Vec<Node>,
}

/// An attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its namespace; most have none.
    pub ns: Option<Arc<str>>,
    /// Its name without prefix.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// What an element holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Another element.
    Element(Element),
    /// Character data.
    Text(String),
}

impl Element {
    /// An empty element.
    pub fn new(name: &str, ns: &str) -> Self {
        Self { name: name.to_owned(), ns: ns.into(), attributes: Vec::new(), nodes: Vec::new() }
    }

    /// The same with an attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.attributes.push(Attribute { ns: None, name: name.to_owned(), value: value.into() });
        self
    }

    /// The same with an attribute, where there is a value.
    #[must_use]
    pub fn with_some(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// The same with another element in it.
    #[must_use]
    pub fn with_child(mut self, child: Element) -> Self {
        self.nodes.push(Node::Element(child));
        self
    }

    /// The same with other elements in it.
    #[must_use]
    pub fn with_children(mut self, children: impl IntoIterator<Item = Element>) -> Self {
        self.nodes.extend(children.into_iter().map(Node::Element));
        self
    }

    /// The same with text in it.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        self.nodes.push(Node::Text(text.into()));
        self
    }

    /// Whether it has this name in this namespace.
    pub fn is(&self, name: &str, ns: &str) -> bool {
        self.name == name && *self.ns == *ns
    }

    /// The value of its attribute of this name, in no namespace.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|attribute| attribute.ns.is_none() && attribute.name == name);
        found.map(|attribute| attribute.value.as_str())
    }

    /// The elements in it.
    pub fn children(&self) -> impl Iterator<Item = &Element> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Element(element) => Some(element),
            Node::Text(_) => None,
        })
    }

    /// The first element in it of this name and namespace.
    pub fn child(&self, name: &str, ns: &str) -> Option<&Element> {
        self.children().find(|child| child.is(name, ns))
    }

    /// The text directly in it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            if let Node::Text(part) = node {
                text.push_str(part);
            }
        }
        text
    }

    /// The text of the first element in it of this name and namespace.
    pub fn child_text(&self, name: &str, ns: &str) -> Option<String> {
        self.child(name, ns).map(Self::text)
    }

    /// Appends it as XML to a place where `parent` is the default namespace.
    pub fn write(&self, out: &mut String, parent: &str) {
        out.push('<');
        out.push_str(&self.name);
        if *self.ns != *parent {
            push(out, "xmlns", &self.ns);
        }
        for (number, attribute) in self.attributes.iter().enumerate() {
            match attribute.ns.as_deref() {
                None => push(out, &attribute.name, &attribute.value),
                Some(ns::XML) => push(out, &format!("xml:{}", attribute.name), &attribute.value),
                Some(ns) => {
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
                Node::Element(element) => element.write(out, &self.ns),
                Node::Text(text) => push_text(out, text),
            }
        }
        out.push_str("</");
        out.push_str(&self.name);
        out.push('>');
    }

    /// It as XML that stands on its own.
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

/// Appends a start tag's attribute, for stanzas that are written without a tree.
pub(super) fn write_attribute(out: &mut String, name: &str, value: &str) {
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
