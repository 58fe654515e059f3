//! Check and repair of files and unfinished uploads, by the digests of their bytes that stand beside them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};
use towpath_proto::{FeedId, Item};
use towpath_store::{ItemOrder, ReadLimit, SeqRange, Store, Table, TableWrite};

use super::orphans::{self, OrphanedFile};
use super::upload::{Stage, Upload, prefix};
use super::{KeptFile, after_path, bytes_row, decode, is_key, list, name_row, of_item, remove_file};
use crate::engine::finding::Findings;
use crate::engine::table_scan::TableScan;
use crate::store_error::StoreError;

/// Bound of one read of a feed's items.
const READ: ReadLimit = ReadLimit { items: 500, bytes: 16 << 20 };
/// Problem of a file that is whole otherwise.
const NO_NAME: &str = "its name is missing";
/// Problem of chunks that belong to no file and no upload.
const NOTHING_NAMES: &str = "its record is missing";

/// A file whose rows are not as they should be.
struct DamagedFile {
    key: String,
    name: Option<String>,
    /// Item that has it, as far as it can be read.
    item: Option<Item>,
    problem: String,
}

impl fmt::Display for DamagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_ref().unwrap_or(&self.key);
        match &self.item {
            Some(item) => write!(f, "file {name:?} of item {:?}", item.id),
            None => write!(f, "file {name:?} of an unknown item, {}", self.key),
        }
    }
}

impl DamagedFile {
    /// Returns the name that the item's address of the file has.
    fn linked_name(&self) -> Option<String> {
        let name = after_path(self.item.as_ref()?, &format!("/{}/", self.key))?;
        Some(percent_decode_str(name).decode_utf8().ok()?.into_owned())
    }
}

/// The row of an upload that is not as it should be.
struct DamagedUpload {
    row: Bytes,
    /// `None` if the row cannot be read.
    upload: Option<Upload>,
    problem: String,
}

impl fmt::Display for DamagedUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.upload {
            Some(upload) => write!(f, "unfinished upload of item {:?}", upload.row.item),
            None => write!(f, "row {}", String::from_utf8_lossy(&self.row)),
        }
    }
}

/// Checks every file, and every upload that may still go on.
pub(crate) async fn verify(store: &dyn Store) -> Result<Findings, StoreError> {
    let mut findings = Findings::default();
    for feed in store.feeds().await? {
        let damaged = damaged_files(store, &feed).await?;
        for file in &damaged {
            findings.add(Some(feed.as_str()), file.to_string(), &file.problem);
        }
        for chunks in orphans::find(store, &feed).await? {
            let is_told = |file: &OrphanedFile| damaged.iter().any(|damaged| damaged.key == file.key);
            if !chunks.file.as_ref().is_some_and(is_told) {
                findings.add(Some(feed.as_str()), chunks.place(), NOTHING_NAMES);
            }
        }
    }
    for upload in damaged_uploads(store).await? {
        let feed = upload.upload.as_ref().map(|upload| upload.feed.as_str());
        findings.add(feed, upload.to_string(), &upload.problem);
    }
    Ok(findings)
}

/// Removes what [`verify`] finds, so that it can be published again, and returns a line for each. A name or a record that is
/// missing is written again.
pub(crate) async fn repair(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let mut lost = Vec::new();
    for feed in store.feeds().await? {
        // First: with its record a file is whole again.
        for chunks in orphans::find(store, &feed).await? {
            if !chunks.restore(store, &feed).await? && chunks.file.is_none() {
                lost.push(format!("feed {feed}, {}: {NOTHING_NAMES}", chunks.place()));
            }
        }
        for file in damaged_files(store, &feed).await? {
            if let Some(name) = file.linked_name().filter(|_| file.problem == NO_NAME) {
                let (table, key) = (Table::Documents, name_row(&feed, &file.key));
                store.write(vec![TableWrite { table, key, value: Some(name.into()) }], Vec::new()).await?;
                continue;
            }
            remove_file(store, &feed, &file.key).await?;
            lost.push(format!("feed {feed}, {file}: {}", file.problem));
        }
    }
    for mut damaged in damaged_uploads(store).await? {
        lost.push(match &damaged.upload {
            Some(upload) => format!("feed {}, {damaged}: {}", upload.feed, damaged.problem),
            None => format!("{damaged}: {}", damaged.problem),
        });
        match &mut damaged.upload {
            Some(upload) => upload.remove(store).await?,
            None => {
                let gone = TableWrite { table: Table::Chains, key: damaged.row.to_vec(), value: None };
                store.write(vec![gone], Vec::new()).await?;
            }
        }
    }
    // Last: what was removed above may have had chunks that were not known to be its own.
    for feed in store.feeds().await? {
        for chunks in orphans::find(store, &feed).await? {
            chunks.remove(store, &feed).await?;
        }
    }
    Ok(lost)
}

async fn damaged_files(store: &dyn Store, feed: &FeedId) -> Result<Vec<DamagedFile>, StoreError> {
    let files = list(store, feed).await?.into_iter();
    let mut names: BTreeMap<String, String> = files.map(|file| (file.key, file.name)).collect();
    let prefix = bytes_row(feed, "");
    let (mut damaged, mut after) = (Vec::new(), None);
    let mut add = |key, name, problem: Option<String>| {
        damaged.extend(problem.map(|problem| DamagedFile { key, name, item: None, problem }));
    };
    // One by one: a row may have 16 MiB.
    while let Ok(mut page) = store.scan(Table::Documents, &prefix, after.as_deref(), 1).await {
        let Some((row, value)) = page.pop() else { break };
        let key = String::from_utf8_lossy(&row[prefix.len()..]).into_owned();
        let name = names.remove(&key);
        let nameless = || name.is_none().then(|| NO_NAME.to_owned());
        let problem = problem_of(store, feed, &key, &value).await.or_else(nameless);
        add(key, name, problem);
        after = Some(row.to_vec());
    }
    // Files without a row, and those behind a row that cannot be read.
    for (key, name) in names {
        let problem = match store.get(Table::Documents, &bytes_row(feed, &key)).await {
            Ok(Some(value)) => problem_of(store, feed, &key, &value).await,
            Ok(None) => Some("its record is missing".to_owned()),
            Err(e) => Some(format!("its record cannot be read: {e}")),
        };
        add(key, Some(name), problem);
    }
    find_items(store, feed, &mut damaged).await;
    Ok(damaged)
}

/// Compares the bytes of a file with the digest in its key. Returns what differs.
async fn problem_of(store: &dyn Store, feed: &FeedId, key: &str, row: &Bytes) -> Option<String> {
    let digest = match decode(feed, key, row) {
        Ok(KeptFile::Whole(content)) => Sha256::new_with_prefix(&content.bytes),
        Ok(KeptFile::Chunked(file)) => match file.digest(store, feed).await {
            Ok(digest) => digest,
            Err(problem) => return Some(problem),
        },
        Err(_) => return Some("its record is damaged".to_owned()),
    };
    let is_same = is_key(key) && key.ends_with(&hex::encode(digest.finalize()));
    (!is_same).then(|| "its bytes have another SHA-256".to_owned())
}

/// Adds the items of damaged files: a file's key has a digest of the item's id. Reads the whole feed.
async fn find_items(store: &dyn Store, feed: &FeedId, damaged: &mut [DamagedFile]) {
    let mut wanted: HashMap<String, Vec<&mut DamagedFile>> = HashMap::new();
    for file in damaged {
        let digest = file.key.get(..of_item("").len()).unwrap_or_default().to_owned();
        wanted.entry(digest).or_default().push(file);
    }
    let mut along = SeqRange::default();
    while !wanted.is_empty() {
        // What cannot be read stays without a name.
        let Ok(changes) = store.items(feed, ItemOrder::Created, along, READ).await else { return };
        let Some(last) = changes.last() else { return };
        along.after = Some(last.first_seq);
        for change in changes {
            for file in wanted.remove(&of_item(&change.item.id)).into_iter().flatten() {
                file.item = Some(change.item.clone());
            }
        }
    }
}

async fn damaged_uploads(store: &dyn Store) -> Result<Vec<DamagedUpload>, StoreError> {
    let prefix = prefix(None);
    let mut scan = TableScan::new(store, Table::Chains, &prefix);
    let mut damaged = Vec::new();
    while let Some(page) = scan.next().await? {
        for (row, value) in page {
            let (upload, problem) = match Upload::of_entry(&row, value) {
                Ok(upload) if upload.row.stage == Stage::Receiving => {
                    let problem = upload.problem(store).await;
                    (Some(upload), problem)
                }
                Ok(_) => continue,
                Err(e) => (None, Some(e.to_string())),
            };
            damaged.extend(problem.map(|problem| DamagedUpload { row, upload, problem }));
        }
    }
    Ok(damaged)
}
