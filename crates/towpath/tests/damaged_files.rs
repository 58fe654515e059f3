//! Files of items in a damaged data folder: `verify` names them, `repair` takes out those that are lost, and backups have
//! all of their chunks.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Store as _, Table, TableWrite};

use crate::common::{TestFolder, TestResponse, TestServer, clustered, stderr, stdout};

const CONFIG: &str = "[server]\nreserve_mib = 0\n[[feed]]\nid = \"films\"\n";
const MIB: usize = 1 << 20;

/// Bytes that nothing compresses.
fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u8(..)).collect()
}

/// Begins an upload of `length` bytes with the first of them.
fn upload(server: &TestServer, id: &str, length: usize, first: &[u8]) -> TestResponse {
    let encode = |text: &str| STANDARD.encode(text);
    let metadata = format!("id {},filename {}", encode(id), encode(&format!("{id}.mp4")));
    let headers = [
        ("Tus-Resumable", "1.0.0"),
        ("Upload-Length", &length.to_string()),
        ("Upload-Metadata", &metadata),
        ("Content-Type", "application/offset+octet-stream"),
    ];
    let answer = server.ask("POST", "/feeds/films/uploads", &headers, first);
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer
}

/// Runs something on the store of a folder that no process has open.
fn with_store<T>(folder: &Path, act: impl AsyncFnOnce(&EmbeddedStore) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() };
        let store = EmbeddedStore::open(folder, options).unwrap();
        let result = act(&store).await;
        store.close().await;
        result
    })
}

/// Returns the keys of the rows of a table that begin with a prefix.
fn keys(folder: &Path, table: Table, prefix: &str) -> Vec<Vec<u8>> {
    let scan = async |store: &EmbeddedStore| store.scan(table, prefix.as_bytes(), None, 1000).await.unwrap();
    with_store(folder, scan).into_iter().map(|(key, _)| key.to_vec()).collect()
}

/// Changes the value of a row; `None` is no row.
fn change(folder: &Path, table: Table, key: &[u8], change: impl Fn(&Bytes) -> Option<Bytes>) {
    with_store(folder, async |store| {
        let value = change(&store.get(table, key).await.unwrap().unwrap());
        store.write(vec![TableWrite { table, key: key.to_vec(), value }], Vec::new()).await.unwrap();
    });
}

fn flipped(value: &Bytes) -> Option<Bytes> {
    let mut value = value.to_vec();
    value[1000] ^= 1;
    Some(value.into())
}

/// Returns the key of a chunk of the upload that begins with these bytes.
fn chunk_of(folder: &Path, first: &[u8], index: u32) -> Vec<u8> {
    let all = keys(folder, Table::Documents, "attachment-chunks/films/");
    let of_upload = all.into_iter().filter(|key| key.ends_with(b"/00000000")).find(|key| {
        with_store(folder, async |store| {
            store
                .get(Table::Documents, key)
                .await
                .unwrap()
                .is_some_and(|value| value[..] == first[..value.len()])
        })
    });
    let name = String::from_utf8(of_upload.unwrap()).unwrap();
    format!("{}/{index:08x}", name.strip_suffix("/00000000").unwrap()).into_bytes()
}

/// Runs `verify`, and returns the lines of what it found.
fn verify(dir: &TestFolder) -> Vec<String> {
    let output = dir.run(&["verify"]);
    let found: Vec<String> = stdout(&output).lines().skip(1).map(str::to_owned).collect();
    let is_sound = found == ["no damage found"];
    assert_eq!(output.status.code(), Some(i32::from(!is_sound)), "{}{}", stdout(&output), stderr(&output));
    if is_sound { Vec::new() } else { found }
}

/// Runs `repair`, which loses something, and returns the lines of that.
fn lost(dir: &TestFolder, args: &[&str]) -> Vec<String> {
    let output = dir.run(&[&["repair"], args].concat());
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    let printed = stdout(&output);
    assert!(!printed.contains("left: "), "{printed}");
    printed.lines().filter_map(|line| line.strip_prefix("lost: ")).map(str::to_owned).collect()
}

/// Returns true if an item has its file. Without it, the item itself is sent.
fn has_file(server: &TestServer, id: &str, whole: &[u8]) -> bool {
    let answer = server.get(&format!("/feeds/films/items/{id}"));
    assert_eq!(answer.status, 200, "{id}: {}", answer.text());
    let has_file = answer.body == whole;
    assert!(has_file || answer.json()["item"]["attachments"][0]["sha256"].is_string(), "{}", answer.text());
    has_file
}

#[test]
fn a_damaged_file_is_named_and_can_be_published_again() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(CONFIG);
    let data = dir.path("data");
    let (film, good) = (bytes(1, 2 * MIB + 7), bytes(2, 2 * MIB));
    let server = dir.serve();
    upload(&server, "film", film.len(), &film);
    upload(&server, "good", good.len(), &good);
    let half = upload(&server, "half", good.len(), &good[..MIB + 5]);
    let half = half.header("location").unwrap().strip_prefix(&server.base).unwrap().to_owned();
    assert_eq!(server.stop(), Some(0));
    assert_eq!(verify(&dir), [""; 0]);

    type Damage = fn(&Bytes) -> Option<Bytes>;
    let damages: [(Damage, &str); 3] = [
        (|_| None, "its chunk 2 is missing"),
        (|value| Some(value.slice(1..)), "its chunk 2 has another size"),
        (flipped, "its bytes have another SHA-256"),
    ];
    for (damage, told) in damages {
        change(&data, Table::Documents, &chunk_of(&data, &film, 2), damage);
        let problem = format!("feed films, file \"film.mp4\" of item \"film\": {told}");
        assert_eq!(verify(&dir), [problem.as_str()]);
        assert_eq!(lost(&dir, &["--dry-run"]), [problem.as_str()]);
        assert_eq!(verify(&dir), [problem.as_str()], "a dry run changes nothing");
        assert_eq!(lost(&dir, &[]), [problem.as_str()]);
        assert_eq!(verify(&dir), [""; 0]);
        let server = dir.serve();
        assert!(!has_file(&server, "film", &film) && has_file(&server, "good", &good));
        upload(&server, "film", film.len(), &film);
        assert!(has_file(&server, "film", &film));
        assert_eq!(server.stop(), Some(0));
    }

    // The rows of a file beside its chunks.
    for (rows, told) in
        [("attachments/films/", "its record is missing"), ("attachment-names/films/", "its name is missing")]
    {
        let row = keys(&data, Table::Documents, rows).remove(0);
        change(&data, Table::Documents, &row, |_| None);
        let found = verify(&dir);
        assert!(found.len() == 1 && found[0].contains(told), "{found:?}");
        let repaired = dir.run(&["repair"]);
        // Its chunks tell what its record said.
        assert_eq!(repaired.status.code(), Some(0), "{}{}", stdout(&repaired), stderr(&repaired));
        assert_eq!(verify(&dir), [""; 0]);
        let server = dir.serve();
        for (id, whole) in [("film", &film), ("good", &good)] {
            assert!(has_file(&server, id, whole), "{told}");
        }
        assert_eq!(server.stop(), Some(0));
    }

    // An unfinished upload goes on after all of this; without a chunk it cannot.
    let server = dir.serve();
    let head = server.ask("HEAD", &half, &[("Tus-Resumable", "1.0.0")], b"");
    assert_eq!(head.header("upload-offset"), Some((MIB + 5).to_string().as_str()));
    assert_eq!(server.stop(), Some(0));
    let chunks = keys(&data, Table::Documents, &format!("attachment-chunks/films/{}/", &half[21..]));
    assert_eq!(chunks.len(), 3, "{half}");
    change(&data, Table::Documents, &chunks[1], |_| None);
    let problem = "feed films, unfinished upload of item \"half\": its chunk 1 is missing";
    assert_eq!(verify(&dir), [problem]);
    assert_eq!(lost(&dir, &[]), [problem]);
    assert_eq!(verify(&dir), [""; 0]);
    let server = dir.serve();
    assert_eq!(server.ask("HEAD", &half, &[("Tus-Resumable", "1.0.0")], b"").status, 404);
    assert!(has_file(&server, "film", &film) && has_file(&server, "good", &good));
}

/// Flips a byte on the disk, where a table or a file of contents has these bytes. The journals are left alone.
fn flip_on_disk(folder: &Path, pattern: &[u8]) -> bool {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            if flip_on_disk(&entry, pattern) {
                return true;
            }
            continue;
        }
        if entry.extension().is_some_and(|extension| extension == "jnl") {
            continue;
        }
        let found = std::fs::read(&entry).unwrap().windows(pattern.len()).position(|part| part == pattern);
        if let Some(at) = found {
            let file = std::fs::File::options().write(true).open(&entry).unwrap();
            file.write_all_at(&[pattern[0] ^ 1], at as u64).unwrap();
            return true;
        }
    }
    false
}

/// Two damaged places of a disk cost the files that they are in, and none of those in between.
#[test]
fn damaged_places_of_a_disk_cost_no_good_file() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(CONFIG);
    let films: Vec<Vec<u8>> = (0..5).map(|seed| bytes(seed, 2 * MIB)).collect();
    let server = dir.serve();
    for (number, film) in films.iter().enumerate() {
        upload(&server, &number.to_string(), film.len(), film);
    }
    assert_eq!(server.stop(), Some(0));
    let compacted = dir.run(&["compact"]);
    assert!(compacted.status.success(), "{}", stderr(&compacted));
    // The first and the last in the order of their chunks.
    let data = dir.path("data");
    let first = |number: &usize| chunk_of(&data, &films[*number], 0);
    let mut order: Vec<usize> = (0..5).collect();
    order.sort_by_key(first);
    for number in [order[0], order[4]] {
        let pattern = &films[number][MIB + 1000..MIB + 1064];
        assert!(flip_on_disk(&data.join("engine"), pattern), "{number} is in no table");
    }
    let found = verify(&dir);
    for number in [order[0], order[4]] {
        let place =
            format!("feed films, file \"{number}.mp4\" of item \"{number}\": its chunk 2 cannot be read");
        assert_eq!(found.iter().filter(|line| line.starts_with(&place)).count(), 1, "{place} in {found:#?}");
    }
    let told = lost(&dir, &[]);
    // Each row, and the file that it is of.
    assert_eq!(told.len(), 4, "{told:#?}");
    let rows = told.iter().filter(|line| line.starts_with("documents: row \"attachment-chunks/films/"));
    assert_eq!(rows.count(), 2, "{told:#?}");
    assert_eq!(verify(&dir), [""; 0]);
    let server = dir.serve();
    for (place, number) in order.iter().enumerate() {
        let is_good = (1..4).contains(&place);
        assert_eq!(has_file(&server, &number.to_string(), &films[*number]), is_good, "{number}");
    }
}

#[test]
fn a_backup_has_every_chunk() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(CONFIG);
    let film = bytes(1, 3 * MIB + 1);
    let server = dir.serve();
    upload(&server, "film", film.len(), &film);
    let half = upload(&server, "half", film.len(), &film[..2 * MIB]);
    let half = half.header("location").unwrap().strip_prefix(&server.base).unwrap().to_owned();
    let made = dir.run(&["backup", "copies"]);
    assert!(made.status.success(), "{}", stderr(&made));
    drop(server);
    std::fs::remove_dir_all(dir.path("data")).unwrap();
    let restored = dir.run(&["restore", "copies"]);
    assert!(restored.status.success(), "{}", stderr(&restored));
    assert_eq!(verify(&dir), [""; 0]);
    let server = dir.serve();
    assert!(server.get("/feeds/films/items/film").body == film);
    let headers = [
        ("Tus-Resumable", "1.0.0"),
        ("Upload-Offset", &(2 * MIB).to_string()),
        ("Content-Type", "application/offset+octet-stream"),
    ];
    assert_eq!(server.ask("PATCH", &half, &headers, &film[2 * MIB..]).status, 204);
    assert!(server.get("/feeds/films/items/half").body == film);
}
