//! `towpath verify`: checks the data folder against itself.

use std::io::Write as _;

use towpath_store::Store as _;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::terminal::plain;

/// Checks every index of the data folder against the log, and prints what is wrong.
pub(crate) async fn verify(args: &ConfigArgs) -> Result<Exit, CliError> {
    let server = args.load()?.server;
    if server.cluster.is_some() {
        return Err(CliError::usage(
            "this node's folder is a replica of the cluster's log; a damaged one is replaced by an empty folder",
        ));
    }
    // The store creates a folder that is missing, and a typing error would be said to be sound.
    if !server.data.is_dir() {
        return Err(CliError::usage(format!("there is no data folder {}", server.data.display())));
    }
    let folder = server.data.clone();
    let opening =
        tokio::task::spawn_blocking(move || EmbeddedStore::open(&folder, EmbeddedOptions::default()));
    let store = opening.await.map_err(|e| CliError::failed(e.to_string()))??;
    let report = store.verify().await;
    store.close().await;
    let report = report.map_err(|e| {
        CliError::failed(format!(
            "{e}; move the folder {} away and bring it back with `towpath restore`",
            server.data.display()
        ))
    })?;
    let mut out = std::io::stdout().lock();
    let counts = (report.feeds, report.changes, report.items);
    // The result is in the exit code even if standard output is closed.
    let _ = writeln!(out, "{} feeds, {} changes, {} items", counts.0, counts.1, counts.2);
    for problem in &report.problems {
        let _ = writeln!(out, "{}", plain(problem));
    }
    if report.is_sound() {
        let _ = writeln!(out, "no damage found");
        return Ok(Exit::Done);
    }
    Err(CliError::failed(format!(
        "{} problems in the data folder {}; bring it back with `towpath restore`, or publish the damaged items again",
        report.problem_count,
        server.data.display()
    )))
}
