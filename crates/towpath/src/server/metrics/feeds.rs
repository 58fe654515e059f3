//! Metrics by feed, of a limited number of feeds, and of all sources together.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use towpath_store::OpCounts;

use crate::engine::append_counts::AppendCounts;
use crate::engine::{Engine, Feed};
use crate::source::metrics::{SourceCounts, SourceMetrics};

/// Feeds of a scrape, ordered by name.
pub(super) struct FeedCollector {
    feeds: Vec<ScrapedFeed>,
    total: usize,
    sources: SourceTotals,
}

/// A feed, with the state of its source as it was when the scrape began.
struct ScrapedFeed {
    feed: Arc<Feed>,
    source: Option<SourceCounts>,
}

/// Numbers of sources by the outcome of the last attempt.
#[derive(Debug, Default)]
struct SourceTotals {
    up: i64,
    down: i64,
    new: i64,
}

impl fmt::Debug for FeedCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeedCollector").field("total", &self.total).finish_non_exhaustive()
    }
}

impl ScrapedFeed {
    fn id(&self) -> &str {
        self.feed.id().as_str()
    }
}

impl FeedCollector {
    /// Takes the feeds that a client may see, up to `[server] metrics_feeds`, and counts the sources of all.
    pub(super) fn new(engine: &Engine, may_see: impl Fn(&str) -> bool) -> Self {
        let feeds = engine.feeds();
        let total = feeds.len();
        let mut sources = SourceTotals::default();
        for feed in feeds.iter().filter(|feed| feed.config.source.is_some()) {
            match SourceMetrics::is_up(feed) {
                Some(true) => sources.up += 1,
                Some(false) => sources.down += 1,
                None => sources.new += 1,
            }
        }
        // A filter shows the log of another feed.
        let seen = feeds.iter().filter(|feed| !feed.is_filter() && may_see(feed.id().as_str()));
        let scraped = |feed: &Arc<Feed>| ScrapedFeed { source: SourceMetrics::get(feed), feed: feed.clone() };
        let seen = seen.take(engine.server.load().metrics_feeds).map(scraped).collect();
        Self { feeds: seen, total, sources }
    }

    /// Returns true if there are series of single feeds.
    pub(super) fn has_feeds(&self) -> bool {
        !self.feeds.is_empty()
    }

    /// Writes a gauge with a value for each feed that has one.
    fn gauges(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        value: impl Fn(&ScrapedFeed) -> Option<f64>,
    ) -> fmt::Result {
        let mut values = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for scraped in &self.feeds {
            if let Some(value) = value(scraped) {
                add(&mut values, &[("feed", scraped.id())], &ConstGauge::new(value))?;
            }
        }
        Ok(())
    }

    fn logs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.gauges(encoder, ("feed_position", "Last position of the feed's log"), |scraped| {
            Some(float(scraped.feed.head.load(Ordering::Acquire)))
        })?;
        self.gauges(encoder, ("feed_items", "Items that are not deleted"), |scraped| {
            Some(float(scraped.feed.live()))
        })?;
        let help = "Position up to which the log let go of old versions";
        self.gauges(encoder, ("feed_horizon", help), |scraped| {
            Some(scraped.feed.horizon()).filter(|horizon| *horizon > 0).map(float)
        })?;
        let help = "Time of the last change since 1970 in seconds";
        self.gauges(encoder, ("feed_last_change_timestamp_seconds", help), |scraped| {
            scraped.feed.last_append().map(seconds)
        })?;
        let help = "Changes since the start by operation";
        let mut changes = encoder.encode_descriptor("feed_changes", help, None, MetricType::Counter)?;
        for scraped in &self.feeds {
            let OpCounts { puts, patches, deletes } = AppendCounts::of(&scraped.feed).get();
            for (op, count) in [("put", puts), ("patch", patches), ("delete", deletes)] {
                let labels = [("feed", scraped.id()), ("op", op)];
                add(&mut changes, &labels, &ConstCounter::new(count))?;
            }
        }
        Ok(())
    }

    fn sources(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.gauges(
            encoder,
            ("source_up", "1 if the last attempt to read the source succeeded"),
            |scraped| scraped.source.as_ref()?.is_up.map(|is_up| f64::from(u8::from(is_up))),
        )?;
        let help = "Time of the last success since 1970 in seconds";
        self.gauges(encoder, ("source_last_success_timestamp_seconds", help), |scraped| {
            scraped.source.as_ref()?.last_success.map(seconds)
        })?;
        self.gauges(encoder, ("source_interval_seconds", "Interval of the polls in seconds"), |scraped| {
            scraped.feed.config.polled().map(|(source, _)| source.every().as_secs_f64())
        })?;
        let with_counts =
            || self.feeds.iter().filter_map(|scraped| Some((scraped.id(), scraped.source.as_ref()?)));
        let help = "Failed attempts since the start by code";
        let mut failures = encoder.encode_descriptor("source_failures", help, None, MetricType::Counter)?;
        for (feed, SourceCounts { failures: codes, .. }) in with_counts() {
            for (code, count) in codes {
                let labels = [("feed", feed), ("code", code.as_str())];
                add(&mut failures, &labels, &ConstCounter::new(*count))?;
            }
        }
        let help = "Polls since the start";
        let mut polls = encoder.encode_descriptor("source_polls", help, None, MetricType::Counter)?;
        for (feed, counts) in with_counts() {
            add(&mut polls, &[("feed", feed)], &ConstCounter::new(counts.polls))?;
        }
        let help = "Time of the polls since the start in seconds";
        let mut times = encoder.encode_descriptor("source_poll_seconds", help, None, MetricType::Counter)?;
        for (feed, counts) in with_counts() {
            add(&mut times, &[("feed", feed)], &ConstCounter::new(counts.poll_time.as_secs_f64()))?;
        }
        Ok(())
    }
}

impl Collector for FeedCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let total = ConstGauge::new(i64::try_from(self.total).unwrap_or(i64::MAX));
        total.encode(encoder.encode_descriptor(
            "feeds",
            "Feeds that are served",
            None,
            MetricType::Gauge,
        )?)?;
        let SourceTotals { up, down, new } = self.sources;
        let help = "Sources by the outcome of the last attempt";
        let mut sources = encoder.encode_descriptor("sources", help, None, MetricType::Gauge)?;
        for (state, count) in [("up", up), ("down", down), ("new", new)] {
            add(&mut sources, &[("state", state)], &ConstGauge::new(count))?;
        }
        if self.feeds.is_empty() {
            return Ok(());
        }
        self.logs(&mut encoder)?;
        self.sources(&mut encoder)
    }
}

fn add<const N: usize>(
    encoder: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    value: &impl EncodeMetric,
) -> fmt::Result {
    value.encode(encoder.encode_family(labels)?)
}

fn seconds(at: Timestamp) -> f64 {
    at.as_duration().as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus' values are floats")]
fn float(value: u64) -> f64 {
    value as f64
}
