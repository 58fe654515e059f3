//! A stream of stanzas read piece by piece (RFC 6120, section 4), as strictly as section 11.1 has it: no comments,
//! processing instructions, document types or entities but the five.
//!
//! Bounded: a stanza that exceeds a limit is read to its end and thrown away, with its start tag told, because it is
//! one sender's and the stream is everybody's. What is not well-formed ends the stream.

mod fault;
mod names;
mod token;

use std::borrow::Cow;

use quick_xml::events::attributes::Attributes;
use quick_xml::name::{Namespace, NamespaceResolver, QName, ResolveResult};

use super::stanza::{Attribute, Element, Node};
use crate::format::xml::is_xml_text;
pub use fault::{Fault, StreamFault};
use names::{Names, is_name};
use token::{Kind, Token, Tokens};

/// What a stream may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of one stanza.
    pub stanza_bytes: usize,
    /// How deep its elements are nested.
    pub depth: usize,
    /// The attributes of one element, declarations of namespaces included.
    pub attributes: usize,
    /// The elements and texts of one stanza.
    pub nodes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { stanza_bytes: 1 << 20, depth: 64, attributes: 64, nodes: 20_000 }
    }
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// The stream's own start tag.
    Opened(Element),
    /// A whole stanza.
    Stanza(Element),
    /// The start tag of a stanza that exceeds a limit.
    TooLarge(Element),
    /// The stream's end tag.
    Closed,
}

/// Reads one stream.
#[derive(Debug)]
pub struct StreamReader {
    limits: Limits,
    tokens: Tokens,
    namespaces: NamespaceResolver,
    known: Names,
    /// The open elements' names as written, the stream's first.
    open: Vec<String>,
    /// How many elements are open within a stanza that is thrown away, the stanza included.
    discarding: usize,
    /// The start tag of that stanza.
    discarded: Option<Element>,
    /// The open elements of the stanza.
    stack: Vec<Element>,
    stanza_bytes: usize,
    nodes: usize,
    closed: bool,
}

impl StreamReader {
    /// A reader at the beginning of a stream.
    pub fn new(limits: Limits) -> Self {
        Self {
            tokens: Tokens::new(limits.stanza_bytes),
            limits,
            namespaces: NamespaceResolver::default(),
            known: Names::default(),
            open: Vec::new(),
            discarding: 0,
            discarded: None,
            stack: Vec::new(),
            stanza_bytes: 0,
            nodes: 0,
            closed: false,
        }
    }

    /// Takes what came. Call [`Self::poll`] until it has nothing more.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.closed {
            self.tokens.push(bytes);
        }
    }

    /// How many bytes wait for the rest of what they belong to.
    pub fn buffered(&self) -> usize {
        self.tokens.buffered()
    }

    /// The next stanza, if it is complete.
    ///
    /// # Errors
    ///
    /// [`StreamFault`]; nothing more can be read after it.
    pub fn poll(&mut self) -> Result<Option<Received>, StreamFault> {
        while !self.closed {
            let offset = self.tokens.offset();
            let is_first = self.open.is_empty();
            let read = self.tokens.next(is_first).and_then(|token| match token {
                Some(token) => self.take(&token).map(Some),
                None => Ok(None),
            });
            match read {
                Ok(None) => return Ok(None),
                Ok(Some(None)) => {}
                Ok(Some(received)) => return Ok(received),
                Err(reason) => {
                    self.closed = true;
                    return Err(StreamFault { reason, offset });
                }
            }
        }
        Ok(None)
    }

    fn take(&mut self, token: &Token) -> Result<Option<Received>, Fault> {
        if self.open.len() > 1 || self.discarding > 0 || matches!(token.kind, Kind::Start | Kind::Empty) {
            self.stanza_bytes = self.stanza_bytes.saturating_add(token.length);
        }
        match token.kind {
            Kind::Declaration => Ok(None),
            Kind::Text | Kind::CData => self.text(token).map(|()| None),
            Kind::Start => self.start(token, false),
            Kind::Empty => self.start(token, true),
            Kind::End => self.end(token),
        }
    }

    fn text(&mut self, token: &Token) -> Result<(), Fault> {
        if self.discarding > 0 {
            return Ok(());
        }
        let Some(bytes) = &token.bytes else {
            return if self.stack.is_empty() { Ok(()) } else { self.discard() };
        };
        let text = std::str::from_utf8(bytes).map_err(|_| Fault::Encoding)?;
        let text = match token.kind {
            Kind::CData => lines(text),
            _ => unescape(&lines(text))?.into_owned().into(),
        };
        if !is_xml_text(&text) {
            return Err(Fault::Malformed("a character that XML does not allow"));
        }
        if self.stack.is_empty() {
            let is_space = text.chars().all(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
            return if is_space { Ok(()) } else { Err(Fault::Malformed("text between stanzas")) };
        }
        if self.is_over() {
            return self.discard();
        }
        self.nodes += 1;
        let Some(parent) = self.stack.last_mut() else { return Ok(()) };
        match parent.nodes.last_mut() {
            Some(Node::Text(before)) => before.push_str(&text),
            _ => parent.nodes.push(Node::Text(text.into_owned())),
        }
        Ok(())
    }

    /// Whether the stanza exceeds a limit that is counted.
    fn is_over(&self) -> bool {
        self.stanza_bytes > self.limits.stanza_bytes || self.nodes >= self.limits.nodes
    }

    /// From here on the stanza under way is thrown away.
    fn discard(&mut self) -> Result<(), Fault> {
        self.discarding = self.stack.len();
        if let Some(first) = self.stack.drain(..).next() {
            self.discarded = Some(Element { nodes: Vec::new(), ..first });
        }
        self.open.truncate(1);
        self.namespaces.set_level(1);
        Ok(())
    }

    fn start(&mut self, token: &Token, is_empty: bool) -> Result<Option<Received>, Fault> {
        if self.discarding > 0 {
            self.discarding += usize::from(!is_empty);
            return Ok(None);
        }
        let is_root = self.open.is_empty();
        if is_root && token.bytes.is_none() {
            return Err(Fault::TooLarge(self.limits.stanza_bytes));
        }
        let read = if self.is_over() || self.open.len() > self.limits.depth {
            None
        } else {
            self.nodes += 1;
            token.bytes.as_deref().map(|bytes| self.element(bytes)).transpose()?.flatten()
        };
        let Some((name, element)) = read else {
            return if is_root {
                Err(Fault::TooLarge(self.limits.stanza_bytes))
            } else {
                self.skip(is_empty)
            };
        };
        if is_root {
            self.stanza_bytes = 0;
            self.nodes = 0;
            if is_empty {
                self.closed = true;
            }
            self.open.push(name);
            return Ok(Some(Received::Opened(element)));
        }
        self.open.push(name);
        self.stack.push(element);
        if is_empty { Ok(self.close()) } else { Ok(None) }
    }

    /// Passes over an element that cannot be had, and the stanza with it.
    fn skip(&mut self, is_empty: bool) -> Result<Option<Received>, Fault> {
        self.discard()?;
        self.discarding += usize::from(!is_empty);
        Ok(if self.discarding == 0 { self.finish_discarded() } else { None })
    }

    fn end(&mut self, token: &Token) -> Result<Option<Received>, Fault> {
        let bytes = token.bytes.as_deref().ok_or(Fault::TooLarge(self.limits.stanza_bytes))?;
        if self.discarding > 0 {
            self.discarding -= 1;
            return Ok(if self.discarding == 0 { self.finish_discarded() } else { None });
        }
        let name = std::str::from_utf8(bytes).map_err(|_| Fault::Encoding)?;
        let name = name.trim_end_matches([' ', '\t', '\n', '\r']);
        if self.open.last().is_none_or(|open| open != name) {
            return Err(Fault::Malformed("an end tag of another name"));
        }
        if self.open.len() == 1 {
            self.open.pop();
            self.closed = true;
            return Ok(Some(Received::Closed));
        }
        Ok(self.close())
    }

    /// The innermost element has ended.
    fn close(&mut self) -> Option<Received> {
        self.open.pop();
        let level = u16::try_from(self.open.len()).unwrap_or(u16::MAX);
        if self.namespaces.level() > level {
            self.namespaces.set_level(level);
        }
        let element = self.stack.pop()?;
        if let Some(parent) = self.stack.last_mut() {
            parent.nodes.push(Node::Element(element));
            return None;
        }
        (self.stanza_bytes, self.nodes) = (0, 0);
        Some(Received::Stanza(element))
    }

    fn finish_discarded(&mut self) -> Option<Received> {
        (self.stanza_bytes, self.nodes) = (0, 0);
        self.discarded.take().map(Received::TooLarge)
    }

    /// Reads a start tag without its brackets; `None` where it has too many attributes.
    fn element(&mut self, bytes: &[u8]) -> Result<Option<(String, Element)>, Fault> {
        let content = std::str::from_utf8(bytes).map_err(|_| Fault::Encoding)?;
        let name_end = content.find([' ', '\t', '\n', '\r']).unwrap_or(content.len());
        let name = &content[..name_end];
        if !is_name(name) {
            return Err(Fault::Malformed("a tag without a proper name"));
        }
        let Some(written) = self.attributes(content, name_end)? else { return Ok(None) };
        let (resolved, local) = self.namespaces.resolve_element(QName(name));
        let ns = match resolved {
            ResolveResult::Bound(Namespace(ns)) => self.known.get(ns),
            ResolveResult::Unbound => self.known.get(""),
            ResolveResult::Unknown(_) => return Err(Fault::Malformed("an undeclared prefix")),
        };
        let mut attributes: Vec<Attribute> = Vec::with_capacity(written.len());
        for (name, value) in written {
            let (resolved, local) = self.namespaces.resolve_attribute(QName(name));
            let ns = match resolved {
                ResolveResult::Bound(Namespace(ns)) => Some(self.known.get(ns)),
                ResolveResult::Unbound => None,
                ResolveResult::Unknown(_) => return Err(Fault::Malformed("an undeclared prefix")),
            };
            let local = local.as_ref();
            if attributes.iter().any(|known| known.name == local && known.ns == ns) {
                return Err(Fault::Malformed("an attribute that stands there twice"));
            }
            attributes.push(Attribute { ns, name: local.to_owned(), value });
        }
        let element = Element { name: local.as_ref().to_owned(), ns, attributes, nodes: Vec::new() };
        Ok(Some((name.to_owned(), element)))
    }

    /// Reads a tag's attributes, taking in its declarations of namespaces.
    fn attributes<'t>(
        &mut self,
        content: &'t str,
        name_end: usize,
    ) -> Result<Option<Vec<(&'t str, String)>>, Fault> {
        let mut written = Vec::new();
        let mut count = 0;
        let mut declared: Vec<&str> = Vec::new();
        // Duplicates are looked for here, because quick-xml's check knows no namespaces.
        for attribute in Attributes::new(content, name_end).with_checks(false) {
            let attribute = attribute.map_err(|_| Fault::Malformed("an attribute without a proper value"))?;
            count += 1;
            if count > self.limits.attributes {
                return Ok(None);
            }
            let Cow::Borrowed(raw) = attribute.value else { continue };
            let name = attribute.key.into_inner();
            if !is_name(name) || raw.contains('<') {
                return Err(Fault::Malformed("an attribute without a proper name or value"));
            }
            let value = unescape(&spaces(raw))?.into_owned();
            if !is_xml_text(&value) {
                return Err(Fault::Malformed("a character that XML does not allow"));
            }
            let Some(prefix) = attribute.key.as_namespace_binding() else {
                written.push((name, value));
                continue;
            };
            if declared.contains(&name) {
                return Err(Fault::Malformed("a prefix that is declared twice"));
            }
            declared.push(name);
            let level = u16::try_from(self.open.len() + 1).unwrap_or(u16::MAX);
            self.namespaces.set_level(level);
            let added = self.namespaces.add(prefix, Namespace(&value));
            added.map_err(|_| Fault::Malformed("a namespace that cannot be declared"))?;
        }
        Ok(Some(written))
    }
}

/// Line ends as XML has them (2.11).
fn lines(text: &str) -> Cow<'_, str> {
    if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n").into() } else { text.into() }
}

/// White space of an attribute as XML has it (3.3.3).
fn spaces(text: &str) -> Cow<'_, str> {
    if text.contains(['\t', '\n', '\r']) {
        text.replace("\r\n", " ").replace(['\t', '\n', '\r'], " ").into()
    } else {
        text.into()
    }
}

/// Resolves the five entities, and references to characters.
fn unescape(text: &str) -> Result<Cow<'_, str>, Fault> {
    quick_xml::escape::unescape_with(text, quick_xml::escape::resolve_xml_entity).map_err(|error| match error
    {
        quick_xml::escape::EscapeError::UnrecognizedEntity(..) => Fault::Restricted("an entity of its own"),
        _ => Fault::Malformed("a reference that is none"),
    })
}

impl Received {
    /// The stanza, if it is one.
    pub fn stanza(self) -> Option<Element> {
        match self {
            Self::Stanza(element) => Some(element),
            Self::Opened(_) | Self::TooLarge(_) | Self::Closed => None,
        }
    }
}

/// Reads one stanza from text that stands on its own; for tests and golden files.
///
/// # Errors
///
/// The fault, or `None` where it is not one whole element.
pub fn read_one(xml: &str) -> Result<Element, Option<StreamFault>> {
    let mut reader = StreamReader::new(Limits::default());
    reader.push(b"<stream>");
    reader.push(xml.as_bytes());
    reader.poll()?;
    reader.poll()?.and_then(Received::stanza).ok_or(None)
}
