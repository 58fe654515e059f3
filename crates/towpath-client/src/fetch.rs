//! HTTP client for feeds: sends one request and follows its redirects, with time and size limits.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use towpath_proto::follow::{Request, ResponseHead, TransferError};
use url::{Origin, Url};

use super::address_policy::{AddressPolicy, NamedNetworks, NamedScope, PolicyResolver, PrivateFetches};
use super::body::{BodyLimits, StreamingBody};
use super::coding::DecodedBody;
use super::explain;
use super::memory_budget::{BodyShare, MemoryBudget};
use super::redirects::{Hop, Redirects, redirect_target};
use super::tls::{self, SetupError};
use super::transport::{self, Transport};
use crate::url_credentials::with_credentials;

/// Limits that apply to every request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FetchOptions {
    /// Timeout of name resolution, connect and TLS handshake together.
    pub connect_timeout: Duration,
    /// Maximum time without a byte of the body.
    pub stall_timeout: Duration,
    /// Timeout of the whole exchange including redirects, in addition to the request's `patience`. Time in which nobody
    /// reads the body does not count.
    pub total_timeout: Duration,
    /// Maximum number of redirects to follow.
    pub max_redirects: usize,
    /// Permits redirects from https to http.
    pub allow_downgrade: bool,
    /// Private addresses that are fetched from.
    pub private: PrivateFetches,
    /// Memory of all bodies at once.
    pub memory: MemoryBudget,
}

impl FetchOptions {
    /// Sets [`connect_timeout`](Self::connect_timeout).
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets [`stall_timeout`](Self::stall_timeout).
    #[must_use]
    pub fn with_stall_timeout(mut self, stall_timeout: Duration) -> Self {
        self.stall_timeout = stall_timeout;
        self
    }

    /// Sets [`total_timeout`](Self::total_timeout).
    #[must_use]
    pub fn with_total_timeout(mut self, total_timeout: Duration) -> Self {
        self.total_timeout = total_timeout;
        self
    }

    /// Sets [`max_redirects`](Self::max_redirects).
    #[must_use]
    pub fn with_max_redirects(mut self, max_redirects: usize) -> Self {
        self.max_redirects = max_redirects;
        self
    }

    /// Sets [`allow_downgrade`](Self::allow_downgrade).
    #[must_use]
    pub fn with_allow_downgrade(mut self, allow_downgrade: bool) -> Self {
        self.allow_downgrade = allow_downgrade;
        self
    }

    /// Sets [`private`](Self::private).
    #[must_use]
    pub fn with_private(mut self, private: PrivateFetches) -> Self {
        self.private = private;
        self
    }

    /// Sets [`memory`](Self::memory).
    #[must_use]
    pub fn with_memory(mut self, memory: MemoryBudget) -> Self {
        self.memory = memory;
        self
    }
}

impl Default for FetchOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            total_timeout: Duration::from_secs(900),
            max_redirects: 10,
            allow_downgrade: false,
            private: PrivateFetches::Named,
            memory: MemoryBudget::default(),
        }
    }
}

/// A response whose body has not been read yet.
#[derive(Debug)]
pub struct StreamingResponse {
    /// Status, headers and final URL. The body is decoded, so an encoded one has neither `Content-Encoding` nor
    /// `Content-Length`.
    pub head: ResponseHead,
    /// The document's new URL, after permanent redirects (301, 308).
    pub moved_to: Option<String>,
    /// The body, empty for HEAD, 204 and 304.
    pub body: StreamingBody,
}

/// A response with its complete body.
#[derive(Debug)]
pub struct FullResponse {
    /// Status, headers and final URL.
    pub head: ResponseHead,
    /// As [`StreamingResponse::moved_to`].
    pub moved_to: Option<String>,
    /// The decoded body.
    pub body: Bytes,
    /// Memory of the body, to be held as long as it.
    pub share: Option<BodyShare>,
}

/// Fetches documents. Cheap to clone; clones share their connections.
///
/// It connects to public addresses, and to private ones as far as [`with_named`](Self::with_named) opens them: see
/// [`address_policy`](crate::address_policy).
#[derive(Debug, Clone)]
pub struct Fetcher {
    clients: Arc<PolicyClients>,
    named: Arc<NamedScope>,
    options: FetchOptions,
    origin_headers: Option<Arc<OriginHeaders>>,
    transport: Option<Arc<dyn Transport>>,
}

/// The policy of fetches without named private addresses.
static PUBLIC_ADDRESSES: AddressPolicy = AddressPolicy::PUBLIC;

/// An HTTP client for each address policy.
///
/// They share no connections: a pooled connection to a private address is not checked again.
#[derive(Debug)]
struct PolicyClients {
    connect_timeout: Duration,
    public: reqwest::Client,
    /// Clients with private networks. There are as many as sets of networks that the operator names: few.
    others: Mutex<HashMap<AddressPolicy, reqwest::Client>>,
    networks: NamedNetworks,
}

impl PolicyClients {
    fn new(connect_timeout: Duration) -> Result<Self, SetupError> {
        let public = client(connect_timeout, &AddressPolicy::PUBLIC)?;
        Ok(Self { connect_timeout, public, others: Mutex::default(), networks: NamedNetworks::default() })
    }

    fn of(&self, policy: &AddressPolicy) -> Result<reqwest::Client, SetupError> {
        if *policy == AddressPolicy::PUBLIC {
            return Ok(self.public.clone());
        }
        // Held while the client is made: two clients of one policy would not share their connections.
        let mut others = self.others.lock();
        if let Some(known) = others.get(policy) {
            return Ok(known.clone());
        }
        let created = client(self.connect_timeout, policy)?;
        others.insert(policy.clone(), created.clone());
        Ok(created)
    }
}

fn client(connect_timeout: Duration, policy: &AddressPolicy) -> Result<reqwest::Client, SetupError> {
    let resolver = PolicyResolver::new(policy.clone());
    tls::build(|| {
        reqwest::Client::builder()
            .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(connect_timeout)
            .dns_resolver(resolver.clone())
            // Redirects are followed here, to see each hop: permanent moves, credentials, downgrades to http.
            .redirect(reqwest::redirect::Policy::none())
            // Old feed servers send headers that RFC 9112 forbids; browsers accept them too.
            .http1_ignore_invalid_headers_in_responses(true)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .http1_allow_spaces_after_header_name_in_responses(true)
    })
}

/// Headers that are sent to one origin with every request, and to no other.
#[derive(Debug)]
struct OriginHeaders {
    origin: Origin,
    headers: HeaderMap,
}

impl Fetcher {
    /// Creates a fetcher with its own connections.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if TLS cannot be set up on this machine.
    pub fn new(options: FetchOptions) -> Result<Self, SetupError> {
        let clients = Arc::new(PolicyClients::new(options.connect_timeout)?);
        Ok(Self { clients, named: Arc::default(), options, origin_headers: None, transport: None })
    }

    /// Returns a fetcher whose requests are sent by `transport`. It has no connections of its own.
    #[must_use]
    pub fn with_transport(self, transport: Arc<dyn Transport>) -> Self {
        Self { transport: Some(transport), ..self }
    }

    /// Returns what sends its requests in place of the network.
    pub fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.transport.clone()
    }

    /// Returns a fetcher for requests to URLs that the operator or user named, and to everything that these lead to.
    ///
    /// If such a URL has a private address, its private network is open to the requests. URLs named earlier count no
    /// more. Never pass a URL that a publisher named.
    #[must_use]
    pub fn with_named<'a>(&self, urls: impl IntoIterator<Item = &'a str>) -> Self {
        let urls = urls.into_iter().filter_map(|url| Url::parse(url).ok()).collect();
        Self { named: Arc::new(NamedScope::new(urls)), ..self.clone() }
    }

    /// Returns the memory budget of all requests.
    pub fn memory(&self) -> &MemoryBudget {
        &self.options.memory
    }

    /// Returns the addresses that these requests may lead to.
    async fn policy(&self) -> Cow<'_, AddressPolicy> {
        match self.options.private {
            PrivateFetches::None => Cow::Borrowed(&PUBLIC_ADDRESSES),
            PrivateFetches::Named => {
                self.named.policy(&self.clients.networks, self.options.connect_timeout).await
            }
            PrivateFetches::All => Cow::Borrowed(&AddressPolicy::Any),
        }
    }

    /// Returns a fetcher that also sends these headers to the origin (scheme, host and port) of a URL.
    ///
    /// They replace a request's own headers of the same names. No other origin receives them, even after redirects.
    /// Headers that were set earlier count no more, whatever their origin.
    #[must_use]
    pub fn with_headers(&self, url: &Url, headers: HeaderMap) -> Self {
        let origin_headers = Some(Arc::new(OriginHeaders { origin: url.origin(), headers }));
        Self { origin_headers, ..self.clone() }
    }

    /// Sends a request, follows its redirects and returns the head of the response. An error status is not an error.
    ///
    /// # Errors
    ///
    /// Every [`TransferError`] except [`TransferError::TooLarge`]; none repeats the request's URL.
    pub async fn fetch(&self, request: &Request) -> Result<StreamingResponse, TransferError> {
        let policy = self.policy().await;
        let http = self.clients.of(&policy).map_err(|e| TransferError::Connect(e.to_string()))?;
        // A long poll may legitimately take its whole patience before the first byte, hence the sum.
        let deadline = Instant::now() + request.patience + self.options.total_timeout;
        let mut hop = Hop::first(request)?;
        let mut redirects = Redirects::new(hop.url.clone());
        loop {
            // An address in the URL itself never reaches the resolver.
            policy.check_literal(&hop.url).map_err(|reason| hop.refused(reason))?;
            let response = self.send(&http, &hop, request.patience, deadline).await?;
            let Some(target) = redirect_target(&hop.url, &response)? else {
                return Ok(self.response(&hop, request, deadline, &redirects, response));
            };
            redirects.check(&hop, &target, &self.options)?;
            redirects.record(response.status(), &target);
            // The body of a redirect is never read, whatever its length.
            hop.redirect(response.status(), target);
        }
    }

    /// Sends a request and reads the complete body into memory, up to [`Request::max_body`].
    ///
    /// # Errors
    ///
    /// Every [`TransferError`].
    pub async fn fetch_whole(&self, request: &Request) -> Result<FullResponse, TransferError> {
        let StreamingResponse { head, moved_to, body: mut streaming } = self.fetch(request).await?;
        let body = streaming.collect().await?;
        Ok(FullResponse { head, moved_to, body, share: streaming.take_share() })
    }

    async fn send(
        &self,
        http: &reqwest::Client,
        hop: &Hop,
        patience: Duration,
        deadline: Instant,
    ) -> Result<reqwest::Response, TransferError> {
        let mut headers = hop.headers.clone();
        // Asked for each hop. A redirect to another origin must not carry a token away.
        if let Some(own) = self.origin_headers.as_ref().filter(|own| own.origin == hop.url.origin()) {
            own.headers.iter().for_each(|(name, value)| drop(headers.insert(name, value.clone())));
        }
        let mut url = hop.url.clone();
        // A header replaces the credentials of a URL, never the other way round.
        if !headers.contains_key(AUTHORIZATION) {
            url = with_credentials(&url, &self.named.urls);
        }
        let request = http.request(hop.method.clone(), url).headers(headers);
        // No empty body: it would add `Content-Length: 0` to a GET, which some servers refuse.
        let request = if hop.body.is_empty() { request } else { request.body(hop.body.clone()) };
        let sending = async {
            match &self.transport {
                None => request.send().await.map_err(|e| explain::request_error(&e)),
                Some(transport) => transport::send(&**transport, request).await,
            }
        };
        // Each redirect gets the request's patience, but all of them share the deadline.
        let wait = patience.min(deadline.saturating_duration_since(Instant::now()));
        match timeout(wait, sending).await {
            Ok(response) => response,
            Err(_) => Err(TransferError::Timeout(format!("no answer within {wait:?}"))),
        }
    }

    fn response(
        &self,
        hop: &Hop,
        request: &Request,
        deadline: Instant,
        redirects: &Redirects,
        response: reqwest::Response,
    ) -> StreamingResponse {
        let mut head = ResponseHead {
            status: response.status().as_u16(),
            url: hop.url.to_string(),
            headers: response.headers().clone(),
        };
        // The body has what the head has left of the time. A server that sends a byte now and then cannot go on
        // for ever.
        let left = deadline.saturating_duration_since(Instant::now());
        let limits = BodyLimits { size: request.max_body, stall: self.options.stall_timeout, left };
        // These carry the Content-Length and coding of a body that is not sent (RFC 9110, section 8.6).
        let body = if hop.method == Method::HEAD || matches!(head.status, 204 | 304) {
            StreamingBody::empty(limits)
        } else {
            let content_length = head.header(CONTENT_LENGTH.as_str()).and_then(|v| v.parse().ok());
            let decoded = DecodedBody::new(response, &mut head.headers);
            let share = (!request.is_streamed).then(|| self.options.memory.body());
            StreamingBody::new(decoded, content_length, limits, share)
        };
        StreamingResponse { head, moved_to: redirects.moved_to(), body }
    }
}
