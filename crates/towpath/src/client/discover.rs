//! Which protocol a feed can best be followed by, judged by what its address answers.

use serde::Deserialize;
use towpath_proto::follow::{Request, RequestId, ResponseHead, TransferError};
use url::Url;

use super::fetch::{Fetched, Fetcher};
use super::protocol::Protocol;

/// How much of a document is looked at.
const START_BYTES: usize = 64 << 10;

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

/// A way to follow a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The protocol.
    pub protocol: Protocol,
    /// The address to follow.
    pub url: String,
    /// What it was recognised by, to stand after "because".
    pub why: &'static str,
}

/// Why no protocol was found.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// No whole answer.
    #[error("{url}: {source}")]
    Transfer {
        /// What was asked.
        url: String,
        /// What happened.
        source: TransferError,
    },
    /// An error status.
    #[error("{url}: the server answers {status}")]
    Status {
        /// What was asked.
        url: String,
        /// Its status code.
        status: u16,
    },
    /// Something else than a feed.
    #[error("{url}: {what}, not a feed that can be recognised; name its protocol with --protocol")]
    Unknown {
        /// What was asked.
        url: String,
        /// What is there, as far as can be told.
        what: String,
    },
}

/// Asks an address, and where that is no feed its site's manifest, for the strongest protocol it offers.
///
/// # Errors
///
/// [`DiscoverError`], about the address itself.
pub async fn discover(fetcher: &Fetcher, url: &str) -> Result<Offer, DiscoverError> {
    let (head, start) = probe(fetcher, url).await?;
    let unknown = |what: &str| DiscoverError::Unknown { url: url.to_owned(), what: what.to_owned() };
    let answered = Url::parse(&head.url).map_err(|e| unknown(&e.to_string()))?;
    let seen = Seen { url: &answered, head: &head, start: &start };
    if let Some(offer) = strongest(&seen) {
        return Ok(offer);
    }
    if answered.path() == "/"
        && let Some(offer) = site_manifest(fetcher, &answered).await
    {
        return Ok(offer);
    }
    if !(200..300).contains(&head.status) {
        return Err(DiscoverError::Status { url: url.to_owned(), status: head.status });
    }
    let media_type = media_type(&head);
    Err(unknown(if media_type.is_empty() { "a document without a media type" } else { &media_type }))
}

/// What a site's root does not tell, its manifest may (DiffDelta, section 8).
async fn site_manifest(fetcher: &Fetcher, site: &Url) -> Option<Offer> {
    let url = site.join("/.well-known/diffdelta.json").ok()?;
    let (head, start) = probe(fetcher, url.as_str()).await.ok()?;
    strongest(&Seen { url: &url, head: &head, start: &start })
        .filter(|offer| offer.protocol == Protocol::DiffDelta)
}

async fn probe(fetcher: &Fetcher, url: &str) -> Result<(ResponseHead, Vec<u8>), DiscoverError> {
    let failed = |source| DiscoverError::Transfer { url: url.to_owned(), source };
    let request = Request::get(RequestId(0), url);
    let Fetched { head, mut body, .. } = fetcher.fetch(&request).await.map_err(failed)?;
    let mut start = Vec::new();
    while start.len() < START_BYTES {
        let Some(chunk) = body.chunk().await.map_err(failed)? else { break };
        start.extend_from_slice(&chunk);
    }
    Ok((head, start))
}

/// The strongest protocol that an answer shows.
pub fn strongest(seen: &Seen<'_>) -> Option<Offer> {
    offers(seen).into_iter().min_by_key(|offer| offer.protocol)
}

/// Every protocol that an answer shows.
pub fn offers(seen: &Seen<'_>) -> Vec<Offer> {
    let of_answer = |detect: &Detector| {
        let (protocol, why) = detect(seen)?;
        Some(Offer { protocol, url: seen.url.to_string(), why })
    };
    let mut offers: Vec<Offer> = DETECTORS.iter().filter_map(of_answer).collect();
    offers.extend(listed(seen));
    offers
}

/// Recognises one protocol in an answer; says by what.
type Detector = fn(&Seen<'_>) -> Option<(Protocol, &'static str)>;

const DETECTORS: [Detector; 6] = [diffdelta, replication, smart, history, plain, sup];

fn diffdelta(seen: &Seen<'_>) -> Option<(Protocol, &'static str)> {
    let why = if !seen.is_json() {
        return None;
    } else if seen.has_all(&["\"endpoints\"", "\"diff_latest\""]) {
        "it is a DiffDelta manifest"
    } else if seen.has_all(&["\"cursor\"", "\"prev_cursor\""]) {
        "its JSON has DiffDelta's cursor and prev_cursor"
    } else {
        return None;
    };
    Some((Protocol::DiffDelta, why))
}

fn replication(seen: &Seen<'_>) -> Option<(Protocol, &'static str)> {
    let why = if seen.ok() && media_type(seen.head).starts_with("multipart/") {
        "it is a multipart page"
    } else if seen.is_json() && seen.has_all(&["\"pages\"", "\"createdAt\""]) {
        "it is the index of a snapshot"
    } else if matches!(seen.head.status, 204 | 404) && seen.url.path().ends_with("/replication") {
        "its address is that of a replication feed, which is empty"
    } else {
        return None;
    };
    Some((Protocol::Replication, why))
}

fn smart(seen: &Seen<'_>) -> Option<(Protocol, &'static str)> {
    let why = if seen.is_json() && seen.has_all(&["\"items\"", "\"last_cursor\""]) {
        "its JSON is a collection with a last_cursor"
    } else if seen.is_xml() && seen.has_all(&["http://fanout.org/protocol/atom"]) {
        "its Atom carries Smart Feeds' cursors"
    } else {
        return None;
    };
    Some((Protocol::Smart, why))
}

fn history(seen: &Seen<'_>) -> Option<(Protocol, &'static str)> {
    let why = if !seen.is_xml() {
        return None;
    } else if seen.has_all(&["http://purl.org/syndication/history/1.0"]) {
        "it carries Feed History's elements"
    } else if seen.has_all(&["prev-archive"]) {
        "it links to its archives"
    } else {
        return None;
    };
    Some((Protocol::History, why))
}

fn plain(seen: &Seen<'_>) -> Option<(Protocol, &'static str)> {
    let why = if seen.is_xml() && seen.has_all(&["http://www.w3.org/2005/Atom"]) {
        "it is an Atom feed"
    } else if seen.is_xml() && (seen.has_all(&["<rss"]) || seen.has_all(&["<rdf:RDF"])) {
        "it is an RSS feed"
    } else if seen.is_json() && seen.has_all(&["https://jsonfeed.org/version/"]) {
        "it is a JSON Feed"
    } else {
        return None;
    };
    Some((Protocol::Rss, why))
}

fn sup(seen: &Seen<'_>) -> Option<(Protocol, &'static str)> {
    let is_sup = seen.is_json() && seen.has_all(&["\"updates\"", "\"since_time\"", "\"updated_time\""]);
    is_sup.then_some((Protocol::Sup, "it is a SUP document"))
}

/// A feed's own list of its addresses, as towpath's servers give it.
fn listed(seen: &Seen<'_>) -> Vec<Offer> {
    #[derive(Deserialize)]
    struct List {
        addresses: Vec<Address>,
    }
    #[derive(Deserialize)]
    struct Address {
        name: String,
        url: String,
    }
    let Some(list) = seen.is_json().then(|| serde_json::from_slice::<List>(seen.start).ok()).flatten() else {
        return Vec::new();
    };
    let offer = |Address { name, url }| {
        let protocol = match name.as_str() {
            "head" => Protocol::DiffDelta,
            "replication" => Protocol::Replication,
            "smart" => Protocol::Smart,
            "atom" => Protocol::History,
            _ => return None,
        };
        let url = seen.url.join(&url).ok()?.to_string();
        Some(Offer { protocol, url, why: "the feed's list of addresses names it" })
    };
    list.addresses.into_iter().filter_map(offer).collect()
}

impl Seen<'_> {
    fn ok(&self) -> bool {
        (200..300).contains(&self.head.status)
    }

    fn first_byte(&self) -> Option<u8> {
        let start = self.start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(self.start);
        start.trim_ascii_start().first().copied()
    }

    /// By its bytes: too many servers send feeds as text/plain or text/html.
    fn is_json(&self) -> bool {
        self.ok() && self.first_byte() == Some(b'{')
    }

    fn is_xml(&self) -> bool {
        self.ok() && self.first_byte() == Some(b'<')
    }

    fn has_all(&self, words: &[&str]) -> bool {
        let text = String::from_utf8_lossy(self.start);
        words.iter().all(|word| text.contains(word))
    }
}

fn media_type(head: &ResponseHead) -> String {
    let value = head.header("content-type").unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    fn judged(url: &str, status: u16, content_type: &str, start: &str) -> Option<(Protocol, String)> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", content_type.parse().unwrap());
        let head = ResponseHead { status, url: url.into(), headers };
        let url = Url::parse(url).unwrap();
        let offer = strongest(&Seen { url: &url, head: &head, start: start.as_bytes() })?;
        Some((offer.protocol, offer.url))
    }

    fn protocol(content_type: &str, start: &str) -> Option<Protocol> {
        judged("http://x/a", 200, content_type, start).map(|(protocol, _)| protocol)
    }

    #[test]
    fn protocols_are_told_by_what_the_document_holds() {
        let json = "application/json";
        for (content_type, start, expected) in [
            (json, r#"{"cursor":"sha256:0","prev_cursor":"sha256:0"}"#, Protocol::DiffDelta),
            (json, r#"{"endpoints":{"diff_latest":"/diff/latest.json"}}"#, Protocol::DiffDelta),
            ("Multipart/Mixed; boundary=a", "--a", Protocol::Replication),
            (json, r#"{"createdAt":"…","pages":[]}"#, Protocol::Replication),
            (json, r#"{"items":[],"last_cursor":"1"}"#, Protocol::Smart),
            (
                "text/xml",
                "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:fo='http://fanout.org/protocol/atom'>",
                Protocol::Smart,
            ),
            ("text/xml", "<rss xmlns:fh='http://purl.org/syndication/history/1.0'>", Protocol::History),
            (
                "text/xml",
                "<feed xmlns='http://www.w3.org/2005/Atom'><link rel='prev-archive'/>",
                Protocol::History,
            ),
            ("text/html", "\u{feff}  <rss version='2.0'>", Protocol::Rss),
            ("text/plain", r#"{"version":"https://jsonfeed.org/version/1.1"}"#, Protocol::Rss),
            (json, r#"{"updates":[],"since_time":"","updated_time":""}"#, Protocol::Sup),
        ] {
            assert_eq!(protocol(content_type, start), Some(expected), "{start}");
        }
        for start in ["", "hello", "{}", "<html>", "[1]"] {
            assert_eq!(protocol("text/html", start), None, "{start}");
        }
    }

    #[test]
    fn errors_show_no_protocol_but_an_empty_replication_feed_does() {
        let document = r#"{"cursor":"sha256:0","prev_cursor":"sha256:0"}"#;
        assert_eq!(judged("http://x/diff/a/head.json", 500, "application/json", document), None);
        let empty = judged("http://x/feeds/a/replication", 404, "application/problem+json", "{}");
        assert_eq!(empty.map(|(protocol, _)| protocol), Some(Protocol::Replication));
    }

    #[test]
    fn of_a_list_of_addresses_the_strongest_is_taken() {
        let list = r#"{"addresses":[{"name":"atom","url":"/a/atom"},{"name":"head","url":"http://y/diff/a/head.json"},
            {"name":"items","url":"/a/items"}]}"#;
        let offer = judged("http://x/feeds/a", 200, "application/json", list);
        assert_eq!(offer, Some((Protocol::DiffDelta, "http://y/diff/a/head.json".into())));
    }
}
