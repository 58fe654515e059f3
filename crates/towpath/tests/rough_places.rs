//! Where a server runs badly: ports, folders and disks that are taken, closed or full, and ending in time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{Place, Server, clustered, stderr};
use serde_json::json;

const NOTES: &str = "[[feed]]\nid = \"notes\"\n";

/// A command that must end by itself, soon.
fn fails(output: &Output, told: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for part in told {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_port_that_is_in_use() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let place = Place::new(NOTES);
    fails(&place.run(&["serve", "--listen", &address]), &[&address, "in use"]);
    fails(&place.run(&["serve", "--listen", "192.0.2.1:8080"]), &["192.0.2.1:8080"]);
    assert!(!place.path("data").exists(), "nothing was begun");
}

/// Nobody can ask at 0.0.0.0: commands ask this machine, documents name it, and the server says what is missing.
#[test]
fn a_server_that_listens_on_all_addresses() {
    for (any, loopback) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")] {
        if std::net::TcpListener::bind(format!("{any}:0")).is_err() {
            eprintln!("SKIPPED: there is no {any} here");
            continue;
        }
        let port = common::free_port();
        let place = Place::new(&format!("[server]\nlisten = \"{any}:{port}\"\n{NOTES}"));
        let server = place.start(place.command(&["serve"]));
        assert_eq!(server.base, format!("http://{loopback}:{port}"));
        for command in [&["put", "notes", "a"] as &[&str], &["snapshot", "notes"], &["delete", "notes", "a"]]
        {
            let done = place.run(command);
            assert_eq!(done.status.code(), Some(0), "{command:?}: {}", stderr(&done));
        }
        assert_eq!(server.json("/feeds/notes")["seq"], 2);
        assert!(place.log().contains("base_url"), "{}", place.log());
        assert!(!place.run(&["export", "tree"]).status.success(), "the server has the folder");
        drop(server);
        let at_any = ["serve", "--listen", &format!("{any}:0"), "--base-url", "http://127.0.0.1:1"];
        drop(place.start(place.command(&at_any)));
        assert_eq!(place.log().matches("base_url").count(), 1, "{}", place.log());
    }
}

#[test]
fn folders_that_cannot_hold_data() {
    let place = Place::new(NOTES);
    place.write("file", b"not a folder");
    for folder in ["/proc/towpath", "file", "file/below"] {
        for command in
            [["run", "--data", folder].as_slice(), &["serve", "--listen", "127.0.0.1:0", "--data", folder]]
        {
            fails(&place.run(command), &[folder]);
        }
    }
    assert_eq!(std::fs::read(place.path("file")).unwrap(), b"not a folder");
}

#[test]
fn a_folder_that_another_process_uses() {
    let place = Place::new(NOTES);
    let server = place.serve();
    fails(&place.run(&["serve", "--listen", "127.0.0.1:0"]), &["data", "another process"]);
    fails(&place.run(&["run"]), &["data", "another process"]);
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[], b"x").status, 201);
    server.kill();
    // What a killed process held is free.
    let server = place.serve();
    assert_eq!(server.get("/feeds/notes/items/a").text(), "x");
}

/// Publishes until the server refuses; returns how many items it acknowledged.
fn fill(server: &Server) -> u32 {
    let mut noise = fastrand::Rng::with_seed(7);
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

fn acknowledged_items_are_there(server: &Server, count: u32) {
    for n in 0..count {
        let answer = server.get(&format!("/feeds/notes/items/{n}"));
        assert_eq!((answer.status, answer.body.len()), (200, 1 << 20), "item {n} of {count}");
    }
}

/// A limit on the size of files stands in for a full disk: a write beyond it fails, as one to a full disk does.
#[test]
fn a_write_that_the_disk_refuses_loses_nothing_that_was_acknowledged() {
    let place = Place::new(NOTES);
    // Made without a limit, so that only growing fails.
    let server = place.serve();
    assert_eq!(server.ask("PUT", "/feeds/notes/items/first", &[], b"x").status, 201);
    assert_eq!(server.stop(), Some(0));
    let mut limited = Command::new("bash");
    let script = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" serve --listen 127.0.0.1:0";
    limited.args(["-c", script, env!("CARGO_BIN_EXE_towpath")]).current_dir(place.folder.path());
    let server = place.start(limited);
    let count = fill(&server);
    println!("refused after {count} MiB");
    assert!(count > 0);
    assert_eq!(server.get("/feeds/notes/items/first").text(), "x", "reading goes on");
    acknowledged_items_are_there(&server, count);
    drop(server);
    let server = place.serve();
    acknowledged_items_are_there(&server, count);
    assert_eq!(server.ask("PUT", "/feeds/notes/items/last", &[], b"y").status, 201, "and so does writing");
}

/// The same on a file system that is really full, where the test may make one.
#[test]
fn a_full_disk_loses_nothing_that_was_acknowledged() {
    if clustered::skips(
        "the disk is that of the log; a replica's may be full, and 503 says that nothing is known",
    ) {
        return;
    }
    let place = Place::new("[[feed]]\nid = \"notes\"\npage_items = 1\n");
    let disk = place.path("data");
    std::fs::create_dir(&disk).unwrap();
    // Somewhat more than the store keeps in reserve.
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=300m", "towpath"]).arg(&disk).output();
    if !mount.is_ok_and(|done| done.status.success()) {
        eprintln!("SKIPPED: mounting a small file system is not permitted here");
        return;
    }
    let _unmounted = Unmount(disk.display().to_string());
    let server = place.serve();
    let count = fill(&server);
    println!("full after {count} MiB");
    assert!(count > 0);
    // The last page but one cannot be sealed any more: what is there is read all the same.
    for path in ["replication", "atom", "rss", "feed.json", "items?order=-modified&max=1"] {
        let answer = server.get(&format!("/feeds/notes/{path}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    // Somebody else takes the reserve, too.
    let mut filler = std::fs::File::create(disk.join("filler")).unwrap();
    while filler.write_all(&[0; 65536]).is_ok() {}
    assert_eq!(server.ask("PUT", "/feeds/notes/items/more", &[], b"x").status, 503);
    acknowledged_items_are_there(&server, count);
    drop((server, filler));
    std::fs::remove_file(disk.join("filler")).unwrap();
    let grown = Command::new("mount").args(["-o", "remount,size=600m"]).arg(&disk).status().unwrap();
    assert!(grown.success());
    let server = place.serve();
    acknowledged_items_are_there(&server, count);
    assert_eq!(server.get("/feeds/notes/items/more").status, 404);
    let last = server.ask("PUT", "/feeds/notes/items/last", &[], b"y");
    assert_eq!(last.status, 201, "{}; log: {}", last.text(), place.log());
}

struct Unmount(String);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn sigterm_ends_a_server_while_clients_are_connected() {
    let place = Place::new(NOTES);
    let server = place.serve();
    let line = json!({"id": "big", "content": "x".repeat(20 << 20)});
    assert_eq!(server.ask("POST", "/feeds/notes/items", &[], format!("{line}\n").as_bytes()).status, 200);
    let host = server.base.strip_prefix("http://").unwrap();
    let connect = |request: &str| {
        let mut stream = TcpStream::connect(host).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let _idle = connect("");
    let mut kept = connect("GET /healthz.json HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut begun = [0; 64];
    kept.read_exact(&mut begun).unwrap();
    let _half = connect("GET /healthz.json HT");
    let _unread = connect("GET /feeds/notes/items/big HTTP/1.1\r\nHost: x\r\n\r\n");
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    assert_eq!(server.stop(), Some(0));
    // The reader that never reads gets its grace, no more.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let began = Instant::now();
    let server = place.serve();
    let host = server.base.strip_prefix("http://").unwrap().to_owned();
    let _idle: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&host).unwrap()).collect();
    let started = began.elapsed();
    assert_eq!(server.stop(), Some(0));
    // A node makes the documents of the large item after its start, not before.
    let limit = Duration::from_secs(if clustered::is_on() { 12 } else { 3 });
    assert!(began.elapsed() - started < limit, "idle clients hold nothing up");
}

/// RFC 9112, section 3.2: a request without Host, or with two, is refused.
#[test]
fn rfc_9112_3_2_a_request_has_one_host() {
    let place = Place::new(NOTES);
    let server = place.serve();
    let host = server.base.strip_prefix("http://").unwrap();
    for (version, hosts, status) in [("1.1", 0, 400), ("1.1", 1, 200), ("1.1", 2, 400), ("1.0", 0, 200)] {
        let mut stream = TcpStream::connect(host).unwrap();
        let hosts = "Host: a\r\n".repeat(hosts);
        write!(stream, "GET /feeds HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/{version} {status}")), "{version} {hosts:?}: {answer}");
    }
}

/// RFC 9110, sections 8.4 and 15.5.16: what is sent in a coding is not kept as if it were the content.
#[test]
fn a_body_in_a_coding_is_refused() {
    let place = Place::new(NOTES);
    let server = place.serve();
    let coded = [("content-type", "text/plain"), ("content-encoding", "gzip")];
    let refused = server.ask("PUT", "/feeds/notes/items/a", &coded, b"\x1f\x8b\x08");
    assert_eq!((refused.status, refused.header("accept-encoding")), (415, Some("identity")));
    assert_eq!(server.get("/feeds/notes/items/a").status, 404);
}

/// RFC 9110, section 13.1.2: an item is asked for again by its version, however caches write that.
#[test]
fn rfc_9110_13_1_2_an_item_that_did_not_change() {
    let place = Place::new(NOTES);
    let server = place.serve();
    server.ask("PUT", "/feeds/notes/items/a", &[("content-type", "text/plain")], b"x");
    let etag = server.get("/feeds/notes/items/a").header("etag").unwrap().to_owned();
    for list in [etag.clone(), format!("W/{etag}"), format!("\"x\", {etag}"), "*".to_owned()] {
        let answer = server.ask("GET", "/feeds/notes/items/a", &[("if-none-match", &list)], b"");
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{list}");
    }
    assert_eq!(server.ask("GET", "/feeds/notes/items/a", &[("if-none-match", "\"x\"")], b"").status, 200);
}

/// RFC 9110, section 12.5.5: pages for people and for programs are told apart by caches.
#[test]
fn rfc_9110_12_5_5_what_depends_on_accept_says_so() {
    let place = Place::new(NOTES);
    let server = place.serve();
    for path in ["/", "/feeds/notes"] {
        for (accept, media_type) in
            [("text/html", "text/html"), ("text/html;q=0.1, application/json", "application/json")]
        {
            let answer = server.ask("GET", path, &[("accept", accept)], b"");
            assert!(answer.header("content-type").unwrap().starts_with(media_type), "{path} {accept}");
            assert_eq!(answer.header("vary"), Some("accept"), "{path} {accept}");
        }
    }
}
