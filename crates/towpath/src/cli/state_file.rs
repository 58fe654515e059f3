//! The state file: how far a feed has been followed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use crate::client::Protocol;

/// The form of the file that is written and read here.
const VERSION: u32 = 1;

/// Why a state file is of no use. The user's to mend.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    /// It is there but cannot be read.
    #[error("cannot read the state file {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// It cannot be written where it is to be.
    #[error("cannot write the state file {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    /// It is not what was once written.
    #[error("the state file {} is damaged ({reason}); remove it to follow the feed anew", path.display())]
    Damaged { path: PathBuf, reason: String },
    /// It belongs to another feed.
    #[error("the state file {} is of {url}; give every feed a state file of its own", path.display())]
    OtherFeed { path: PathBuf, url: String },
    /// It belongs to another protocol.
    #[error("the state file {} is of the protocol {protocol}, not {asked}", path.display())]
    OtherProtocol { path: PathBuf, protocol: Protocol, asked: Protocol },
    /// It belongs to many feeds.
    #[error("the state file {} is of many feeds, not of one", path.display())]
    OfManyFeeds { path: PathBuf },
    /// It belongs to one feed.
    #[error("the state file {} is of a single feed; give the list of feeds one of its own", path.display())]
    OfOneFeed { path: PathBuf },
    /// A feed in it is followed by another protocol.
    #[error("the state file {} has {url} by the protocol {protocol}, not {asked}", path.display())]
    FeedProtocol { path: PathBuf, url: String, protocol: Protocol, asked: Protocol },
    /// Another process uses it.
    #[error("the state file {} is in use by another process", path.display())]
    InUse { path: PathBuf },
}

/// The file's content.
#[derive(Serialize, Deserialize)]
struct Content {
    towpath_state: u32,
    url: String,
    protocol: String,
    /// The address that is followed, where the feed's own only leads to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follows: Option<String>,
    state: Value,
}

/// What was kept of an earlier follow.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) protocol: Protocol,
    /// The address that is followed.
    pub(super) follows: String,
    pub(super) state: Value,
}

/// Reads the state of a feed; `None` where there is none yet. `asked` is the protocol the user names.
pub(super) fn load(path: &Path, feed: &Url, asked: Option<Protocol>) -> Result<Option<Kept>, StateError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateError::Read { path: path.into(), error }),
    };
    if bytes.starts_with(b"{\"towpath_states\":") {
        return Err(StateError::OfManyFeeds { path: path.into() });
    }
    let damaged = |reason: String| StateError::Damaged { path: path.into(), reason };
    let content: Content = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
    if content.towpath_state != VERSION {
        return Err(damaged(format!("its form is {}, not {VERSION}", content.towpath_state)));
    }
    let protocol: Protocol = content.protocol.parse().map_err(damaged)?;
    if Url::parse(&content.url).ok().as_ref() != Some(feed) {
        return Err(StateError::OtherFeed { path: path.into(), url: content.url });
    }
    match asked {
        Some(asked) if asked != protocol => {
            Err(StateError::OtherProtocol { path: path.into(), protocol, asked })
        }
        _ => {
            let follows = content.follows.unwrap_or(content.url);
            Ok(Some(Kept { protocol, follows, state: content.state }))
        }
    }
}

/// Where the state of one feed is kept.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    folder: PathBuf,
    draft: PathBuf,
    url: String,
    protocol: Protocol,
    follows: Option<String>,
}

impl StateFile {
    /// Makes sure that a state can be kept at `path`, before the feed's address `follows` is followed.
    pub(super) fn open(
        path: &Path,
        feed: &Url,
        protocol: Protocol,
        follows: &str,
    ) -> Result<Self, StateError> {
        // A link is followed: what it points to is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let failed = |error| StateError::Write { path: path.clone(), error };
        let name = path.file_name().ok_or_else(|| failed(io::Error::other("it names no file")))?;
        if path.is_dir() {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let draft = folder.join(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
        File::create(&draft).and_then(|_| fs::remove_file(&draft)).map_err(failed)?;
        let url = feed.to_string();
        let follows = (follows != url).then(|| follows.to_owned());
        Ok(Self { folder, draft, url, protocol, follows, path })
    }

    /// Replaces the state in one step: after a crash there is the old one or this one.
    pub(super) fn save(&self, state: Value) -> Result<(), StateError> {
        let protocol = self.protocol.name().to_owned();
        let (url, follows) = (self.url.clone(), self.follows.clone());
        let content = Content { towpath_state: VERSION, url, protocol, follows, state };
        let replaced = self.replace(&content);
        if replaced.is_err() {
            let _ = fs::remove_file(&self.draft);
        }
        replaced.map_err(|error| StateError::Write { path: self.path.clone(), error })
    }

    fn replace(&self, content: &Content) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(content)?;
        bytes.push(b'\n');
        let mut draft = File::create(&self.draft)?;
        draft.write_all(&bytes)?;
        draft.sync_all()?;
        fs::rename(&self.draft, &self.path)?;
        File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn feed() -> Url {
        Url::parse("https://example.com/feeds/x").unwrap()
    }

    fn open(path: &Path, protocol: Protocol) -> Result<StateFile, StateError> {
        StateFile::open(path, &feed(), protocol, feed().as_str())
    }

    #[test]
    fn a_state_comes_back_and_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert!(load(&path, &feed(), None).unwrap().is_none());
        let file = open(&path, Protocol::DiffDelta).unwrap();
        assert!(!path.exists());
        for n in [1, 2] {
            file.save(json!({ "n": n })).unwrap();
            let kept = load(&path, &feed(), Some(Protocol::DiffDelta)).unwrap().unwrap();
            assert_eq!((kept.protocol, kept.state), (Protocol::DiffDelta, json!({ "n": n })));
        }
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"towpath_state\":1,\"url\":\"https://example.com/feeds/x\",\"protocol\":\"diffdelta\",\"state\":{\"n\":2}}\n"
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left behind");
    }

    #[test]
    fn the_address_that_the_feed_led_to_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        StateFile::open(&path, &feed(), Protocol::Smart, "https://other/").unwrap().save(json!(1)).unwrap();
        assert_eq!(load(&path, &feed(), None).unwrap().unwrap().follows, "https://other/");
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("state.json"), folder.path().join("link"));
        open(&path, Protocol::Smart).unwrap().save(json!(1)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        open(&link, Protocol::Smart).unwrap().save(json!(2)).unwrap();
        assert!(link.is_symlink());
        assert_eq!(load(&path, &feed(), None).unwrap().unwrap().state, json!(2));
    }

    #[test]
    fn states_that_do_not_fit_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let refusal = |content: &str, asked| {
            fs::write(&path, content).unwrap();
            load(&path, &feed(), asked).unwrap_err().to_string()
        };
        let good = r#"{"towpath_state":1,"url":"https://EXAMPLE.com/feeds/x","protocol":"smart","state":{}}"#;
        fs::write(&path, good).unwrap();
        assert!(load(&path, &feed(), None).is_ok(), "the same address, written otherwise");
        assert!(refusal(good, Some(Protocol::Rss)).contains("of the protocol smart, not rss"));
        assert!(refusal(&good.replace("feeds/x", "feeds/y"), None).contains("feeds/y"));
        for bad in
            ["", "{", "[]", "{}", &good[..60], &good.replace(":1,", ":2,"), &good.replace("smart", "odd")]
        {
            assert!(refusal(bad, None).contains("damaged"), "{bad}");
        }
        let missing = folder.path().join("no/such/folder/s");
        assert!(open(&missing, Protocol::Rss).is_err());
        assert!(open(folder.path(), Protocol::Rss).is_err());
    }
}
