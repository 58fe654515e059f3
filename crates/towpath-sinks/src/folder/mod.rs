//! A folder with one file per item.
//!
//! `dir:PATH` has a folder for each feed, and in it one file per live item: its line of the change format, named by its id
//! (see [`names`]). `index.ndjson` maps ids to files. Files are written by rename; the position is saved last, so a crash
//! repeats changes and loses none.
//!
//! ```text
//! PATH/notes/first.json            the item "first" of the feed "notes"
//! PATH/notes/index.ndjson          {"id":"first","file":"first.json"}, or {"id":"first"} once it is deleted
//! PATH/.towpath/positions.json     the position of each source
//! PATH/.towpath/refused.ndjson     items that could not be written, with the reason
//! ```

mod index;
pub mod names;
mod store;

use std::path::PathBuf;

use async_trait::async_trait;
use towpath_client::{Sink, SinkBatch, SinkError};
use towpath_proto::follow::Followed;

use self::store::FolderStore;
use crate::blocking_store::BlockingStore;

/// Parsed `dir:` destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderDestination {
    /// The folder.
    pub path: PathBuf,
}

impl FolderDestination {
    /// Parses the text behind `dir:`.
    ///
    /// # Errors
    ///
    /// The message for an empty path.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("expected a path, as in dir:copy".into());
        }
        Ok(Self { path: text.into() })
    }
}

/// Sink of one folder.
pub struct FolderSink {
    destination: FolderDestination,
    store: BlockingStore<FolderStore>,
}

impl FolderSink {
    /// Creates the sink. The folder is opened with the first source.
    pub fn new(destination: FolderDestination) -> Self {
        Self { destination, store: BlockingStore::closed() }
    }

    /// Runs work on the folder in a thread for blocking work.
    async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut FolderStore) -> Result<T, SinkError> + Send + 'static,
    ) -> Result<T, SinkError> {
        let path = self.destination.path.clone();
        self.store.run(move || FolderStore::open(&path), work).await
    }
}

#[async_trait]
impl Sink for FolderSink {
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        let source = source.to_owned();
        self.run(move |store| Ok(store.checkpoint(&source))).await
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        let batch = batch.clone();
        self.run(move |store| store.apply(&batch)).await
    }

    async fn set_aside(&mut self, source: &str, change: &Followed, reason: &str) -> Result<bool, SinkError> {
        let (source, change, reason) = (source.to_owned(), change.clone(), reason.to_owned());
        self.run(move |store| store.set_aside(&source, change, &reason)).await?;
        Ok(true)
    }
}
