//! The formats that items come in and go out in.

pub mod activity_streams;
pub mod atom;
mod budget;
pub mod date;
pub mod document;
mod draft;
mod feed_head;
pub mod html;
pub mod http_date;
pub mod jcs;
mod json;
pub mod json_feed;
pub mod json_pointers;
pub mod link;
pub mod multipart;
pub mod opml;
pub mod rss;
pub mod skim;
pub mod sniff;
pub mod xml;

use jiff::Timestamp;

use crate::item::{Author, Item};
use budget::Budget;

/// A format that a source may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// RSS 0.9x, 1.0 or 2.0.
    Rss,
    /// Atom 1.0 (and 0.3, read as such).
    Atom,
    /// JSON Feed 1.0 or 1.1.
    JsonFeed,
    /// Any JSON, through pointers.
    Json,
}

/// A feed document that was read, whatever its format.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedDocument {
    /// What it was read as.
    pub format: Format,
    /// The feed's title, plain text.
    pub title: Option<String>,
    /// The feed's own id, where the format has one.
    pub id: Option<String>,
    /// When the feed says it was last changed.
    pub updated: Option<Timestamp>,
    /// The page that the feed belongs to, absolute.
    pub home: Option<String>,
    /// The feed's language tag.
    pub lang: Option<String>,
    /// The items in the document's order.
    pub items: Vec<Item>,
    /// When items were last changed in the feed that the document is of, where that is said apart from the
    /// item's own dates (by a writer of ours): the item's index in `items`, ascending, and the time.
    pub modified: Vec<(usize, Timestamp)>,
    /// Entries that the document says are deleted (RFC 6721 `at:deleted-entry`).
    pub deleted: Vec<DeletedEntry>,
    /// Links of the feed itself, absolute: `self`, `hub`, `prev`, `prev-archive`, `next`, …
    pub links: Vec<FeedLink>,
    /// Feed History's stateful flag, where it is there.
    pub stateful: Option<bool>,
    /// RFC 5005 `fh:complete`: the document is the whole feed.
    pub complete: bool,
    /// RFC 5005 `fh:archive`: the document is an archive document.
    pub archive: bool,
    /// For how many minutes the document may be kept before it is asked for again (RSS 2.0 `ttl`).
    pub ttl: Option<u32>,
    /// What a Smart Feed's document says of its range.
    pub smart: SmartHead,
    /// What could not be read and was left out: dates that are none, entries without an id. Each says where.
    pub problems: Vec<String>,
}

/// What Smart Feeds put into an Atom document beside its entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmartHead {
    /// `fo:total`: how many items the feed has.
    pub total: Option<u64>,
    /// `fo:last_cursor`: the position of the last item in the document.
    pub last_cursor: Option<String>,
    /// `fo:prev_cursor`: the position before the first item in the document.
    pub prev_cursor: Option<String>,
}

/// An entry that is deleted, as the document tells (RFC 6721).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletedEntry {
    /// The entry's id.
    pub id: String,
    /// When it was deleted.
    pub when: Option<Timestamp>,
}

/// A link of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedLink {
    /// The relation, in the document's letters (`alternate` where none is given).
    pub rel: String,
    /// The target, absolute where the base is known.
    pub href: String,
    /// The target's media type, where given.
    pub media_type: Option<String>,
}

impl FeedDocument {
    /// A document without anything in it yet.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            title: None,
            id: None,
            updated: None,
            home: None,
            lang: None,
            items: Vec::new(),
            modified: Vec::new(),
            deleted: Vec::new(),
            links: Vec::new(),
            stateful: None,
            complete: false,
            archive: false,
            ttl: None,
            smart: SmartHead::default(),
            problems: Vec::new(),
        }
    }

    /// Appends an item that was read, and when it was last changed in its feed where that was said.
    pub(crate) fn push(&mut self, read: Option<(Item, Option<Timestamp>)>) {
        let Some((item, modified)) = read else { return };
        self.modified.extend(modified.map(|time| (self.items.len(), time)));
        self.items.push(item);
    }

    /// An entry without authors has the feed's (RFC 4287, section 4.2.1; JSON Feed 1.1, "authors").
    pub(crate) fn inherit_authors(
        &mut self,
        authors: &[Author],
        budget: &mut Budget,
    ) -> Result<(), FormatError> {
        let text = |author: &Author| {
            let lengths = [&author.email, &author.url].map(|text| text.as_ref().map_or(0, String::len));
            author.name.len() + lengths.iter().sum::<usize>()
        };
        let size = size_of_val(authors) + authors.iter().map(text).sum::<usize>();
        for item in self.items.iter_mut().filter(|item| item.authors.is_empty()) {
            budget.spend(size, || {
                format!("too many entries without authors for the feed's {} authors", authors.len())
            })?;
            item.authors = authors.to_vec();
        }
        Ok(())
    }

    /// Whether the document shows every item there is, so that absence means removal: Feed History's flag 0
    /// (section 3) or RFC 5005's `fh:complete`.
    pub fn is_complete(&self) -> bool {
        self.complete || self.stateful == Some(false)
    }

    /// The target of the first link with this relation.
    pub fn link(&self, rel: &str) -> Option<&str> {
        self.links.iter().find(|l| l.rel == rel).map(|l| l.href.as_str())
    }
}

/// Why a document could not be read. The publisher's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It is none of the formats asked for.
    #[error("not a feed: {0}")]
    Unknown(String),
    /// It ends too early.
    #[error("cut off at line {line}, column {column}: {reason}")]
    Truncated {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What was open.
        reason: String,
    },
    /// It is not well-formed, or not of its format.
    #[error("line {line}, column {column}: {reason}")]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What is wrong.
        reason: String,
    },
    /// It asks for more than a document may: nesting, entities, long names that are repeated all over.
    #[error("refused: {0}")]
    Limit(String),
    /// It is well-formed JSON, and the pointers find nothing there.
    #[error("{place}: {reason}")]
    Mapping {
        /// The pointer, and the item's index where there is one.
        place: String,
        /// What is there instead.
        reason: String,
    },
}

/// How a document is to be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadOptions<'a> {
    /// The format; decided by content where it is `None`. [`Format::Json`] needs `mapping`.
    pub format: Option<Format>,
    /// The `Content-Type` header, for the character set (RFC 7303, section 3) and as a hint.
    pub content_type: Option<&'a str>,
    /// The address that the document came from: what relative addresses are resolved against.
    pub base_url: Option<&'a str>,
    /// Where any JSON has what.
    pub mapping: Option<&'a json_pointers::Mapping>,
}

/// Reads a feed document of any format.
///
/// Where no format is given, the content decides; JSON that is no JSON Feed needs a mapping. What stands in
/// the document and cannot be used (a date that is none, an item without an id) is left out and told in
/// [`FeedDocument::problems`]; a document that cannot be trusted as a whole is an error.
pub fn read(bytes: &[u8], options: &ReadOptions) -> Result<FeedDocument, FormatError> {
    let (text, mut problems) = sniff::decode(bytes, options.content_type);
    let mut feed = match (sniff::kind(&text), options.format) {
        (sniff::Kind::Empty, _) => return Err(FormatError::Unknown("the document is empty".into())),
        (sniff::Kind::Html, _) => {
            let reason = "this is an HTML page; the feed's own address is needed";
            return Err(FormatError::Unknown(reason.into()));
        }
        (sniff::Kind::Other, _) => {
            let start: String = text.trim_start().chars().take(40).collect();
            return Err(FormatError::Unknown(format!("neither XML nor JSON begins with {start:?}")));
        }
        (sniff::Kind::Xml, None | Some(Format::Rss | Format::Atom)) => {
            read_xml(&sniff::replace_non_xml(text, &mut problems), options)?
        }
        (sniff::Kind::Json, Some(Format::JsonFeed)) => json_feed::read(&text, options.base_url)?,
        (sniff::Kind::Json, None | Some(Format::Json)) => read_json(&text, options)?,
        (kind, Some(format)) => {
            return Err(FormatError::Unknown(format!("{kind:?} where {format:?} was asked for")));
        }
    };
    problems.append(&mut feed.problems);
    feed.problems = problems;
    Ok(feed)
}

fn read_json(text: &str, options: &ReadOptions) -> Result<FeedDocument, FormatError> {
    match options.mapping {
        Some(mapping) => json_pointers::read(text, mapping, options.base_url),
        None if options.format.is_none() => json_feed::read(text, options.base_url),
        None => Err(FormatError::Mapping {
            place: "(no mapping)".into(),
            reason: "reading any JSON needs to be told where the items are".into(),
        }),
    }
}

fn read_xml(text: &str, options: &ReadOptions) -> Result<FeedDocument, FormatError> {
    let mut xml = xml::XmlReader::new(text, options.base_url);
    let root = loop {
        match xml.next()? {
            xml::Token::Start(tag) => break tag,
            xml::Token::Text(_) => {}
            xml::Token::End | xml::Token::Eof => {
                return Err(FormatError::Unknown("there is no element in this XML".into()));
            }
        }
    };
    let format = match (root.ns, root.local) {
        (xml::Ns::Atom, "feed" | "entry") => Format::Atom,
        (xml::Ns::Rss, "rss") | (xml::Ns::Rdf, "RDF") => Format::Rss,
        _ => {
            let name: String = root.name.chars().take(60).collect();
            return Err(FormatError::Unknown(format!("XML with the root <{name}> is neither RSS nor Atom")));
        }
    };
    if let Some(asked) = options.format.filter(|asked| *asked != format) {
        return Err(FormatError::Unknown(format!("{format:?} where {asked:?} was asked for")));
    }
    let mut feed = FeedDocument::new(format);
    match format {
        Format::Atom => atom::read(&mut xml, root, &mut feed)?,
        _ => rss::read(&mut xml, root, &mut feed)?,
    }
    xml.finish()?;
    feed.problems = xml.into_problems();
    Ok(feed)
}

/// Whether an address begins with a scheme (RFC 3986, section 3.1), so that it is absolute.
pub(crate) fn has_scheme(address: &str) -> bool {
    let Some((scheme, _)) = address.split_once(':') else { return false };
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
}
