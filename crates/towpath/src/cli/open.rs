//! Opening the data folder.

use std::sync::Arc;

use towpath_store::Store;
use towpath_store::embedded::{EmbeddedStore, Options};

use super::CliError;
use crate::config::Config;
use crate::engine::Engine;

/// Opens the configuration's data folder and makes an engine on it.
pub(crate) async fn engine(config: Config) -> Result<Arc<Engine>, CliError> {
    let folder = config.server.data.clone();
    let opening = tokio::task::spawn_blocking(move || EmbeddedStore::open(&folder, Options::default()));
    let store = opening.await.map_err(|e| CliError::failed(e.to_string()))??;
    let store: Arc<dyn Store> = Arc::new(store);
    Ok(Engine::new(config, store).await?)
}
