//! Start of an engine with all protocols.

use std::sync::Arc;

use towpath_store::Store;

use crate::config::Config;
use crate::engine::{Engine, EngineError, Hooks, scheduled, source_control, stored_feeds};
use crate::protocols::diffdelta::DiffDelta;
use crate::protocols::pages::{PageListener, Pages};
use crate::protocols::smart::Smart;
use crate::protocols::sup::{Arrival, Sup};
use crate::protocols::websub::HubState;
use crate::protocols::{diffdelta, history, pages, remote_writes, replication, smart, sup, websub, xmpp};

/// Calls after a write, in this order.
///
/// SUP comes before the head moves: a reader that sees the new head finds the update pending. The other protocols come
/// after it, because the tasks that they wake read the head.
const HOOKS: Hooks = Hooks {
    before_head: &[sup::on_append],
    after_head: &[
        // First: its readers wait, and the tasks of the others would run before their response.
        smart::on_append,
        diffdelta::on_append,
        pages::on_append,
        websub::on_append,
        xmpp::on_append,
    ],
    table_write: &[
        remote_writes::on_table_write,
        source_control::on_table_write,
        scheduled::on_table_write,
        stored_feeds::on_table_write,
    ],
    feed_removed: &[smart::on_removed, websub::on_removed, xmpp::on_removed],
};

/// Protocols that serve pages.
const PAGE_LISTENERS: &[PageListener] = &[
    PageListener { sealed: replication::on_sealed, changed: replication::forget_page },
    PageListener { sealed: |_, _, _, _, _| {}, changed: history::forget_page },
];

/// Starts an engine on a store, with all protocols.
///
/// # Errors
///
/// A store that cannot be read, or invalid risk rules.
pub async fn start(config: Config, store: Arc<dyn Store>) -> Result<Arc<Engine>, EngineError> {
    let (engine, heads) = Engine::open(config, store).await?;
    // Before `listen`: an append must not find the recent updates empty.
    sup::recover(&engine, heads);
    // Made here, in the runtime: a hook runs on the store's thread.
    DiffDelta::of(&engine);
    Pages::of(&engine).set_listeners(PAGE_LISTENERS);
    Smart::of(&engine);
    HubState::of(&engine);
    // Last: a hook must find every protocol's state.
    engine.listen(HOOKS);
    if engine.is_shared() {
        for (feed, append) in engine.catch_up_heads().await? {
            // These appends came before the hooks, so nothing else lists them.
            Sup::of(&engine).record(&feed, append, Arrival::InTime);
        }
    }
    Ok(engine)
}

/// Returns an engine that makes the documents of a static tree at `base_url`, from the same log and chains.
pub fn at_base_url(engine: &Engine, base_url: &str) -> Arc<Engine> {
    let tree = engine.at_base_url(base_url);
    let diffdelta = DiffDelta::of(engine).clone();
    // Shared: the chains are those of the server, and only the addresses differ.
    tree.extensions.get_or_insert_with(|| diffdelta);
    tree
}
