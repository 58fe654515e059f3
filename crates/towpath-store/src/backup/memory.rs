//! Storage in memory, for tests.

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::storage::{BackupStorage, StorageAccessError, StoredFile};

/// Files in memory. A test can damage them.
#[derive(Default)]
pub struct MemoryStorage {
    files: Mutex<BTreeMap<String, Bytes>>,
}

impl MemoryStorage {
    /// Returns the paths of all files.
    pub fn paths(&self) -> Vec<String> {
        self.files.lock().keys().cloned().collect()
    }
}

#[async_trait]
impl BackupStorage for MemoryStorage {
    fn address(&self) -> &str {
        "memory"
    }

    async fn put(&self, path: &str, bytes: Bytes) -> Result<(), StorageAccessError> {
        self.files.lock().insert(path.to_owned(), bytes);
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<Option<Bytes>, StorageAccessError> {
        Ok(self.files.lock().get(path).cloned())
    }

    async fn files(&self, folder: &str) -> Result<Vec<StoredFile>, StorageAccessError> {
        let prefix = format!("{folder}/");
        let files = self.files.lock();
        let below = files.iter().filter(|(path, _)| path.starts_with(&prefix));
        let file = |(path, bytes): (&String, &Bytes)| {
            let name = path.rsplit('/').next()?.to_owned();
            Some(StoredFile { name, size: bytes.len() as u64 })
        };
        Ok(below.filter_map(file).collect())
    }

    async fn remove(&self, path: &str) -> Result<(), StorageAccessError> {
        self.files.lock().remove(path);
        Ok(())
    }

    fn sync(&self) -> Result<(), StorageAccessError> {
        Ok(())
    }
}
