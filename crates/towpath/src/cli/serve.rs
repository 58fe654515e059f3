//! `towpath serve`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use url::Url;

use super::export::{base_url, tell_of_private};
use super::{CliError, ConfigArgs, Exit, log_to_stderr, open};
use crate::client::{FetchOptions, Fetcher};
use crate::config::{Config, check_base_url, parse_duration, ten_seconds};
use crate::engine::export::{Kept, keep, target};
use crate::engine::replication::snapshot;
use crate::engine::roles::{self, DIFFDELTA, HUB, Lease, Roles, Shard, UPKEEP, XMPP};
use crate::engine::smart::Smart;
use crate::engine::{Engine, diffdelta, pages, push, replica, xmpp};
use crate::server;
use crate::source::mirror;
use crate::source::schedule::{self, Polling};
use crate::stop::{self, Stop};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Where to listen [default: the configuration's, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// The address that readers use, where it is not http:// and the listening address
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Keep a static tree of every feed current: a folder, or s3://bucket/prefix and the like
    #[arg(long, value_name = "DEST")]
    export: Option<String>,
    /// The address that the tree's readers use [default: the configuration's, or the server's]
    #[arg(long, value_name = "URL")]
    export_base_url: Option<String>,
    /// The shortest time between two exports [default: the configuration's, or 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    export_every: Option<Duration>,
}

impl ServeArgs {
    fn kept(&self, config: &Config) -> Result<Option<Kept>, CliError> {
        let of_config = config.export.as_ref();
        let Some(place) = self.export.clone().or_else(|| of_config.map(|export| export.to.clone())) else {
            return Ok(None);
        };
        let every = self.export_every.or_else(|| of_config.map(|export| export.every));
        Ok(Some(Kept {
            target: target::open(&place)?,
            base_url: base_url(self.export_base_url.clone(), config)?,
            every: every.unwrap_or_else(ten_seconds),
        }))
    }
}

pub(crate) async fn serve(args: ServeArgs) -> Result<Exit, CliError> {
    log_to_stderr();
    let mut config = args.config.load()?;
    if let Some(listen) = args.listen {
        config.server.listen = listen;
    }
    if let Some(mut base) = args.base_url.clone() {
        check_base_url(&mut base).map_err(|e| CliError::usage(format!("--base-url: {e}")))?;
        config.server.base_url = Some(base);
    }
    let listener = server::listen(config.server.listen)?;
    // Port 0 asks for any free port: from here on it is known which.
    config.server.listen = listener.local_addr().map_err(|e| CliError::failed(e.to_string()))?;
    warn_of(&config);
    let kept = args.kept(&config)?;
    let engine = open::engine(config).await?;
    let fetcher =
        Arc::new(Fetcher::new(FetchOptions::default()).map_err(|e| CliError::failed(e.to_string()))?);
    let stop = stop::on_signal();
    // Whoever connects until then waits in the listener's queue.
    if engine.is_shared() {
        replica::begin(&engine).await?;
    } else if let Err(e) = diffdelta::begin(&engine).await {
        tracing::error!("cannot publish: {e}");
    }
    greet(&engine);
    let filters = engine.clone();
    tokio::spawn(async move { Smart::warm_up(&filters).await });
    let following = tokio::spawn(replica::run(engine.clone(), stop.clone()));
    let roles = Arc::new(Roles::new(&engine));
    let exporting = tokio::spawn(export(engine.clone(), roles.clone(), kept, stop.clone()));
    let mut tasks = in_roles(&engine, &roles, &fetcher, &stop);
    let served = server::serve(listener, engine.clone(), stop).await;
    while tasks.join_next().await.is_some() {}
    let _ = exporting.await;
    let _ = following.await;
    engine.store.close().await;
    served?;
    Ok(Exit::Done)
}

/// Says what others who are to reach the server would find amiss.
fn warn_of(config: &Config) {
    let server = &config.server;
    if server.listen.ip().is_unspecified() && server.base_url.is_none() {
        let local = config.local_url();
        tracing::warn!("every document says {local}, where no other machine finds it: set [server] base_url");
    }
    let base = server.base_url.as_deref();
    let host = base.and_then(|base| Some(Url::parse(base).ok()?.host_str()?.to_owned()));
    if server.tokens.is_empty() && host.is_some_and(|host| !server::is_local(&host)) {
        tracing::warn!(
            "without tokens, whatever a proxy on this machine passes on may be taken for a local program and may \
             publish: set [server] tokens, since others reach this server at {}",
            base.unwrap_or_default()
        );
    }
}

/// Keeps a tree, where there is to be one.
async fn export(engine: Arc<Engine>, roles: Arc<Roles>, kept: Option<Kept>, stop: Stop) {
    let Some(kept) = kept else { return };
    tell_of_private(&engine);
    keep(engine, roles, kept, stop).await;
}

/// Begins what only one node may do at a time.
fn in_roles(engine: &Arc<Engine>, roles: &Arc<Roles>, fetcher: &Arc<Fetcher>, stop: &Stop) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut begin = |role: String, task: Task| {
        tasks.spawn(in_role(roles.clone(), role, task, stop.clone()));
    };
    let at = engine.clone();
    begin(DIFFDELTA.into(), Box::new(move |lease, stop| Box::pin(diffdelta::run(at.clone(), lease, stop))));
    let at = engine.clone();
    begin(HUB.into(), Box::new(move |lease, stop| Box::pin(push::run(at.clone(), lease, stop))));
    if engine.config.xmpp.is_some() {
        let at = engine.clone();
        begin(XMPP.into(), Box::new(move |lease, stop| Box::pin(xmpp::run(at.clone(), lease, stop))));
    }
    let at = engine.clone();
    begin(
        UPKEEP.into(),
        Box::new(move |lease, stop| {
            let copying = snapshot::run(at.clone(), lease.clone(), stop.clone());
            let paging = pages::run(at.clone(), lease, stop);
            Box::pin(async move {
                tokio::join!(paging, copying);
            })
        }),
    );
    let places = Arc::new(Semaphore::new(engine.config.server.fetches.max(1)));
    let polling = Polling { engine: engine.clone(), fetcher: fetcher.clone(), places };
    let has_sources = engine.config.feeds.iter().any(|feed| feed.source.is_some());
    for shard in Shard::all(engine).filter(|_| has_sources) {
        let polling = polling.clone();
        let sources = move |lease: Lease, stop: Stop| -> BoxFuture<'static, ()> {
            let Polling { engine, fetcher, .. } = polling.clone();
            let mirroring = mirror::run(engine, fetcher, shard, lease.clone(), stop.clone());
            let polling = schedule::run(polling.clone(), shard, lease, stop);
            Box::pin(async move {
                tokio::join!(polling, mirroring);
            })
        };
        begin(shard.role(), Box::new(sources));
    }
    tasks
}

type Task = Box<dyn Fn(Lease, Stop) -> BoxFuture<'static, ()> + Send + Sync>;

async fn in_role(roles: Arc<Roles>, role: String, task: Task, stop: Stop) {
    let task = Arc::new(task);
    let run = || {
        let (roles, role, task, stop) = (roles.clone(), role.clone(), task.clone(), stop.clone());
        async move { roles.run_while_held(&role, stop, |lease, stop| task(lease, stop)).await }
    };
    roles::to_the_end(&role, run).await;
}

/// Prints the addresses to open. A closed standard output is no reason not to serve.
fn greet(engine: &Engine) {
    let base = &engine.base_url;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "towpath serves {} feeds at {base}/", engine.feeds().len());
    let _ = writeln!(out, "  {base}/.well-known/diffdelta.json");
    let _ = writeln!(out, "  {base}/diff/latest.json");
    for feed in engine.feeds().iter().take(20) {
        let _ = writeln!(out, "  {base}/feeds/{}", feed.id());
    }
    let _ = out.flush();
}
