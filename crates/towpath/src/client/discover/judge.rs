//! What an answer shows of protocols: a function of its address, its headers, and its beginning.

use serde::Deserialize;
use towpath_proto::follow::ResponseHead;
use towpath_proto::format::html;
use towpath_proto::format::link;
use towpath_proto::format::skim::{FeedHead, Root, skim};
use towpath_proto::format::sniff::{self, Kind};
use towpath_proto::smart::wire::Collection;
use url::Url;

use super::Offer;
use super::keys::top_level_keys;
use crate::client::protocol::Protocol;

/// Relations that only feeds with archives or pages have (RFC 5005, sections 3 and 4; Feed History).
const HISTORY_RELATIONS: [&str; 5] = ["prev-archive", "next-archive", "current", "prev", "next"];

/// Media types of feeds in links to them.
const FEED_TYPES: [&str; 7] = [
    "application/atom+xml",
    "application/rss+xml",
    "application/rdf+xml",
    "application/feed+json",
    "application/json",
    "text/xml",
    "application/xml",
];

/// What an address answered: all that is judged.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The address that answered.
    pub url: &'a Url,
    /// Status and headers.
    pub head: &'a ResponseHead,
    /// The first bytes of the body.
    pub start: &'a [u8],
}

/// Every protocol that an answer shows.
pub fn offers(seen: &Seen<'_>) -> Vec<Offer> {
    let document = Document::of(seen);
    let of_answer = |detect: &Detector| {
        let (protocol, why) = detect(seen, &document)?;
        Some(Offer { protocol, url: seen.url.to_string(), why: why.to_owned() })
    };
    let mut offers: Vec<Offer> = DETECTORS.iter().filter_map(of_answer).collect();
    offers.extend(listed(seen, &document));
    offers
}

/// Feeds that a page, or whatever else is no feed, names in its head or its `Link` headers: in this order,
/// those first whose type says that they are feeds.
pub fn alternates(seen: &Seen<'_>) -> Vec<String> {
    let mut found: Vec<(String, String)> = Vec::new();
    for link in link::from_headers(&seen.head.headers, Some(seen.url)) {
        if link.anchor.is_none() && link.has_rel("alternate") {
            let media_type = link.params.iter().find(|(name, _)| name == "type").map(|(_, value)| value);
            found.push((link.target, media_type.cloned().unwrap_or_default().to_ascii_lowercase()));
        }
    }
    let (text, _) = sniff::decode(seen.start, seen.head.header("content-type"));
    if sniff::kind(&text) == Kind::Html {
        found.extend(html::alternates(&text, seen.url).into_iter().map(|a| (a.href, a.media_type)));
    }
    let mut urls: Vec<String> = Vec::new();
    for (url, media_type) in found {
        let is_feed = FEED_TYPES.contains(&media_type.as_str());
        if is_feed && url != seen.url.as_str() && !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

/// What is there, in a person's words, where it is no feed.
pub fn described(seen: &Seen<'_>) -> String {
    let (text, _) = sniff::decode(seen.start, None);
    let media_type = media_type(seen.head);
    if matches!(Document::of(seen), Document::Json(keys) if keys.iter().any(|key| key == "items")) {
        return "a collection without Smart Feeds' cursors".to_owned();
    }
    match sniff::kind(&text) {
        Kind::Html => "a page that names no feed".to_owned(),
        Kind::Empty => "an empty document".to_owned(),
        _ if media_type.is_empty() => "a document without a media type".to_owned(),
        _ => media_type,
    }
}

/// An answer's document, by its bytes: too many servers send feeds as text/plain or text/html.
enum Document {
    /// A JSON object with these names.
    Json(Vec<String>),
    Xml(FeedHead),
    Other,
}

impl Document {
    fn of(seen: &Seen<'_>) -> Self {
        let start = seen.start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(seen.start).trim_ascii_start();
        if !seen.is_ok() {
            Self::Other
        } else if start.first() == Some(&b'{') {
            Self::Json(top_level_keys(start))
        } else {
            let head = skim(seen.start, seen.head.header("content-type"), Some(seen.url.as_str()));
            head.map_or(Self::Other, Self::Xml)
        }
    }

    fn has_keys(&self, names: &[&str]) -> bool {
        let Self::Json(keys) = self else { return false };
        names.iter().all(|name| keys.iter().any(|key| key == name))
    }

    fn feed(&self) -> Option<&FeedHead> {
        match self {
            Self::Xml(head) if matches!(head.root, Root::Atom | Root::Rss) => Some(head),
            _ => None,
        }
    }
}

/// Recognises one protocol in an answer; says by what.
type Detector = fn(&Seen<'_>, &Document) -> Option<(Protocol, &'static str)>;

const DETECTORS: [Detector; 6] = [diffdelta, replication, smart, history, plain, sup];

fn diffdelta(seen: &Seen<'_>, document: &Document) -> Option<(Protocol, &'static str)> {
    let why = if document.has_keys(&["endpoints"]) && seen.mentions("\"diff_latest\"") {
        "it is a DiffDelta manifest"
    } else if document.has_keys(&["cursor", "prev_cursor"]) {
        "its JSON has DiffDelta's cursor and prev_cursor"
    } else {
        return None;
    };
    Some((Protocol::DiffDelta, why))
}

fn replication(seen: &Seen<'_>, document: &Document) -> Option<(Protocol, &'static str)> {
    let is_page = seen.is_ok() && media_type(seen.head).starts_with("multipart/");
    let why = if is_page {
        "it is a multipart page"
    } else if document.has_keys(&["pages", "createdAt"]) {
        "it is the index of a snapshot"
    } else if matches!(seen.head.status, 204 | 404) && seen.url.path().ends_with("/replication") {
        "its address is that of a replication feed, which is empty"
    } else {
        return None;
    };
    Some((Protocol::Replication, why))
}

fn smart(seen: &Seen<'_>, document: &Document) -> Option<(Protocol, &'static str)> {
    let why = if document.has_keys(&["items", "last_cursor"]) {
        "its JSON is a collection with a last_cursor"
    } else if document.has_keys(&["items", "count", "totalItems", "url"]) && seen.has_no_items() {
        // There is a cursor for the last item, and none where there is no item.
        "its JSON is an empty collection with its totalItems and its base URL"
    } else if document.feed().is_some_and(|head| head.has_cursors) {
        "its Atom carries Smart Feeds' cursors"
    } else {
        return None;
    };
    Some((Protocol::Smart, why))
}

fn history(seen: &Seen<'_>, document: &Document) -> Option<(Protocol, &'static str)> {
    let why = if document.has_keys(&["items", "next_url"]) && is_json_feed(seen, document) {
        "it is a JSON Feed with further pages"
    } else {
        let head = document.feed()?;
        let links = link::from_headers(&seen.head.headers, Some(seen.url));
        let is_linked = |rel: &&str| head.has_rel(rel) || link::target(&links, rel).is_some();
        if head.has_history {
            "it carries Feed History's elements"
        } else if let Some(rel) = HISTORY_RELATIONS.iter().find(|rel| is_linked(rel)) {
            // The word is one of a few: the text is made once for each.
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

fn plain(seen: &Seen<'_>, document: &Document) -> Option<(Protocol, &'static str)> {
    let why = match document.feed().map(|head| head.root) {
        Some(Root::Atom) => "it is an Atom feed",
        Some(_) => "it is an RSS feed",
        None if is_json_feed(seen, document) => "it is a JSON Feed",
        None => return None,
    };
    Some((Protocol::Rss, why))
}

fn sup(_seen: &Seen<'_>, document: &Document) -> Option<(Protocol, &'static str)> {
    let is_sup = document.has_keys(&["updates", "since_time", "updated_time"]);
    is_sup.then_some((Protocol::Sup, "it is a SUP document"))
}

fn is_json_feed(seen: &Seen<'_>, document: &Document) -> bool {
    let names = ["https://jsonfeed.org/version/", "https:\\/\\/jsonfeed.org\\/version\\/"];
    document.has_keys(&["version", "items"]) && names.iter().any(|name| seen.mentions(name))
}

/// A feed's own list of its addresses, as towpath's servers give it.
fn listed(seen: &Seen<'_>, document: &Document) -> Vec<Offer> {
    #[derive(Deserialize)]
    struct List {
        addresses: Vec<Address>,
    }
    #[derive(Deserialize)]
    struct Address {
        name: String,
        url: String,
    }
    if !document.has_keys(&["addresses"]) {
        return Vec::new();
    }
    let Ok(list) = serde_json::from_slice::<List>(seen.start) else { return Vec::new() };
    let offer = |Address { name, url }| {
        let protocol = match name.as_str() {
            "head" => Protocol::DiffDelta,
            "replication" => Protocol::Replication,
            "smart" => Protocol::Smart,
            "atom" => Protocol::History,
            "rss" => Protocol::Rss,
            _ => return None,
        };
        let url = seen.url.join(&url).ok()?.to_string();
        Some(Offer { protocol, url, why: "the feed's list of addresses names it".to_owned() })
    };
    list.addresses.into_iter().filter_map(offer).collect()
}

impl Seen<'_> {
    /// Whether the status is one of success.
    pub(super) fn is_ok(&self) -> bool {
        (200..300).contains(&self.head.status)
    }

    /// Whether it is a collection, all of it, without items.
    fn has_no_items(&self) -> bool {
        Collection::from_json(self.start).is_ok_and(|page| page.items.is_empty() && page.count == Some(0))
    }

    fn mentions(&self, word: &str) -> bool {
        memchr::memmem::find(self.start, word.as_bytes()).is_some()
    }
}

fn media_type(head: &ResponseHead) -> String {
    let value = head.header("content-type").unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}
