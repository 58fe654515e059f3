//! `/metrics`: the counters of the engine and the requests, and what is looked up for each scrape.

mod cluster;
mod exposition;
mod family;
mod feeds;
mod node;
mod process;
pub(super) mod requests;

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{CACHE_CONTROL, VARY};
use http::{HeaderValue, Request, StatusCode};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::registry::Registry;
use tokio::task::JoinError;

use self::cluster::ClusterCollector;
use self::exposition::TextFormat;
use self::feeds::{FeedTotals, ScrapedFeeds};
use self::node::NodeCollector;
use self::process::ProcessCollector;
use self::requests::RequestMetrics;
use crate::blocking::blocking;
use crate::document::prebuilt::Answer;
use crate::document::respond::whole;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::access::sees_details;
use crate::protocols::sup::Sup;

/// Answers `/metrics`.
///
/// The series of a feed are for those who may read why its source failed: for others its name may be a secret.
pub(super) async fn metrics<B>(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    // Counted when it is asked for: feeds leave the window by time, and no event says so.
    if let Some(Ok(recent)) = Sup::of(engine).recent().map(i64::try_from) {
        engine.metrics.sup_feeds.set(recent);
    }
    engine.refresh_sink_lags().await;
    let may_see = sees_details(&engine.tokens.load(), peer, request);
    let log = engine.store.log_status().await;
    let cluster = ClusterCollector { log, is_failing: engine.log_failure().is_some() };
    let (engine, format) = (engine.clone(), TextFormat::of(request.headers()));
    let internal = |e: JoinError| RouteError::internal(e.to_string());
    let (feeds, totals) = feeds::scrape(&engine, may_see).await.map_err(internal)?;
    let is_private = !feeds.is_empty();
    let feeds = Arc::new(feeds);
    let of_logs = feeds.clone();
    let (logs, sources) = tokio::try_join!(
        blocking(move || text(&engine, format, &of_logs, totals, cluster)),
        blocking(move || feeds.sources_text(format)),
    )
    .map_err(internal)?;
    let text = finished(format, logs, &sources);
    let mut answer = whole(StatusCode::OK, format.media_type(), text);
    answer.headers.append(VARY, HeaderValue::from_static("accept"));
    if is_private {
        answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    }
    Ok(answer)
}

/// Formats all metrics but those of sources.
fn text(
    engine: &Arc<Engine>,
    format: TextFormat,
    feeds: &ScrapedFeeds,
    totals: FeedTotals,
    cluster: ClusterCollector,
) -> String {
    let (mut of_towpath, mut of_process) = (Registry::with_prefix("towpath"), Registry::default());
    of_towpath.register_collector(Box::new(totals));
    of_towpath.register_collector(Box::new(NodeCollector(engine.clone())));
    of_towpath.register_collector(Box::new(cluster));
    of_process.register_collector(Box::new(ProcessCollector));
    let mut text = engine.metrics.text();
    for registry in [RequestMetrics::of(engine).registry(), &of_towpath, &of_process] {
        // Writing to a String cannot fail.
        let _ = encode_registry(&mut text, registry);
    }
    let mut text = format.convert(text);
    // With room for the sources.
    text.reserve(feeds.size_hint());
    feeds.write_logs(format, &mut text);
    text
}

/// Adds the metrics of sources, and the end.
fn finished(format: TextFormat, mut text: String, sources: &str) -> String {
    text.push_str(sources);
    if format == TextFormat::OpenMetrics {
        let _ = encode_eof(&mut text);
    }
    text
}
