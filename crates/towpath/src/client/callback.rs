//! Requests to addresses that somebody else has named: a hub's questions and deliveries.
//!
//! Only addresses of the public Internet are connected to, unless that is allowed. Names are resolved here, and only
//! what was judged is connected to: a name that changes its address between two requests, or between the judging and
//! the connecting, gains nothing. Redirects are answers (WebSub 5.3.1 and 7 take them for failures), and no proxy
//! stands between.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use jiff::Timestamp;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use towpath_proto::follow::retry_after;
use towpath_proto::push::address;
use url::{Host, Url};

use super::explain::root_cause;
use super::plain::Plain;
use super::tls::{self, SetupError};

/// How much of an answer is read, so that its connection can be used again.
pub(super) const MAX_ANSWER: usize = 16 << 10;

/// How patient to be.
#[derive(Debug, Clone, Copy)]
pub struct CallOptions {
    /// Whether any address may be called.
    pub allow_private: bool,
    /// For resolving the name, connecting and the TLS handshake.
    pub connect_timeout: Duration,
    /// For the whole exchange, to the end of the answer.
    pub timeout: Duration,
    /// How many connections to one host are kept for the next request.
    pub idle_connections: usize,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            allow_private: false,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(15),
            idle_connections: 64,
        }
    }
}

/// Why there is no answer. The callback's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Not an address that can be called.
    #[error("not an address that can be called: {0}")]
    Url(String),
    /// An address that may not be called.
    #[error("{0}, which this server does not call")]
    NotPublic(#[from] address::NotPublic),
    /// No connection, or it broke.
    #[error("cannot reach it: {0}")]
    Connect(String),
    /// Nothing came in time.
    #[error("no whole answer within {0:?}")]
    Timeout(Duration),
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Called {
    /// Its status.
    pub status: u16,
    /// How long it asks to be left alone.
    pub retry_after: Option<Duration>,
    /// As much of its body as was read.
    pub body: Bytes,
}

impl Called {
    /// An answer whose body has not been read.
    pub(super) fn head(status: StatusCode, headers: &HeaderMap) -> Self {
        let retry_after = retry_after(headers, Timestamp::now());
        Self { status: status.as_u16(), retry_after, body: Bytes::new() }
    }
}

/// Calls callbacks. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Caller {
    plain: Plain,
    protected: reqwest::Client,
    options: CallOptions,
}

impl Caller {
    /// A caller with connections of its own.
    ///
    /// # Errors
    ///
    /// [`SetupError`] where the machine gives no TLS.
    pub fn new(options: CallOptions) -> Result<Self, SetupError> {
        let protected = tls::build(|| {
            let builder = reqwest::Client::builder()
                .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(options.connect_timeout)
                .pool_max_idle_per_host(options.idle_connections)
                .pool_idle_timeout(Duration::from_secs(30))
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .http1_only();
            if options.allow_private { builder } else { builder.dns_resolver(PublicOnly) }
        })?;
        Ok(Self { plain: Plain::new(options), protected, options })
    }

    /// Whether an address can be called, as far as that can be told without resolving its name.
    ///
    /// # Errors
    ///
    /// [`CallError::Url`] and [`CallError::NotPublic`].
    pub fn check(&self, url: &str) -> Result<Url, CallError> {
        let url = Url::parse(url).map_err(|e| CallError::Url(e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(CallError::Url(format!("{:?} is neither http nor https", url.scheme())));
        }
        // Addresses that are no names are not resolved: the resolver would not see them.
        let literal = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            _ => None,
        };
        if let Some(literal) = literal.filter(|_| !self.options.allow_private) {
            address::check(literal)?;
        }
        Ok(url)
    }

    /// Sends a request and reads its answer, of the body no more than what keeps the connection.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub async fn call(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Called, CallError> {
        let exchange = async {
            // A connection that waits leads to an address that was judged.
            let unsent = match self.plain.call_again((method, headers, body), url).await {
                Ok(called) => return called,
                Err(unsent) => unsent,
            };
            let (method, headers, body) = unsent;
            let url = self.check(url)?;
            if url.scheme() == "http" {
                return self.plain.call(method, &url, headers, body).await;
            }
            let request = self.protected.request(method, url).headers(headers);
            protected_exchange(if body.is_empty() { request } else { request.body(body) }).await
        };
        match tokio::time::timeout(self.options.timeout, exchange).await {
            Ok(called) => called,
            Err(_) => Err(CallError::Timeout(self.options.timeout)),
        }
    }
}

async fn protected_exchange(request: reqwest::RequestBuilder) -> Result<Called, CallError> {
    let failed = |e: reqwest::Error| CallError::Connect(root_cause(&e));
    let mut response = request.send().await.map_err(failed)?;
    let mut called = Called::head(response.status(), response.headers());
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER {
            break;
        }
    }
    called.body = body.freeze();
    Ok(called)
}

/// Resolves names to the public ones of their addresses.
#[derive(Debug, Clone, Copy)]
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Addrs = Box::new(public(found.collect())?.into_iter());
            Ok(allowed)
        })
    }
}

/// Those of a name's addresses that may be called.
pub(super) fn public(found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, CallError> {
    let mut refused = None;
    let mut allowed = Vec::new();
    for found in found {
        match address::check(found.ip()) {
            Ok(()) => allowed.push(found),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if allowed.is_empty() => Err(error.into()),
        _ => Ok(allowed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(allow_private: bool) -> Caller {
        Caller::new(CallOptions { allow_private, ..CallOptions::default() }).unwrap()
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
            assert!(matches!(strict.check(url), Err(CallError::NotPublic(_))), "{url}");
            assert!(caller(true).check(url).is_ok(), "{url}");
        }
        assert!(strict.check("http://example.com/").is_ok());
        assert!(matches!(strict.check("file:///etc/passwd"), Err(CallError::Url(_))));
    }

    /// RFC 9110, section 10.2.3: seconds or a date.
    #[test]
    fn an_answer_may_ask_to_be_left_alone_until_a_date() {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", "Tue, 31 Dec 2999 23:59:59 GMT".parse().unwrap());
        let asked = Called::head(StatusCode::SERVICE_UNAVAILABLE, &headers).retry_after;
        assert!(asked > Some(Duration::from_secs(86_400)), "{asked:?}");
    }

    #[test]
    fn of_a_names_addresses_only_public_ones_are_called() {
        let socket = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
        let mixed = public(vec![socket("10.0.0.1"), socket("8.8.8.8"), socket("::1")]);
        assert_eq!(mixed, Ok(vec![socket("8.8.8.8")]));
        assert!(matches!(public(vec![socket("127.0.0.1")]), Err(CallError::NotPublic(_))));
    }

    /// A name that leads to this machine is not called, however it is reached.
    #[tokio::test]
    async fn a_name_of_this_machine_is_not_called() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let called = caller(false).call(Method::GET, &url, HeaderMap::new(), Bytes::new()).await;
        assert!(matches!(called, Err(CallError::NotPublic(_))), "{called:?}");
        let accepted = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(accepted.is_err(), "nobody connected");
    }
}
