//! `towpath compact`: rewrites the tables of the data folder without what was removed.

use indicatif::HumanBytes;
use towpath_store::Store as _;

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::progress::patiently;
use super::style::print_done;
use super::verify::open_folder;

/// Compacts the data folder, and prints its size before and after.
pub(crate) async fn compact(args: &ConfigArgs) -> Result<Exit, CliError> {
    let server = args.load()?.server;
    let store = open_folder(&server).await?;
    let compacted = patiently("compacting the tables", store.compact()).await;
    store.close().await;
    let (before, after) = compacted.map_err(|e| {
        CliError::failed(format!("{e}; `towpath verify` lists what is damaged in {}", server.data.display()))
    })?;
    print_done(&format!(
        "compacted {}: {} before, {} after",
        server.data.display(),
        HumanBytes(before),
        HumanBytes(after)
    ));
    Ok(Exit::Done)
}
