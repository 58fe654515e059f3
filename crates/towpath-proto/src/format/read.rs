//! Reading a feed document of any format.

use std::borrow::Cow;

use super::budget::Budget;
use super::error::FormatError;
use super::feed_document::{FeedDocument, Format};
use super::html_page::{self, HtmlMapping};
use super::limits::DocumentLimits;
use super::problems::Problems;
use super::{atom, fill, json_feed, json_pointers, json_repair, preface, rss, sniff, western, xml};
use crate::item::Item;

/// Options of reading a document.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReadOptions<'a> {
    /// Format; detected if `None`. [`Format::Json`] needs `mapping`, [`Format::Html`] needs `html`.
    pub format: Option<Format>,
    /// `Content-Type` header, for the character set (RFC 7303, section 3) and as a hint.
    pub content_type: Option<&'a str>,
    /// URL of the document: the base of relative URLs.
    pub base_url: Option<&'a str>,
    /// Mapping of any other JSON.
    pub mapping: Option<&'a json_pointers::Mapping>,
    /// Mapping of an HTML page.
    pub html: Option<&'a HtmlMapping>,
    /// Repairs ill-formed XML and JSON, as feed readers do, with warnings. A document that is cut off stays an error.
    pub repair: bool,
    /// Fills what an item lacks: its summary by a media description, its URL by that of an enclosure.
    pub fill: bool,
    /// Limits of the document.
    pub limits: DocumentLimits,
}

/// Reads a feed document of any format.
///
/// Without a format, the content decides; JSON other than JSON Feed needs a mapping. Malformed parts, such as
/// dates, or items without an id, are skipped and reported in [`FeedDocument::problems`]. A document that is
/// not reliable as a whole is an error.
///
/// ```
/// use towpath_proto::format::{Format, ReadOptions, read};
///
/// let rss = br#"<rss version="2.0"><channel><title>News</title>
///     <item><guid>one</guid><title>Ten boats</title></item></channel></rss>"#;
/// let feed = read(rss, &ReadOptions::default())?;
/// assert_eq!((feed.format, feed.items[0].id.as_str()), (Format::Rss, "one"));
/// # Ok::<(), towpath_proto::format::FormatError>(())
/// ```
pub fn read(bytes: &[u8], options: &ReadOptions) -> Result<FeedDocument, FormatError> {
    let mut budget = Budget::new(bytes.len(), options.limits);
    let (text, mut problems) = match options.repair {
        true => sniff::decode_or_western(bytes, options.content_type),
        false => sniff::decode(bytes, options.content_type),
    };
    if let Cow::Owned(text) = &text {
        budget.store(text.len())?;
    }
    let text = if options.repair { preface::dropped(text, &mut problems) } else { text };
    let mut feed = match (sniff::kind(&text), options.format) {
        // An empty document is not an empty feed: absence would delete every item.
        (sniff::DocumentKind::Empty, _) => return Err(FormatError::Unknown("the document is empty".into())),
        (_, Some(Format::Html)) => read_html(&text, options, budget)?,
        (sniff::DocumentKind::Html, _) => {
            let reason = "this is an HTML page; the feed's own address is needed";
            return Err(FormatError::Unknown(reason.into()));
        }
        (sniff::DocumentKind::Other, _) => {
            let start: String = text.trim_start().chars().take(40).collect();
            return Err(FormatError::Unknown(format!("neither XML nor JSON begins with {start:?}")));
        }
        (sniff::DocumentKind::Xml, None | Some(Format::Rss | Format::Atom)) => {
            let unreplaced = problems.len();
            let mut text = sniff::replace_non_xml(text, &mut problems);
            if options.repair {
                text = western::replace_controls(text, &mut problems);
            }
            if problems.len() > unreplaced {
                budget.store(text.len())?;
            }
            xml_or_repaired(&text, options, budget)?
        }
        (sniff::DocumentKind::Json, None | Some(Format::JsonFeed | Format::Json | Format::Ndjson)) => {
            json_or_repaired(&text, options, budget)?
        }
        (kind, Some(format)) => {
            return Err(FormatError::Unknown(format!("{kind:?} instead of the requested {format:?}")));
        }
    };
    if options.fill {
        fill::fill(&mut feed.items);
    }
    let mut of_encoding = Problems::default();
    problems.into_iter().for_each(|text| of_encoding.warn(|| text));
    prepend_problems(&mut feed, of_encoding);
    Ok(feed)
}

/// Reads an HTML page as one item, whose id is empty: what identifies a page is for the caller to say.
///
/// # Errors
///
/// [`FormatError`] if it is no page, or exceeds a limit.
pub fn read_page(bytes: &[u8], url: &str, options: &ReadOptions) -> Result<Item, FormatError> {
    let mut budget = Budget::new(bytes.len(), options.limits);
    let (text, _) = sniff::decode_or_western(bytes, options.content_type);
    if let Cow::Owned(text) = &text {
        budget.store(text.len())?;
    }
    match sniff::kind(&text) {
        sniff::DocumentKind::Html => html_page::read_whole(&text, url, budget),
        kind => Err(FormatError::Unknown(format!("{kind:?} instead of an HTML page"))),
    }
}

/// Reads JSON. What strict reading refuses is repaired if the options say so, and read again.
fn json_or_repaired(text: &str, options: &ReadOptions, budget: Budget) -> Result<FeedDocument, FormatError> {
    let error = match read_json(text, options, budget) {
        Err(error @ FormatError::Malformed { .. }) if options.repair => error,
        read => return read,
    };
    let Some((repaired, problems)) = json_repair::repair(text) else { return Err(error) };
    let mut budget = Budget::new(text.len(), options.limits);
    budget.store(repaired.len())?;
    let mut feed = read_json(&repaired, options, budget).map_err(|_| error)?;
    prepend_problems(&mut feed, problems);
    Ok(feed)
}

/// Reads XML. What strict reading refuses is repaired if the options say so, and read again.
fn xml_or_repaired(text: &str, options: &ReadOptions, budget: Budget) -> Result<FeedDocument, FormatError> {
    let error = match read_xml(text, options, budget) {
        Err(error) if options.repair => error,
        read => return read,
    };
    let mut budget = Budget::new(text.len(), options.limits);
    let (repaired, mut problems) = xml::repair(text, &mut budget)?;
    match read_xml(&repaired, options, budget) {
        Ok(mut feed) => {
            if problems.is_empty() && matches!(error, FormatError::Malformed { .. }) {
                problems.warn(|| error.to_string());
            }
            prepend_problems(&mut feed, problems);
            Ok(feed)
        }
        // No repair helps a document that is cut off, whatever else is wrong with it.
        Err(truncated @ FormatError::Truncated { .. }) => Err(truncated),
        // The repair did not help. The first error has the place in the document.
        Err(_) => Err(error),
    }
}

/// Puts the warnings of an earlier step before those of the document.
fn prepend_problems(feed: &mut FeedDocument, mut problems: Problems) {
    problems.append((std::mem::take(&mut feed.problems), feed.counts));
    (feed.problems, feed.counts) = problems.into_parts();
}

fn read_json(text: &str, options: &ReadOptions, budget: Budget) -> Result<FeedDocument, FormatError> {
    match options.mapping.filter(|_| options.format != Some(Format::JsonFeed)) {
        Some(mapping) => {
            let lines = options.format == Some(Format::Ndjson);
            json_pointers::read(text, mapping, (options.base_url, lines), budget)
        }
        // JSON Feed is the only JSON format that needs no mapping.
        None if matches!(options.format, None | Some(Format::JsonFeed)) => {
            json_feed::read(text, options.base_url, budget)
        }
        None => Err(FormatError::Mapping {
            place: "(no mapping)".into(),
            reason: "JSON needs a mapping that locates the items".into(),
        }),
    }
}

fn read_html(text: &str, options: &ReadOptions, budget: Budget) -> Result<FeedDocument, FormatError> {
    let missing = || FormatError::Mapping {
        place: "(no mapping)".into(),
        reason: "HTML needs selectors that locate the items".into(),
    };
    html_page::read(text, options.html.ok_or_else(missing)?, options.base_url, budget)
}

fn read_xml(text: &str, options: &ReadOptions, budget: Budget) -> Result<FeedDocument, FormatError> {
    let mut xml = xml::XmlReader::with_budget(text, options.base_url, budget);
    let root = loop {
        match xml.next()? {
            xml::XmlToken::Start(tag) => break tag,
            xml::XmlToken::Text(_) => {}
            xml::XmlToken::End | xml::XmlToken::Eof => {
                return Err(FormatError::Unknown("there is no element in this XML".into()));
            }
        }
    };
    // The root element decides, because media types of feeds are unreliable.
    let format = match (root.ns, root.local) {
        (xml::Ns::Atom, "feed" | "entry") => Format::Atom,
        (xml::Ns::Rss, "rss") | (xml::Ns::Rdf, "RDF") => Format::Rss,
        _ => {
            let name: String = root.name.chars().take(60).collect();
            return Err(FormatError::Unknown(format!("XML with the root <{name}> is neither RSS nor Atom")));
        }
    };
    if let Some(asked) = options.format.filter(|asked| *asked != format) {
        return Err(FormatError::Unknown(format!("{format:?} instead of the requested {asked:?}")));
    }
    let mut feed = FeedDocument::new(format);
    match format {
        Format::Atom => atom::read(&mut xml, root, &mut feed)?,
        _ => rss::read(&mut xml, root, &mut feed)?,
    }
    xml.finish()?;
    (feed.problems, feed.counts) = xml.into_problems().into_parts();
    Ok(feed)
}
