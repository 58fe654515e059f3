//! A request along its redirects: what is sent to each URL, and which are followed.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use towpath_proto::address::NotPublic;
use towpath_proto::follow::{Request, TransferError};
use url::Url;

use super::address_policy::RefusedAddress;
use super::coding;
use super::fetch::FetchOptions;
use crate::redact;

/// The request as sent to one URL of a redirect chain.
pub(super) struct Hop {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Hop {
    pub(super) fn first(request: &Request) -> Result<Self, TransferError> {
        let url = Url::parse(&request.url).map_err(|e| TransferError::Url(e.to_string()))?;
        if !is_web(&url) {
            return Err(TransferError::Url(format!("{:?} is neither http nor https", url.scheme())));
        }
        let (mut headers, body) = (request.headers.clone(), request.body.clone());
        // reqwest's own decoding is off: it hides the encoded length and has no limit of the window.
        headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static(coding::ACCEPTED));
        Ok(Self { method: request.method.clone(), url, headers, body })
    }

    pub(super) fn refused(&self, reason: NotPublic) -> TransferError {
        let host = self.url.host_str().unwrap_or_default().to_owned();
        TransferError::Address(RefusedAddress { host, reason }.to_string())
    }

    /// Continues at the redirect's target (RFC 9110, section 15.4), without credentials if the origin changes.
    pub(super) fn redirect(&mut self, status: StatusCode, target: Url) {
        // RFC 9110, section 15.4.4: 303 turns every method into GET, except HEAD. Browsers do so for POST after 301
        // and 302.
        let see_other = status == StatusCode::SEE_OTHER && self.method != Method::HEAD;
        let found = matches!(status.as_u16(), 301 | 302) && self.method == Method::POST;
        if see_other || found {
            self.method = Method::GET;
            self.body = Bytes::new();
            for name in [CONTENT_TYPE, CONTENT_LENGTH] {
                self.headers.remove(name);
            }
        }
        // An open redirect on a trusted server would otherwise hand its token to an attacker.
        if target.origin() != self.url.origin() {
            for name in [AUTHORIZATION, COOKIE] {
                self.headers.remove(name);
            }
        }
        self.url = target;
    }
}

/// The redirects followed so far.
pub(super) struct Redirects {
    /// The first URL and the target of each redirect.
    visited: Vec<Url>,
    /// Number of permanent redirects before the first temporary one.
    permanent: usize,
}

impl Redirects {
    pub(super) fn new(first: Url) -> Self {
        Self { visited: vec![first], permanent: 0 }
    }

    fn count(&self) -> usize {
        self.visited.len() - 1
    }

    pub(super) fn check(&self, hop: &Hop, target: &Url, options: &FetchOptions) -> Result<(), TransferError> {
        let error = |reason: String| Err(TransferError::Redirect(redact::text(&reason)));
        // file: and other schemes would let a publisher read local files into a mirror.
        if !is_web(target) {
            return error(format!("to {target}, which is neither http nor https"));
        }
        // Whoever can answer over plain http could otherwise replace the feed's content.
        if hop.url.scheme() == "https" && target.scheme() == "http" && !options.allow_downgrade {
            return error(format!("from https to unencrypted {target}"));
        }
        // A POST may be redirected to its own URL: 303 turns it into a GET.
        if hop.method == Method::GET && self.visited.contains(target) {
            return error(format!("in a loop, back to {target}"));
        }
        if self.count() >= options.max_redirects {
            return error(format!("more than {} times", options.max_redirects));
        }
        Ok(())
    }

    pub(super) fn record(&mut self, status: StatusCode, target: &Url) {
        // A permanent redirect behind a temporary one says nothing about the first URL.
        if matches!(status.as_u16(), 301 | 308) && self.permanent == self.count() {
            self.permanent += 1;
        }
        self.visited.push(target.clone());
    }

    pub(super) fn moved_to(&self) -> Option<String> {
        (self.permanent > 0).then(|| self.visited.get(self.permanent).map(Url::to_string))?
    }
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

/// Target of a redirect; `None` for any other response.
pub(super) fn redirect_target(
    base: &Url,
    response: &reqwest::Response,
) -> Result<Option<Url>, TransferError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let error = |reason: &str| TransferError::Redirect(redact::text(reason));
    let location = response.headers().get(LOCATION).ok_or_else(|| error("without a Location header"))?;
    // Some servers send unescaped UTF-8, which HeaderValue::to_str would reject.
    let location = std::str::from_utf8(location.as_bytes()).map_err(|_| error("to an unreadable URL"))?;
    let target = base.join(location.trim());
    let target = target.map_err(|e| error(&format!("to {location:?}, which is not a URL ({e})")))?;
    Ok(Some(target))
}
