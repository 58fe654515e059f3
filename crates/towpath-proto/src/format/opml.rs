//! Feed lists in OPML 2.0: outlines with an `xmlUrl`, at any depth.

use std::borrow::Cow;

use super::error::FormatError;
use super::position::line_and_column;
use super::sniff;
use super::xml::{Tag, XmlReader, XmlToken};

/// Maximum number of feeds in a list.
pub const MAX_FEEDS: usize = 1_000_000;
/// Maximum length of a title, in characters.
const MAX_TITLE: usize = 200;

/// Feed in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// URL of the feed, as written, but for the scheme `feed`.
    pub xml_url: String,
    /// Title, if the outline has one: OPML's `text` for people, or the `title` of the feed.
    pub title: Option<String>,
    /// Line of the outline, from 1.
    pub line: usize,
}

/// Returns `true` if a feed list is XML rather than plain lines.
pub fn is_xml(bytes: &[u8]) -> bool {
    // A file without an encoding declaration may still be UTF-16, so it is decoded first.
    let (text, _) = sniff::decode(bytes, None);
    text.trim_start().starts_with('<')
}

/// Parses the feeds of a list, in order. Outlines without a URL are folders or other entries.
///
/// # Errors
///
/// Returns [`FormatError`] with line and column for malformed XML, excessive nesting, another format than
/// OPML, or more than [`MAX_FEEDS`] feeds.
pub fn read(bytes: &[u8]) -> Result<Vec<Outline>, FormatError> {
    let (text, _) = sniff::decode(bytes, None);
    let mut xml = XmlReader::new(&text, None);
    let mut feeds = Vec::new();
    let mut seen_root = false;
    // Line numbers are counted on from the previous feed: counting from the start each time would be
    // quadratic.
    let (mut counted, mut line) = (0, 1);
    loop {
        let tag = match xml.next()? {
            XmlToken::Start(tag) => tag,
            XmlToken::Text(_) | XmlToken::End => continue,
            XmlToken::Eof => break,
        };
        // A document without the right root is refused before its outlines are read.
        if !seen_root {
            check_root(tag)?;
            seen_root = true;
        }
        if !tag.local.eq_ignore_ascii_case("outline") {
            // OPML has no namespace, so only the local name counts.
            continue;
        }
        let Some(xml_url) = attribute(&mut xml, "xmlUrl")?.and_then(|written| address(&written)) else {
            continue;
        };
        line += line_and_column(&text.as_bytes()[counted..], tag.offset - counted).0 - 1;
        counted = tag.offset;
        // Bounds the memory for the list, whatever the document's size.
        if feeds.len() == MAX_FEEDS {
            return Err(FormatError::Limit(format!("line {line}: more than {MAX_FEEDS} feeds")));
        }
        let title = match title(attribute(&mut xml, "text")?) {
            Some(text) => Some(text),
            None => title(attribute(&mut xml, "title")?),
        };
        feeds.push(Outline { xml_url, title, line });
    }
    xml.finish()?;
    if seen_root { Ok(feeds) } else { Err(FormatError::Unknown("there is no element in this XML".into())) }
}

fn check_root(tag: Tag<'_>) -> Result<(), FormatError> {
    if tag.local.eq_ignore_ascii_case("opml") {
        return Ok(());
    }
    let name: String = tag.name.chars().take(60).collect();
    Err(FormatError::Unknown(format!("XML with the root <{name}> is not an OPML feed list")))
}

/// Returns an attribute by its name, compared without case: writers differ.
fn attribute<'i>(xml: &mut XmlReader<'i>, name: &str) -> Result<Option<Cow<'i, str>>, FormatError> {
    let mut names = xml.raw_attributes().iter().map(|(name, _)| *name);
    match names.find(|written| written.eq_ignore_ascii_case(name)) {
        Some(written) => xml.attribute(written),
        None => Ok(None),
    }
}

/// Returns the address of a feed, or `None` for an empty one, as some writers give folders. Readers that register the scheme
/// `feed` write it in place of http, or in front of an address.
fn address(written: &str) -> Option<String> {
    let written = written.trim();
    let within = written.strip_prefix("feed:").unwrap_or(written);
    let address = if within.starts_with("//") { format!("http:{within}") } else { within.to_owned() };
    Some(address).filter(|address| !address.is_empty())
}

/// Returns a text as a title: on one line, without spaces around it.
fn title(text: Option<Cow<'_, str>>) -> Option<String> {
    let text = text?.split_whitespace().collect::<Vec<_>>().join(" ");
    // A list may have a text of any length in its attribute.
    Some(text.chars().take(MAX_TITLE).collect()).filter(|text: &String| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feeds(opml: &str) -> Vec<(String, usize)> {
        let found = read(opml.as_bytes()).unwrap();
        found.into_iter().map(|outline| (outline.xml_url, outline.line)).collect()
    }

    #[test]
    fn empty_addresses_and_the_scheme_feed() {
        let opml = "<opml><outline xmlUrl=''/><outline xmlUrl='feed://a.example/f'/><outline xmlUrl='feed:https://b.example/'/></opml>";
        let found: Vec<String> = feeds(opml).into_iter().map(|(url, _)| url).collect();
        assert_eq!(found, ["http://a.example/f", "https://b.example/"]);
    }

    #[test]
    fn outlines_at_any_depth_are_feeds_with_their_lines() {
        let opml = r#"<?xml version="1.0" encoding="utf-8"?>
<opml version="2.0"><head><title>Feeds</title></head><body>
  <outline text="News">
    <outline type="rss" text="A &amp; B" xmlUrl="https://a.example/feed?x=1&amp;y=2"/>
    <outline text="Deeper"><outline
        XMLURL=" https://b.example/ "/></outline>
  </outline>
  <outline text="a note"/><outline xmlUrl='http://c.example/'/>
</body></opml>"#;
        let expected =
            [("https://a.example/feed?x=1&y=2", 4), ("https://b.example/", 5), ("http://c.example/", 8)];
        assert_eq!(feeds(opml), expected.map(|(url, line)| (url.to_owned(), line)));
        assert!(is_xml(b"\xef\xbb\xbf \n<opml/>") && !is_xml(b"https://a.example/"));
    }

    #[test]
    fn outlines_keep_their_titles() {
        let opml = "<opml><body><outline text=' A &amp; \n B ' title='other' xmlUrl='http://a.example/'/>\
                    <outline TEXT='' Title='C' xmlUrl='http://c.example/'/><outline xmlUrl='http://d.example/'/></body></opml>";
        let titles: Vec<_> =
            read(opml.as_bytes()).unwrap().into_iter().map(|outline| outline.title).collect();
        assert_eq!(titles, [Some("A & B".to_owned()), Some("C".to_owned()), None]);
    }

    #[test]
    fn what_is_no_list_is_refused_with_its_place() {
        let refusal = |opml: &str| read(opml.as_bytes()).unwrap_err().to_string();
        assert!(refusal("<opml>\n<body></opml>").contains("line 2"), "{}", refusal("<opml>\n<body></opml>"));
        assert!(refusal("<opml><outline xmlUrl='http://x/'/>").contains("cut off"));
        assert!(refusal("<rss/>").contains("<rss>"));
        assert!(refusal("<!-- -->").contains("no element"));
        let deep = format!("<opml>{}", "<outline>".repeat(10_000));
        assert!(matches!(read(deep.as_bytes()), Err(FormatError::Limit(_))));
        let bomb = "<!DOCTYPE opml [<!ENTITY a 'b'>]><opml><outline xmlUrl='&a;'/></opml>";
        assert!(read(bomb.as_bytes()).is_err() || feeds(bomb)[0].0 != "b");
    }

    #[test]
    fn a_list_without_feeds_is_empty() {
        assert_eq!(feeds("<opml><body/></opml>"), []);
    }
}
