//! Check of stored chains: every snapshot has the bytes and the cursors of the index, and follows the one before.

use std::collections::BTreeSet;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use towpath_proto::FeedId;
use towpath_proto::diffdelta::cursor::Cursor;
use towpath_proto::diffdelta::publish::DocumentChain;
use towpath_proto::diffdelta::wire::{GLOBAL, SnapshotEntry};
use towpath_store::{Store, Table};

use crate::engine::check_pool::CheckPool;
use crate::engine::finding::Findings;
use crate::engine::table_scan::TableScan;
use crate::protocols::diffdelta::documents::archive_path;
use crate::protocols::diffdelta::global_stored;
use crate::protocols::diffdelta::stored::{StoredChain, snapshot_index};
use crate::store_error::StoreError;

/// Checks the chain of every feed, also of those that the configuration no longer has, and the global one.
pub(crate) async fn verify(pool: &CheckPool) -> Result<Findings, StoreError> {
    // By any of its rows: a chain whose own row is lost must be found, too.
    let mut names = BTreeSet::new();
    let mut scan = TableScan::new(&*pool.store, Table::Chains, b"diffdelta/");
    while let Some(page) = scan.next().await? {
        let name = |key: &[u8]| -> Option<String> {
            let key = std::str::from_utf8(key).ok()?;
            Some(key.strip_prefix("diffdelta/")?.split_once('/')?.0.to_owned())
        };
        names.extend(page.iter().filter_map(|(key, _)| name(key)));
    }
    pool.join(names.into_iter().map(|name| verify_chain(pool, name))).await
}

async fn verify_chain(pool: &CheckPool, name: String) -> Result<Findings, StoreError> {
    let store = &*pool.store;
    let chain = match name.as_str() {
        GLOBAL => global_stored::stored_chain(store).await.map(Option::unwrap_or_default),
        feed => StoredChain::load(store, feed).await.map(|stored| stored.chain()),
    };
    let mut findings = Findings::default();
    match chain {
        Ok(chain) => ChainCheck { pool, name: &name, findings: &mut findings }.check(&chain).await?,
        Err(StoreError::Damaged(reason)) => findings.add(Some(&name), "DiffDelta chain", reason),
        Err(error) => return Err(error),
    }
    Ok(findings)
}

/// Check of one chain.
struct ChainCheck<'a> {
    pool: &'a CheckPool,
    name: &'a str,
    findings: &'a mut Findings,
}

impl ChainCheck<'_> {
    async fn check(&mut self, chain: &DocumentChain) -> Result<(), StoreError> {
        let store = &*self.pool.store;
        let entries = match snapshot_index(store, self.name, 0).await {
            Ok(entries) => entries,
            Err(StoreError::Damaged(reason)) => {
                self.add("DiffDelta archive index", &reason);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let count = entries.len() as u64;
        if count != chain.snapshots {
            self.add("DiffDelta archive index", &format!("{count} snapshots of {}", chain.snapshots));
        }
        let mut before = Cursor::ZERO.to_string();
        for entry in &entries {
            if entry.prev_cursor != before {
                self.add(
                    archive_path(&entry.url),
                    "its prev_cursor is not the cursor of the snapshot before it",
                );
            }
            before.clone_from(&entry.cursor);
        }
        if before != chain.cursor.to_string() {
            self.add("DiffDelta chain", "its cursor is not that of the last snapshot");
        }
        if let Ok(feed) = FeedId::new(self.name)
            && store.head(&feed).await?.seq < chain.minted_seq
        {
            self.add("DiffDelta chain", "it has changes that the log does not have");
        }
        let checks = entries.into_iter().map(|entry| {
            let (store, name) = (self.pool.store.clone(), self.name.to_owned());
            self.pool.run(async move { check_snapshot(&*store, &name, &entry).await })
        });
        let found = self.pool.join(checks).await?;
        self.findings.0.extend(found.0);
        Ok(())
    }

    fn add(&mut self, place: &str, problem: &str) {
        self.findings.add(Some(self.name), place, problem);
    }
}

/// Members of a document that its entry in the archive index repeats.
#[derive(Deserialize)]
struct DocumentCursors {
    cursor: String,
    prev_cursor: String,
}

/// Checks a snapshot by the SHA-256 of its bytes, which have its cursor.
// The cursor was computed when the document was minted. Bytes with the right digest are those of that moment, and to
// compute it again would hash the document a second time, after it was brought into canonical form.
async fn check_snapshot(
    store: &dyn Store,
    name: &str,
    entry: &SnapshotEntry,
) -> Result<Findings, StoreError> {
    let path = archive_path(&entry.url);
    let problem = match store.get(Table::Documents, path.as_bytes()).await? {
        None => Some("it is missing".to_owned()),
        Some(document) if hex::encode(Sha256::digest(&document)) != entry.sha256 => {
            Some("its bytes do not have the SHA-256 of the archive index".to_owned())
        }
        Some(document) => match serde_json::from_slice(&document) {
            Ok(DocumentCursors { cursor, prev_cursor }) => {
                let is_same = cursor == entry.cursor && prev_cursor == entry.prev_cursor;
                (!is_same).then(|| "its cursors are not those of the archive index".to_owned())
            }
            Err(e) => Some(format!("its cursors cannot be read: {e}")),
        },
    };
    let mut findings = Findings::default();
    if let Some(problem) = problem {
        findings.add(Some(name), path, problem);
    }
    Ok(findings)
}
