//! The task beside an XMPP server: carries the component's bytes, reads and writes the store for it.
//!
//! Everything that XMPP says is in [`towpath_proto::push::xmpp`]; here are the socket, the clock and the log.

mod answer;
mod kept;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::{BoxFuture, OptionFuture};
use jiff::{SignedDuration, Timestamp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use towpath_proto::FeedId;
use towpath_proto::push::xmpp::component::{Component, Notice, QuestionId};
use towpath_proto::push::xmpp::fanout::Kept;

use super::Engine;
use super::roles::Lease;
use crate::config::XmppConfig;
use crate::stop::{Stop, stopped};
use answer::Answered;

/// The longest sleep before the clock is looked at again: clocks are set, machines are suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// How long the stream's end may take when the server stops.
const GRACE: Duration = Duration::from_secs(2);
/// How often places that have changed are kept, and how often that the stream is open.
const KEEPING: SignedDuration = SignedDuration::from_secs(2);
const SEEING: SignedDuration = SignedDuration::from_mins(5);
/// How often it is looked whether the role is still held, where that is in doubt.
const LOOK: Duration = Duration::from_millis(250);
/// How much is read in one go.
const READ: usize = 64 << 10;

/// Answers and pushes over XMPP until `stop` turns true; returns at once where no `[xmpp]` is configured.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    let Some(config) = engine.config.xmpp.clone() else { return };
    let kept = kept::load(engine.store.as_ref()).await.unwrap_or_else(|e| {
        tracing::error!("cannot read the XMPP subscriptions: {e}");
        Kept::default()
    });
    let at = engine.clone();
    let component = Component::new((&config).into(), kept);
    let mut shell = Shell {
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
        kept_at: Timestamp::MIN,
        seen_at: Timestamp::MIN,
    };
    while !*stop.borrow() {
        shell.settle();
        shell.keep_places().await;
        tokio::select! {
            () = shell.step() => {}
            () = at.chat.notified() => shell.look_at_heads(),
            () = stopped(&stop) => {}
        }
    }
    shell.component.close();
    if shell.lease.is_current() {
        let _ = timeout(GRACE, shell.flush()).await;
    }
    shell.kept_at = Timestamp::MIN;
    shell.keep_places().await;
}

type Connecting = BoxFuture<'static, io::Result<TcpStream>>;

struct Shell {
    engine: Arc<Engine>,
    lease: Lease,
    config: XmppConfig,
    component: Component,
    connecting: Option<Connecting>,
    reader: Option<OwnedReadHalf>,
    writer: Option<OwnedWriteHalf>,
    input: BytesMut,
    output: Bytes,
    answers: JoinSet<(QuestionId, Answered)>,
    /// Where the logs of feeds with subscribers ended when that was last told.
    heads: HashMap<FeedId, u64>,
    /// How many pushes the metrics know of.
    counted: u64,
    /// When places were kept last, and when that the stream is open.
    kept_at: Timestamp,
    seen_at: Timestamp,
}

impl Shell {
    /// Does what can be done without waiting.
    fn settle(&mut self) {
        let now = self.engine.now();
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
        if self.output.is_empty() {
            self.output = self.component.poll_output(now).map(Bytes::from).unwrap_or_default();
        }
        if self.component.is_down() && self.output.is_empty() {
            self.disconnect();
        }
        while let Some((id, question)) = self.component.poll_question() {
            let (engine, lease) = (self.engine.clone(), self.lease.clone());
            self.answers.spawn(async move { (id, answer::answer(&engine, &lease, question).await) });
        }
        while let Some(notice) = self.component.poll_notice() {
            self.tell(notice);
        }
        let pushes = self.component.pushes();
        self.engine.metrics.pushes_ok.inc_by(pushes - self.counted);
        self.counted = pushes;
    }

    fn tell(&self, notice: Notice) {
        let (jid, server) = (&self.config.jid, &self.config.server);
        match notice {
            Notice::Connected => tracing::info!("the component {jid} is connected to {server}"),
            Notice::Down(why) => tracing::warn!("the component {jid} is not connected to {server}: {why}"),
            Notice::Refused(who, error) => tracing::debug!("a request of {who} was refused: {error}"),
        }
    }

    fn disconnect(&mut self) {
        (self.reader, self.writer, self.connecting) = (None, None, None);
        self.output.clear();
    }

    /// Waits for one thing to happen, and takes it in.
    async fn step(&mut self) {
        let now = self.engine.now();
        let mut at = self.component.poll_timeout();
        if self.component.has_unkept() {
            at = at.min(self.kept_at.saturating_add(KEEPING).unwrap_or(at));
        }
        let until = at.duration_since(now);
        let until = Duration::try_from(until).unwrap_or_default().min(LONGEST_SLEEP);
        let wants = self.component.wants_bytes();
        let read: OptionFuture<_> =
            self.reader.as_mut().filter(|_| wants).map(|reader| reader.read_buf(&mut self.input)).into();
        // Where another node may be the component by now, it is that one that speaks.
        let is_held = self.lease.is_current();
        let until = if is_held { until } else { until.min(LOOK) };
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
                let (reader, writer) = stream.into_split();
                (self.reader, self.writer) = (Some(reader), Some(writer));
                self.input.clear();
                self.component.handle_connected(self.engine.now());
            }
            Err(e) => self.broke(&e.to_string()),
        }
    }

    fn has_read(&mut self, read: io::Result<usize>) {
        match read {
            Ok(0) => self.broke("the server closed it"),
            Ok(_) => {
                self.component.handle_bytes(self.engine.now(), &self.input);
                self.input.clear();
                self.input.reserve(READ);
            }
            Err(e) => self.broke(&e.to_string()),
        }
    }

    fn broke(&mut self, reason: &str) {
        self.disconnect();
        self.component.handle_disconnected(self.engine.now(), reason);
    }

    fn has_answered(&mut self, answered: Result<(QuestionId, Answered), tokio::task::JoinError>) {
        match answered {
            Ok((id, answered)) => {
                let now = self.engine.now();
                answered.give(&self.engine, |answer| self.component.handle_answer(now, id, answer));
            }
            Err(e) => tracing::error!("an answer broke off: {e}"),
        }
    }

    /// Keeps up to where topics were sent, where that is due.
    async fn keep_places(&mut self) {
        let now = self.engine.now();
        let is_due = |last: Timestamp, pause| now.duration_since(last) >= pause;
        let seen = (self.component.is_ready() && is_due(self.seen_at, SEEING)).then_some(now);
        let has_unkept = self.component.has_unkept() && is_due(self.kept_at, KEEPING);
        if seen.is_none() && !has_unkept {
            return;
        }
        let places = self.component.take_unkept();
        (self.kept_at, self.seen_at) = (now, seen.unwrap_or(self.seen_at));
        if let Err(e) = kept::keep_places(self.engine.store.as_ref(), &self.lease, places, seen).await {
            // The next change of a topic is kept again; until then subscribers may be sent something twice.
            tracing::warn!("cannot keep up to where was pushed over XMPP: {e}");
        }
    }

    /// Tells the component which of its feeds have moved.
    fn look_at_heads(&mut self) {
        let feeds: HashSet<FeedId> = self.component.feeds().cloned().collect();
        self.heads.retain(|feed, _| feeds.contains(feed));
        for id in feeds {
            let Some(feed) = self.engine.feed(id.as_str()) else { continue };
            let head = feed.head.load(Ordering::Acquire);
            if self.heads.insert(id.clone(), head) != Some(head) {
                self.component.handle_move(&id);
            }
        }
    }

    /// Sends what is left to send.
    async fn flush(&mut self) -> io::Result<()> {
        let now = self.engine.now();
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.write_all_buf(&mut self.output).await?;
        while let Some(output) = self.component.poll_output(now) {
            writer.write_all(output.as_bytes()).await?;
        }
        writer.shutdown().await
    }
}
