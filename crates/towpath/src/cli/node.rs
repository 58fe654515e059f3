//! `towpath follow xmpp:…` and `towpath check xmpp:…`: a node, with an account of any XMPP server.

use std::path::PathBuf;

use clap::Args;
use towpath_proto::follow::Checker as _;
use towpath_proto::push::xmpp::uri::NodeUri;
use towpath_proto::report::Report;
use url::Url;

use super::follow::{FollowArgs, exit};
use super::lines::{Lines, LinesError};
use super::state_file::{self, StateFile};
use super::{CliError, Exit};
use crate::client::Protocol;
use crate::client::xmpp::{Account, drive_node, drive_node_check};
use crate::stop::Stop;

/// Whom to log in as.
#[derive(Debug, Args)]
pub(crate) struct AccountArgs {
    /// The account to follow an xmpp: address with, as me@example.com
    #[arg(long, value_name = "JID")]
    jid: Option<String>,
    /// Its password; better in the environment or in a file, where other programs do not see it
    #[arg(long, env = "TOWPATH_XMPP_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    password: Option<String>,
    /// The file that holds its password
    #[arg(long, value_name = "FILE", conflicts_with = "password")]
    password_file: Option<PathBuf>,
    /// Where its server is, if not at the account's host, port 5222
    #[arg(long, value_name = "HOST:PORT")]
    xmpp_server: Option<String>,
}

impl AccountArgs {
    pub(super) fn account(&self) -> Result<Account, CliError> {
        let jid = self.jid.clone().ok_or_else(|| CliError::usage("an xmpp: address needs --jid"))?;
        let password = match (&self.password, &self.password_file) {
            (_, Some(file)) => {
                let text = std::fs::read_to_string(file);
                let text = text.map_err(|e| CliError::usage(format!("{}: {e}", file.display())))?;
                text.trim_end_matches(['\r', '\n']).to_owned()
            }
            (Some(password), None) => password.clone(),
            (None, None) => {
                let how = "an account needs --password, --password-file or TOWPATH_XMPP_PASSWORD";
                return Err(CliError::usage(how));
            }
        };
        Ok(Account { jid, password, server: self.xmpp_server.clone() })
    }
}

/// Follows a node until it is stopped, or with `--once` until its end.
pub(super) async fn follow_node(args: &FollowArgs, url: &Url, stop: &Stop) -> Result<Exit, CliError> {
    let uri = node_uri(url)?;
    let account = args.account.account()?;
    let protocol = Protocol::Smart;
    if args.protocol.0.is_some_and(|asked| asked != protocol) || args.push {
        return Err(CliError::usage("an xmpp: address is of a Smart Feed, which pushes by itself"));
    }
    let (kept, state_file) = match &args.state {
        Some(path) => {
            let kept = state_file::load(path, url, Some(protocol))?;
            let follows = uri.to_string();
            (kept, Some(StateFile::open(path, url, protocol, &follows)?))
        }
        None => (None, None),
    };
    let mut follower = account.follower(&uri, &args.from, kept.map(|kept| kept.state), args.once)?;
    let mut lines = Lines::new(std::io::stdout(), state_file);
    match drive_node(&mut follower, &account, &mut lines, stop).await {
        Ok(ended) => Ok(exit(&ended, args.once)),
        // As every program in a pipe ends whose reader has seen enough.
        Err(LinesError::Closed) => Ok(Exit::Failed),
        Err(e) => Err(CliError::failed(e.to_string())),
    }
}

fn node_uri(url: &Url) -> Result<NodeUri, CliError> {
    NodeUri::parse(url.as_str()).map_err(|e| CliError::usage(format!("{url}: {e}")))
}

/// Checks a node; says whether the check came to its end.
pub(super) async fn check_node(
    url: &Url,
    account: &AccountArgs,
    stop: &Stop,
) -> Result<(Report, bool), CliError> {
    let (uri, account) = (node_uri(url)?, account.account()?);
    let mut checker = account.checker(&uri)?;
    let finished = drive_node_check(&mut checker, &account, stop).await;
    match checker.failure() {
        Some(why) => Err(CliError::failed(why)),
        None => Ok((checker.report().clone(), finished)),
    }
}
