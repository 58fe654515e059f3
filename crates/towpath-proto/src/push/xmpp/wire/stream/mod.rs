//! Incremental parser of a stream of stanzas (RFC 6120, section 4). Enforces section 11.1: no comments,
//! processing instructions, document types, or entities beyond the five of XML.
//!
//! Memory is bounded. A stanza that exceeds a limit is skipped and reported by its start tag: it belongs to a
//! single sender, and the stream to all of them. Malformed XML ends the stream.

mod event;
mod fault;
mod names;
mod token;

use std::borrow::Cow;

use quick_xml::events::attributes::Attributes;
use quick_xml::name::{Namespace, NamespaceResolver, QName, ResolveResult};

use super::stanza::{Attribute, Element, ElementNode};
use crate::format::xml::is_xml_text;
pub use event::{Received, StreamLimits};
pub use fault::{StreamError, StreamErrorReason};
use names::{NameInterner, is_name};
use token::{StreamToken, StreamTokenKind, StreamTokenizer};

/// Parser of a stream.
#[derive(Debug)]
pub struct StreamReader {
    limits: StreamLimits,
    tokens: StreamTokenizer,
    namespaces: NamespaceResolver,
    known: NameInterner,
    /// Names of the open elements as written, the stream's first.
    open: Vec<String>,
    /// Number of open elements within a skipped stanza, the stanza included.
    discarding: usize,
    /// Start tag of the skipped stanza.
    discarded: Option<Element>,
    /// Open elements of the stanza.
    stack: Vec<Element>,
    stanza_bytes: usize,
    nodes: usize,
    closed: bool,
}

impl StreamReader {
    /// Creates a parser at the beginning of a stream.
    pub fn new(limits: StreamLimits) -> Self {
        Self {
            tokens: StreamTokenizer::new(limits.stanza_bytes),
            limits,
            namespaces: NamespaceResolver::default(),
            known: NameInterner::default(),
            open: Vec::new(),
            discarding: 0,
            discarded: None,
            stack: Vec::new(),
            stanza_bytes: 0,
            nodes: 0,
            closed: false,
        }
    }

    /// Appends received bytes. Call [`Self::poll`] until it returns `None`.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.closed {
            self.tokens.push(bytes);
        }
    }

    /// Returns the number of buffered bytes of an incomplete token.
    pub fn buffered(&self) -> usize {
        self.tokens.buffered()
    }

    /// Returns the next event, if it is complete.
    ///
    /// # Errors
    ///
    /// Returns [`StreamError`]; the stream ends with it.
    pub fn poll(&mut self) -> Result<Option<Received>, StreamError> {
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
                // Stream errors are unrecoverable (RFC 6120, section 4.9.1.1): where the next token begins is
                // unknown.
                Err(reason) => {
                    self.closed = true;
                    return Err(StreamError { reason, offset });
                }
            }
        }
        Ok(None)
    }

    fn take(&mut self, token: &StreamToken) -> Result<Option<Received>, StreamErrorReason> {
        // The length counts even while skipping, so that the counters are right at the stanza's end.
        if self.open.len() > 1
            || self.discarding > 0
            || matches!(token.kind, StreamTokenKind::Start | StreamTokenKind::Empty)
        {
            self.stanza_bytes = self.stanza_bytes.saturating_add(token.length);
        }
        match token.kind {
            StreamTokenKind::Declaration => Ok(None),
            StreamTokenKind::Text | StreamTokenKind::CData => self.text(token).map(|()| None),
            StreamTokenKind::Start => self.start(token, false),
            StreamTokenKind::Empty => self.start(token, true),
            StreamTokenKind::End => self.end(token),
        }
    }

    fn text(&mut self, token: &StreamToken) -> Result<(), StreamErrorReason> {
        if self.discarding > 0 {
            return Ok(());
        }
        // The tokenizer drops the bytes of an oversized token. Between stanzas that is a whitespace
        // keepalive.
        let Some(bytes) = &token.bytes else {
            return if self.stack.is_empty() { Ok(()) } else { self.discard() };
        };
        let text = std::str::from_utf8(bytes).map_err(|_| StreamErrorReason::Encoding)?;
        let text = match token.kind {
            StreamTokenKind::CData => lines(text),
            _ => unescape(&lines(text))?.into_owned().into(),
        };
        if !is_xml_text(&text) {
            return Err(StreamErrorReason::Malformed("a character that XML does not allow"));
        }
        // Whitespace between stanzas is a keepalive (RFC 6120, 4.6.1).
        if self.stack.is_empty() {
            let is_space = text.chars().all(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
            return if is_space { Ok(()) } else { Err(StreamErrorReason::Malformed("text between stanzas")) };
        }
        if self.is_over() {
            return self.discard();
        }
        self.nodes += 1;
        let Some(parent) = self.stack.last_mut() else { return Ok(()) };
        match parent.nodes.last_mut() {
            Some(ElementNode::Text(before)) => before.push_str(&text),
            _ => parent.nodes.push(ElementNode::Text(text.into_owned())),
        }
        Ok(())
    }

    /// Returns `true` if the stanza exceeds a limit of bytes or nodes.
    fn is_over(&self) -> bool {
        self.stanza_bytes > self.limits.stanza_bytes || self.nodes >= self.limits.nodes
    }

    /// Starts to skip the current stanza.
    fn discard(&mut self) -> Result<(), StreamErrorReason> {
        self.discarding = self.stack.len();
        if let Some(first) = self.stack.drain(..).next() {
            self.discarded = Some(Element { nodes: Vec::new(), ..first });
        }
        // Names of skipped elements are not stored: a deep stanza costs no memory. Their number is enough to
        // find the end.
        self.open.truncate(1);
        self.namespaces.set_level(1);
        Ok(())
    }

    fn start(&mut self, token: &StreamToken, is_empty: bool) -> Result<Option<Received>, StreamErrorReason> {
        if self.discarding > 0 {
            self.discarding += usize::from(!is_empty);
            return Ok(None);
        }
        let is_root = self.open.is_empty();
        if is_root && token.bytes.is_none() {
            return Err(StreamErrorReason::TooLarge(self.limits.stanza_bytes));
        }
        // A stanza that is too deep is skipped like one that is too large. The stream goes on behind it.
        let read = if self.is_over() || self.open.len() > self.limits.depth {
            None
        } else {
            self.nodes += 1;
            token.bytes.as_deref().map(|bytes| self.element(bytes)).transpose()?.flatten()
        };
        let Some((name, element)) = read else {
            return if is_root {
                Err(StreamErrorReason::TooLarge(self.limits.stanza_bytes))
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

    /// Skips an element that exceeds a limit, and its stanza.
    fn skip(&mut self, is_empty: bool) -> Result<Option<Received>, StreamErrorReason> {
        self.discard()?;
        self.discarding += usize::from(!is_empty);
        Ok(if self.discarding == 0 { self.finish_discarded() } else { None })
    }

    fn end(&mut self, token: &StreamToken) -> Result<Option<Received>, StreamErrorReason> {
        // An end tag is shorter than its start tag, which was within the limit. So this one closes nothing.
        let bytes = token.bytes.as_deref().ok_or(StreamErrorReason::TooLarge(self.limits.stanza_bytes))?;
        if self.discarding > 0 {
            self.discarding -= 1;
            return Ok(if self.discarding == 0 { self.finish_discarded() } else { None });
        }
        let name = std::str::from_utf8(bytes).map_err(|_| StreamErrorReason::Encoding)?;
        let name = name.trim_end_matches([' ', '\t', '\n', '\r']);
        if self.open.last().is_none_or(|open| open != name) {
            return Err(StreamErrorReason::Malformed("an end tag of another name"));
        }
        if self.open.len() == 1 {
            self.open.pop();
            self.closed = true;
            return Ok(Some(Received::Closed));
        }
        Ok(self.close())
    }

    /// Closes the innermost element.
    fn close(&mut self) -> Option<Received> {
        self.open.pop();
        let level = u16::try_from(self.open.len()).unwrap_or(u16::MAX);
        if self.namespaces.level() > level {
            self.namespaces.set_level(level);
        }
        let element = self.stack.pop()?;
        if let Some(parent) = self.stack.last_mut() {
            parent.nodes.push(ElementNode::Element(element));
            return None;
        }
        (self.stanza_bytes, self.nodes) = (0, 0);
        Some(Received::Stanza(element))
    }

    fn finish_discarded(&mut self) -> Option<Received> {
        (self.stanza_bytes, self.nodes) = (0, 0);
        self.discarded.take().map(Received::TooLarge)
    }

    /// Parses a start tag without its brackets. `None` if it has too many attributes.
    fn element(&mut self, bytes: &[u8]) -> Result<Option<(String, Element)>, StreamErrorReason> {
        let content = std::str::from_utf8(bytes).map_err(|_| StreamErrorReason::Encoding)?;
        let name_end = content.find([' ', '\t', '\n', '\r']).unwrap_or(content.len());
        let name = &content[..name_end];
        if !is_name(name) {
            return Err(StreamErrorReason::Malformed("a tag without a proper name"));
        }
        let Some(written) = self.attributes(content, name_end)? else { return Ok(None) };
        let (resolved, local) = self.namespaces.resolve_element(QName(name));
        let ns = match resolved {
            ResolveResult::Bound(Namespace(ns)) => self.known.get(ns),
            ResolveResult::Unbound => self.known.get(""),
            ResolveResult::Unknown(_) => return Err(StreamErrorReason::Malformed("an undeclared prefix")),
        };
        let mut attributes: Vec<Attribute> = Vec::with_capacity(written.len());
        for (name, value) in written {
            let (resolved, local) = self.namespaces.resolve_attribute(QName(name));
            let ns = match resolved {
                ResolveResult::Bound(Namespace(ns)) => Some(self.known.get(ns)),
                ResolveResult::Unbound => None,
                ResolveResult::Unknown(_) => {
                    return Err(StreamErrorReason::Malformed("an undeclared prefix"));
                }
            };
            let local = local.as_ref();
            // Two prefixes may be bound to the same namespace, so duplicates show only after resolving.
            if attributes.iter().any(|known| known.name == local && known.ns == ns) {
                return Err(StreamErrorReason::Malformed("a duplicate attribute"));
            }
            attributes.push(Attribute { ns, name: local.to_owned(), value });
        }
        let element = Element { name: local.as_ref().to_owned(), ns, attributes, nodes: Vec::new() };
        Ok(Some((name.to_owned(), element)))
    }

    /// Parses a tag's attributes and adds its namespace declarations.
    fn attributes<'t>(
        &mut self,
        content: &'t str,
        name_end: usize,
    ) -> Result<Option<Vec<(&'t str, String)>>, StreamErrorReason> {
        let mut written = Vec::new();
        let mut count = 0;
        let mut declared: Vec<&str> = Vec::new();
        // The check of quick-xml for duplicates does not resolve namespaces.
        for attribute in Attributes::new(content, name_end).with_checks(false) {
            let attribute =
                attribute.map_err(|_| StreamErrorReason::Malformed("an attribute without a proper value"))?;
            count += 1;
            if count > self.limits.attributes {
                return Ok(None);
            }
            let Cow::Borrowed(raw) = attribute.value else { continue };
            let name = attribute.key.into_inner();
            if !is_name(name) || raw.contains('<') {
                return Err(StreamErrorReason::Malformed("an attribute without a proper name or value"));
            }
            let value = unescape(&spaces(raw))?.into_owned();
            if !is_xml_text(&value) {
                return Err(StreamErrorReason::Malformed("a character that XML does not allow"));
            }
            let Some(prefix) = attribute.key.as_namespace_binding() else {
                written.push((name, value));
                continue;
            };
            if declared.contains(&name) {
                return Err(StreamErrorReason::Malformed("a prefix that is declared twice"));
            }
            declared.push(name);
            let level = u16::try_from(self.open.len() + 1).unwrap_or(u16::MAX);
            self.namespaces.set_level(level);
            let added = self.namespaces.add(prefix, Namespace(&value));
            added.map_err(|_| StreamErrorReason::Malformed("a namespace that cannot be declared"))?;
        }
        Ok(Some(written))
    }
}

/// Normalizes line ends (XML 1.0, 2.11).
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
fn unescape(text: &str) -> Result<Cow<'_, str>, StreamErrorReason> {
    quick_xml::escape::unescape_with(text, quick_xml::escape::resolve_xml_entity).map_err(|error| match error
    {
        quick_xml::escape::EscapeError::UnrecognizedEntity(..) => {
            StreamErrorReason::Restricted("an entity of its own")
        }
        _ => StreamErrorReason::Malformed("an invalid reference"),
    })
}

/// Parses a single stanza from a standalone text, for tests and golden files.
///
/// # Errors
///
/// Returns the stream error, or `None` if the text is not exactly one element.
pub fn read_one(xml: &str) -> Result<Element, Option<StreamError>> {
    let mut reader = StreamReader::new(StreamLimits::default());
    reader.push(b"<stream>");
    reader.push(xml.as_bytes());
    reader.poll()?;
    reader.poll()?.and_then(Received::stanza).ok_or(None)
}

#[cfg(test)]
mod tests;
