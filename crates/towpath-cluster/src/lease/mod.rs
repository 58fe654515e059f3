//! Leases: the task that acquires and renews this node's roles.
//!
//! Heartbeats are plain NATS messages, because in the log they would only make it longer. Lease rows are read from
//! the replica, and written through the log with the previous row as precondition.

mod keeper;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use towpath_store::embedded::EmbeddedStore;
use towpath_store::embedded::command::LogCommand;
use towpath_store::lease::{Lease, LeaseHandle, LeaseRow, key};
use towpath_store::{Precondition, Store, Table, TableWrite, WriteError};

use self::keeper::{LeaseClaim, LeaseKeeper, name_hash};
use crate::health::NodeHealth;
use crate::producer::ReplySender;
use crate::request_queue::RequestQueue;

/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Interval of lease decisions.
const TICK: Duration = Duration::from_millis(250);

/// Requested role, and the channel that grants and revokes its lease.
type RoleRequest = (String, watch::Sender<Option<Lease>>);

/// Sending half of role requests.
pub(crate) struct RoleRequests {
    /// `None` once the store is closed.
    requests: Mutex<Option<mpsc::UnboundedSender<RoleRequest>>>,
}

impl RoleRequests {
    /// Requests a role.
    pub(crate) fn acquire_lease(&self, role: &str) -> LeaseHandle {
        let (sender, receiver) = watch::channel(None);
        if let Some(requests) = &*self.requests.lock() {
            // The task ends only with the store: then the handle is never granted.
            drop(requests.send((role.to_owned(), sender)));
        }
        LeaseHandle::new(receiver)
    }

    /// Ends the task, which releases every role.
    pub(crate) fn close(&self) {
        self.requests.lock().take();
    }
}

/// Identity of a node, which is new each time its store is opened.
pub(crate) struct NodeIdentity {
    own: u64,
    /// Identity that used this folder before. Its process has ended, because the folder is locked by one at a time.
    previous: Option<u64>,
}

impl NodeIdentity {
    /// Returns this node's identity.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// Draws an identity, and stores it in the node's folder.
    ///
    /// If that fails, the next process there takes over its roles only after the heartbeat timeout.
    pub(crate) fn new(folder: &Path) -> Self {
        let file = folder.join("node");
        let previous = std::fs::read_to_string(&file).ok();
        let previous = previous.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let own = fastrand::u64(1..);
        if let Err(e) = std::fs::write(&file, format!("{own:016x}\n")) {
            tracing::debug!(file = %file.display(), error = %e, "cannot store the identity of this node");
        }
        Self { own, previous }
    }
}

/// State of the lease task.
pub(crate) struct LeaseTask {
    heartbeats: Subscriber,
    /// Payload of this node's heartbeats; `None` while it requests no role.
    payload: watch::Sender<Option<Vec<u8>>>,
    own: u64,
    keeper: LeaseKeeper,
    /// Handles of requested roles.
    handles: HashMap<String, watch::Sender<Option<Lease>>>,
    role_requests: mpsc::UnboundedReceiver<RoleRequest>,
    replica: Arc<EmbeddedStore>,
    requests: Arc<RequestQueue>,
    health: Arc<NodeHealth>,
}

impl LeaseTask {
    /// Creates the task, and the sending half of its requests.
    pub(crate) async fn new(
        client: Client,
        name: &str,
        replica: Arc<EmbeddedStore>,
        requests: Arc<RequestQueue>,
        health: Arc<NodeHealth>,
        identity: NodeIdentity,
    ) -> Result<(Self, RoleRequests), String> {
        let subject = format!("{name}.alive");
        let heartbeats = client.subscribe(subject.clone()).await.map_err(|e| e.to_string())?;
        let NodeIdentity { own, previous } = identity;
        let (sender, role_requests) = mpsc::unbounded_channel();
        let (mut keeper, handles) = (LeaseKeeper::new(own), HashMap::new());
        if let Some(previous) = previous {
            keeper.node_ended(previous, Instant::now());
        }
        let (payload, payloads) = watch::channel(None);
        tokio::spawn(send_heartbeats(client, subject, payloads));
        let task =
            Self { heartbeats, payload, own, keeper, handles, role_requests, replica, requests, health };
        Ok((task, RoleRequests { requests: Mutex::new(Some(sender)) }))
    }

    /// Runs until the store is closed, and then releases its roles.
    pub(crate) async fn run(mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                request = self.role_requests.recv() => match request {
                    Some((role, sender)) => {
                        self.keeper.request(&role);
                        self.handles.insert(role, sender);
                        self.update_heartbeat();
                    }
                    None => break,
                },
                Some(message) = self.heartbeats.next() => {
                    let (words, _) = message.payload.as_chunks::<8>();
                    let mut words = words.iter().map(|word| u64::from_be_bytes(*word));
                    if let Some(node) = words.next().filter(|node| *node != self.own) {
                        // Nodes of the first versions do not send the roles that they request.
                        let roles = (words.len() > 0).then(|| words.collect());
                        self.keeper.heartbeat(node, roles, Instant::now());
                    }
                }
                _ = tick.tick() => self.tick().await,
            }
        }
        let roles: Vec<_> = self.handles.drain().map(|(role, _)| role).collect();
        let releases = roles.iter().filter_map(|role| self.keeper.release(role)).collect();
        self.write(releases).await;
    }

    async fn tick(&mut self) {
        self.update_heartbeat();
        let dropped: Vec<_> =
            self.handles.iter().filter(|(_, s)| s.is_closed()).map(|(r, _)| r.clone()).collect();
        for role in &dropped {
            self.handles.remove(role);
        }
        if !dropped.is_empty() {
            let releases = dropped.iter().filter_map(|role| self.keeper.release(role)).collect();
            self.update_heartbeat();
            self.write(releases).await;
        }
        // In this order: the rows that are read next are at least as new as that time.
        let current = self.health.caught_up();
        self.read_rows().await;
        if let Some(current) = current {
            self.keeper.renew(current);
        }
        // Lost leases are revoked before anything that takes time.
        let handover = self.keeper.handover(Instant::now());
        self.update_handles();
        self.write(handover.into_iter().collect()).await;
        let claims = self.keeper.acquisitions(Instant::now());
        if !claims.is_empty() {
            self.write(claims).await;
            self.read_rows().await;
            self.update_handles();
        }
    }

    /// Sets the heartbeat's payload: this node, and hashes of the roles that it requests.
    fn update_heartbeat(&self) {
        let requested = self.keeper.requested().map(name_hash);
        let words: Vec<u64> = [self.own].into_iter().chain(requested).collect();
        // A node without requests must not be handed a role, and a stopped node must be replaced: both are silent.
        let is_alive = words.len() > 1 && self.health.stopped().is_none();
        let payload = is_alive.then(|| words.into_iter().flat_map(u64::to_be_bytes).collect());
        self.payload.send_if_modified(|current| {
            let changed = *current != payload;
            *current = payload;
            changed
        });
    }

    async fn read_rows(&mut self) {
        let roles: Vec<_> = self.keeper.requested().map(str::to_owned).collect();
        for role in roles {
            // A replica that cannot be read is closed, or loses its leases soon by their terms.
            if let Ok(value) = self.replica.get(Table::Leases, &key(&role)).await {
                let row = value.and_then(|value| LeaseRow::decode(&value));
                self.keeper.set_row(&role, row, Instant::now());
            }
        }
    }

    /// Grants and revokes leases.
    fn update_handles(&self) {
        let now = Instant::now();
        for (role, sender) in &self.handles {
            let lease = self.keeper.lease(role, now);
            sender.send_if_modified(|current| {
                let changed = *current != lease;
                *current = lease;
                changed
            });
        }
    }

    /// Writes rows, each with the previous row as precondition.
    async fn write(&self, claims: Vec<LeaseClaim>) {
        let write = async |LeaseClaim { role, before, after }: LeaseClaim| {
            let (table, key) = (Table::Leases, key(&role));
            let condition = Precondition { table, key: key.clone(), value: before.map(LeaseRow::encode) };
            let write = TableWrite { table, key, value: Some(after.encode()) };
            let command = LogCommand::write(vec![write], vec![condition])?;
            self.requests.request(&command, ReplySender::Write).await?
        };
        // All at once: each write waits for a round trip through the log.
        for done in join_all(claims.into_iter().map(write)).await {
            match done {
                // A failed precondition is another node that was faster: the next tick reads its row.
                Ok(()) | Err(WriteError::Precondition { .. } | WriteError::Closed) => {}
                Err(error) => tracing::warn!(%error, "cannot acquire or release a role"),
            }
        }
    }
}

/// Sends heartbeats until the lease task ends, even while that task waits for the log.
async fn send_heartbeats(client: Client, subject: String, mut payloads: watch::Receiver<Option<Vec<u8>>>) {
    loop {
        let payload = payloads.borrow_and_update().clone();
        if let Some(payload) = payload {
            // An error is ignored: other nodes notice a missing heartbeat.
            drop(client.publish(subject.clone(), payload.into()).await);
        }
        tokio::select! {
            () = sleep(HEARTBEAT) => {}
            changed = payloads.changed() => if changed.is_err() { return },
        }
    }
}
