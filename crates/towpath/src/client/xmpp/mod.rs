//! Following nodes over XMPP: the socket, its encryption, and the clock, for [`NodeFollower`].

mod connect;
mod login;

use std::time::Duration;

use bytes::BytesMut;
use jiff::Timestamp;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use towpath_proto::follow::{Exchange as _, FollowError, StartFrom};
use towpath_proto::push::xmpp::check::NodeChecker;
use towpath_proto::push::xmpp::follow::NodeFollower;
use towpath_proto::push::xmpp::jid;
use towpath_proto::push::xmpp::session::OverXmpp;
use towpath_proto::push::xmpp::uri::NodeUri;

use super::drive::{Ended, Hand, Output};
use crate::stop::{Stop, stopped};
use connect::{Io, connect, encrypt};
use login::Login;

/// How long connecting, encrypting, or sending may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest sleep before the clock is looked at again.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// How long the stream's end may take.
const GRACE: Duration = Duration::from_secs(2);

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
    let (mut wire, mut input) = (None::<Box<dyn Io>>, BytesMut::new());
    while !*stop.borrow() {
        tokio::select! {
            () = settle(follower, account, &mut wire) => {}
            () = stopped(stop) => break,
        }
        hand.take_events(follower).await?;
        if follower.is_finished() {
            break;
        }
        let (due, wait) = (hand.due(), until_timeout(follower));
        tokio::select! {
            read = read(&mut wire, &mut input) => {
                has_read(follower, &mut wire, read, &input);
                input.clear();
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => hand.deliver().await?,
            () = sleep(wait) => {}
            () = stopped(stop) => {}
        }
    }
    let finished = follower.is_finished();
    hand.deliver().await?;
    follower.session().close();
    if let (Some(wire), Some(farewell)) = (&mut wire, follower.session().poll_output()) {
        let _ = timeout(GRACE, wire.write_all(farewell.as_bytes())).await;
    }
    Ok(hand.ended(!finished && *stop.borrow()))
}

/// Drives a check of a node until it is finished or `stop` says so; says whether it is finished.
pub async fn drive_node_check(check: &mut NodeChecker, account: &Account, stop: &Stop) -> bool {
    let (mut wire, mut input) = (None::<Box<dyn Io>>, BytesMut::new());
    while !*stop.borrow() {
        tokio::select! {
            () = settle(check, account, &mut wire) => {}
            () = stopped(stop) => break,
        }
        if check.is_finished() {
            return true;
        }
        let wait = until_timeout(check);
        tokio::select! {
            read = read(&mut wire, &mut input) => {
                has_read(check, &mut wire, read, &input);
                input.clear();
            }
            () = sleep(wait) => {}
            () = stopped(stop) => {}
        }
    }
    false
}

fn until_timeout(follower: &impl OverXmpp) -> Duration {
    let next = follower.poll_timeout().map(|at| at.duration_since(Timestamp::now()));
    let wait = next.map(|wait| Duration::try_from(wait).unwrap_or_default());
    wait.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
}

/// Does what the follower wants now: connects, sends, encrypts, closes.
async fn settle<F: OverXmpp>(follower: &mut F, account: &Account, wire: &mut Option<Box<dyn Io>>) {
    loop {
        let now = Timestamp::now();
        follower.session().handle_timeout(now);
        follower.handle_received(now);
        if follower.session().poll_connect(now) {
            *wire = None;
            match timeout(PATIENCE, connect(&account.server())).await {
                Ok(Ok((connected, is_local))) => {
                    *wire = Some(connected);
                    follower.session().handle_connected(Timestamp::now(), is_local);
                }
                Ok(Err(e)) => broke(follower, &format!("{}: {e}", account.server())),
                Err(_) => broke(follower, &format!("{} does not answer", account.server())),
            }
        } else if let Some(output) = follower.session().poll_output() {
            let Some(open) = wire else { continue };
            let sent = timeout(PATIENCE, async {
                open.write_all(output.as_bytes()).await?;
                open.flush().await
            });
            match sent.await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => broke(follower, &e.to_string()),
                Err(_) => broke(follower, "the server takes nothing"),
            }
        } else if follower.session().poll_tls() {
            let Some(open) = wire.take() else { return };
            match timeout(PATIENCE, encrypt(open, jid::domain(&account.jid))).await {
                Ok(Ok(encrypted)) => {
                    *wire = Some(encrypted);
                    follower.session().handle_tls(Timestamp::now());
                }
                Ok(Err(e)) => broke(follower, &format!("cannot encrypt: {e}")),
                Err(_) => broke(follower, "encrypting takes too long"),
            }
        } else {
            if follower.session().is_down() {
                *wire = None;
            }
            return;
        }
    }
}

fn broke(follower: &mut impl OverXmpp, reason: &str) {
    let now = Timestamp::now();
    follower.session().handle_disconnected(now, reason);
    follower.handle_received(now);
}

/// Waits for something to come; for ever where nothing is connected.
async fn read(wire: &mut Option<Box<dyn Io>>, input: &mut BytesMut) -> std::io::Result<usize> {
    match wire {
        Some(wire) => wire.read_buf(input).await,
        None => std::future::pending().await,
    }
}

fn has_read(
    follower: &mut impl OverXmpp,
    wire: &mut Option<Box<dyn Io>>,
    read: std::io::Result<usize>,
    input: &BytesMut,
) {
    let problem = match read {
        Ok(0) => "the server closed it".to_owned(),
        Ok(_) => {
            let now = Timestamp::now();
            follower.session().handle_bytes(now, input);
            return follower.handle_received(now);
        }
        Err(e) => e.to_string(),
    };
    *wire = None;
    broke(follower, &problem);
}
