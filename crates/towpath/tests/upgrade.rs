//! A data folder of the previous format is migrated after a copy, and followers go on from their old states.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::Path;

use serde_json::Value;

use crate::common::{TestFolder, clustered, free_port, lines, stderr, stdout};

const FIXTURE: &[u8] = include_bytes!("data/format-1/folder.json.gz");
/// Address of the server that wrote the states.
const ADDRESS: &str = "127.0.0.1:18473";

/// Replaces the address in a file by one of the same length.
fn moved(bytes: &[u8], address: &str) -> Vec<u8> {
    assert_eq!(address.len(), ADDRESS.len());
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(ADDRESS.len()).position(|part| part == ADDRESS.as_bytes()) {
        at += found;
        bytes[at..at + ADDRESS.len()].copy_from_slice(address.as_bytes());
    }
    bytes
}

/// Writes the folder as the previous version left it, with its states for a server at this port.
fn previous(port: u16) -> TestFolder {
    let mut json = String::new();
    flate2::read::GzDecoder::new(FIXTURE).read_to_string(&mut json).unwrap();
    let files: BTreeMap<String, (String, u64)> = serde_json::from_str(&json).unwrap();
    let dir = TestFolder::new("");
    for (path, (content, length)) in files {
        let content = hex::decode(content).unwrap();
        let is_data = path.starts_with("data/");
        let content = if is_data { content } else { moved(&content, &format!("127.0.0.1:{port}")) };
        std::fs::create_dir_all(dir.path(&path).parent().unwrap()).unwrap();
        let mut file = std::fs::File::create(dir.path(&path)).unwrap();
        file.write_all(&content).unwrap();
        // The engine allots its journals ahead.
        file.set_len(length).unwrap();
    }
    dir
}

/// Returns a port of five digits, as the fixture has.
fn port() -> u16 {
    std::iter::repeat_with(free_port).find(|port| *port >= 10_000).unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_folder_of_the_previous_format_is_migrated_and_followers_go_on() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let port = port();
    let dir = previous(port);
    assert_eq!(read(&dir.path("data/towpath.format")), "towpath store 1\n");
    let verified = dir.run(&["verify", "--format", "json"]);
    let report: Value = serde_json::from_str(&stdout(&verified)).unwrap();
    assert_eq!((&report["problems"], verified.status.code()), (&serde_json::json!([]), Some(0)), "{report}");
    assert_eq!(report["feeds"], 3);
    assert_eq!(read(&dir.path("data/towpath.format")), "towpath store 2\n");
    // The copy is a folder of the format before.
    assert_eq!(read(&dir.path("data/format-1/towpath.format")), "towpath store 1\n");
    let copied = dir.run(&["verify", "--data", "data/format-1"]);
    assert!(stdout(&copied).ends_with("no damage found\n"), "{}", stderr(&copied));

    let server = dir.serve_at(port);
    let expected: Vec<(String, String)> = (13..=18)
        .map(|number| ("put".to_owned(), format!("n{number}")))
        .chain([("delete".to_owned(), "n2".to_owned())])
        .collect();
    for (protocol, path) in [
        ("smart", "/feeds/notes/items"),
        ("replication", "/feeds/notes/replication"),
        ("diffdelta", "/diff/notes"),
        ("history", "/feeds/notes/atom"),
    ] {
        let (url, state) = (format!("{}{path}", server.base), format!("{protocol}.state"));
        let told = dir.run(&["follow", &url, "--protocol", protocol, "--once", "--state", &state]);
        assert_eq!(told.status.code(), Some(0), "{protocol}: {}", stderr(&told));
        let mut seen: Vec<(String, String)> = lines(&told)
            .iter()
            .map(|line| (line["op"].as_str().unwrap().to_owned(), line["id"].as_str().unwrap().to_owned()))
            .collect();
        seen.sort_by_key(|(op, id)| (op == "delete", id.clone()));
        assert_eq!(seen, expected, "{protocol}");
    }
    // A copy in a database goes on as well.
    let url = format!("{}/feeds/notes", server.base);
    let copied = dir.run(&["follow", &url, "--once", "--into", "sqlite:copy.sqlite"]);
    assert_eq!(copied.status.code(), Some(0), "{}", stderr(&copied));
    assert_eq!(server.stop(), Some(0));
    let verified = dir.run(&["verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
}

/// A migration that was cut off begins again, and a folder of a later format is left alone.
#[test]
fn a_migration_begins_again_and_a_later_format_is_refused() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = previous(port());
    // As a process leaves it that dies while it copies.
    std::fs::create_dir(dir.path("data/format-1.new")).unwrap();
    std::fs::write(dir.path("data/format-1.new/towpath.format"), "to").unwrap();
    let compacted = dir.run(&["compact"]);
    assert!(stderr(&compacted).contains(" before, "), "{}", stderr(&compacted));
    assert_eq!(read(&dir.path("data/format-1/towpath.format")), "towpath store 1\n");
    assert!(!dir.path("data/format-1.new").exists());
    let verified = dir.run(&["verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));

    std::fs::write(dir.path("data/towpath.format"), "towpath store 3\n").unwrap();
    std::fs::write(dir.path("data/towpath.version"), "0.9.0\n").unwrap();
    let refused = dir.run(&["verify"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = stderr(&refused);
    assert!(text.contains("reads up to 2; use towpath 0.9.0 or later"), "{text}");
}
