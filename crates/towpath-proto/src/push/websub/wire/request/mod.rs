//! Requests from a subscriber to a hub (WebSub 5.1, PubSubHubbub 0.3 section 6.1).

use std::time::Duration;

use url::Url;

use super::form::{FormError, HubForm};
use super::{Dialect, Mode};
use crate::format::media_type::essence;

/// Maximum size of a request's body, in bytes.
pub const MAX_BODY: usize = 16 << 10;
/// Maximum length of a secret or token, in bytes: "MUST be less than 200 bytes in length".
pub const MAX_SECRET: usize = 199;
/// Maximum length of a topic or callback URL, in bytes.
pub const MAX_URL: usize = 2048;

/// Verification modes of a PubSubHubbub 0.3 subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyMode {
    /// The hub verifies before it responds.
    Sync,
    /// The hub verifies after it has responded.
    Async,
}

/// Request to subscribe or unsubscribe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRequest {
    /// Subscribe or unsubscribe.
    pub mode: Mode,
    /// Protocol version of the request.
    pub dialect: Dialect,
    /// Topic URL, exactly as requested.
    pub topic: String,
    /// Callback URL, exactly as requested ("The Hub MUST use the exact callback", WebSub 8.3).
    pub callback: String,
    /// Requested lease in seconds, if any.
    pub lease_seconds: Option<u64>,
    /// Key for signing deliveries.
    pub secret: Option<String>,
    /// Verification mode; asynchronous in all versions but 0.3.
    pub verify: VerifyMode,
    /// Opaque token to echo during verification (0.3 only).
    pub verify_token: Option<String>,
}

/// Request posted to a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubRequest {
    /// Subscribe or unsubscribe.
    Subscription(Box<SubscriptionRequest>),
    /// Notification from a publisher that topics have changed (0.3 section 7.1).
    Publish(Vec<String>),
}

/// Error of a request to a hub. The sender's fault: 4xx (WebSub 5.1.2).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body has another media type.
    #[error("the body must be application/x-www-form-urlencoded, and is {0:?}")]
    ContentType(String),
    /// The body has more than [`MAX_BODY`] bytes.
    #[error("the body has more than {MAX_BODY} bytes")]
    TooLarge,
    /// The body is not a form.
    #[error(transparent)]
    Form(#[from] FormError),
    /// A required parameter is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The mode is unknown.
    #[error("hub.mode must be subscribe, unsubscribe or publish, and is {0:?}")]
    Mode(String),
    /// A URL cannot be used.
    #[error("{parameter} {reason}")]
    Url {
        /// `hub.topic` or `hub.callback`.
        parameter: &'static str,
        /// Explanation of the problem.
        reason: String,
    },
    /// The lease is not a positive decimal integer (WebSub 5.1).
    #[error("hub.lease_seconds must be a positive whole number, and is {0:?}")]
    Lease(String),
    /// A value has 200 bytes or more.
    #[error("{parameter} must have less than 200 bytes, and has {bytes}")]
    TooLong {
        /// `hub.secret` or `hub.verify_token`.
        parameter: &'static str,
        /// Length of the value, in bytes.
        bytes: usize,
    },
    /// No supported verification mode is listed.
    #[error("hub.verify must be sync or async")]
    Verify,
}

impl HubRequest {
    /// Parses a request to a hub. Ignores unknown parameters (WebSub 5.1: "Hubs MUST ignore additional
    /// request parameters they do not understand").
    pub fn parse(content_type: Option<&str>, body: &[u8]) -> Result<Self, RequestError> {
        let media_type = content_type.unwrap_or_default();
        if !essence(media_type).eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            // The error is echoed to the sender: keep its size bounded.
            return Err(RequestError::ContentType(media_type.chars().take(100).collect()));
        }
        if body.len() > MAX_BODY {
            return Err(RequestError::TooLarge);
        }
        let form = HubForm::parse(body)?;
        let mode = match form.one("hub.mode")?.ok_or(RequestError::Missing("hub.mode"))? {
            "subscribe" => Mode::Subscribe,
            "unsubscribe" => Mode::Unsubscribe,
            "publish" => return publish(&form),
            other => return Err(RequestError::Mode(other.chars().take(100).collect())),
        };
        Ok(Self::Subscription(Box::new(subscription(&form, mode)?)))
    }
}

fn publish(form: &HubForm) -> Result<HubRequest, RequestError> {
    // 0.3 names the parameter hub.url; publishers of later versions send hub.topic.
    let topics = form.all("hub.url").chain(form.all("hub.topic"));
    let topics: Vec<String> = topics.filter(|topic| !topic.is_empty()).map(str::to_owned).collect();
    if topics.is_empty() {
        return Err(RequestError::Missing("hub.url"));
    }
    Ok(HubRequest::Publish(topics))
}

fn subscription(form: &HubForm, mode: Mode) -> Result<SubscriptionRequest, RequestError> {
    let (dialect, verify) = dialect(form)?;
    let required = |name| form.one(name)?.ok_or(RequestError::Missing(name));
    let topic = required("hub.topic")?;
    check_url("hub.topic", topic)?;
    let callback = required("hub.callback")?;
    check_url("hub.callback", callback)?;
    let secret = form.one("hub.secret")?;
    check_length("hub.secret", secret)?;
    // WebSub does not define the token, so it must not be stored for a WebSub subscription.
    let verify_token = form.one("hub.verify_token")?.filter(|_| dialect == Dialect::PubSubHubbub);
    check_length("hub.verify_token", verify_token)?;
    let lease_seconds = match mode {
        Mode::Subscribe => form.one("hub.lease_seconds")?.map(|text| lease(text, dialect)).transpose()?,
        // "MAY be present for unsubscription requests and MUST be ignored by the hub in that case."
        Mode::Unsubscribe => None,
    };
    Ok(SubscriptionRequest {
        mode,
        dialect,
        topic: topic.to_owned(),
        callback: callback.to_owned(),
        lease_seconds: lease_seconds.flatten(),
        secret: secret.map(str::to_owned),
        verify,
        verify_token: verify_token.map(str::to_owned),
    })
}

/// Determines the dialect and verification mode (0.3 section 6.1). Keywords are in the subscriber's order of
/// preference, and "Hubs MUST ignore verify mode keywords that they do not understand".
fn dialect(form: &HubForm) -> Result<(Dialect, VerifyMode), RequestError> {
    let keywords = form.all("hub.verify").flat_map(|value| value.split(',')).map(str::trim);
    let (mut known, mut any) = (None, false);
    for keyword in keywords.filter(|keyword| !keyword.is_empty()) {
        any = true;
        known = known.or(match keyword {
            "sync" => Some(VerifyMode::Sync),
            "async" => Some(VerifyMode::Async),
            _ => None,
        });
    }
    match (known, any) {
        (Some(verify), _) => Ok((Dialect::PubSubHubbub, verify)),
        (None, true) => Err(RequestError::Verify),
        (None, false) => Ok((Dialect::WebSub, VerifyMode::Async)),
    }
}

/// Parses a lease. A number beyond `u64` becomes the largest lease. 0.3 has no minimum, and some of its
/// subscribers send 0 for "no limit".
fn lease(text: &str, dialect: Dialect) -> Result<Option<u64>, RequestError> {
    // Rejects a sign as well, which parse would accept.
    if text.len() > 100 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(RequestError::Lease(text.chars().take(100).collect()));
    }
    match (text.parse().unwrap_or(u64::MAX), dialect) {
        (0, Dialect::WebSub) => Err(RequestError::Lease(text.to_owned())),
        (0, Dialect::PubSubHubbub) => Ok(None),
        (seconds, _) => Ok(Some(seconds)),
    }
}

fn check_length(parameter: &'static str, value: Option<&str>) -> Result<(), RequestError> {
    match value.map_or(0, str::len) {
        0..=MAX_SECRET => Ok(()),
        bytes => Err(RequestError::TooLong { parameter, bytes }),
    }
}

/// Checks a topic or callback URL: "The topic and callback URLs MUST NOT contain an anchor fragment. These
/// URLs MAY use HTTP or HTTPS" (0.3 section 6.1.1). Credentials are refused because they would be sent to the
/// host of the URL.
fn check_url(parameter: &'static str, text: &str) -> Result<(), RequestError> {
    let error = |reason: &str| Err(RequestError::Url { parameter, reason: reason.to_owned() });
    if text.len() > MAX_URL {
        return error(&format!("has more than {MAX_URL} bytes"));
    }
    // The URL parser silently removes tabs and line ends; the stored callback would then differ from the one
    // that is called.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return error("has white space in it");
    }
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(e) => return error(&format!("is not an absolute URL: {e}")),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return error("is neither http nor https");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return error("has credentials in it");
    }
    if url.fragment().is_some() {
        return error("has a fragment");
    }
    if url.port() == Some(0) {
        return error("has the port 0");
    }
    Ok(())
}

/// Limits of leases ("Hubs MUST enforce lease expirations, and MUST NOT issue perpetual lease durations",
/// WebSub 5.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leases {
    /// Minimum lease.
    pub min: Duration,
    /// Lease of a request that names none.
    pub default: Duration,
    /// Maximum lease.
    pub max: Duration,
}

impl Default for Leases {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        // "10 days is a good default" (WebSub 8.2).
        Self { min: Duration::from_secs(10), default: days(10), max: days(30) }
    }
}

impl Leases {
    /// Returns the lease granted for a requested number of seconds.
    pub fn grant(&self, asked: Option<u64>) -> Duration {
        asked.map_or(self.default, Duration::from_secs).clamp(self.min, self.max)
    }
}

#[cfg(test)]
mod tests;
