//! State file of one feed: the position up to which it was followed. `towpath follow --state` writes the same file.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use crate::durable_file::{beside, folder_of, lock_beside, replace};
use crate::protocol::Protocol;

/// Version of the file format.
const VERSION: u32 = 1;

/// A state file cannot be used. The user's to fix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The file cannot be read.
    #[error("cannot read the state file {}: {error}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write the state file {}: {error}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The content is invalid.
    #[error("the state file {} is damaged ({reason}); remove it to follow the feed from the start", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Place and kind of the damage.
        reason: String,
    },
    /// The file is another feed's.
    #[error("the state file {} belongs to {url}; use a separate state file for each feed", path.display())]
    OtherFeed {
        /// Path of the file.
        path: PathBuf,
        /// URL of its feed.
        url: String,
    },
    /// The file is for another protocol.
    #[error("the state file {} is for the protocol {protocol}, not {requested}", path.display())]
    OtherProtocol {
        /// Path of the file.
        path: PathBuf,
        /// Its protocol.
        protocol: Protocol,
        /// The protocol that was asked for.
        requested: Protocol,
    },
    /// The file is for several feeds.
    #[error("the state file {} is for several feeds, not for one", path.display())]
    SeveralFeeds {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is for one feed.
    #[error("the state file {} is for a single feed; use another one for several feeds", path.display())]
    SingleFeed {
        /// Path of the file.
        path: PathBuf,
    },
    /// A feed in the file uses another protocol.
    #[error("the state file {} follows {url} by the protocol {protocol}, not {requested}", path.display())]
    FeedProtocol {
        /// Path of the file.
        path: PathBuf,
        /// URL of the feed.
        url: String,
        /// Its protocol.
        protocol: Protocol,
        /// The protocol that was asked for.
        requested: Protocol,
    },
    /// Another program keeps something of its own in the file, which would not match a later position.
    #[error("the state file {} holds {member:?} of another program, which a new position would not match; use a file of its own", path.display())]
    OtherData {
        /// Path of the file.
        path: PathBuf,
        /// Name of the first such member.
        member: String,
    },
    /// Another process has locked the file.
    #[error("the state file {} is in use by another process", path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct StateFileContent {
    towpath_state: u32,
    url: String,
    protocol: String,
    /// URL that is followed, if it differs from the feed's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follows: Option<String>,
    /// `null` before the publisher's first checkpoint.
    #[serde(default)]
    state: Option<Value>,
    /// Keys of changes after the state that are finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    acknowledged: Vec<String>,
    /// Members that programs in other languages keep beside the position.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Saved state of an earlier follow.
#[derive(Debug)]
pub struct SavedFollow {
    /// Protocol of the follow.
    pub protocol: Protocol,
    /// URL that is followed.
    pub follows: String,
    /// State of the protocol's follower; `None` before the first checkpoint.
    pub state: Option<Value>,
    /// [Keys](crate::sink::acks::line_key) of changes after the state that are finished.
    pub acknowledged: Vec<String>,
}

/// Reads the state of a feed; `None` if there is no file. `requested` is the protocol that the caller asks for.
///
/// # Errors
///
/// [`StateError`] if the file cannot be read, is damaged, or belongs to another feed or protocol.
pub fn load(path: &Path, feed: &Url, requested: Option<Protocol>) -> Result<Option<SavedFollow>, StateError> {
    match fs::read(path) {
        Ok(bytes) => parse(path, &bytes, feed, requested).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StateError::Read { path: path.into(), error }),
    }
}

/// Parses the content of a state file. `path` names its place in errors.
///
/// # Errors
///
/// [`StateError`] if it is damaged, or belongs to another feed or protocol.
pub fn parse(
    path: &Path,
    bytes: &[u8],
    feed: &Url,
    requested: Option<Protocol>,
) -> Result<SavedFollow, StateError> {
    // A clearer error than a parse failure: the two formats are easily confused.
    if bytes.starts_with(b"{\"towpath_states\":") {
        return Err(StateError::SeveralFeeds { path: path.into() });
    }
    let damaged = |reason: String| StateError::Damaged { path: path.into(), reason };
    let content: StateFileContent = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    if content.towpath_state != VERSION {
        return Err(damaged(format!("its version is {}, not {VERSION}", content.towpath_state)));
    }
    let protocol: Protocol = content.protocol.parse().map_err(damaged)?;
    // Parsed URLs are compared, so that two spellings of one address match.
    if Url::parse(&content.url).ok().as_ref() != Some(feed) {
        return Err(StateError::OtherFeed { path: path.into(), url: content.url });
    }
    if let Some(member) = content.others.keys().next().cloned() {
        return Err(StateError::OtherData { path: path.into(), member });
    }
    match requested {
        Some(requested) if requested != protocol => {
            Err(StateError::OtherProtocol { path: path.into(), protocol, requested })
        }
        _ => {
            let StateFileContent { follows, url, state, acknowledged, .. } = content;
            Ok(SavedFollow { protocol, follows: follows.unwrap_or(url), state, acknowledged })
        }
    }
}

/// Beginning of each state of one follow: its feed and protocol.
#[derive(Debug, Clone)]
pub struct StateHeader {
    url: String,
    protocol: Protocol,
    follows: Option<String>,
}

impl StateHeader {
    /// Creates the header for `feed`, which is followed at the URL `follows`.
    pub fn new(feed: &Url, protocol: Protocol, follows: &str) -> Self {
        let url = feed.to_string();
        let follows = (follows != url).then(|| follows.to_owned());
        Self { url, protocol, follows }
    }

    /// Sets the URL at which the feed is followed.
    pub fn relocate(&mut self, follows: &str) {
        self.follows = (follows != self.url).then(|| follows.to_owned());
    }

    /// Returns the content of a state file, without a line end.
    ///
    /// # Errors
    ///
    /// Never in practice: the state is JSON already.
    pub fn content(&self, state: Option<&Value>, acknowledged: Vec<String>) -> io::Result<Vec<u8>> {
        let Self { url, protocol, follows } = self.clone();
        let (protocol, state) = (protocol.name().to_owned(), state.cloned());
        let others = BTreeMap::new();
        let content =
            StateFileContent { towpath_state: VERSION, url, protocol, follows, state, acknowledged, others };
        Ok(serde_json::to_vec(&content)?)
    }
}

/// Writer of one feed's state file.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    header: StateHeader,
    /// Lock file beside the state, which is replaced and so cannot hold a lock itself.
    _lock: Arc<File>,
}

/// Locks a state file for this process. Two processes would deliver every change twice, and write over each other's position.
/// Within one, a follow that turns to another address opens its file again before it closes the first.
fn lock_of(path: &Path) -> Result<Arc<File>, StateError> {
    static LOCKS: Mutex<BTreeMap<PathBuf, Weak<File>>> = Mutex::new(BTreeMap::new());
    let failed = |error| StateError::Write { path: path.to_owned(), error };
    // By one name of the file, however the caller spells it.
    let name = fs::canonicalize(folder_of(path)).map_err(failed)?.join(path.file_name().unwrap_or_default());
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(lock) = locks.get(&name).and_then(Weak::upgrade) {
        return Ok(lock);
    }
    let lock = Arc::new(lock_beside(path).map_err(|error| match error {
        TryLockError::WouldBlock => StateError::InUse { path: path.to_owned() },
        TryLockError::Error(error) => failed(error),
    })?);
    locks.retain(|_, lock| lock.strong_count() > 0);
    locks.insert(name, Arc::downgrade(&lock));
    Ok(lock)
}

impl StateFile {
    /// Prepares the state file at `path`, and verifies that it can be written before following begins.
    ///
    /// # Errors
    ///
    /// [`StateError::Write`] if it cannot.
    pub fn open(path: &Path, feed: &Url, protocol: Protocol, follows: &str) -> Result<Self, StateError> {
        // Resolves symbolic links: the rename must replace the link's target, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let failed = |error| StateError::Write { path: path.clone(), error };
        path.file_name().ok_or_else(|| failed(io::Error::other("it names no file")))?;
        if path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let lock = lock_of(&path)?;
        let draft = beside(&path, "tmp");
        File::create(&draft).and_then(|_| fs::remove_file(&draft)).map_err(failed)?;
        Ok(Self { header: StateHeader::new(feed, protocol, follows), path, _lock: lock })
    }

    /// Sets the URL at which the feed is followed, for the states from here on.
    pub fn relocate(&mut self, follows: &str) {
        self.header.relocate(follows);
    }

    /// Replaces the state atomically and durably: after a crash the file has the old state or the new one.
    ///
    /// # Errors
    ///
    /// [`StateError::Write`].
    pub fn save(&self, state: &Value) -> Result<(), StateError> {
        self.save_with(Some(state), Vec::new())
    }

    /// Like [`save`](Self::save), with the keys of changes after the state that are finished.
    ///
    /// # Errors
    ///
    /// [`StateError::Write`].
    pub fn save_with(&self, state: Option<&Value>, acknowledged: Vec<String>) -> Result<(), StateError> {
        let replaced = self.header.content(state, acknowledged).and_then(|mut bytes| {
            bytes.push(b'\n');
            replace(&self.path, &bytes)
        });
        replaced.map_err(|error| StateError::Write { path: self.path.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn feed() -> Url {
        Url::parse("https://example.com/feeds/x").unwrap()
    }

    fn open(path: &Path, protocol: Protocol) -> Result<StateFile, StateError> {
        StateFile::open(path, &feed(), protocol, feed().as_str())
    }

    #[test]
    fn a_state_is_read_back_and_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert!(load(&path, &feed(), None).unwrap().is_none());
        let file = open(&path, Protocol::DiffDelta).unwrap();
        assert!(!path.exists());
        for n in [1, 2] {
            file.save(&json!({ "n": n })).unwrap();
            let saved = load(&path, &feed(), Some(Protocol::DiffDelta)).unwrap().unwrap();
            assert_eq!((saved.protocol, saved.state), (Protocol::DiffDelta, Some(json!({ "n": n }))));
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"towpath_state\":1,\"url\":\"https://example.com/feeds/x\",\"protocol\":\"diffdelta\",\"state\":{\"n\":2}}\n"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the state and its lock, and no draft");
        open(&path, Protocol::DiffDelta).unwrap();
        drop(file);
        // As another process has it.
        let other = File::create(beside(&fs::canonicalize(&path).unwrap(), "lock")).unwrap();
        other.try_lock().unwrap();
        assert!(matches!(open(&path, Protocol::DiffDelta), Err(StateError::InUse { .. })));
        drop(other);
        open(&path, Protocol::DiffDelta).unwrap();
    }

    /// `fileState` of the JavaScript package keeps what a program has counted so far beside the position.
    #[test]
    fn what_another_program_keeps_is_not_dropped() {
        let text = br#"{"towpath_state":1,"url":"https://example.com/feeds/x","protocol":"smart","state":{},"data":{"count":13}}"#;
        let error = parse(Path::new("s"), text, &feed(), None).unwrap_err();
        assert!(matches!(&error, StateError::OtherData { member, .. } if member == "data"), "{error}");
    }

    #[test]
    fn the_discovered_url_is_saved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        StateFile::open(&path, &feed(), Protocol::Smart, "https://other/").unwrap().save(&json!(1)).unwrap();
        assert_eq!(load(&path, &feed(), None).unwrap().unwrap().follows, "https://other/");
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("state.json"), folder.path().join("link"));
        open(&path, Protocol::Smart).unwrap().save(&json!(1)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        open(&link, Protocol::Smart).unwrap().save(&json!(2)).unwrap();
        assert!(link.is_symlink());
        assert_eq!(load(&path, &feed(), None).unwrap().unwrap().state, Some(json!(2)));
    }

    #[test]
    fn state_files_that_do_not_fit_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let error = |content: &str, requested| {
            fs::write(&path, content).unwrap();
            load(&path, &feed(), requested).unwrap_err().to_string()
        };
        let good = r#"{"towpath_state":1,"url":"https://EXAMPLE.com/feeds/x","protocol":"smart","state":{}}"#;
        fs::write(&path, good).unwrap();
        assert!(load(&path, &feed(), None).is_ok(), "the same address, written otherwise");
        assert!(error(good, Some(Protocol::Rss)).contains("for the protocol smart, not rss"));
        assert!(error(&good.replace("feeds/x", "feeds/y"), None).contains("feeds/y"));
        for bad in
            ["", "{", "[]", "{}", &good[..60], &good.replace(":1,", ":2,"), &good.replace("smart", "odd")]
        {
            assert!(error(bad, None).contains("damaged"), "{bad}");
        }
        let missing = folder.path().join("no/such/folder/s");
        assert!(open(&missing, Protocol::Rss).is_err());
        assert!(open(folder.path(), Protocol::Rss).is_err());
    }
}
