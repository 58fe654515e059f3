//! Protocol detection: a pure function of a response's URL, head and first bytes.

use serde::Deserialize;
use towpath_proto::FeedId;
use towpath_proto::follow::ResponseHead;
use towpath_proto::format::html;
use towpath_proto::format::link;
use towpath_proto::format::media_type::essence;
use towpath_proto::format::peek::{FeedPeek, RootElement, peek};
use towpath_proto::format::sniff::{self, DocumentKind};
use towpath_proto::smart::wire::Collection;
use url::Url;

use super::Offer;
use super::keys::top_level_keys;
use crate::protocol::Protocol;

/// Media type of a stream of events, which never ends.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// Link relations that only archived or paged feeds have (RFC 5005, sections 3 and 4; Feed History).
const HISTORY_RELATIONS: [&str; 5] = ["prev-archive", "next-archive", "current", "prev", "next"];

/// Media types of links that lead to feeds.
const FEED_TYPES: [&str; 7] = [
    "application/atom+xml",
    "application/rss+xml",
    "application/rdf+xml",
    "application/feed+json",
    "application/json",
    "text/xml",
    "application/xml",
];

/// A response as input of the detection.
#[derive(Debug)]
pub struct ProbedResponse<'a> {
    /// Final URL.
    pub url: &'a Url,
    /// Status and headers.
    pub head: &'a ResponseHead,
    /// First bytes of the body.
    pub start: &'a [u8],
}

/// Returns every protocol that a response shows.
pub fn offers(response: &ProbedResponse<'_>) -> Vec<Offer> {
    let document = DetectedDocument::new(response);
    let offer = |detect: &ProtocolDetector| {
        let (protocol, why) = detect(response, &document)?;
        Some(Offer { protocol, url: response.url.to_string(), why: why.to_owned(), feed: None })
    };
    let mut offers: Vec<Offer> = DETECTORS.iter().filter_map(offer).collect();
    offers.extend(listed(response, &document));
    offers
}

/// Returns the feeds that a document links to: from its `Link` headers, then from its HTML head.
///
/// Only links with a media type of feeds count.
pub fn alternates(response: &ProbedResponse<'_>) -> Vec<String> {
    let mut found: Vec<(String, String)> = Vec::new();
    for link in link::from_headers(&response.head.headers, Some(response.url)) {
        if link.anchor.is_none() && link.has_rel("alternate") {
            let media_type = link.params.iter().find(|(name, _)| name == "type").map(|(_, value)| value);
            found.push((link.target, media_type.cloned().unwrap_or_default().to_ascii_lowercase()));
        }
    }
    let (text, _) = sniff::decode(response.start, response.head.header("content-type"));
    if sniff::kind(&text) == DocumentKind::Html {
        found.extend(html::alternates(&text, response.url).into_iter().map(|a| (a.href, a.media_type)));
    }
    let mut urls: Vec<String> = Vec::new();
    for (url, media_type) in found {
        // rel=alternate also marks translations and print versions of a page.
        let is_feed = FEED_TYPES.contains(&media_type.as_str());
        if is_feed && url != response.url.as_str() && !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

/// Returns the offer of an HTML page that names a hub, in its headers or its head (WebSub, section 4).
pub(super) fn page_with_hub(response: &ProbedResponse<'_>) -> Option<Offer> {
    let (text, _) = sniff::decode(response.start, response.head.header("content-type"));
    if !response.is_ok() || sniff::kind(&text) != DocumentKind::Html {
        return None;
    }
    let links = link::from_headers(&response.head.headers, Some(response.url));
    let has_hub =
        link::target(&links, "hub").is_some() || html::head_links(&text).iter().any(|l| l.rel == "hub");
    has_hub.then(|| Offer {
        protocol: Protocol::Page,
        url: response.url.to_string(),
        why: "it is a page that names a hub and no feed: one item, told again whenever it changes".to_owned(),
        feed: None,
    })
}

/// Describes a document that is not a feed, for an error message.
pub fn describe(response: &ProbedResponse<'_>) -> String {
    let (text, _) = sniff::decode(response.start, None);
    let media_type = media_type(response.head);
    if matches!(DetectedDocument::new(response), DetectedDocument::Json(keys) if keys.iter().any(|key| key == "items"))
    {
        return "a collection without Smart Feeds' cursors".to_owned();
    }
    match sniff::kind(&text) {
        _ if media_type == EVENT_STREAM => "a stream of events".to_owned(),
        DocumentKind::Html => "a page that links to no feed".to_owned(),
        DocumentKind::Empty => "an empty document".to_owned(),
        _ if media_type.is_empty() => "a document without a media type".to_owned(),
        _ => media_type,
    }
}

/// A document's format by its bytes: too many servers send feeds as text/plain or text/html.
enum DetectedDocument {
    /// A JSON object with these member names.
    Json(Vec<String>),
    Xml(FeedPeek),
    Other,
}

impl DetectedDocument {
    fn new(response: &ProbedResponse<'_>) -> Self {
        // A byte order mark before JSON is invalid, but common.
        let start = response.start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(response.start).trim_ascii_start();
        if !response.is_ok() {
            Self::Other
        // Names only: the beginning of a large document is not valid JSON, so it cannot be parsed.
        } else if start.first() == Some(&b'{') {
            Self::Json(top_level_keys(start))
        } else {
            let head =
                peek(response.start, response.head.header("content-type"), Some(response.url.as_str()));
            head.map_or(Self::Other, Self::Xml)
        }
    }

    fn has_keys(&self, names: &[&str]) -> bool {
        let Self::Json(keys) = self else { return false };
        names.iter().all(|name| keys.iter().any(|key| key == name))
    }

    fn feed(&self) -> Option<&FeedPeek> {
        match self {
            Self::Xml(head) if matches!(head.root, RootElement::Atom | RootElement::Rss) => Some(head),
            _ => None,
        }
    }
}

/// Detects one protocol in a response; returns it with the evidence.
type ProtocolDetector = fn(&ProbedResponse<'_>, &DetectedDocument) -> Option<(Protocol, &'static str)>;

const DETECTORS: [ProtocolDetector; 6] = [diffdelta, replication, smart, history, plain, sup];

fn diffdelta(response: &ProbedResponse<'_>, document: &DetectedDocument) -> Option<(Protocol, &'static str)> {
    let why = if document.has_keys(&["endpoints"]) && response.contains("\"diff_latest\"") {
        "it is a DiffDelta manifest"
    } else if document.has_keys(&["cursor", "prev_cursor"]) {
        "its JSON has DiffDelta's cursor and prev_cursor"
    } else {
        return None;
    };
    Some((Protocol::DiffDelta, why))
}

fn replication(
    response: &ProbedResponse<'_>,
    document: &DetectedDocument,
) -> Option<(Protocol, &'static str)> {
    let is_page = response.is_ok() && media_type(response.head).starts_with("multipart/");
    let why = if is_page {
        "it is a multipart page"
    } else if document.has_keys(&["pages", "createdAt"]) {
        "it is the index of a snapshot"
    } else if matches!(response.head.status, 204 | 404) && response.url.path().ends_with("/replication") {
        // An empty replication feed has no page, so its URL is the only evidence.
        "its address is that of a replication feed, which is empty"
    } else {
        return None;
    };
    Some((Protocol::Replication, why))
}

fn smart(response: &ProbedResponse<'_>, document: &DetectedDocument) -> Option<(Protocol, &'static str)> {
    let why = if document.has_keys(&["items", "last_cursor"]) {
        "its JSON is a collection with a last_cursor"
    } else if document.has_keys(&["items", "count", "totalItems", "url"]) && response.has_no_items() {
        // last_cursor names the last item, so an empty collection has none.
        "its JSON is an empty collection with its totalItems and its base URL"
    } else if document.feed().is_some_and(|head| head.has_cursors) {
        "its Atom carries Smart Feeds' cursors"
    } else {
        return None;
    };
    Some((Protocol::Smart, why))
}

fn history(response: &ProbedResponse<'_>, document: &DetectedDocument) -> Option<(Protocol, &'static str)> {
    let why = if document.has_keys(&["items", "next_url"]) && is_json_feed(response, document) {
        "it is a JSON Feed with further pages"
    } else {
        let head = document.feed()?;
        let links = link::from_headers(&response.head.headers, Some(response.url));
        let is_linked = |rel: &&str| head.has_rel(rel) || link::target(&links, rel).is_some();
        if head.has_history {
            "it carries Feed History's elements"
        } else if let Some(rel) = HISTORY_RELATIONS.iter().find(|rel| is_linked(rel)) {
            // A detector returns static texts, so the relation cannot be interpolated.
            match *rel {
                "prev-archive" | "next-archive" | "current" => "it links to its archives",
                _ => "it links to its other pages",
            }
        } else {
            return None;
        }
    };
    Some((Protocol::History, why))
}

fn plain(response: &ProbedResponse<'_>, document: &DetectedDocument) -> Option<(Protocol, &'static str)> {
    let why = match document.feed().map(|head| head.root) {
        Some(RootElement::Atom) => "it is an Atom feed",
        Some(_) => "it is an RSS feed",
        None if is_json_feed(response, document) => "it is a JSON Feed",
        None => return None,
    };
    Some((Protocol::Rss, why))
}

fn sup(_seen: &ProbedResponse<'_>, document: &DetectedDocument) -> Option<(Protocol, &'static str)> {
    let is_sup = document.has_keys(&["updates", "since_time", "updated_time"]);
    is_sup.then_some((Protocol::Sup, "it is a SUP document"))
}

fn is_json_feed(response: &ProbedResponse<'_>, document: &DetectedDocument) -> bool {
    // Some JSON encoders escape slashes.
    let names = ["https://jsonfeed.org/version/", "https:\\/\\/jsonfeed.org\\/version\\/"];
    let is_named = || document.has_keys(&["version"]) && names.iter().any(|name| response.contains(name));
    // The version may come after items of many megabytes, of which only the beginning is read.
    let is_labelled = || media_type(response.head) == "application/feed+json";
    document.has_keys(&["items"]) && (is_named() || is_labelled())
}

/// Offers from a feed's list of URLs, as towpath's servers publish it at `/feeds/{feed}`.
fn listed(response: &ProbedResponse<'_>, document: &DetectedDocument) -> Vec<Offer> {
    #[derive(Deserialize)]
    struct AddressList {
        /// Of any type: somebody else's list may have a number here.
        #[serde(default)]
        id: serde_json::Value,
        addresses: Vec<ListedAddress>,
    }
    #[derive(Deserialize)]
    struct ListedAddress {
        name: String,
        url: String,
    }
    if !document.has_keys(&["addresses"]) {
        return Vec::new();
    }
    // A list beyond the bytes read cannot be parsed, and offers nothing.
    let Ok(list) = serde_json::from_slice::<AddressList>(response.start) else { return Vec::new() };
    let feed = list.id.as_str().and_then(|name| FeedId::new(name).ok());
    let offer = |ListedAddress { name, url }| {
        let protocol = match name.as_str() {
            "head" => Protocol::DiffDelta,
            "replication" => Protocol::Replication,
            "smart" => Protocol::Smart,
            "atom" => Protocol::History,
            "rss" => Protocol::Rss,
            _ => return None,
        };
        let url = response.url.join(&url).ok()?.to_string();
        Some(Offer {
            protocol,
            url,
            why: "the feed's list of addresses names it".to_owned(),
            feed: feed.clone(),
        })
    };
    list.addresses.into_iter().filter_map(offer).collect()
}

impl ProbedResponse<'_> {
    /// Returns true for a status of success.
    pub(super) fn is_ok(&self) -> bool {
        (200..300).contains(&self.head.status)
    }

    /// Returns true for a complete and empty collection.
    fn has_no_items(&self) -> bool {
        Collection::from_json(self.start).is_ok_and(|page| page.items.is_empty() && page.count == Some(0))
    }

    fn contains(&self, word: &str) -> bool {
        memchr::memmem::find(self.start, word.as_bytes()).is_some()
    }
}

/// Returns the media type of a response, without parameters.
pub(super) fn media_type(head: &ResponseHead) -> String {
    let value = head.header("content-type").unwrap_or_default();
    essence(value).to_ascii_lowercase()
}
