//! Follows and checks publish-subscribe nodes over XMPP.

mod connect;
mod connection;
mod locate;
mod login;

use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use towpath_proto::follow::{Exchange as _, FollowError, FollowMode, StartFrom};
use towpath_proto::push::xmpp::check::NodeChecker;
use towpath_proto::push::xmpp::follow::NodeFollower;
use towpath_proto::push::xmpp::jid;
use towpath_proto::push::xmpp::uri::NodeUri;

use super::clock::SystemClock;
use super::delivery_batch::DeliveryBatch;
use super::drive::{FollowSummary, Output};
use super::fetch::Fetcher;
use super::response_hints::ResponseHints;
use crate::stop::{Stop, stopped};
use connection::XmppConnection;
use locate::NoXmpp;
use login::Login;

/// An XMPP account to log in with.
#[derive(Clone)]
pub struct Account {
    /// Its JID, with or without a resource.
    pub jid: String,
    /// The password.
    pub password: String,
    /// The server as `host:port`; default: those of the SRV records of the JID's domain, or the domain itself at port
    /// 5222.
    pub server: Option<String>,
}

impl std::fmt::Debug for Account {
    /// Omits the password, so that it never reaches a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("jid", &self.jid).finish_non_exhaustive()
    }
}

impl Account {
    /// Creates a follower of a node that logs in with this account.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] for an invalid JID, and for the state of another node.
    pub fn follower(
        &self,
        uri: &NodeUri,
        from: &StartFrom,
        state: Option<Value>,
        mode: FollowMode,
    ) -> Result<NodeFollower, FollowError> {
        let usage = || FollowError::Usage(format!("{:?} is not an account, as me@example.com", self.jid));
        // The server compares our address with those in stanzas in normal form.
        let own = jid::normalised(&self.jid).ok_or_else(usage)?;
        let user = jid::local(&own).ok_or_else(usage)?;
        let login = Box::new(Login::new(user, &self.password));
        NodeFollower::new(uri, from, state, mode, &own, login)
    }

    /// Creates a check of a node that logs in with this account.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] for an invalid JID.
    pub fn checker(&self, uri: &NodeUri) -> Result<NodeChecker, FollowError> {
        let user = jid::local(&self.jid).unwrap_or_default().to_lowercase();
        NodeChecker::new(uri, &self.jid, Box::new(Login::new(&user, &self.password)))
    }

    /// Returns the servers to try, in this order.
    async fn servers(&self) -> Result<Vec<String>, NoXmpp> {
        match &self.server {
            Some(server) => Ok(vec![server.clone()]),
            None => locate::servers(jid::domain(&self.jid)).await,
        }
    }
}

/// Runs a follower of a node until it is finished, the stop signal is set, or the output fails.
///
/// `fetcher` downloads contents that are files. A session that ends during a download is opened again after it.
///
/// # Errors
///
/// Errors of [`Output::deliver`].
pub async fn drive_node<O: Output>(
    follower: &mut NodeFollower,
    account: &Account,
    fetcher: &Fetcher,
    output: &mut O,
    stop: &Stop,
) -> Result<FollowSummary, O::Error> {
    let mut batch = DeliveryBatch::new(output, stop);
    let mut connection = XmppConnection::new(account);
    while !*stop.borrow() {
        tokio::select! {
            // A connect may take 30 s; a stop must not wait for it.
            () = connection.run_pending(follower) => {}
            () = stopped(stop) => break,
        }
        batch.take_events(follower, &ResponseHints::default()).await?;
        while batch.awaits_file() {
            batch.fetch_file(fetcher, &SystemClock).await?;
            batch.take_events(follower, &ResponseHints::default()).await?;
        }
        if follower.is_finished() || batch.abandoned {
            break;
        }
        let due = batch.due();
        tokio::select! {
            () = connection.wait(follower) => {}
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => batch.deliver().await?,
            () = stopped(stop) => {}
        }
    }
    let finished = follower.is_finished();
    batch.deliver().await?;
    // Without the closing tag the server would keep the session until a timeout.
    connection.close(follower).await;
    Ok(batch.finish(!finished && *stop.borrow()))
}

/// Runs a check of a node until it is finished or the stop signal is set; returns true if it is finished.
pub async fn drive_node_check(check: &mut NodeChecker, account: &Account, stop: &Stop) -> bool {
    let mut connection = XmppConnection::new(account);
    while !*stop.borrow() {
        tokio::select! {
            () = connection.run_pending(check) => {}
            () = stopped(stop) => break,
        }
        if check.is_finished() {
            return true;
        }
        tokio::select! {
            () = connection.wait(check) => {}
            () = stopped(stop) => {}
        }
    }
    false
}
