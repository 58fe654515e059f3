//! A single request for a document, and its response from head to end.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use url::Url;

use super::document::FetchedDocument;
use crate::follow::{FollowError, Now, ResponseHead, TransferError};
use crate::format::{FeedLink, link};
use crate::history::wire::{CURRENT, NEXT_ARCHIVE, PREV, PREV_ARCHIVE, THIS};

/// A request for a document.
#[derive(Debug, Clone)]
pub(super) struct DocumentRequest {
    pub(super) url: String,
    pub(super) method: Method,
    /// Number of failed requests for this document in this pass.
    pub(super) tries: u32,
}

/// A response that is being received.
#[derive(Debug, Default)]
pub(super) struct PartialResponse {
    head: Option<ResponseHead>,
    retry_after: Option<Duration>,
    body: Vec<u8>,
    is_too_large: bool,
}

/// Outcome of a request.
#[derive(Debug)]
pub(super) enum RequestOutcome {
    /// A document, or for HEAD its headers only.
    Document(Box<FetchedDocument>, HeaderMap),
    NotModified,
    /// The document was removed permanently (410).
    Gone,
    Failed {
        error: FollowError,
        retry_after: Option<Duration>,
    },
}

impl PartialResponse {
    pub(super) fn handle_head(&mut self, now: Now, head: ResponseHead) {
        self.retry_after = head.retry_after(now.wall);
        self.head = Some(head);
    }

    pub(super) fn handle_chunk(&mut self, chunk: &Bytes, limit: u64) {
        // The body of an error is of no use, and may be large.
        let is_document = self.head.as_ref().is_some_and(|head| head.status / 100 == 2);
        self.is_too_large |= self.body.len() as u64 + chunk.len() as u64 > limit;
        if is_document && !self.is_too_large {
            self.body.extend_from_slice(chunk);
        }
    }

    pub(super) fn finish(
        self,
        request: &DocumentRequest,
        result: Result<(), TransferError>,
        limit: u64,
    ) -> RequestOutcome {
        let url = request.url.clone();
        let failed = |error| RequestOutcome::Failed { error, retry_after: self.retry_after };
        let Some(head) = self.head else {
            let missing = || TransferError::Connect("the connection ended without a response".into());
            let source = result.err().unwrap_or_else(missing);
            return failed(FollowError::Transfer { url, source });
        };
        match head.status {
            304 => return RequestOutcome::NotModified,
            410 => return RequestOutcome::Gone,
            status if status / 100 != 2 => return failed(FollowError::status(url, status)),
            _ => {}
        }
        // After the status: the body of an error counts towards the limit too, but does not matter.
        if self.is_too_large {
            return failed(FollowError::Transfer { url, source: TransferError::TooLarge { limit } });
        }
        match result {
            // A HEAD response has no body, so an error after its head is harmless.
            Err(source) if request.method != Method::HEAD => failed(FollowError::Transfer { url, source }),
            _ => {
                let content_type = head.header("content-type").map(str::to_owned);
                let links = feed_links(&head);
                let fetched = FetchedDocument { url: head.url, content_type, links, body: self.body.into() };
                RequestOutcome::Document(Box::new(fetched), head.headers)
            }
        }
    }
}

/// Returns the time for which a document is fresh (RFC 9111, section 5.2.2.1).
pub(super) fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(http::header::CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut directives = values.flat_map(|value| value.split(',')).map(str::trim);
    directives.find_map(|d| d.strip_prefix("max-age=")?.parse().ok()).map(Duration::from_secs)
}

/// Relations by which the documents of a feed lead to each other.
const RELATIONS: [&str; 9] =
    [THIS, PREV, PREV_ARCHIVE, NEXT_ARCHIVE, CURRENT, "next", "first", "last", "previous"];

/// Returns the first link of each relation in the headers. They are the feed's as much as links in the document.
fn feed_links(head: &ResponseHead) -> Vec<FeedLink> {
    let links = link::from_headers(&head.headers, Url::parse(&head.url).ok().as_ref());
    // Only these: a hostile header could repeat a long target for thousands of relations.
    let found = RELATIONS.into_iter().filter_map(|rel| {
        let href = link::target(&links, rel)?.to_owned();
        Some(FeedLink { rel: rel.to_owned(), href, media_type: None })
    });
    found.collect()
}

/// Returns the URL of older entries according to the headers.
pub(super) fn predecessor_in_headers(headers: &HeaderMap, url: &str) -> Option<String> {
    let links = link::from_headers(headers, Url::parse(url).ok().as_ref());
    let target = link::target(&links, PREV_ARCHIVE).or_else(|| {
        // A `prev` without `this` may be the previous page of a paged feed, which has newer entries.
        link::target(&links, THIS).and_then(|_| link::target(&links, PREV))
    });
    target.map(str::to_owned)
}
