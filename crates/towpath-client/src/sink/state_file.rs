//! Checkpoints of sinks whose destination has no place for them: one file, replaced atomically.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath_proto::follow::Followed;

use super::{Sink, SinkBatch, SinkError};
use crate::durable_file::{lock_beside, replace};
use crate::progress::MAX_ACKNOWLEDGED;

/// Version of the file format.
const VERSION: u32 = 1;

/// A state file cannot be used. The user's to fix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkStateError {
    /// The file cannot be read or written.
    #[error("cannot use the state file {}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The content is invalid.
    #[error("the state file {} is damaged or not one of a sink ({reason}); remove it to begin again", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Place and kind of the damage.
        reason: String,
    },
    /// Another process has locked the file.
    #[error("the state file {} is in use by another process", path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateFileContent {
    towpath_sink_state: u32,
    /// Destination, so that a file of another sink is not taken for this one's.
    sink: String,
    sources: BTreeMap<String, SavedSource>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSource {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Box<RawValue>>,
    /// Lines after the checkpoint that the consumer has finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    acknowledged: Vec<String>,
}

/// File with the checkpoint of each source.
pub struct SinkStateFile {
    path: PathBuf,
    content: StateFileContent,
    /// Lock file beside the state, which is replaced and so cannot hold a lock itself.
    _lock: File,
}

impl SinkStateFile {
    /// Opens the file at `path`, or prepares it. `name` is the destination's name, without credentials.
    ///
    /// # Errors
    ///
    /// [`SinkStateError`] if the file cannot be used, or belongs to another sink.
    pub fn open(name: &str, path: &Path) -> Result<Self, SinkStateError> {
        // Resolves symbolic links: the rename must replace the link's target, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let failed = |error| SinkStateError::File { path: path.clone(), error };
        let lock = match lock_beside(&path) {
            Ok(lock) => lock,
            Err(TryLockError::WouldBlock) => return Err(SinkStateError::InUse { path }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        };
        let content = match fs::read(&path) {
            Ok(bytes) => parse(&path, &bytes, name)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                StateFileContent { towpath_sink_state: VERSION, sink: name.into(), sources: BTreeMap::new() }
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { path, content, _lock: lock })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the checkpoint of a source.
    pub fn checkpoint(&self, source: &str) -> Option<Vec<u8>> {
        let saved = self.content.sources.get(source)?;
        saved.checkpoint.as_ref().map(|checkpoint| checkpoint.get().into())
    }

    /// Returns the lines after the checkpoint that were acknowledged.
    pub fn acknowledged(&self, source: &str) -> &[String] {
        self.content.sources.get(source).map_or(&[], |saved| &saved.acknowledged)
    }

    /// Sets the checkpoint of a source; it is saved by [`save`](Self::save). No line after it is acknowledged yet.
    ///
    /// # Errors
    ///
    /// If the checkpoint is not JSON.
    pub fn set_checkpoint(&mut self, source: &str, checkpoint: &[u8]) -> io::Result<()> {
        let text = String::from_utf8(checkpoint.to_vec()).map_err(io::Error::other)?;
        let checkpoint = Some(RawValue::from_string(text)?);
        self.content.sources.insert(source.into(), SavedSource { checkpoint, acknowledged: Vec::new() });
        Ok(())
    }

    /// Adds a line that was acknowledged after the checkpoint; it is saved by [`save`](Self::save).
    ///
    /// Of a large unit only the first 10,000 are kept: a kill repeats the others.
    pub fn add_acknowledged(&mut self, source: &str, line: String) {
        let acknowledged = &mut self.content.sources.entry(source.into()).or_default().acknowledged;
        if acknowledged.len() < MAX_ACKNOWLEDGED {
            acknowledged.push(line);
        }
    }

    /// Returns the file's content, as [`save`](Self::save) writes it.
    ///
    /// # Errors
    ///
    /// Never in practice: all of it is JSON already.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(&self.content)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Replaces the file atomically and durably.
    ///
    /// # Errors
    ///
    /// Errors of the file.
    pub fn save(&self) -> io::Result<()> {
        replace(&self.path, &self.content()?)
    }
}

/// A sink with a state file. The checkpoint is saved after the batch was applied, so a crash repeats changes.
pub struct WithStateFile<S> {
    sink: S,
    /// Shared with the thread that saves it.
    file: Arc<Mutex<SinkStateFile>>,
}

impl<S: Sink> WithStateFile<S> {
    /// Opens the state file at `path`, or prepares it. `name` is the destination's name, without credentials.
    ///
    /// # Errors
    ///
    /// [`SinkStateError`] if the file cannot be used, or belongs to another sink.
    pub fn open(sink: S, name: &str, path: &Path) -> Result<Self, SinkStateError> {
        Ok(Self { sink, file: Arc::new(Mutex::new(SinkStateFile::open(name, path)?)) })
    }
}

fn parse(path: &Path, bytes: &[u8], name: &str) -> Result<StateFileContent, SinkStateError> {
    let damaged = |reason: String| SinkStateError::Damaged { path: path.into(), reason };
    let content: StateFileContent = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    if content.towpath_sink_state != VERSION {
        return Err(damaged(format!("its version is {}, not {VERSION}", content.towpath_sink_state)));
    }
    if content.sink != name {
        return Err(damaged(format!("it belongs to {}, not to {name}", content.sink)));
    }
    Ok(content)
}

#[async_trait]
impl<S: Sink> Sink for WithStateFile<S> {
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        self.sink.open(source).await?;
        Ok(self.file.lock().checkpoint(source))
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        self.sink.apply(batch).await?;
        let Some(checkpoint) = &batch.checkpoint else { return Ok(()) };
        let (file, source, checkpoint) = (self.file.clone(), batch.source.clone(), checkpoint.clone());
        // A sync of the disk takes milliseconds, in which the runtime's thread serves others.
        let saved = tokio::task::spawn_blocking(move || {
            let mut file = file.lock();
            file.set_checkpoint(&source, &checkpoint).and_then(|()| file.save()).map_err(|error| {
                SinkError::unavailable(format!(
                    "cannot write the state file {}: {error}",
                    file.path().display()
                ))
            })
        });
        saved.await.map_err(|error| SinkError::unavailable(error.to_string()))?
    }

    async fn set_aside(&mut self, source: &str, change: &Followed, reason: &str) -> Result<bool, SinkError> {
        self.sink.set_aside(source, change, reason).await
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        self.sink.close().await
    }
}
