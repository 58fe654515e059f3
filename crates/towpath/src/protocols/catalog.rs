//! Descriptions of feeds for programs: identity, state and addresses.

use std::sync::Arc;

use http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use towpath_store::LogHead;

use crate::config::FeedOrigin;
use crate::document::prebuilt::Answer;
use crate::document::respond::whole;
use crate::document::route_error::RouteError;
use crate::engine::scheduled::ScheduledChange;
use crate::engine::{Engine, Feed};
use crate::protocols::addresses::{FeedAddress, addresses};
use crate::protocols::websub::pings::HubStatus;
use crate::store_error::StoreError;

const JSON: &str = "application/json; charset=utf-8";

/// A feed with its state and addresses. `S` describes the source of its items.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FeedDescription")]
pub(crate) struct FeedDescription<S: Serialize> {
    pub(crate) id: String,
    pub(crate) title: String,
    /// True if it was made over HTTP, by its settings or by publishing, and is not in the configuration file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) made_over_http: bool,
    #[serde(flatten)]
    pub(crate) status: FeedStatus<S>,
    pub(crate) addresses: Vec<FeedAddress>,
}

/// Position, counts and time of a feed's log.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LogCounts {
    seq: u64,
    items: u64,
    live: u64,
    modified: Option<jiff::Timestamp>,
    /// Position up to which old versions and deletions were let go; left out if the log has everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    horizon: Option<u64>,
}

impl From<LogHead> for LogCounts {
    fn from(LogHead { seq, modified, items, live, horizon }: LogHead) -> Self {
        // An empty log has 1970 as its time, which would look like a date.
        let modified = (seq > 0).then_some(modified);
        Self { seq, items, live, modified, horizon: Some(horizon).filter(|horizon| *horizon > 0) }
    }
}

/// State of a feed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FeedStatus")]
pub(crate) struct FeedStatus<S: Serialize> {
    /// Counts of its log; left out for a filter, which has no log of its own.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) log: Option<LogCounts>,
    /// Changes that are to be published later, for those who may see details.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) scheduled: Vec<ScheduledChange>,
    /// Failures of publishing it, for those who may see details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    /// Hubs of others with what they were told, for those who may see details.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) hubs: Vec<HubStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<S>,
}

/// Entry of a feed in the list of feeds.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FeedEntry")]
pub(crate) struct FeedEntry<S: Serialize> {
    id: String,
    title: String,
    url: String,
    /// True if it was made over HTTP, by its settings or by publishing, and is not in the configuration file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    made_over_http: bool,
    /// State of the feed, if requested.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<FeedStatus<S>>,
}

impl<S: Serialize> FeedEntry<S> {
    pub(crate) fn new(engine: &Engine, feed: &Feed) -> Self {
        Self {
            id: feed.id().to_string(),
            title: feed.config.title().to_owned(),
            url: format!("{}/feeds/{}", engine.base_url, feed.id()),
            made_over_http: feed.config.origin != FeedOrigin::File,
            status: None,
        }
    }
}

/// Reads the state of a feed.
pub(crate) async fn feed_status<S: Serialize>(
    engine: &Engine,
    feed: &Feed,
    source: Option<S>,
) -> Result<FeedStatus<S>, StoreError> {
    // The numbers of the log that a filter shows would tell strangers of a private feed.
    let log = match feed.is_filter() {
        true => None,
        false => Some(engine.store.head(feed.log()).await?.into()),
    };
    Ok(FeedStatus { log, scheduled: Vec::new(), failure: None, hubs: Vec::new(), source })
}

/// Describes a feed.
pub(crate) async fn describe<S: Serialize>(
    engine: &Engine,
    feed: &Feed,
    source: Option<S>,
) -> Result<FeedDescription<S>, StoreError> {
    Ok(FeedDescription {
        id: feed.id().to_string(),
        title: feed.config.title().to_owned(),
        made_over_http: feed.config.origin != FeedOrigin::File,
        status: feed_status(engine, feed, source).await?,
        addresses: addresses(&engine.base_url, feed),
    })
}

/// Returns the public feeds. A private feed is not even named to strangers.
pub(crate) fn public_feeds(engine: &Engine) -> Vec<Arc<Feed>> {
    engine.feeds().into_iter().filter(|feed| feed.config.is_public()).collect()
}

/// Answers with the list of public feeds.
pub(crate) fn public_list(engine: &Engine) -> Result<Answer, RouteError> {
    let feeds = public_feeds(engine);
    let feeds: Vec<_> = feeds.iter().map(|feed| FeedEntry::<()>::new(engine, feed)).collect();
    list(&feeds, &NodeDescription::default())
}

/// Facts about the node that lists feeds, where a request asks for them.
#[derive(Default)]
pub(crate) struct NodeDescription<'a> {
    /// Identity of its run.
    pub(crate) instance: Option<&'a str>,
    /// Faults of the node.
    pub(crate) problems: Vec<String>,
    /// Log of its cluster; null if it has none, or the client may not see it.
    pub(crate) cluster: serde_json::Value,
}

/// Answers with a list of feeds, and facts about the node.
pub(crate) fn list<S: Serialize>(
    feeds: &[FeedEntry<S>],
    node: &NodeDescription<'_>,
) -> Result<Answer, RouteError> {
    // `service` lets commands tell this server from others that listen at the address.
    let mut list = serde_json::json!({ "service": "towpath", "feeds": feeds });
    if let Some(instance) = node.instance {
        list["instance"] = instance.into();
    }
    if !node.problems.is_empty() {
        list["problems"] = node.problems.as_slice().into();
    }
    if !node.cluster.is_null() {
        list["cluster"] = node.cluster.clone();
    }
    json(&list)
}

/// Answers with a value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<Answer, RouteError> {
    let body = serde_json::to_vec(value).map_err(|e| RouteError::internal(e.to_string()))?;
    Ok(whole(StatusCode::OK, JSON, body))
}

/// Answers with a feed's description in a static tree.
///
/// It has no state of the source, which the tree would show too late, and only addresses that the tree has.
pub(crate) async fn tree_description(
    engine: &Engine,
    feed: &Feed,
    has: impl Fn(&str) -> bool,
) -> Result<Answer, StoreError> {
    let mut description = describe::<()>(engine, feed, None).await?;
    // Long polls, streams, subscriptions and publishing cannot be files.
    let needs_server = |name: &str| matches!(name, "smart" | "events" | "hub" | "items");
    description.addresses.retain(|address| !needs_server(address.name) && has(address.name));
    let body = serde_json::to_vec(&description).map_err(|e| StoreError::Internal(e.to_string()))?;
    Ok(whole(StatusCode::OK, JSON, body))
}
