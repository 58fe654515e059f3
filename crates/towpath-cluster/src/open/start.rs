//! Starting the tasks of a node whose replica is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;
use towpath_store::WallClock;
use towpath_store::embedded::replica::ReplicaWriter;

use super::{AbortOnDrop, OpenReplica, OpeningNode};
use crate::apply::{Applier, LogMessage};
use crate::checkpoint::ReplicaPosition;
use crate::consumer::{self, LogConsumer};
use crate::lease;
use crate::producer::{self, Producer};
use crate::request_queue::RequestQueue;
use crate::sessions::Sessions;
use crate::upkeep::LogUpkeep;
use crate::{ClusterError, ClusterOptions, ClusterStore, StoreTasks};

/// Running tasks by which a replica takes requests and applies the log.
struct Replication {
    requests: Arc<RequestQueue>,
    /// Messages for the applying thread.
    messages: mpsc::Sender<LogMessage>,
    closing: Arc<AtomicBool>,
    producer: JoinHandle<()>,
    applier: std::thread::JoinHandle<()>,
}

impl OpeningNode {
    /// Starts the node's tasks.
    pub(super) async fn start(
        self,
        replica: OpenReplica,
        position: ReplicaPosition,
        identity: lease::NodeIdentity,
        can_begin_anew: bool,
        answering: AbortOnDrop,
        options: ClusterOptions,
    ) -> Result<ClusterStore, ClusterError> {
        let OpenReplica { reader, writer, sessions, .. } = replica;
        let clock = options.replica.clock.clone();
        let replication = self.start_replication(writer, sessions, position, &options).await?;
        let Replication { requests, messages, closing, producer, applier } = replication;
        let consumer = LogConsumer {
            context: self.context.clone(),
            address: self.address.clone(),
            position,
            messages,
            ahead: Arc::new(Semaphore::new(consumer::AHEAD_KIB)),
            health: Arc::clone(&self.health),
            supported: self.supported,
            node: self.identity,
            can_begin_anew,
        };
        let mut consuming = spawn_consumer(consumer, clock.clone());
        consuming.extend(answering.keep());
        let Self { client, context, address, health, identity: node, supported } = self;
        let reader = Arc::new(reader);
        let (leases, roles) = lease::LeaseTask::new(
            client.clone(),
            &address.name,
            Arc::clone(&reader),
            Arc::clone(&requests),
            Arc::clone(&health),
            identity,
        )
        .await
        .map_err(|reason| address.error(reason))?;
        let leases = tokio::spawn(leases.run());
        let running = Mutex::new(Some(StoreTasks { producer, leases, consuming, applier }));
        let upkeep = LogUpkeep {
            client,
            context,
            name: address.name,
            log: position.log,
            node,
            max_level: options.max_level.min(supported),
            replica: Arc::clone(&reader),
            requests: Arc::clone(&requests),
            health: Arc::clone(&health),
            clock,
            snapshots: options.snapshots,
            state: tokio::sync::Mutex::default(),
        };
        Ok(ClusterStore { replica: reader, health, requests, roles, upkeep, supported, closing, running })
    }

    /// Starts the producer and the thread that applies messages.
    async fn start_replication(
        &self,
        replica: ReplicaWriter,
        sessions: Sessions,
        position: ReplicaPosition,
        options: &ClusterOptions,
    ) -> Result<Replication, ClusterError> {
        let own_session = Arc::new(AtomicU64::new(0));
        let producer = Producer::new(
            self.client.clone(),
            &self.address.name,
            position.log,
            options.replica.clock.clone(),
            Arc::clone(&self.health),
            Arc::clone(&own_session),
        );
        let producer = producer.await.map_err(|reason| self.address.error(reason))?;
        let (queue, pending) = mpsc::channel(producer::QUEUE);
        let (events, applied) = mpsc::unbounded_channel();
        let (messages, delivered) = mpsc::channel(consumer::AHEAD);
        let closing = Arc::new(AtomicBool::new(false));
        let applier = Applier {
            closing: Arc::clone(&closing),
            replica,
            position,
            sessions,
            own_session,
            events,
            health: Arc::clone(&self.health),
            supported: self.supported,
        };
        let thread = std::thread::Builder::new().name("towpath-replica".into());
        let applier = thread.spawn(move || applier.run(delivered));
        let applier = applier.map_err(ClusterError::Thread)?;
        let producer = tokio::spawn(producer.run(pending, applied));
        let requests = Arc::new(RequestQueue::new(queue, Arc::clone(&self.health), options.timeout));
        Ok(Replication { requests, messages, closing, producer, applier })
    }
}

/// Starts the consumer, and the watch of the log's end.
fn spawn_consumer(consumer: LogConsumer, clock: WallClock) -> Vec<JoinHandle<()>> {
    let stalled = Arc::new(Notify::new());
    let (context, name) = (consumer.context.clone(), consumer.address.name.clone());
    let watch = consumer::watch(context, name, Arc::clone(&consumer.health), clock, Arc::clone(&stalled));
    vec![tokio::spawn(consumer.run(stalled)), tokio::spawn(watch)]
}
