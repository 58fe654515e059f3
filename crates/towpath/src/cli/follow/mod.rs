//! `towpath follow`: prints the changes of one feed or many as lines of JSON, and nothing else, to standard output.

pub(super) mod args;
pub(super) mod exit;

use std::collections::HashMap;
use std::io::Stdout;
use std::sync::Arc;

use serde_json::Value;
use towpath_client::fleet::{FleetOptions, follow_fleet};
use towpath_client::{
    Fetcher, FirstAttempt, FollowPace, FollowerConfig, Protocol, discover, drive, drive_with_calls, follower,
    listen, pushed_follower,
};
use towpath_proto::follow::StartFrom;
use url::Url;

use super::error::{CliError, Exit};
use super::feed_list;
use super::feed_url::{is_node, listen_address};
use super::fleet_lines::{FleetLines, FleetStates};
use super::lines::{Lines, LinesError};
use super::logging::log_to_stderr;
use super::node::follow_node;
use super::state_file::{self, StateFile};
use super::state_log::StateLog;
use super::terminal::plain;
use crate::stop::{self, Stop};
use args::FollowArgs;
use exit::{exit, fleet_exit};

/// Follows feeds until stopped, or with `--once` until they have caught up.
pub(crate) async fn follow(args: FollowArgs) -> Result<Exit, CliError> {
    log_to_stderr();
    let stop = stop::on_signal();
    match (&args.feeds, args.urls.as_slice()) {
        (None, [url]) if is_node(url) => {
            args.token.refuse_for_nodes()?;
            follow_node(&args, url, &stop).await
        }
        (None, [url]) => follow_one(&args, url, &stop).await,
        // A node needs an account and a connection of its own, which a fleet has no place for.
        (_, urls) if urls.iter().any(is_node) => {
            Err(CliError::usage("an xmpp: URL cannot be combined with other feeds"))
        }
        _ => follow_many(args, &stop).await,
    }
}

/// Follows one feed by HTTP.
async fn follow_one(args: &FollowArgs, feed: &Url, stop: &Stop) -> Result<Exit, CliError> {
    let fetcher = args.token.fetcher([feed])?;
    let plan = choose(args, feed, &fetcher).await?;
    let mut lines = output(args, feed, &plan)?;
    let ended = if let Some(callback) = &args.callback {
        if plan.protocol != Protocol::Smart {
            return Err(CliError::usage("--push is for Smart Feeds; the saved state is of another protocol"));
        }
        let (mut follower, key) = pushed_follower(plan.config(args), callback.as_str())?;
        let calls = listen(args.callback_listen.unwrap_or_else(|| listen_address(callback)), key).await?;
        drive_with_calls(&mut follower, &fetcher, &mut lines, stop, calls).await
    } else {
        // Only a protocol that the user named may not be the URL's own. Discovery judges the response itself.
        let is_open = args.protocol.0.is_some() && plan.state.is_none();
        let mut first = FirstAttempt::new(follower(plan.protocol, plan.config(args))?, is_open);
        let ended = drive(&mut first, &fetcher, &mut lines, stop).await;
        if !first.has_failed() {
            ended
        } else if let Some(url) = first.find_feed(&fetcher, &plan.url, plan.protocol).await {
            eprintln!(
                "towpath: {}",
                plain(&format!("following {url} by {}, which {feed} names", plan.protocol))
            );
            let plan = FollowPlan { url, ..plan };
            let mut lines = output(args, feed, &plan)?;
            drive(follower(plan.protocol, plan.config(args))?.as_mut(), &fetcher, &mut lines, stop).await
        } else {
            drive(&mut first, &fetcher, &mut lines, stop).await
        }
    };
    match ended {
        Ok(ended) => Ok(exit(&ended, args.once)),
        // The reader of the pipe has exited, as `head` does.
        Err(LinesError::Closed) => Ok(Exit::Failed),
        Err(e) => Err(CliError::failed(e.to_string())),
    }
}

/// Opens the output. Before the first request, so that an unwritable state file fails at once.
fn output(args: &FollowArgs, feed: &Url, plan: &FollowPlan) -> Result<Lines<Stdout>, CliError> {
    let state_file = match &args.state {
        Some(path) => Some(StateFile::open(path, feed, plan.protocol, &plan.url)?),
        None => None,
    };
    Ok(Lines::new(std::io::stdout(), state_file))
}

/// Follows several feeds at once.
async fn follow_many(args: FollowArgs, stop: &Stop) -> Result<Exit, CliError> {
    if args.push {
        return Err(CliError::usage("--push is for a single feed: each feed needs its own callback"));
    }
    // Cursors are opaque and belong to one feed.
    if let StartFrom::Position(position) = &args.from {
        let why = format!(
            "--from {position:?} is a position of a single feed; several feeds start at beginning, now or a time"
        );
        return Err(CliError::usage(why));
    }
    if args.protocol.0 == Some(Protocol::Sup) {
        let why = "a SUP document only names the feeds that changed: give the feeds' URLs, and their SUP documents are discovered";
        return Err(CliError::usage(why));
    }
    let mut feeds = args.urls;
    if let Some(list) = &args.feeds {
        feeds.extend(feed_list::read(list)?);
    }
    let (feeds, duplicates) = feed_list::without_duplicates(feeds);
    duplicates.iter().for_each(|url| eprintln!("towpath: warning: {url} is listed twice and followed once"));
    let (states, schedule) = match &args.state {
        Some(path) => {
            let log = StateLog::open(path, args.protocol.0)?;
            let schedule = log.load_schedule()?;
            (FleetStates::Log(log), schedule)
        }
        None => (FleetStates::Memory(HashMap::new()), None),
    };
    let defaults = FleetOptions::default();
    let options = FleetOptions {
        protocol: args.protocol.0,
        from: args.from,
        once: args.once,
        every: args.every.unwrap_or(defaults.every),
        schedule,
        clock: defaults.clock,
    };
    let fetcher = args.token.fetcher(&feeds)?;
    let output = Arc::new(FleetLines::new(std::io::stdout(), states));
    let feeds: Vec<Arc<str>> = feeds.into_iter().map(|url| url.as_str().into()).collect();
    match follow_fleet(feeds, output, &fetcher, options, stop).await {
        Ok(summary) => Ok(fleet_exit(&summary, args.once)),
        Err(error) if matches!(*error, LinesError::Closed) => Ok(Exit::Failed),
        Err(error) => Err(CliError::failed(error.to_string())),
    }
}

/// Protocol, URL and saved state of a follow.
struct FollowPlan {
    protocol: Protocol,
    url: String,
    state: Option<Value>,
}

impl FollowPlan {
    fn config(&self, args: &FollowArgs) -> FollowerConfig {
        FollowerConfig {
            url: self.url.clone(),
            from: args.from.clone(),
            state: self.state.clone(),
            once: args.once,
            every: args.every,
        }
    }
}

/// Chooses the protocol: the saved state's, else the requested one, else the one that the feed offers and
/// that keeps the strongest promise with the least delay.
async fn choose(args: &FollowArgs, feed: &Url, fetcher: &Fetcher) -> Result<FollowPlan, CliError> {
    // Only Smart Feeds have a hub here, so --push implies the protocol.
    let requested = args.protocol.0.or(args.push.then_some(Protocol::Smart));
    let saved = match &args.state {
        Some(path) => state_file::load(path, feed, requested)?,
        None => None,
    };
    if let Some(saved) = saved {
        return Ok(FollowPlan { protocol: saved.protocol, url: saved.follows, state: Some(saved.state) });
    }
    let (protocol, url) = match requested {
        Some(protocol) => (protocol, feed.to_string()),
        None => {
            let pace = if args.every.is_some() { FollowPace::Polled } else { FollowPace::Held };
            let offer = discover(fetcher, feed.as_str(), pace).await?;
            let text = format!("following {} by {}, because {}", offer.url, offer.protocol, offer.why);
            eprintln!("towpath: {}", plain(&text));
            (offer.protocol, offer.url)
        }
    };
    Ok(FollowPlan { protocol, url, state: None })
}
