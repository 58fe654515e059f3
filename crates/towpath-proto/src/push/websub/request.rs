//! What a subscriber asks of a hub (WebSub 5.1, PubSubHubbub 0.3 section 6.1).

use std::time::Duration;

use url::Url;

use super::form::{Form, FormError};
use super::{Dialect, Mode};

/// The most bytes of a request's body.
pub const MAX_BODY: usize = 16 << 10;
/// The longest secret and the longest token, in bytes: "MUST be less than 200 bytes in length".
pub const MAX_SECRET: usize = 199;
/// The longest topic and the longest callback, in bytes.
pub const MAX_URL: usize = 2048;

/// How a PubSubHubbub 0.3 subscriber wants to be asked whether it meant it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Before the request is answered.
    Sync,
    /// Some time after that.
    Async,
}

/// A request for a subscription, or for its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionRequest {
    /// Which of the two.
    pub mode: Mode,
    /// Which text it goes by.
    pub dialect: Dialect,
    /// The topic, in the request's letters.
    pub topic: String,
    /// The subscriber's own address, in the request's letters ("The Hub MUST use the exact callback", WebSub 8.3).
    pub callback: String,
    /// How many seconds it is to last, where that is said.
    pub lease_seconds: Option<u64>,
    /// What deliveries are to be signed with.
    pub secret: Option<String>,
    /// When to verify it; asynchronously in all texts but 0.3.
    pub verify: Verify,
    /// To be echoed when it is verified (only 0.3).
    pub verify_token: Option<String>,
}

/// What is posted to a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubRequest {
    /// A subscription, or its end.
    Subscription(Box<SubscriptionRequest>),
    /// A publisher tells that topics have changed (0.3 section 7.1).
    Publish(Vec<String>),
}

/// Why a request to a hub is refused. The sender's fault: 4xx (WebSub 5.1.2).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Another type of body.
    #[error("the body must be application/x-www-form-urlencoded, and is {0:?}")]
    ContentType(String),
    /// More than [`MAX_BODY`] bytes.
    #[error("the body has more than {MAX_BODY} bytes")]
    TooLarge,
    /// Not a form.
    #[error(transparent)]
    Form(#[from] FormError),
    /// A parameter that is required.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// Another mode than those that there are.
    #[error("hub.mode must be subscribe, unsubscribe or publish, and is {0:?}")]
    Mode(String),
    /// Not an address that can be used.
    #[error("{parameter} {reason}")]
    Url {
        /// `hub.topic` or `hub.callback`.
        parameter: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Not a positive decimal integer (WebSub 5.1).
    #[error("hub.lease_seconds must be a positive whole number, and is {0:?}")]
    Lease(String),
    /// 200 bytes or more.
    #[error("{parameter} must have less than 200 bytes, and has {bytes}")]
    TooLong {
        /// `hub.secret` or `hub.verify_token`.
        parameter: &'static str,
        /// How many it has.
        bytes: usize,
    },
    /// No way of verification that there is.
    #[error("hub.verify must be sync or async")]
    Verify,
}

impl HubRequest {
    /// Reads a request to a hub. Parameters that are not known are passed over (WebSub 5.1: "Hubs MUST ignore
    /// additional request parameters they do not understand").
    pub fn parse(content_type: Option<&str>, body: &[u8]) -> Result<Self, RequestError> {
        let media_type = content_type.unwrap_or_default();
        let plain = media_type.split(';').next().unwrap_or_default().trim();
        if !plain.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            return Err(RequestError::ContentType(media_type.chars().take(100).collect()));
        }
        if body.len() > MAX_BODY {
            return Err(RequestError::TooLarge);
        }
        let form = Form::parse(body)?;
        let mode = match form.one("hub.mode")?.ok_or(RequestError::Missing("hub.mode"))? {
            "subscribe" => Mode::Subscribe,
            "unsubscribe" => Mode::Unsubscribe,
            "publish" => return publish(&form),
            other => return Err(RequestError::Mode(other.chars().take(100).collect())),
        };
        Ok(Self::Subscription(Box::new(subscription(&form, mode)?)))
    }
}

fn publish(form: &Form) -> Result<HubRequest, RequestError> {
    let topics = form.all("hub.url").chain(form.all("hub.topic"));
    let topics: Vec<String> = topics.filter(|topic| !topic.is_empty()).map(str::to_owned).collect();
    if topics.is_empty() {
        return Err(RequestError::Missing("hub.url"));
    }
    Ok(HubRequest::Publish(topics))
}

fn subscription(form: &Form, mode: Mode) -> Result<SubscriptionRequest, RequestError> {
    let (dialect, verify) = dialect(form)?;
    let required = |name| form.one(name)?.ok_or(RequestError::Missing(name));
    let topic = required("hub.topic")?;
    check_url("hub.topic", topic)?;
    let callback = required("hub.callback")?;
    check_url("hub.callback", callback)?;
    let secret = form.one("hub.secret")?;
    check_length("hub.secret", secret)?;
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

/// 0.3 section 6.1: the order of the keywords is the subscriber's preference, and "Hubs MUST ignore verify mode
/// keywords that they do not understand".
fn dialect(form: &Form) -> Result<(Dialect, Verify), RequestError> {
    let keywords = form.all("hub.verify").flat_map(|value| value.split(',')).map(str::trim);
    let (mut known, mut any) = (None, false);
    for keyword in keywords.filter(|keyword| !keyword.is_empty()) {
        any = true;
        known = known.or(match keyword {
            "sync" => Some(Verify::Sync),
            "async" => Some(Verify::Async),
            _ => None,
        });
    }
    match (known, any) {
        (Some(verify), _) => Ok((Dialect::PubSubHubbub, verify)),
        (None, true) => Err(RequestError::Verify),
        (None, false) => Ok((Dialect::WebSub, Verify::Async)),
    }
}

/// A number too large for any lease is as good as the largest. 0.3 knows no least one, and some of its
/// subscribers say 0 for "for ever".
fn lease(text: &str, dialect: Dialect) -> Result<Option<u64>, RequestError> {
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

/// "The topic and callback URLs MUST NOT contain an anchor fragment. These URLs MAY use HTTP or HTTPS" (0.3
/// section 6.1.1). Credentials would be sent to whoever the address leads to.
fn check_url(parameter: &'static str, text: &str) -> Result<(), RequestError> {
    let error = |reason: &str| Err(RequestError::Url { parameter, reason: reason.to_owned() });
    if text.len() > MAX_URL {
        return error(&format!("has more than {MAX_URL} bytes"));
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return error("has white space in it");
    }
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(e) => return error(&format!("is no absolute address: {e}")),
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

/// How long subscriptions last ("Hubs MUST enforce lease expirations, and MUST NOT issue perpetual lease
/// durations", WebSub 5.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leases {
    /// The shortest.
    pub min: Duration,
    /// Where nothing is asked for.
    pub default: Duration,
    /// The longest.
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
    /// The lease that is given for what was asked, in seconds.
    pub fn grant(&self, asked: Option<u64>) -> Duration {
        asked.map_or(self.default, Duration::from_secs).clamp(self.min, self.max)
    }
}

#[cfg(test)]
mod tests;
