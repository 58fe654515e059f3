//! Adverse conditions: ports, folders and disks that are in use, read-only or full; and clean shutdown.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{TestFolder, TestServer, clustered, stderr};

const NOTES: &str = "[[feed]]\nid = \"notes\"\n";

/// Asserts that a command failed with these texts.
fn fails(output: &Output, printed: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for part in printed {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_port_that_is_in_use() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = TestFolder::new(NOTES);
    fails(&dir.run(&["serve", "--listen", &address]), &[&address, "in use"]);
    // TEST-NET-1 (RFC 5737): an address that no machine has.
    fails(&dir.run(&["serve", "--listen", "192.0.2.1:8080"]), &["192.0.2.1:8080"]);
    assert!(!dir.path("data").exists(), "nothing was begun");
}

/// No client can connect to 0.0.0.0: commands use this machine, documents name it, and the server says which setting
/// is missing.
#[test]
fn a_server_that_listens_on_all_addresses() {
    for (any, loopback) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")] {
        if std::net::TcpListener::bind(format!("{any}:0")).is_err() {
            eprintln!("SKIPPED: there is no {any} here");
            continue;
        }
        let port = crate::common::free_port();
        let dir = TestFolder::new(&format!("[server]\nlisten = \"{any}:{port}\"\n{NOTES}"));
        let server = dir.start(dir.command(&["serve"]));
        assert_eq!(server.base, format!("http://{loopback}:{port}"));
        for command in [&["put", "notes", "a"] as &[&str], &["snapshot", "notes"], &["delete", "notes", "a"]]
        {
            let done = dir.run(command);
            assert_eq!(done.status.code(), Some(0), "{command:?}: {}", stderr(&done));
        }
        assert_eq!(server.json("/feeds/notes")["seq"], 2);
        assert!(dir.log().contains("base_url"), "{}", dir.log());
        assert!(!dir.run(&["export", "tree"]).status.success(), "the server has the folder");
        drop(server);
        let at_any = ["serve", "--listen", &format!("{any}:0"), "--base-url", "http://127.0.0.1:1"];
        drop(dir.start(dir.command(&at_any)));
        // With `--base-url` nothing is missing, so only the first start warned.
        assert_eq!(dir.log().matches("base_url").count(), 1, "{}", dir.log());
    }
}

#[test]
fn folders_that_cannot_hold_data() {
    let dir = TestFolder::new(NOTES);
    dir.write("file", b"not a folder");
    // Nothing can be created in /proc, not even by root, as whom tests may run.
    for folder in ["/proc/towpath", "file", "file/below"] {
        for command in
            [["run", "--data", folder].as_slice(), &["serve", "--listen", "127.0.0.1:0", "--data", folder]]
        {
            fails(&dir.run(command), &[folder]);
        }
    }
    assert_eq!(std::fs::read(dir.path("file")).unwrap(), b"not a folder");
}

#[test]
fn a_folder_that_another_process_uses() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    fails(&dir.run(&["serve", "--listen", "127.0.0.1:0"]), &["data", "another process"]);
    fails(&dir.run(&["run"]), &["data", "another process"]);
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[], b"x").status, 201);
    server.kill();
    // The lock of a killed process is free.
    let server = dir.serve();
    assert_eq!(server.get("/feeds/notes/items/a").text(), "x");
}

/// Publishes until the server refuses; returns the number of acknowledged items.
fn fill(server: &TestServer) -> u32 {
    // Random bytes, which nothing on the way to the disk can compress.
    let mut noise = fastrand::Rng::with_seed(7);
    // 400 MiB: more than either limit leaves room for.
    for n in 0..400 {
        let content: Vec<u8> = std::iter::repeat_with(|| noise.u8(..)).take(1 << 20).collect();
        let answer = server.ask("PUT", &format!("/feeds/notes/items/{n}"), &[], &content);
        if answer.status != 201 {
            assert!(answer.status >= 500, "{}", answer.text());
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
            assert!(
                answer.json()["detail"].as_str().is_some_and(|text| !text.is_empty()),
                "{}",
                answer.text()
            );
            return n;
        }
    }
    panic!("the disk never fills");
}

fn acknowledged_items_are_there(server: &TestServer, count: u32) {
    for n in 0..count {
        let answer = server.get(&format!("/feeds/notes/items/{n}"));
        assert_eq!((answer.status, answer.body.len()), (200, 1 << 20), "item {n} of {count}");
    }
}

/// A limit on file sizes replaces a full disk: a write beyond it fails in the same way.
#[test]
fn a_failed_write_loses_no_acknowledged_item() {
    let dir = TestFolder::new(NOTES);
    // Created without a limit, so that only growing fails.
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/notes/items/first", &[], b"x").status, 201);
    assert_eq!(server.stop(), Some(0));
    let mut limited = Command::new("bash");
    // Without the trap, SIGXFSZ would end the process instead of failing the write.
    let script = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" serve --listen 127.0.0.1:0";
    limited.args(["-c", script, env!("CARGO_BIN_EXE_towpath")]).current_dir(dir.folder.path());
    let server = dir.start(limited);
    let count = fill(&server);
    println!("refused after {count} MiB");
    assert!(count > 0);
    assert_eq!(server.get("/feeds/notes/items/first").text(), "x", "reading goes on");
    acknowledged_items_are_there(&server, count);
    drop(server);
    let server = dir.serve();
    acknowledged_items_are_there(&server, count);
    assert_eq!(server.ask("PUT", "/feeds/notes/items/last", &[], b"y").status, 201, "and so does writing");
}

/// Full disk on a file system of its own, if the test may mount one.
#[test]
fn a_full_disk_loses_no_acknowledged_item() {
    if clustered::skips(
        "the disk is that of the log; a replica's may be full, and 503 says that nothing is known",
    ) {
        return;
    }
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\npage_items = 1\n");
    let disk = dir.path("data");
    std::fs::create_dir(&disk).unwrap();
    // Somewhat more than the space that the store reserves.
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=300m", "towpath"]).arg(&disk).output();
    if !mount.is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED: mounting a small file system is not permitted here");
        return;
    }
    // Unmounted even if an assertion fails.
    let _unmounted = Unmount(disk.display().to_string());
    let server = dir.serve();
    let count = fill(&server);
    println!("full after {count} MiB");
    assert!(count > 0);
    // The second newest page cannot be sealed any more; its items can be read all the same.
    for path in ["replication", "atom", "rss", "feed.json", "items?order=-modified&max=1"] {
        let answer = server.get(&format!("/feeds/notes/{path}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    // Another program uses up the reserve, too.
    let mut filler = std::fs::File::create(disk.join("filler")).unwrap();
    while filler.write_all(&[0; 65536]).is_ok() {}
    assert_eq!(server.ask("PUT", "/feeds/notes/items/more", &[], b"x").status, 503);
    acknowledged_items_are_there(&server, count);
    drop((server, filler));
    std::fs::remove_file(disk.join("filler")).unwrap();
    // As an operator would: more space, and a restart.
    let grown = Command::new("mount").args(["-o", "remount,size=600m"]).arg(&disk).status().unwrap();
    assert!(grown.success());
    let server = dir.serve();
    acknowledged_items_are_there(&server, count);
    // A refused item must not appear after the restart.
    assert_eq!(server.get("/feeds/notes/items/more").status, 404);
    let last = server.ask("PUT", "/feeds/notes/items/last", &[], b"y");
    assert_eq!(last.status, 201, "{}; log: {}", last.text(), dir.log());
}

struct Unmount(String);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn sigterm_ends_a_server_while_clients_are_connected() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    // More than all socket buffers hold, so the unread response below stays unfinished.
    let line = json!({"id": "big", "content": "x".repeat(20 << 20)});
    assert_eq!(server.ask("POST", "/feeds/notes/items", &[], format!("{line}\n").as_bytes()).status, 200);
    let host = server.base.strip_prefix("http://").unwrap();
    let connect = |request: &str| {
        let mut stream = TcpStream::connect(host).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    // Every state of a connection: idle, between two requests, half a head, and a response that is never
    // read.
    let _idle = connect("");
    let mut kept = connect("GET /healthz.json HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut begun = [0; 64];
    kept.read_exact(&mut begun).unwrap();
    let _half = connect("GET /healthz.json HT");
    let _unread = connect("GET /feeds/notes/items/big HTTP/1.1\r\nHost: x\r\n\r\n");
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    assert_eq!(server.stop(), Some(0));
    // The client that never reads gets the grace period, no more.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let began = Instant::now();
    let server = dir.serve();
    let host = server.base.strip_prefix("http://").unwrap().to_owned();
    let _idle: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&host).unwrap()).collect();
    let started = began.elapsed();
    assert_eq!(server.stop(), Some(0));
    // A node builds the documents of the large item after its start, not before.
    let limit = Duration::from_secs(if clustered::is_on() { 12 } else { 3 });
    assert!(began.elapsed() - started < limit, "idle clients hold nothing up");
}

/// RFC 9112, section 3.2: a request without Host, or with two, is refused.
#[test]
fn rfc_9112_3_2_a_request_has_one_host() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let host = server.base.strip_prefix("http://").unwrap();
    // HTTP/1.0 has no Host; clients and health checks of that version still exist.
    for (version, hosts, status) in [("1.1", 0, 400), ("1.1", 1, 200), ("1.1", 2, 400), ("1.0", 0, 200)] {
        let mut stream = TcpStream::connect(host).unwrap();
        let hosts = "Host: a\r\n".repeat(hosts);
        write!(stream, "GET /feeds HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/{version} {status}")), "{version} {hosts:?}: {answer}");
    }
}

/// RFC 9110, sections 8.4 and 15.5.16: an encoded body is not stored as if it were the content.
#[test]
fn a_body_in_a_coding_is_refused() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let coded = [("content-type", "text/plain"), ("content-encoding", "gzip")];
    let refused = server.ask("PUT", "/feeds/notes/items/a", &coded, b"\x1f\x8b\x08");
    assert_eq!((refused.status, refused.header("accept-encoding")), (415, Some("identity")));
    assert_eq!(server.get("/feeds/notes/items/a").status, 404);
}

/// RFC 9110, section 13.1.2: an item's version is revalidated by its ETag, in every spelling that caches use.
#[test]
fn rfc_9110_13_1_2_an_item_that_did_not_change() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    server.ask("PUT", "/feeds/notes/items/a", &[("content-type", "text/plain")], b"x");
    let etag = server.get("/feeds/notes/items/a").header("etag").unwrap().to_owned();
    // If-None-Match compares weakly: caches that recode a body weaken its tag.
    for list in [etag.clone(), format!("W/{etag}"), format!("\"x\", {etag}"), "*".to_owned()] {
        let answer = server.ask("GET", "/feeds/notes/items/a", &[("if-none-match", &list)], b"");
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{list}");
    }
    assert_eq!(server.ask("GET", "/feeds/notes/items/a", &[("if-none-match", "\"x\"")], b"").status, 200);
}

/// RFC 9110, section 12.5.5: `Vary` tells HTML from data to caches.
#[test]
fn rfc_9110_12_5_5_negotiated_responses_vary_on_accept() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    for path in ["/", "/feeds/notes"] {
        for (accept, media_type) in
            [("text/html", "text/html"), ("text/html;q=0.1, application/json", "application/json")]
        {
            let answer = server.ask("GET", path, &[("accept", accept)], b"");
            assert!(answer.header("content-type").unwrap().starts_with(media_type), "{path} {accept}");
            assert!(
                answer.header("vary").unwrap().split(", ").any(|name| name == "accept"),
                "{path} {accept}"
            );
        }
    }
}
