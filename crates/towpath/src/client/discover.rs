//! Which protocol a feed can best be followed by, judged by what its address answers.
//!
//! One request tells most: the document's form and namespaces, its links, and a feed's list of its addresses.
//! A site's root is asked for its DiffDelta manifest as well; the feeds that a page names are looked at, each
//! by a request. The strongest protocol of all that is found is taken: what is exactly once before what is at
//! least once before best effort. Of equals it is the first.

mod judge;
mod keys;

use std::time::Duration;

use http::header::ACCEPT;
use jiff::Timestamp;
use towpath_proto::follow::{FollowError, Request, RequestId, ResponseHead, TransferError};
use url::Url;

use super::fetch::{Fetched, Fetcher};
use super::protocol::Protocol;

pub use judge::{Seen, alternates, described, offers};

/// How much of a document is looked at first.
const START_BYTES: usize = 64 << 10;

/// How much is looked at where that shows nothing.
const MORE_BYTES: usize = 8 << 20;

/// How long an answer may take before it is asked for in another way too: a Smart Feed without items holds a request
/// that does not say otherwise.
const HELD: Duration = Duration::from_secs(2);

/// How many of the feeds that a page names are looked at.
const MAX_ALTERNATES: usize = 6;

/// What a feed's address may answer with, pages for people last.
const ACCEPTED: &str = "application/json, application/feed+json, application/atom+xml, application/rss+xml, \
                        multipart/mixed;q=0.9, application/xml;q=0.8, text/xml;q=0.8, text/html;q=0.5, */*;q=0.1";

/// A way to follow a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The protocol.
    pub protocol: Protocol,
    /// The address to follow.
    pub url: String,
    /// What it was recognised by, to stand after "because".
    pub why: String,
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
        /// When the server wants to be asked again.
        retry_after: Option<Duration>,
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

impl DiscoverError {
    /// When the server wants to be asked again, where it said so.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl From<DiscoverError> for FollowError {
    fn from(error: DiscoverError) -> Self {
        match error {
            DiscoverError::Transfer { url, source } => Self::Transfer { url, source },
            DiscoverError::Status { url, status, .. } => Self::Status { url, status },
            DiscoverError::Unknown { url, what } => Self::Protocol {
                url,
                reason: format!(
                    "{what}, not a feed that can be recognised; name its protocol with --protocol"
                ),
            },
        }
    }
}

/// Finds the strongest protocol that an address offers, by itself or by what it names.
///
/// # Errors
///
/// [`DiscoverError`], about the address itself.
pub async fn discover(fetcher: &Fetcher, url: &str) -> Result<Offer, DiscoverError> {
    let answer = probe_patiently(fetcher, url).await?;
    let unknown = |what: String| DiscoverError::Unknown { url: url.to_owned(), what };
    let answered = Url::parse(&answer.head.url).map_err(|e| unknown(e.to_string()))?;
    let seen = answer.seen(&answered);
    let mut found = offers(&seen);
    if answered.path() == "/" && !found.iter().any(|offer| offer.protocol == Protocol::DiffDelta) {
        found.extend(site_manifest(fetcher, &answered).await);
    }
    if found.is_empty() {
        found = named(fetcher, &seen).await;
    }
    if let Some(offer) = strongest(found) {
        return Ok(offer);
    }
    if !seen.is_ok() {
        let (status, retry_after) = (answer.head.status, answer.head.retry_after(Timestamp::now()));
        return Err(DiscoverError::Status { url: url.to_owned(), status, retry_after });
    }
    Err(unknown(described(&seen)))
}

/// The strongest of several, the first of equals; it says what it promises and what else there is.
fn strongest(found: Vec<Offer>) -> Option<Offer> {
    let mut others: Vec<Protocol> = found.iter().map(|offer| offer.protocol).collect();
    let mut offer = found.into_iter().min_by_key(|offer| offer.protocol)?;
    others.sort_unstable();
    others.dedup();
    others.retain(|protocol| *protocol != offer.protocol);
    let others: Vec<&str> = others.into_iter().map(Protocol::name).collect();
    let also = if others.is_empty() { String::new() } else { format!("; weaker: {}", others.join(", ")) };
    offer.why = format!("{} ({}{also})", offer.why, offer.protocol.promise());
    Some(offer)
}

/// What a site's root does not tell, its manifest may (DiffDelta, section 8).
async fn site_manifest(fetcher: &Fetcher, site: &Url) -> Option<Offer> {
    let url = site.join("/.well-known/diffdelta.json").ok()?;
    let answer = probe(fetcher, url.as_str()).await.ok()?;
    let mut offers = offers(&answer.seen(&url)).into_iter();
    let offer = offers.find(|offer| offer.protocol == Protocol::DiffDelta)?;
    Some(Offer { why: "the site has a DiffDelta manifest".to_owned(), ..offer })
}

/// What the feeds that a page names offer. Those that cannot be had offer nothing.
async fn named(fetcher: &Fetcher, page: &Seen<'_>) -> Vec<Offer> {
    let mut found = Vec::new();
    for url in alternates(page).into_iter().take(MAX_ALTERNATES) {
        let Ok(answer) = probe_patiently(fetcher, &url).await else { continue };
        let Ok(answered) = Url::parse(&answer.head.url) else { continue };
        let of_feed = offers(&answer.seen(&answered)).into_iter();
        found
            .extend(of_feed.map(|offer| Offer { why: format!("the page names it: {}", offer.why), ..offer }));
    }
    found
}

/// An answer and the beginning of its body.
struct Answer {
    head: ResponseHead,
    start: Vec<u8>,
}

impl Answer {
    fn seen<'a>(&'a self, url: &'a Url) -> Seen<'a> {
        Seen { url, head: &self.head, start: &self.start }
    }

    /// Whether what is there so far shows something.
    fn is_telling(&self) -> bool {
        let Ok(url) = Url::parse(&self.head.url) else { return true };
        let seen = self.seen(&url);
        let text = self.start.trim_ascii_start();
        !matches!(text.first(), Some(b'{' | b'<'))
            || !offers(&seen).is_empty()
            || !alternates(&seen).is_empty()
    }
}

/// The answer of an address, even if it is held while there is nothing.
async fn probe_patiently(fetcher: &Fetcher, url: &str) -> Result<Answer, DiscoverError> {
    tokio::select! {
        answer = probe(fetcher, url) => answer,
        Some(answer) = probe_unheld(fetcher, url) => Ok(answer),
    }
}

/// What a Smart Feed answers that is not to hold the request ("A wait of 0 means to return immediately"). Whatever is
/// none has not been asked for this.
async fn probe_unheld(fetcher: &Fetcher, url: &str) -> Option<Answer> {
    tokio::time::sleep(HELD).await;
    let mut unheld = Url::parse(url).ok()?;
    if unheld.query_pairs().any(|(name, _)| name == "timeout") {
        return None;
    }
    unheld.query_pairs_mut().append_pair("timeout", "0");
    let mut answer = probe(fetcher, unheld.as_str()).await.ok()?;
    url.clone_into(&mut answer.head.url);
    let answered = Url::parse(url).ok()?;
    let is_smart = offers(&answer.seen(&answered)).iter().any(|offer| offer.protocol == Protocol::Smart);
    is_smart.then_some(answer)
}

async fn probe(fetcher: &Fetcher, url: &str) -> Result<Answer, DiscoverError> {
    let failed = |source| DiscoverError::Transfer { url: url.to_owned(), source };
    let mut request = Request::get(RequestId(0), url).with(ACCEPT, ACCEPTED);
    // Only the beginning is read, however large the rest is.
    request.max_body = u64::MAX;
    let Fetched { head, mut body, .. } = fetcher.fetch(&request).await.map_err(failed)?;
    let mut answer = Answer { head, start: Vec::new() };
    let mut enough = START_BYTES;
    while let Some(chunk) = body.chunk().await.map_err(failed)? {
        answer.start.extend_from_slice(&chunk);
        if answer.start.len() < enough {
            continue;
        }
        if enough >= MORE_BYTES || answer.is_telling() {
            break;
        }
        enough *= 4;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests;
