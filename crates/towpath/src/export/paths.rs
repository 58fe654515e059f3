//! Paths of a feed's documents, the obsolete ones, and of the tree's own files.

use towpath_proto::FeedId;
use towpath_proto::history::wire::Syntax;

use crate::engine::attachments::Attachment;
use crate::export::tree_state::FeedExtent;

/// Folder of the tree's own files.
pub(super) const OWN: &str = ".towpath";
/// Folder below that one with a mark for each document that is gone, and the ending of the marks' names.
pub(super) const GONE: &str = "gone";

/// Returns the paths of an old extent that a new one lacks, except for replaced documents.
pub(super) fn obsolete_paths(id: &FeedId, old: &FeedExtent, new: &FeedExtent) -> Vec<String> {
    let mut paths = Vec::new();
    for number in old.gone_below.max(1)..new.gone_below {
        paths.push(page_path(id, number));
        paths.extend(Syntax::ALL.map(|syntax| past_path(id, syntax, &number.to_string())));
    }
    if new.complete && !old.complete {
        let all = old.gone_below.max(1)..=old.sealed;
        paths.extend(
            all.flat_map(|number| Syntax::ALL.map(|syntax| past_path(id, syntax, &number.to_string()))),
        );
    }
    for (first, last) in old.windows.iter().chain(&old.past_windows) {
        if !new.windows.contains(&(*first, *last)) && !new.past_windows.contains(&(*first, *last)) {
            paths.extend(Syntax::ALL.map(|syntax| past_path(id, syntax, &format!("{first}-{last}"))));
        }
    }
    paths.extend(old.files.iter().filter(|path| !new.files.contains(path)).cloned());
    for (snapshot, pages) in &old.snapshots {
        if new.snapshots.iter().all(|(kept, _)| kept != snapshot) {
            paths.push(format!("/feeds/{id}/snapshots/{snapshot}"));
            paths.extend((0..*pages).map(|number| snapshot_page_path(id, *snapshot, number)));
        }
    }
    paths
}

/// Returns the path of an uploaded file. Names with a dot first, which web servers may take for their own, have none.
pub(super) fn file_path(id: &FeedId, file: &Attachment) -> Option<String> {
    // As the file system has it: web servers decode addresses.
    let name = Some(&file.name).filter(|name| !name.starts_with('.'))?;
    Some(format!("/feeds/{id}/attachments/{}/{name}", file.key))
}

pub(super) fn page_path(id: &FeedId, number: u64) -> String {
    format!("/feeds/{id}/replication/pages/{number}")
}

pub(super) fn past_path(id: &FeedId, syntax: Syntax, name: &str) -> String {
    format!("/feeds/{id}/{}/{name}", syntax.name())
}

pub(super) fn snapshot_page_path(id: &FeedId, snapshot: u64, number: u64) -> String {
    format!("/feeds/{id}/snapshots/{snapshot}/pages/{number}")
}
