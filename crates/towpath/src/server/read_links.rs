//! `POST /feeds/{feed}/read-links`: a read link for a browser, by a reader's token.

use http::{HeaderMap, StatusCode};
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::access::{may_read, read_token};
use crate::engine::read_link::{LINK, ReadLink};
use crate::engine::request::{no_feed, parameters};
use crate::server::item_response::json_answer;

/// Time that a link is valid, in seconds, unless the request says otherwise.
const USUAL: i64 = 600;
/// Longest time that a link may be valid, in seconds.
const LONGEST: i64 = 24 * 3600;

/// Addresses that read a feed for a while.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadLinks {
    /// Time until which they read it; `null` for a public feed.
    expires: Option<Timestamp>,
    /// Id of the feed.
    feed: String,
    /// Address of its pages.
    items: String,
    /// Address of its events.
    url: String,
}

/// Makes a link. A public feed needs none, and gets its plain addresses.
pub(super) fn make(
    engine: &Engine,
    name: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Result<Answer, RouteError> {
    let feed = engine.feed(name).ok_or_else(|| no_feed(engine, name))?;
    may_read(&feed, &engine.tokens.load(), headers)?;
    let seconds = seconds(query)?;
    let base = format!("{}/feeds/{}", engine.base_url, feed.id());
    let address = |path: &str, link: &str| format!("{base}/{path}{link}");
    let token = read_token(headers).filter(|_| !feed.config.is_public());
    let (link, expires) = match token {
        None => (String::new(), None),
        Some(reader) => {
            let expires = engine.now().saturating_add(SignedDuration::from_secs(seconds));
            // Whole seconds: the link has no more.
            let expires = expires.ok().and_then(|time| Timestamp::from_second(time.as_second()).ok());
            let expires = expires.ok_or_else(|| RouteError::internal("the clock is at the end of time"))?;
            let link = ReadLink { reader, expires }.sign(&engine.identity, feed.id());
            (format!("?{LINK}={link}"), Some(expires))
        }
    };
    let links = ReadLinks {
        expires,
        feed: feed.id().to_string(),
        items: address("items", &link),
        url: address("events", &link),
    };
    let mut answer = json_answer(StatusCode::CREATED, &json!(links));
    // The link is a secret for a while.
    answer.headers.insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("private, no-store"));
    Ok(answer)
}

fn seconds(query: Option<&str>) -> Result<i64, RouteError> {
    let Some((_, value)) = parameters(query).find(|(name, _)| name == "seconds") else { return Ok(USUAL) };
    let seconds = value.parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds));
    let error = || RouteError::bad_request(format!("seconds is a number from 1 to {LONGEST}, not {value:?}"));
    seconds.ok_or_else(error).map_err(|error| error.about("seconds"))
}
