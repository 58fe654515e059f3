//! `towpath export`: every feed as a static tree.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::{CliError, ConfigArgs, Exit, open};
use crate::client::{FetchOptions, Fetcher};
use crate::config::{Config, check_base_url};
use crate::engine::export::{Summary, Tree, Which, name_of, target};
use crate::engine::{Engine, diffdelta, roles};

/// How long it may take until a node that kept the tree and is gone is known to be gone.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Where: a folder, or s3://bucket/prefix, gs://bucket/prefix, az://container/prefix
    /// [default: the configuration's [export]]
    dest: Option<String>,
    /// The address that the tree's readers use [default: the configuration's]
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Exports once, and says on standard error what that was.
pub(crate) async fn export(args: ExportArgs) -> Result<Exit, CliError> {
    let config = args.config.load()?;
    let place = args.dest.or_else(|| config.export.as_ref().map(|export| export.to.clone()));
    let place =
        place.ok_or_else(|| CliError::usage("where to? Name a folder or an address, or set [export] to"))?;
    let base_url = base_url(args.base_url, &config)?;
    let target = target::open(&place)?;
    refuse_beside_server(&config, &place).await?;
    let engine = open::engine(config).await?;
    let done = export_once(&engine, target, &base_url).await;
    engine.store.close().await;
    let summary = done?;
    tell_of_private(&engine);
    tell(&summary);
    Ok(if summary.failed.is_empty() { Exit::Done } else { Exit::Failed })
}

async fn export_once(
    engine: &Arc<Engine>,
    target: Arc<dyn target::Target>,
    base_url: &str,
) -> Result<Summary, CliError> {
    // Documents that are not made yet are made as a server would.
    diffdelta::settle(engine, true).await?;
    let name = name_of(target.as_ref()).await?;
    let mut holding = engine.store.hold(&roles::export(&name));
    let lease = tokio::time::timeout(PATIENCE, holding.held()).await.map_err(|_| {
        CliError::failed("a node of the cluster keeps this tree: what there is to export, it exports")
    })?;
    let tree = Tree::open(engine, target, &name, base_url, lease).await?;
    Ok(tree.export(Which::All).await?)
}

/// The tree's address: what was asked for, else the configuration's for the tree, else the server's.
pub(super) fn base_url(asked: Option<String>, config: &Config) -> Result<String, CliError> {
    match asked {
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

/// A running server has the data folder for itself.
async fn refuse_beside_server(config: &Config, place: &str) -> Result<(), CliError> {
    let options = FetchOptions { connect_timeout: Duration::from_secs(5), ..FetchOptions::default() };
    let fetcher = Fetcher::new(options).map_err(|e| CliError::failed(e.to_string()))?;
    if super::publish::is_running(fetcher, config).await {
        return Err(CliError::failed(format!(
            "a server runs on this data folder: stop it, or start it with `towpath serve --export {place}`, \
             which keeps the tree current"
        )));
    }
    Ok(())
}

/// Names feeds that are not everybody's to read.
pub(super) fn tell_of_private(engine: &Engine) {
    let feeds = engine.feeds();
    let private: Vec<&str> =
        feeds.iter().filter(|feed| !feed.is_listed()).map(|feed| feed.id().as_str()).collect();
    if !private.is_empty() {
        eprintln!("towpath: not exported, for they have readers or are filters: {}", private.join(", "));
    }
}

fn tell(summary: &Summary) {
    let Summary { written, unchanged, removed, bytes, feeds, failed, took } = summary;
    for failed in failed {
        eprintln!("towpath: {failed}");
    }
    eprintln!(
        "exported {feeds} feeds: {written} documents written, {unchanged} unchanged, {removed} removed, {bytes} bytes, \
         {:.1} s",
        took.as_secs_f64()
    );
}
