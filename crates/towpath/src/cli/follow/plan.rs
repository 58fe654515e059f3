//! Plan of a follow: its protocol, URL and saved state, or the feeds of a fleet.

use std::time::Duration;

use serde_json::Value;
use towpath_client::state_file::SavedFollow;
use towpath_client::{
    Fetcher, FirstAttempt, FirstFailure, FollowPace, FollowSummary, FollowerConfig, Offer, Output, Protocol,
    discover, discover_pushed, drive, drive_with_calls, follower, listen, pushed_follower,
};
use towpath_proto::FeedId;
use towpath_proto::follow::{Backoff, FollowMode, StartFrom};
use url::Url;

use super::args::FollowArgs;
use crate::cli::error::CliError;
use crate::cli::feed_list;
use crate::cli::feed_url::listen_address;
use crate::cli::terminal::message;
use crate::stop::Stop;

/// Waits between attempts to find what a feed offers.
const DISCOVERY: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(5 * 60));
/// Longest `Retry-After` that is heard then.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);

/// Protocol, URL and saved state of a follow.
pub(super) struct FollowPlan {
    pub(super) protocol: Protocol,
    pub(super) url: String,
    /// The feed's own name, if its description tells it.
    pub(super) name: Option<FeedId>,
    pub(super) state: Option<Value>,
    /// Keys of finished changes after that state.
    pub(super) acknowledged: Vec<String>,
}

impl FollowPlan {
    fn config(&self, args: &FollowArgs) -> FollowerConfig {
        FollowerConfig {
            url: self.url.clone(),
            from: args.from.clone(),
            name: self.name.clone(),
            fixed_name: None,
            state: self.state.clone(),
            mode: args.mode(),
            every: args.every,
            limits: args.limits.limits(),
            large_folder: args.large_content.clone(),
        }
    }
}

/// Chooses the protocol: the saved state's, else the requested one, else the one that the feed offers and
/// that keeps the strongest promise with the least delay.
pub(super) async fn choose(
    args: &FollowArgs,
    feed: &Url,
    fetcher: &Fetcher,
    saved: Option<SavedFollow>,
) -> Result<FollowPlan, CliError> {
    if let Some(saved) = saved {
        let (protocol, url) = (saved.protocol, saved.follows);
        let SavedFollow { state, acknowledged, .. } = saved;
        return Ok(FollowPlan { protocol, url, name: None, state, acknowledged });
    }
    let offer = match args.protocol.0 {
        Some(_) => None,
        None => find_offer(args, feed, fetcher).await?,
    };
    let (protocol, url, name) = match offer {
        Some(offer) => {
            let text = format!("following {} by {}, because {}", offer.url, offer.protocol, offer.why);
            eprintln!("towpath: {}", message(&text));
            (offer.protocol, offer.url, offer.feed)
        }
        // A hub may push what discovery does not know, such as an empty Smart Feed.
        None => (args.protocol.0.unwrap_or(Protocol::Smart), feed.to_string(), None),
    };
    Ok(FollowPlan { protocol, url, name, state: None, acknowledged: Vec::new() })
}

/// Finds what a feed offers. Without `--once`, failures that may pass are told and tried again: at a boot, the publisher
/// may come later.
async fn find_offer(args: &FollowArgs, feed: &Url, fetcher: &Fetcher) -> Result<Option<Offer>, CliError> {
    let pace = if args.every.is_some() { FollowPace::Polled } else { FollowPace::Held };
    let mut failures = 0;
    loop {
        let found = match args.push {
            true => discover_pushed(fetcher, feed.as_str()).await,
            false => discover(fetcher, feed.as_str(), pace).await.map(Some),
        };
        let error = match found {
            Err(error) if args.mode() == FollowMode::Continuous && error.may_pass() => error,
            found => return Ok(found?),
        };
        failures += 1;
        let asked = error.retry_after();
        let wait = DISCOVERY.jittered_or_retry_after(failures, asked, LONGEST_ASKED, fastrand::u64(..));
        let text = format!("{error}; trying again in {:.1} seconds", wait.as_secs_f64());
        eprintln!("towpath: {}", message(&text));
        tokio::time::sleep(wait).await;
    }
}

/// Runs the follower of a plan into the output that is made for it.
pub(super) async fn follow_plan<O: Output>(
    args: &FollowArgs,
    feed: &Url,
    plan: FollowPlan,
    fetcher: &Fetcher,
    stop: &Stop,
    mut output: impl FnMut(&FollowPlan) -> Result<O, CliError>,
) -> Result<Result<FollowSummary, O::Error>, CliError> {
    let mut out = output(&plan)?;
    if let Some(callback) = &args.callback {
        let (mut follower, key) = pushed_follower(plan.protocol, plan.config(args), callback.as_str())?;
        let calls = listen(args.callback_listen.unwrap_or_else(|| listen_address(callback)), key).await?;
        return Ok(drive_with_calls(follower.as_mut(), fetcher, &mut out, stop, calls).await);
    }
    // Only a protocol that the user named may not be the URL's own. Discovery judges the response itself.
    let may_be_page = args.protocol.0.is_some() && plan.state.is_none();
    let first_failure = if may_be_page { FirstFailure::Hold } else { FirstFailure::Report };
    let mut first = FirstAttempt::of(follower(plan.protocol, plan.config(args))?, first_failure);
    let ended = drive(&mut first, fetcher, &mut out, stop).await;
    if !first.filter.has_failed() {
        return Ok(ended);
    }
    let Some(url) = first.filter.find_feed(fetcher, &plan.url, plan.protocol).await else {
        return Ok(drive(&mut first, fetcher, &mut out, stop).await);
    };
    let text = format!("following {url} by {}, which {feed} names", plan.protocol);
    eprintln!("towpath: {}", message(&text));
    let plan = FollowPlan { url, ..plan };
    let mut out = output(&plan)?;
    Ok(drive(follower(plan.protocol, plan.config(args))?.as_mut(), fetcher, &mut out, stop).await)
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
    if args.protocol.0 == Some(Protocol::Sup) {
        let why = "a SUP document only names the feeds that changed: give the feeds' URLs, and their SUP documents are discovered";
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
