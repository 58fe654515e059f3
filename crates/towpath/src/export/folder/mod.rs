//! A tree in a folder.
//!
//! A document's file has the document's path. Where that path is the beginning of others', the file is `index` in a
//! folder of that name: `/feeds/kev/atom` is `feeds/kev/atom/index`, for `/feeds/kev/atom/1` is there, too.
//!
//! Every file is written elsewhere, then renamed. What headers a server is to send follows from the path, except for a
//! few documents ([`facts`]): their body is a file whose name says what the headers are, and the file of their path
//! is a symbolic link to it. So both change in one step, and no server needs to be told of it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::CONTENT_TYPE;
use towpath_proto::format::link;

use crate::document::cors::CorsPolicy;
use crate::document::encoding::{self, Coding};
use crate::export::hosting;
use crate::export::paths::{GONE, OWN};
use crate::export::target::{Pieces, Target, TargetError};
use crate::export::tree_document::TreeDocument;
use crate::private_files::{create_public_folders, publish};

/// Bodies below this many bytes are not worth compressing.
const WORTH_COMPRESSING: usize = 1024;

/// A folder with a tree in it.
#[derive(Clone)]
pub struct Folder {
    root: Arc<Path>,
    /// Folder in which this process writes files before it renames them.
    unfinished: Arc<Path>,
    next: Arc<AtomicU64>,
}

impl Folder {
    /// Makes the folder where it is not there.
    pub(super) fn new(root: &Path) -> Result<Self, TargetError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| TargetError::File { path, source }
        };
        create_public_folders(root).map_err(at(root))?;
        let root = root.canonicalize().map_err(at(root))?;
        // In the same file system as the tree, because renaming is atomic only within one.
        let unfinished = root.join(OWN).join("tmp").join(format!("{:016x}", fastrand::u64(..)));
        create_public_folders(&unfinished).map_err(at(&unfinished))?;
        Ok(Self { root: root.into(), unfinished: unfinished.into(), next: Arc::default() })
    }

    /// A process that lost its role finds the folder gone, so that its writes fail.
    fn take_over_now(&self) -> io::Result<()> {
        create_public_folders(&self.unfinished)?;
        for entry in fs::read_dir(self.root.join(OWN).join("tmp"))? {
            let path = entry?.path();
            if path == *self.unfinished {
                continue;
            }
            match if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) } {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// A file elsewhere, to be put in its place.
    fn unfinished(&self) -> PathBuf {
        self.unfinished.join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    fn create_now(&self, document: &TreeDocument) -> io::Result<bool> {
        let (file, new) = (self.file(&document.path), self.unfinished());
        // The whole folder may have been removed. Only names are made so: a process that lost its role writes no more.
        create_public_folders(&self.unfinished)?;
        let mut written = fs::File::create_new(&new)?;
        publish(&written)?;
        written.write_all(&document.body)?;
        // Unlike renaming, linking never replaces anything.
        match fs::hard_link(&new, &file) {
            Ok(()) => fs::remove_file(&new).map(|()| true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(&new).map(|()| false),
            // A file system without links.
            Err(_) => fs::rename(&new, &file).map(|()| true),
        }
    }

    fn file(&self, path: &str) -> PathBuf {
        self.root.join(file_of(path))
    }

    /// Folder of the bodies of documents whose file is a symbolic link.
    fn named(&self, path: &str) -> PathBuf {
        self.root.join(OWN).join("bodies").join(file_of(path))
    }

    /// Empty file that says that the document of a path is gone.
    fn mark(&self, path: &str) -> PathBuf {
        self.root.join(OWN).join(GONE).join(format!("{}.{GONE}", path.trim_start_matches('/')))
    }

    fn put_now(&self, document: &TreeDocument) -> io::Result<u64> {
        let file = self.file(&document.path);
        // A feed that was begun anew uses the same paths.
        remove_file(&self.mark(&document.path))?;
        let time = next_time(&file);
        let facts = facts(document);
        let zipped = if document.is_checked() && facts.is_some() { None } else { zipped(document) };
        let mut bytes = document.body.len() as u64;
        let mut gz = OsString::from(&file);
        gz.push(".gz");
        match zipped {
            Some(zipped) => {
                // The same time for both forms: nginx derives the ETag and Last-Modified from it.
                self.write(Path::new(&gz), &zipped, time)?;
                bytes += zipped.len() as u64;
            }
            // nginx would otherwise serve the old version to clients that accept gzip.
            None => remove_file(Path::new(&gz))?,
        }
        match facts {
            Some(facts) => self.put_named(document, &file, &facts, time)?,
            None => self.write(&file, &document.body, time)?,
        }
        Ok(bytes)
    }

    /// Puts a large file that was written elsewhere. It is never compressed.
    fn put_file_now(&self, path: &str, written: &fs::File, new: &Path) -> io::Result<()> {
        let file = self.file(path);
        remove_file(&self.mark(path))?;
        publish(written)?;
        written.set_modified(next_time(&file))?;
        let mut gz = OsString::from(&file);
        gz.push(".gz");
        remove_file(Path::new(&gz))?;
        self.replace(&file, |at| fs::rename(new, at))
    }

    /// Puts a body under a name that says what its headers are, then the link to it.
    fn put_named(
        &self,
        document: &TreeDocument,
        file: &Path,
        facts: &str,
        time: SystemTime,
    ) -> io::Result<()> {
        let folder = self.named(&document.path);
        self.write(&folder.join(facts), &document.body, time)?;
        // A relative link: the folder can be moved or mounted elsewhere.
        let up = "../".repeat(file_of(&document.path).matches('/').count());
        let target = format!("{up}{OWN}/bodies/{}/{facts}", file_of(&document.path));
        self.replace(file, |new| symlink(&target, new))?;
        // Removes the previous body, and any that an export killed at this point left behind.
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_name() != facts && entry.file_type()?.is_file() {
                remove_file(&entry.path())?;
            }
        }
        Ok(())
    }

    fn write(&self, file: &Path, body: &[u8], time: SystemTime) -> io::Result<()> {
        self.replace(file, |new| {
            let mut file = fs::File::create_new(new)?;
            publish(&file)?;
            file.write_all(body)?;
            file.set_modified(time)
        })
    }

    /// Puts what `make` makes at another path in the place of a file.
    fn replace(&self, file: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        let new = self.unfinished();
        make(&new)?;
        // Its folder may be missing, or be removed just now because it was empty.
        // `prune` may remove the folder again in between; ten times in a row would be a fault.
        for _ in 0..10 {
            match fs::rename(&new, file) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    if let Some(parent) = file.parent() {
                        create_public_folders(parent)?;
                    }
                }
                done => return done,
            }
        }
        fs::rename(&new, file)
    }

    fn remove_for_good_now(&self, path: &str) -> io::Result<()> {
        // The mark first: in between, no reader gets a 404.
        self.write(&self.mark(path), &[], SystemTime::now())?;
        self.remove_now(path)
    }

    fn remove_now(&self, path: &str) -> io::Result<()> {
        let file = self.file(path);
        remove_file(&file)?;
        let mut gz = OsString::from(&file);
        gz.push(".gz");
        remove_file(Path::new(&gz))?;
        let named = self.named(path);
        if let Ok(entries) = fs::read_dir(&named) {
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_file() {
                    remove_file(&entry.path())?;
                }
            }
        }
        let bodies = self.root.join(OWN).join("bodies");
        prune(file.parent(), &self.root);
        prune(Some(&named), &bodies);
        Ok(())
    }

    async fn apart<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, TargetError> {
        let (folder, path) = (self.clone(), self.file(path));
        let done = tokio::task::spawn_blocking(move || work(&folder)).await;
        let done = done.unwrap_or_else(|e| Err(io::Error::other(e)));
        done.map_err(|source| TargetError::File { path, source })
    }
}

#[async_trait]
impl Target for Folder {
    async fn read(&self, path: &str) -> Result<Option<Bytes>, TargetError> {
        let file = self.file(path);
        self.apart(path, move |_| match fs::read(&file) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        })
        .await
    }

    async fn create(&self, document: &TreeDocument) -> Result<bool, TargetError> {
        let created = document.clone();
        self.apart(&document.path, move |folder| folder.create_now(&created)).await
    }

    async fn take_over(&self) -> Result<(), TargetError> {
        self.apart("", Self::take_over_now).await
    }

    async fn put(&self, document: &TreeDocument) -> Result<u64, TargetError> {
        let put = document.clone();
        self.apart(&document.path, move |folder| folder.put_now(&put)).await
    }

    async fn put_pieces(&self, document: &TreeDocument, mut pieces: Pieces) -> Result<u64, TargetError> {
        let (path, new) = (document.path.as_str(), self.unfinished());
        let made = new.clone();
        let mut file = self.apart(path, move |_| fs::File::create_new(&made)).await?;
        let mut bytes = 0;
        while let Some(piece) = pieces.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(e) => {
                    self.apart(path, move |_| remove_file(&new)).await?;
                    return Err(TargetError::body(document, &e));
                }
            };
            bytes += piece.len() as u64;
            let writing = move |_: &Self| file.write_all(&piece).map(|()| file);
            file = self.apart(path, writing).await?;
        }
        let put = document.path.clone();
        self.apart(path, move |folder| folder.put_file_now(&put, &file, &new)).await?;
        Ok(bytes)
    }

    async fn remove(&self, path: &str) -> Result<(), TargetError> {
        let removed = path.to_owned();
        self.apart(path, move |folder| folder.remove_now(&removed)).await
    }

    async fn remove_for_good(&self, path: &str) -> Result<(), TargetError> {
        let removed = path.to_owned();
        self.apart(path, move |folder| folder.remove_for_good_now(&removed)).await
    }

    /// Syncs the file system once: a sync of each of thousands of files would take far longer.
    async fn sync(&self) -> Result<(), TargetError> {
        self.apart("", |folder| sync(&folder.root)).await
    }

    fn configuration(&self, base_url: &str, cors: &CorsPolicy) -> Vec<TreeDocument> {
        hosting::configuration(base_url, &self.root, cors)
    }
}

#[cfg(target_os = "linux")]
fn sync(root: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fs::File::open(root)?)?)
}

#[cfg(not(target_os = "linux"))]
fn sync(root: &Path) -> io::Result<()> {
    // Other systems have no portable sync of a single file system.
    rustix::fs::sync();
    fs::File::open(root)?.sync_all()
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        // `NotADirectory`: a file took the place of a folder in its path, so this one is gone too.
        Err(e) if e.kind() != io::ErrorKind::NotFound && e.kind() != io::ErrorKind::NotADirectory => Err(e),
        _ => Ok(()),
    }
}

/// Removes a folder and those that it is in, up to `root`, as far as they are empty.
fn prune(folder: Option<&Path>, root: &Path) {
    let above = folder.into_iter().flat_map(Path::ancestors).take_while(|folder| *folder != root);
    // If a folder is not empty, those above it are not either.
    let _ = above
        .map(fs::remove_dir)
        .take_while(|removed| removed.as_ref().err().is_none_or(|e| e.kind() == io::ErrorKind::NotFound))
        .count();
}

/// The file of a path, relative to the folder.
pub(super) fn file_of(path: &str) -> String {
    let path = path.trim_start_matches('/');
    if is_beginning(path) { format!("{path}/index") } else { path.to_owned() }
}

/// Returns true if a document's path is a folder of other documents.
fn is_beginning(path: &str) -> bool {
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["feeds"]
        | ["feeds", _]
        | ["feeds", _, "atom" | "rss" | "feed.json" | "replication" | "snapshots"] => true,
        ["feeds", _, "snapshots", id] => *id != "latest",
        _ => false,
    }
}

/// Servers tell versions apart by the second of their modification, so no two may have the same.
fn next_time(file: &Path) -> SystemTime {
    let second = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
    };
    let now = second(SystemTime::now());
    match fs::metadata(file).and_then(|known| known.modified()) {
        Ok(known) => now.max(second(known) + Duration::from_secs(1)),
        Err(_) => now,
    }
}

fn zipped(document: &TreeDocument) -> Option<Bytes> {
    let is_worth = document.body.len() >= WORTH_COMPRESSING && encoding::is_text(&document.headers);
    if is_worth { encoding::compress(&document.body, Coding::Gzip) } else { None }
}

/// Encodes headers that do not follow from a document's path as the name of a file. `None` where the path says it all.
///
/// Its parts are the boundary of a multipart body (`b`), the numbers of the page, the previous and the next one (`o`, `p`,
/// `n`), and the feed's SUP ID (`s`). The time for which caches may keep the document is `c`, in seconds or for ever.
fn facts(document: &TreeDocument) -> Option<String> {
    let content_type = document.header(CONTENT_TYPE.as_str()).unwrap_or_default();
    let boundary = content_type.strip_prefix("multipart/mixed; boundary=").map(|text| text.trim_matches('"'));
    let cache = match document.header("cache-control").unwrap_or_default() {
        "no-cache" => "0",
        rule if rule.contains("immutable") => "i",
        rule => rule.rsplit_once("max-age=").map_or("0", |(_, age)| age),
    };
    let Some(boundary) = boundary else {
        return (is_archive(&document.path) && cache == "0").then(|| ";c=0;".to_owned());
    };
    let mut facts = format!(";b={boundary};c={cache};");
    let links = link::from_headers(&document.headers, None);
    for (name, rel) in [("o", "self"), ("p", "prev"), ("n", "next")] {
        if let Some((_, number)) = link::target(&links, rel).and_then(|target| target.rsplit_once('/')) {
            facts.push_str(&format!("{name}={number};"));
        }
    }
    if let Some((_, id)) = document.header("x-sup-id").and_then(|link| link.rsplit_once('#')) {
        facts.push_str(&format!("s={id};"));
    }
    Some(facts)
}

/// Returns true for paths of archive documents of Feed History, which are immutable once there is a later page.
fn is_archive(path: &str) -> bool {
    let Some((folder, number)) = path.rsplit_once('/') else { return false };
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number && ["/atom", "/rss", "/feed.json"].iter().any(|name| folder.ends_with(name))
}

#[cfg(test)]
mod tests;
