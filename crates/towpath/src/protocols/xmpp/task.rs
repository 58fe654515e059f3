//! The task beside an XMPP server: it transports the component's bytes, and reads and writes the store for it.
//!
//! The protocol itself is in [`towpath_proto::push::xmpp`]. Here are the socket, the clock and the log.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::{BoxFuture, FutureExt as _, OptionFuture};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use towpath_proto::FeedId;
use towpath_proto::follow::{Monotonic, Now};
use towpath_proto::push::xmpp::component::{Component, ComponentEvent, StoreRequestId};
use towpath_proto::push::xmpp::fanout::PersistedFanout;

use crate::config::XmppConfig;
use crate::engine::Engine;
use crate::engine::roles::Lease;
use crate::protocols::xmpp::answer::{self, PendingAnswer};
use crate::protocols::xmpp::state::LogChanged;
use crate::protocols::xmpp::stored;
use crate::stop::{Stop, stopped};
use towpath_client::{DriverClock as _, SystemClock};

/// Longest sleep until the clock is read again: clocks are set, and machines are suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Time that closing the stream gets when the server stops.
const GRACE: Duration = Duration::from_secs(2);
/// Interval of storing changed positions, and of storing that the stream is open.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);
// Tells after a restart how long the component was away: half an hour decides what is still pushed.
const SEEN_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Interval of checking a role that is in doubt.
// A doubtful lease has no event of its own to wait for.
const LEASE_CHECK: Duration = Duration::from_millis(250);
/// Bytes of one read.
const READ_SIZE: usize = 64 << 10;

/// Answers and pushes over XMPP until `stop` turns true. Returns at once without `[xmpp]` in the configuration.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    let Some(config) = engine.config.xmpp.clone() else { return };
    let kept = stored::load(engine.store.as_ref()).await.unwrap_or_else(|e| {
        tracing::error!(error = %e, "cannot read the XMPP subscriptions");
        PersistedFanout::default()
    });
    let at = engine.clone();
    let component = Component::new((&config).into(), kept);
    let mut driver = ComponentDriver {
        engine,
        lease,
        config,
        component,
        connecting: None,
        reader: None,
        writer: None,
        input: BytesMut::new(),
        output: Bytes::new(),
        answers: JoinSet::new(),
        heads: HashMap::new(),
        counted: 0,
        kept_at: None,
        seen_at: None,
    };
    while !*stop.borrow() {
        driver.poll_component();
        driver.save_positions().await;
        tokio::select! {
            () = driver.wait_event() => {}
            () = LogChanged::of(&at).0.notified() => driver.check_heads(),
            () = stopped(&stop) => {}
        }
    }
    driver.component.close();
    // Without the role, another node may have the stream: closing words of this one would disturb it.
    if driver.lease.is_current() {
        let _ = timeout(GRACE, driver.flush()).await;
    }
    // So that the last store below is due whatever the interval.
    driver.kept_at = None;
    driver.save_positions().await;
}

type Connecting = BoxFuture<'static, io::Result<TcpStream>>;

struct ComponentDriver {
    engine: Arc<Engine>,
    lease: Lease,
    config: XmppConfig,
    component: Component,
    connecting: Option<Connecting>,
    reader: Option<OwnedReadHalf>,
    writer: Option<OwnedWriteHalf>,
    input: BytesMut,
    output: Bytes,
    answers: JoinSet<(StoreRequestId, PendingAnswer)>,
    /// Last positions of subscribed feeds that the component knows.
    heads: HashMap<FeedId, u64>,
    /// Pushes that the metrics count already.
    counted: u64,
    /// Times of the last stores: of positions, and of the open stream.
    kept_at: Option<Monotonic>,
    seen_at: Option<Monotonic>,
}

impl ComponentDriver {
    fn now(&self) -> Now {
        Now { wall: self.engine.now(), ..SystemClock.now() }
    }

    /// Passes on everything that needs no waiting.
    fn poll_component(&mut self) {
        let now = self.now();
        self.component.handle_timeout(now);
        if self.component.poll_connect(now) {
            self.disconnect();
            let server = self.config.server.clone();
            self.connecting = Some(Box::pin(async move {
                let stream = TcpStream::connect(server).await?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }));
        }
        // One piece at a time: a slow server holds back the component, not a growing buffer.
        if self.output.is_empty() {
            self.output = self.component.poll_output(now).map(Bytes::from).unwrap_or_default();
        }
        if self.component.is_down() && self.output.is_empty() {
            self.disconnect();
        }
        while let Some((id, question)) = self.component.poll_store_request() {
            let (engine, lease) = (self.engine.clone(), self.lease.clone());
            self.answers.spawn(async move { (id, answer::respond(&engine, &lease, question).await) }.boxed());
        }
        while let Some(notice) = self.component.poll_event() {
            // Feeds may have been removed while nobody could be told.
            if notice == ComponentEvent::Connected {
                self.check_heads();
            }
            self.log_event(notice);
        }
        let pushes = self.component.pushes();
        let metrics = &self.engine.metrics;
        metrics.pushes_ok.inc_by(pushes - self.counted);
        metrics.deliveries.xmpp.inc_by(pushes - self.counted);
        self.counted = pushes;
    }

    fn log_event(&self, notice: ComponentEvent) {
        let (jid, server) = (&self.config.jid, &self.config.server);
        match notice {
            ComponentEvent::Connected => {
                tracing::info!(%jid, server, "the component is connected to the XMPP server");
            }
            ComponentEvent::Down(why) => {
                tracing::warn!(%jid, server, reason = %why, "the component is not connected to the XMPP server");
            }
            ComponentEvent::Refused(who, error) => {
                tracing::debug!(from = %who, error = %error, "a request over XMPP was refused");
            }
        }
    }

    fn disconnect(&mut self) {
        (self.reader, self.writer, self.connecting) = (None, None, None);
        // A stanza that was written in part must not be continued on the next connection.
        self.output.clear();
    }

    /// Waits for one event, and passes it to the component.
    async fn wait_event(&mut self) {
        let now = self.now();
        let mut at = self.component.poll_timeout();
        if self.component.has_unpersisted() {
            at = at.min(self.kept_at.map_or(Monotonic::ORIGIN, |kept| kept + SAVE_INTERVAL));
        }
        let until = at.since(now.monotonic).min(LONGEST_SLEEP);
        let wants = self.component.wants_bytes();
        let read: OptionFuture<_> =
            self.reader.as_mut().filter(|_| wants).map(|reader| reader.read_buf(&mut self.input)).into();
        // If another node may be the component by now, this one stays silent.
        let is_held = self.lease.is_current();
        let until = if is_held { until } else { until.min(LEASE_CHECK) };
        let is_writing = is_held && self.output.has_remaining();
        let write: OptionFuture<_> =
            self.writer.as_mut().filter(|_| is_writing).map(|w| w.write_buf(&mut self.output)).into();
        let connect: OptionFuture<_> = self.connecting.as_mut().into();
        tokio::select! {
            Some(read) = read => self.has_read(read),
            Some(written) = write => if let Err(e) = written {
                self.broke(&e.to_string());
            },
            Some(connected) = connect => self.has_connected(connected),
            Some(answered) = self.answers.join_next(), if !self.answers.is_empty() => {
                self.has_answered(answered);
                while let Some(answered) = self.answers.try_join_next() {
                    self.has_answered(answered);
                }
            }
            () = sleep(until) => {}
        }
    }

    fn has_connected(&mut self, connected: io::Result<TcpStream>) {
        self.connecting = None;
        match connected {
            Ok(stream) => {
                // Halves, so that one `select` can read and write at the same time.
                let (reader, writer) = stream.into_split();
                (self.reader, self.writer) = (Some(reader), Some(writer));
                self.input.clear();
                self.component.handle_connected(self.now());
            }
            Err(e) => self.broke(&e.to_string()),
        }
    }

    fn has_read(&mut self, read: io::Result<usize>) {
        match read {
            Ok(0) => self.broke("the server closed it"),
            Ok(_) => {
                self.component.handle_bytes(self.now(), &self.input);
                self.input.clear();
                // `read_buf` grows a full buffer by a few bytes only, so room for a whole read is made here.
                self.input.reserve(READ_SIZE);
            }
            Err(e) => self.broke(&e.to_string()),
        }
    }

    fn broke(&mut self, reason: &str) {
        self.disconnect();
        self.component.handle_disconnected(self.now(), reason);
    }

    fn has_answered(&mut self, answered: Result<(StoreRequestId, PendingAnswer), tokio::task::JoinError>) {
        match answered {
            Ok((id, answered)) => {
                let now = self.now();
                answered
                    .pass_to(&self.engine, |answer| self.component.handle_store_response(now, id, answer));
            }
            Err(e) => tracing::error!(error = %e, "answering over XMPP panicked"),
        }
    }

    /// Stores the positions of topics when that is due.
    async fn save_positions(&mut self) {
        let now = self.now();
        let is_due =
            |last: Option<Monotonic>, pause| last.is_none_or(|last| now.monotonic.since(last) >= pause);
        let seen = (self.component.is_ready() && is_due(self.seen_at, SEEN_INTERVAL)).then_some(now.wall);
        let has_unkept = self.component.has_unpersisted() && is_due(self.kept_at, SAVE_INTERVAL);
        if seen.is_none() && !has_unkept {
            return;
        }
        let places = self.component.take_unpersisted();
        self.kept_at = Some(now.monotonic);
        self.seen_at = seen.map(|_| now.monotonic).or(self.seen_at);
        if let Err(e) = stored::save_positions(self.engine.store.as_ref(), &self.lease, places, seen).await {
            // The next change of a topic stores it again. A crash before that repeats pushes.
            tracing::warn!(error = %e, "cannot store positions of XMPP topics");
        }
    }

    /// Tells the component which of its feeds have new changes, and which are not served any more.
    fn check_heads(&mut self) {
        let feeds: HashSet<FeedId> = self.component.feeds().cloned().collect();
        self.heads.retain(|feed, _| feeds.contains(feed));
        for id in feeds {
            let feed = match answer::public_feed(&self.engine, &id) {
                Ok(feed) => feed,
                // Removed, or private since a restart.
                Err(error) => {
                    self.component.handle_removed(&id, &error.to_string());
                    continue;
                }
            };
            let head = feed.head.load(Ordering::Acquire);
            // The signal names no feed, so heads are compared.
            if self.heads.insert(id.clone(), head) != Some(head) {
                self.component.handle_append(&id);
            }
        }
    }

    /// Sends the remaining output.
    async fn flush(&mut self) -> io::Result<()> {
        let now = self.now();
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.write_all_buf(&mut self.output).await?;
        while let Some(output) = self.component.poll_output(now) {
            writer.write_all(output.as_bytes()).await?;
        }
        writer.shutdown().await
    }
}
