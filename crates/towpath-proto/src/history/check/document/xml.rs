//! Strict event reader of XML 1.0 with namespaces, for checks only.
//!
//! The reader of sources forgives what a check must report. This one stops at the first violation of
//! well-formedness. It expands no entities of a DTD: their references count as empty text.

use std::borrow::Cow;

use super::xml_name::{expansion, is_name, is_name_char, is_reference, is_space};
use crate::format::xml::is_xml_char;

/// Maximum nesting, as in the reader of sources.
const MAX_DEPTH: usize = 256;
/// Maximum attributes of an element: their names are compared in pairs.
const MAX_ATTRIBUTES: usize = 256;
/// Maximum namespace declarations in effect.
const MAX_DECLARATIONS: usize = 256;

/// Violation of well-formedness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct XmlFault {
    pub(super) offset: usize,
    pub(super) reason: String,
}

/// Attribute with its namespace; empty for names without a prefix.
#[derive(Debug, Clone)]
pub(super) struct XmlAttribute<'i> {
    pub(super) ns: Cow<'i, str>,
    pub(super) local: &'i str,
    pub(super) value: Cow<'i, str>,
}

/// Start of an element.
#[derive(Debug, Clone)]
pub(super) struct XmlStart<'i> {
    pub(super) ns: Cow<'i, str>,
    pub(super) local: &'i str,
    pub(super) attributes: Vec<XmlAttribute<'i>>,
    pub(super) offset: usize,
}

impl XmlStart<'_> {
    /// Returns the value of an attribute without a namespace.
    pub(super) fn attribute(&self, local: &str) -> Option<&str> {
        self.attributes.iter().find(|a| a.ns.is_empty() && a.local == local).map(|a| a.value.as_ref())
    }
}

/// Event of a document.
#[derive(Debug, Clone)]
pub(super) enum XmlEvent<'i> {
    Start(XmlStart<'i>),
    Text(Cow<'i, str>),
    End,
    Eof,
}

/// Strict reader; see the module's documentation.
pub(super) struct StrictXml<'i> {
    text: &'i str,
    pub(super) at: usize,
    open: Vec<&'i str>,
    /// Declarations in scope: depth, prefix, namespace.
    namespaces: Vec<(usize, &'i str, Cow<'i, str>)>,
    pending_end: bool,
    has_root: bool,
    pub(super) has_doctype: bool,
}

pub(super) type Read<T> = Result<T, XmlFault>;

const XML: &str = "http://www.w3.org/XML/1998/namespace";

impl<'i> StrictXml<'i> {
    pub(super) fn new(text: &'i str) -> Self {
        Self {
            // A byte order mark is no part of the document (XML 1.0, section 4.3.3).
            text: text.strip_prefix('\u{FEFF}').unwrap_or(text),
            at: 0,
            open: Vec::new(),
            namespaces: vec![(0, "xml", Cow::Borrowed(XML))],
            pending_end: false,
            has_root: false,
            has_doctype: false,
        }
    }

    /// Returns the next event. Comments and processing instructions are tested and skipped.
    pub(super) fn next(&mut self) -> Read<XmlEvent<'i>> {
        if self.pending_end {
            self.pending_end = false;
            return Ok(self.close());
        }
        if self.at == 0 {
            self.declaration()?;
        }
        loop {
            let rest = self.rest();
            if rest.is_empty() {
                return self.end_of_input();
            } else if !rest.starts_with('<') {
                let text = self.character_data()?;
                if !self.open.is_empty() {
                    return Ok(XmlEvent::Text(text));
                }
            } else if rest.starts_with("<!--") {
                self.comment()?;
            } else if rest.starts_with("<![CDATA[") && !self.open.is_empty() {
                let text = self.until("<![CDATA[", "]]>", "a CDATA section")?;
                return Ok(XmlEvent::Text(Cow::Borrowed(text)));
            } else if rest.starts_with("<!DOCTYPE") && !self.has_root && !self.has_doctype {
                self.doctype()?;
            } else if rest.starts_with("<?") {
                let target = self.until("<?", "?>", "a processing instruction")?;
                let name = target.split([' ', '\t', '\r', '\n']).next().unwrap_or_default();
                // The name is reserved in any case (XML 1.0, section 2.6). A declaration may stand at the very
                // beginning only.
                if name.eq_ignore_ascii_case("xml") || !is_name(name) {
                    return self.fault("a processing instruction or declaration that is not allowed here");
                }
            } else if rest.starts_with("</") {
                return self.end_tag();
            } else {
                return self.start_tag();
            }
        }
    }

    /// Returns the number of the line of an offset, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset.min(self.text.len())).unwrap_or_default();
        memchr::memchr_iter(b'\n', before).count() + 1
    }

    pub(super) fn rest(&self) -> &'i str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn fault<T>(&self, reason: impl Into<String>) -> Read<T> {
        Err(XmlFault { offset: self.at, reason: reason.into() })
    }

    /// Takes what is between two marks, at the first of which the reader stands.
    pub(super) fn until(&mut self, begin: &str, end: &str, name: &str) -> Read<&'i str> {
        let rest = self.rest().get(begin.len()..).unwrap_or_default();
        let Some(length) = memchr::memmem::find(rest.as_bytes(), end.as_bytes()) else {
            return self.fault(format!("{name} does not end"));
        };
        let inside = &rest[..length];
        self.characters(inside)?;
        self.at += begin.len() + length + end.len();
        Ok(inside)
    }

    fn characters(&self, text: &str) -> Read<()> {
        match text.chars().find(|c| !is_xml_char(*c)) {
            Some(bad) => self.fault(format!("the character U+{:04X}", u32::from(bad))),
            None => Ok(()),
        }
    }

    fn comment(&mut self) -> Read<()> {
        let comment = self.until("<!--", "-->", "a comment")?;
        // XML 1.0, section 2.5. The mark would otherwise stand across the end: `--->`.
        if comment.contains("--") || comment.ends_with('-') {
            return self.fault("two hyphens in a comment");
        }
        Ok(())
    }

    fn character_data(&mut self) -> Read<Cow<'i, str>> {
        let rest = self.rest();
        let length = memchr::memchr(b'<', rest.as_bytes()).unwrap_or(rest.len());
        let raw = &rest[..length];
        if self.open.is_empty() && !raw.chars().all(is_space) {
            return self.fault("text outside the root element");
        }
        // Forbidden in text for compatibility with SGML (XML 1.0, section 2.4). Most parsers forgive it.
        if raw.contains("]]>") {
            return self.fault("']]>' in text");
        }
        let text = self.expand(raw)?;
        self.at += length;
        Ok(text)
    }

    /// Replaces references.
    fn expand(&self, raw: &'i str) -> Read<Cow<'i, str>> {
        self.characters(raw)?;
        if !raw.contains('&') {
            return Ok(Cow::Borrowed(raw));
        }
        let mut text = String::with_capacity(raw.len());
        let mut rest = raw;
        while let Some((before, after)) = rest.split_once('&') {
            text.push_str(before);
            let Some((name, next)) = after.split_once(';').filter(|(name, _)| is_reference(name)) else {
                return self.fault("'&' that begins no reference");
            };
            match expansion(name) {
                Some(character) => text.push(character),
                // A DTD may declare it, and no reader of feeds would fetch that.
                None if self.has_doctype && !name.starts_with('#') => {}
                None => return self.fault(format!("the reference &{name}; is not declared")),
            }
            rest = next;
        }
        text.push_str(rest);
        Ok(Cow::Owned(text))
    }

    fn name(&mut self, what: &str) -> Read<&'i str> {
        let rest = self.rest();
        let length = rest.find(|c: char| !is_name_char(c)).unwrap_or(rest.len());
        let name = &rest[..length];
        if !is_name(name) {
            return self.fault(format!("{what} without a valid name"));
        }
        self.at += length;
        Ok(name)
    }

    fn space(&mut self) -> bool {
        let rest = self.rest();
        let length = rest.find(|c: char| !is_space(c)).unwrap_or(rest.len());
        self.at += length;
        length > 0
    }

    fn start_tag(&mut self) -> Read<XmlEvent<'i>> {
        let offset = self.at;
        if self.open.is_empty() && self.has_root {
            return self.fault("a second root element");
        }
        if self.open.len() >= MAX_DEPTH {
            return self.fault(format!("elements nested deeper than {MAX_DEPTH}"));
        }
        self.at += 1;
        let name = self.name("a tag")?;
        let mut raw: Vec<(&str, Cow<'i, str>)> = Vec::new();
        loop {
            let spaced = self.space();
            let rest = self.rest();
            if let Some(length) = ["/>", ">"].iter().find(|end| rest.starts_with(**end)).map(|end| end.len())
            {
                self.pending_end = length == 2;
                self.at += length;
                break;
            }
            if !spaced {
                return self.fault(format!("<{name}> with attributes that no space divides"));
            }
            let attribute = self.attribute()?;
            if raw.iter().any(|(known, _)| *known == attribute.0) {
                return self.fault(format!("the attribute {} twice", attribute.0));
            }
            if raw.len() == MAX_ATTRIBUTES {
                return self.fault(format!("an element with more than {MAX_ATTRIBUTES} attributes"));
            }
            raw.push(attribute);
        }
        self.has_root = true;
        self.open.push(name);
        self.resolve(name, raw, offset).map(XmlEvent::Start)
    }

    fn attribute(&mut self) -> Read<(&'i str, Cow<'i, str>)> {
        let name = self.name("an attribute")?;
        self.space();
        if !self.rest().starts_with('=') {
            return self.fault(format!("the attribute {name} without a value"));
        }
        self.at += 1;
        self.space();
        let rest = self.rest();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''));
        let value = quote.and_then(|quote| rest[1..].split_once(quote)).map(|(value, _)| value);
        // A `<` in a value has to be escaped (XML 1.0, section 3.1). It mostly shows that a quotation mark is
        // missing.
        let Some(value) = value.filter(|value| !value.contains('<')) else {
            return self.fault(format!("the attribute {name} without a quoted value, or with '<'"));
        };
        let expanded = self.expand(value)?;
        self.at += value.len() + 2;
        Ok((name, expanded))
    }

    fn resolve(
        &mut self,
        name: &'i str,
        raw: Vec<(&'i str, Cow<'i, str>)>,
        offset: usize,
    ) -> Read<XmlStart<'i>> {
        let depth = self.open.len();
        for (name, value) in &raw {
            let prefix = if *name == "xmlns" { Some("") } else { name.strip_prefix("xmlns:") };
            let Some(prefix) = prefix else { continue };
            if (value.is_empty() && !prefix.is_empty()) || prefix == "xmlns" {
                return self.fault(format!("the declaration {name}={value:?}"));
            }
            // Every name is looked up in all declarations, so their number is bounded.
            if self.namespaces.len() == MAX_DECLARATIONS {
                return self.fault(format!("more than {MAX_DECLARATIONS} namespace declarations in effect"));
            }
            self.namespaces.push((depth, prefix, value.clone()));
        }
        let (ns, local) = self.qualified(name, true)?;
        let mut attributes: Vec<XmlAttribute<'i>> = Vec::with_capacity(raw.len());
        for (name, value) in raw {
            if name == "xmlns" || name.starts_with("xmlns:") {
                continue;
            }
            let (ns, local) = self.qualified(name, false)?;
            // Two prefixes of one namespace name one attribute (Namespaces in XML 1.0, section 6.3).
            if attributes.iter().any(|a| a.local == local && a.ns == ns) {
                return self.fault(format!("the attribute {name} twice"));
            }
            attributes.push(XmlAttribute { ns, local, value });
        }
        Ok(XmlStart { ns, local, attributes, offset })
    }

    fn qualified(&self, name: &'i str, is_element: bool) -> Read<(Cow<'i, str>, &'i str)> {
        let (prefix, local) = name.split_once(':').unwrap_or(("", name));
        // A default namespace does not apply to attributes (Namespaces in XML 1.0, section 6.2).
        if prefix.is_empty() && !is_element {
            return Ok((Cow::Borrowed(""), local));
        }
        match self.namespaces.iter().rev().find(|(_, known, _)| *known == prefix) {
            Some((_, _, ns)) => Ok((ns.clone(), local)),
            None if prefix.is_empty() => Ok((Cow::Borrowed(""), local)),
            None => self.fault(format!("the prefix of {name} is not declared")),
        }
    }

    fn end_tag(&mut self) -> Read<XmlEvent<'i>> {
        let offset = self.at;
        self.at += 2;
        let name = self.name("an end tag")?;
        self.space();
        let open = self.open.last().copied().unwrap_or_default();
        if open != name || !self.rest().starts_with('>') {
            self.at = offset;
            return self.fault(format!("</{name}> where <{open}> is open"));
        }
        self.at += 1;
        Ok(self.close())
    }

    fn close(&mut self) -> XmlEvent<'i> {
        let depth = self.open.len();
        while self.namespaces.last().is_some_and(|(at, _, _)| *at >= depth && *at > 0) {
            self.namespaces.pop();
        }
        self.open.pop();
        XmlEvent::End
    }

    fn end_of_input(&self) -> Read<XmlEvent<'i>> {
        match self.open.last() {
            Some(open) => self.fault(format!("the document ends inside <{open}>")),
            None if !self.has_root => self.fault("a document without a root element"),
            None => Ok(XmlEvent::Eof),
        }
    }
}
