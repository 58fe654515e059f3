//! A disk that forgets what was not synced: files, sizes, and the entries of directories.
//!
//! The model is stricter than file systems in use. A renamed file, a removed one and a new directory have their names only
//! after a sync of the directory that names them, and unsynced blocks of a file reach the disk in any order. A sync of a
//! new file keeps its name too, as ext4, XFS, Btrfs and ZFS do: the engine relies on that for the files of large values.

use std::collections::BTreeMap;
use std::path::Path;

/// Blocks are written whole or not at all.
const BLOCK: usize = 4096;

/// Remains of unsynced changes after a lost power.
#[derive(Debug, Clone)]
pub(crate) enum Remains {
    /// Only what was synced.
    Nothing,
    /// All names and sizes; unsynced blocks are zero.
    Zeros,
    /// A random part of the blocks, and the first of the changed names.
    Part(fastrand::Rng),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(usize);

#[derive(Debug, Clone)]
enum NameChange {
    Add(String, NodeId),
    Remove(String),
}

impl NameChange {
    fn name(&self) -> &str {
        match self {
            Self::Add(name, _) | Self::Remove(name) => name,
        }
    }
}

#[derive(Debug, Clone)]
enum Contents {
    File { synced: Vec<u8>, now: Vec<u8>, changed: Vec<(usize, usize)> },
    Directory { synced: BTreeMap<String, NodeId>, changes: Vec<NameChange> },
}

impl Contents {
    fn directory() -> Self {
        Self::Directory { synced: BTreeMap::new(), changes: Vec::new() }
    }
}

/// The disk below one folder.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    nodes: Vec<Contents>,
}

pub(crate) const ROOT: NodeId = NodeId(0);

impl Disk {
    pub(crate) fn new() -> Self {
        Self { nodes: vec![Contents::directory()] }
    }

    fn names(&self, directory: NodeId) -> BTreeMap<String, NodeId> {
        let Contents::Directory { synced, changes } = &self.nodes[directory.0] else {
            panic!("{directory:?} is no directory")
        };
        after(synced, changes)
    }

    /// Returns the node of a path below a directory.
    pub(crate) fn find(&self, from: NodeId, path: &str) -> Option<NodeId> {
        let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
        parts.try_fold(from, |at, part| self.names(at).get(part).copied())
    }

    /// Returns the directory and the name of a path.
    fn place<'p>(&self, from: NodeId, path: &'p str) -> (NodeId, &'p str) {
        let path = path.trim_end_matches('/');
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.find(from, directory).unwrap_or_else(|| panic!("no directory of {path}")), name)
    }

    fn change_name(&mut self, directory: NodeId, change: NameChange) {
        let Contents::Directory { changes, .. } = &mut self.nodes[directory.0] else {
            panic!("{directory:?} is no directory")
        };
        changes.push(change);
    }

    /// Creates a file or a directory.
    pub(crate) fn create(&mut self, from: NodeId, path: &str, is_directory: bool) -> NodeId {
        let (directory, name) = self.place(from, path);
        let node = NodeId(self.nodes.len());
        self.nodes.push(match is_directory {
            true => Contents::directory(),
            false => Contents::File { synced: Vec::new(), now: Vec::new(), changed: Vec::new() },
        });
        self.change_name(directory, NameChange::Add(name.to_owned(), node));
        node
    }

    pub(crate) fn remove(&mut self, from: NodeId, path: &str) {
        let (directory, name) = self.place(from, path);
        self.change_name(directory, NameChange::Remove(name.to_owned()));
    }

    pub(crate) fn rename(&mut self, (from, old): (NodeId, &str), (to, new): (NodeId, &str)) {
        let node = self.find(from, old).unwrap_or_else(|| panic!("{old} is not there"));
        // The new name first: a lost power between the two leaves both.
        let (directory, name) = self.place(to, new);
        self.change_name(directory, NameChange::Add(name.to_owned(), node));
        self.remove(from, old);
    }

    pub(crate) fn len(&self, file: NodeId) -> usize {
        match &self.nodes[file.0] {
            Contents::File { now, .. } => now.len(),
            Contents::Directory { .. } => 0,
        }
    }

    pub(crate) fn write(&mut self, file: NodeId, offset: usize, bytes: &[u8]) {
        let Contents::File { now, changed, .. } = &mut self.nodes[file.0] else {
            panic!("a write to a directory")
        };
        let end = offset + bytes.len();
        now.resize(now.len().max(end), 0);
        now[offset..end].copy_from_slice(bytes);
        changed.push((offset, end));
    }

    pub(crate) fn set_len(&mut self, file: NodeId, len: usize) {
        let Contents::File { now, changed, .. } = &mut self.nodes[file.0] else {
            panic!("a size of a directory")
        };
        let (from, to) = (now.len().min(len), now.len().max(len));
        now.resize(len, 0);
        changed.push((from, to));
    }

    /// Makes everything that a file or directory has now survive.
    pub(crate) fn sync(&mut self, node: NodeId) {
        match &mut self.nodes[node.0] {
            Contents::File { synced, now, changed } => {
                synced.clone_from(now);
                changed.clear();
                self.keep_new_name(node);
            }
            Contents::Directory { synced, changes } => {
                *synced = after(synced, changes);
                changes.clear();
            }
        }
    }

    /// Makes the name of a new file survive. A name that it got later does not.
    fn keep_new_name(&mut self, file: NodeId) {
        for contents in &mut self.nodes {
            let Contents::Directory { synced, changes } = contents else { continue };
            let adds = |change: &NameChange| matches!(change, NameChange::Add(_, node) if *node == file);
            let Some(at) = changes.iter().position(adds) else { continue };
            if synced.values().any(|node| *node == file) {
                continue;
            }
            let name = changes[at].name().to_owned();
            let later = changes.split_off(at + 1);
            changes.retain(|change| change.name() != name);
            changes.extend(later);
            synced.insert(name, file);
        }
    }

    /// Lists what a lost power would take, for messages.
    pub(crate) fn unsynced(&self) -> String {
        let mut text = String::new();
        self.list_unsynced(ROOT, "", &mut text);
        text
    }

    fn list_unsynced(&self, node: NodeId, path: &str, text: &mut String) {
        match &self.nodes[node.0] {
            Contents::File { changed, .. } if changed.is_empty() => {}
            Contents::File { synced, now, changed } => {
                let (parts, last) = (changed.len(), changed.last());
                *text += &format!(
                    "{path}: {} synced of {} bytes, {parts} changes, {last:?}\n",
                    synced.len(),
                    now.len()
                );
            }
            Contents::Directory { changes, .. } => {
                for change in changes {
                    *text += &format!("{path}/: {change:?}\n");
                }
                for (name, node) in self.names(node) {
                    self.list_unsynced(node, &format!("{path}/{name}"), text);
                }
            }
        }
    }

    /// Writes what remains into an empty folder.
    pub(crate) fn lose_power(&self, remains: &mut Remains, folder: &Path) {
        self.restore(ROOT, remains, folder);
    }

    fn restore(&self, node: NodeId, remains: &mut Remains, path: &Path) {
        match &self.nodes[node.0] {
            Contents::File { synced, now, changed } => {
                std::fs::write(path, left(synced, now, changed, remains)).unwrap();
            }
            Contents::Directory { synced, changes } => {
                std::fs::create_dir_all(path).unwrap();
                let kept = match remains {
                    Remains::Nothing => 0,
                    Remains::Zeros => changes.len(),
                    Remains::Part(rng) => rng.usize(..=changes.len()),
                };
                for (name, node) in after(synced, &changes[..kept]) {
                    self.restore(node, remains, &path.join(name));
                }
            }
        }
    }
}

fn after(names: &BTreeMap<String, NodeId>, changes: &[NameChange]) -> BTreeMap<String, NodeId> {
    let mut names = names.clone();
    for change in changes {
        match change {
            NameChange::Add(name, node) => names.insert(name.clone(), *node),
            NameChange::Remove(name) => names.remove(name),
        };
    }
    names
}

/// Returns the remaining contents of a file.
fn left(synced: &[u8], now: &[u8], changed: &[(usize, usize)], remains: &mut Remains) -> Vec<u8> {
    if changed.is_empty() || matches!(remains, Remains::Nothing) {
        return synced.to_vec();
    }
    // Shortened and grown again, its old bytes cannot come back.
    let mut bytes = synced.to_vec();
    bytes.resize(now.len(), 0);
    let mut size = if matches!(remains, Remains::Zeros) { now.len() } else { synced.len().min(now.len()) };
    for (from, to) in changed {
        for start in (from / BLOCK * BLOCK..*to).step_by(BLOCK) {
            let (start, end) = (start.max(*from), (start + BLOCK).min(*to).min(now.len()));
            let keeps = if let Remains::Part(rng) = remains { rng.bool() } else { false };
            if keeps && start < end {
                bytes[start..end].copy_from_slice(&now[start..end]);
                size = size.max(end);
            }
        }
    }
    bytes.truncate(size);
    bytes
}

#[test]
fn only_what_was_synced_remains() {
    let mut disk = Disk::new();
    let file = disk.create(ROOT, "a", false);
    disk.write(file, 0, b"one");
    let folder = tempfile::tempdir().unwrap();
    let remains = |disk: &Disk, name: &str| {
        let folder = folder.path().join(fastrand::u64(..).to_string());
        disk.lose_power(&mut Remains::Nothing, &folder);
        std::fs::read(folder.join(name)).ok()
    };
    assert_eq!(remains(&disk, "a"), None);
    let mut named = disk.clone();
    named.sync(ROOT);
    assert_eq!(remains(&named, "a").as_deref(), Some(&b""[..]), "a name without contents");
    disk.sync(file);
    disk.write(file, 3, b"two");
    disk.rename((ROOT, "a"), (ROOT, "b"));
    assert_eq!((remains(&disk, "a").as_deref(), remains(&disk, "b")), (Some(&b"one"[..]), None));
    disk.sync(ROOT);
    disk.sync(file);
    assert_eq!((remains(&disk, "a"), remains(&disk, "b").as_deref()), (None, Some(&b"onetwo"[..])));
}
