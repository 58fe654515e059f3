//! `PUT /feeds/{feed}` and `DELETE /feeds/{feed}`: feeds that are made, changed and removed over HTTP.

use std::net::SocketAddr;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use towpath_proto::FeedId;

use crate::config::TokenRight;
use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;
use crate::engine::access::may_change;
use crate::engine::request::{known_feed, parameters};
use crate::engine::{Engine, request_body};
use crate::server::item_response::json_answer;
use crate::source::detail_visibility::DetailVisibility;
use crate::source::status::describe_feed;

/// Largest settings of a feed, in bytes.
const MAX_SETTINGS: usize = 64 << 10;
/// Longest reason, in bytes.
const MAX_REASON: usize = 500;

/// Makes, changes or removes a feed.
pub(super) async fn respond(
    engine: &Engine,
    peer: SocketAddr,
    feed: &str,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    // The settings name addresses that this server asks, so a publisher's token is not enough.
    let sender = may_change(&engine.tokens.load(), TokenRight::Admin, feed, peer, &request)?;
    let id = FeedId::new(feed).map_err(|e| RouteError::bad_request(e.to_string()))?;
    if request.method() == Method::DELETE {
        let reason = parameters(request.uri().query()).find(|(name, _)| name == "reason");
        let reason = reason.map(|(_, value)| value.into_owned()).filter(|reason| !reason.is_empty());
        if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON) {
            let text = format!("reason is longer than {MAX_REASON} bytes");
            return Err(RouteError::bad_request(text).about("reason"));
        }
        engine.remove_feed(&id, reason, &sender.to_string()).await?;
        tracing::info!(feed = %id, token = %sender, "a feed was removed over HTTP");
        return Ok(json_answer(StatusCode::OK, &json!({ "id": id, "removed": true })));
    }
    let body = request_body::read(engine, request, MAX_SETTINGS).await?;
    let keys: Map<String, Value> = match body.trim_ascii() {
        b"" => Map::new(),
        text => serde_json::from_slice(text)
            .map_err(|e| RouteError::bad_request(format!("the settings of a feed are a JSON object: {e}")))?,
    };
    let is_new = engine.put_feed(&id, keys, &sender.to_string()).await?;
    tracing::info!(feed = %id, token = %sender, is_new, "a feed was set over HTTP");
    let described =
        describe_feed(engine, &*known_feed(engine, id.as_str())?, DetailVisibility::Shown).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json_answer(status, &json!(described)))
}
