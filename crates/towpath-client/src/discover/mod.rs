//! Discovery: finds the protocol with the strongest delivery guarantee that a URL offers, and among several of one
//! guarantee the one that tells changes the soonest, or costs the least ([`FollowPace`]).
//!
//! A single request usually suffices. It shows the document's format and namespaces, its links, and a feed's list
//! of URLs. For a site's root, discovery also requests the DiffDelta manifest. For a web page it probes the feeds that
//! the page links to. Among all offers the preferred protocol wins ([`Protocol::preference`]), and the first of equals.

mod detect;
mod keys;

use std::time::Duration;

use http::header::ACCEPT;
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};
use towpath_proto::FeedId;
use towpath_proto::follow::{FollowError, Request, RequestId, ResponseHead, TransferError, after_colon};
use url::Url;

use super::fetch::{Fetcher, StreamingResponse};
use super::problem::response_problem;
use super::protocol::{FollowPace, Protocol};

use detect::{EVENT_STREAM, media_type, page_with_hub};
pub use detect::{ProbedResponse, alternates, describe, offers};

/// Number of bytes of a document that are read first.
const START_BYTES: usize = 64 << 10;

/// Maximum number of bytes read if the beginning shows no protocol.
const MAX_BYTES: usize = 8 << 20;

/// Response time after which a second request without long poll is sent.
///
/// A Smart Feed without items holds a request until its first item arrives.
const LONG_POLL_AFTER: Duration = Duration::from_secs(2);

/// Time for the beginning of a body, which may be one that never ends.
const BODY_TIME: Duration = Duration::from_secs(10);

/// Maximum number of a page's feeds that are probed.
const MAX_ALTERNATES: usize = 6;

/// `Accept` header of probes: feed formats first, HTML last.
const ACCEPTED_TYPES: &str = "application/json, application/feed+json, application/atom+xml, application/rss+xml, \
                        multipart/mixed;q=0.9, application/xml;q=0.8, text/xml;q=0.8, text/html;q=0.5, */*;q=0.1";

/// Description of a page that is followed on request only: a reader who gives a page's address usually wants its feed.
const PAGE_WITH_HUB: &str =
    "a page that names a hub but no feed, which --push, or --protocol page, follows as one item";

/// A protocol by which a feed can be followed, and the URL for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The protocol.
    pub protocol: Protocol,
    /// URL to follow.
    pub url: String,
    /// Evidence for the protocol, as a phrase that fits after "because".
    pub why: String,
    /// The feed's own name, if its description tells it.
    pub feed: Option<FeedId>,
}

/// Discovery found no protocol.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// The response did not arrive whole.
    #[error("{url}: {source}")]
    Transfer {
        /// The requested URL.
        url: String,
        /// The transfer error.
        source: TransferError,
    },
    /// The server responded with an error status.
    #[error("{url}: the server answers {status}{}", after_colon(detail.as_deref()))]
    Status {
        /// The requested URL.
        url: String,
        /// Status code.
        status: u16,
        /// The server's reason, if it sent one.
        detail: Option<String>,
        /// The server's `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The document is not a feed.
    #[error("{url}: {what}, not a feed that can be recognised")]
    Unknown {
        /// The requested URL.
        url: String,
        /// Description of the document.
        what: String,
    },
}

impl DiscoverError {
    /// Returns the server's `Retry-After`, if it sent one.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Returns true if the same request may succeed later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Transfer { source, .. } => matches!(
                source,
                TransferError::Connect(_) | TransferError::Timeout(_) | TransferError::Body(_)
            ),
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..),
            Self::Unknown { .. } => false,
        }
    }
}

impl From<DiscoverError> for FollowError {
    fn from(error: DiscoverError) -> Self {
        match error {
            DiscoverError::Transfer { url, source } => Self::Transfer { url, source },
            DiscoverError::Status { url, status, detail, .. } => Self::Status { url, status, detail },
            DiscoverError::Unknown { url, what } => {
                Self::Protocol { url, reason: format!("{what}, not a feed that can be recognised") }
            }
        }
    }
}

/// Finds the protocol to follow that a URL offers, directly or through the feeds that it links to.
///
/// Among those with the strongest guarantee, the one for this pace.
///
/// # Errors
///
/// [`DiscoverError`] about `url` itself. Linked feeds that fail are skipped.
pub async fn discover(fetcher: &Fetcher, url: &str, pace: FollowPace) -> Result<Offer, DiscoverError> {
    preferred(discover_all(fetcher, url).await?, pace)
        // Never: without an offer there is an error.
        .ok_or_else(|| DiscoverError::Unknown { url: url.to_owned(), what: "nothing".to_owned() })
}

/// Finds the protocol to follow by push that a URL offers: the preferred one of those whose feeds can name a hub. A page
/// that names a hub and no feed is followed itself. `None` if
/// nothing there shows one.
///
/// # Errors
///
/// [`DiscoverError`] if `url` cannot be read.
pub async fn discover_pushed(fetcher: &Fetcher, url: &str) -> Result<Option<Offer>, DiscoverError> {
    let mut found = match offers_of(fetcher, url, true).await {
        Err(DiscoverError::Unknown { .. }) => return Ok(None),
        found => found?,
    };
    found.retain(|offer| offer.protocol.has_hubs());
    Ok(preferred(found, FollowPace::Held))
}

/// Finds the URL at which a feed offers a protocol, from its page or from a list of its addresses.
///
/// `None` if nothing there names one: then `url` may be that of the protocol.
///
/// # Errors
///
/// [`DiscoverError`] if `url` cannot be read.
pub async fn locate(
    fetcher: &Fetcher,
    url: &str,
    protocol: Protocol,
) -> Result<Option<String>, DiscoverError> {
    match discover_all(fetcher, url).await {
        Ok(offers) => Ok(offers.into_iter().find(|offer| offer.protocol == protocol).map(|offer| offer.url)),
        Err(DiscoverError::Unknown { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Finds every protocol that a URL offers; at least one. A protocol may be there at several addresses.
///
/// # Errors
///
/// [`DiscoverError`] about `url` itself. Linked feeds that fail are skipped.
pub async fn discover_all(fetcher: &Fetcher, url: &str) -> Result<Vec<Offer>, DiscoverError> {
    offers_of(fetcher, url, false).await
}

/// Finds every protocol that a URL offers. With `pages`, a page without a feed is one item if it names a hub.
async fn offers_of(fetcher: &Fetcher, url: &str, pages: bool) -> Result<Vec<Offer>, DiscoverError> {
    let response = probe_without_long_poll(fetcher, url).await?;
    let unknown = |what: String| DiscoverError::Unknown { url: url.to_owned(), what };
    let final_url = Url::parse(&response.head.url).map_err(|e| unknown(e.to_string()))?;
    let probed = response.probed(&final_url);
    let mut found = offers(&probed);
    // The manifest stands at a fixed path of the site, so only a site's root suggests it.
    if final_url.path() == "/" && !found.iter().any(|offer| offer.protocol == Protocol::DiffDelta) {
        found.extend(site_manifest(fetcher, &final_url).await);
    }
    if found.is_empty() {
        found = linked_feeds(fetcher, &probed).await;
    }
    // Offers come before the status: an empty replication feed responds 404 and is still one.
    if !found.is_empty() {
        return Ok(found);
    }
    if !probed.is_ok() {
        let (status, retry_after) = (response.head.status, response.head.retry_after(Timestamp::now()));
        let detail = response_problem(&response.head, probed.start);
        return Err(DiscoverError::Status { url: url.to_owned(), status, detail, retry_after });
    }
    match page_with_hub(&probed) {
        Some(page) if pages => Ok(vec![page]),
        Some(_) => Err(unknown(PAGE_WITH_HUB.to_owned())),
        None => Err(unknown(describe(&probed))),
    }
}

/// Returns the preferred offer, the first of equals. Its reason also names the guarantee and the other protocols.
fn preferred(found: Vec<Offer>, pace: FollowPace) -> Option<Offer> {
    let mut others: Vec<Protocol> = found.iter().map(|offer| offer.protocol).collect();
    let mut offer = found.into_iter().min_by_key(|offer| offer.protocol.preference(pace))?;
    others.sort_unstable();
    others.dedup();
    others.retain(|protocol| *protocol != offer.protocol);
    let (equal, weaker): (Vec<Protocol>, Vec<Protocol>) =
        others.into_iter().partition(|other| other.preference(pace).0 == offer.protocol.preference(pace).0);
    let names = |list: Vec<Protocol>| list.into_iter().map(Protocol::name).collect::<Vec<_>>().join(", ");
    let mut also = String::new();
    if !equal.is_empty() {
        let why = if pace == FollowPace::Held { "later" } else { "costlier" };
        also.push_str(&format!("; {why}: {}", names(equal)));
    }
    if !weaker.is_empty() {
        also.push_str(&format!("; weaker: {}", names(weaker)));
    }
    offer.why = format!("{} ({}{also})", offer.why, offer.protocol.guarantee());
    Some(offer)
}

/// Requests a site's DiffDelta manifest, which only its well-known URL shows (DiffDelta, section 8).
async fn site_manifest(fetcher: &Fetcher, site: &Url) -> Option<Offer> {
    let url = site.join("/.well-known/diffdelta.json").ok()?;
    let response = probe(fetcher, url.as_str()).await.ok()?;
    let mut offers = offers(&response.probed(&url)).into_iter();
    let offer = offers.find(|offer| offer.protocol == Protocol::DiffDelta)?;
    Some(Offer { why: "the site has a DiffDelta manifest".to_owned(), ..offer })
}

/// Probes the feeds that a page links to. Feeds that fail are skipped.
async fn linked_feeds(fetcher: &Fetcher, page: &ProbedResponse<'_>) -> Vec<Offer> {
    let mut found = Vec::new();
    for url in alternates(page).into_iter().take(MAX_ALTERNATES) {
        let Ok(response) = probe_without_long_poll(fetcher, &url).await else { continue };
        let Ok(final_url) = Url::parse(&response.head.url) else { continue };
        let of_feed = offers(&response.probed(&final_url)).into_iter();
        found
            .extend(of_feed.map(|offer| Offer { why: format!("the page names it: {}", offer.why), ..offer }));
    }
    found
}

/// A response with the beginning of its body.
struct ResponseStart {
    head: ResponseHead,
    start: Vec<u8>,
}

impl ResponseStart {
    fn probed<'a>(&'a self, url: &'a Url) -> ProbedResponse<'a> {
        ProbedResponse { url, head: &self.head, start: &self.start }
    }

    /// Returns true if the bytes read so far suffice for a decision.
    fn is_conclusive(&self) -> bool {
        let Ok(url) = Url::parse(&self.head.url) else { return true };
        let probed = self.probed(&url);
        let text = self.start.trim_ascii_start();
        !matches!(text.first(), Some(b'{' | b'<'))
            || !offers(&probed).is_empty()
            || !alternates(&probed).is_empty()
    }
}

/// Probes a URL, even if it is a Smart Feed that holds requests while it has no items.
async fn probe_without_long_poll(fetcher: &Fetcher, url: &str) -> Result<ResponseStart, DiscoverError> {
    // Both requests run on: whichever responds first decides, so a slow server costs no extra time.
    tokio::select! {
        response = probe(fetcher, url) => response,
        Some(response) = probe_with_timeout_0(fetcher, url) => Ok(response),
    }
}

/// Probes with `timeout=0` (Smart Feeds: "A wait of 0 means to return immediately").
///
/// Returns `None` if the response is not a Smart Feed's: any other server may ignore or misread the parameter.
async fn probe_with_timeout_0(fetcher: &Fetcher, url: &str) -> Option<ResponseStart> {
    tokio::time::sleep(LONG_POLL_AFTER).await;
    let mut immediate = Url::parse(url).ok()?;
    if immediate.query_pairs().any(|(name, _)| name == "timeout") {
        return None;
    }
    immediate.query_pairs_mut().append_pair("timeout", "0");
    let mut response = probe(fetcher, immediate.as_str()).await.ok()?;
    // The offer must name the URL without timeout=0, or the follower would poll in a busy loop.
    url.clone_into(&mut response.head.url);
    let final_url = Url::parse(url).ok()?;
    let is_smart = offers(&response.probed(&final_url)).iter().any(|offer| offer.protocol == Protocol::Smart);
    is_smart.then_some(response)
}

async fn probe(fetcher: &Fetcher, url: &str) -> Result<ResponseStart, DiscoverError> {
    let failed = |source| DiscoverError::Transfer { url: url.to_owned(), source };
    let mut request = Request::get(RequestId(0), url).with(ACCEPT, ACCEPTED_TYPES);
    // Only the beginning is read, so a large Content-Length must not be rejected.
    (request.max_body, request.is_streamed) = (u64::MAX, true);
    let StreamingResponse { head, mut body, .. } = fetcher.fetch(&request).await.map_err(failed)?;
    let mut response = ResponseStart { head, start: Vec::new() };
    let mut enough = START_BYTES;
    // Nothing of a stream of events is a document.
    if media_type(&response.head) == EVENT_STREAM {
        return Ok(response);
    }
    let end = Instant::now() + BODY_TIME;
    // What has come by then is judged.
    while let Ok(chunk) = timeout_at(end, body.chunk()).await {
        let Some(chunk) = chunk.map_err(failed)? else { break };
        response.start.extend_from_slice(&chunk);
        if response.start.len() < enough {
            continue;
        }
        if enough >= MAX_BYTES || response.is_conclusive() {
            break;
        }
        // Feeds with a long head or a large first item show their protocol only later.
        enough *= 4;
    }
    Ok(response)
}

#[cfg(test)]
mod tests;
