//! The connection to an account's server: the socket, its encryption, and the clock.

use std::time::Duration;

use bytes::BytesMut;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use towpath_proto::push::xmpp::jid;
use towpath_proto::push::xmpp::session::OverXmpp;

use super::Account;
use super::connect::{Io, connect, encrypt};

/// How long connecting, encrypting, or sending may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest sleep before the clock is looked at again.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// How long the stream's end may take.
const GRACE: Duration = Duration::from_secs(2);

/// What somebody who follows or checks a node is connected by.
pub(super) struct Line<'a> {
    account: &'a Account,
    /// None while there is no connection.
    wire: Option<Box<dyn Io>>,
    input: BytesMut,
}

impl<'a> Line<'a> {
    /// One that is not connected.
    pub(super) fn new(account: &'a Account) -> Self {
        Self { account, wire: None, input: BytesMut::new() }
    }

    /// Does what is wanted now: connects, sends, encrypts, closes.
    pub(super) async fn settle(&mut self, over: &mut impl OverXmpp) {
        loop {
            let now = Timestamp::now();
            over.session().handle_timeout(now);
            over.handle_received(now);
            if over.session().poll_connect(now) {
                self.connect(over).await;
            } else if let Some(output) = over.session().poll_output() {
                self.send(over, &output).await;
            } else if over.session().poll_tls() {
                self.encrypt(over).await;
            } else {
                if over.session().is_down() {
                    self.wire = None;
                }
                return;
            }
        }
    }

    /// Waits until something came, which is handed over, or it is time for something else.
    pub(super) async fn wait(&mut self, over: &mut impl OverXmpp) {
        let wait = until_timeout(over);
        let read = tokio::select! {
            read = read(&mut self.wire, &mut self.input) => read,
            () = sleep(wait) => return,
        };
        let problem = match read {
            Ok(0) => "the server closed it".to_owned(),
            Ok(_) => {
                let now = Timestamp::now();
                over.session().handle_bytes(now, &self.input);
                self.input.clear();
                return over.handle_received(now);
            }
            Err(e) => e.to_string(),
        };
        self.wire = None;
        broke(over, &problem);
    }

    /// Ends the stream in good order, if that does not take long.
    pub(super) async fn close(&mut self, over: &mut impl OverXmpp) {
        over.session().close();
        if let (Some(wire), Some(farewell)) = (&mut self.wire, over.session().poll_output()) {
            let _ = timeout(GRACE, wire.write_all(farewell.as_bytes())).await;
        }
    }

    async fn connect(&mut self, over: &mut impl OverXmpp) {
        self.wire = None;
        let server = self.account.server();
        match timeout(PATIENCE, connect(&server)).await {
            Ok(Ok((connected, is_local))) => {
                self.wire = Some(connected);
                over.session().handle_connected(Timestamp::now(), is_local);
            }
            Ok(Err(e)) => broke(over, &format!("{server}: {e}")),
            Err(_) => broke(over, &format!("{server} does not answer")),
        }
    }

    async fn send(&mut self, over: &mut impl OverXmpp, output: &str) {
        let Some(open) = &mut self.wire else { return };
        let sent = timeout(PATIENCE, async {
            open.write_all(output.as_bytes()).await?;
            open.flush().await
        });
        match sent.await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => broke(over, &e.to_string()),
            Err(_) => broke(over, "the server takes nothing"),
        }
    }

    async fn encrypt(&mut self, over: &mut impl OverXmpp) {
        let Some(open) = self.wire.take() else { return broke(over, "there is nothing to encrypt") };
        match timeout(PATIENCE, encrypt(open, jid::domain(&self.account.jid))).await {
            Ok(Ok(encrypted)) => {
                self.wire = Some(encrypted);
                over.session().handle_tls(Timestamp::now());
            }
            Ok(Err(e)) => broke(over, &format!("cannot encrypt: {e}")),
            Err(_) => broke(over, "encrypting takes too long"),
        }
    }
}

fn until_timeout(over: &impl OverXmpp) -> Duration {
    let next = over.poll_timeout().map(|at| at.duration_since(Timestamp::now()));
    let wait = next.map(|wait| Duration::try_from(wait).unwrap_or_default());
    wait.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
}

fn broke(over: &mut impl OverXmpp, reason: &str) {
    let now = Timestamp::now();
    over.session().handle_disconnected(now, reason);
    over.handle_received(now);
}

/// Waits for something to come; for ever where nothing is connected.
async fn read(wire: &mut Option<Box<dyn Io>>, input: &mut BytesMut) -> std::io::Result<usize> {
    match wire {
        Some(wire) => wire.read_buf(input).await,
        None => std::future::pending().await,
    }
}
