//! Opening a node's store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use towpath_store::WallClock;
use towpath_store::embedded::EmbeddedStore;

use crate::address::ClusterAddress;
use crate::apply::Applier;
use crate::checkpoint::{self, ReplicaPosition};
use crate::consumer::{self, LogConsumer};
use crate::health::NodeHealth;
use crate::lease;
use crate::producer::{self, Producer};
use crate::request_queue::RequestQueue;
use crate::stream::{self, StreamError};
use crate::{ClusterError, ClusterOptions, ClusterStore, StoreTasks};

impl ClusterStore {
    /// Opens a node of the cluster at `address`, with its replica in `folder`, which is created if needed.
    ///
    /// Returns once the replica has the log up to the end that it had when it was reached. An existing replica is
    /// opened even where the cluster cannot be used: it serves reads, and accepts writes once the cluster does.
    /// [`Store::replica_status`](towpath_store::Store::replica_status) has the problem.
    ///
    /// Fails with [`ClusterError::Unusable`] where a new replica has no log to follow, and with
    /// [`ClusterError::Folder`] where the folder cannot be used.
    pub async fn open(
        address: &ClusterAddress,
        folder: impl AsRef<Path>,
        options: ClusterOptions,
    ) -> Result<Self, ClusterError> {
        Self::open_folder(address, folder.as_ref(), options).await
    }

    /// Not an `async fn`: the code of those is generated in the crate that awaits them, with the whole NATS client.
    fn open_folder<'a>(
        address: &'a ClusterAddress,
        folder: &'a Path,
        options: ClusterOptions,
    ) -> BoxFuture<'a, Result<Self, ClusterError>> {
        Box::pin(Self::open_node(address, folder, options))
    }

    async fn open_node(
        address: &ClusterAddress,
        folder: &Path,
        options: ClusterOptions,
    ) -> Result<Self, ClusterError> {
        let (reader, replica) = EmbeddedStore::open_replica(folder, &options.replica)?;
        let nodes = lease::NodeIdentity::new(folder);
        let loaded = checkpoint::load(&replica);
        let (checkpoint, sessions) = loaded
            .map_err(|source| ClusterError::Replica { folder: folder.display().to_string(), source })?;
        let health = Arc::new(NodeHealth::new(
            checkpoint.map_or(0, |position| position.at),
            checkpoint.and_then(|position| position.mark),
        ));
        let client = connect(address, &health).await?;
        let context = jetstream::new(client.clone());
        let is_new = checkpoint.is_none();
        let limit = if is_new { options.first_connect_timeout } else { options.connect_timeout };
        let found = find(&client, &context, address, &health, is_new, limit).await;
        let position = match (checkpoint, &found) {
            (Some(position), _) => position,
            (None, Ok((_, log))) => ReplicaPosition { log: *log, at: 0, mark: None },
            (None, Err(reason)) => return Err(address.error(reason.clone())),
        };
        if let Err(reason) = &found {
            health.set_problem(reason.clone());
        }

        let own_session = Arc::new(AtomicU64::new(0));
        let clock = options.replica.clock.clone();
        let producer = Producer::new(
            client.clone(),
            &address.name,
            position.log,
            clock.clone(),
            Arc::clone(&health),
            Arc::clone(&own_session),
        );
        let producer = producer.await.map_err(|reason| address.error(reason))?;
        let (queue, requests) = mpsc::channel(producer::QUEUE);
        let (events, applied) = mpsc::unbounded_channel();
        let (messages, delivered) = mpsc::channel(consumer::AHEAD);
        let applier =
            Applier { replica, position, sessions, own_session, events, health: Arc::clone(&health) };
        let thread = std::thread::Builder::new().name("towpath-replica".into());
        let applier = thread.spawn(move || applier.run(delivered));
        let applier = applier.map_err(ClusterError::Thread)?;
        let producer = tokio::spawn(producer.run(requests, applied));
        let consumer = LogConsumer {
            context,
            address: address.clone(),
            position,
            messages,
            ahead: Arc::new(Semaphore::new(consumer::AHEAD_KIB)),
            health: Arc::clone(&health),
        };
        let consuming = spawn_consumer(consumer, clock);
        let requests = Arc::new(RequestQueue::new(queue, Arc::clone(&health), options.timeout));
        let reader = Arc::new(reader);
        let (leases, roles) = lease::LeaseTask::new(
            client,
            &address.name,
            Arc::clone(&reader),
            Arc::clone(&requests),
            Arc::clone(&health),
            nodes,
        )
        .await
        .map_err(|reason| address.error(reason))?;
        let leases = tokio::spawn(leases.run());
        let running = Mutex::new(Some(StoreTasks { producer, leases, consuming, applier }));
        let store = Self { replica: reader, health, requests, roles, running };
        // A node that is far behind would serve old data: it opens only when it has caught up.
        if let Ok((end, _)) = found {
            store.catch_up(end).await;
        }
        Ok(store)
    }

    /// Waits until the replica has applied everything up to `end`, or cannot continue.
    async fn catch_up(&self, end: u64) {
        let mut position = self.health.position();
        let mut last_progress = Instant::now();
        loop {
            if *position.borrow_and_update() >= end || self.health.stopped().is_some() {
                return;
            }
            // A timeout, because a node that stops does not change its position.
            if timeout(Duration::from_millis(200), position.changed()).await.is_ok() {
                last_progress = Instant::now();
            } else if last_progress.elapsed() > Duration::from_secs(30) {
                tracing::warn!(end, "the replica does not catch up with the log");
                last_progress = Instant::now();
            }
        }
    }
}

/// Starts the consumer, and the watch of the log's end.
fn spawn_consumer(consumer: LogConsumer, clock: WallClock) -> Vec<JoinHandle<()>> {
    let stalled = Arc::new(Notify::new());
    let (context, name) = (consumer.context.clone(), consumer.address.name.clone());
    let watch = consumer::watch(context, name, Arc::clone(&consumer.health), clock, Arc::clone(&stalled));
    vec![tokio::spawn(consumer.run(stalled)), tokio::spawn(watch)]
}

async fn connect(address: &ClusterAddress, health: &Arc<NodeHealth>) -> Result<Client, ClusterError> {
    let reports = Arc::clone(health);
    let mut options = ConnectOptions::new()
        .name("towpath")
        // A node with a replica opens without its cluster: connecting goes on in the background.
        .retry_on_initial_connect()
        .max_reconnects(None)
        .require_tls(address.tls)
        .connection_timeout(Duration::from_secs(2))
        // A server that hangs is replaced within seconds.
        .ping_interval(Duration::from_secs(1))
        .reconnect_delay_callback(|attempts| {
            Duration::from_millis(50 * attempts.saturating_sub(1).min(20) as u64)
        })
        .request_timeout(Some(Duration::from_secs(2)))
        .event_callback(move |event| {
            let reports = Arc::clone(&reports);
            async move {
                match event {
                    Event::ServerError(error) => reports.report(error.to_string()),
                    Event::ClientError(error) => reports.report(error.to_string()),
                    Event::Connected
                    | Event::Disconnected
                    | Event::LameDuckMode
                    | Event::Draining
                    | Event::Closed
                    | Event::SlowConsumer(_) => {}
                }
            }
        });
    if let Some((user, password)) = &address.user {
        options = options.user_and_password(user.clone(), password.clone());
    }
    if let Some(file) = &address.credentials {
        let read = options.credentials_file(file).await;
        options = read
            .map_err(|e| address.error(format!("cannot read the credentials in {}: {e}", file.display())))?;
    }
    if let Some(ca) = &address.ca {
        options = options.add_root_certificates(ca.clone());
    }
    options.connect(address.servers.clone()).await.map_err(|e| address.error(e.to_string()))
}

/// Returns the log's end and its id. Retries until `timeout_after`, then fails with the last reason.
async fn find(
    client: &Client,
    context: &Context,
    address: &ClusterAddress,
    health: &NodeHealth,
    may_create: bool,
    timeout_after: Duration,
) -> Result<(u64, u64), String> {
    let deadline = Instant::now() + timeout_after;
    let mut reason = "it cannot be reached".to_owned();
    while Instant::now() < deadline {
        if client.connection_state() == State::Connected {
            let opened = timeout(Duration::from_secs(5), stream::open(context, address, may_create)).await;
            match opened.unwrap_or_else(|_| Err(StreamError::Later("it does not answer".into()))) {
                Ok((stream, log)) => return Ok((stream.cached_info().state.last_sequence, log)),
                Err(StreamError::Never(reason)) => return Err(reason),
                Err(StreamError::Later(why)) => reason = why,
            }
        } else if let Some(problem) = health.problem() {
            reason = format!("it cannot be reached: {problem}");
            // No retry: the credentials are wrong.
            if problem.contains("authorization") {
                break;
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    Err(reason)
}
