//! A data folder that is damaged or full: the server, `status` and `verify` say so.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use towpath_proto::format::http_date;
use towpath_proto::{FeedId, Item, NewChange};
use towpath_store::embedded::copy::{CopySection, StoreBuilder, replace_store};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, OpenError, Store as _, Table, TableWrite};

use crate::common::{PATIENCE, TestFolder, TestServer, clustered, stderr, stdout};

const NOTES: &str = "[[feed]]\nid = \"notes\"\n";

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < end, "timeout: {what}");
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
}

/// Writes a row of a table of a folder that no process has open.
fn write_row(folder: &Path, table: Table, key: &[u8], value: &'static [u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = EmbeddedStore::open(folder, EmbeddedOptions::default()).unwrap();
        let write = TableWrite { table, key: key.to_vec(), value: Some(value.into()) };
        store.write(vec![write], Vec::new()).await.unwrap();
        store.close().await;
    });
}

/// Files below a folder whose path contains a text.
fn files(folder: &Path, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, part));
        } else if path.to_str().unwrap().contains(part) {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_full_disk_shows_in_health_status_and_metrics() {
    if clustered::skips("a replica waits for space and refuses nothing") {
        return;
    }
    // No disk has that much free space.
    let dir = TestFolder::new(&format!("[server]\nreserve_mib = 1000000000000\n{NOTES}"));
    let server = dir.serve();
    let put = server.ask("PUT", "/feeds/notes/items/a", &[], b"text");
    assert_eq!(put.status, 503, "{}", put.text());
    wait_until("health says so", || server.get("/healthz.json").status == 503);
    assert!(server.get("/healthz.json").text().contains("the disk is full"));
    let metrics = server.get("/metrics").text();
    assert!(
        metrics.contains("towpath_store_failed 1") && metrics.contains("towpath_disk_full 1"),
        "{metrics}"
    );
    let status = dir.run(&["status", "--server", &server.base]);
    assert_eq!(status.status.code(), Some(1));
    assert!(stderr(&status).contains("the store takes no writes: the disk is full: "), "{}", stderr(&status));
    assert!(dir.log().contains("nothing can be written reason=\"the disk is full: "), "{}", dir.log());
    assert_eq!(server.get("/feeds/notes/items?timeout=0").status, 200, "reading goes on");
    assert_eq!(server.stop(), Some(0));

    // Without a reserve, the same disk takes writes.
    dir.write("towpath.toml", format!("[server]\nreserve_mib = 0\n{NOTES}").as_bytes());
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[], b"text").status, 201);
    assert_eq!(server.get("/healthz.json").status, 200);
    assert!(server.get("/metrics").text().contains("towpath_disk_full 0"));
}

#[test]
fn a_publisher_that_cannot_write_shows_in_health_status_and_metrics() {
    if clustered::skips("the chain is the cluster's log") {
        return;
    }
    let dir = TestFolder::new(NOTES);
    drop(dir.serve());
    let chain = "diffdelta/notes/chain";
    write_row(&dir.path("data"), Table::Chains, chain.as_bytes(), b"{ damaged");
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[], b"text").status, 201);
    let health = server.wait_for("/healthz.json", |health| health["status"] == "degraded");
    // The document over all feeds needs the chain, too.
    assert_eq!(health["publish_failed"], json!(["_global", "notes"]), "{health}");
    assert!(server.get("/metrics").text().contains("towpath_publish_failed 2"));
    let status = dir.run(&["status", "--server", &server.base]);
    assert!(
        stdout(&status).contains("cannot publish its DiffDelta documents: damaged"),
        "{}",
        stdout(&status)
    );
}

#[test]
fn a_damaged_record_that_a_reader_met_shows_in_health_status_and_metrics() {
    if clustered::skips("the folder is a replica") {
        return;
    }
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    // More than the engine keeps in memory and in its journal.
    let content: Vec<u8> = (0..1 << 20).map(|_| fastrand::u8(b'a'..=b'z')).collect();
    for n in 0..40 {
        assert_eq!(server.ask("PUT", &format!("/feeds/notes/items/{n}"), &[], &content).status, 201);
    }
    let data = dir.path("data");
    wait_until("the engine has flushed", || !files(&data, "/blobs/").is_empty());
    assert_eq!(server.stop(), Some(0));
    let damaged = files(&data, "/blobs/");
    for path in &damaged {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        // Past the header, inside the first content.
        file.write_all_at(b"damage", 100_000).unwrap();
    }
    let server = dir.serve();
    let failed = (0..40).filter(|n| server.get(&format!("/feeds/notes/items/{n}")).status >= 500).count();
    assert!(failed > 0);
    let health = server.wait_for("/healthz.json", |health| health["damaged_reads"].as_u64() > Some(0));
    assert_eq!(health["status"], "degraded");
    assert!(!server.get("/metrics").text().contains("towpath_damaged_reads 0"));
    let status = dir.run(&["status", "--server", &server.base]);
    let said = stderr(&status);
    assert!(said.contains("reads met damaged data: damaged data in"), "{said}");
    assert!(said.contains("engine/keyspaces") && said.contains("in the data folder"), "{said}");
    assert_eq!(server.stop(), Some(0));

    let verified = dir.run(&["verify"]);
    assert_eq!(verified.status.code(), Some(1), "{}", stdout(&verified));
    assert!(stderr(&verified).contains("restore"), "{}", stderr(&verified));
    for path in &damaged {
        let named = format!("the file {} is damaged", path.strip_prefix(&data).unwrap().display());
        assert!(stdout(&verified).contains(&named), "{named}: {}", stdout(&verified));
    }

    // The engine cannot read some blocks. What it can read is served without them.
    let repaired = dir.run(&["repair"]);
    assert_eq!(repaired.status.code(), Some(1), "{}", stderr(&repaired));
    let lost = stdout(&repaired).matches("lost: feed notes, change ").count();
    assert!((1..40).contains(&lost), "{}{}", stdout(&repaired), stderr(&repaired));
    let server = dir.serve();
    let answers = (0..40).map(|n| server.get(&format!("/feeds/notes/items/{n}")).status);
    let served = answers.inspect(|status| assert!(*status < 500)).filter(|status| *status == 200).count();
    assert_eq!(served, 40 - lost);
}

#[test]
fn a_lost_journal_ends_every_command_with_the_next_step() {
    if clustered::skips("a replica gets what it lost from the log") {
        return;
    }
    let dir = TestFolder::new(NOTES);
    let put = dir.run_with(&["put", "notes", "a", "-"], b"text");
    assert!(put.status.success(), "{}", stderr(&put));
    let sound = dir.run(&["verify"]);
    assert!(sound.status.success() && stdout(&sound).contains("1 item\n"), "{}", stdout(&sound));
    for path in files(&dir.path("data"), ".jnl") {
        std::fs::remove_file(path).unwrap();
    }
    for command in [&["verify"][..], &["status"], &["serve", "--listen", "127.0.0.1:0"]] {
        let output = dir.run(command);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {}", stdout(&output));
        let error = stderr(&output);
        assert!(
            error.contains("engine/0.jnl is missing") && error.contains("backup"),
            "{command:?}: {error}"
        );
    }
    let repaired = dir.run(&["repair"]);
    assert_eq!(repaired.status.code(), Some(1), "{}", stderr(&repaired));
    let lost = "lost: the journal engine/0.jnl is missing\n";
    assert!(stdout(&repaired).contains(lost), "{}{}", stdout(&repaired), stderr(&repaired));
    let sound = dir.run(&["verify"]);
    assert!(sound.status.success() && stdout(&sound).contains("0 items\n"), "{}", stdout(&sound));
    let nowhere = dir.run(&["verify", "--data", "nowhere"]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", stdout(&nowhere));
    assert!(!dir.path("nowhere").exists());
}

/// The file with the format is small and looks unimportant: a copy of a folder may lack it.
#[test]
fn a_lost_format_file_is_written_again_by_repair() {
    if clustered::skips("a replica gets what it lost from the log") {
        return;
    }
    let dir = TestFolder::new(NOTES);
    let put = dir.run_with(&["put", "notes", "a", "-"], b"text");
    assert!(put.status.success(), "{}", stderr(&put));
    let format = dir.path("data/towpath.format");
    std::fs::remove_file(&format).unwrap();
    for command in [&["verify"][..], &["status"], &["serve", "--listen", "127.0.0.1:0"]] {
        let output = dir.run(command);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {}", stdout(&output));
        let error = stderr(&output);
        assert!(error.contains("towpath.format is missing") && error.contains("`towpath repair`"), "{error}");
    }
    let dry = dir.run(&["repair", "--dry-run"]);
    assert!(dry.status.code() == Some(1) && !format.exists(), "{}", stderr(&dry));
    let repaired = dir.run(&["repair"]);
    assert_eq!(repaired.status.code(), Some(0), "{}", stderr(&repaired));
    assert!(stderr(&repaired).starts_with("wrote the missing file"), "{}", stderr(&repaired));
    let sound = dir.run(&["verify"]);
    assert!(sound.status.success() && stdout(&sound).contains("1 item\n"), "{}", stdout(&sound));
}

/// Ids of a server's items.
fn items(server: &TestServer) -> Vec<String> {
    crate::common::waiting::ids(&server.json("/feeds/notes/items?max=100&timeout=0"))
}

#[test]
fn commands_never_act_on_the_server_of_another_folder() {
    if clustered::skips("all nodes serve one log") {
        return;
    }
    let port = crate::common::free_port();
    let config = format!("[server]\nlisten = \"127.0.0.1:{port}\"\n{NOTES}");
    let theirs = TestFolder::new(&config);
    let server = theirs.serve_at(port);
    assert_eq!(server.ask("PUT", "/feeds/notes/items/theirs", &[], b"text").status, 201);

    // The same address in the configuration, another data folder: nothing reaches their server.
    let ours = TestFolder::new(&config);
    ours.write("lines", b"{\"id\":\"imported\",\"item\":{\"title\":\"t\"}}\n");
    for command in [&["put", "notes", "ours"][..], &["import", "notes", "lines"], &["snapshot", "notes"]] {
        let output = ours.run(command);
        assert!(output.status.success(), "{command:?}: {}", stderr(&output));
    }
    let delete = ours.run(&["delete", "notes", "theirs"]);
    assert!(stderr(&delete).contains("feed notes has no item \"theirs\""), "{}", stderr(&delete));
    assert_eq!(items(&server), ["theirs"]);
    assert!(ours.run(&["verify"]).status.success());
    let status = ours.run(&["status"]);
    assert!(
        stdout(&status).lines().any(|line| line.starts_with("notes") && line.contains(" 2 ")),
        "{status:?}"
    );

    // Their own commands find the server, wherever it listens; `--data` means the folder that it names.
    let put = theirs.run(&["put", "notes", "found"]);
    assert!(put.status.success(), "{}", stderr(&put));
    assert_eq!(items(&server).len(), 2);
    let put = theirs.run(&["put", "notes", "elsewhere", "--data", "other"]);
    assert!(put.status.success() && theirs.path("other/engine").is_dir(), "{}", stderr(&put));
    assert_eq!(items(&server).len(), 2);
    drop(server);
    let server = theirs.serve();
    let put = theirs.run(&["put", "notes", "found again"]);
    assert!(put.status.success(), "{}", stderr(&put));
    assert_eq!(items(&server).len(), 3);
    assert_eq!(server.json("/feeds?instance")["instance"].as_str().unwrap().len(), 32);
    // An exported list equals the server's.
    assert!(server.json("/feeds")["instance"].is_null());
    assert_eq!(server.stop(), Some(0));
    assert!(!theirs.path("data/towpath.server").exists());
}

#[test]
fn a_folder_that_another_command_has_open_is_named() {
    if clustered::skips("the folder is a replica") {
        return;
    }
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    // As a server of an earlier version, which leaves no record.
    std::fs::remove_file(dir.path("data/towpath.server")).unwrap();
    let put = dir.run(&["put", "notes", "a"]);
    let error = stderr(&put);
    assert!(error.contains(&format!("process {}", server.pid())) && error.contains("--server"), "{error}");
    // A record whose server does not answer as itself.
    let record = format!("{}\n{}\nanother run\n", server.pid(), server.base);
    std::fs::write(dir.path("data/towpath.server"), record).unwrap();
    let put = dir.run(&["put", "notes", "a"]);
    assert!(stderr(&put).contains("is not the one that answers at"), "{}", stderr(&put));
    // A record of an address where nothing answers: the reason is told.
    let record = format!("{}\nhttp://127.0.0.1:1\nanother run\n", server.pid());
    std::fs::write(dir.path("data/towpath.server"), record).unwrap();
    let error = stderr(&dir.run(&["put", "notes", "a"]));
    assert!(
        error.contains("does not answer at http://127.0.0.1:1 (") && error.contains("refused"),
        "{error}"
    );
    assert!(dir.run(&["put", "notes", "a", "--server", &server.base]).status.success());
    assert_eq!(items(&server), ["a"]);
}

/// A clock that was a year ahead when a log was written, or a publisher's that is mirrored.
#[test]
fn no_document_of_a_log_that_is_dated_ahead_is_modified_after_its_date() {
    if clustered::skips("the log is the cluster's") {
        return;
    }
    let dir = TestFolder::new(NOTES);
    let ahead = || jiff::Timestamp::now() + jiff::SignedDuration::from_hours(365 * 24);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = EmbeddedOptions { clock: std::sync::Arc::new(ahead), ..EmbeddedOptions::default() };
        let store = EmbeddedStore::open(dir.path("data"), options).unwrap();
        let changes = ["a", "b"].map(|id| NewChange::put(Item::new(id)));
        store.append(&FeedId::new("notes").unwrap(), Expected::Any, changes.into()).await.unwrap();
        store.close().await;
    });
    let server = dir.serve();
    assert!(dir.log().contains("ahead of this machine's clock"), "{}", dir.log());
    assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &[], b"").status, 201);
    let described = server.json("/feeds/notes");
    let streams = ["events", "hub"];
    let mut dated = 0;
    for address in described["addresses"].as_array().unwrap() {
        if streams.contains(&address["name"].as_str().unwrap()) {
            continue;
        }
        let path = address["url"].as_str().unwrap().strip_prefix(&server.base).unwrap();
        // Twice: the second answer is that of a prebuilt document.
        for _ in 0..2 {
            let answer = server.get(path);
            let time = |name: &str| answer.header(name).map(|value| http_date::parse(value).unwrap());
            let Some(modified) = time("last-modified") else { continue };
            assert!(modified <= time("date").unwrap(), "{path}: {:?}", answer.headers);
            dated += 1;
        }
    }
    assert!(dated >= 4, "{described}");
    let item = server.get("/feeds/notes/items/a");
    let time = |name: &str| http_date::parse(item.header(name).unwrap()).unwrap();
    assert!(time("last-modified") <= time("date"), "{:?}", item.headers);
}

/// Ids and titles of the items that a server has, on all pages.
fn titles(server: &TestServer) -> Vec<(String, String)> {
    let text = |item: &serde_json::Value, name: &str| item[name].as_str().unwrap_or_default().to_owned();
    let (mut titles, mut path) = (Vec::new(), "/feeds/notes/items?order=modified&timeout=0".to_owned());
    loop {
        let page = server.json(&path);
        let items = page["items"].as_array().unwrap().iter();
        titles.extend(items.map(|item| (text(item, "id"), text(item, "displayName"))));
        let Some(next) = page["next"].as_str() else { return titles };
        path = next.strip_prefix(&server.base).unwrap().to_owned();
    }
}

/// Builds a folder anew without some of its entries, as a bug or a damaged disk would leave it.
fn remove_entries(folder: &Path, from: CopySection, is_removed: impl Fn(&[u8]) -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = EmbeddedStore::open(folder, EmbeddedOptions::default()).unwrap();
    let copy = store.copy_now().unwrap();
    let sections = CopySection::ALL.map(|section| (section, copy.read(section, None, usize::MAX).unwrap()));
    drop(copy);
    runtime.block_on(store.close());
    drop(store);
    replace_store(folder, |building| {
        let builder = StoreBuilder::create(building)?;
        for (section, entries) in sections {
            let kept = entries.into_iter().filter(|(key, _)| section != from || !is_removed(key));
            builder.load(section, kept.map(Ok)).unwrap();
        }
        builder.finish().unwrap();
        Ok::<_, OpenError>(())
    })
    .unwrap();
}

fn put_titles(server: &TestServer, titles: &[(&str, &str)]) {
    let line = |(id, title): &(&str, &str)| {
        format!("{}\n", json!({"op": "put", "id": id, "item": {"title": title}}))
    };
    let body: String = titles.iter().map(line).collect();
    let type_ = [("content-type", "application/x-ndjson")];
    assert_eq!(server.ask("POST", "/feeds/notes/items", &type_, body.as_bytes()).status, 200);
}

/// Damage is found by `verify`, which names the command. `repair` mends or names it, and then `verify` finds nothing.
#[test]
fn repair_rebuilds_what_the_log_gives_and_names_what_is_lost() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new("[server]\nreserve_mib = 0\n[[feed]]\nid = \"notes\"\npage_items = 2\n");
    let data = dir.path("data");
    assert_eq!(dir.run(&["repair"]).status.code(), Some(2), "there is no folder");
    let server = dir.serve();
    put_titles(&server, &[("a", "1"), ("b", "1"), ("c", "1")]);
    put_titles(&server, &[("a", "2"), ("d", "1"), ("e", "1")]);
    assert_eq!(server.get("/feeds/notes/replication").status, 200);
    assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &[], b"").status, 201);
    assert_eq!(dir.run(&["repair"]).status.code(), Some(1), "a server has it open");
    assert_eq!(server.stop(), Some(0));
    let sound = dir.run(&["repair"]);
    assert_eq!(sound.status.code(), Some(0), "{}", stderr(&sound));
    assert!(stdout(&sound).contains("nothing to repair") && !data.join("before-repair-1").exists());

    // An index is gone.
    remove_entries(&data, CopySection::Created, |_| true);
    let found = dir.run(&["verify"]);
    assert_eq!(found.status.code(), Some(1));
    assert!(stderr(&found).contains("`towpath repair`"), "{}", stderr(&found));
    let dry = dir.run(&["repair", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{}{}", stdout(&dry), stderr(&dry));
    assert!(stdout(&dry).ends_with("nothing is lost\n"), "{}", stdout(&dry));
    let dry = dir.run(&["--quiet", "repair", "--dry-run", "--format", "json"]);
    let report: Value = serde_json::from_str(&stdout(&dry)).unwrap();
    assert_eq!((&report["changes"], &report["lost"], &report["left"]), (&json!(6), &json!([]), &json!([])));
    assert_eq!(stderr(&dry), "");
    assert_eq!(dir.run(&["verify"]).status.code(), Some(1), "a dry run changes nothing");
    let repaired = dir.run(&["repair"]);
    assert_eq!(repaired.status.code(), Some(0), "{}{}", stdout(&repaired), stderr(&repaired));
    let sound = dir.run(&["verify"]);
    assert_eq!(sound.status.code(), Some(0), "{}", stdout(&sound));
    assert_eq!(dir.run(&["verify", "--data", "data/before-repair-1"]).status.code(), Some(1), "as it was");

    // A change is gone: a's second version.
    remove_entries(&data, CopySection::Log, |key| key.ends_with(&4_u64.to_be_bytes()));
    assert_eq!(dir.run(&["verify"]).status.code(), Some(1));
    let dry = dir.run(&["repair", "--dry-run", "--format", "json"]);
    assert_eq!(dry.status.code(), Some(1));
    let report: Value = serde_json::from_str(&stdout(&dry)).unwrap();
    let lost = json!([{ "feed": "notes", "position": 4, "item": "a", "reason": "it is missing in the log" }]);
    assert_eq!(report["lost"], lost, "{report}");
    let repaired = dir.run(&["repair"]);
    assert_eq!(repaired.status.code(), Some(1));
    assert!(
        stdout(&repaired).contains("lost: feed notes, change 4, item \"a\": it is missing in the log\n"),
        "{}{}",
        stdout(&repaired),
        stderr(&repaired)
    );
    let sound = dir.run(&["verify"]);
    assert_eq!(sound.status.code(), Some(0), "{}", stdout(&sound));
    let server = dir.serve();
    let mut left = titles(&server);
    left.sort();
    let expected = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1")];
    assert_eq!(left, expected.map(|(id, title)| (id.to_owned(), title.to_owned())));
    for path in ["/feeds/notes/replication", "/feeds/notes/atom"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.get("/feeds/notes/replication/pages/1").status, 410);
    put_titles(&server, &[("a", "3")]);
    assert!(titles(&server).contains(&("a".into(), "3".into())));
    assert_eq!(server.stop(), Some(0));
    assert_eq!(dir.run(&["verify"]).status.code(), Some(0));
}
