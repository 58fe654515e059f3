//! `towpath follow xmpp:…` and `towpath check xmpp:…`: an XMPP node, with an account of any XMPP server.

use serde_json::Value;
use towpath_client::progress::FollowProgress;
use towpath_client::sink::SinkFailure;
use towpath_client::state_file::{self, StateFile};
use towpath_client::xmpp::{Account, drive_node, drive_node_check};
use towpath_client::{FetchOptions, Fetcher, FollowRoute, Output, Protocol, content_folder};
use towpath_proto::follow::{Checker as _, ReadLimits};
use towpath_proto::push::xmpp::follow::NodeFollower;
use towpath_proto::push::xmpp::jid;
use towpath_proto::push::xmpp::uri::NodeUri;
use towpath_proto::report::Report;
use url::Url;

use super::account::AccountArgs;
use super::error::{CliError, Exit};
use super::follow::args::FollowArgs;
use super::follow::exit::{FollowEnd, exit};
use super::lines::{Lines, LinesError};
use crate::stop::Stop;

/// Follows a node until stopped, or with `--once` until it has caught up.
pub(super) async fn follow_node(args: &FollowArgs, url: &Url, stop: &Stop) -> Result<Exit, CliError> {
    let protocol = Protocol::Smart;
    let (uri, account) = node_account(args, url)?;
    let (saved, state_file) = match &args.state {
        Some(path) => {
            let saved = state_file::load(path, url, Some(protocol))?;
            let follows = uri.to_string();
            (saved, Some(StateFile::open(path, url, protocol, &follows)?))
        }
        None => (None, None),
    };
    let progress = saved.as_ref().map_or_else(FollowProgress::default, |saved| {
        FollowProgress::resume(saved.state.clone(), &saved.acknowledged)
    });
    let mut follower = follower(args, &uri, &account, saved.and_then(|saved| saved.state))?;
    let mut lines = Lines::new(std::io::stdout(), state_file, progress);
    let fetcher = fetcher(&uri, &account)?;
    match drive_node(&mut follower, &account, &fetcher, &mut lines, stop).await {
        Ok(summary) => Ok(exit(&summary, args.mode())),
        // The reader of the pipe has exited, as `head` does.
        Err(LinesError::Closed) => Ok(Exit::Failed),
        Err(e) => Err(CliError::failed(e.to_string())),
    }
}

/// Follows a node into the output that is made for it.
pub(super) async fn follow_node_into<O: Output<Error = SinkFailure>>(
    args: &FollowArgs,
    url: &Url,
    held: Option<FollowRoute>,
    output: impl FnOnce(&FollowRoute) -> O,
    stop: &Stop,
) -> Result<FollowEnd, CliError> {
    let (uri, account) = node_account(args, url)?;
    let state = held.and_then(|held| held.state);
    let mut output = output(&FollowRoute::held(Protocol::Smart, uri.to_string(), state.clone()));
    let mut follower = follower(args, &uri, &account, state)?;
    let fetcher = fetcher(&uri, &account)?;
    let summary = drive_node(&mut follower, &account, &fetcher, &mut output, stop).await;
    Ok(FollowEnd::of(summary, args.mode()))
}

/// Creates the follower of a node, within the limits of the arguments.
fn follower(
    args: &FollowArgs,
    uri: &NodeUri,
    account: &Account,
    state: Option<Value>,
) -> Result<NodeFollower, CliError> {
    let follower = account.follower(uri, &args.from, state, args.mode())?;
    let limits = args.limits.limits();
    let folder = args.large_content.as_deref().map(|base| content_folder(base, limits, args.mode()));
    Ok(follower.within(limits).with_folder(folder))
}

/// Creates the fetcher of files that a node's items name. The user named the domain of the service and the account's
/// server, so their private networks are open.
fn fetcher(uri: &NodeUri, account: &Account) -> Result<Fetcher, CliError> {
    let hosts = [Some(jid::domain(&uri.service)), account.server.as_deref()];
    let named: Vec<String> = hosts.into_iter().flatten().map(|host| format!("https://{host}/")).collect();
    Ok(Fetcher::new(FetchOptions::default())?.with_named(named.iter().map(String::as_str)))
}

/// Returns the node and the account to follow it with.
fn node_account(args: &FollowArgs, url: &Url) -> Result<(NodeUri, Account), CliError> {
    let uri = node_uri(url)?;
    let account = args.account.account()?;
    if args.protocol.0.is_some_and(|requested| requested != Protocol::Smart) || args.push {
        return Err(CliError::usage(
            "an xmpp: URL is a Smart Feed that pushes by itself: leave out --protocol and --push",
        ));
    }
    Ok((uri, account))
}

/// Parses the URI of a node.
fn node_uri(url: &Url) -> Result<NodeUri, CliError> {
    NodeUri::parse(url.as_str()).map_err(|e| CliError::usage(format!("{url}: {e}")))
}

/// Checks a node; the flag says whether the check is complete.
pub(super) async fn check_node(
    url: &Url,
    account: &AccountArgs,
    limits: ReadLimits,
    stop: &Stop,
) -> Result<(Report, bool), CliError> {
    let (uri, account) = (node_uri(url)?, account.account()?);
    let mut checker = account.checker(&uri)?.within(limits);
    let finished = drive_node_check(&mut checker, &account, stop).await;
    match checker.failure() {
        // A login that failed is no finding about the node.
        Some(why) => Err(CliError::failed(why)),
        None => Ok((checker.report().clone(), finished)),
    }
}
