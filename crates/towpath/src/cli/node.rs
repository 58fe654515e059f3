//! `towpath follow xmpp:…` and `towpath check xmpp:…`: an XMPP node, with an account of any XMPP server.

use towpath_client::Protocol;
use towpath_client::xmpp::{drive_node, drive_node_check};
use towpath_proto::follow::Checker as _;
use towpath_proto::push::xmpp::uri::NodeUri;
use towpath_proto::report::Report;
use url::Url;

use super::account::AccountArgs;
use super::error::{CliError, Exit};
use super::follow::args::FollowArgs;
use super::follow::exit::exit;
use super::lines::{Lines, LinesError};
use super::state_file::{self, StateFile};
use crate::stop::Stop;

/// Follows a node until stopped, or with `--once` until it has caught up.
pub(super) async fn follow_node(args: &FollowArgs, url: &Url, stop: &Stop) -> Result<Exit, CliError> {
    let uri = node_uri(url)?;
    let account = args.account.account()?;
    let protocol = Protocol::Smart;
    if args.protocol.0.is_some_and(|requested| requested != protocol) || args.push {
        return Err(CliError::usage(
            "an xmpp: URL is a Smart Feed that pushes by itself: leave out --protocol and --push",
        ));
    }
    let (saved, state_file) = match &args.state {
        Some(path) => {
            let saved = state_file::load(path, url, Some(protocol))?;
            let follows = uri.to_string();
            (saved, Some(StateFile::open(path, url, protocol, &follows)?))
        }
        None => (None, None),
    };
    let mut follower = account.follower(&uri, &args.from, saved.map(|saved| saved.state), args.once)?;
    let mut lines = Lines::new(std::io::stdout(), state_file);
    match drive_node(&mut follower, &account, &mut lines, stop).await {
        Ok(summary) => Ok(exit(&summary, args.once)),
        // The reader of the pipe has exited, as `head` does.
        Err(LinesError::Closed) => Ok(Exit::Failed),
        Err(e) => Err(CliError::failed(e.to_string())),
    }
}

/// Parses the URI of a node.
fn node_uri(url: &Url) -> Result<NodeUri, CliError> {
    NodeUri::parse(url.as_str()).map_err(|e| CliError::usage(format!("{url}: {e}")))
}

/// Checks a node; the flag says whether the check is complete.
pub(super) async fn check_node(
    url: &Url,
    account: &AccountArgs,
    stop: &Stop,
) -> Result<(Report, bool), CliError> {
    let (uri, account) = (node_uri(url)?, account.account()?);
    let mut checker = account.checker(&uri)?;
    let finished = drive_node_check(&mut checker, &account, stop).await;
    match checker.failure() {
        // A login that failed is no finding about the node.
        Some(why) => Err(CliError::failed(why)),
        None => Ok((checker.report().clone(), finished)),
    }
}
