//! Connection to an account's XMPP server: socket, TLS and timers of a session.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};
use towpath_proto::push::xmpp::jid;
use towpath_proto::push::xmpp::session::OverXmpp;

use super::Account;
use super::connect::{AsyncStream, connect, encrypt};
use crate::clock::{DriverClock as _, SystemClock};

/// Timeout of a connect, a TLS handshake or a write.
const IO_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest sleep before the clock is read again.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// Timeout for sending the end of the stream.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Connection of a session that follows or checks a node.
pub(super) struct XmppConnection<'a> {
    account: &'a Account,
    /// `None` while disconnected.
    stream: Option<Box<dyn AsyncStream>>,
    input: BytesMut,
}

impl<'a> XmppConnection<'a> {
    /// Creates a connection that is not yet established.
    pub(super) fn new(account: &'a Account) -> Self {
        Self { account, stream: None, input: BytesMut::new() }
    }

    /// Performs the session's pending actions: connects, sends, encrypts, disconnects.
    pub(super) async fn run_pending(&mut self, over: &mut impl OverXmpp) {
        loop {
            let now = SystemClock.now();
            over.session().handle_timeout(now);
            over.handle_received(now);
            if over.session().poll_connect(now) {
                self.connect(over).await;
            } else if let Some(output) = over.session().poll_output() {
                self.send(over, &output).await;
            } else if over.session().poll_tls() {
                self.encrypt(over).await;
            } else {
                // The session decides when a connection is over, for example after an authentication error.
                if over.session().is_down() {
                    // A half-open connection is dropped before the next attempt.
                    self.stream = None;
                }
                return;
            }
        }
    }

    /// Waits for input, which it passes to the session, or for the session's timer.
    pub(super) async fn wait(&mut self, over: &mut impl OverXmpp) {
        let wait = until_timeout(over);
        let read = tokio::select! {
            read = read(&mut self.stream, &mut self.input) => read,
            () = sleep(wait) => return,
        };
        let reason = match read {
            Ok(0) => "the server closed the connection".to_owned(),
            Ok(_) => {
                let now = SystemClock.now();
                over.session().handle_bytes(now, &self.input);
                // The session keeps partial stanzas itself, so the buffer can be reused.
                self.input.clear();
                return over.handle_received(now);
            }
            Err(e) => e.to_string(),
        };
        self.stream = None;
        disconnected(over, &reason);
    }

    /// Closes the stream in order, within [`CLOSE_TIMEOUT`].
    pub(super) async fn close(&mut self, over: &mut impl OverXmpp) {
        over.session().close();
        if let (Some(stream), Some(end)) = (&mut self.stream, over.session().poll_output()) {
            let _ = timeout(CLOSE_TIMEOUT, stream.write_all(end.as_bytes())).await;
        }
    }

    async fn connect(&mut self, over: &mut impl OverXmpp) {
        self.stream = None;
        // Looked up for each attempt: a domain may move its servers.
        let servers = match self.account.servers().await {
            Ok(servers) => servers,
            Err(e) => return disconnected(over, &e.to_string()),
        };
        let mut failures = Vec::new();
        for server in servers {
            match timeout(IO_TIMEOUT, connect(&server)).await {
                Ok(Ok((connected, privacy))) => {
                    self.stream = Some(connected);
                    return over.session().handle_connected(SystemClock.now(), privacy);
                }
                Ok(Err(e)) => failures.push(format!("{server}: {e}")),
                Err(_) => failures.push(format!("{server} does not respond")),
            }
        }
        disconnected(over, &failures.join("; "));
    }

    async fn send(&mut self, over: &mut impl OverXmpp, output: &str) {
        let Some(stream) = &mut self.stream else { return };
        let sent = timeout(IO_TIMEOUT, async {
            stream.write_all(output.as_bytes()).await?;
            stream.flush().await
        });
        match sent.await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => disconnected(over, &e.to_string()),
            Err(_) => disconnected(over, "the server accepts no data"),
        }
    }

    async fn encrypt(&mut self, over: &mut impl OverXmpp) {
        let Some(stream) = self.stream.take() else { return disconnected(over, "not connected") };
        match timeout(IO_TIMEOUT, encrypt(stream, jid::domain(&self.account.jid))).await {
            Ok(Ok(encrypted)) => {
                self.stream = Some(encrypted);
                over.session().handle_tls(SystemClock.now());
            }
            Ok(Err(e)) => disconnected(over, &format!("TLS handshake failed: {e}")),
            Err(_) => disconnected(over, "the TLS handshake timed out"),
        }
    }
}

fn until_timeout(over: &impl OverXmpp) -> Duration {
    let wait = over.poll_timeout().map(|at| at.since(SystemClock.now().monotonic));
    wait.unwrap_or(MAX_SLEEP).min(MAX_SLEEP)
}

fn disconnected(over: &mut impl OverXmpp, reason: &str) {
    let now = SystemClock.now();
    over.session().handle_disconnected(now, reason);
    over.handle_received(now);
}

/// Reads input; never returns while disconnected.
async fn read(stream: &mut Option<Box<dyn AsyncStream>>, input: &mut BytesMut) -> std::io::Result<usize> {
    match stream {
        Some(stream) => stream.read_buf(input).await,
        // The session's timer decides when to connect again.
        None => std::future::pending().await,
    }
}
