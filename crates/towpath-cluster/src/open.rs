//! Opening a node's store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use towpath_store::StoreError;
use towpath_store::embedded::EmbeddedStore;

use crate::address::Address;
use crate::apply::Applier;
use crate::follow::{self, Follower};
use crate::health::Health;
use crate::lease;
use crate::notes::{self, Position};
use crate::publish::{self, Publisher};
use crate::requests::Requests;
use crate::stream::{self, Refusal};
use crate::{ClusterStore, Options, Running};

impl ClusterStore {
    /// Opens a node of the cluster at `address` with its replica in `folder`, which is made where it is not there.
    ///
    /// Returns once the replica has all that the log had when it was reached. A replica that was used before is also
    /// opened where the cluster cannot be used ([`towpath_store::Store::standing`] says why): it is read from, and takes writes
    /// once the cluster does. Fails with [`StoreError::Cluster`] where a new replica has no log to follow, and with
    /// [`StoreError::Open`] where the folder cannot be used.
    pub async fn open(
        address: &Address,
        folder: impl AsRef<Path>,
        options: Options,
    ) -> Result<Self, StoreError> {
        let (reader, replica) = EmbeddedStore::open_replica(&folder, &options.replica)?;
        let nodes = lease::Nodes::new(folder.as_ref());
        let (kept, sessions) = notes::load(&replica)?;
        let health = Arc::new(Health::new(
            kept.map_or(0, |position| position.at),
            kept.and_then(|position| position.mark),
        ));
        let client = connect(address, &health).await?;
        let context = jetstream::new(client.clone());
        let found = find(&client, &context, address, &health, kept.is_none(), options.connecting).await;
        let position = match (kept, &found) {
            (Some(kept), _) => kept,
            (None, Ok((_, log))) => Position { log: *log, at: 0, mark: None },
            (None, Err(reason)) => return Err(address.error(reason.clone())),
        };
        if let Err(reason) = &found {
            health.set_problem(reason.clone());
        }

        let ours = Arc::new(AtomicU64::new(0));
        let clock = options.replica.clock.clone();
        let publisher = Publisher::new(
            client.clone(),
            &address.name,
            position.log,
            clock.clone(),
            Arc::clone(&health),
            Arc::clone(&ours),
        );
        let publisher = publisher.await.map_err(|reason| address.error(reason))?;
        let (queue, requests) = mpsc::channel(publish::QUEUE);
        let (events, happened) = mpsc::unbounded_channel();
        let (messages, delivered) = mpsc::channel(follow::AHEAD);
        let applier = Applier { replica, position, sessions, ours, events, health: Arc::clone(&health) };
        let thread = std::thread::Builder::new().name("towpath-replica".into());
        let applier = thread.spawn(move || applier.run(delivered));
        let applier = applier.map_err(|e| StoreError::Write(format!("no thread for applying: {e}")))?;
        let publisher = tokio::spawn(publisher.run(requests, happened));
        let follower = Follower {
            context: context.clone(),
            address: address.clone(),
            position,
            messages,
            room: Arc::new(Semaphore::new(follow::AHEAD_KIB)),
            health: Arc::clone(&health),
        };
        let stuck = Arc::new(Notify::new());
        let follower = tokio::spawn(follower.run(Arc::clone(&stuck)));
        let watch = follow::watch(context, address.name.clone(), Arc::clone(&health), clock, stuck);
        let following = vec![follower, tokio::spawn(watch)];
        let requests = Arc::new(Requests::new(queue, Arc::clone(&health), options.patience));
        let reader = Arc::new(reader);
        let (leases, roles) = lease::Task::new(
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
        let running = Mutex::new(Some(Running { publisher, leases, following, applier }));
        let store = Self { replica: reader, health, requests, roles, running };
        if let Ok((end, _)) = found {
            store.catch_up(end).await?;
        }
        Ok(store)
    }

    /// Waits until the replica has everything up to `end`, as long as that goes on.
    async fn catch_up(&self, end: u64) -> Result<(), StoreError> {
        let mut position = self.health.position();
        let mut moved = Instant::now();
        loop {
            if *position.borrow_and_update() >= end || self.health.stopped().is_some() {
                return Ok(());
            }
            // Whether it goes on at all is not told by a place.
            if timeout(Duration::from_millis(200), position.changed()).await.is_ok() {
                moved = Instant::now();
            } else if moved.elapsed() > Duration::from_secs(30) {
                tracing::warn!(end, "catching up with the log stands still");
                moved = Instant::now();
            }
        }
    }
}

async fn connect(address: &Address, health: &Arc<Health>) -> Result<Client, StoreError> {
    let told = Arc::clone(health);
    let mut options = ConnectOptions::new()
        .name("towpath")
        .retry_on_initial_connect()
        .max_reconnects(None)
        .require_tls(address.tls)
        .connection_timeout(Duration::from_secs(2))
        // A server that stands still is left within seconds.
        .ping_interval(Duration::from_secs(1))
        .reconnect_delay_callback(|attempts| {
            Duration::from_millis(50 * attempts.saturating_sub(1).min(20) as u64)
        })
        .request_timeout(Some(Duration::from_secs(2)))
        .event_callback(move |event| {
            let told = Arc::clone(&told);
            async move {
                match event {
                    Event::ServerError(error) => told.report(error.to_string()),
                    Event::ClientError(error) => told.report(error.to_string()),
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
        options = read.map_err(|e| address.error(format!("the credentials in {}: {e}", file.display())))?;
    }
    if let Some(ca) = &address.ca {
        options = options.add_root_certificates(ca.clone());
    }
    options.connect(address.servers.clone()).await.map_err(|e| address.error(e.to_string()))
}

/// The log's end and its id, or why there is none, tried for a while.
async fn find(
    client: &Client,
    context: &Context,
    address: &Address,
    health: &Health,
    may_make: bool,
    patience: Duration,
) -> Result<(u64, u64), String> {
    let deadline = Instant::now() + patience;
    let mut reason = "it cannot be reached".to_owned();
    while Instant::now() < deadline {
        if client.connection_state() == State::Connected {
            let opened = timeout(Duration::from_secs(5), stream::open(context, address, may_make)).await;
            match opened.unwrap_or_else(|_| Err(Refusal::Later("it does not answer".into()))) {
                Ok((stream, log)) => return Ok((stream.cached_info().state.last_sequence, log)),
                Err(Refusal::Never(reason)) => return Err(reason),
                Err(Refusal::Later(why)) => reason = why,
            }
        } else if let Some(problem) = health.problem() {
            reason = format!("it cannot be reached: {problem}");
            if problem.contains("authorization") {
                break;
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    Err(reason)
}
