//! The open folder: writes the files of a batch, syncs them once, and saves the position last.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use towpath_client::durable_file::replace;
use towpath_client::sink::{DeadLetterFile, RefusedItem, SinkStateFile};
use towpath_client::{SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::Followed;
use towpath_proto::line::Line;
use towpath_proto::{Item, Op};

use super::index::FeedIndex;
use super::names;
use crate::file_identity::FileIdentity;
use crate::whole::whole;

/// Folder of our own files.
const OWN: &str = ".towpath";
/// Name in the state file.
const NAME: &str = "dir";
/// File with the source of each feed.
const FEEDS: &str = "feeds.json";

/// The open folder.
pub(super) struct FolderStore {
    path: PathBuf,
    /// Identity of the folder of our own files.
    identity: FileIdentity,
    positions: SinkStateFile,
    feeds: HashMap<String, FeedFolder>,
    /// Source of each feed. Two feeds of one name would overwrite each other's items.
    sources: BTreeMap<String, String>,
}

/// Folder of one feed.
struct FeedFolder {
    path: PathBuf,
    index: FeedIndex,
}

impl FolderStore {
    /// Opens the folder, or creates it. A folder with files of somebody else is refused.
    pub(super) fn open(path: &Path) -> Result<Self, SinkError> {
        let failed = |error: io::Error| classify(path, &error);
        fs::create_dir_all(path).map_err(failed)?;
        let own = path.join(OWN);
        let is_empty = fs::read_dir(path).map_err(failed)?.next().is_none();
        if !own.is_dir() && !is_empty {
            let advice = "name an empty or a new folder";
            return Err(SinkError::refused(format!(
                "the folder {} has other files; {advice}",
                path.display()
            )));
        }
        fs::create_dir_all(&own).map_err(failed)?;
        let identity = FileIdentity::of(&own).map_err(failed)?;
        let positions = SinkStateFile::open(NAME, &own.join("positions.json"))
            .map_err(|error| SinkError::refused(error.to_string()))?;
        let sources = read_sources(&own).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => SinkError::refused(format!(
                "the folder {} is damaged: {error}; restore this file, or name a new folder",
                path.display()
            )),
            _ => failed(error),
        })?;
        Ok(Self { path: path.to_owned(), identity, positions, feeds: HashMap::new(), sources })
    }

    /// Fails if another folder, or none, stands where this one was opened: a copy there would lack what went before.
    fn check_identity(&self) -> Result<(), SinkError> {
        if self.identity.is_at(&self.path.join(OWN)) {
            return Ok(());
        }
        Err(SinkError::refused(format!(
            "cannot write to the folder {}: it was moved, removed or unmounted while it was open; start again",
            self.path.display()
        )))
    }

    /// Makes the feeds of a batch those of its source; refuses feeds of another one.
    fn claim(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        let mut is_changed = false;
        for event in batch.events.iter() {
            let feed = event.feed();
            // A reset under another name is of the whole source.
            if matches!(event, SinkEvent::Reset(_)) && !self.sources.contains_key(&feed) {
                continue;
            }
            match self.sources.get(&feed) {
                Some(source) if **source == *batch.source => {}
                Some(source) => {
                    let (folder, new) = (self.path.display(), towpath_client::redact::text(&batch.source));
                    let source = towpath_client::redact::text(source);
                    return Err(SinkError::refused(format!(
                        "the folder {folder} has the feed {feed} of {source} already, and {new} has one of the same \
                         name: name another folder"
                    )));
                }
                None => {
                    self.sources.insert(feed, batch.source.to_string());
                    is_changed = true;
                }
            }
        }
        // Before the first item: a crash must not leave items of a feed that is nobody's.
        if is_changed { self.write_sources().map_err(|error| classify(&self.path, &error)) } else { Ok(()) }
    }

    fn write_sources(&self) -> io::Result<()> {
        replace(&self.path.join(OWN).join(FEEDS), &serde_json::to_vec(&self.sources)?)
    }

    pub(super) fn checkpoint(&self, source: &str) -> Option<Vec<u8>> {
        self.positions.checkpoint(source)
    }

    /// Applies a batch. What a crash leaves of it is written over when it comes again.
    pub(super) fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        self.check_identity()?;
        self.claim(batch)?;
        let mut refused = Vec::new();
        let path = self.path.clone();
        let failed = |error: io::Error| classify(&path, &error);
        for (index, event) in batch.events.iter().enumerate() {
            if let Err(message) = self.write(event, &batch.source).map_err(failed)? {
                refused.push(RefusedItem { index, message });
            }
        }
        for feed in self.feeds.values_mut() {
            feed.index.write().map_err(failed)?;
        }
        if !refused.is_empty() {
            return Err(SinkError::Items(refused));
        }
        // One sync for all files and renames of the batch.
        File::open(&self.path).and_then(|folder| Ok(rustix::fs::syncfs(&folder)?)).map_err(failed)?;
        if let Some(checkpoint) = &batch.checkpoint {
            self.positions.set_checkpoint(&batch.source, checkpoint).map_err(failed)?;
            self.positions.save().map_err(failed)?;
        }
        Ok(())
    }

    /// Keeps a refused item in `.towpath/refused.ndjson`.
    pub(super) fn set_aside(
        &mut self,
        source: &str,
        change: Followed,
        reason: &str,
    ) -> Result<(), SinkError> {
        let mut file = DeadLetterFile::new(self.path.join(OWN).join("refused.ndjson"));
        let kept = file.append(source, &SinkEvent::Change(Box::new(change)), reason);
        kept.map_err(|error| classify(&self.path, &error))
    }

    /// Writes one event. The inner error is the reason why its item is refused.
    fn write(&mut self, event: &SinkEvent, source: &str) -> io::Result<Result<(), String>> {
        let name = event.feed();
        match event {
            SinkEvent::Reset(_) => self.clear(&name, source).map(Ok),
            SinkEvent::Change(change) if change.op == Op::Delete => {
                self.feed(&name)?.delete(&change.item.id).map(Ok)
            }
            SinkEvent::Change(change) => self.feed(&name)?.put(change, event),
        }
    }

    /// Removes the items of a feed that began anew, or of all feeds of the source.
    fn clear(&mut self, named: &str, source: &str) -> io::Result<()> {
        let is_named = self.sources.contains_key(named);
        // A publisher of several sources begins anew as a whole, under its own name.
        let is_void = |(feed, of): &(&String, &String)| if is_named { *feed == named } else { *of == source };
        let feeds: Vec<String> = self.sources.iter().filter(is_void).map(|(feed, _)| feed.clone()).collect();
        feeds.iter().try_for_each(|feed| self.feed(feed)?.clear())
    }

    fn feed(&mut self, name: &str) -> io::Result<&mut FeedFolder> {
        if !self.feeds.contains_key(name) {
            let path = self.path.join(names::encode(name));
            fs::create_dir_all(&path)?;
            let index = FeedIndex::open(&path)?;
            self.feeds.insert(name.to_owned(), FeedFolder { path, index });
        }
        self.feeds.get_mut(name).ok_or_else(|| io::Error::other("the feed's folder is not open"))
    }
}

impl FeedFolder {
    fn put(&mut self, change: &Followed, event: &SinkEvent) -> io::Result<Result<(), String>> {
        let name = file_name(&change.item.id);
        let path = self.path.join(&name);
        let item = match whole(change, || stored_item(&path)) {
            Ok(Ok(item)) => item,
            Ok(Err(reason)) => return Ok(Err(reason)),
            // Another attempt would find the same. The next put of the item replaces the file.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(Err(error.to_string())),
            Err(error) => return Err(error),
        };
        let mut text = match change.op {
            // The file holds the state, which is the same however it came about.
            Op::Patch => {
                let put = Followed { op: Op::Put, item: item.into_owned(), patch: None, ..change.clone() };
                SinkEvent::Change(Box::new(put)).to_json()
            }
            Op::Put | Op::Delete => event.to_json(),
        };
        text.push(b'\n');
        // No id has this name, and one batch is written at a time.
        let draft = self.path.join(".draft");
        fs::write(&draft, text)?;
        match fs::rename(&draft, &path) {
            // Somebody else's folder has the name: no other item is affected.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
                return Ok(Err(format!("cannot write {}: {error}", path.display())));
            }
            renamed => renamed?,
        }
        self.index.set(&change.item.id, Some(&name))?;
        Ok(Ok(()))
    }

    fn delete(&mut self, id: &str) -> io::Result<()> {
        remove(&self.path.join(file_name(id)))?;
        self.index.set(id, None)
    }

    /// Removes all items of a feed that began anew.
    fn clear(&mut self) -> io::Result<()> {
        self.index.clear();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            // By the folder, not the index: a crash may have left a file that the index does not have.
            if path.extension().is_some_and(|ending| ending == "json") {
                remove(&path)?;
            }
        }
        Ok(())
    }
}

fn read_sources(own: &Path) -> io::Result<BTreeMap<String, String>> {
    let path = own.join(FEEDS);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| damaged(&path, &error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error),
    }
}

fn file_name(id: &str) -> String {
    format!("{}.json", names::encode(id))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        // A crash repeats changes.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Reads the item of a file.
fn stored_item(path: &Path) -> io::Result<Option<Item>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let change = Line::parse(&text).and_then(Line::into_change).map_err(|error| damaged(path, &error))?;
    Ok(Some(change.item))
}

fn damaged(path: &Path, error: &dyn fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} cannot be read: {error}", path.display()))
}

/// Returns the error of an operation on the folder.
fn classify(path: &Path, error: &io::Error) -> SinkError {
    let name = path.display();
    let advice = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            return SinkError::unavailable(format!("the disk of {name} is full: free space"));
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "give write permission for it",
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => "name a folder",
        _ => return SinkError::unavailable(format!("cannot write to the folder {name}: {error}")),
    };
    SinkError::refused(format!("cannot write to the folder {name}: {error}; {advice}"))
}
