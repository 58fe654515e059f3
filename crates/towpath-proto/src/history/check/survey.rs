//! What stands in a document as it is written, before any tolerance.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use serde_json::Value;

use crate::format::FormatError;
use crate::format::xml::{Ns, Tag, Token, XmlReader};

/// How often elements stand in one place, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Children {
    counts: HashMap<(&'static str, String), u32>,
    /// The relations of its links.
    pub(super) rels: Vec<String>,
    /// Whether a content's text stands elsewhere.
    pub(super) content_has_source: bool,
    /// What is no date as the text has it, and the element that it is in.
    pub(super) bad_date: Option<String>,
    /// A link's address that is none.
    pub(super) bad_address: Option<String>,
    /// What a tombstone lacks.
    pub(super) bad_tombstone: Option<String>,
}

/// What a document is made of.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// The children of `feed` or `channel`.
    pub(super) head: Children,
    /// The children of each entry or item.
    pub(super) entries: Vec<Children>,
    /// RSS's `version`.
    pub(super) version: Option<String>,
}

/// What the namespaces are called here that rules are about.
pub(super) const ATOM: &str = "atom";
pub(super) const RSS: &str = "rss";
pub(super) const FH: &str = "fh";
const TOMBSTONES: &str = "at";

impl Children {
    pub(super) fn count(&self, ns: &'static str, local: &str) -> u32 {
        self.counts.get(&(ns, local.to_owned())).copied().unwrap_or_default()
    }

    /// Notes a child, and reads it to its end.
    fn note(&mut self, xml: &mut XmlReader<'_>, tag: Tag<'_>) -> Result<(), FormatError> {
        let ns = match tag.ns {
            Ns::Atom => ATOM,
            Ns::Rss => RSS,
            Ns::History => FH,
            Ns::Tombstones => TOMBSTONES,
            _ => "",
        };
        *self.counts.entry((ns, tag.local.to_owned())).or_default() += 1;
        match (tag.ns, tag.local) {
            (Ns::Atom, "link") => self.note_link(xml)?,
            (Ns::Atom, "content") => self.content_has_source = xml.attribute("src")?.is_some(),
            (Ns::Atom, name @ ("updated" | "published")) => return self.note_date(xml, name, is_rfc_3339),
            (Ns::Rss, name @ ("pubDate" | "lastBuildDate")) => return self.note_date(xml, name, is_rfc_822),
            (Ns::Tombstones, "deleted-entry") => self.note_tombstone(xml)?,
            _ => {}
        }
        xml.skip()
    }

    fn note_link(&mut self, xml: &mut XmlReader<'_>) -> Result<(), FormatError> {
        let rel = xml.attribute("rel")?.map_or_else(|| "alternate".to_owned(), |rel| rel.into_owned());
        self.rels.push(rel);
        let href = xml.attribute("href")?.unwrap_or_default();
        // May be relative, so only what no address holds is told (RFC 3987, section 2.2).
        if href.trim().contains(|c: char| c.is_whitespace() || c.is_control() || "<>\"{}|\\^`".contains(c)) {
            self.bad_address.get_or_insert_with(|| format!("{href:?}"));
        }
        Ok(())
    }

    fn note_date(
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

    fn note_tombstone(&mut self, xml: &mut XmlReader<'_>) -> Result<(), FormatError> {
        let (of, when) = (xml.attribute("ref")?, xml.attribute("when")?);
        let lacks = match (of, when) {
            (None, _) => "without ref".to_owned(),
            (_, Some(when)) if is_rfc_3339(&when) => return Ok(()),
            (_, when) => format!("when is {:?}", when.unwrap_or_default()),
        };
        self.bad_tombstone.get_or_insert(lacks);
        Ok(())
    }
}

impl Survey {
    /// Whether there are deleted entries (RFC 6721).
    pub(super) fn has_tombstones(&self) -> bool {
        self.head.count(TOMBSTONES, "deleted-entry") > 0
    }

    /// Surveys Atom or RSS that was read before.
    pub(super) fn of_xml(text: &str) -> Result<Self, FormatError> {
        let mut survey = Self::default();
        let mut xml = XmlReader::new(text, None);
        loop {
            match xml.next()? {
                Token::Start(tag) => {
                    survey.version = xml.attribute("version")?.map(|version| version.into_owned());
                    survey.children(&mut xml, tag)?;
                }
                Token::Text(_) => {}
                Token::End | Token::Eof => return Ok(survey),
            }
        }
    }

    fn children(&mut self, xml: &mut XmlReader<'_>, parent: Tag<'_>) -> Result<(), FormatError> {
        loop {
            match xml.next()? {
                Token::Start(tag) => match (tag.ns, tag.local) {
                    (Ns::Rss, "channel") if parent.local != "channel" => self.children(xml, tag)?,
                    (Ns::Atom, "entry") | (Ns::Rss, "item") => {
                        let entry = Self::entry(xml)?;
                        self.entries.push(entry);
                    }
                    _ => self.head.note(xml, tag)?,
                },
                Token::Text(_) => {}
                Token::End | Token::Eof => return Ok(()),
            }
        }
    }

    fn entry(xml: &mut XmlReader<'_>) -> Result<Children, FormatError> {
        let mut children = Children::default();
        loop {
            match xml.next()? {
                Token::Start(tag) => children.note(xml, tag)?,
                Token::Text(_) => {}
                Token::End | Token::Eof => return Ok(children),
            }
        }
    }
}

/// RFC 4287, section 3.3: RFC 3339 with an upper-case T between date and time, and Z where there is no offset.
fn is_rfc_3339(text: &str) -> bool {
    let time = text.get(11..).unwrap_or_default();
    let offset = time.len().checked_sub(6).and_then(|at| time.get(at..)).unwrap_or_default();
    let has_zone = time.ends_with('Z') || offset.starts_with(['+', '-']);
    text.get(10..11) == Some("T") && has_zone && text.parse::<Timestamp>().is_ok()
}

/// RFC 822, with years of two or four digits.
fn is_rfc_822(text: &str) -> bool {
    rfc2822::parse(text).is_ok()
}

/// What JSON Feed 1.1 demands and a document lacks.
pub(super) fn json_feed_problems(body: &[u8]) -> Vec<(&'static str, Option<String>)> {
    let top: Value = serde_json::from_slice(body).unwrap_or_default();
    let has = |value: &Value, key: &str| value.get(key).is_some_and(Value::is_string);
    let version = top.get("version").and_then(Value::as_str).unwrap_or_default();
    let no_version = (!version.starts_with("https://jsonfeed.org/version/1")).then(|| format!("{version:?}"));
    let items = top.get("items").and_then(Value::as_array);
    let number_of = |lacks: &dyn Fn(&Value) -> bool| {
        let index = items.into_iter().flatten().position(lacks)?;
        Some(format!("item {}", index + 1))
    };
    vec![
        ("A feed has the version's address as its version", no_version),
        ("A feed has a title", (!has(&top, "title")).then(String::new)),
        ("A feed has an array of items", items.is_none().then(String::new)),
        ("An item has an id that is text", number_of(&|item| !has(item, "id"))),
        (
            "An item has content_html or content_text",
            number_of(&|item| !has(item, "content_html") && !has(item, "content_text")),
        ),
    ]
}
