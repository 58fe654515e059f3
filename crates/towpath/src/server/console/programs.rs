//! The addresses of the pages as programs see them: lists and descriptions as JSON.

use std::net::SocketAddr;

use http::header::{CACHE_CONTROL, VARY};
use http::{HeaderValue, Request};

use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::access::{Access, may_see_details, readable};
use crate::engine::request::{known_feed, parameters};
use crate::engine::work::share_thread;
use crate::protocols::catalog::{FeedEntry, NodeDescription, json, list, public_list};
use crate::source::detail_visibility::DetailVisibility;
use crate::source::status::{cluster_json, describe_feed, node_problems, status_of};

/// Answers `/`: the list of public feeds.
pub(crate) fn home(engine: &Engine) -> Result<Answer, RouteError> {
    public_list(engine).map(negotiated)
}

/// Answers `/feeds`: the feeds that the client may read. With `?status`, also the state of each that it may
/// read whole; with `?instance`, the identity of this run.
pub(crate) async fn feeds_for<B>(
    engine: &Engine,
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let asks_for = |what: &str| parameters(request.uri().query()).any(|(name, _)| name == what);
    let with_status = asks_for("status");
    let (mut feeds, mut problems, mut sees_node) = (Vec::new(), Vec::new(), false);
    let tokens = engine.tokens.load_full();
    for (feed, access) in readable(engine.feeds(), &tokens, peer, request)? {
        let mut listed = FeedEntry::new(engine, &feed);
        // The status counts all items, also those that a reader's filter hides.
        if with_status && access == Access::Whole {
            // There may be 100,000 feeds, and other connections are served by this thread.
            share_thread().await;
            let may_see = may_see_details(&tokens, feed.id().as_str(), peer, request);
            listed.status = Some(status_of(engine, &feed, DetailVisibility::shown_if(may_see)).await?);
            sees_node |= may_see;
        }
        feeds.push(listed);
    }
    let mut cluster = serde_json::Value::Null;
    if sees_node {
        problems = node_problems(engine);
        cluster = cluster_json(engine).await;
    }
    let instance = asks_for("instance").then_some(engine.instance.as_str());
    list(&feeds, &NodeDescription { instance, problems, cluster })
}

/// Answers `/feeds/{feed}`: its description, with every address.
pub(crate) async fn feed<B>(
    engine: &Engine,
    peer: SocketAddr,
    id: &str,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let details = DetailVisibility::shown_if(may_see_details(&engine.tokens.load(), id, peer, request));
    let feed = known_feed(engine, id)?;
    let mut answer = json(&describe_feed(engine, &feed, details).await?)?;
    if details.are_shown() && (feed.config.source.is_some() || engine.failures.of(id).is_some()) {
        // A shared cache would hand the details to strangers.
        answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    }
    Ok(negotiated(answer))
}

/// Marks an answer that depends on `Accept` (RFC 9110, section 12.5.5).
fn negotiated(mut answer: Answer) -> Answer {
    answer.headers.insert(VARY, HeaderValue::from_static("accept"));
    answer
}
