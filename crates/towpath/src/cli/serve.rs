//! `towpath serve`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::export::{base_url, tell_of_private};
use super::{CliError, ConfigArgs, Exit, log_to_stderr, open};
use crate::client::{FetchOptions, Fetcher};
use crate::config::{Config, check_base_url, parse_duration, ten_seconds};
use crate::engine::export::keep;
use crate::engine::export::target::{self, Target};
use crate::engine::smart::Smart;
use crate::engine::{Engine, diffdelta, pages, push, replication, xmpp};
use crate::server;
use crate::source::{mirror, schedule};
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

/// The tree that is to be kept.
struct Kept {
    target: Arc<dyn Target>,
    base_url: String,
    every: Duration,
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
    let kept = args.kept(&config)?;
    let engine = open::engine(config).await?;
    let fetcher =
        Arc::new(Fetcher::new(FetchOptions::default()).map_err(|e| CliError::failed(e.to_string()))?);
    let stop = stop::on_signal();
    // Whoever connects until then waits in the listener's queue.
    if let Err(e) = diffdelta::begin(&engine).await {
        tracing::error!("cannot publish: {e}");
    }
    greet(&engine);
    let filters = engine.clone();
    tokio::spawn(async move { Smart::warm_up(&filters).await });
    let publishing = tokio::spawn(diffdelta::run(engine.clone(), stop.clone()));
    let paging = tokio::spawn(pages::run(engine.clone(), stop.clone()));
    let copying = tokio::spawn(replication::snapshot::run(engine.clone(), stop.clone()));
    let pushing = tokio::spawn(push::run(engine.clone(), stop.clone()));
    let chatting = tokio::spawn(xmpp::run(engine.clone(), stop.clone()));
    let polling = tokio::spawn(schedule::run(engine.clone(), fetcher.clone(), stop.clone()));
    let mirroring = tokio::spawn(mirror::run(engine.clone(), fetcher, stop.clone()));
    let exporting = tokio::spawn(export(engine.clone(), kept, stop.clone()));
    let served = server::serve(listener, engine.clone(), stop).await;
    for task in [polling, mirroring, publishing, paging, copying, pushing, chatting, exporting] {
        let _ = task.await;
    }
    engine.store.close().await;
    served?;
    Ok(Exit::Done)
}

/// Keeps a tree, where there is to be one.
async fn export(engine: Arc<Engine>, kept: Option<Kept>, stop: Stop) {
    let Some(Kept { target, base_url, every }) = kept else { return };
    tell_of_private(&engine);
    keep(engine, target, base_url, every, stop).await;
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
