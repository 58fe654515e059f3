//! Opening the data folder.

use std::sync::Arc;

use towpath_cluster::{Address, ClusterStore};
use towpath_store::embedded::{EmbeddedStore, Options};
use towpath_store::{Store, StoreError};

use super::CliError;
use crate::config::{Config, ServerConfig};
use crate::engine::Engine;

/// Opens the configuration's data folder and makes an engine on it.
pub(crate) async fn engine(config: Config) -> Result<Arc<Engine>, CliError> {
    let store = store(&config.server).await?;
    Ok(Engine::new(config, store).await?)
}

/// The data folder: the log itself, or a replica of a cluster's.
async fn store(config: &ServerConfig) -> Result<Arc<dyn Store>, CliError> {
    let folder = config.data.clone();
    if let Some(cluster) = &config.cluster {
        let address = Address::parse(cluster)?;
        let opened = ClusterStore::open(&address, folder, towpath_cluster::Options::default()).await;
        return Ok(Arc::new(opened?));
    }
    let opening = tokio::task::spawn_blocking(move || EmbeddedStore::open(&folder, Options::default()));
    let opened: Result<EmbeddedStore, StoreError> =
        opening.await.map_err(|e| CliError::failed(e.to_string()))?;
    Ok(Arc::new(opened?))
}
