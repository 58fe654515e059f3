//! Elements kept as text that stands on its own.

use std::fmt::Write as _;

use super::Ns;
use super::reader::{Tag, Token, XmlReader, same};
use super::write::{push_attribute, push_text};
use crate::format::FormatError;

/// An element while it is written.
struct Capture<'i> {
    out: String,
    /// The names of the open elements.
    names: Vec<&'i str>,
    /// A start tag is written up to its `>`.
    in_tag: bool,
    /// The prefixes (empty for the default namespace) declared within, each with the depth of its element.
    declared: Vec<(usize, &'i str)>,
    /// The prefixes (empty for the default namespace) used within and declared outside.
    outer: Vec<&'i str>,
}

impl<'i> XmlReader<'i> {
    /// The element just started as text with the namespace declarations it needs, so that it can stand
    /// anywhere else. References are resolved, comments left out, and Atom's addresses made absolute.
    pub(crate) fn capture(&mut self, root: Tag<'i>) -> Result<String, FormatError> {
        let outside = self.depth() - 1;
        let mut capture = Capture {
            out: String::new(),
            names: Vec::new(),
            in_tag: false,
            declared: Vec::new(),
            outer: Vec::new(),
        };
        capture.start(self, root)?;
        while self.depth() > outside {
            match self.next()? {
                Token::Start(tag) => capture.start(self, tag)?,
                Token::Text(text) => {
                    capture.end_tag();
                    push_text(&mut capture.out, &text);
                }
                Token::End => capture.end(),
                Token::Eof => break,
            }
        }
        Ok(capture.finish(self, root))
    }
}

impl<'i> Capture<'i> {
    fn start(&mut self, xml: &mut XmlReader<'i>, tag: Tag<'i>) -> Result<(), FormatError> {
        self.end_tag();
        let is_root = self.names.is_empty();
        self.names.push(tag.name);
        let depth = self.names.len();
        let attributes = xml.take_attributes();
        for (name, _) in &attributes {
            match name.strip_prefix("xmlns") {
                Some("") => self.declared.push((depth, "")),
                Some(rest) if rest.starts_with(':') => self.declared.push((depth, &rest[1..])),
                _ => {}
            }
        }
        self.used(tag.name.split_once(':').map_or("", |(prefix, _)| prefix));
        self.out.push('<');
        self.out.push_str(tag.name);
        for &(name, raw) in &attributes {
            if name == "xml:base" {
                continue;
            }
            if let Some((prefix, _)) = name.split_once(':') {
                self.used(prefix);
            }
            self.out.push(' ');
            self.out.push_str(name);
            self.out.push_str("=\"");
            let is_address = is_root && tag.ns == Ns::Atom && matches!(name, "href" | "src");
            if is_address {
                let value = xml.attribute_value(raw)?;
                push_attribute(&mut self.out, &xml.resolve(&value));
            } else if raw.bytes().any(|b| matches!(b, b'&' | b'"' | b'>') || b < b' ') {
                push_attribute(&mut self.out, &xml.attribute_value(raw)?);
            } else {
                self.out.push_str(raw);
            }
            self.out.push('"');
        }
        xml.give_back(attributes);
        self.in_tag = true;
        Ok(())
    }

    /// Notes that a prefix is used here.
    fn used(&mut self, prefix: &'i str) {
        let inner = matches!(prefix, "xml" | "xmlns") || self.declared.iter().any(|(_, p)| same(p, prefix));
        if !inner && !self.outer.iter().any(|p| same(p, prefix)) {
            self.outer.push(prefix);
        }
    }

    fn end_tag(&mut self) {
        if std::mem::take(&mut self.in_tag) {
            self.out.push('>');
        }
    }

    fn end(&mut self) {
        let depth = self.names.len();
        while self.declared.last().is_some_and(|(declared_at, _)| *declared_at == depth) {
            self.declared.pop();
        }
        let Some(name) = self.names.pop() else { return };
        if std::mem::take(&mut self.in_tag) {
            self.out.push_str("/>");
        } else {
            self.out.push_str("</");
            self.out.push_str(name);
            self.out.push('>');
        }
    }

    /// Declares on the root what is used and was declared around it.
    fn finish(mut self, xml: &XmlReader<'i>, root: Tag<'i>) -> String {
        self.outer.sort_unstable();
        let mut declarations = String::new();
        for prefix in &self.outer {
            // Declarations are compared as written, and written as they were, but for the quote.
            let bound = match *prefix {
                "" => xml.bound_to(None),
                prefix => xml.bound_to(Some(prefix)),
            };
            let bound = bound.replace('"', "&quot;");
            let _ = match *prefix {
                "" => write!(declarations, " xmlns=\"{bound}\""),
                prefix => write!(declarations, " xmlns:{prefix}=\"{bound}\""),
            };
        }
        self.out.insert_str(1 + root.name.len(), &declarations);
        self.out
    }
}
