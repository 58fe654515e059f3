//! `towpath serve`: polls sources, follows mirrored feeds, and serves all feeds.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::future::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use towpath_client::Fetcher;
use towpath_store::StoreFailure;

use super::background::{self, Background};
use super::backup;
use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::export::{base_url, report_private};
use super::open;
use super::reload::{self, Reloader};
use super::running_server;
use super::stop_limit::{self, StopLimit};
use crate::alerts::AlertSettings;
use crate::config::{Config, ListenAddress, check_base_url, parse_duration, ten_seconds};
use crate::engine::roles::Roles;
use crate::engine::tokens::TokenSet;
use crate::engine::{Engine, watch_store};
use crate::export::{KeptTree, check_target, keep, open_target};
use crate::plural::counted;
use crate::protocols::diffdelta::Recovery;
use crate::protocols::websub::pings;
use crate::server::{self, DescriptorBudget, Listeners, TlsIdentity};
use crate::stop::{self, Stop};
use crate::wall_clock;

/// Time for which the first requests wait for feeds that are being published.
const START: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address to listen on: HOST:PORT, unix:PATH or systemd; repeatable [default: the configuration's, or
    /// 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<ListenAddress>,
    /// Public URL of the server, if it differs from the listening address
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    /// Keep a static copy of every feed up to date in a folder, or at s3://bucket/prefix, gs:// or az://
    #[arg(long, value_name = "DEST")]
    export: Option<String>,
    /// Public URL of the static copy [default: the configuration's, or the server's]
    #[arg(long, value_name = "URL")]
    export_base_url: Option<String>,
    /// Minimum time between two exports [default: the configuration's, or 10s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    export_every: Option<Duration>,
}

impl ServeArgs {
    /// Puts the options in the place of the configuration's keys.
    fn override_in(&self, config: &mut Config) -> Result<(), CliError> {
        if !self.listen.is_empty() {
            config.server.listen = self.listen.clone().into();
        }
        if let Some(mut base) = self.base_url.clone() {
            check_base_url(&mut base).map_err(|e| CliError::usage(format!("--base-url: {e}")))?;
            config.server.base_url = Some(base);
        }
        Ok(())
    }

    fn kept_tree(&self, config: &Config) -> Result<Option<KeptTree>, CliError> {
        let of_config = config.export.as_ref();
        let Some(place) = self.export.clone().or_else(|| of_config.map(|export| export.to.clone())) else {
            return Ok(None);
        };
        check_target(&place, &config.server.data)?;
        let every = self.export_every.or_else(|| of_config.map(|export| export.every));
        Ok(Some(KeptTree {
            target: open_target(&place)?,
            base_url: base_url(self.export_base_url.clone(), config)?,
            every: every.unwrap_or_else(ten_seconds),
        }))
    }
}

pub(crate) async fn serve(args: ServeArgs) -> Result<Exit, CliError> {
    let mut config = args.config.load()?;
    // As the files have it: options are not compared with the files later.
    let loaded = config.clone();
    args.override_in(&mut config)?;
    // Read before anything is opened: most mistakes are in these files.
    let tls = config.server.tls.clone().map(TlsIdentity::load).transpose()?.map(Arc::new);
    // Bound before the store is opened: a port in use must not leave a data folder behind.
    let listeners = Listeners::open(&config.server.listen)?;
    // With port 0 the system chose a free port; URLs need the actual one.
    config.server.listen = listeners.addresses().into();
    let settings = AlertSettings::of(&config, &config.base_url()).map_err(CliError::usage)?;
    let (new_alerts, alerts) = watch::channel(settings);
    warn_about(&config);
    let kept = args.kept_tree(&config)?;
    // Before the store is opened, which plans with its part of the descriptors.
    let deliveries = config.hub.connections + config.hub.slow_connections + pings::connections();
    let budget = DescriptorBudget::raise(config.server.fetches + deliveries);
    budget.log();
    let mut listeners = listeners.start()?;
    let (engine, fetcher) = tokio::select! {
        opened = open_engine(config, &budget, tls.as_deref()) => opened?,
        never = server::answer_starting(&mut listeners, tls.as_deref()) => match never {},
    };
    // After the store is open: until then a signal may simply end the process.
    let (stopper, stop) = stop::on_signal_or_request();
    let limit = stop_limit::limit(engine.is_shared());
    let stopping = StopLimit::watch(engine.store.clone(), limit, stop.clone());
    background::recover(&engine).await?;
    let hangups =
        reload::hangups().map_err(|e| CliError::failed(format!("cannot listen for SIGHUP: {e}")))?;
    let reloader = Reloader {
        args: args.config.clone(),
        engine: engine.clone(),
        tls: tls.clone(),
        budget,
        alerts: new_alerts,
        current: loaded,
        count: 0,
    };
    let reloading = tokio::spawn(reloader.run(hangups, stop.clone()));
    let copying = tokio::spawn(backup::serve(engine.clone(), stop.clone()).boxed());
    announce(&engine);
    let background = Background::start(&engine, &fetcher, alerts, &stop);
    let exporting = export(engine.clone(), background.roles.clone(), fetcher.clone(), kept, stop.clone());
    let exporting = tokio::spawn(exporting.boxed());
    let watching = tokio::spawn(stop_on_store_failure(engine.clone(), stopper, stop.clone()));
    // Few feeds are published by then, and the first request finds the server ready.
    let _ = timeout(START, Recovery::of(&engine).ended()).await;
    stopping.waits_for("running answers");
    let served = server::serve(listeners, engine.clone(), budget, tls, stop).await;
    let tasks = ServeTasks { background, exporting, reloading, copying, watching };
    let failure = tasks.ended(&stopping).await;
    running_server::forget(&engine);
    stopping.waits_for("the store");
    engine.store.close().await;
    served?;
    failure.map_or(Ok(Exit::Done), |failure| Err(stopped_by(&failure)))
}

fn stopped_by(failure: &StoreFailure) -> CliError {
    let reason = &failure.reason;
    CliError::failed(format!(
        "the store takes no writes ({reason}) and could not be opened again; start the process again"
    ))
}

/// Opens the engine, and the HTTP client of its sources.
async fn open_engine(
    config: Config,
    budget: &DescriptorBudget,
    tls: Option<&TlsIdentity>,
) -> Result<(Arc<Engine>, Arc<Fetcher>), CliError> {
    let engine = open::server_engine(config, budget).await?;
    if let Some(tls) = tls {
        engine.extensions.get_or_insert_with(|| tls.certificate_end().clone());
    }
    let fetcher = Arc::new(open::fetcher(&engine.config)?);
    // For the checks of the web page.
    engine.extensions.get_or_insert_with(|| fetcher.memory().clone());
    Ok((engine, fetcher))
}

/// Tasks of a server beside its answers, which end after its stop signal.
struct ServeTasks {
    background: Background,
    exporting: JoinHandle<()>,
    reloading: JoinHandle<()>,
    copying: JoinHandle<()>,
    watching: JoinHandle<Option<Arc<StoreFailure>>>,
}

impl ServeTasks {
    /// Waits for the tasks. Returns the failure for which the server stops, if there is one.
    async fn ended(mut self, stopping: &StopLimit) -> Option<Arc<StoreFailure>> {
        // Background tasks end before the store closes, so that their last writes succeed.
        stopping.waits_for("background tasks");
        while self.background.tasks.join_next().await.is_some() {}
        stopping.waits_for("the export");
        let _ = self.exporting.await;
        stopping.waits_for("writes of other nodes");
        let _ = self.background.following.await;
        stopping.waits_for("a reload");
        let _ = self.reloading.await;
        stopping.waits_for("a backup");
        let _ = self.copying.await;
        self.watching.await.ok().flatten()
    }
}

/// Stops the server once its store fails for good.
async fn stop_on_store_failure(
    engine: Arc<Engine>,
    stopper: Arc<watch::Sender<bool>>,
    stop: Stop,
) -> Option<Arc<StoreFailure>> {
    let failure = watch_store(&engine, &stop).await?;
    // A process that can write nothing is of less use than one that its supervisor starts again.
    let _ = stopper.send(true);
    Some(failure)
}

/// Warns of settings that break or endanger a server that other machines can reach.
fn warn_about(config: &Config) {
    let server = &config.server;
    if server.listen.is_unspecified() && server.base_url.is_none() {
        let local = config.local_url();
        tracing::warn!(
            url = local,
            "documents contain a URL that other machines cannot reach: set [server] base_url"
        );
    }
    if !server.is_local() && server.listen.is_loopback() && server.trusted_proxies.is_empty() {
        tracing::warn!(
            "clients behind the proxy cannot be told apart, so limits per client do not hold: set [server] \
             trusted_proxies to the proxy's address"
        );
    }
    if TokenSet::new(config).is_open() && !server.is_local() {
        tracing::warn!(
            base_url = server.base_url,
            "nobody can publish over HTTP: base_url is public and there is no token; set [server] tokens"
        );
    }
}

/// Keeps the static tree up to date, if one is configured.
async fn export(
    engine: Arc<Engine>,
    roles: Arc<Roles>,
    fetcher: Arc<Fetcher>,
    kept: Option<KeptTree>,
    stop: Stop,
) {
    let Some(kept) = kept else { return };
    report_private(&engine);
    keep(engine, roles, fetcher, kept, stop).await;
}

/// Tells commands and the operator that the server runs.
fn announce(engine: &Engine) {
    if let Err(e) = running_server::record(engine) {
        tracing::warn!(error = %e, "commands do not find this server by its data folder, and need --server");
    }
    for warning in engine.config.warnings_of_unknown_feeds(|id| engine.feed(id).is_some()) {
        tracing::warn!("{warning}");
    }
    wall_clock::compare_at_start(engine.feeds().iter().filter_map(|feed| feed.last_append()).max());
    tokio::spawn(wall_clock::watch());
    greet(engine);
}

/// Prints the URLs to open. A closed standard output is ignored.
fn greet(engine: &Engine) {
    let base = &engine.base_url;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "towpath serves {} at {base}/", counted(engine.feed_count(), "feed"));
    let _ = writeln!(out, "  {base}/.well-known/diffdelta.json");
    let _ = writeln!(out, "  {base}/diff/latest.json");
    // A node may have thousands of feeds.
    for feed in engine.feeds().iter().take(20) {
        let _ = writeln!(out, "  {base}/feeds/{}", feed.id());
    }
    let _ = out.flush();
}
