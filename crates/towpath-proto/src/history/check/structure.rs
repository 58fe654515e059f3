//! Structure of a document as written, before the tolerant parser corrects it.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde_json::Value;

use crate::format::FormatError;
use crate::format::xml::{Ns, Tag, XmlReader, XmlToken};

/// Child elements of a feed or an entry: counts by namespace and name, and their defects.
#[derive(Debug, Default)]
pub(super) struct ElementCounts {
    counts: HashMap<(&'static str, String), u32>,
    /// Relations of the links.
    pub(super) rels: Vec<String>,
    /// True if a content has `src` in place of text.
    pub(super) content_has_source: bool,
    /// The first invalid date, with its element's name.
    pub(super) bad_date: Option<String>,
    /// The first invalid link target.
    pub(super) bad_target: Option<String>,
    /// Defect of the first invalid tombstone.
    pub(super) bad_tombstone: Option<String>,
}

/// Elements of a document.
#[derive(Debug, Default)]
pub(super) struct DocumentStructure {
    /// Child elements of `feed` or `channel`.
    pub(super) head: ElementCounts,
    /// Child elements of each entry or item.
    pub(super) entries: Vec<ElementCounts>,
    /// The `version` of RSS.
    pub(super) version: Option<String>,
}

/// Names of the namespaces that rules refer to.
pub(super) const ATOM: &str = "atom";
pub(super) const RSS: &str = "rss";
pub(super) const FH: &str = "fh";
const TOMBSTONES: &str = "at";

impl ElementCounts {
    pub(super) fn count(&self, ns: &'static str, local: &str) -> u32 {
        self.counts.get(&(ns, local.to_owned())).copied().unwrap_or_default()
    }

    /// Counts a child element, and reads it to its end.
    fn count_element(&mut self, xml: &mut XmlReader<'_>, tag: Tag<'_>) -> Result<(), FormatError> {
        let ns = match tag.ns {
            Ns::Atom => ATOM,
            Ns::Rss => RSS,
            Ns::History => FH,
            Ns::Tombstones => TOMBSTONES,
            _ => "",
        };
        *self.counts.entry((ns, tag.local.to_owned())).or_default() += 1;
        match (tag.ns, tag.local) {
            (Ns::Atom, "link") => self.check_link(xml)?,
            (Ns::Atom, "content") => self.content_has_source = xml.attribute("src")?.is_some(),
            (Ns::Atom, name @ ("updated" | "published")) => return self.check_date(xml, name, is_rfc_3339),
            (Ns::Rss, name @ ("pubDate" | "lastBuildDate")) => return self.check_date(xml, name, is_rfc_822),
            (Ns::Tombstones, "deleted-entry") => self.check_tombstone(xml)?,
            _ => {}
        }
        xml.skip()
    }

    fn check_link(&mut self, xml: &mut XmlReader<'_>) -> Result<(), FormatError> {
        let rel = xml.attribute("rel")?.map_or_else(|| "alternate".to_owned(), |rel| rel.into_owned());
        self.rels.push(rel);
        let href = xml.attribute("href")?.unwrap_or_default();
        // A target may be relative, so only characters that no IRI allows are an error (RFC 3987, section 2.2).
        if href.trim().contains(|c: char| c.is_whitespace() || c.is_control() || "<>\"{}|\\^`".contains(c)) {
            self.bad_target.get_or_insert_with(|| format!("{href:?}"));
        }
        Ok(())
    }

    fn check_date(
        &mut self,
        xml: &mut XmlReader<'_>,
        name: &str,
        is_date: fn(&str) -> bool,
    ) -> Result<(), FormatError> {
        let text = xml.text()?;
        if !is_date(text.trim()) {
            self.bad_date.get_or_insert_with(|| format!("{name} {text:?}"));
        }
        Ok(())
    }

    fn check_tombstone(&mut self, xml: &mut XmlReader<'_>) -> Result<(), FormatError> {
        let (reference, when) = (xml.attribute("ref")?, xml.attribute("when")?);
        let defect = match (reference, when) {
            (None, _) => "without ref".to_owned(),
            (_, Some(when)) if is_rfc_3339(&when) => return Ok(()),
            (_, when) => format!("when is {:?}", when.unwrap_or_default()),
        };
        self.bad_tombstone.get_or_insert(defect);
        Ok(())
    }
}

impl DocumentStructure {
    /// Returns true if the document has tombstones (RFC 6721).
    pub(super) fn has_tombstones(&self) -> bool {
        self.head.count(TOMBSTONES, "deleted-entry") > 0
    }

    /// Reads the structure of an Atom or RSS document.
    pub(super) fn from_xml(text: &str) -> Result<Self, FormatError> {
        let mut structure = Self::default();
        let mut xml = XmlReader::new(text, None);
        loop {
            match xml.next()? {
                XmlToken::Start(tag) => {
                    structure.version = xml.attribute("version")?.map(|version| version.into_owned());
                    structure.children(&mut xml, tag)?;
                }
                XmlToken::Text(_) => {}
                XmlToken::End | XmlToken::Eof => return Ok(structure),
            }
        }
    }

    fn children(&mut self, xml: &mut XmlReader<'_>, parent: Tag<'_>) -> Result<(), FormatError> {
        loop {
            match xml.next()? {
                XmlToken::Start(tag) => match (tag.ns, tag.local) {
                    (Ns::Rss, "channel") if parent.local != "channel" => self.children(xml, tag)?,
                    (Ns::Atom, "entry") | (Ns::Rss, "item") => {
                        let entry = Self::entry(xml)?;
                        self.entries.push(entry);
                    }
                    _ => self.head.count_element(xml, tag)?,
                },
                XmlToken::Text(_) => {}
                XmlToken::End | XmlToken::Eof => return Ok(()),
            }
        }
    }

    fn entry(xml: &mut XmlReader<'_>) -> Result<ElementCounts, FormatError> {
        let mut children = ElementCounts::default();
        loop {
            match xml.next()? {
                XmlToken::Start(tag) => children.count_element(xml, tag)?,
                XmlToken::Text(_) => {}
                XmlToken::End | XmlToken::Eof => return Ok(children),
            }
        }
    }
}

/// Returns true for a date of RFC 4287, section 3.3: RFC 3339 with an upper-case T, and Z or an offset.
fn is_rfc_3339(text: &str) -> bool {
    // The parser of timestamps accepts more, such as a space or a lower-case t.
    let time = text.get(11..).unwrap_or_default();
    let offset = time.len().checked_sub(6).and_then(|at| time.get(at..)).unwrap_or_default();
    let has_zone = time.ends_with('Z') || offset.starts_with(['+', '-']);
    text.get(10..11) == Some("T") && has_zone && text.parse::<Timestamp>().is_ok()
}

/// Returns true for a date of RFC 822, with a year of two or four digits.
fn is_rfc_822(text: &str) -> bool {
    // The obsolete syntax of RFC 2822 (section 4.3) includes the two-digit years of RFC 822.
    rfc2822::parse(text).is_ok()
}

/// Tests the rules of JSON Feed 1.1. `None` means that the rule holds.
pub(super) fn json_feed_problems(body: &[u8]) -> Vec<(&'static str, Option<String>)> {
    let top: Value = serde_json::from_slice(body).unwrap_or_default();
    let has = |value: &Value, key: &str| value.get(key).is_some_and(Value::is_string);
    let version = top.get("version").and_then(Value::as_str).unwrap_or_default();
    // Both published versions, 1 and 1.1, begin like this.
    let no_version = (!version.starts_with("https://jsonfeed.org/version/1")).then(|| format!("{version:?}"));
    let items = top.get("items").and_then(Value::as_array);
    let first_item = |is_invalid: &dyn Fn(&Value) -> bool| {
        let index = items.into_iter().flatten().position(is_invalid)?;
        Some(format!("item {}", index + 1))
    };
    vec![
        ("A feed has the URL of the version as its version", no_version),
        ("A feed has a title", (!has(&top, "title")).then(String::new)),
        ("A feed has an array of items", items.is_none().then(String::new)),
        ("An item has an id that is text", first_item(&|item| !has(item, "id"))),
        (
            "An item has content_html or content_text",
            first_item(&|item| !has(item, "content_html") && !has(item, "content_text")),
        ),
    ]
}
