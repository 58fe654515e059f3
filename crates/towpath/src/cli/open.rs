//! Opens the data folder.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use towpath_client::{FetchOptions, Fetcher, MemoryBudget};
use towpath_cluster::{ClusterAddress, ClusterOptions, ClusterStore, SnapshotOptions};
use towpath_store::Store;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

use super::backup::BackupPlace;
use super::error::CliError;
use super::progress::{OPENING, patiently};
use crate::config::{ClusterConfig, ClusterSnapshotsConfig, Config};
use crate::engine::Engine;
use crate::protocols;
use crate::server::DescriptorBudget;
use crate::wall_clock;

/// Time that a new node waits for its cluster, which may be starting as well.
const SERVER_CLUSTER_WAIT: Duration = Duration::from_secs(60);

/// Opens the configured data folder for a command, and creates the engine.
pub(crate) async fn engine(config: Config) -> Result<Arc<Engine>, CliError> {
    let starting = async {
        let store = store(&config, ClusterOptions::default(), EmbeddedOptions::default()).await?;
        Ok(protocols::start(config, store).await?)
    };
    patiently(OPENING, starting).await
}

/// Opens the configured data folder for a server, and creates the engine. A new node waits longer for its cluster than
/// a person would for a command.
pub(crate) async fn server_engine(
    config: Config,
    budget: &DescriptorBudget,
) -> Result<Arc<Engine>, CliError> {
    let max_files = budget.store_files;
    let mut cluster =
        ClusterOptions { first_connect_timeout: SERVER_CLUSTER_WAIT, ..ClusterOptions::default() };
    cluster.replica.max_files = max_files;
    let embedded = EmbeddedOptions { max_files, ..EmbeddedOptions::default() };
    let store = store(&config, cluster, embedded).await?;
    Ok(protocols::start(config, store).await?)
}

/// Creates the HTTP client of a server's sources.
pub(crate) fn fetcher(config: &Config) -> Result<Fetcher, CliError> {
    let private = config.server.private_fetches.into();
    let memory = MemoryBudget::new(config.server.fetch_mib << 20);
    Ok(Fetcher::new(FetchOptions::default().with_private(private).with_memory(memory))?)
}

/// Opens the place of a cluster's snapshots.
fn snapshot_options(config: &ClusterSnapshotsConfig, data: &Path) -> Result<SnapshotOptions, CliError> {
    let wrong = |reason: String| CliError::usage(format!("[cluster.snapshots] to: {reason}"));
    let place = BackupPlace::open_or_create(&config.to).map_err(|e| wrong(e.to_string()))?;
    if place.overlaps(data) {
        return Err(wrong(format!(
            "{} and the data folder {} are one within the other; use a place that all nodes share",
            config.to,
            data.display()
        )));
    }
    let ClusterSnapshotsConfig { every, keep, max_stream_bytes, .. } = *config;
    Ok(SnapshotOptions { storage: Arc::new(place), every, keep, max_stream_bytes })
}

/// Opens the data folder, as the log itself or as a replica of a cluster's log.
async fn store(
    config: &Config,
    mut cluster_options: ClusterOptions,
    mut options: EmbeddedOptions,
) -> Result<Arc<dyn Store>, CliError> {
    let ClusterConfig { max_level, snapshots } = &config.cluster;
    let config = &config.server;
    let folder = config.data.clone();
    let reserve = config.reserve_mib.saturating_mul(1 << 20);
    for options in [&mut cluster_options.replica, &mut options] {
        options.reserve = reserve;
        // Times never decrease along a log: a clock that is ahead for a moment must not date it for good.
        options.clock = Arc::new(wall_clock::now);
    }
    if let Some(cluster) = &config.cluster {
        let address = ClusterAddress::parse(cluster.expose())?;
        cluster_options.max_level = max_level.unwrap_or(cluster_options.max_level);
        cluster_options.snapshots =
            snapshots.as_ref().map(|snapshots| snapshot_options(snapshots, &folder)).transpose()?;
        return Ok(Arc::new(ClusterStore::open(&address, folder, cluster_options).await?));
    }
    let opening = tokio::task::spawn_blocking(move || EmbeddedStore::open(&folder, options));
    let opened = opening.await.map_err(|e| CliError::failed(e.to_string()))?;
    Ok(Arc::new(opened?))
}
