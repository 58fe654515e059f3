//! Opening a node's store.

mod start;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event};
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use towpath_store::embedded::EmbeddedStore;
use towpath_store::embedded::replica::ReplicaWriter;
use towpath_store::{ReplicaError, Store as _};

use crate::address::ClusterAddress;
use crate::checkpoint::{self, ReplicaPosition};
use crate::frame::LogId;
use crate::health::{NodeHealth, ProblemOrigin};
use crate::sessions::Sessions;
use crate::stream::{self, LogExtent, StreamError};
use crate::{ClusterError, ClusterOptions, ClusterStore};
use crate::{lease, level, nodes, snapshots};

impl ClusterStore {
    /// Opens a node of the cluster at `address`, with its replica in `folder`, which is created if needed.
    ///
    /// Returns once the replica has the log up to the end that it had when it was reached. An existing replica is
    /// opened even where the cluster cannot be used: it serves reads, and accepts writes once the cluster does.
    /// [`Store::replica_status`](towpath_store::Store::replica_status) has the problem.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Unusable`] where a new replica has no log to follow, [`ClusterError::TooOld`] where the log or the
    /// replica needs a newer program, and [`ClusterError::Folder`] or [`ClusterError::Replica`] where the folder cannot be
    /// used.
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
        let replica = OpenReplica::open(folder, &options)?;
        replica.check_level(address, options.supported_level)?;
        let identity = lease::NodeIdentity::new(folder);
        let position = replica.position;
        let health = Arc::new(NodeHealth::new(
            position.map_or(0, |position| position.at),
            position.and_then(|position| position.mark),
        ));
        let client = connect(address, &health).await?;
        let node = OpeningNode {
            context: jetstream::new(client.clone()),
            client,
            address: address.clone(),
            health,
            identity: identity.own(),
            supported: options.supported_level,
        };
        let found = node.find_log(position.is_none(), &options).await?;
        let log = position.map(|position| position.log).or(found.as_ref().map(|found| found.log));
        let log = log.unwrap_or_default();
        // Before a snapshot is read: the node that keeps the log must know that this one needs what follows it.
        let answering = node.spawn_answering(log);
        let mut can_begin_anew = options.snapshots.is_some();
        let replica = match &found {
            Some(found) => {
                let (replica, has_begun) =
                    begin(replica, found, address, folder, &options, &node.health).await?;
                can_begin_anew &= has_begun;
                replica
            }
            None => replica,
        };
        let position = replica.position.unwrap_or(ReplicaPosition { log, at: 0, mark: None });
        node.health.begin_at(position.at, position.mark);
        node.health.set_level(replica.writer.level().map_err(|source| unreadable(folder, source))?);
        let store = node.start(replica, position, identity, can_begin_anew, answering, options).await?;
        // A node that is far behind would serve old data: it opens only when it has caught up.
        if let Some(found) = found {
            store.catch_up(found.stream.cached_info().state.last_sequence).await;
        }
        if let Some(reason) = store.health.outdated() {
            store.close().await;
            return Err(ClusterError::TooOld { address: address.as_str().to_owned(), reason });
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

/// A node whose replica is open, and whose tasks are not all started.
struct OpeningNode {
    client: Client,
    context: Context,
    address: ClusterAddress,
    health: Arc<NodeHealth>,
    /// Identity of this node.
    identity: u64,
    /// Highest feature level that this node supports.
    supported: u8,
}

impl OpeningNode {
    /// Finds the log. Without it a new replica fails, and an existing one opens for reads.
    async fn find_log(
        &self,
        is_new: bool,
        options: &ClusterOptions,
    ) -> Result<Option<FoundLog>, ClusterError> {
        let limit = if is_new { options.first_connect_timeout } else { options.connect_timeout };
        match find(&self.client, &self.context, &self.address, &self.health, is_new, limit).await {
            Ok(found) => Ok(Some(found)),
            Err(reason) if is_new => Err(self.address.error(reason)),
            Err(reason) => {
                self.health.set_problem(ProblemOrigin::Consumer, reason);
                Ok(None)
            }
        }
    }

    /// Starts to answer other nodes that ask for this one's position.
    fn spawn_answering(&self, log: LogId) -> AbortOnDrop {
        let answering = nodes::answer(
            self.client.clone(),
            self.address.name.clone(),
            log,
            self.identity,
            self.supported,
            Arc::clone(&self.health),
        );
        AbortOnDrop(Some(tokio::spawn(answering)))
    }
}

/// Replica of a folder that is open, with its checkpoint.
struct OpenReplica {
    reader: EmbeddedStore,
    writer: ReplicaWriter,
    /// Position in the log; `None` for a new replica.
    position: Option<ReplicaPosition>,
    sessions: Sessions,
}

fn unreadable(folder: &Path, source: ReplicaError) -> ClusterError {
    ClusterError::Replica { folder: folder.display().to_string(), source }
}

impl OpenReplica {
    fn open(folder: &Path, options: &ClusterOptions) -> Result<Self, ClusterError> {
        let (reader, writer) = EmbeddedStore::open_replica(folder, &options.replica)?;
        let loaded = checkpoint::load(&writer);
        let (position, sessions) = loaded.map_err(|source| unreadable(folder, source))?;
        Ok(Self { reader, writer, position, sessions })
    }

    /// Fails where a newer version of the program has written the replica.
    fn check_level(&self, address: &ClusterAddress, supported: u8) -> Result<(), ClusterError> {
        match self.writer.level() {
            Ok(level) if level > supported => Err(ClusterError::TooOld {
                address: address.as_str().to_owned(),
                reason: level::too_old(level, supported),
            }),
            // A replica that cannot be read fails with the first message.
            _ => Ok(()),
        }
    }

    async fn close(self) {
        // The reading half waits for the engine to be unused.
        drop(self.writer);
        self.reader.close().await;
    }
}

/// Begins from a snapshot where the replica is new, or the log does not continue it any more. Returns the replica, and
/// true unless no snapshot could be used.
async fn begin(
    replica: OpenReplica,
    found: &FoundLog,
    address: &ClusterAddress,
    folder: &Path,
    options: &ClusterOptions,
    health: &NodeHealth,
) -> Result<(OpenReplica, bool), ClusterError> {
    let FoundLog { stream, log } = found;
    let info = stream.cached_info();
    if let Some(limits) = stream::own_limits(&info.config) {
        tracing::warn!(limits, "messages leave the log before their time");
    }
    let extent = LogExtent::of(&info.state);
    let is_new = replica.position.is_none();
    let at = match replica.position {
        Some(position) if position.log != *log => return Ok((replica, true)),
        position => position.map_or(0, |position| position.at),
    };
    let is_continued = extent.continues(at);
    if is_continued && (!is_new || options.snapshots.is_none()) {
        return Ok((replica, true));
    }
    let begun = match &options.snapshots {
        Some(snapshots) => {
            // The snapshot replaces the folder's files.
            replica.close().await;
            let storage = snapshots::storage_of(snapshots, &address.name, *log);
            let begun =
                snapshots::begin(&storage, stream, *log, options.supported_level, folder, health).await;
            (OpenReplica::open(folder, options)?, begun.map(drop))
        }
        None => (replica, Err("no snapshots are configured".to_owned())),
    };
    match begun {
        (replica, Ok(())) => Ok((replica, true)),
        (replica, Err(reason)) if is_continued => {
            tracing::info!(reason, "this node begins with the first message of the log");
            Ok((replica, true))
        }
        (_, Err(reason)) if is_new => Err(address.error(format!(
            "the log begins at {}, and this node has no replica: {}, and {reason}; {}",
            extent.first_sequence,
            stream::deleted(info),
            stream::BEGIN_ANEW
        ))),
        // It goes on with reads, and reports the gap.
        (replica, Err(reason)) => {
            tracing::error!(reason, "the log does not continue this node's replica");
            Ok((replica, false))
        }
    }
}

/// Task that ends with its owner, unless it is kept.
struct AbortOnDrop(Option<JoinHandle<()>>);

impl AbortOnDrop {
    fn keep(mut self) -> Option<JoinHandle<()>> {
        self.0.take()
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Log of the cluster.
struct FoundLog {
    stream: Stream,
    log: LogId,
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

/// Time after which a start that waits for the cluster says so.
const FIRST_REPORT: Duration = Duration::from_secs(3);
/// Time between such lines of the log.
const REPORT_INTERVAL: Duration = Duration::from_secs(15);

/// Finds the log. Retries until `timeout_after`, then fails with the last reason.
async fn find(
    client: &Client,
    context: &Context,
    address: &ClusterAddress,
    health: &NodeHealth,
    may_create: bool,
    timeout_after: Duration,
) -> Result<FoundLog, String> {
    let deadline = Instant::now() + timeout_after;
    let mut report_at = Instant::now() + FIRST_REPORT;
    let mut reason = "it cannot be reached".to_owned();
    while Instant::now() < deadline {
        if Instant::now() >= report_at {
            report_at += REPORT_INTERVAL;
            let seconds_left = deadline.saturating_duration_since(Instant::now()).as_secs();
            tracing::warn!(
                cluster = address.as_str(),
                reason,
                seconds_left,
                "waiting for NATS; check that its servers run at these addresses with JetStream, and can be reached from here"
            );
        }
        if client.connection_state() == State::Connected {
            let opened = timeout(Duration::from_secs(5), stream::open(context, address, may_create)).await;
            match opened.unwrap_or_else(|_| Err(StreamError::Later("it does not answer".into()))) {
                Ok((stream, log)) => return Ok(FoundLog { stream, log }),
                Err(StreamError::Never(reason) | StreamError::Removed(reason)) => return Err(reason),
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
