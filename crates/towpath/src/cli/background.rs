//! Tasks of a server beside its answers: what it polls, publishes, delivers and keeps.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use towpath_client::Fetcher;

use crate::alerts::{self, AlertScope, LiveAlerts};
use crate::engine::changed_feeds::ChangedFeeds;
use crate::engine::roles::{
    self, ALERTS, DIFFDELTA, HUB, LOG, Lease, RoleTask, Roles, SCHEDULE, Shard, UPKEEP, XMPP,
};
use crate::engine::{Engine, log_upkeep, scheduled, stored_feeds};
use crate::engine::{attachments, change_counts};
use crate::protocols::diffdelta::Recovery;
use crate::protocols::replication::snapshot;
use crate::protocols::smart::Smart;
use crate::protocols::websub::pings;
use crate::protocols::{diffdelta, log_retention, pages, remote_writes, websub, xmpp};
use crate::sink;
use crate::source::fetch_permits::FetchPermits;
use crate::source::mirror;
use crate::source::schedule::{self, PollContext};
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Tasks of a server that end after its stop signal.
pub struct Background {
    pub(super) roles: Arc<Roles>,
    pub(super) following: JoinHandle<()>,
    pub(super) tasks: JoinSet<()>,
}

impl Background {
    /// Starts a server's tasks, without alerts and without a static tree. For servers that have no listener.
    ///
    /// # Errors
    ///
    /// A store that cannot be read, or not be written.
    pub async fn of(engine: &Arc<Engine>, fetcher: &Arc<Fetcher>, stop: &Stop) -> Result<Self, StoreError> {
        recover(engine).await?;
        // Without a sender it never changes.
        let alerts = watch::channel(None).1;
        Ok(Self::start(engine, fetcher, alerts, stop))
    }

    pub(super) fn start(
        engine: &Arc<Engine>,
        fetcher: &Arc<Fetcher>,
        alerts: LiveAlerts,
        stop: &Stop,
    ) -> Self {
        if let Some(transport) = fetcher.transport() {
            websub::HubState::of(engine).set_transport(transport);
        }
        let filters = engine.clone();
        tokio::spawn(async move { Smart::warm_up(&filters).await }.boxed());
        let following = tokio::spawn(remote_writes::run(engine.clone(), stop.clone()).boxed());
        tokio::spawn(stored_feeds::run(engine.clone(), stop.clone()).boxed());
        let roles = Arc::new(Roles::new(engine));
        let tasks = in_roles(engine, &roles, fetcher, alerts, stop);
        Self { roles, following, tasks }
    }

    /// Waits for the tasks that write to the store.
    pub async fn ended(mut self) {
        while self.tasks.join_next().await.is_some() {}
        let _ = self.following.await;
    }
}

/// Publishes what came while this server did not run: on a shared store before the first answer, else beside them.
///
/// # Errors
///
/// A store that cannot be read.
pub(super) async fn recover(engine: &Arc<Engine>) -> Result<(), StoreError> {
    if engine.is_shared() {
        // The listener is bound already: connections queue in its backlog until the server accepts them.
        return remote_writes::recover(engine).await;
    }
    // The task of DiffDelta publishes beside the first requests.
    Recovery::of(engine).begin();
    Ok(())
}

/// Starts the tasks that only one node of a cluster may run at a time.
fn in_roles(
    engine: &Arc<Engine>,
    roles: &Arc<Roles>,
    fetcher: &Arc<Fetcher>,
    alerts: LiveAlerts,
    stop: &Stop,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut begin = |role: String, task: RoleTask| {
        tasks.spawn(roles::run_to_the_end(roles.clone(), role, task, stop.clone()).boxed());
    };
    let at = engine.clone();
    begin(DIFFDELTA.into(), Box::new(move |lease, stop| Box::pin(diffdelta::run(at.clone(), lease, stop))));
    let (at, of, changes) = (engine.clone(), fetcher.clone(), ChangedFeeds::of(engine));
    begin(
        HUB.into(),
        Box::new(move |lease, stop| {
            let delivering = websub::run(at.clone(), lease.clone(), stop.clone());
            let telling = pings::run(at.clone(), of.clone(), changes.clone(), lease, stop);
            Box::pin(async move {
                tokio::join!(delivering, telling);
            })
        }),
    );
    if engine.config.xmpp.is_some() {
        let at = engine.clone();
        begin(XMPP.into(), Box::new(move |lease, stop| Box::pin(xmpp::run(at.clone(), lease, stop))));
    }
    let at = engine.clone();
    begin(SCHEDULE.into(), Box::new(move |lease, stop| Box::pin(scheduled::run(at.clone(), lease, stop))));
    if engine.is_shared() {
        let at = engine.clone();
        begin(LOG.into(), Box::new(move |lease, stop| Box::pin(log_upkeep::run(at.clone(), lease, stop))));
    }
    let at = engine.clone();
    begin(
        UPKEEP.into(),
        Box::new(move |lease, stop| {
            let copying = snapshot::run(at.clone(), lease.clone(), stop.clone());
            let paging = pages::run(at.clone(), lease.clone(), stop.clone());
            let at = at.clone();
            Box::pin(async move {
                let letting_go = log_retention::run(&at, &lease, stop.clone());
                let removing = attachments::run(&at, &lease, stop.clone());
                tokio::join!(paging, copying, letting_go, removing, change_counts::run(&at, &lease, stop));
            })
        }),
    );
    // Each node makes those of the requests that reach it.
    tasks.spawn(websub::finish_verifications(engine.clone(), stop.clone()).boxed());
    let delivering = sink::run(engine.clone(), fetcher.clone(), roles.clone(), stop.clone());
    tasks.spawn(delivering.boxed());
    tasks.spawn(poll_sources(engine.clone(), roles.clone(), fetcher.clone(), stop.clone()).boxed());
    // Each node has a disk and a certificate of its own.
    if engine.is_shared() {
        let node = alerts::run(engine.clone(), alerts.clone(), None, AlertScope::Node, stop.clone());
        tasks.spawn(node.boxed());
    }
    tasks.spawn(run_alerts(engine.clone(), roles.clone(), alerts, stop.clone()).boxed());
    tasks
}

/// Tells of alerts, from the first configuration on that has `[alerts]`.
async fn run_alerts(engine: Arc<Engine>, roles: Arc<Roles>, mut alerts: LiveAlerts, stop: Stop) {
    // In a cluster the lease would be held for nothing until then.
    let is_configured = tokio::select! {
        configured = alerts.wait_for(Option::is_some) => configured.is_ok(),
        () = stopped(&stop) => false,
    };
    if !is_configured {
        return;
    }
    let scope = if engine.is_shared() { AlertScope::Shared } else { AlertScope::All };
    let telling = move |lease: Lease, stop: Stop| -> BoxFuture<'static, ()> {
        Box::pin(alerts::run(engine.clone(), alerts.clone(), Some(lease), scope, stop))
    };
    roles::run_to_the_end(roles, ALERTS.into(), Box::new(telling), stop).await;
}

/// Runs the shards of the sources.
async fn poll_sources(engine: Arc<Engine>, roles: Arc<Roles>, fetcher: Arc<Fetcher>, stop: Stop) {
    // In a cluster a lease for each shard would be held for nothing until there is a source.
    let mut reloads = engine.feed_changes();
    while engine.is_shared() && engine.feeds().iter().all(|feed| feed.config.source.is_none()) {
        tokio::select! {
            _ = reloads.changed() => {}
            () = stopped(&stop) => return,
        }
    }
    // One limit for all shards, so that it holds for the node however many shards it has.
    let permits = Arc::new(FetchPermits::new(engine.config.server.fetches));
    let mut shards = JoinSet::new();
    for shard in Shard::all(&engine) {
        let polling =
            PollContext { engine: engine.clone(), fetcher: fetcher.clone(), permits: permits.clone() };
        let sources = move |lease: Lease, stop: Stop| -> BoxFuture<'static, ()> {
            let PollContext { engine, fetcher, .. } = polling.clone();
            let mirroring = mirror::run(engine, fetcher, shard, lease.clone(), stop.clone());
            let polling = schedule::run(polling.clone(), shard, lease, stop);
            Box::pin(async move {
                tokio::join!(polling, mirroring);
            })
        };
        let task = roles::run_to_the_end(roles.clone(), shard.role(), Box::new(sources), stop.clone());
        shards.spawn(task.boxed());
    }
    while shards.join_next().await.is_some() {}
}
