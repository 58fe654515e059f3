//! One response, from its head to its end.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use jiff::Timestamp;
use url::Url;

use super::Ask;
use super::reading::Fetched;
use crate::follow::{FollowError, ResponseHead, TransferError};
use crate::format::link;
use crate::history::wire::{PREV, PREV_ARCHIVE};

/// A response while it comes in.
#[derive(Debug, Default)]
pub(super) struct Answer {
    head: Option<ResponseHead>,
    retry_after: Option<Duration>,
    body: Vec<u8>,
    is_too_large: bool,
}

/// What a request led to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A document, or with HEAD its headers alone.
    Document(Box<Fetched>, HeaderMap),
    NotModified,
    /// It is not there any more, and will not come back (410).
    Gone,
    Failed {
        error: FollowError,
        retry_after: Option<Duration>,
    },
}

impl Answer {
    pub(super) fn begin(&mut self, now: Timestamp, head: ResponseHead) {
        self.retry_after = head.retry_after(now);
        self.head = Some(head);
    }

    pub(super) fn push(&mut self, chunk: &Bytes, limit: u64) {
        let is_document = self.head.as_ref().is_some_and(|head| head.status / 100 == 2);
        self.is_too_large |= self.body.len() as u64 + chunk.len() as u64 > limit;
        if is_document && !self.is_too_large {
            self.body.extend_from_slice(chunk);
        }
    }

    pub(super) fn end(self, ask: &Ask, result: Result<(), TransferError>, limit: u64) -> Outcome {
        let url = ask.url.clone();
        let failed = |error| Outcome::Failed { error, retry_after: self.retry_after };
        let Some(head) = self.head else {
            let missing = || TransferError::Connect("it ended before its head".into());
            let source = result.err().unwrap_or_else(missing);
            return failed(FollowError::Transfer { url, source });
        };
        match head.status {
            304 => return Outcome::NotModified,
            410 => return Outcome::Gone,
            status if status / 100 != 2 => return failed(FollowError::Status { url, status }),
            _ => {}
        }
        if self.is_too_large {
            return failed(FollowError::Transfer { url, source: TransferError::TooLarge { limit } });
        }
        match result {
            Err(source) if ask.method != Method::HEAD => failed(FollowError::Transfer { url, source }),
            _ => {
                let content_type = head.header("content-type").map(str::to_owned);
                let fetched = Fetched { url: head.url, content_type, body: self.body.into() };
                Outcome::Document(Box::new(fetched), head.headers)
            }
        }
    }
}

/// For how long a document is fresh (RFC 9111, section 5.2.2.1).
pub(super) fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all(http::header::CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut directives = values.flat_map(|value| value.split(',')).map(str::trim);
    directives.find_map(|d| d.strip_prefix("max-age=")?.parse().ok()).map(Duration::from_secs)
}

/// Where the headers say that older entries are.
pub(super) fn way_in_headers(headers: &HeaderMap, url: &str) -> Option<String> {
    let links = link::from_headers(headers, Url::parse(url).ok().as_ref());
    let target = link::target(&links, PREV_ARCHIVE).or_else(|| {
        // A prev alone may be that of a paged feed.
        link::target(&links, super::super::wire::THIS).and_then(|_| link::target(&links, PREV))
    });
    target.map(str::to_owned)
}
