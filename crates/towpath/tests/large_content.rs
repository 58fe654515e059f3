//! `towpath follow --large-content` of contents that a publisher keeps as files: by every protocol, for one feed and
//! many, into destinations, and after a kill.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Runtime;
use towpath_client::{Follow, FollowEvent};

use crate::callback::push_follow::PushFollow;
use crate::common::{TestFolder, TestServer, lines, stderr, wait_until};
use crate::raw_server::{RawServer, ReceivedRequest, ScriptStep, answer, send};

const CONFIG: &str = "[[feed]]\nid = \"notes\"\n[[feed]]\nid = \"films\"\n";

/// Server of files, in the background.
pub(crate) struct FileServer {
    pub(crate) server: RawServer,
    _runtime: Runtime,
}

impl FileServer {
    pub(crate) fn start(
        script: impl Fn(&ReceivedRequest) -> Vec<ScriptStep> + Send + Sync + 'static,
    ) -> Self {
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(RawServer::start(script));
        Self { server, _runtime: runtime }
    }

    /// Returns the line of an item whose content is the film.
    fn film(&self, id: &str) -> Value {
        let file = json!({"url": self.server.url("/film.mp4"), "media_type": "video/mp4",
            "size": content().len(), "title": "film.mp4", "sha256": digest()});
        json!({"id": id, "item": {"title": "A film", "attachments": [file]}})
    }
}

fn content() -> Vec<u8> {
    (0..500_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn digest() -> String {
    Sha256::digest(content()).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn publish(server: &TestServer, feed: &str, lines: &[Value]) {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &[], body.as_bytes());
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
}

/// Returns the first attachment of a film's line, and checks that it is whole.
fn downloaded(dir: &TestFolder, line: &Value) -> Value {
    let file = line["item"]["attachments"][0].clone();
    let path = url::Url::parse(file["url"].as_str().unwrap()).unwrap().to_file_path().unwrap();
    assert_eq!(path, std::fs::canonicalize(dir.path("large")).unwrap().join(digest()), "{line}");
    assert_eq!(std::fs::read(path).unwrap(), content());
    assert_eq!(std::fs::read_dir(dir.path("large")).unwrap().count(), 1, "nothing else is left");
    assert_eq!((line.get("content"), &file["size"]), (None, &json!(content().len())));
    file
}

#[test]
fn every_protocol_downloads_files() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let files = FileServer::start(|_| answer("200 OK", "", content()));
    publish(&server, "notes", &[json!({"id": "a", "content": "1"}), files.film("film"), json!({"id": "b"})]);
    let url = format!("{}/feeds/notes", server.base);
    for (count, protocol) in ["smart", "replication", "diffdelta", "history", "rss"].iter().enumerate() {
        let mut told = Vec::new();
        wait_until("the protocol has the film", || {
            let args = ["follow", &url, "--protocol", protocol, "--once", "--large-content", "large"];
            let output = dir.run(&args);
            assert_eq!(output.status.code(), Some(0), "{protocol}: {}", stderr(&output));
            told = lines(&output);
            told.len() == 3
        });
        let film = told.iter().find(|line| line["id"] == "film").unwrap();
        let file = downloaded(&dir, film);
        assert_eq!(
            (&file["title"], &file["media_type"]),
            (&json!("film.mp4"), &json!("video/mp4")),
            "{protocol}"
        );
        assert_eq!(files.server.asked().len(), count + 1, "{protocol}");
        std::fs::remove_dir_all(dir.path("large")).unwrap();
    }
    // Without a folder the line has the publisher's address.
    let told = lines(&dir.run(&["follow", &url, "--once"]));
    let film = told.iter().find(|line| line["id"] == "film").unwrap();
    assert_eq!(film["item"]["attachments"][0]["url"], json!(files.server.url("/film.mp4")));
    assert_eq!(files.server.asked().len(), 5);
}

/// The builder's streams and its way into a destination.
#[test]
fn the_builder_downloads_files() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let files = FileServer::start(|_| answer("200 OK", "", content()));
    publish(&server, "notes", &[json!({"id": "a", "content": "1"}), files.film("film")]);
    let follow =
        || Follow::new(format!("{}/feeds/notes", server.base)).large_content(dir.path("large")).once();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let mut changes = follow().changes();
        let mut told = Vec::new();
        while let Some(change) = changes.try_next().await.unwrap() {
            told.push(serde_json::from_slice::<Value>(&change.to_json()).unwrap());
            changes.acknowledge(&change);
        }
        assert_eq!(told.len(), 2);
        let file = downloaded(&dir, &told[1]);
        let mut stream = follow().open().await.unwrap();
        let mut streamed = Vec::new();
        while let Some(event) = stream.next().await.unwrap() {
            if let FollowEvent::Change(change) = event {
                streamed.push(serde_json::to_value(change.line()).unwrap());
            }
        }
        assert_eq!(downloaded(&dir, &streamed[1]), file);
        let copy = format!("dir:{}", dir.path("copy").display());
        follow().into_sink(towpath_sinks::open(&copy.parse().unwrap())).await.unwrap();
        let line = std::fs::read(dir.path("copy/notes/film.json")).unwrap();
        assert_eq!(downloaded(&dir, &serde_json::from_slice(&line).unwrap()), file);
        let nowhere = follow().large_content("").open().await.unwrap_err();
        assert!(nowhere.to_string().contains("the folder"), "{nowhere}");
    });
    assert_eq!(files.server.asked().len(), 1);
}

/// A SUP document names the feed that has a film now, and only that one is polled.
#[test]
fn a_follow_that_sup_leads_downloads_files() {
    let dir = TestFolder::new(CONFIG);
    let author = dir.serve();
    let documents: Arc<Mutex<[Vec<u8>; 2]>> = Arc::default();
    let (served, moved) = (documents.clone(), Arc::new(Mutex::new(json!([]))));
    let updates = moved.clone();
    let origin = FileServer::start(move |asked| {
        let feed = match asked.path.as_str() {
            "/sup.json" => {
                let now = jiff::Timestamp::now();
                let since = now - jiff::SignedDuration::from_secs(60);
                let document = json!({"updates": *updates.lock().unwrap(), "period": 10, "since_time": since,
                    "updated_time": now});
                return answer("200 OK", "Content-Type: application/json\r\n", document.to_string());
            }
            "/film.mp4" => return answer("200 OK", "", content()),
            "/notes" => 0,
            _ => 1,
        };
        let head = format!(
            "Content-Type: application/feed+json\r\n\
             Link: </sup.json#{feed}>; rel=\"http://api.friendfeed.com/2008/03#sup\"\r\n"
        );
        answer("200 OK", &head, served.lock().unwrap()[feed].clone())
    });
    let serve = |lines: &[(&str, Value)]| {
        for (feed, line) in lines {
            publish(&author, feed, std::slice::from_ref(line));
        }
        let documents_now =
            ["notes", "films"].map(|feed| author.get(&format!("/feeds/{feed}/feed.json")).body);
        *documents.lock().unwrap() = documents_now;
    };
    serve(&[("notes", json!({"id": "a", "content": "1"})), ("films", json!({"id": "b", "content": "2"}))]);
    let urls = ["/notes", "/films"].map(|path| origin.server.url(path));
    let args =
        ["follow", &urls[0], &urls[1], "--protocol", "rss", "--every", "1h", "--large-content", "large"];
    let mut child = dir.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || serde_json::from_str::<Value>(&told.next().unwrap().unwrap()).unwrap();
    line();
    line();
    let asked = |path: &str| origin.server.asked().iter().filter(|asked| asked.path == path).count();
    let before = asked("/notes");
    serve(&[("films", origin.film("film"))]);
    *moved.lock().unwrap() = json!([["1", "u2"]]);
    let film = line();
    child.kill().unwrap();
    child.wait().unwrap();
    downloaded(&dir, &film);
    assert_eq!((asked("/film.mp4"), asked("/notes")), (1, before));
}

#[test]
fn a_push_downloads_files() {
    let dir = TestFolder::new(&format!("[server]\nallow_private_callbacks = true\n{CONFIG}"));
    let server = dir.serve();
    let files = FileServer::start(|_| answer("200 OK", "", content()));
    publish(&server, "notes", &[json!({"id": "a"})]);
    let url = format!("{}/feeds/notes/items", server.base);
    let following = PushFollow::start_with(&dir, &url, &["--large-content", "large"]);
    following.wait_for("a");
    let pushes = || {
        let metrics = server.get("/metrics").text();
        let count = metrics.lines().find_map(|line| line.strip_prefix("towpath_pushes_ok_total "));
        count.unwrap().parse::<u64>().unwrap()
    };
    wait_until("a change is pushed", || {
        publish(&server, "notes", &[json!({"id": "probe", "content": fastrand::u64(..).to_string()})]);
        std::thread::sleep(Duration::from_millis(100));
        pushes() > 0
    });
    following.wait_for("probe");
    publish(&server, "notes", &[files.film("film")]);
    following.wait_for("film");
    downloaded(&dir, following.lines().last().unwrap());
    publish(&server, "notes", &[json!({"id": "after"})]);
    following.wait_for("after");
    assert_eq!(files.server.asked().len(), 1);
}

#[test]
fn several_feeds_share_the_folder() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let files = FileServer::start(|_| {
        let mut steps = vec![ScriptStep::Pause(Duration::from_millis(300))];
        steps.extend(answer("200 OK", "", content()));
        steps
    });
    let urls = ["notes", "films"].map(|feed| {
        publish(&server, feed, &[files.film(feed)]);
        format!("{}/feeds/{feed}/items", server.base)
    });
    let args = ["follow", &urls[0], &urls[1], "--once", "--large-content", "large"];
    let told = lines(&dir.run(&args));
    assert_eq!(told.len(), 2);
    told.iter().for_each(|line| drop(downloaded(&dir, line)));
    assert_eq!(files.server.asked().len(), 1, "one of both downloads it");
    let into = dir.run(&[&args[..], &["--into", "dir:copy"]].concat());
    assert_eq!(into.status.code(), Some(0), "{}", stderr(&into));
    assert_eq!(files.server.asked().len(), 1);
    for feed in urls {
        let folders: Vec<PathBuf> =
            std::fs::read_dir(dir.path("copy")).unwrap().map(|entry| entry.unwrap().path()).collect();
        let id = if feed.contains("notes") { "notes" } else { "films" };
        let found = folders.iter().find_map(|folder| std::fs::read(folder.join(format!("{id}.json"))).ok());
        downloaded(&dir, &serde_json::from_slice(&found.unwrap()).unwrap());
    }
}

#[test]
fn destinations_get_the_files() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let files = FileServer::start(|_| answer("200 OK", "", content()));
    publish(&server, "notes", &[files.film("film"), json!({"id": "b", "content": "2"})]);
    let url = format!("{}/feeds/notes", server.base);
    for destination in ["dir:copy", "sqlite:copy.db", "exec:tee -a lines"] {
        let into = dir.run(&["follow", &url, "--once", "--large-content", "large", "--into", destination]);
        assert_eq!(into.status.code(), Some(0), "{destination}: {}", stderr(&into));
    }
    let line = std::fs::read(dir.path("copy/notes/film.json")).unwrap();
    let file = downloaded(&dir, &serde_json::from_slice(&line).unwrap());
    let line = std::fs::read_to_string(dir.path("lines")).unwrap();
    let line: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!(downloaded(&dir, &line), file);
    let copy = rusqlite::Connection::open(dir.path("copy.db")).unwrap();
    let extra: String =
        copy.query_row("SELECT extra FROM items WHERE id = 'film'", [], |row| row.get(0)).unwrap();
    let extra: Value = serde_json::from_str(&extra).unwrap();
    assert_eq!(extra["attachments"], json!([file]));
    assert_eq!(files.server.asked().len(), 1);
}

#[test]
fn a_killed_download_is_continued() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let half = content().len() / 2;
    let files = FileServer::start(move |asked| {
        if asked.head.contains("if-range: \"one\"") {
            let range =
                format!("Content-Range: bytes {half}-{}/{}\r\n", content().len() - 1, content().len());
            return answer("206 Partial Content", &range, &content()[half..]);
        }
        let head = format!("HTTP/1.1 200 OK\r\nETag: \"one\"\r\nContent-Length: {}\r\n\r\n", content().len());
        vec![send(head), send(&content()[..half]), ScriptStep::Pause(Duration::from_secs(600))]
    });
    publish(&server, "notes", &[json!({"id": "a"}), files.film("film"), json!({"id": "b"})]);
    let url = format!("{}/feeds/notes", server.base);
    let args = ["follow", &url, "--large-content", "large", "--state", "notes.state"];
    let mut child = dir.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let part = dir.path("large").join(format!("{}.part", digest()));
    wait_until("half of the file is there", || part.metadata().is_ok_and(|found| found.len() == half as u64));
    child.kill().unwrap();
    let first = lines(&child.wait_with_output().unwrap());
    assert_eq!(first.iter().map(|line| &line["id"]).collect::<Vec<_>>(), ["a"]);
    let second = lines(&dir.run(&[&args[..], &["--once"]].concat()));
    // The document that was not finished comes again.
    assert_eq!(second.iter().map(|line| &line["id"]).collect::<Vec<_>>(), ["a", "film", "b"]);
    downloaded(&dir, &second[1]);
    let asked = files.server.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked[1].head.contains(&format!("range: bytes={half}-\r\n")), "{}", asked[1].head);
}

#[test]
fn a_file_that_cannot_be_had_is_told() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let files = FileServer::start(|_| answer("404 Not Found", "", "no"));
    publish(&server, "notes", &[files.film("film"), json!({"id": "b"})]);
    let url = format!("{}/feeds/notes", server.base);
    let args = ["follow", &url, "--once", "--large-content", "large"];
    for (more, why) in [(&[][..], "404"), (&["--limit", "file_mib=1"], "file_mib")] {
        let output = dir.run(&[&args[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let told = lines(&output);
        assert_eq!(told.len(), 2);
        assert_eq!(told[0]["item"]["attachments"][0]["url"], json!(files.server.url("/film.mp4")));
        let warned = stderr(&output);
        assert!(warned.contains("film") && warned.contains(why), "{warned}");
    }
    // A folder that cannot be made ends the follow: the line must not come without its file.
    std::fs::write(dir.path("file"), "").unwrap();
    let failed = dir.run(&["follow", &url, "--once", "--large-content", "file/within"]);
    assert_eq!((failed.status.code(), lines(&failed).len()), (Some(2), 0));
    assert!(stderr(&failed).contains("cannot write a large content to"), "{}", stderr(&failed));
}

#[test]
fn a_busy_server_of_files_fails_its_own_feed() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let files = FileServer::start(|_| answer("503 Service Unavailable", "Retry-After: 3600\r\n", "busy"));
    publish(&server, "films", &[json!({"id": "a"}), files.film("film"), json!({"id": "b"})]);
    publish(&server, "notes", &[json!({"id": "c"})]);
    let urls = ["films", "notes"].map(|feed| format!("{}/feeds/{feed}/items", server.base));
    let args = ["follow", &urls[0], &urls[1], "--once", "--large-content", "large", "--state", "states"];
    for _ in 0..2 {
        let output = dir.run(&args);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains("/film.mp4: the server answers 503"), "{}", stderr(&output));
        let mut ids: Vec<Value> = lines(&output).iter().map(|line| line["id"].clone()).collect();
        ids.retain(|id| id != "c");
        // The position stays before the film, so nothing after it is told.
        assert_eq!(ids, ["a"]);
    }
}
