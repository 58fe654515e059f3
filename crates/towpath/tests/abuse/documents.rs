//! Hostile documents, and addresses that a stranger has a server fetch.

use std::io::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::size;

use crate::common::{PATIENCE, TestFolder, lines, stderr, stdout};

#[path = "fetching.rs"]
mod fetching;
#[path = "pages.rs"]
mod pages;

use crate::raw_server::{RawServer, ScriptStep, answer, send};

const JSON: &str = "Content-Type: application/json\r\nContent-Encoding: gzip\r\n";
const ATOM: &str = "Content-Type: application/atom+xml\r\nContent-Encoding: gzip\r\n";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Compresses a document of `size` bytes that repeats `each`.
fn bomb(before: &str, each: &str, after: &str, size: usize) -> Vec<u8> {
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    coder.write_all(before.as_bytes()).unwrap();
    let block = each.repeat(1000);
    for _ in 0..size / block.len() {
        coder.write_all(block.as_bytes()).unwrap();
    }
    coder.write_all(after.as_bytes()).unwrap();
    coder.finish().unwrap()
}

/// Returns the peak memory of a process, in MiB; `None` once it has ended.
fn peak_mib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

/// Waits for a command, and returns its peak memory in MiB.
fn peak_of(mut child: Child) -> u64 {
    let (end, mut peak) = (Instant::now() + 4 * PATIENCE, 0);
    while child.try_wait().unwrap().is_none() {
        peak = peak_mib(child.id()).unwrap_or(0).max(peak);
        assert!(Instant::now() < end, "the command does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    peak
}

/// A few kilobytes of gzip that are many small items: refused by name, while an honest source is read.
#[test]
fn many_small_items_do_not_fill_the_memory() {
    let bytes = size(12 << 20, 63 << 20);
    let json = bomb("[", "{\"id\":1},", "{\"id\":1}]", bytes);
    let atom = "<feed xmlns='http://www.w3.org/2005/Atom'><id>i</id>";
    let atom = bomb(atom, "<entry><id>a</id></entry>", "</feed>", bytes);
    let runtime = runtime();
    let origin = runtime.block_on(RawServer::start(move |asked| match asked.path.as_str() {
        "/json" => answer("200 OK", JSON, &json),
        "/atom" => answer("200 OK", ATOM, &atom),
        _ => answer("200 OK", "", "<rss><channel><item><guid>1</guid></item></channel></rss>"),
    }));
    // One document at four times its size at most, and the server itself.
    let allowed = 100 + ((4 * bytes as u64) >> 20).max(32);
    // One after the other: two at once may exceed the budget for bodies, and then one of them is read later.
    for (id, more) in [("atom", ""), ("json", "format = \"json\"\n[feed.source.json]\nid = \"/id\"\n")] {
        let mut config = String::new();
        for (id, more) in [(id, more), ("honest", "")] {
            let url = origin.url(&format!("/{id}"));
            config += &format!("[[feed]]\nid = \"{id}\"\n[feed.source]\nurl = \"{url}\"\n{more}");
        }
        let folder = TestFolder::new(&config);
        let server = folder.serve();
        let view = server.wait_for(&format!("/feeds/{id}"), |view| view["source"]["error"].is_object());
        let message = view["source"]["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("(limit: "), "{message}");
        server.wait_for_first("honest");
        let peak = peak_mib(server.pid()).unwrap();
        assert!(peak < allowed, "serve took {peak} MiB of {allowed} for {id}");
    }
    let folder = TestFolder::new("");
    let url = origin.url("/atom");
    let mut follow = folder.command(&["follow", &url, "--once", "--protocol", "rss"]);
    let follow = follow.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let peak = peak_of(follow.spawn().unwrap());
    assert!(peak < allowed, "follow took {peak} MiB of {allowed}");
}

/// Limits of `follow`, `check` and mirrors are configured, and errors name them.
#[test]
fn limits_of_followers_are_configured_and_named() {
    let folder = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let server = folder.serve();
    // In one batch, so that one document has them all.
    let line = |(id, length)| {
        format!(
            "{{\"id\":\"{id}\",\"content_type\":\"text/plain\",\"content\":\"{}\"}}\n",
            "x".repeat(length)
        )
    };
    let batch: String = [("a", 1_500_000), ("b", 10), ("c", 10)].map(line).concat();
    let post = server.ask("POST", "/feeds/notes/items", &[], batch.as_bytes());
    assert_eq!(post.status, 200, "{}", post.text());
    server.wait_for("/diff/notes/latest.json", |latest| {
        latest["buckets"]["new"].as_array().is_some_and(|items| items.len() == 3)
    });
    for (protocol, path, limit, enough) in [
        ("smart", "/feeds/notes/items", "items=2", "items=3"),
        ("rss", "/feeds/notes/atom", "items=2", "items=3"),
        ("diffdelta", "/diff/notes/latest.json", "items=2", "items=3"),
        ("smart", "/feeds/notes/items", "string_mib=1", "string_mib=2"),
        ("diffdelta", "/diff/notes/latest.json", "max_mib=1", "max_mib=9"),
        ("replication", "/feeds/notes/replication", "entity_mib=1", "entity_mib=2"),
    ] {
        let url = format!("{}{path}", server.base);
        let run =
            |limit: &str| folder.run(&["follow", &url, "--once", "--protocol", protocol, "--limit", limit]);
        let refused = run(limit);
        let name = format!("(limit: {})", limit.split_once('=').unwrap().0);
        assert_eq!(refused.status.code(), Some(1), "{protocol} {limit}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(&name), "{protocol} {limit}: {}", stderr(&refused));
        let followed = run(enough);
        assert_eq!(followed.status.code(), Some(0), "{protocol} {enough}: {}", stderr(&followed));
        assert_eq!(lines(&followed).len(), 3, "{protocol} {enough}");
    }
    let url = format!("{}/feeds/notes/atom", server.base);
    let check = folder.run(&["check", &url, "--protocol", "rss", "--limit", "items=2"]);
    // A limit of the check says nothing about the feed.
    let checked = stdout(&check);
    assert!(checked.contains("(limit: items)") && !checked.contains("FAIL"), "{checked}");
    let unknown = folder.run(&["follow", &url, "--limit", "size=2"]);
    assert!(unknown.status.code() == Some(2) && stderr(&unknown).contains("entity_mib"));
    let mirror = format!(
        "[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{}/feeds/notes/replication\"\nlimits = {{ entity_mib = 1 }}\n",
        server.base
    );
    let mirror = TestFolder::new(&mirror);
    let mirror = mirror.serve();
    let view = mirror.wait_for("/feeds/copy", |view| view["source"]["error"].is_object());
    assert!(view["source"]["error"].to_string().contains("(limit: entity_mib)"), "{view}");
}

/// An item whose id no feed can hold does not stop a mirror, which names it in its status.
#[test]
fn a_mirror_leaves_out_an_item_with_an_impossible_id() {
    let runtime = runtime();
    let origin = runtime.block_on(RawServer::start(|_| {
        let entry = |id: &str| {
            format!("<entry><id>{id}</id><title>t</title><updated>2026-01-01T00:00:00Z</updated></entry>")
        };
        let entries = [entry("urn:a"), entry(&format!("urn:{}", "y".repeat(5000))), entry("urn:b")].concat();
        let feed = "<feed xmlns='http://www.w3.org/2005/Atom'><id>f</id><title>f</title>";
        answer("200 OK", "Content-Type: application/atom+xml\r\n", format!("{feed}{entries}</feed>"))
    }));
    let url = origin.url("/f");
    let folder = TestFolder::new(&format!("[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{url}\"\n"));
    let server = folder.serve();
    let view =
        server.wait_for("/feeds/copy", |view| view["seq"] == 2 && view["source"]["problems"].is_array());
    assert!(view["source"]["problems"][0].to_string().contains("5004 bytes"), "{view}");
    assert!(view["source"].get("error").is_none(), "{view}");
    let follow = folder.run(&["follow", &url, "--once"]);
    assert_eq!(follow.status.code(), Some(3), "{}", stderr(&follow));
    assert_eq!(lines(&follow).len(), 2, "{}", stderr(&follow));
}

/// A page that is broken at its beginning and goes on: the rest is not stored.
#[test]
fn a_broken_page_is_checked_in_constant_memory() {
    let bytes = size(24 << 20, 300 << 20);
    let runtime = runtime();
    let origin = runtime.block_on(RawServer::start(move |asked| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: multipart/mixed; boundary=b\r\nContent-Length: {bytes}\r\n\
             Last-Modified: Mon, 27 Nov 2023 03:10:00 GMT\r\nLink: </page>; rel=self\r\n\r\n"
        );
        if asked.method == "HEAD" {
            return vec![send(head)];
        }
        let mut steps = vec![send(head), send("--b!")];
        steps.extend(vec![ScriptStep::Send(vec![b'x'; 1 << 20]); bytes >> 20]);
        steps
    }));
    let folder = TestFolder::new("");
    let mut check = folder.command(&["check", &origin.url("/page"), "--protocol", "replication"]);
    let check = check.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let peak = peak_of(check.spawn().unwrap());
    assert!(origin.asked().iter().any(|asked| asked.method == "GET"), "no page was read");
    assert!(peak < 80, "check took {peak} MiB");
}
