//! Plan of a follow: its route and options, or the feeds of a fleet.

use std::time::Duration;

use towpath_client::fleet::FleetOptions;
use towpath_client::{
    DiscoverError, Fetcher, FollowPace, FollowRoute, FollowSummary, FollowerOptions, Output, RouteFollower,
    RouteOrigin, RouteRequest, drive_with_calls, listen, pushed_follower,
};
use towpath_proto::follow::{FollowMode, StartFrom};
use url::Url;

use super::args::FollowArgs;
use crate::cli::error::CliError;
use crate::cli::feed_list;
use crate::cli::feed_url::listen_address;
use crate::cli::terminal::message;
use crate::stop::Stop;

/// Returns the options of a follow of several feeds.
pub(super) fn fleet_options(args: &FollowArgs) -> FleetOptions {
    let defaults = FleetOptions::default();
    let every = args.every.unwrap_or(defaults.every);
    defaults
        .with_protocol(args.feed_protocol())
        .with_from(args.from.clone())
        .with_mode(args.mode())
        .with_every(every)
        .with_limits(args.limits.limits())
        .with_large_folder(args.large_content.clone())
}

fn options(args: &FollowArgs) -> FollowerOptions {
    FollowerOptions::default()
        .with_from(args.from.clone())
        .with_mode(args.mode())
        .with_every(args.every)
        .with_limits(args.limits.limits())
        .with_large_folder(args.large_content.clone())
}

/// Finds the route of a feed. Without `--once`, failures that may pass are told and tried again.
pub(super) async fn find_route(
    args: &FollowArgs,
    feed: &Url,
    fetcher: &Fetcher,
    held: Option<FollowRoute>,
) -> Result<FollowRoute, CliError> {
    let pace = if args.every.is_some() { FollowPace::Polled } else { FollowPace::Held };
    let request = RouteRequest::default().with_protocol(args.protocol.0).with_pace(pace).with_push(args.push);
    let route = match args.mode() {
        FollowMode::CatchUp => FollowRoute::find(fetcher, feed.as_str(), held, request).await?,
        FollowMode::Continuous => {
            let failed = |error: &DiscoverError, wait: Duration| {
                let text = format!("{error}; trying again in {:.1} seconds", wait.as_secs_f64());
                eprintln!("towpath: {}", message(&text));
            };
            FollowRoute::find_with_retries(fetcher, feed.as_str(), held, request, failed).await?
        }
    };
    if let RouteOrigin::Discovered(why) = &route.origin {
        let text = format!("following {} by {}, because {why}", route.url, route.protocol);
        eprintln!("towpath: {}", message(&text));
    }
    Ok(route)
}

/// Follows a route into an output.
pub(super) async fn follow_route<O: Output>(
    args: &FollowArgs,
    route: FollowRoute,
    fetcher: &Fetcher,
    stop: &Stop,
    mut output: O,
) -> Result<Result<FollowSummary, O::Error>, CliError> {
    if let Some(callback) = &args.callback {
        let (mut follower, key) = pushed_follower(route, options(args), callback.as_str())?;
        let calls = listen(args.callback_listen.unwrap_or_else(|| listen_address(callback)), key).await?;
        return Ok(drive_with_calls(follower.as_mut(), fetcher, &mut output, stop, calls).await);
    }
    Ok(RouteFollower::new(route, options(args))?.drive(fetcher, &mut output, stop).await)
}

/// Returns the feeds of a fleet, and refuses options that are for a single feed.
pub(super) fn many_feeds(args: &FollowArgs) -> Result<Vec<Url>, CliError> {
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
    let mut feeds = args.urls.clone();
    if let Some(list) = &args.feeds {
        feeds.extend(feed_list::read(list)?);
    }
    let (feeds, duplicates) = feed_list::without_duplicates(feeds);
    for url in duplicates {
        eprintln!("towpath: warning: {} is listed twice and followed once", message(url.as_str()));
    }
    Ok(feeds)
}
