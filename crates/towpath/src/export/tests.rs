//! Exports beside a feed that moves.

use std::sync::Arc;

use towpath_proto::{FeedId, Item, NewChange};
use towpath_store::Expected;

use super::feed_state::ExportState;
use super::{Folder, Tree};
use crate::engine::Engine;
use crate::engine::roles::Lease;
use crate::export::tree_state::ExportedFeed;
use crate::protocols::diffdelta::{Run, publish};
use crate::protocols::failing_store;
use crate::protocols::pages::divided;

async fn append(engine: &Engine, id: &str) {
    let changes = vec![NewChange::put(Item::new(id))];
    engine.store.append(&FeedId::new("notes").unwrap(), Expected::Any, changes).await.unwrap();
}

/// The tree has the documents before the mint then. If it counted as current, they would stay until the next change.
#[tokio::test]
async fn a_mint_during_an_export_is_in_the_next() {
    let (engine, _) = failing_store::engine("[[feed]]\nid = \"notes\"\n").await;
    let feed = engine.feed("notes").unwrap();
    append(&engine, "a").await;
    publish(&engine, &feed, Run::Moved).await.unwrap();
    append(&engine, "b").await;
    let folder = tempfile::tempdir().unwrap();
    let target = Arc::new(Folder::new(folder.path()).unwrap());
    let lease = Lease::alone("export");
    let tree = Tree::open(&engine, target, "notes", "http://tree.example", lease).await.unwrap();
    let state = async || ExportState::of(&tree.engine, &feed).await.unwrap();

    let before = state().await;
    let made = tree.entry_documents(&feed, &before).await.unwrap();
    publish(&engine, &feed, Run::Moved).await.unwrap();
    let division = divided(&tree.engine, &feed).await.unwrap();
    let known = ExportedFeed::default();
    let extent = tree.extent(&feed, before, &division, &made, &known).await.unwrap();
    assert!(!state().await.is(&extent));

    let now = state().await;
    let made = tree.entry_documents(&feed, &now).await.unwrap();
    let extent = tree.extent(&feed, now, &division, &made, &known).await.unwrap();
    assert!(state().await.is(&extent));
}
