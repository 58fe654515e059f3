//! Metrics by feed, of a limited number of feeds, and of all sources together.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::task::JoinError;
use towpath_store::OpCounts;

use super::exposition::TextFormat;
use super::family::{FamilyKind, FamilyOutput, SeriesValue};
use crate::blocking::blocking;
use crate::engine::append_counts::AppendCounts;
use crate::engine::{Engine, Feed};
use crate::source::metrics::{ScrapedSource, SourceMetrics};

/// Bytes of the lines of a feed, so that growing does not copy megabytes: about eleven lines, of about 60 bytes.
const BYTES: usize = 700;

/// Feeds of a scrape, ordered by name.
pub(super) struct ScrapedFeeds([ScrapedPart; 2]);

/// Part of the feeds of a scrape.
// All that the lines need, side by side: the feeds themselves are spread over the memory, and each metric passes over all.
struct ScrapedPart {
    feeds: Vec<ScrapedFeed>,
    /// Ids of the feeds, one behind the other.
    ids: String,
    totals: FeedTotals,
}

/// A feed and its source as they were when the scrape began.
struct ScrapedFeed {
    /// Range of its id in [`ScrapedPart::ids`].
    id: Range<usize>,
    position: u64,
    items: u64,
    horizon: u64,
    last_append: Option<Timestamp>,
    changes: OpCounts,
    /// Poll interval of its source, if that is polled.
    interval: Option<Duration>,
    source: Option<ScrapedSource>,
}

/// Numbers of all feeds, and of their sources by the outcome of the last attempt.
#[derive(Debug, Default)]
pub(super) struct FeedTotals {
    feeds: usize,
    up: i64,
    down: i64,
    new: i64,
}

impl FeedTotals {
    /// Returns the sums of two parts.
    fn with(&self, other: &Self) -> Self {
        Self {
            feeds: self.feeds + other.feeds,
            up: self.up + other.up,
            down: self.down + other.down,
            new: self.new + other.new,
        }
    }

    fn count_source(&mut self, is_up: Option<bool>) {
        match is_up {
            Some(true) => self.up += 1,
            Some(false) => self.down += 1,
            None => self.new += 1,
        }
    }
}

impl ScrapedFeed {
    fn of(feed: &Feed, ids: &mut String) -> Self {
        let start = ids.len();
        ids.push_str(feed.id().as_str());
        Self {
            id: start..ids.len(),
            position: feed.head.load(Ordering::Acquire),
            items: feed.live(),
            horizon: feed.horizon(),
            last_append: feed.last_append(),
            changes: AppendCounts::of(feed).get(),
            interval: feed.config.polled().map(|(source, _)| source.every()),
            source: SourceMetrics::scraped(feed),
        }
    }
}

/// Takes the feeds that a client may see, up to `[server] metrics_feeds`, and counts all.
///
/// # Errors
///
/// A panic, or the end of the server.
pub(super) async fn scrape(
    engine: &Engine,
    may_see: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> Result<(ScrapedFeeds, FeedTotals), JoinError> {
    let (feeds, limit) = (engine.feeds(), engine.server.load().metrics_feeds);
    let may_see = Arc::new(may_see);
    let part = |range: Range<usize>| {
        let (feeds, may_see) = (feeds.clone(), may_see.clone());
        blocking(move || ScrapedPart::of(feeds.get(range).unwrap_or_default(), limit, &*may_see))
    };
    // On two cores: ten thousand feeds take milliseconds.
    let half = feeds.len() / 2;
    let (first, mut second) = tokio::try_join!(part(0..half), part(half..feeds.len()))?;
    // Each half took up to the limit, as it does not know the other.
    second.feeds.truncate(limit.saturating_sub(first.feeds.len()));
    let totals = first.totals.with(&second.totals);
    Ok((ScrapedFeeds([first, second]), totals))
}

impl ScrapedPart {
    fn of(feeds: &[Arc<Feed>], limit: usize, may_see: impl Fn(&str) -> bool) -> Self {
        let (mut totals, mut ids) =
            (FeedTotals { feeds: feeds.len(), ..FeedTotals::default() }, String::new());
        let mut shown = Vec::with_capacity(limit.min(feeds.len()));
        // In one pass: fetching a feed and its source from memory takes longer than all that is done with them.
        for feed in feeds {
            // A filter shows the log of another feed.
            let is_shown = shown.len() < limit && !feed.is_filter() && may_see(feed.id().as_str());
            let scraped = is_shown.then(|| ScrapedFeed::of(feed, &mut ids));
            if feed.config.source.is_some() {
                totals.count_source(match &scraped {
                    Some(scraped) => scraped.source.as_ref().and_then(|source| source.is_up),
                    None => SourceMetrics::is_up(feed),
                });
            }
            shown.extend(scraped);
        }
        Self { feeds: shown, ids, totals }
    }

    fn id(&self, feed: &ScrapedFeed) -> &str {
        self.ids.get(feed.id.clone()).unwrap_or_default()
    }
}

impl ScrapedFeeds {
    /// Returns all feeds with their ids.
    fn all(&self) -> impl Iterator<Item = (&str, &ScrapedFeed)> {
        self.0.iter().flat_map(|part| part.feeds.iter().map(|feed| (part.id(feed), feed)))
    }

    /// Returns true without series of single feeds.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|part| part.feeds.is_empty())
    }

    /// Writes the series of the feeds' logs.
    pub(super) fn write_logs(&self, format: TextFormat, text: &mut String) {
        if !self.is_empty() {
            self.logs(&mut FamilyOutput { format, text });
        }
    }

    /// Formats the series of the feeds' sources.
    pub(super) fn sources_text(&self, format: TextFormat) -> String {
        let mut text = String::new();
        if !self.is_empty() {
            text.reserve(self.all().count() * BYTES / 2);
            self.sources(&mut FamilyOutput { format, text: &mut text });
        }
        text
    }

    /// Number of bytes that the series of all feeds take at most, roughly.
    pub(super) fn size_hint(&self) -> usize {
        self.all().count() * BYTES
    }

    /// Writes a gauge with a value for each feed that has one.
    fn gauge(
        &self,
        output: &mut FamilyOutput<'_>,
        (name, help): (&'static str, &str),
        value: impl Fn(&ScrapedFeed) -> Option<SeriesValue>,
    ) {
        let mut family = output.begin(FamilyKind::Gauge, name, help);
        for (feed, scraped) in self.all() {
            if let Some(value) = value(scraped) {
                family.add(feed, None, value);
            }
        }
    }

    fn logs(&self, output: &mut FamilyOutput<'_>) {
        self.gauge(output, ("feed_position", "Last position of the feed's log"), |scraped| {
            Some(SeriesValue::Number(scraped.position))
        });
        self.gauge(output, ("feed_items", "Items that are not deleted"), |scraped| {
            Some(SeriesValue::Number(scraped.items))
        });
        let help = "Position up to which the log let go of old versions";
        self.gauge(output, ("feed_horizon", help), |scraped| {
            Some(scraped.horizon).filter(|horizon| *horizon > 0).map(SeriesValue::Number)
        });
        let help = "Time of the last change since 1970 in seconds";
        self.gauge(output, ("feed_last_change_timestamp_seconds", help), |scraped| {
            scraped.last_append.map(SeriesValue::Time)
        });
        let help = "Changes since the start by operation";
        let mut changes = output.begin(FamilyKind::Counter, "feed_changes", help);
        for (feed, scraped) in self.all() {
            let OpCounts { puts, patches, deletes } = scraped.changes;
            for (op, count) in [("put", puts), ("patch", patches), ("delete", deletes)] {
                changes.add(feed, Some(("op", op)), SeriesValue::Number(count));
            }
        }
    }

    fn sources(&self, output: &mut FamilyOutput<'_>) {
        let help = "1 if the last attempt to read the source succeeded";
        self.gauge(output, ("source_up", help), |scraped| {
            scraped.source.as_ref()?.is_up.map(|is_up| SeriesValue::Number(u64::from(is_up)))
        });
        let help = "Time of the last success since 1970 in seconds";
        self.gauge(output, ("source_last_success_timestamp_seconds", help), |scraped| {
            scraped.source.as_ref()?.last_success.map(SeriesValue::Time)
        });
        self.gauge(output, ("source_interval_seconds", "Interval of the polls in seconds"), |scraped| {
            scraped.interval.map(SeriesValue::Duration)
        });
        let with_source = || self.all().filter_map(|(feed, scraped)| Some((feed, scraped.source.as_ref()?)));
        let help = "Failed attempts since the start by code";
        let mut failures = output.begin(FamilyKind::Counter, "source_failures", help);
        for (feed, ScrapedSource { failures: codes, .. }) in with_source() {
            for (code, count) in codes {
                failures.add(feed, Some(("code", code)), SeriesValue::Number(*count));
            }
        }
        let help = "Polls since the start";
        let mut polls = output.begin(FamilyKind::Counter, "source_polls", help);
        for (feed, source) in with_source() {
            polls.add(feed, None, SeriesValue::Number(source.polls));
        }
        let help = "Time of the polls since the start in seconds";
        let mut times = output.begin(FamilyKind::Counter, "source_poll_seconds", help);
        for (feed, source) in with_source() {
            times.add(feed, None, SeriesValue::Duration(source.poll_time));
        }
    }
}

impl Collector for FeedTotals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let total = ConstGauge::new(i64::try_from(self.feeds).unwrap_or(i64::MAX));
        total.encode(encoder.encode_descriptor(
            "feeds",
            "Feeds that are served",
            None,
            MetricType::Gauge,
        )?)?;
        let help = "Sources by the outcome of the last attempt";
        let mut sources = encoder.encode_descriptor("sources", help, None, MetricType::Gauge)?;
        for (state, count) in [("up", self.up), ("down", self.down), ("new", self.new)] {
            ConstGauge::new(count).encode(sources.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }
}
