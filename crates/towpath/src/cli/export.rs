//! `towpath export`: writes every feed as a static tree.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use towpath_client::Fetcher;

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::open;
use super::progress::{LateBar, PUBLISHING, patiently};
use super::running_server::{FolderUser, user_of};
use super::style::print_done;
use crate::config::{Config, check_base_url};
use crate::engine::{Engine, roles};
use crate::export::target::Target;
use crate::export::{ExportSummary, ExportedFeeds, Tree, name_of, open_target};
use crate::plural::counted;
use crate::protocols::diffdelta;
use crate::protocols::websub::pings::{PingHealth, PingSite, Pinger};

/// Longest time in which hubs are told of the tree's changes.
const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// Time to wait for the tree's lease: longer than the lease of a dead node lasts.
const LEASE_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Destination: a folder, or s3://bucket/prefix, gs://bucket/prefix, az://container/prefix
    /// [default: the configuration's [export]]
    dest: Option<String>,
    /// Public URL of the exported tree [default: the configuration's]
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Exports once and prints a summary to standard error.
pub(crate) async fn export(args: ExportArgs) -> Result<Exit, CliError> {
    let config = args.config.load()?;
    let place = args.dest.or_else(|| config.export.as_ref().map(|export| export.to.clone()));
    let place = place.ok_or_else(|| {
        CliError::usage("no destination: name a folder or a URL, or set [export] to in the configuration")
    })?;
    let base_url = base_url(args.base_url, &config)?;
    let target = open_target(&place)?;
    // Checked first for a useful message: opening the store would only say that it is locked.
    refuse_beside_server(&config, &place)?;
    let engine = open::engine(config).await?;
    let fetcher = Arc::new(open::fetcher(&engine.config)?);
    let done = export_once(&engine, fetcher, target, &base_url).await;
    engine.store.close().await;
    let summary = done?;
    report_private(&engine);
    print_summary(&summary);
    Ok(if summary.failed.is_empty() { Exit::Done } else { Exit::Failed })
}

async fn export_once(
    engine: &Arc<Engine>,
    fetcher: Arc<Fetcher>,
    target: Arc<dyn Target>,
    base_url: &str,
) -> Result<ExportSummary, CliError> {
    // Publishes changes that no server has published yet.
    patiently(PUBLISHING, diffdelta::publish_pending(engine, diffdelta::HeldRole::Await)).await?;
    let name = name_of(target.as_ref()).await?;
    let mut holding = engine.store.acquire_lease(&roles::export(&name));
    // The lease keeps two exports from writing one tree at the same time.
    let lease = tokio::time::timeout(LEASE_TIMEOUT, holding.held()).await.map_err(|_| {
        CliError::failed("another node of the cluster maintains this tree; no manual export is needed")
    })?;
    let tree = Tree::open(engine, target, &name, base_url, lease.clone()).await?;
    let late = LateBar::new("{spinner} {pos} of {len} feeds, {elapsed}");
    let bar = late.counter();
    let tree = tree.with_progress(Box::new(move |done, of| {
        bar.set_length(of);
        bar.set_position(done);
    }));
    let summary = tree.export(ExportedFeeds::All).await?;
    drop(late);
    let pinger = Pinger::open(engine, fetcher, PingSite::tree(&name, base_url), lease).await;
    for (feed, seq) in tree.take_moved() {
        pinger.handle_change(&feed, seq);
    }
    pinger.run_once(PING_TIMEOUT).await;
    if let Some(problem) = PingHealth::of(engine).problem() {
        eprintln!("towpath: {problem} The next export tells them.");
    }
    Ok(summary)
}

/// Base URL of the tree: the argument, else the configuration's for the tree, else the server's.
pub(super) fn base_url(requested: Option<String>, config: &Config) -> Result<String, CliError> {
    match requested {
        Some(mut base) => {
            check_base_url(&mut base).map_err(|e| CliError::usage(format!("the tree's base URL: {e}")))?;
            Ok(base)
        }
        None => {
            let of_tree = config.export.as_ref().and_then(|export| export.base_url.clone());
            Ok(of_tree.unwrap_or_else(|| config.base_url()))
        }
    }
}

/// Fails if a server runs on the data folder, which only one process can open.
fn refuse_beside_server(config: &Config, place: &str) -> Result<(), CliError> {
    if matches!(user_of(&config.server.data), FolderUser::Server(_)) {
        return Err(CliError::failed(format!(
            "a server runs on this data folder: stop it, or start it with `towpath serve --export {place}`, \
             which keeps the tree current"
        )));
    }
    Ok(())
}

/// Reports feeds that are not exported because they are not public.
pub(super) fn report_private(engine: &Engine) {
    let feeds = engine.feeds();
    let private: Vec<&str> =
        feeds.iter().filter(|feed| !feed.is_listed()).map(|feed| feed.id().as_str()).collect();
    if !private.is_empty() {
        eprintln!(
            "towpath: not exported, because they are restricted to readers or are filters: {}",
            private.join(", ")
        );
    }
}

fn print_summary(summary: &ExportSummary) {
    let ExportSummary { written, unchanged, removed, bytes, feeds, failed, took } = summary;
    for failed in failed {
        eprintln!("towpath: {failed}");
    }
    print_done(&format!(
        "exported {}: {} written, {unchanged} unchanged, {removed} removed, {}, {:.1} s",
        counted(*feeds, "feed"),
        counted(*written, "document"),
        counted(*bytes, "byte"),
        took.as_secs_f64()
    ));
}
