//! Leases: the task that keeps this node's roles.
//!
//! Heartbeats are plain messages beside the log, which they would only make longer. Rows are read from the replica and
//! written through the log, on the condition of the row before.

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
use towpath_store::embedded::command::Command;
use towpath_store::lease::{Holding, Lease, Row, key};
use towpath_store::{Condition, Store, StoreError, Table, Write};

use self::keeper::{Claim, Keeper, name_hash};
use crate::health::Health;
use crate::publish::Reply;
use crate::requests::Requests;

const BEAT: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(250);

/// A role that is asked for, and who is told whether this node has it.
type Wanted = (String, watch::Sender<Option<Lease>>);

/// Where roles are asked for.
pub(crate) struct Roles {
    /// `None` once the store is closed.
    wanted: Mutex<Option<mpsc::UnboundedSender<Wanted>>>,
}

impl Roles {
    /// Asks for a role.
    pub(crate) fn hold(&self, role: &str) -> Holding {
        let (sender, receiver) = watch::channel(None);
        if let Some(wanted) = &*self.wanted.lock() {
            // Where the task has ended, so has the store.
            drop(wanted.send((role.to_owned(), sender)));
        }
        Holding::new(receiver)
    }

    /// Lets go of every role.
    pub(crate) fn close(&self) {
        self.wanted.lock().take();
    }
}

/// Who a node is: another one each time its store is opened.
pub(crate) struct Nodes {
    own: u64,
    /// Who had this folder before, and is gone, for one at a time has it.
    before: Option<u64>,
}

impl Nodes {
    /// A new one, noted in the node's folder. Where that cannot be, what this one holds is free a little later.
    pub(crate) fn new(folder: &Path) -> Self {
        let file = folder.join("node");
        let before = std::fs::read_to_string(&file).ok();
        let before = before.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let own = fastrand::u64(1..);
        if let Err(e) = std::fs::write(&file, format!("{own:016x}\n")) {
            tracing::debug!("{}: {e}", file.display());
        }
        Self { own, before }
    }
}

/// The task.
pub(crate) struct Task {
    beats: Subscriber,
    /// What this node's heartbeats say; nothing as long as it wants no role.
    says: watch::Sender<Option<Vec<u8>>>,
    own: u64,
    keeper: Keeper,
    /// Who holds each role here, or wants to.
    holdings: HashMap<String, watch::Sender<Option<Lease>>>,
    wanted: mpsc::UnboundedReceiver<Wanted>,
    replica: Arc<EmbeddedStore>,
    requests: Arc<Requests>,
    health: Arc<Health>,
}

impl Task {
    /// The task, and where roles are asked for.
    pub(crate) async fn new(
        client: Client,
        name: &str,
        replica: Arc<EmbeddedStore>,
        requests: Arc<Requests>,
        health: Arc<Health>,
        nodes: Nodes,
    ) -> Result<(Self, Roles), String> {
        let subject = format!("{name}.alive");
        let beats = client.subscribe(subject.clone()).await.map_err(|e| e.to_string())?;
        let Nodes { own, before } = nodes;
        let (sender, wanted) = mpsc::unbounded_channel();
        let (mut keeper, holdings) = (Keeper::new(own), HashMap::new());
        if let Some(before) = before {
            keeper.gone(before, Instant::now());
        }
        let (says, said) = watch::channel(None);
        tokio::spawn(beat(client, subject, said));
        let task = Self { beats, says, own, keeper, holdings, wanted, replica, requests, health };
        Ok((task, Roles { wanted: Mutex::new(Some(sender)) }))
    }

    /// Runs until the store is closed; then lets go of what it holds.
    pub(crate) async fn run(mut self) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                wanted = self.wanted.recv() => match wanted {
                    Some((role, sender)) => {
                        self.keeper.want(&role);
                        self.holdings.insert(role, sender);
                        self.say();
                    }
                    None => break,
                },
                Some(message) = self.beats.next() => {
                    let (words, _) = message.payload.as_chunks::<8>();
                    let mut words = words.iter().map(|word| u64::from_be_bytes(*word));
                    if let Some(node) = words.next().filter(|node| *node != self.own) {
                        let wants = (words.len() > 0).then(|| words.collect());
                        self.keeper.heard(node, wants, Instant::now());
                    }
                }
                _ = tick.tick() => self.tick().await,
            }
        }
        let roles: Vec<_> = self.holdings.drain().map(|(role, _)| role).collect();
        let left = roles.iter().filter_map(|role| self.keeper.leave(role)).collect();
        self.write(left).await;
    }

    async fn tick(&mut self) {
        self.say();
        let left: Vec<_> =
            self.holdings.iter().filter(|(_, s)| s.is_closed()).map(|(r, _)| r.clone()).collect();
        for role in &left {
            self.holdings.remove(role);
        }
        if !left.is_empty() {
            let left = left.iter().filter_map(|role| self.keeper.leave(role)).collect();
            self.say();
            self.write(left).await;
        }
        // In this order: the rows that are read now are at least as new as that.
        let current = self.health.caught_up();
        self.read_rows().await;
        if let Some(current) = current {
            self.keeper.current_at(current);
        }
        // What is lost is told before anything that takes time.
        let gift = self.keeper.gift(Instant::now());
        self.tell();
        self.write(gift.into_iter().collect()).await;
        let claims = self.keeper.claims(Instant::now());
        if !claims.is_empty() {
            self.write(claims).await;
            self.read_rows().await;
            self.tell();
        }
    }

    /// Heartbeats name this node and the roles that it wants.
    fn say(&self) {
        let wanted = self.keeper.wanted().map(name_hash);
        let words: Vec<u64> = [self.own].into_iter().chain(wanted).collect();
        // Who wants no role is not to be given any, and who cannot go on is to be replaced.
        let speaks = words.len() > 1 && self.health.stopped().is_none();
        let says = speaks.then(|| words.into_iter().flat_map(u64::to_be_bytes).collect());
        self.says.send_if_modified(|said| {
            let changed = *said != says;
            *said = says;
            changed
        });
    }

    async fn read_rows(&mut self) {
        let roles: Vec<_> = self.keeper.wanted().map(str::to_owned).collect();
        for role in roles {
            // A replica that cannot be read is closed, or gives its roles up soon.
            if let Ok(value) = self.replica.get(Table::Leases, &key(&role)).await {
                let row = value.and_then(|value| Row::decode(&value));
                self.keeper.row(&role, row, Instant::now());
            }
        }
    }

    fn tell(&self) {
        let now = Instant::now();
        for (role, sender) in &self.holdings {
            let lease = self.keeper.lease(role, now);
            sender.send_if_modified(|current| {
                let changed = *current != lease;
                *current = lease;
                changed
            });
        }
    }

    /// Writes rows, each on the condition of the one before it.
    async fn write(&self, claims: Vec<Claim>) {
        let write = async |Claim { role, before, after }: Claim| {
            let (table, key) = (Table::Leases, key(&role));
            let condition = Condition { table, key: key.clone(), value: before.map(Row::encode) };
            let write = Write { table, key, value: Some(after.encode()) };
            let command = Command::write(vec![write], vec![condition])?;
            self.requests.ask(&command, Reply::Write).await?
        };
        for done in join_all(claims.into_iter().map(write)).await {
            match done {
                Ok(()) | Err(StoreError::Condition | StoreError::Closed) => {}
                Err(error) => tracing::warn!(%error, "a role could not be taken or left"),
            }
        }
    }
}

/// Sends heartbeats, whatever the task that leads them is waiting for, until that ends.
async fn beat(client: Client, subject: String, mut says: watch::Receiver<Option<Vec<u8>>>) {
    loop {
        let payload = says.borrow_and_update().clone();
        if let Some(payload) = payload {
            // A beat that is not heard is what others have to notice.
            drop(client.publish(subject.clone(), payload.into()).await);
        }
        tokio::select! {
            () = sleep(BEAT) => {}
            changed = says.changed() => if changed.is_err() { return },
        }
    }
}
