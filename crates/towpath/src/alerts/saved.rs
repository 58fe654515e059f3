//! The saved book of alerts: in the store, or, for what concerns one node of a cluster only, in its data folder.

use std::path::PathBuf;

use super::book::AlertBook;
use super::scope::AlertScope;
use crate::config::ServerConfig;
use crate::engine::roles::{Lease, conditions};
use crate::engine::{Engine, json_record};

/// Key of the book in the table of chains.
const KEY: &[u8] = b"alerts";
/// File of a node's own book.
const FILE: &str = "towpath.alerts";

fn file(engine: &Engine) -> PathBuf {
    engine.config.server.data.join(FILE)
}

/// Loads the book. One that cannot be read is begun anew: alerts that repeat are better than none.
pub(super) async fn load(engine: &Engine, scope: AlertScope) -> AlertBook {
    let loaded = match scope {
        AlertScope::Node => {
            // A small local file, read once at the start: no need for a thread of its own.
            let bytes = std::fs::read(file(engine)).unwrap_or_default();
            Ok(serde_json::from_slice(&bytes).ok())
        }
        AlertScope::All | AlertScope::Shared => json_record::load(engine.store.as_ref(), KEY).await,
    };
    let mut book: AlertBook = loaded
        .unwrap_or_else(|e| {
            tracing::warn!(error = %e, "cannot read which alerts were sent");
            None
        })
        .unwrap_or_default();
    book.node = (scope == AlertScope::Node).then(|| node_name(&engine.config.server));
    book
}

/// Returns the name of a node: that of its machine, and the port, as a machine may have several nodes.
fn node_name(server: &ServerConfig) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match server.listen.local_authority().and_then(|own| Some(own.rsplit_once(':')?.1.to_owned())) {
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

/// Saves the book. It stays in memory where that fails: the store itself may be what an alert is about.
pub(super) async fn save(engine: &Engine, lease: Option<&Lease>, scope: AlertScope, book: &AlertBook) {
    let saved = match scope {
        AlertScope::Node => {
            let (new, bytes) =
                (file(engine).with_extension("new"), serde_json::to_vec(book).unwrap_or_default());
            // Renamed into place: a crash leaves the old book or the new one, never a half of either.
            let written = std::fs::write(&new, bytes).and_then(|()| std::fs::rename(new, file(engine)));
            written.map_err(|e| e.to_string())
        }
        AlertScope::All | AlertScope::Shared => {
            // A node that lost the role must not overwrite the book of the one that has it.
            let held = lease.map(conditions).unwrap_or_default();
            let write = json_record::put(KEY.to_vec(), book);
            engine.store.write(vec![write], held).await.map_err(|e| e.to_string())
        }
    };
    if let Err(error) = saved {
        tracing::debug!(error, "cannot save which alerts were sent");
    }
}
