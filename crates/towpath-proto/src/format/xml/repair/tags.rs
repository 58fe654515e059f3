//! Tags that are wrong, missing or in the wrong order.

use super::super::errors::place;
use super::super::namespaces::well_known;
use super::super::write::push_text;
use super::start_tag::{MAX_ATTRIBUTES, StartTag, read_tag};
use super::{Open, Repair};
use crate::format::error::FormatError;
use crate::format::position::{line_and_column, shortened};

/// Elements of feeds and items that have no prefix.
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

impl<'i> Repair<'i, '_> {
    pub(super) fn start_tag(&mut self, rest: &'i str) -> Result<(), FormatError> {
        let offset = self.at;
        let Some(mut tag) = read_tag(rest) else {
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
        self.write(&mut tag, &rest[..length], offset)
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
        // `<dc:creator>` is ended by `</creator>`, but an outer element is not.
        let is_last = |open: &Open<'_>| {
            local(open.name) == local(name) && open.name.contains(':') != name.contains(':')
        };
        let found = found.or_else(|| self.open.len().checked_sub(1).filter(|at| is_last(&self.open[*at])));
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
        self.open.last().is_some_and(|open| open.holds_html) && !self.is_field(name)
    }

    /// Returns `true` for elements that no HTML text has: a field of a feed or item, or anything of a module.
    fn is_field(&self, name: &str) -> bool {
        match name.split_once(':') {
            // `<mailto:a@b.example>` is an address in brackets.
            Some((prefix, _)) => self.prefixes.contains(&prefix) || well_known(prefix).is_some(),
            None => FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name)),
        }
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
        if self.is_field(name)
            && let Some(at) = self.open.iter().rposition(|open| is_leaf(open.name))
        {
            self.close_to(at, offset)?;
        }
        // So does any child of an item or channel whose end tag is nowhere.
        if let Some(at) = self.open.iter().rposition(|open| open.has_no_end) {
            self.close_to(at, offset)?;
        }
        if is_item(name) {
            let item = self.open.iter().rposition(|open| is_item(open.name));
            let holder = || self.open.iter().rposition(|open| holds_items(open.name)).map(|at| at + 1);
            if let Some(depth) = item.or_else(|| holder().filter(|_| !name.contains(':'))) {
                self.close_to(depth, offset)?;
            }
        }
        Ok(())
    }

    /// Returns `true` for a child of an item, or of what holds items, that has no end tag before the next item.
    fn has_no_end(&self, name: &str, holds_html: bool) -> bool {
        let Some(parent) = self.open.last().filter(|open| is_item(open.name) || holds_items(open.name))
        else {
            return false;
        };
        !holds_html && !is_item(name) && !holds_items(name) && !self.tags.ends(name, parent.name, self.at)
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

    fn write(&mut self, tag: &mut StartTag<'i>, source: &str, offset: usize) -> Result<(), FormatError> {
        self.mend_namespaces(tag, offset);
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
        let has_no_end = self.has_no_end(tag.name, holds_html);
        self.open.push(Open { name: tag.name, offset, prefixes, holds_html, has_no_end });
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

fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or_default()
}

pub(super) fn is_item(name: &str) -> bool {
    matches!(local(name), "item" | "entry")
}

/// Returns `true` for elements that items are children of.
fn holds_items(name: &str) -> bool {
    matches!(local(name), "channel" | "feed" | "RDF")
}

/// Returns `true` for elements whose text is HTML, so that tags in it were meant to be escaped.
fn holds_html(tag: &StartTag<'_>) -> bool {
    let media_type =
        tag.attributes.iter().find(|(name, ..)| *name == "type").map_or("", |(_, value, _)| *value);
    let is_markup = media_type.contains("xml") || media_type.contains("xhtml");
    let local = local(tag.name);
    // Media RSS has an element of that name for files.
    let is_media = tag.name == "media:content";
    !is_markup
        && !is_media
        && matches!(
            local,
            "description" | "encoded" | "summary" | "content" | "title" | "tagline" | "subtitle"
        )
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
