//! `towpath follow`: prints the changes of one feed or many as lines of JSON, and nothing else, to standard output; or
//! applies them to a destination.

pub(super) mod args;
pub(super) mod exit;
mod into;
mod plan;
mod progress;

use std::collections::HashMap;
use std::io::Stdout;
use std::sync::Arc;

use tokio::sync::watch;
use towpath_client::FollowRoute;
use towpath_client::fleet::follow_fleet;
use towpath_client::progress::FollowProgress;
use towpath_client::state_file::{self, SavedFollow, StateFile};
use url::Url;

use super::error::{CliError, Exit};
use super::feed_url::is_node;
use super::fleet_lines::{FleetLines, FleetStates};
use super::lines::{Lines, LinesError};
use super::node::follow_node;
use super::state_log::StateLog;
use crate::stop::{self, Stop, unless_stopped};
use args::FollowArgs;
use exit::{exit, fleet_exit, stopped_early};
use plan::{find_route, fleet_options, follow_route, many_feeds};

/// Follows feeds until stopped, or with `--once` until they have caught up.
pub(crate) async fn follow(args: FollowArgs) -> Result<Exit, CliError> {
    let (stopper, stop) = stop::on_signal_or_request();
    if args.stop_with_stdin {
        stop_with_stdin(stopper);
    }
    if args.into.is_some() || args.ack {
        return into::follow_into(args, &stop).await;
    }
    match (&args.feeds, args.urls.as_slice()) {
        (None, [url]) if is_node(url) => {
            args.headers.refuse_for_nodes()?;
            follow_node(&args, url, &stop).await
        }
        (None, [url]) if !args.is_by_sup() => follow_one(&args, url, &stop).await,
        // A node needs an account and a connection of its own, which a fleet has no place for.
        (_, urls) if urls.iter().any(is_node) => {
            Err(CliError::usage("an xmpp: URL cannot be combined with other feeds"))
        }
        _ => follow_many(args, &stop).await,
    }
}

/// Sets the stop signal once standard input ends.
fn stop_with_stdin(stop: Arc<watch::Sender<bool>>) {
    // A thread that nothing waits for: a read of standard input cannot be cancelled.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = stop.send(true);
    });
}

/// Follows one feed by HTTP.
async fn follow_one(args: &FollowArgs, feed: &Url, stop: &Stop) -> Result<Exit, CliError> {
    let fetcher = args.headers.fetcher([feed])?;
    let saved = match &args.state {
        Some(path) => state_file::load(path, feed, args.protocol.0)?,
        None => None,
    };
    let (held, acknowledged) = match saved {
        Some(SavedFollow { protocol, follows, state, acknowledged }) => {
            (Some(FollowRoute::held(protocol, follows, state)), acknowledged)
        }
        None => (None, Vec::new()),
    };
    let Some(route) = unless_stopped(stop, find_route(args, feed, &fetcher, held)).await else {
        return Ok(stopped_early(args.mode()));
    };
    let route = route?;
    let lines = output(args, feed, &route, &acknowledged)?;
    match follow_route(args, route, &fetcher, stop, lines).await? {
        Ok(ended) => Ok(exit(&ended, args.mode())),
        // The reader of the pipe has exited, as `head` does.
        Err(LinesError::Closed) => Ok(Exit::Failed),
        Err(e) => Err(CliError::failed(e.to_string())),
    }
}

/// Opens the output. Before the first request, so that an unwritable state file fails at once.
fn output(
    args: &FollowArgs,
    feed: &Url,
    route: &FollowRoute,
    acknowledged: &[String],
) -> Result<Lines<Stdout>, CliError> {
    let state_file = match &args.state {
        Some(path) => Some(StateFile::open(path, feed, route.protocol, &route.url)?),
        None => None,
    };
    let progress = FollowProgress::resume(route.state.clone(), acknowledged);
    Ok(Lines::new(std::io::stdout(), state_file, progress))
}

/// Follows several feeds at once.
async fn follow_many(args: FollowArgs, stop: &Stop) -> Result<Exit, CliError> {
    let feeds = many_feeds(&args)?;
    let (states, schedule) = match &args.state {
        Some(path) => {
            let log = StateLog::open(path, args.feed_protocol())?;
            let schedule = log.load_schedule()?;
            (FleetStates::Log(log), schedule)
        }
        None => (FleetStates::Memory(HashMap::new()), None),
    };
    let mode = args.mode();
    let options = fleet_options(&args).with_schedule(schedule);
    let fetcher = args.headers.fetcher(&feeds)?;
    let output = Arc::new(FleetLines::new(std::io::stdout(), states));
    let feeds: Vec<Arc<str>> = feeds.into_iter().map(|url| url.as_str().into()).collect();
    match follow_fleet(feeds, output, &fetcher, options, stop).await {
        Ok(summary) => Ok(fleet_exit(&summary, mode)),
        Err(error) if matches!(*error, LinesError::Closed) => Ok(Exit::Failed),
        Err(error) => Err(CliError::failed(error.to_string())),
    }
}
