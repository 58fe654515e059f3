//! Check of stored chains: every snapshot has its bytes and its cursor, and follows the one before.

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};
use towpath_proto::FeedId;
use towpath_proto::diffdelta::cursor::{Cursor, Proof, prove};
use towpath_proto::diffdelta::publish::DocumentChain;
use towpath_proto::diffdelta::wire::{GLOBAL, SnapshotEntry};
use towpath_store::{Store, Table};

use crate::engine::finding::Findings;
use crate::engine::table_scan::TableScan;
use crate::protocols::diffdelta::documents::archive_path;
use crate::protocols::diffdelta::global;
use crate::protocols::diffdelta::stored::{StoredChain, snapshot_index};
use crate::store_error::StoreError;

/// Checks the chain of every feed, also of those that the configuration no longer has, and the global one.
pub(crate) async fn verify(store: &dyn Store, findings: &mut Findings) -> Result<(), StoreError> {
    // By any of its rows: a chain whose own row is lost must be found, too.
    let mut names = BTreeSet::new();
    let mut scan = TableScan::new(store, Table::Chains, b"diffdelta/");
    while let Some(page) = scan.next().await? {
        let name = |key: &[u8]| -> Option<String> {
            let key = std::str::from_utf8(key).ok()?;
            Some(key.strip_prefix("diffdelta/")?.split_once('/')?.0.to_owned())
        };
        names.extend(page.iter().filter_map(|(key, _)| name(key)));
    }
    for name in names {
        let chain = match name.as_str() {
            GLOBAL => global::stored_chain(store).await.map(Option::unwrap_or_default),
            feed => StoredChain::load(store, feed).await.map(|stored| stored.chain()),
        };
        match chain {
            Ok(chain) => ChainCheck { store, name: &name, findings }.check(&chain).await?,
            Err(StoreError::Damaged(reason)) => findings.add(Some(&name), "DiffDelta chain", reason),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Check of one chain.
struct ChainCheck<'a> {
    store: &'a dyn Store,
    name: &'a str,
    findings: &'a mut Findings,
}

impl ChainCheck<'_> {
    async fn check(&mut self, chain: &DocumentChain) -> Result<(), StoreError> {
        let entries = match snapshot_index(self.store, self.name, 0).await {
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
            self.check_snapshot(entry).await?;
        }
        if before != chain.cursor.to_string() {
            self.add("DiffDelta chain", "its cursor is not that of the last snapshot");
        }
        if let Ok(feed) = FeedId::new(self.name)
            && self.store.head(&feed).await?.seq < chain.minted_seq
        {
            self.add("DiffDelta chain", "it has changes that the log does not have");
        }
        Ok(())
    }

    async fn check_snapshot(&mut self, entry: &SnapshotEntry) -> Result<(), StoreError> {
        let path = archive_path(&entry.url);
        let Some(document) = self.store.get(Table::Documents, path.as_bytes()).await? else {
            self.add(path, "it is missing");
            return Ok(());
        };
        let (digest, cursor) = (entry.sha256.clone(), entry.cursor.clone());
        let checking = tokio::task::spawn_blocking(move || {
            if hex::encode(Sha256::digest(&document)) != digest {
                return Some("its bytes do not have the SHA-256 of the archive index".to_owned());
            }
            match prove(&document, &cursor) {
                Ok(Proof::Differs) => Some("its cursor is not that of its content".to_owned()),
                Ok(Proof::Jcs | Proof::Python) => None,
                Err(e) => Some(format!("its cursor cannot be computed: {e}")),
            }
        });
        if let Some(problem) = checking.await.map_err(|e| StoreError::View(e.to_string()))? {
            self.add(path, &problem);
        }
        Ok(())
    }

    fn add(&mut self, place: &str, problem: &str) {
        self.findings.add(Some(self.name), place, problem);
    }
}
