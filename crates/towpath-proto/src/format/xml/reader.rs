//! Namespace-aware pull reader with limits, on top of quick-xml.

use std::borrow::Cow;
use std::io::BufRead;

use quick_xml::Reader;
use quick_xml::events::Event;
use quick_xml::events::attributes::Attributes;
use quick_xml::name::{Namespace, NamespaceResolver, QName, ResolveResult};
use url::Url;

use super::namespaces::Ns;
use super::references::LineEnds;
use super::token::{RawAttribute, Reference, Tag, XmlToken};
use crate::format::budget::Budget;
use crate::format::error::FormatError;
use crate::format::limits::DocumentLimits;
use crate::format::position::shortened;
use crate::format::problems::Problems;

/// Maximum attributes of an element, whatever the limits allow: their names are compared in pairs.
const MAX_ATTRIBUTES: usize = 256;

/// Pull reader that resolves namespaces, `xml:base` and references.
///
/// Memory is bounded: nesting, attributes and namespace declarations have limits, and repetition has a
/// [`Budget`]. Entities of a DTD are never expanded, which rules out entity bombs.
pub(crate) struct XmlReader<'i> {
    pub(super) text: &'i str,
    pub(super) reader: Reader<&'i [u8]>,
    namespaces: NamespaceResolver,
    attributes: Vec<RawAttribute<'i>>,
    /// Offsets of the open elements' `<`.
    pub(super) open: Vec<usize>,
    /// Bases in effect, each with the depth of the element that set it.
    pub(super) bases: Vec<(usize, Option<Url>)>,
    /// `true` if the last start was of an empty element, so that its end comes next.
    pending_end: bool,
    /// Cache of the last resolved prefix, valid until a declaration comes or goes. Most elements share it.
    last_resolved: Option<(&'i str, Ns)>,
    pub(super) budget: Budget,
    pub(super) has_carriage_returns: bool,
    /// `true` in our own documents, whose addresses are as the items have them.
    pub(crate) keeps_addresses: bool,
    /// URL of the feed's page, once the document has told it.
    pub(super) home: Option<Url>,
    /// `true` where the feed's page comes before the document's own URL: in items of RSS.
    pub(crate) prefers_home: bool,
    pub(super) declares_entities: bool,
    pub(super) problems: Problems,
}

impl<'i> XmlReader<'i> {
    /// Creates a reader of `text` that resolves relative URLs against `base_url`.
    pub(crate) fn new(text: &'i str, base_url: Option<&str>) -> Self {
        Self::with_budget(text, base_url, Budget::new(text.len(), DocumentLimits::default()))
    }

    /// Creates a reader within a budget.
    pub(crate) fn with_budget(text: &'i str, base_url: Option<&str>, budget: Budget) -> Self {
        // Text may start with a byte order mark that decoding has left.
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
            budget,
            has_carriage_returns: memchr::memchr(b'\r', text.as_bytes()).is_some(),
            declares_entities: false,
            keeps_addresses: false,
            home: None,
            prefers_home: false,
            problems: Problems::default(),
        }
    }

    /// Returns the number of open elements.
    pub(crate) fn depth(&self) -> usize {
        self.open.len()
    }

    /// Returns the next token. Comments, processing instructions and a harmless DOCTYPE are skipped.
    pub(crate) fn next(&mut self) -> Result<XmlToken<'i>, FormatError> {
        // An empty element gives a start and an end, so that callers need no third case.
        if self.pending_end {
            self.pending_end = false;
            self.close();
            return Ok(XmlToken::End);
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
                    return Ok(XmlToken::End);
                }
                Ok(Event::Text(text)) => return self.character_data(text.into_inner()),
                Ok(Event::CData(text)) => return self.character_data(text.into_inner()),
                Ok(Event::GeneralRef(name)) => {
                    return Ok(XmlToken::Text(match self.reference(&name, before)? {
                        Reference::Text(text) => text,
                        Reference::Character(character) => Cow::Owned(character.into()),
                    }));
                }
                Ok(Event::DocType(doctype)) => {
                    // Only remembered: an undeclared entity then gets an error that explains the limit.
                    self.declares_entities |= doctype.contains("<!ENTITY");
                }
                Ok(Event::Decl(_) | Event::PI(_) | Event::Comment(_)) => {}
                // Cut input is an error at the innermost open element, not a silent end.
                Ok(Event::Eof) => return self.end_of_input(),
                Err(error) => return Err(self.syntax_error(&error)),
            }
        }
    }

    /// Returns the text of the element that was just started, and consumes its end. Child elements contribute
    /// their text.
    pub(crate) fn text(&mut self) -> Result<Cow<'i, str>, FormatError> {
        let outside = self.depth() - 1;
        let mut whole = self.leading_text()?;
        loop {
            match self.next()? {
                XmlToken::Text(text) if whole.is_empty() => whole = text,
                XmlToken::Text(text) => whole.to_mut().push_str(&text),
                XmlToken::End if self.depth() == outside => {
                    self.budget.text(whole.len())?;
                    return Ok(whole);
                }
                XmlToken::Start(_) | XmlToken::End => {}
                XmlToken::Eof => return Ok(whole),
            }
        }
    }

    /// As [`Self::text`], but trimmed unless `xml:space` is `preserve`.
    pub(crate) fn trimmed_text(&mut self) -> Result<String, FormatError> {
        let keep = self.raw_attribute("xml:space") == Some("preserve");
        let text = self.text()?;
        // Most texts are tight ASCII: a look at both ends avoids the scan.
        let is_tight = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_graphic());
        let tight = is_tight(text.as_bytes().first()) && is_tight(text.as_bytes().last());
        Ok(match text {
            text if keep || tight => text.into_owned(),
            Cow::Borrowed(text) => text.trim().to_owned(),
            Cow::Owned(text) if text.trim().len() == text.len() => text,
            Cow::Owned(text) => text.trim().to_owned(),
        })
    }

    /// Skips the element that was just started.
    pub(crate) fn skip(&mut self) -> Result<(), FormatError> {
        let outside = self.depth() - 1;
        while self.depth() > outside {
            self.next()?;
        }
        Ok(())
    }

    /// Takes the attributes of the tag that was just started, until the next tag or until they are given
    /// back.
    pub(super) fn take_attributes(&mut self) -> Vec<RawAttribute<'i>> {
        std::mem::take(&mut self.attributes)
    }

    /// Returns the memory of [`Self::take_attributes`] for the next tag.
    pub(super) fn give_back(&mut self, attributes: Vec<RawAttribute<'i>>) {
        self.attributes = attributes;
    }

    /// Returns the attributes of the tag that was just started, as written.
    pub(crate) fn raw_attributes(&self) -> &[RawAttribute<'i>] {
        &self.attributes
    }

    fn raw_attribute(&self, name: &str) -> Option<&'i str> {
        self.attributes.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }

    /// Returns the value of the attribute of the current tag with this name and no prefix (or `xml:…`).
    pub(crate) fn attribute(&mut self, name: &str) -> Result<Option<Cow<'i, str>>, FormatError> {
        self.raw_attribute(name).map(|raw| self.attribute_value(raw)).transpose()
    }

    /// Returns the value of the attribute of the current tag with this name in this namespace.
    pub(crate) fn attribute_in(&mut self, ns: Ns, local: &str) -> Result<Option<Cow<'i, str>>, FormatError> {
        let found = self.attributes.iter().find(|(name, _)| {
            let (name, prefix) = QName(name).decompose();
            name.as_ref() == local
                && prefix
                    .is_some_and(|p| Self::namespace(&self.namespaces.resolve_prefix(Some(p), false)) == ns)
        });
        found.map(|(_, raw)| *raw).map(|raw| self.attribute_value(raw)).transpose()
    }

    /// Returns the namespace bound to a prefix (or to none) at this position; empty if unbound.
    pub(crate) fn bound_to(&self, prefix: Option<&str>) -> String {
        let name = prefix.map(|p| format!("{p}:n"));
        let prefix = name.as_deref().and_then(|n| QName(n).prefix());
        match self.namespaces.resolve_prefix(prefix, true) {
            ResolveResult::Bound(Namespace(name)) => name.to_owned(),
            _ => String::new(),
        }
    }

    /// Accepts only white space and comments up to the end of the input.
    pub(crate) fn finish(&mut self) -> Result<(), FormatError> {
        loop {
            let before = self.offset();
            match self.next()? {
                XmlToken::Eof => return Ok(()),
                XmlToken::Text(text) if text.trim().is_empty() => {}
                _ => return Err(self.malformed(before, "content after the end of the document")),
            }
        }
    }

    /// Returns `true` if the current tag is of an empty element.
    pub(super) fn is_empty_element(&self) -> bool {
        self.pending_end
    }

    /// Returns the end of the current token.
    pub(super) fn offset(&self) -> usize {
        usize::try_from(self.reader.buffer_position()).unwrap_or(usize::MAX).min(self.text.len())
    }

    /// Handles a start tag of `length` bytes between `<` and an end of `closing` bytes.
    fn opened(
        &mut self,
        length: usize,
        name_end: usize,
        closing: usize,
    ) -> Result<XmlToken<'i>, FormatError> {
        let end = self.offset() - closing;
        let start = end - length;
        let content = &self.text[start..end];
        let offset = start.saturating_sub(1);
        // Checked before the element is stored, so that hostile nesting costs no memory.
        let limits = self.budget.limits;
        if self.open.len() >= limits.depth {
            let reason = format!("elements nested deeper than {} (limit: depth)", limits.depth);
            return Err(FormatError::Limit(reason));
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
        // Consecutive elements nearly always share a prefix; resolving it is a search of all declarations.
        let ns = match self.last_resolved {
            Some((last, ns)) if same(last, prefix) => ns,
            _ => self.resolve_element(name, prefix, offset)?,
        };
        Ok(XmlToken::Start(Tag { ns, local, name, offset }))
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
        // Duplicates are checked here, because quick-xml's check allocates for every tag.
        for attribute in Attributes::new(content, from).with_checks(false) {
            let attribute = attribute.map_err(|e| self.attribute_error(&e, offset))?;
            let (Cow::Borrowed(value), name) = (attribute.value, attribute.key.into_inner()) else {
                continue;
            };
            if self.raw_attribute(name).is_some() {
                return Err(self.malformed(offset, format!("duplicate attribute {}", shortened(name))));
            }
            // The duplicate check is quadratic in the number of attributes, so that number is bounded.
            let most = self.budget.limits.members.min(MAX_ATTRIBUTES);
            if self.attributes.len() == most {
                let reason = format!("an element with more than {most} attributes (limit: members)");
                return Err(FormatError::Limit(reason));
            }
            if let Some(prefix) = attribute.key.as_namespace_binding() {
                self.namespaces.set_level(self.level());
                self.last_resolved = None;
                let bound = self.namespaces.add(prefix, Namespace(value));
                bound.map_err(|e| self.namespace_error(&e, offset))?;
            } else if name == "xml:base" {
                // `xml:base` nests: each value is relative to the base around it.
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
        // After the loop: a declaration may follow the attribute that uses it.
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
        // Declarations and bases end with the element that made them.
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

    /// Returns the text up to the next tag if it needs no unescaping, without creating events: most texts
    /// qualify. Otherwise empty.
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

    /// Returns the text up to the next tag if it is the element's whole text. This is by far the most common
    /// case and needs no events.
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
        let text = self.unescape(&rest[..length], start, LineEnds::Normalize)?;
        Ok(text)
    }

    fn character_data(&self, text: Cow<'i, str>) -> Result<XmlToken<'i>, FormatError> {
        if !self.has_carriage_returns || !text.contains('\r') {
            return Ok(XmlToken::Text(text));
        }
        Ok(XmlToken::Text(Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n"))))
    }
}

/// Compares prefixes. Most are empty, and a call of memcmp costs more than this test.
pub(super) fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && (a.is_empty() || a == b)
}
