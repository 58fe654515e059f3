//! Following nodes over XMPP, and checking them.

mod connect;
mod line;
mod login;

use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use towpath_proto::follow::{Exchange as _, FollowError, StartFrom};
use towpath_proto::push::xmpp::check::NodeChecker;
use towpath_proto::push::xmpp::follow::NodeFollower;
use towpath_proto::push::xmpp::jid;
use towpath_proto::push::xmpp::uri::NodeUri;

use super::drive::{Ended, Hand, Output};
use crate::stop::{Stop, stopped};
use line::Line;
use login::Login;

/// Whom to log in as.
#[derive(Clone)]
pub struct Account {
    /// Its address, with a resource or without.
    pub jid: String,
    /// Its password.
    pub password: String,
    /// Where its server is, as `host:port`; the address's own host, port 5222, where absent.
    pub server: Option<String>,
}

impl std::fmt::Debug for Account {
    /// Without the password, which is nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("jid", &self.jid).finish_non_exhaustive()
    }
}

impl Account {
    /// A follower of a node that logs in as this account.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] for what is no account, and for a state of another node.
    pub fn follower(
        &self,
        uri: &NodeUri,
        from: &StartFrom,
        state: Option<Value>,
        once: bool,
    ) -> Result<NodeFollower, FollowError> {
        let usage = || FollowError::Usage(format!("{:?} is not an account, as me@example.com", self.jid));
        let own = jid::normalised(&self.jid).ok_or_else(usage)?;
        let user = jid::local(&own).ok_or_else(usage)?;
        let login = Box::new(Login::new(user, &self.password));
        NodeFollower::new(uri, from, state, once, &own, login)
    }

    /// A check of a node that logs in as this account.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] for what is no account.
    pub fn checker(&self, uri: &NodeUri) -> Result<NodeChecker, FollowError> {
        let user = jid::local(&self.jid).unwrap_or_default().to_lowercase();
        NodeChecker::new(uri, &self.jid, Box::new(Login::new(&user, &self.password)))
    }

    fn server(&self) -> String {
        self.server.clone().unwrap_or_else(|| format!("{}:5222", jid::domain(&self.jid)))
    }
}

/// Drives a follower of a node until it is finished, `stop` says so, or the output refuses.
///
/// # Errors
///
/// The output's.
pub async fn drive_node<O: Output>(
    follower: &mut NodeFollower,
    account: &Account,
    output: &mut O,
    stop: &Stop,
) -> Result<Ended, O::Error> {
    let mut hand = Hand::new(output, stop);
    let mut line = Line::new(account);
    while !*stop.borrow() {
        tokio::select! {
            () = line.settle(follower) => {}
            () = stopped(stop) => break,
        }
        hand.take_events(follower).await?;
        if follower.is_finished() {
            break;
        }
        let due = hand.due();
        tokio::select! {
            () = line.wait(follower) => {}
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => hand.deliver().await?,
            () = stopped(stop) => {}
        }
    }
    let finished = follower.is_finished();
    hand.deliver().await?;
    line.close(follower).await;
    Ok(hand.ended(!finished && *stop.borrow()))
}

/// Drives a check of a node until it is finished or `stop` says so; says whether it is finished.
pub async fn drive_node_check(check: &mut NodeChecker, account: &Account, stop: &Stop) -> bool {
    let mut line = Line::new(account);
    while !*stop.borrow() {
        tokio::select! {
            () = line.settle(check) => {}
            () = stopped(stop) => break,
        }
        if check.is_finished() {
            return true;
        }
        tokio::select! {
            () = line.wait(check) => {}
            () = stopped(stop) => {}
        }
    }
    false
}
