//! `towpath follow … --into DEST` and `--ack`: follows that end in a sink, which keeps the position.

use std::path::Path;
use std::sync::Arc;

use towpath_client::fleet::follow_fleet;
use towpath_client::sink::{
    DeadLetterFile, FleetObserver, FleetSink, FollowObserver, OnRefusedItem, SinkFailure, SinkOpener,
    SinkOptions, SinkOutput, SinkQueue, SinkStateFile, SinkWriter,
};
use towpath_client::{FollowNotice, FollowRoute, Offer, Sink};
use towpath_sinks::open_with_state;
use towpath_sinks::stdout::StdoutSink;
use url::Url;

use super::args::FollowArgs;
use super::exit::{FollowEnd, fleet_exit, stopped_early};
use super::plan::{find_route, fleet_options, follow_route, many_feeds};
use super::progress::SinkProgress;
use crate::cli::error::{CliError, Exit};
use crate::cli::feed_url::is_node;
use crate::cli::lines::{located_text, notice_text};
use crate::cli::node::follow_node_into;
use crate::cli::terminal::{message, visible_json};
use crate::stop::{Stop, unless_stopped};

/// File of refused items without a state file beside which it could be.
const REFUSED: &str = "towpath.refused.ndjson";

/// Follows feeds into a sink until stopped, or with `--once` until they have caught up.
pub(super) async fn follow_into(args: FollowArgs, stop: &Stop) -> Result<Exit, CliError> {
    let sink = open_sink(&args)?;
    let progress = Arc::new(SinkProgress::start(args.into.is_some()));
    let writer = SinkWriter::new(sink, options(&args), progress.clone(), stop.clone());
    let queue = SinkQueue::start(writer);
    let opener = queue.opener();
    let failing = queue.opener();
    let following = async {
        match (&args.feeds, args.urls.as_slice()) {
            (None, [url]) if !args.is_by_sup() => follow_one(&args, url, opener, &progress, stop).await,
            _ => follow_many(args, opener, progress.clone(), stop).await,
        }
    };
    let followed = tokio::select! {
        followed = following => followed,
        // The destination may refuse for good while nothing is written to it. `finish_within` says why.
        _ = failing.failed() => Ok(FollowEnd::SinkEnded),
    };
    // The queue ends with its last opener.
    drop(failing);
    let finished = queue.finish_within(stop).await;
    progress.finish();
    match (followed?, finished) {
        (_, Err(SinkFailure::Stopped(why))) => {
            eprintln!("towpath: {}", message(&format!("stopped before all changes were applied: {why}")));
            Ok(Exit::Failed)
        }
        // The failure of the sink also ended the follow.
        (_, Err(error)) => Err(CliError::failed(error.to_string())),
        (FollowEnd::Exit(Exit::Done), Ok(())) if progress.has_refused() => Ok(Exit::Incomplete),
        (FollowEnd::Exit(exit), Ok(())) => Ok(exit),
        (FollowEnd::SinkEnded, Ok(())) => Err(CliError::failed(SinkFailure::Ended.to_string())),
    }
}

fn open_sink(args: &FollowArgs) -> Result<Box<dyn Sink>, CliError> {
    let Some(destination) = &args.into else {
        let path = args.state.as_deref().unwrap_or(Path::new(""));
        let file = SinkStateFile::open("stdout", path).map_err(|e| CliError::usage(e.to_string()))?;
        return Ok(Box::new(StdoutSink::new(file, visible_json)));
    };
    let sink = open_with_state(destination, args.state.as_deref());
    let sink = sink.map_err(|error| CliError::usage(error.to_string()))?;
    if !sink.keeps_checkpoint() {
        eprintln!(
            "towpath: warning: {} keeps no position; with --state FILE the next start continues",
            message(&destination.to_string())
        );
    }
    Ok(sink)
}

fn options(args: &FollowArgs) -> SinkOptions {
    let file = args.state.as_deref().map_or_else(|| DeadLetterFile::new(REFUSED), DeadLetterFile::beside);
    let on_refused_item =
        if args.stop_on_refused_item { OnRefusedItem::Stop } else { OnRefusedItem::SetAside };
    SinkOptions::default().with_on_refused_item(on_refused_item).with_dead_letters(file)
}

/// Follows one feed into the sink.
async fn follow_one(
    args: &FollowArgs,
    feed: &Url,
    opener: SinkOpener,
    progress: &Arc<SinkProgress>,
    stop: &Stop,
) -> Result<FollowEnd, CliError> {
    let source: Arc<str> = feed.as_str().into();
    let held = match opener.open_route(&source).await {
        Ok(held) => held,
        Err(error @ SinkFailure::Refused(_)) => return Err(CliError::failed(error.to_string())),
        Err(_) => return Ok(FollowEnd::SinkEnded),
    };
    let observer = CliFollowObserver(progress.clone());
    if is_node(feed) {
        args.headers.refuse_for_nodes()?;
        let output = |route: &FollowRoute| SinkOutput::new(opener, source, route, observer);
        return follow_node_into(args, feed, held, output, stop).await;
    }
    let fetcher = args.headers.fetcher([feed])?;
    let Some(route) = unless_stopped(stop, find_route(args, feed, &fetcher, held)).await else {
        return Ok(FollowEnd::Exit(stopped_early(args.mode())));
    };
    let route = route?;
    let output = SinkOutput::new(opener, source, &route, observer);
    let summary = follow_route(args, route, &fetcher, stop, output).await?;
    Ok(FollowEnd::of(summary, args.mode()))
}

/// Follows several feeds into the sink.
async fn follow_many(
    args: FollowArgs,
    opener: SinkOpener,
    progress: Arc<SinkProgress>,
    stop: &Stop,
) -> Result<FollowEnd, CliError> {
    if args.urls.iter().any(is_node) {
        return Err(CliError::usage("an xmpp: URL cannot be combined with other feeds"));
    }
    let feeds = many_feeds(&args)?;
    let mode = args.mode();
    let options = fleet_options(&args);
    let fetcher = args.headers.fetcher(&feeds)?;
    let feeds: Vec<Arc<str>> = feeds.into_iter().map(|url| url.as_str().into()).collect();
    let output = Arc::new(FleetSink::new(opener, CliFollowObserver(progress)));
    let summary = follow_fleet(feeds, output, &fetcher, options, stop).await;
    Ok(summary.map_or(FollowEnd::SinkEnded, |summary| FollowEnd::Exit(fleet_exit(&summary, mode))))
}

/// Prints the messages of follows beside the progress bar.
pub(crate) struct CliFollowObserver(Arc<SinkProgress>);

impl FollowObserver for CliFollowObserver {
    fn notice(&mut self, notice: FollowNotice) {
        self.0.print(&notice_text(&notice));
    }

    fn located(&mut self, route: &FollowRoute, page: &str) {
        self.0.print(&located_text(route, page));
    }

    fn progress(&mut self, text: &str) {
        self.0.describe(text);
    }

    fn caught_up(&mut self) {
        self.0.finish();
    }
}

impl FleetObserver for CliFollowObserver {
    fn notice(&self, feed: &str, notice: FollowNotice) {
        let text = notice_text(&notice);
        // Most messages name the requested URL, which may differ from the feed's.
        let name = if feed.is_empty() || text.contains(feed) { String::new() } else { format!("{feed}: ") };
        self.0.print(&format!("{name}{text}"));
    }

    fn discovered(&self, feed: &str, offer: &Offer) {
        let place = if offer.url == feed { String::new() } else { format!(" at {}", offer.url) };
        self.0.print(&format!("following {feed}{place} by {}, because {}", offer.protocol, offer.why));
    }
}
