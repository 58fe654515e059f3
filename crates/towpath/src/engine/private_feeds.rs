//! Names of private feeds, which are kept longer than their configuration.
//!
//! A feed that was removed answers as gone. For a private feed that would tell its name to strangers. Where publishing creates
//! feeds, its log is served on, to those who may read all feeds.

use std::collections::HashSet;

use towpath_proto::FeedId;
use towpath_store::{Store, Table, TableWrite};

use crate::config::FeedConfig;
use crate::engine::table_scan::TableScan;
use crate::store_error::StoreError;

/// Prefix of the keys.
const PREFIX: &[u8] = b"private/";
/// Rows of one write.
const ROWS: usize = 1000;

/// Stores which feeds of a configuration are private. Returns all that were private when they were last configured.
///
/// # Errors
///
/// A store that cannot be read. One that takes no writes is logged: the server must not stay down for it.
pub(super) async fn update<'a>(
    store: &dyn Store,
    configured: impl Iterator<Item = &'a FeedConfig>,
) -> Result<HashSet<FeedId>, StoreError> {
    let mut private = load(store).await?;
    let mut writes = Vec::new();
    for feed in configured {
        let (id, is_private) = (feed.id(), !feed.is_public());
        if is_private == private.contains(id) {
            continue;
        }
        let value = is_private.then(Default::default);
        writes.push(TableWrite { table: Table::Sources, key: key(id), value });
        if is_private {
            private.insert(id.clone());
        } else {
            private.remove(id);
        }
    }
    for rows in writes.chunks(ROWS) {
        if let Err(e) = store.write(rows.to_vec(), Vec::new()).await {
            tracing::warn!(error = %e, "cannot store which feeds are private, for the time when they are removed");
            break;
        }
    }
    Ok(private)
}

/// Makes the configuration of a log that nothing names. One that was private stays so: those who wrote to it relied on that.
pub(super) fn unnamed(id: &FeedId, was_private: bool) -> FeedConfig {
    if was_private { FeedConfig::unnamed_private(id.clone()) } else { FeedConfig::unnamed(id.clone()) }
}

/// Returns the names of all feeds that were private when they were last configured.
///
/// # Errors
///
/// A store that cannot be read.
pub(super) async fn load(store: &dyn Store) -> Result<HashSet<FeedId>, StoreError> {
    let mut private = HashSet::new();
    let mut scan = TableScan::new(store, Table::Sources, PREFIX);
    while let Some(page) = scan.next().await? {
        let names = page.iter().filter_map(|(key, _)| std::str::from_utf8(key.get(PREFIX.len()..)?).ok());
        private.extend(names.filter_map(|name| FeedId::new(name).ok()));
    }
    Ok(private)
}

fn key(feed: &FeedId) -> Vec<u8> {
    [PREFIX, feed.as_str().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use towpath_store::memory::MemoryStore;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn the_last_configuration_counts() {
        let store = MemoryStore::new(Arc::new(jiff::Timestamp::now));
        let names = async |config: &str| {
            let config = Config::parse(config, Path::new("towpath.toml")).unwrap();
            let mut names: Vec<_> =
                update(&store, config.feeds.iter().map(AsRef::as_ref)).await.unwrap().into_iter().collect();
            names.sort_unstable();
            names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>()
        };
        let private = "[[feed]]\nid = \"aa\"\nvisibility = \"private\"\n[[feed]]\nid = \"bb\"\n";
        assert_eq!(names(private).await, ["aa"]);
        // Without a configuration it stays known, and a public feed of the name takes it back.
        assert_eq!(names("").await, ["aa"]);
        assert!(names("[[feed]]\nid = \"aa\"\n").await.is_empty());
        assert!(names("").await.is_empty());
    }
}
