//! Tags that are wrong, missing or in the wrong order.

use super::super::errors::place;
use super::super::namespaces::well_known;
use super::super::write::push_text;
use super::{Open, Repair};
use crate::format::error::FormatError;
use crate::format::position::{line_and_column, shortened};

/// Maximum number of attributes of a tag that are kept.
const MAX_ATTRIBUTES: usize = 256;

/// Parts of a start tag.
struct StartTag<'i> {
    name: &'i str,
    attributes: Vec<(&'i str, &'i str, usize)>,
    is_empty: bool,
    /// Length with both brackets; `None` if the document ends within the tag.
    length: Option<usize>,
    /// The tag is not as XML wants it.
    is_wrong: bool,
}

impl<'i> Repair<'i, '_> {
    pub(super) fn start_tag(&mut self, rest: &'i str) -> Result<(), FormatError> {
        let offset = self.at;
        let Some(tag) = read_tag(rest) else {
            self.at += 1;
            if self.open.is_empty() {
                self.outside("<");
                return Ok(());
            }
            self.warn(offset, "a < that begins no tag is read as text (write &lt;)");
            return self.push("&lt;");
        };
        let Some(length) = tag.length else {
            // The strict reader then finds the end within a tag. What follows could look whole to it, by other quotes.
            self.out.push_str(&rest[..=tag.name.len()]);
            self.at = self.text.len();
            return Ok(());
        };
        self.at += length;
        if self.is_done {
            self.warn(
                offset,
                format_args!("<{}> behind the end of the document was dropped", shortened(tag.name)),
            );
            self.out.extend(rest[..length].chars().filter(|c| *c == '\n'));
            return Ok(());
        }
        if self.is_text(tag.name) {
            return self.tag_as_text(&rest[..length], offset);
        }
        self.close_before(tag.name, offset)?;
        self.write(&tag, &rest[..length], offset)
    }

    pub(super) fn end_tag(&mut self, rest: &'i str) -> Result<(), FormatError> {
        let offset = self.at;
        let Some(end) = memchr::memchr2(b'>', b'<', &rest.as_bytes()[2..]).map(|at| at + 2) else {
            self.out.push_str(rest);
            self.at = self.text.len();
            return Ok(());
        };
        let name = rest[2..end].split_whitespace().next().unwrap_or_default();
        let length = if rest.as_bytes()[end] == b'>' { end + 1 } else { end };
        self.at += length;
        let found = self.open.iter().rposition(|open| open.name == name);
        let found = found.or_else(|| self.open.iter().rposition(|open| open.name.eq_ignore_ascii_case(name)));
        let Some(at) = found else {
            if self.is_text(name) {
                return self.tag_as_text(&rest[..length], offset);
            }
            self.warn(offset, format_args!("</{}> without its start was dropped", shortened(name)));
            self.out.extend(rest[..length].chars().filter(|c| *c == '\n'));
            return Ok(());
        };
        if self.open[at].name != name {
            self.warn(
                offset,
                format_args!("</{}> ends <{}>", shortened(name), shortened(self.open[at].name)),
            );
        }
        self.close_to(at + 1, offset)?;
        // White space in an end tag may hold line breaks.
        self.close_last()?;
        self.out.extend(rest[..length].chars().filter(|c| *c == '\n'));
        Ok(())
    }

    /// Returns `true` for a tag that is part of a text, as HTML's are.
    fn is_text(&self, name: &str) -> bool {
        self.open.last().is_some_and(|open| open.holds_html) && !is_field(name)
    }

    fn tag_as_text(&mut self, tag: &str, offset: usize) -> Result<(), FormatError> {
        let name = self.open.last().map_or("", |open| open.name);
        self.warn(offset, format_args!("HTML within <{}> is read as text (write &lt;)", shortened(name)));
        // References stay as they are: escaped once more, they would be shown as text.
        let mut escaped = String::new();
        push_text(&mut escaped, tag);
        self.push(&escaped)
    }

    /// Closes what a start tag cannot be within: an item in an item, a field in a text.
    fn close_before(&mut self, name: &str, offset: usize) -> Result<(), FormatError> {
        if let Some(open) = self.open.last()
            && open.holds_html
            && self.open.len() > 1
        {
            self.close_to(self.open.len() - 1, offset)?;
        }
        // A field without an end tag ends where the next field begins.
        if is_field(name)
            && let Some(at) = self.open.iter().rposition(|open| is_leaf(open.name))
        {
            self.close_to(at, offset)?;
        }
        if is_item(name)
            && let Some(at) = self.open.iter().rposition(|open| is_item(open.name))
        {
            self.close_to(at, offset)?;
        }
        Ok(())
    }

    fn close_to(&mut self, depth: usize, offset: usize) -> Result<(), FormatError> {
        while self.open.len() > depth {
            if let Some(open) = self.open.last() {
                let (text, name, start) = (self.text, open.name, open.offset);
                // Only what is listed is looked up: each look-up reads the document from its beginning.
                self.problems.warn(|| {
                    let (line, column) = line_and_column(text.as_bytes(), start);
                    let name = shortened(name);
                    place(
                        text,
                        offset,
                        format_args!("<{name}> of line {line}, column {column} is not closed"),
                    )
                });
            }
            self.close_last()?;
        }
        Ok(())
    }

    fn close_last(&mut self) -> Result<(), FormatError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        for part in ["</", open.name, ">"] {
            self.out.push_str(part);
        }
        self.prefixes.truncate(open.prefixes);
        self.is_done = self.open.is_empty();
        Ok(())
    }

    fn write(&mut self, tag: &StartTag<'i>, source: &str, offset: usize) -> Result<(), FormatError> {
        if tag.is_wrong {
            self.warn(offset, format_args!("the tag <{}> is ill-formed", shortened(tag.name)));
        }
        let prefixes = self.prefixes.len();
        let declared = tag.attributes.iter().filter_map(|(name, ..)| name.strip_prefix("xmlns:"));
        self.prefixes.extend(declared);
        if self.open.len() >= self.budget.limits.depth {
            let reason = format!("elements nested deeper than {} (limit: depth)", self.budget.limits.depth);
            return Err(FormatError::Limit(reason));
        }
        let from = self.out.len();
        self.out.push('<');
        self.out.push_str(tag.name);
        for &(name, value, at) in &tag.attributes {
            self.attribute(name, value, offset + at)?;
        }
        let names = std::iter::once(tag.name).chain(tag.attributes.iter().map(|(name, ..)| *name));
        for name in names {
            self.declare(name, offset)?;
        }
        // Line breaks between attributes stay, so that later problems keep their lines.
        let breaks = |text: &str| memchr::memchr_iter(b'\n', text.as_bytes()).count();
        let missing = breaks(source).saturating_sub(breaks(&self.out[from..]));
        self.out.extend(std::iter::repeat_n('\n', missing));
        let is_empty = tag.is_empty || is_void(tag.name);
        if is_empty && !tag.is_empty {
            self.warn(offset, format_args!("<{}> has no end (write <{}/>)", tag.name, tag.name));
        }
        self.out.push_str(if is_empty { "/>" } else { ">" });
        if is_empty {
            self.prefixes.truncate(prefixes);
            self.is_done = self.open.is_empty();
            return Ok(());
        }
        let holds_html = !self.open.is_empty() && holds_html(tag);
        self.open.push(Open { name: tag.name, offset, prefixes, holds_html });
        Ok(())
    }

    fn attribute(&mut self, name: &str, value: &'i str, at: usize) -> Result<(), FormatError> {
        self.out.push(' ');
        self.out.push_str(name);
        self.out.push_str("=\"");
        let mut rest = value;
        while let Some(special) = memchr::memchr2(b'<', b'"', rest.as_bytes()) {
            self.references(&rest[..special], at + (value.len() - rest.len()))?;
            self.push(if rest.as_bytes()[special] == b'<' { "&lt;" } else { "&quot;" })?;
            rest = &rest[special + 1..];
        }
        self.references(rest, at + (value.len() - rest.len()))?;
        self.out.push('"');
        Ok(())
    }

    /// Declares the prefix of a name, if nothing else does.
    fn declare(&mut self, name: &'i str, offset: usize) -> Result<(), FormatError> {
        let Some((prefix, _)) = name.split_once(':') else { return Ok(()) };
        if matches!(prefix, "xml" | "xmlns" | "") || self.prefixes.iter().rev().any(|known| *known == prefix)
        {
            return Ok(());
        }
        // Searched for in all open elements, so their number must stay small.
        if self.prefixes.len() >= MAX_ATTRIBUTES {
            return Err(FormatError::Limit("more than 256 prefixes (limit: members)".into()));
        }
        self.prefixes.push(prefix);
        self.warn(offset, format_args!("the prefix {}: is not declared", shortened(prefix)));
        let namespace = well_known(prefix).unwrap_or("urn:x-towpath:undeclared");
        self.push(&format!(" xmlns:{prefix}=\"{namespace}\""))
    }
}

/// Reads a start tag; `None` if a `<` begins none.
fn read_tag(rest: &str) -> Option<StartTag<'_>> {
    let bytes = rest.as_bytes();
    let name_end = (1..bytes.len()).find(|at| !is_name_byte(bytes[*at])).unwrap_or(bytes.len());
    let name = &rest[1..name_end];
    if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') || name.ends_with(':') {
        return None;
    }
    let mut tag = StartTag { name, attributes: Vec::new(), is_empty: false, length: None, is_wrong: false };
    // A second colon is part of no name.
    tag.is_wrong = name.matches(':').count() > 1;
    let mut at = name_end;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'>' => {
                tag.length = Some(at + 1);
                return Some(tag);
            }
            // Another tag begins: this one lacks its end.
            b'<' => {
                tag.is_wrong = true;
                tag.length = Some(at);
                return Some(tag);
            }
            b'/' if bytes.get(at + 1) == Some(&b'>') => {
                (tag.is_empty, tag.length) = (true, Some(at + 2));
                return Some(tag);
            }
            b if is_name_byte(b) => at = read_attribute(rest, at, &mut tag),
            b if b.is_ascii_whitespace() => at += 1,
            _ => {
                tag.is_wrong = true;
                at += 1;
            }
        }
    }
    Some(tag)
}

/// Reads an attribute; returns its end.
fn read_attribute<'i>(rest: &'i str, from: usize, tag: &mut StartTag<'i>) -> usize {
    let bytes = rest.as_bytes();
    let skip_space = |mut at: usize| {
        while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        at
    };
    let mut at = from;
    while bytes.get(at).is_some_and(|b| is_name_byte(*b)) {
        at += 1;
    }
    let name = &rest[from..at];
    let equals = skip_space(at);
    let (mut value, mut value_at) = ("", at);
    if bytes.get(equals) == Some(&b'=') {
        value_at = skip_space(equals + 1);
        match bytes.get(value_at) {
            Some(&quote @ (b'"' | b'\'')) => {
                value_at += 1;
                let end = memchr::memchr(quote, &bytes[value_at..]).map_or(rest.len(), |n| value_at + n);
                value = &rest[value_at..end];
                at = (end + 1).min(rest.len());
            }
            _ => {
                tag.is_wrong = true;
                let ends = |b: &u8| b.is_ascii_whitespace() || matches!(b, b'>' | b'<');
                let end = bytes[value_at..].iter().position(ends).map_or(rest.len(), |n| value_at + n);
                let end = if rest[value_at..end].ends_with('/') && bytes.get(end) == Some(&b'>') {
                    end - 1
                } else {
                    end
                };
                value = &rest[value_at..end];
                at = end;
            }
        }
    } else {
        tag.is_wrong = true;
    }
    let is_name = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && !name.ends_with(':')
        && name.matches(':').count() < 2;
    let is_new = tag.attributes.iter().all(|(known, ..)| *known != name);
    if is_name && is_new && tag.attributes.len() < MAX_ATTRIBUTES {
        tag.attributes.push((name, value, value_at));
    } else {
        tag.is_wrong = true;
    }
    at
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'-' | b'.') || byte >= 0x80
}

fn is_item(name: &str) -> bool {
    matches!(name.rsplit(':').next(), Some("item" | "entry"))
}

/// Returns `true` for elements whose text is HTML, so that tags in it were meant to be escaped.
fn holds_html(tag: &StartTag<'_>) -> bool {
    let media_type =
        tag.attributes.iter().find(|(name, ..)| *name == "type").map_or("", |(_, value, _)| *value);
    let is_markup = media_type.contains("xml") || media_type.contains("xhtml");
    let local = tag.name.rsplit(':').next().unwrap_or_default();
    // Media RSS has an element of that name for files.
    let is_media = tag.name == "media:content";
    !is_markup
        && !is_media
        && matches!(
            local,
            "description" | "encoded" | "summary" | "content" | "title" | "tagline" | "subtitle"
        )
}

/// Returns `true` for elements that no HTML text has: a field of a feed or item, or anything with a prefix.
fn is_field(name: &str) -> bool {
    const FIELDS: [&str; 33] = [
        "author",
        "category",
        "channel",
        "cloud",
        "comments",
        "content",
        "contributor",
        "copyright",
        "created",
        "description",
        "docs",
        "enclosure",
        "entry",
        "feed",
        "generator",
        "guid",
        "id",
        "image",
        "issued",
        "item",
        "language",
        "lastBuildDate",
        "link",
        "modified",
        "pubDate",
        "published",
        "rights",
        "rss",
        "source",
        "summary",
        "title",
        "ttl",
        "updated",
    ];
    name.contains(':') || FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name))
}

/// Returns `true` for fields that hold no other field.
fn is_leaf(name: &str) -> bool {
    matches!(
        name,
        "category"
            | "comments"
            | "guid"
            | "id"
            | "link"
            | "name"
            | "email"
            | "uri"
            | "published"
            | "pubDate"
            | "updated"
            | "lastBuildDate"
            | "language"
            | "ttl"
    )
}

/// Returns `true` for elements of HTML that have no end tag.
fn is_void(name: &str) -> bool {
    matches!(name, "br" | "hr" | "img" | "input" | "area" | "col" | "embed" | "param" | "wbr")
}
