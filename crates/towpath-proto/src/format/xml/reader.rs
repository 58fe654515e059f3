//! A namespace-aware pull reader with limits, over quick-xml's.

use std::borrow::Cow;
use std::io::BufRead;

use quick_xml::Reader;
use quick_xml::events::Event;
use quick_xml::events::attributes::Attributes;
use quick_xml::name::{Namespace, NamespaceResolver, QName, ResolveResult};
use url::Url;

use super::Ns;
use super::errors::shortened;
use super::references::Reference;
use crate::format::FormatError;
use crate::format::budget::Budget;

/// The deepest nesting of elements.
const MAX_DEPTH: usize = 256;
/// The most attributes of one element.
const MAX_ATTRIBUTES: usize = 256;

/// What the reader finds next. An empty element is a start and an end.
#[derive(Debug)]
pub(crate) enum Token<'i> {
    Start(Tag<'i>),
    /// Character data, a CDATA section, or a reference: unescaped, with `\n` for every line end.
    Text(Cow<'i, str>),
    End,
    Eof,
}

/// A start tag. Its attributes are asked of the reader, until the next tag is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tag<'i> {
    pub(crate) ns: Ns,
    /// The name without prefix.
    pub(crate) local: &'i str,
    /// The name as written.
    pub(crate) name: &'i str,
    /// Where its `<` is.
    pub(crate) offset: usize,
}

/// An attribute as written: its name, and its value before references are resolved.
pub(crate) type RawAttribute<'i> = (&'i str, &'i str);

/// Reads a document's elements one after another, resolving namespaces, `xml:base` and references.
///
/// Bounded: nesting, attributes and namespace declarations have limits, and so has what is repeated of the document
/// ([`Budget`]); entities that a DTD declares are never expanded.
pub(crate) struct XmlReader<'i> {
    pub(super) text: &'i str,
    pub(super) reader: Reader<&'i [u8]>,
    namespaces: NamespaceResolver,
    attributes: Vec<RawAttribute<'i>>,
    /// The open elements: where each one's `<` is.
    pub(super) open: Vec<usize>,
    /// The bases in effect, each with the depth of the element that set it.
    pub(super) bases: Vec<(usize, Option<Url>)>,
    /// The last start was of an empty element, whose end is still to be told.
    pending_end: bool,
    /// The prefix resolved last, as long as no declaration comes or goes: most elements have the same.
    last_resolved: Option<(&'i str, Ns)>,
    pub(super) budget: Budget,
    pub(super) has_carriage_returns: bool,
    pub(super) declares_entities: bool,
    pub(super) problems: Vec<String>,
    pub(super) unlisted_problems: usize,
}

impl<'i> Tag<'i> {
    /// The prefix of the name; empty where it has none.
    pub(super) fn prefix(&self) -> &'i str {
        &self.name[..(self.name.len() - self.local.len()).saturating_sub(1)]
    }
}

impl<'i> XmlReader<'i> {
    /// Reads `text`, resolving relative addresses against `base_url`.
    pub(crate) fn new(text: &'i str, base_url: Option<&str>) -> Self {
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
        Self {
            text,
            reader: Reader::from_str(text),
            namespaces: NamespaceResolver::default(),
            attributes: Vec::new(),
            open: Vec::new(),
            bases: vec![(0, base_url.and_then(|u| Url::parse(u).ok()))],
            pending_end: false,
            last_resolved: None,
            budget: Budget::new(text.len()),
            has_carriage_returns: memchr::memchr(b'\r', text.as_bytes()).is_some(),
            declares_entities: false,
            problems: Vec::new(),
            unlisted_problems: 0,
        }
    }

    /// How many elements are open.
    pub(crate) fn depth(&self) -> usize {
        self.open.len()
    }

    /// The next token. Comments, processing instructions and a harmless DOCTYPE are passed over.
    pub(crate) fn next(&mut self) -> Result<Token<'i>, FormatError> {
        if self.pending_end {
            self.pending_end = false;
            self.close();
            return Ok(Token::End);
        }
        loop {
            let before = self.offset();
            match self.reader.read_event() {
                Ok(Event::Start(tag)) => return self.opened(tag.len(), tag.name().0.len(), 1),
                Ok(Event::Empty(tag)) => {
                    let tag = self.opened(tag.len(), tag.name().0.len(), 2)?;
                    self.pending_end = true;
                    return Ok(tag);
                }
                Ok(Event::End(_)) => {
                    self.close();
                    return Ok(Token::End);
                }
                Ok(Event::Text(text)) => return self.character_data(text.into_inner()),
                Ok(Event::CData(text)) => return self.character_data(text.into_inner()),
                Ok(Event::GeneralRef(name)) => {
                    return Ok(Token::Text(match self.reference(&name, before)? {
                        Reference::Text(text) => Cow::Borrowed(text),
                        Reference::Character(character) => Cow::Owned(character.into()),
                    }));
                }
                Ok(Event::DocType(doctype)) => {
                    self.declares_entities |= doctype.contains("<!ENTITY");
                }
                Ok(Event::Decl(_) | Event::PI(_) | Event::Comment(_)) => {}
                Ok(Event::Eof) => return self.end_of_input(),
                Err(error) => return Err(self.syntax_error(&error)),
            }
        }
    }

    /// The text of the element just started, up to its end, which is consumed. Elements within give only
    /// their text.
    pub(crate) fn text(&mut self) -> Result<Cow<'i, str>, FormatError> {
        let outside = self.depth() - 1;
        let mut whole = self.leading_text()?;
        loop {
            match self.next()? {
                Token::Text(text) if whole.is_empty() => whole = text,
                Token::Text(text) => whole.to_mut().push_str(&text),
                Token::End if self.depth() == outside => return Ok(whole),
                Token::Start(_) | Token::End => {}
                Token::Eof => return Ok(whole),
            }
        }
    }

    /// As [`Self::text`], without white space around it unless `xml:space` says to keep it.
    pub(crate) fn trimmed_text(&mut self) -> Result<String, FormatError> {
        let keep = self.raw_attribute("xml:space") == Some("preserve");
        let text = self.text()?;
        // Without white space at its ends, which are ASCII more often than not.
        let is_tight = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_graphic());
        let tight = is_tight(text.as_bytes().first()) && is_tight(text.as_bytes().last());
        Ok(match text {
            text if keep || tight => text.into_owned(),
            Cow::Borrowed(text) => text.trim().to_owned(),
            Cow::Owned(text) if text.trim().len() == text.len() => text,
            Cow::Owned(text) => text.trim().to_owned(),
        })
    }

    /// Passes over the element just started.
    pub(crate) fn skip(&mut self) -> Result<(), FormatError> {
        let outside = self.depth() - 1;
        while self.depth() > outside {
            self.next()?;
        }
        Ok(())
    }

    /// Lends out the attributes of the tag just started, until the next tag is read or they are given back.
    pub(super) fn take_attributes(&mut self) -> Vec<RawAttribute<'i>> {
        std::mem::take(&mut self.attributes)
    }

    /// Takes back what [`Self::take_attributes`] lent out, whose memory serves for the next tag.
    pub(super) fn give_back(&mut self, attributes: Vec<RawAttribute<'i>>) {
        self.attributes = attributes;
    }

    /// The attributes of the tag just started, as written.
    pub(crate) fn raw_attributes(&self) -> &[RawAttribute<'i>] {
        &self.attributes
    }

    fn raw_attribute(&self, name: &str) -> Option<&'i str> {
        self.attributes.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }

    /// The value of the attribute of the tag just started that has this name and no prefix (or `xml:…`).
    pub(crate) fn attribute(&mut self, name: &str) -> Result<Option<Cow<'i, str>>, FormatError> {
        self.raw_attribute(name).map(|raw| self.attribute_value(raw)).transpose()
    }

    /// The value of the attribute of the tag just started that has this name in this namespace.
    pub(crate) fn attribute_in(&mut self, ns: Ns, local: &str) -> Result<Option<Cow<'i, str>>, FormatError> {
        let found = self.attributes.iter().find(|(name, _)| {
            let (name, prefix) = QName(name).decompose();
            name.as_ref() == local
                && prefix
                    .is_some_and(|p| Self::namespace(&self.namespaces.resolve_prefix(Some(p), false)) == ns)
        });
        found.map(|(_, raw)| *raw).map(|raw| self.attribute_value(raw)).transpose()
    }

    /// The name of the namespace that a prefix (or none) is bound to here; empty where it is unbound.
    pub(crate) fn bound_to(&self, prefix: Option<&str>) -> String {
        let name = prefix.map(|p| format!("{p}:n"));
        let prefix = name.as_deref().and_then(|n| QName(n).prefix());
        match self.namespaces.resolve_prefix(prefix, true) {
            ResolveResult::Bound(Namespace(name)) => name.to_owned(),
            _ => String::new(),
        }
    }

    /// Expects nothing but white space and comments up to the end of the input.
    pub(crate) fn finish(&mut self) -> Result<(), FormatError> {
        loop {
            let before = self.offset();
            match self.next()? {
                Token::Eof => return Ok(()),
                Token::Text(text) if text.trim().is_empty() => {}
                _ => return Err(self.malformed(before, "there is more after the end of the document")),
            }
        }
    }

    /// Whether the tag just started is of an empty element.
    pub(super) fn is_empty_element(&self) -> bool {
        self.pending_end
    }

    /// Where the token just read ends.
    pub(super) fn offset(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).unwrap_or(usize::MAX).min(self.text.len())
    }

    /// A start tag of `length` bytes between `<` and its end of `closing` bytes was read.
    fn opened(&mut self, length: usize, name_end: usize, closing: usize) -> Result<Token<'i>, FormatError> {
        let end = self.offset() - closing;
        let start = end - length;
        let content = &self.text[start..end];
        let offset = start.saturating_sub(1);
        if self.open.len() >= MAX_DEPTH {
            return Err(FormatError::Limit(format!("elements nested deeper than {MAX_DEPTH}")));
        }
        self.open.push(offset);
        let name = &content[..name_end];
        if name.is_empty() {
            return Err(self.malformed(offset, "a tag without a name"));
        }
        self.attributes.clear();
        if name_end < content.len() {
            self.read_attributes(content, name_end, offset)?;
        }
        let (prefix, local) = match name.bytes().position(|b| b == b':') {
            Some(colon) => (&name[..colon], &name[colon + 1..]),
            None => ("", name),
        };
        let ns = match self.last_resolved {
            Some((last, ns)) if same(last, prefix) => ns,
            _ => self.resolve_element(name, prefix, offset)?,
        };
        Ok(Token::Start(Tag { ns, local, name, offset }))
    }

    fn resolve_element(&mut self, name: &'i str, prefix: &'i str, at: usize) -> Result<Ns, FormatError> {
        let ns = match self.namespaces.resolve_element(QName(name)).0 {
            ResolveResult::Unknown(prefix) => {
                return Err(
                    self.malformed(at, format!("the prefix of <{}:…> is not declared", shortened(&prefix)))
                );
            }
            resolved => Self::namespace(&resolved),
        };
        self.last_resolved = Some((prefix, ns));
        Ok(ns)
    }

    fn read_attributes(&mut self, content: &'i str, from: usize, offset: usize) -> Result<(), FormatError> {
        let mut prefixed = false;
        // The check for duplicates is ours, because quick-xml's takes memory for every tag.
        for attribute in Attributes::new(content, from).with_checks(false) {
            let attribute = attribute.map_err(|e| self.attribute_error(&e, offset))?;
            let (Cow::Borrowed(value), name) = (attribute.value, attribute.key.into_inner()) else {
                continue;
            };
            if self.raw_attribute(name).is_some() {
                return Err(
                    self.malformed(offset, format!("attribute {} stands there twice", shortened(name)))
                );
            }
            if self.attributes.len() == MAX_ATTRIBUTES {
                let reason = format!("an element with more than {MAX_ATTRIBUTES} attributes");
                return Err(FormatError::Limit(reason));
            }
            if let Some(prefix) = attribute.key.as_namespace_binding() {
                self.namespaces.set_level(self.level());
                self.last_resolved = None;
                let bound = self.namespaces.add(prefix, Namespace(value));
                bound.map_err(|e| self.namespace_error(&e, offset))?;
            } else if name == "xml:base" {
                let value = self.attribute_value(value)?;
                let base = Url::parse(&self.resolve(&value)?).ok();
                self.bases.push((self.depth(), base));
            } else {
                prefixed |= name.contains(':');
            }
            self.attributes.push((name, value));
        }
        if !prefixed {
            return Ok(());
        }
        for (name, _) in &self.attributes {
            let Some(prefix) = QName(name).prefix().filter(|p| !p.is_xmlns()) else { continue };
            if let ResolveResult::Unknown(_) = self.namespaces.resolve_prefix(Some(prefix), false) {
                return Err(self.malformed(offset, format!("the prefix of attribute {name} is not declared")));
            }
        }
        Ok(())
    }

    fn level(&self) -> u16 {
        u16::try_from(self.open.len()).unwrap_or(u16::MAX)
    }

    fn close(&mut self) {
        if self.namespaces.level() >= self.level() {
            self.namespaces.set_level(self.level().saturating_sub(1));
            self.last_resolved = None;
        }
        if self.bases.last().is_some_and(|(depth, _)| *depth == self.open.len()) && self.bases.len() > 1 {
            self.bases.pop();
        }
        self.open.pop();
    }

    fn namespace(resolved: &ResolveResult<'_>) -> Ns {
        match resolved {
            ResolveResult::Bound(Namespace(name)) => Ns::of(name),
            ResolveResult::Unbound => Ns::Rss,
            ResolveResult::Unknown(_) => Ns::Other,
        }
    }

    /// The text up to the next tag, where it can stay as it is written: most can, and needs no events. Empty where it
    /// cannot.
    pub(super) fn plain_text(&mut self) -> &'i str {
        let rest = &self.text[self.offset()..];
        let length = match memchr::memchr3(b'<', b'&', b'>', rest.as_bytes()) {
            Some(length) if !self.pending_end && rest.as_bytes()[length] == b'<' => length,
            _ => return "",
        };
        let text = &rest[..length];
        if self.has_carriage_returns && text.contains('\r') {
            return "";
        }
        self.reader.stream().consume(length);
        text
    }

    /// The text between the tag just started and the next tag, where it is the element's whole text: by far
    /// the most common case, which needs no events.
    fn leading_text(&mut self) -> Result<Cow<'i, str>, FormatError> {
        let start = self.offset();
        let rest = &self.text[start..];
        let Some(length) = memchr::memchr(b'<', rest.as_bytes()).filter(|_| !self.pending_end) else {
            return Ok(Cow::Borrowed(""));
        };
        if length == 0 || rest.as_bytes().get(length + 1) != Some(&b'/') {
            return Ok(Cow::Borrowed(""));
        }
        self.reader.stream().consume(length);
        let text = self.unescape(&rest[..length], start, true)?;
        Ok(text)
    }

    fn character_data(&self, text: Cow<'i, str>) -> Result<Token<'i>, FormatError> {
        if !self.has_carriage_returns || !text.contains('\r') {
            return Ok(Token::Text(text));
        }
        Ok(Token::Text(Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n"))))
    }
}

/// Whether two prefixes are the same. Most are empty, which a comparison of memory is too slow to find out.
pub(super) fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}
