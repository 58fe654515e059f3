//! The state of every sink, for lists, pages and metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_store::ReadLimit;

use crate::engine::sinks::{SinkControl, SinkEntry, SinkOutage, SinkRecord, SinkState};
use crate::engine::{Engine, Feed, json_record};
use crate::store_error::StoreError;

/// Most feeds of a sink whose oldest change is read for one scrape of the metrics.
const MAX_AGED_FEEDS: usize = 100;

/// State of a sink, as lists and pages show it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SinkStatus {
    /// Name in the configuration.
    pub name: String,
    /// Kind of the destination, such as `postgres`.
    pub kind: String,
    /// Destination without credentials.
    pub into: String,
    /// Activity.
    pub state: SinkState,
    /// True while an operator, or the server itself, has it paused.
    pub paused: bool,
    /// Failure, if the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SinkOutage>,
    /// Feeds with their positions.
    pub feeds: Vec<SinkFeedStatus>,
    /// Number of changes that are not delivered yet, over all own feeds.
    pub lag: u64,
    /// Number of changes that were delivered since the server started.
    pub delivered: u64,
    /// Number of items that are kept aside.
    pub dead_letters: u64,
    /// Time of the last delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_delivery: Option<Timestamp>,
}

/// Position of a sink in a feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SinkFeedStatus {
    /// Name of the feed, or its URL.
    pub feed: String,
    /// Position of the last change that was delivered.
    pub position: Option<String>,
    /// Number of changes behind it; `None` for a feed of another server.
    pub lag: Option<u64>,
}

impl Engine {
    /// Returns the state of every sink, also of those that other nodes run.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the record of a sink cannot be read.
    pub async fn sink_statuses(&self) -> Result<Vec<SinkStatus>, StoreError> {
        let sinks = self.sinks.all();
        let mut statuses = Vec::with_capacity(sinks.len());
        for sink in sinks.iter() {
            statuses.push(self.sink_status(sink).await?);
        }
        Ok(statuses)
    }

    /// Returns the state of a sink.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the sink's records cannot be read.
    pub async fn sink_status(&self, sink: &SinkEntry) -> Result<SinkStatus, StoreError> {
        let store = self.store.as_ref();
        // The stored record is seconds old. Where this node runs the sink, it knows better.
        let record = if *sink.is_here.borrow() {
            sink.record()
        } else {
            json_record::load(store, &sink.record_key()).await?.unwrap_or_default()
        };
        let control: SinkControl = json_record::load(store, &sink.control_key()).await?.unwrap_or_default();
        let feeds = self.sink_feeds(sink, &record);
        let lag = feeds.iter().filter_map(|feed| feed.lag).sum();
        Ok(SinkStatus {
            name: sink.config.name.clone(),
            kind: sink.config.kind().map_or_else(String::new, |kind| kind.name().to_owned()),
            into: sink.config.shown(),
            state: if control.paused { SinkState::Paused } else { record.state },
            paused: control.paused,
            error: record.error,
            feeds,
            lag,
            delivered: record.delivered,
            dead_letters: record.dead_letters,
            last_delivery: record.last_delivery,
        })
    }

    /// Returns the feeds of a sink with their positions.
    fn sink_feeds(&self, sink: &SinkEntry, record: &SinkRecord) -> Vec<SinkFeedStatus> {
        if sink.config.url.is_some() {
            let feed = |(feed, position): (&String, &String)| SinkFeedStatus {
                feed: feed.clone(),
                position: Some(position.clone()),
                lag: None,
            };
            return record.positions.iter().map(feed).collect();
        }
        let feeds = self
            .feeds()
            .into_iter()
            .filter(|feed| !feed.is_filter() && sink.config.has_feed(feed.id().as_str()));
        let status = |feed: Arc<Feed>| {
            let position = record.positions.get(feed.id().as_str()).cloned();
            let delivered: Seq = position.as_deref().and_then(|position| position.parse().ok()).unwrap_or(0);
            let head = feed.head.load(Ordering::Acquire);
            SinkFeedStatus {
                feed: feed.id().to_string(),
                position,
                lag: Some(head.saturating_sub(delivered)),
            }
        };
        feeds.map(status).collect()
    }

    /// Sets the gauges of the lags, which change with every append.
    pub(crate) async fn refresh_sink_lags(&self) {
        for sink in self.sinks.all().iter() {
            // Elsewhere the other node counts it.
            if !*sink.is_here.borrow() {
                continue;
            }
            let feeds = self.sink_feeds(sink, &sink.record());
            let lag: u64 = feeds.iter().filter_map(|feed| feed.lag).sum();
            let label = [("sink", sink.config.name.clone())];
            sink.metrics.lag.get_or_create_owned(&label).set(i64::try_from(lag).unwrap_or(i64::MAX));
            let age = self.lag_seconds(&feeds).await;
            sink.metrics.lag_seconds.get_or_create_owned(&label).set(age);
        }
    }

    /// Returns the age of the oldest change that is not delivered, 0 if there is none or it cannot be read.
    async fn lag_seconds(&self, feeds: &[SinkFeedStatus]) -> i64 {
        let mut oldest: Option<Timestamp> = None;
        for feed in feeds.iter().filter(|feed| feed.lag.is_some_and(|lag| lag > 0)).take(MAX_AGED_FEEDS) {
            let Ok(id) = FeedId::new(&feed.feed) else { continue };
            let after = feed.position.as_deref().and_then(|position| position.parse().ok()).unwrap_or(0);
            let next = self.store.read(&id, after, ReadLimit::items(1)).await.unwrap_or_default();
            let modified = next.first().map(|change| change.modified);
            oldest = oldest.into_iter().chain(modified).min();
        }
        oldest.map_or(0, |oldest| self.now().duration_since(oldest).as_secs().max(0))
    }
}
