//! `towpath check`: reports a feed's conformance with its protocol's specification, once or on a schedule.

mod args;
mod changes;
mod junit;
mod render;
mod result;
mod sarif;
mod text;
mod watch;

use towpath_client::{
    CallQueue, Fetcher, FollowPace, Protocol, checker, discover, drive_check, hub_checker, listen, locate,
};
use towpath_proto::follow::Checker as _;
use towpath_proto::report::Report;
use url::Url;

pub(super) use self::args::CheckArgs;
use self::render::{render, write_out};
use self::result::CheckResult;
use self::watch::watch;

use super::error::{CliError, Exit};
use super::feed_url::listen_address;
use super::node::check_node;
use super::progress::patiently;
use super::terminal::message;
use crate::stop::{self, unless_stopped};

/// Work that [`patiently`] shows: a check reads all pages of a feed.
const CHECKING: &str = "checking the feed";

/// Checks a feed and prints the report; [`Exit::Failed`] if it violates a MUST.
pub(crate) async fn check(args: CheckArgs) -> Result<Exit, CliError> {
    let stop = stop::on_signal();
    if args.url.scheme() == "xmpp" {
        args.headers.refuse_for_nodes()?;
        if args.watch {
            return Err(CliError::usage("--watch is for feeds over HTTP"));
        }
        let (report, finished) = check_node(&args.url, &args.account, args.limits.limits(), &stop).await?;
        return print(&args, args.url.as_str(), "xmpp", finished.then_some(&report));
    }
    let fetcher = args.headers.fetcher([&args.url])?;
    if let Some(callback) = &args.callback {
        // With a callback the check is about the hub, not about the feed's documents.
        let (mut checker, key) = hub_checker(args.url.as_str(), callback.as_str());
        let calls = listen(args.callback_listen.unwrap_or_else(|| listen_address(callback)), key).await?;
        let finished = patiently(CHECKING, drive_check(&mut checker, &fetcher, &stop, calls)).await;
        return print(&args, args.url.as_str(), "websub", finished.then(|| checker.report()));
    }
    let Some(target) = unless_stopped(&stop, target(&args, &fetcher)).await else {
        return print(&args, args.url.as_str(), "", None);
    };
    let (protocol, url) = target?;
    if args.watch {
        return watch(&args, &fetcher, protocol, &url, &stop).await;
    }
    let mut url = url;
    let mut first = checker(protocol, &url, args.limits.limits())?;
    let driving = drive_check(&mut *first, &fetcher, &stop, CallQueue::none());
    let mut finished = patiently(CHECKING, driving).await;
    if finished && args.protocol.0.is_some() && !first.report().conforms() {
        // Perhaps the user named the feed's page. A feed that conforms costs no request for that.
        let found = unless_stopped(&stop, located(&fetcher, &args.url, protocol)).await;
        if let Some(found) = found.filter(|found| *found != url) {
            (first, url) = (checker(protocol, &found, args.limits.limits())?, found);
            let driving = drive_check(&mut *first, &fetcher, &stop, CallQueue::none());
            finished = patiently(CHECKING, driving).await;
        }
    }
    print(&args, &url, protocol.name(), finished.then(|| first.report()))
}

/// Returns the protocol to check, and its URL.
async fn target(args: &CheckArgs, fetcher: &Fetcher) -> Result<(Protocol, String), CliError> {
    match args.protocol.0 {
        Some(protocol) if args.watch => Ok((protocol, located(fetcher, &args.url, protocol).await)),
        Some(protocol) => Ok((protocol, args.url.to_string())),
        None => {
            let offer = discover(fetcher, args.url.as_str(), FollowPace::Polled).await?;
            let text = format!("checking {} for {}, because {}", offer.url, offer.protocol, offer.why);
            eprintln!("towpath: {}", message(&text));
            Ok((offer.protocol, offer.url))
        }
    }
}

/// Returns the URL of a protocol: the one that the feed's page names, as `follow` finds it, else the feed's own.
async fn located(fetcher: &Fetcher, url: &Url, protocol: Protocol) -> String {
    // A feed is checked for how it announces its SUP document.
    if protocol == Protocol::Sup {
        return url.to_string();
    }
    let found = locate(fetcher, url.as_str(), protocol).await.ok().flatten();
    let found = found.unwrap_or_else(|| url.to_string());
    if found != url.as_str() {
        eprintln!("towpath: checking {} for {protocol}", message(&found));
    }
    found
}

/// Prints the report of a complete check.
fn print(args: &CheckArgs, url: &str, protocol: &str, report: Option<&Report>) -> Result<Exit, CliError> {
    let report = report.ok_or_else(|| CliError::failed("the check was stopped before it was complete"))?;
    write_out(&render(args.format, &CheckResult { url, protocol, report })?)?;
    Ok(if report.conforms() { Exit::Done } else { Exit::Failed })
}
