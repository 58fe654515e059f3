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
use crate::notes::Position;
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
    /// Up to where messages were brought. Its mark stays what it was when the node began.
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
            let at = message.info().map_err(|e| Refusal::Later(e.to_string()))?.stream_sequence;
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
            let message = Delivered::read(at, payload, room);
            if self.messages.send(message).await.is_err() {
                return Ok(());
            }
            self.position.at = at;
        }
    }
}

/// Asks for the log's end again and again, and interrupts the follower where it stands still before it.
pub(crate) async fn watch(
    context: Context,
    name: String,
    health: Arc<Health>,
    clock: Clock,
    stuck: Arc<Notify>,
) {
    let mut position = health.position();
    let mut silent = 0;
    loop {
        let (asked, begun) = (clock(), Instant::now());
        let before = *position.borrow_and_update();
        match timeout(PATIENCE, context.get_stream(&name)).await {
            Ok(Ok(stream)) => {
                let end = stream.cached_info().state.last_sequence;
                health.log_ends(end, asked, begun);
                silent = if end > before { silent + 1 } else { 0 };
            }
            Ok(Err(error)) => health.set_problem(format!("the cluster does not answer: {error}")),
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
