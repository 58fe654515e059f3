//! Follows the log: brings its messages to the thread that applies them, in order and without a gap, and keeps an eye
//! on where the log ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use futures_util::StreamExt;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use towpath_store::Clock;

use crate::address::Address;
use crate::apply::Delivered;
use crate::health::Health;
use crate::notes::{Mark, Position};
use crate::stream::{self, Refusal};

/// How many messages are asked for at once.
const BATCH: usize = 128;
const HEARTBEAT: Duration = Duration::from_secs(1);
const EXPIRES: Duration = Duration::from_secs(30);
/// How long a question to the cluster may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait before trying again.
const PAUSE: Duration = Duration::from_millis(200);
const LONG_PAUSE: Duration = Duration::from_secs(2);

/// How much may be here that is not applied yet: messages, and kibibytes.
pub(crate) const AHEAD: usize = 16_384;
pub(crate) const AHEAD_KIB: usize = 64 << 10;

/// How much of that a message takes.
fn room(bytes: usize) -> u32 {
    bytes.div_ceil(1024).clamp(1, AHEAD_KIB) as u32
}

/// See the module's text.
pub(crate) struct Follower {
    pub(crate) context: Context,
    pub(crate) address: Address,
    /// Up to where messages were brought.
    pub(crate) position: Position,
    pub(crate) messages: mpsc::Sender<Delivered>,
    /// For what was brought and is not applied yet, in kibibytes.
    pub(crate) room: Arc<Semaphore>,
    pub(crate) health: Arc<Health>,
}

impl Follower {
    /// Runs until nobody takes messages any more.
    ///
    /// `stuck` makes it begin again.
    pub(crate) async fn run(mut self, stuck: Arc<Notify>) {
        while !self.messages.is_closed() {
            let followed = tokio::select! {
                followed = self.follow() => followed,
                () = stuck.notified() => Err(Refusal::Later("the log stood still".into())),
            };
            let (reason, pause) = match followed {
                Ok(()) => continue,
                Err(Refusal::Later(reason)) => (reason, PAUSE),
                Err(Refusal::Never(reason)) => {
                    self.health.stop(reason.clone());
                    (reason, LONG_PAUSE)
                }
            };
            self.health.set_problem(reason);
            tokio::select! {
                () = sleep(pause) => {}
                () = self.messages.closed() => {}
            }
        }
    }

    /// Follows until something breaks off.
    async fn follow(&mut self) -> Result<(), Refusal> {
        let later = |what: &str| Refusal::Later(what.to_owned());
        let opened = timeout(PATIENCE, stream::open(&self.context, &self.address, false)).await;
        let (stream, log) = opened.map_err(|_| later("the cluster does not answer"))??;
        let info = stream.cached_info();
        let checked = timeout(PATIENCE, stream::check_position(&stream, info, log, &self.position)).await;
        checked.map_err(|_| later("the cluster does not answer"))??;
        if let Some(lost) = self.health.lost() {
            let found = timeout(PATIENCE, stream::check_mark(&stream, info, &lost)).await;
            found.map_err(|_| later("the cluster does not answer"))??;
        }
        // A problem of the replica stays: only what was wrong with the log is over.
        if !self.messages.is_closed() {
            self.health.resume();
            self.health.no_problem();
        }
        let config = pull::Config {
            deliver_policy: match self.position.at {
                0 => DeliverPolicy::All,
                at => DeliverPolicy::ByStartSequence { start_sequence: at + 1 },
            },
            ack_policy: AckPolicy::None,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: Duration::from_secs(60),
            ..pull::Config::default()
        };
        let consumer = timeout(PATIENCE, stream.create_consumer(config)).await;
        let consumer = consumer.map_err(|_| later("the cluster does not answer"))?;
        let consumer = consumer.map_err(|e| Refusal::Later(format!("the log cannot be read: {e}")))?;
        let batches = consumer.stream().max_messages_per_batch(BATCH).heartbeat(HEARTBEAT).expires(EXPIRES);
        let mut arriving = batches.messages().await.map_err(|e| Refusal::Later(e.to_string()))?;
        loop {
            let message = tokio::select! {
                message = arriving.next() => message,
                () = self.messages.closed() => return Ok(()),
            };
            let message = message.ok_or_else(|| later("reading the log broke off"))?;
            let message = message.map_err(|e| Refusal::Later(format!("reading the log broke off: {e}")))?;
            let info = message.info().map_err(|e| Refusal::Later(e.to_string()))?;
            let at = info.stream_sequence;
            let time = u64::try_from(info.published.unix_timestamp_nanos()).unwrap_or_default();
            match at.checked_sub(self.position.at) {
                // It came before.
                None | Some(0) => continue,
                Some(1) => {}
                Some(_) => return Err(later("a message was lost on its way here")),
            }
            let payload = message.message.payload;
            let Ok(room) = Arc::clone(&self.room).acquire_many_owned(room(payload.len())).await else {
                return Ok(());
            };
            let message = Delivered::read(at, time, payload, room);
            let mark = message.mark(log);
            if self.messages.send(message).await.is_err() {
                return Ok(());
            }
            (self.position.at, self.position.mark) = (at, mark.or(self.position.mark));
        }
    }
}

/// Asks for the log's end again and again, and whether it still has what the replica has; interrupts the follower where
/// that stands still before the end, or the log is another.
///
/// What a replica has last is asked for until that was answered: a log that lost messages while it was gone is found out
/// even if it is longer again by then.
pub(crate) async fn watch(
    context: Context,
    name: String,
    health: Arc<Health>,
    clock: Clock,
    stuck: Arc<Notify>,
) {
    let mut position = health.position();
    let mut silent = 0;
    let mut due = None;
    loop {
        let (asked, begun) = (clock(), Instant::now());
        let before = *position.borrow_and_update();
        due = due.or_else(|| health.mark());
        match timeout(PATIENCE, look(&context, &name, due.as_ref())).await {
            Ok(Ok(end)) => {
                due = None;
                health.log_ends(end, asked, begun);
                silent = if end > before { silent + 1 } else { 0 };
            }
            Ok(Err(Refusal::Never(reason))) => {
                if let Some(mark) = due.filter(|_| health.stopped().is_none()) {
                    health.lose(mark, reason);
                    stuck.notify_one();
                }
            }
            Ok(Err(Refusal::Later(reason))) => health.set_problem(reason),
            Err(_) => health.set_problem("the cluster does not answer".into()),
        }
        sleep(Duration::from_secs(1)).await;
        if *position.borrow() > before {
            silent = 0;
        }
        if silent > 5 {
            silent = 0;
            stuck.notify_one();
        }
    }
}

/// Where the log ends, if it has a message.
async fn look(context: &Context, name: &str, mark: Option<&Mark>) -> Result<u64, Refusal> {
    let stream = context.get_stream(name).await;
    let stream = stream.map_err(|e| Refusal::Later(format!("the cluster does not answer: {e}")))?;
    let info = stream.cached_info();
    if let Some(mark) = mark {
        stream::check_mark(&stream, info, mark).await?;
    }
    Ok(info.state.last_sequence)
}
