//! One request and its response over HTTP: redirects, time-outs, limits.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::time::{Instant, timeout};
use towpath_proto::follow::{Request, ResponseHead, TransferError};
use url::{Origin, Url};

use super::body::{Body, Limits};
use super::coding::{self, Decoded};
use super::explain;
use super::tls::{self, SetupError};
use crate::shown;

/// The limits that no request changes.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// For resolving the name, connecting and the TLS handshake.
    pub connect_timeout: Duration,
    /// The longest pause within a body.
    pub stall_timeout: Duration,
    /// For the whole exchange, redirects included, on top of the request's patience.
    pub total_timeout: Duration,
    /// How many redirects to follow.
    pub max_redirects: usize,
    /// Whether https may redirect to http.
    pub allow_downgrade: bool,
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            total_timeout: Duration::from_secs(900),
            max_redirects: 10,
            allow_downgrade: false,
        }
    }
}

/// A response whose body has not been read yet.
#[derive(Debug)]
pub struct Fetched {
    /// Status, headers and the address that answered. A body's coding is already undone: its
    /// `Content-Encoding` and `Content-Length` are gone.
    pub head: ResponseHead,
    /// Where the document lives from now on, if the redirects said so (301, 308).
    pub moved_to: Option<String>,
    /// The body, empty for HEAD, 204 and 304.
    pub body: Body,
}

/// A response with its body.
#[derive(Debug)]
pub struct Whole {
    /// Status, headers and the address that answered.
    pub head: ResponseHead,
    /// As [`Fetched::moved_to`].
    pub moved_to: Option<String>,
    /// The decoded body.
    pub body: Bytes,
}

/// Fetches documents. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Fetcher {
    http: reqwest::Client,
    options: FetchOptions,
    own: Option<Arc<Own>>,
}

/// What one server is told with every request, and no other one.
#[derive(Debug)]
struct Own {
    origin: Origin,
    headers: HeaderMap,
}

impl Fetcher {
    /// A fetcher with connections of its own.
    ///
    /// # Errors
    ///
    /// [`SetupError`] where the machine gives no TLS.
    pub fn new(options: FetchOptions) -> Result<Self, SetupError> {
        let connect_timeout = options.connect_timeout;
        let http = tls::build(|| {
            reqwest::Client::builder()
                .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(connect_timeout)
                .redirect(reqwest::redirect::Policy::none())
                // Old servers are read as browsers read them.
                .http1_ignore_invalid_headers_in_responses(true)
                .http1_allow_obsolete_multiline_headers_in_responses(true)
                .http1_allow_spaces_after_header_name_in_responses(true)
        })?;
        Ok(Self { http, options, own: None })
    }

    /// The same fetcher, which sends these headers too, in place of a request's own of these names, to the origin
    /// (scheme, host and port) of this address. Nobody else is sent them, wherever redirects lead.
    #[must_use]
    pub fn with_headers(&self, address: &str, headers: HeaderMap) -> Self {
        let own = Url::parse(address).ok().map(|url| Arc::new(Own { origin: url.origin(), headers }));
        Self { own, ..self.clone() }
    }

    /// Sends a request and follows its redirects, up to the head of the answer. An error status is an
    /// answer, not an error.
    ///
    /// # Errors
    ///
    /// Every [`TransferError`] but [`TransferError::TooLarge`]; none repeats the request's address.
    pub async fn fetch(&self, request: &Request) -> Result<Fetched, TransferError> {
        let deadline = Instant::now() + request.patience + self.options.total_timeout;
        let mut hop = Hop::first(request)?;
        let mut redirects = Redirects::from(hop.url.clone());
        loop {
            let response = self.send(&hop, request.patience, deadline).await?;
            let Some(target) = redirect_target(&hop.url, &response)? else {
                return Ok(self.answer(&hop, request.max_body, deadline, &redirects, response));
            };
            redirects.check(&hop, &target, &self.options)?;
            redirects.note(response.status(), &target);
            hop.redirect(response.status(), target);
        }
    }

    /// The same with the whole body, which must fit in memory: [`Request::max_body`] is its limit.
    ///
    /// # Errors
    ///
    /// Every [`TransferError`].
    pub async fn fetch_whole(&self, request: &Request) -> Result<Whole, TransferError> {
        let Fetched { head, moved_to, body } = self.fetch(request).await?;
        Ok(Whole { head, moved_to, body: body.collect().await? })
    }

    async fn send(
        &self,
        hop: &Hop,
        patience: Duration,
        deadline: Instant,
    ) -> Result<reqwest::Response, TransferError> {
        let mut headers = hop.headers.clone();
        if let Some(own) = self.own.as_ref().filter(|own| own.origin == hop.url.origin()) {
            own.headers.iter().for_each(|(name, value)| drop(headers.insert(name, value.clone())));
        }
        let request = self.http.request(hop.method.clone(), hop.url.clone()).headers(headers);
        let request = if hop.body.is_empty() { request } else { request.body(hop.body.clone()) };
        let wait = patience.min(deadline.saturating_duration_since(Instant::now()));
        match timeout(wait, request.send()).await {
            Ok(answer) => answer.map_err(|e| explain::no_answer(&e)),
            Err(_) => Err(TransferError::Timeout(format!("no answer within {wait:?}"))),
        }
    }

    fn answer(
        &self,
        hop: &Hop,
        max_body: u64,
        deadline: Instant,
        redirects: &Redirects,
        response: reqwest::Response,
    ) -> Fetched {
        let mut head = ResponseHead {
            status: response.status().as_u16(),
            url: hop.url.to_string(),
            headers: response.headers().clone(),
        };
        let limits = Limits { size: max_body, stall: self.options.stall_timeout, deadline };
        // These announce a length and a coding of a body that does not come.
        let body = if hop.method == Method::HEAD || matches!(head.status, 204 | 304) {
            Body::none(limits)
        } else {
            let announced = head.header(CONTENT_LENGTH.as_str()).and_then(|v| v.parse().ok());
            Body::of(Decoded::of(response, &mut head.headers), announced, limits)
        };
        Fetched { head, moved_to: redirects.moved_to(), body }
    }
}

/// The request as it goes to one address on the way.
struct Hop {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
}

impl Hop {
    fn first(request: &Request) -> Result<Self, TransferError> {
        let url = Url::parse(&request.url).map_err(|e| TransferError::Url(e.to_string()))?;
        if !is_web(&url) {
            return Err(TransferError::Url(format!("{:?} is neither http nor https", url.scheme())));
        }
        let (mut headers, body) = (request.headers.clone(), request.body.clone());
        headers.entry(ACCEPT_ENCODING).or_insert(HeaderValue::from_static(coding::ACCEPTED));
        Ok(Self { method: request.method.clone(), url, headers, body })
    }

    /// Turns to the redirect's target (RFC 9110, section 15.4). What is meant for one server is not told to
    /// another one.
    fn redirect(&mut self, status: StatusCode, target: Url) {
        let see_other = status == StatusCode::SEE_OTHER && self.method != Method::HEAD;
        let found = matches!(status.as_u16(), 301 | 302) && self.method == Method::POST;
        if see_other || found {
            self.method = Method::GET;
            self.body = Bytes::new();
            for name in [CONTENT_TYPE, CONTENT_LENGTH] {
                self.headers.remove(name);
            }
        }
        if target.origin() != self.url.origin() {
            for name in [AUTHORIZATION, COOKIE] {
                self.headers.remove(name);
            }
        }
        self.url = target;
    }
}

/// The redirects that were followed.
struct Redirects {
    /// The first address and where each redirect led.
    seen: Vec<Url>,
    /// How many redirects, from the first on, are permanent.
    permanent: usize,
}

impl Redirects {
    fn from(first: Url) -> Self {
        Self { seen: vec![first], permanent: 0 }
    }

    fn count(&self) -> usize {
        self.seen.len() - 1
    }

    fn check(&self, hop: &Hop, target: &Url, options: &FetchOptions) -> Result<(), TransferError> {
        let in_vain = |reason: String| Err(TransferError::Redirect(shown::text(&reason)));
        if !is_web(target) {
            return in_vain(format!("to {target}, which is neither http nor https"));
        }
        if hop.url.scheme() == "https" && target.scheme() == "http" && !options.allow_downgrade {
            return in_vain(format!("from https to the unprotected {target}"));
        }
        if hop.method == Method::GET && self.seen.contains(target) {
            return in_vain(format!("in a circle, back to {target}"));
        }
        if self.count() >= options.max_redirects {
            return in_vain(format!("more than {} times", options.max_redirects));
        }
        Ok(())
    }

    fn note(&mut self, status: StatusCode, target: &Url) {
        if matches!(status.as_u16(), 301 | 308) && self.permanent == self.count() {
            self.permanent += 1;
        }
        self.seen.push(target.clone());
    }

    fn moved_to(&self) -> Option<String> {
        (self.permanent > 0).then(|| self.seen.get(self.permanent).map(Url::to_string))?
    }
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

/// Where the response points instead of answering; `None` where it answers.
fn redirect_target(base: &Url, response: &reqwest::Response) -> Result<Option<Url>, TransferError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let in_vain = |reason: &str| TransferError::Redirect(shown::text(reason));
    let location = response.headers().get(LOCATION).ok_or_else(|| in_vain("without saying where to"))?;
    // Some servers send their addresses in UTF-8, unescaped.
    let location =
        std::str::from_utf8(location.as_bytes()).map_err(|_| in_vain("to an unreadable address"))?;
    let target = base.join(location.trim());
    let target = target.map_err(|e| in_vain(&format!("to {location:?}, which is no address ({e})")))?;
    Ok(Some(target))
}
