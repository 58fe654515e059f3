//! Mirrors with `large_content = true`: they copy contents that publishers keep as files, over chains, cuts and restarts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::common::{TestFolder, TestServer, free_port, lines, stderr, wait_until};
use crate::large_content::{FileServer, publish};
use crate::large_files::upload;
use crate::nodes::{TestCluster, holder_of_source};
use crate::raw_server::{ReceivedRequest, ScriptStep, answer, send};

const MIB: usize = 1 << 20;
/// Bytes that a mirror stores at once.
const GROUP: usize = 4 * MIB;

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n / 3 % 249) as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Returns the line of an item whose content is a file.
fn film(id: &str, url: &str, size: usize, sha256: &str) -> Value {
    let file = json!({"url": url, "media_type": "video/mp4", "size": size, "sha256": sha256});
    json!({"id": id, "item": {"title": "A film", "attachments": [file]}})
}

/// Returns the configuration of a feed that mirrors another one.
fn mirror(id: &str, follow: &str) -> String {
    format!(
        "[[feed]]\nid = \"{id}\"\nttl = 15\n[feed.source]\nfollow = \"{follow}\"\nevery = \"1s\"\nlarge_content = true\n"
    )
}

fn line(server: &TestServer, feed: &str, id: &str) -> Option<Value> {
    let answer = server.get(&format!("/feeds/{feed}/items/{id}?as=line"));
    (answer.status == 200).then(|| answer.json())
}

fn wait_for(server: &TestServer, feed: &str, id: &str) -> Value {
    wait_until(&format!("{feed} has {id}"), || line(server, feed, id).is_some());
    line(server, feed, id).unwrap()
}

fn wait_for_seq(server: &TestServer, feed: &str, seq: u64) {
    server.wait_for(&format!("/feeds/{feed}"), |view| view["seq"].as_u64().unwrap() >= seq);
    assert_eq!(server.json(&format!("/feeds/{feed}"))["seq"], seq, "nothing is there twice");
}

fn first(line: &Value) -> &Value {
    &line["item"]["attachments"][0]
}

/// Returns the path of a file, which must be the server's own.
fn own_path(server: &TestServer, feed: &str, line: &Value) -> String {
    let url = first(line)["url"].as_str().unwrap();
    let path = url.strip_prefix(&server.base).unwrap_or_else(|| panic!("{url} is not of {}", server.base));
    assert!(path.starts_with(&format!("/feeds/{feed}/attachments/")), "{url}");
    path.to_owned()
}

const PROTOCOLS: [(&str, &str); 4] = [
    ("smart", "/feeds/{}/items"),
    ("diffdelta", "/diff/{}/head.json"),
    ("replication", "/feeds/{}/replication"),
    ("history", "/feeds/{}/atom"),
];

/// Returns the configuration of a server with a mirror by each protocol, given the feed that each follows.
fn mirrors(base: &str, of: impl Fn(&'static str) -> &'static str) -> TestFolder {
    let feeds = PROTOCOLS.map(|(id, path)| mirror(id, &format!("{base}{}", path.replace("{}", of(id)))));
    TestFolder::new(&feeds.concat())
}

#[test]
fn the_last_of_a_chain_has_the_files() {
    let origin = TestFolder::new("[[feed]]\nid = \"films\"\nttl = 15\n");
    let server = origin.serve();
    let (film, gone) = (bytes(5 * MIB + 11), bytes(MIB));
    upload(
        &server,
        &[("id", "film"), ("filename", "a b.mp4"), ("filetype", "video/mp4"), ("title", "F")],
        &film,
    );
    publish(&server, "films", &[json!({"id": "note", "content": "text"})]);
    upload(&server, &[("id", "gone")], &gone);
    let middle_folder = mirrors(&server.base, |_| "films");
    let middle = middle_folder.serve();
    let last_folder = mirrors(&middle.base, |id| id);
    let last = last_folder.serve();
    let files: Vec<String> = PROTOCOLS
        .iter()
        .map(|(feed, _)| {
            wait_for(&last, feed, "film");
            own_path(&last, feed, &wait_for(&last, feed, "gone"))
        })
        .collect();
    assert_eq!(server.ask("DELETE", "/feeds/films/items/gone", &[], b"").status, 200);
    for ((feed, _), file) in PROTOCOLS.iter().zip(files) {
        wait_until("the item is deleted", || last.get(&format!("/feeds/{feed}/items/gone")).status == 410);
        wait_until("its file is removed", || last.get(&file).status == 404);
        assert_eq!(wait_for(&last, feed, "note")["content"], "text", "{feed}");
    }
    server.kill();
    middle.kill();
    for (feed, _) in PROTOCOLS {
        let line = line(&last, feed, "film").unwrap();
        let path = own_path(&last, feed, &line);
        let described = json!({"url": format!("{}{path}", last.base), "media_type": "video/mp4",
            "size": film.len(), "sha256": sha256(&film)});
        assert_eq!(line["item"]["attachments"], json!([described]), "{feed}");
        assert!(path.ends_with("/a%20b%2Emp4"), "{path}");
        for path in [path, format!("/feeds/{feed}/items/film")] {
            let answer = last.get(&path);
            assert!(answer.status == 200 && answer.body == film, "{path}: {}", answer.status);
            assert_eq!(answer.header("content-type"), Some("video/mp4"), "{path}");
        }
    }
    let url = format!("{}/feeds/smart", last.base);
    let followed = last_folder.run(&["follow", &url, "--once", "--large-content", "large"]);
    assert_eq!(followed.status.code(), Some(0), "{}", stderr(&followed));
    assert!(lines(&followed).iter().any(|line| line["id"] == "film"));
    assert!(std::fs::read(last_folder.path("large").join(sha256(&film))).unwrap() == film);
}

/// Returns the first byte that a request asks for.
fn start_of(asked: &ReceivedRequest) -> Option<usize> {
    asked.head.split("\r\nrange: bytes=").nth(1)?.split('-').next()?.parse().ok()
}

/// Returns a server of a film of 14 MiB. It cuts the first response after 6 MiB, and sends no more than 11 MiB by the second.
fn slow_film(whole: &[u8]) -> FileServer {
    let (content, count) = (whole.to_vec(), AtomicUsize::new(0));
    FileServer::start(move |asked| {
        let (start, size) = (start_of(asked).unwrap_or_default(), content.len());
        let head = if start > 0 {
            let range = format!("Content-Range: bytes {start}-{}/{size}", size - 1);
            format!("HTTP/1.1 206 Partial Content\r\n{range}\r\nETag: \"one\"\r\n")
        } else {
            "HTTP/1.1 200 OK\r\nETag: \"one\"\r\n".to_owned()
        };
        let head = send(format!("{head}Content-Length: {}\r\n\r\n", size - start));
        let pause = |time| ScriptStep::Pause(Duration::from_millis(time));
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => vec![head, send(&content[..6 * MIB]), pause(300), ScriptStep::Close],
            1 => vec![head, send(&content[start..11 * MIB]), pause(600_000)],
            _ => vec![head, send(&content[start..])],
        }
    })
}

/// Checks that the third request goes on with what was stored, but for a last group at most.
fn assert_continued(files: &FileServer) {
    let asked = files.server.asked();
    assert_eq!(asked.len(), 3);
    let start = start_of(&asked[2]).unwrap();
    assert!((11 * MIB - GROUP..=11 * MIB).contains(&start), "{start}");
    assert!(asked[2].head.contains("\r\nif-range: \"one\"\r\n"), "{}", asked[2].head);
}

#[test]
fn a_download_goes_on_after_a_cut_and_a_kill() {
    let whole = bytes(14 * MIB + 5);
    let files = slow_film(&whole);
    let origin = TestFolder::new("[[feed]]\nid = \"films\"\n");
    let server = origin.serve();
    let item = film("film", &files.server.url("/film.mp4"), whole.len(), &sha256(&whole));
    publish(&server, "films", &[json!({"id": "a"}), item, json!({"id": "b"})]);
    let folder = TestFolder::new(&mirror("copy", &format!("{}/feeds/films/items", server.base)));
    // The items have the server's address, so it keeps its port.
    let port = free_port();
    let copy = folder.serve_at(port);
    wait_until("the second part begins", || files.server.asked().len() == 2);
    let cut = start_of(&files.server.asked()[1]);
    assert_eq!(cut, Some(6 * MIB), "all that came before the cut is stored");
    std::thread::sleep(Duration::from_secs(1));
    assert!(line(&copy, "copy", "film").is_none() && line(&copy, "copy", "b").is_none());
    copy.kill();
    let copy = folder.serve_at(port);
    wait_for(&copy, "copy", "b");
    wait_for_seq(&copy, "copy", 3);
    assert_continued(&files);
    let file = own_path(&copy, "copy", &line(&copy, "copy", "film").unwrap());
    assert!(copy.get(&file).body == whole);
    // The next run has nothing left to do, and removes nothing.
    copy.kill();
    let copy = folder.serve_at(port);
    std::thread::sleep(Duration::from_secs(2));
    assert!(copy.get(&file).body == whole);
    assert_eq!(files.server.asked().len(), 3);
}

/// Another node goes on with the download of one that was killed, and every node has the file.
#[test]
fn a_node_that_takes_over_goes_on_with_a_download() {
    let whole = bytes(14 * MIB + 5);
    let files = slow_film(&whole);
    let origin = TestFolder::new("[[feed]]\nid = \"films\"\n");
    let server = origin.serve();
    let item = film("film", &files.server.url("/film.mp4"), whole.len(), &sha256(&whole));
    publish(&server, "films", &[item, json!({"id": "b"})]);
    let mut cluster = TestCluster::start(&mirror("copy", &format!("{}/feeds/films/items", server.base)));
    wait_until("the second part begins", || files.server.asked().len() == 2);
    std::thread::sleep(Duration::from_secs(2));
    cluster.kill(holder_of_source(&cluster, "copy"));
    for (_, node) in cluster.alive() {
        wait_for(node, "copy", "b");
        let line = line(node, "copy", "film").unwrap();
        let url = first(&line)["url"].as_str().unwrap();
        let (_, path) = url.split_once("/feeds/copy/attachments/").unwrap();
        let answer = node.get(&format!("/feeds/copy/attachments/{path}"));
        assert!(answer.body == whole, "{url}: {}", answer.status);
        wait_for_seq(node, "copy", 2);
    }
    assert_continued(&files);
}

#[test]
fn files_that_cannot_be_had_keep_their_address() {
    let whole = bytes(2 * MIB);
    let content = whole.clone();
    let files = FileServer::start(move |asked| match &*asked.path {
        "/gone.mp4" => answer("404 Not Found", "", "no"),
        _ => answer("200 OK", "", &content),
    });
    let origin = TestFolder::new("[[feed]]\nid = \"films\"\n");
    let server = origin.serve();
    let (digest, other) = (sha256(&whole), sha256(b"other"));
    let url = |path: &str| files.server.url(path);
    let refused = [
        film("gone", &url("/gone.mp4"), whole.len(), &digest),
        film("other", &url("/other.mp4"), whole.len(), &other),
        film("large", &url("/large.mp4"), 3 * MIB, &digest),
        film("private", "http://10.1.2.3/film.mp4", whole.len(), &digest),
    ];
    publish(&server, "films", &refused);
    publish(&server, "films", &[film("film", &url("/film.mp4"), whole.len(), &digest), json!({"id": "b"})]);
    let config = mirror("copy", &format!("{}/feeds/films/items", server.base));
    let folder = TestFolder::new(&format!("[server]\nlarge_content_mib = 2\n{config}"));
    let copy = folder.serve();
    wait_for(&copy, "copy", "b");
    wait_for_seq(&copy, "copy", 6);
    for item in refused {
        let id = item["id"].as_str().unwrap();
        assert_eq!(first(&line(&copy, "copy", id).unwrap()), first(&item), "{id}");
    }
    own_path(&copy, "copy", &line(&copy, "copy", "film").unwrap());
    let log = folder.log();
    for why in ["answers 404", "SHA-256", "[server] large_content_mib", "10.1.2.3"] {
        assert!(log.contains(why), "{why}: {log}");
    }
    let asked = files.server.asked().into_iter().map(|asked| asked.path);
    assert_eq!(asked.collect::<Vec<_>>(), ["/gone.mp4", "/other.mp4", "/other.mp4", "/film.mp4"]);
}

#[test]
fn a_busy_server_is_asked_again_and_a_known_file_is_not_downloaded() {
    let whole = bytes(2 * MIB);
    let (content, digest) = (whole.clone(), sha256(&whole));
    let count = AtomicUsize::new(0);
    let files = FileServer::start(move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 => answer("503 Service Unavailable", "Retry-After: 2\r\n", "busy"),
        _ => answer("200 OK", "", &content),
    });
    let origin = TestFolder::new("[[feed]]\nid = \"films\"\n");
    let server = origin.serve();
    let url = files.server.url("/film.mp4");
    publish(&server, "films", &[film("a", &url, whole.len(), &digest)]);
    let folder = TestFolder::new(&mirror("copy", &format!("{}/feeds/films/items", server.base)));
    let copy = folder.serve();
    let failing = copy.wait_for("/feeds/copy", |feed| feed["source"]["error"].is_object());
    assert_eq!(failing["source"]["error"]["code"], "HTTP_503", "{failing}");
    let of_a = own_path(&copy, "copy", &wait_for(&copy, "copy", "a"));
    copy.wait_for("/feeds/copy", |feed| feed["source"]["error"].is_null());
    // The same bytes as the content of another item, and of a new version of this one.
    let mut again = film("a", &url, whole.len(), &digest);
    again["item"]["title"] = json!("Another title");
    publish(&server, "films", &[film("b", &url, whole.len(), &digest), again]);
    let of_b = own_path(&copy, "copy", &wait_for(&copy, "copy", "b"));
    wait_for_seq(&copy, "copy", 3);
    assert_eq!(own_path(&copy, "copy", &line(&copy, "copy", "a").unwrap()), of_a);
    assert_eq!(files.server.asked().len(), 2);
    assert_eq!(server.ask("DELETE", "/feeds/films/items/a", &[], b"").status, 200);
    wait_until("the file of the deleted item is removed", || copy.get(&of_a).status == 404);
    assert!(copy.get(&of_b).body == whole);
}

/// Entities of Data Replication above `entity_mib` become files of the mirror while they arrive.
#[test]
fn entities_above_the_limit_become_files() {
    let origin = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let server = origin.serve();
    let large = bytes(3 * MIB + 7);
    let put = |id: &str, content: &[u8]| {
        let path = format!("/feeds/notes/items/{id}");
        assert!(server.ask("PUT", &path, &[("Content-Type", "video/mp4")], content).status < 300);
    };
    put("a", &large);
    put("small", b"text");
    put("same", &large);
    let limits = "limits = { entity_mib = 1 }\n";
    let copy_of = mirror("copy", &format!("{}/feeds/notes/replication", server.base)) + limits;
    let folder = TestFolder::new(&copy_of);
    let copy = folder.serve();
    let second_folder = TestFolder::new(&mirror("second", &format!("{}/feeds/copy/items", copy.base)));
    let second = second_folder.serve();
    put("b", &large[1..]);
    wait_for(&second, "second", "b");
    wait_for_seq(&copy, "copy", 4);
    for (server, feed) in [(&copy, "copy"), (&second, "second")] {
        for (id, content) in [("a", &large[..]), ("same", &large), ("b", &large[1..])] {
            let line = line(server, feed, id).unwrap();
            assert_eq!((line.get("content"), &first(&line)["size"]), (None, &json!(content.len())), "{id}");
            assert_eq!(first(&line)["sha256"], sha256(content), "{id}");
            for path in [own_path(server, feed, &line), format!("/feeds/{feed}/items/{id}")] {
                let answer = server.get(&path);
                assert!(answer.status == 200 && answer.body == content, "{path}: {}", answer.status);
                assert_eq!(answer.header("content-type"), Some("video/mp4"), "{path}");
            }
        }
        assert_eq!(server.get(&format!("/feeds/{feed}/items/small")).body, b"text");
    }
    let file = own_path(&copy, "copy", &line(&copy, "copy", "a").unwrap());
    assert_eq!(server.ask("DELETE", "/feeds/notes/items/a", &[], b"").status, 200);
    wait_until("the file of the deleted item is removed", || copy.get(&file).status == 404);
    assert!(copy.get("/feeds/copy/items/same").body == large);
    // A larger one stops the mirror before it, as without the key.
    let small = TestFolder::new(&format!("[server]\nlarge_content_mib = 2\n{copy_of}"));
    let stopped = small.serve();
    let view = stopped.wait_for("/feeds/copy", |feed| feed["source"]["error"].is_object());
    let error = &view["source"]["error"];
    assert_eq!(error["code"], "TOO_LARGE", "{error}");
    assert!(error["message"].as_str().unwrap().contains("[server] large_content_mib"), "{error}");
}
