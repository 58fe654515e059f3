//! HTTP client for callback URLs that third parties register: a hub's verification requests and deliveries.
//!
//! It connects to addresses of the public Internet only, unless private ones are allowed: see
//! [`address_policy`](crate::address_policy). Redirects are not followed: WebSub, sections 5.3.1 and 7, counts
//! them as failures. Proxies are not used.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use towpath_proto::address;
use towpath_proto::follow::retry_after;
use url::Url;

use super::address_policy::{AddressPolicy, literal};
use super::callback_body::{BodySource, UnreadBody};
use super::explain::{find, root_cause};
use super::http1::Http1Pool;
use super::tls::{self, SetupError};
use super::transport::{self, Transport};

/// Limits of a [`CallbackClient`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct CallbackOptions {
    /// Permits private and loopback addresses.
    pub allow_private: bool,
    /// Timeout of name resolution, connect and TLS handshake together.
    pub connect_timeout: Duration,
    /// Timeout of the whole exchange, up to the end of what counts of the response.
    pub timeout: Duration,
    /// Maximum number of idle connections kept for each host.
    pub idle_connections: usize,
}

impl CallbackOptions {
    /// Sets [`allow_private`](Self::allow_private).
    #[must_use]
    pub fn with_allow_private(mut self, allow_private: bool) -> Self {
        self.allow_private = allow_private;
        self
    }

    /// Sets [`connect_timeout`](Self::connect_timeout).
    #[must_use]
    pub fn with_connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// Sets [`timeout`](Self::timeout).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets [`idle_connections`](Self::idle_connections).
    #[must_use]
    pub fn with_idle_connections(mut self, idle_connections: usize) -> Self {
        self.idle_connections = idle_connections;
        self
    }
}

impl CallbackOptions {
    /// Returns the addresses that callbacks may have.
    pub(super) fn policy(&self) -> AddressPolicy {
        if self.allow_private { AddressPolicy::Any } else { AddressPolicy::PUBLIC }
    }
}

impl Default for CallbackOptions {
    fn default() -> Self {
        Self {
            // Otherwise anybody who may subscribe could make the hub send requests into the local network (SSRF).
            allow_private: false,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(15),
            idle_connections: 64,
        }
    }
}

/// A request to a callback failed. The callback's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallbackError {
    /// The URL is not usable.
    #[error("not an http or https URL: {0}")]
    Url(String),
    /// The address is not public.
    #[error("{0}, which this server does not connect to")]
    NotPublic(#[from] address::NotPublic),
    /// The connection failed or broke.
    #[error("cannot reach it: {0}")]
    Connect(String),
    /// The response was not complete in time.
    #[error("no complete response within {0:?}")]
    Timeout(Duration),
    /// The gate of the client refused a connection to this address.
    #[error("{0} may get no request now")]
    NotAdmitted(IpAddr),
}

/// Decides about each connection to an address, just before it is opened.
///
/// A name may lead to another address with each resolution. So limits by address must be checked here.
#[derive(Clone)]
pub struct AddressGate(Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl AddressGate {
    /// Makes a gate that admits the addresses for which `admit` returns true.
    pub fn new(admit: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(admit))
    }

    /// Checks an address for one connection.
    pub(super) fn check(&self, address: IpAddr) -> Result<(), CallbackError> {
        if (self.0)(address) { Ok(()) } else { Err(CallbackError::NotAdmitted(address)) }
    }
}

impl fmt::Debug for AddressGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressGate")
    }
}

/// A request to a callback.
#[derive(Debug, Clone)]
pub struct CallbackRequest<'a> {
    /// Method.
    pub method: Method,
    /// URL that the third party registered.
    pub url: &'a str,
    /// Headers, without `Host` and `User-Agent`.
    pub headers: HeaderMap,
    /// Body; empty for none.
    pub body: Bytes,
}

impl<'a> CallbackRequest<'a> {
    /// Request of a URL, without headers.
    pub fn get(url: &'a str) -> Self {
        Self { method: Method::GET, url, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

/// The response of a callback.
#[derive(Debug, Clone)]
pub struct CallbackResponse {
    /// Status code.
    pub status: u16,
    /// The wait that `Retry-After` asks for.
    pub retry_after: Option<Duration>,
    /// The `Location` of a redirect, which is not followed. Redacted, for messages: it may lack what its address needs.
    pub location: Option<String>,
    /// The body, up to 16 KiB of it.
    pub body: Bytes,
    /// Address that answered, if the request opened a connection.
    pub address: Option<IpAddr>,
}

impl CallbackResponse {
    /// Response without its body.
    pub(super) fn head(status: StatusCode, headers: &HeaderMap) -> Self {
        let retry_after = retry_after(headers, Timestamp::now());
        let location = headers.get(LOCATION).filter(|_| status.is_redirection());
        let location = location.and_then(|location| location.to_str().ok()).map(crate::redact::url);
        Self { status: status.as_u16(), retry_after, location, body: Bytes::new(), address: None }
    }
}

/// Sends requests to callbacks. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct CallbackClient {
    pool: Http1Pool,
    https: reqwest::Client,
    options: CallbackOptions,
    gate: Option<AddressGate>,
    transport: Option<Arc<dyn Transport>>,
}

impl CallbackClient {
    /// Creates a client with its own connections.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if TLS cannot be set up on this machine.
    pub fn new(options: CallbackOptions) -> Result<Self, SetupError> {
        Self::with_gate(options, None)
    }

    /// Creates a client that asks a gate before each connection. It uses each connection for one request.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if TLS cannot be set up on this machine.
    pub fn gated(options: CallbackOptions, gate: AddressGate) -> Result<Self, SetupError> {
        // A request over an idle connection would pass by the gate.
        Self::with_gate(CallbackOptions { idle_connections: 0, ..options }, Some(gate))
    }

    fn with_gate(options: CallbackOptions, gate: Option<AddressGate>) -> Result<Self, SetupError> {
        let https = tls::build(|| {
            reqwest::Client::builder()
                .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(options.connect_timeout)
                .pool_max_idle_per_host(options.idle_connections)
                .pool_idle_timeout(Duration::from_secs(30))
                // A redirect could lead to a private address after the check of the public one.
                .redirect(reqwest::redirect::Policy::none())
                // A proxy would resolve the name itself, which bypasses the check of the address.
                .no_proxy()
                .http1_only()
                .dns_resolver(CallbackResolver { policy: options.policy(), gate: gate.clone() })
        })?;
        Ok(Self { pool: Http1Pool::new(options, gate.clone()), https, options, gate, transport: None })
    }

    /// Returns a client whose requests are sent by `transport`, if there is one. It opens no connections, so its gate is
    /// not asked.
    #[must_use]
    pub fn with_transport(self, transport: Option<Arc<dyn Transport>>) -> Self {
        Self { transport, ..self }
    }

    /// Checks a URL without resolving its host name.
    ///
    /// # Errors
    ///
    /// [`CallbackError::Url`] and [`CallbackError::NotPublic`].
    pub fn check(&self, url: &str) -> Result<Url, CallbackError> {
        let url = Url::parse(url).map_err(|e| CallbackError::Url(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(CallbackError::Url(format!("{:?} is neither http nor https", url.scheme())));
        }
        self.options.policy().check_literal(&url)?;
        Ok(url)
    }

    /// Sends a request and reads its response, up to 16 KiB of the body.
    ///
    /// # Errors
    ///
    /// [`CallbackError`].
    pub async fn call(&self, request: CallbackRequest<'_>) -> Result<CallbackResponse, CallbackError> {
        let exchange = async {
            let (head, body) = self.exchange(request).await?;
            Ok(CallbackResponse { body: body.read().await?, ..head })
        };
        self.in_time(exchange).await
    }

    /// Sends a request whose response counts without its body: as soon as its head is there.
    ///
    /// # Errors
    ///
    /// [`CallbackError`].
    pub async fn call_for_head(
        &self,
        request: CallbackRequest<'_>,
    ) -> Result<(CallbackResponse, UnreadBody), CallbackError> {
        self.in_time(self.exchange(request)).await
    }

    /// Ends an exchange that takes too long.
    async fn in_time<T>(
        &self,
        exchange: impl Future<Output = Result<T, CallbackError>>,
    ) -> Result<T, CallbackError> {
        // One timeout over everything: a callback that sends a byte now and then must not hold a delivery slot.
        match tokio::time::timeout(self.options.timeout, exchange).await {
            Ok(result) => result,
            Err(_) => Err(CallbackError::Timeout(self.options.timeout)),
        }
    }

    async fn exchange(
        &self,
        request: CallbackRequest<'_>,
    ) -> Result<(CallbackResponse, UnreadBody), CallbackError> {
        if let Some(transport) = &self.transport {
            let CallbackRequest { method, url, headers, body } = request;
            let mut request = http::Request::new(body);
            let uri = self.check(url)?.as_str().parse();
            *request.uri_mut() = uri.map_err(|e: http::uri::InvalidUri| CallbackError::Url(e.to_string()))?;
            (*request.method_mut(), *request.headers_mut()) = (method, headers);
            return transport::call(&**transport, request).await;
        }
        // An idle connection leads to an address that was checked when it was opened.
        let request = match self.pool.call_idle(request).await {
            Ok(result) => return result,
            Err(unsent) => unsent,
        };
        let url = self.check(request.url)?;
        if url.scheme() == "http" {
            return self.pool.call(&url, request).await;
        }
        if let (Some(gate), Some(literal)) = (&self.gate, literal(&url)) {
            gate.check(literal)?;
        }
        let CallbackRequest { method, headers, body, .. } = request;
        let request = self.https.request(method, url).headers(headers);
        exchange_over_https(if body.is_empty() { request } else { request.body(body) }).await
    }
}

async fn exchange_over_https(
    request: reqwest::RequestBuilder,
) -> Result<(CallbackResponse, UnreadBody), CallbackError> {
    // The resolver's own error says more than the client's around it.
    let failed = |e: reqwest::Error| {
        find::<CallbackError>(&e).cloned().unwrap_or_else(|| CallbackError::Connect(root_cause(&e)))
    };
    let response = request.send().await.map_err(failed)?;
    let mut head = CallbackResponse::head(response.status(), response.headers());
    head.address = response.remote_addr().map(|address| address.ip());
    Ok((head, UnreadBody(BodySource::Https(response))))
}

/// DNS resolver that returns permitted addresses only.
// Not the resolver of fetches, which opens the environment's proxies: a callback is never one of them.
#[derive(Debug, Clone)]
struct CallbackResolver {
    policy: AddressPolicy,
    gate: Option<AddressGate>,
}

impl Resolve for CallbackResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { policy, gate } = self.clone();
        Box::pin(async move {
            let resolved = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let mut allowed = policy.filter(resolved.collect()).map_err(CallbackError::from)?;
            if let Some(gate) = gate {
                // Only one: each address that is returned may get a connection.
                allowed = vec![first_admitted(&gate, &allowed)?];
            }
            let allowed: Addrs = Box::new(allowed.into_iter());
            Ok(allowed)
        })
    }
}

fn first_admitted(gate: &AddressGate, addresses: &[SocketAddr]) -> Result<SocketAddr, CallbackError> {
    let mut failure = CallbackError::Connect("the name has no address".into());
    for address in addresses {
        match gate.check(address.ip()) {
            Ok(()) => return Ok(*address),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(allow_private: bool) -> CallbackClient {
        CallbackClient::new(CallbackOptions { allow_private, ..CallbackOptions::default() }).unwrap()
    }

    #[test]
    fn addresses_are_judged_whatever_way_they_are_written() {
        let strict = caller(false);
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1:8080/a",
            "http://017700000001/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://10.0.0.1/",
            "http://169.254.169.254/latest/meta-data",
            "http://0/",
        ] {
            assert!(matches!(strict.check(url), Err(CallbackError::NotPublic(_))), "{url}");
            assert!(caller(true).check(url).is_ok(), "{url}");
        }
        assert!(strict.check("http://example.com/").is_ok());
        assert!(matches!(strict.check("file:///etc/passwd"), Err(CallbackError::Url(_))));
    }

    /// RFC 9110, section 10.2.3: seconds or a date.
    #[test]
    fn retry_after_may_be_a_date() {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", "Tue, 31 Dec 2999 23:59:59 GMT".parse().unwrap());
        let wait = CallbackResponse::head(StatusCode::SERVICE_UNAVAILABLE, &headers).retry_after;
        assert!(wait > Some(Duration::from_secs(86_400)), "{wait:?}");
    }

    /// A gate decides about every connection: to addresses, to names, and in TLS.
    #[tokio::test]
    async fn a_gate_decides_about_each_connection() {
        let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let noted = asked.clone();
        let gate = AddressGate::new(move |address| {
            noted.lock().push(address);
            false
        });
        let options = CallbackOptions { allow_private: true, ..CallbackOptions::default() };
        let client = CallbackClient::gated(options, gate).unwrap();
        for url in
            ["http://127.0.0.1:9/", "https://127.0.0.1:9/", "http://localhost:9/", "https://localhost:9/"]
        {
            asked.lock().clear();
            let result = client.call(CallbackRequest::get(url)).await;
            assert!(matches!(result, Err(CallbackError::NotAdmitted(_))), "{url}: {result:?}");
            assert!(asked.lock().iter().all(IpAddr::is_loopback) && !asked.lock().is_empty(), "{url}");
        }
    }

    /// A host name of this machine is not connected to, neither over HTTP nor through the resolver.
    #[tokio::test]
    async fn a_name_of_this_machine_is_not_connected_to() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let result = caller(false).call(CallbackRequest::get(&url)).await;
        assert!(matches!(result, Err(CallbackError::NotPublic(_))), "{result:?}");
        let accepted = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(accepted.is_err(), "nobody connected");
    }
}
