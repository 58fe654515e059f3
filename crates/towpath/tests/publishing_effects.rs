//! Effects of publishing beside the log, by every way to publish: what was scheduled is cancelled, and files come and go.

use serde_json::{Value, json};

use crate::common::web_session::Session;
use crate::common::{TestFolder, TestResponse, TestServer, stderr};

const CONFIG: &str = "[server]\ntokens = [\"t0ken\"]\n[[feed]]\nid = \"aa\"\n";
const TOKEN: (&str, &str) = ("Authorization", "Bearer t0ken");
const FAR: &str = "2999-01-01T00:00:00Z";

fn ask(server: &TestServer, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TestResponse {
    server.ask(method, path, &[&[TOKEN], headers].concat(), body.as_bytes())
}

fn put(server: &TestServer, id: &str, query: &str) {
    let answer = ask(server, "PUT", &format!("/feeds/aa/items/{id}?{query}"), &[], "text");
    assert!(answer.status < 300, "{}", answer.text());
}

fn scheduled(server: &TestServer) -> Vec<String> {
    let status = ask(server, "GET", "/feeds?status", &[], "").json();
    let list = status["feeds"][0]["scheduled"].as_array().cloned().unwrap_or_default();
    list.iter().map(|change| change["id"].as_str().unwrap().to_owned()).collect()
}

/// Posts a form of an item with files of these names, which all have the same bytes.
fn form(server: &TestServer, query: &str, id: &str, names: &[&str], bytes: &str) -> TestResponse {
    let mut body = format!("--b1\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\n{id}\r\n");
    for name in names {
        body += &format!(
            "--b1\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\nContent-Type: text/plain\r\n\r\n\
             {bytes}\r\n"
        );
    }
    body += "--b1--\r\n";
    let multipart = ("Content-Type", "multipart/form-data; boundary=b1");
    ask(server, "POST", &format!("/feeds/aa/items{query}"), &[multipart], &body)
}

/// Paths of an item's files.
fn files(server: &TestServer, id: &str) -> Vec<String> {
    let line = server.json(&format!("/feeds/aa/items/{id}?as=line"));
    let urls = line["item"]["attachments"].as_array().cloned().unwrap_or_default();
    urls.iter().map(|file| file["url"].as_str().unwrap().replace(&server.base, "")).collect()
}

#[test]
fn a_later_change_cancels_what_was_scheduled() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    for id in ["by-page", "page-deleted", "by-command", "command-deleted"] {
        put(&server, id, "title=Now");
        put(&server, id, &format!("title=Later&publish_at={FAR}"));
    }
    let page = Session::begin(&server);
    let version =
        |id: &str| server.json(&format!("/feeds/aa/items/{id}/versions"))["versions"][0]["seq"].to_string();
    let fields = format!("action=publish&id=by-page&title=New&version={}", version("by-page"));
    let published = page.send("/feeds/aa/publish", &fields);
    assert_eq!(published.status, 303, "{}", published.text());
    let fields = format!("id=page-deleted&version={}", version("page-deleted"));
    assert_eq!(page.send("/feeds/aa/delete", &fields).status, 303);
    assert_eq!(scheduled(&server), ["by-command", "command-deleted"]);
    // Without a server, the command writes to the folder itself.
    assert_eq!(server.stop(), Some(0));
    for command in [&["put", "aa", "by-command", "--title", "New"][..], &["delete", "aa", "command-deleted"]]
    {
        let done = dir.run(command);
        assert!(done.status.success(), "{}", stderr(&done));
    }
    let server = dir.serve();
    assert_eq!(scheduled(&server), Vec::<String>::new());
}

#[test]
fn a_refused_change_leaves_what_was_scheduled() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    put(&server, "other", "title=Other");
    put(&server, "a", &format!("title=Later&publish_at={FAR}"));
    let line = json!({"id": "a", "item": {"title": "Now"}}).to_string();
    let batch =
        ask(&server, "POST", "/feeds/aa/items?expect=9999", &[("Content-Type", "application/json")], &line);
    assert_eq!(batch.status, 409, "{}", batch.text());
    for method in ["PUT", "DELETE"] {
        let refused = ask(&server, method, "/feeds/aa/items/a", &[("If-Match", "\"9999\"")], "x");
        assert!([412, 404].contains(&refused.status), "{method}: {}", refused.text());
        assert_eq!(scheduled(&server), ["a"], "{method}");
    }
    put(&server, "a", "title=Now");
    assert_eq!(scheduled(&server), Vec::<String>::new());
}

#[test]
fn files_go_with_an_item_that_the_page_deletes() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    assert_eq!(form(&server, "", "a", &["f.txt"], "hello").status, 200);
    let file = files(&server, "a").remove(0);
    assert_eq!(server.get(&file).text(), "hello");
    let deleted = Session::begin(&server).send("/feeds/aa/delete", "id=a&version=1");
    assert_eq!(deleted.status, 303, "{}", deleted.text());
    assert_eq!((server.get("/feeds/aa/items/a").status, server.get(&file).status), (410, 404));
}

#[test]
fn files_of_an_item_that_is_published_again_in_the_same_batch_stay() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    assert_eq!(form(&server, "", "a", &["f.txt"], "hello").status, 200);
    let file = files(&server, "a").remove(0);
    let item = server.json("/feeds/aa/items/a?as=line")["item"].clone();
    let lines = json!([{"id": "a", "op": "delete"}, {"id": "a", "item": item}]).to_string();
    let done = ask(&server, "POST", "/feeds/aa/items", &[("Content-Type", "application/json")], &lines);
    assert_eq!((done.status, server.get(&file).status), (200, 200), "{}", done.text());
}

#[test]
fn files_outlast_a_deletion_that_came_before_their_item() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    for round in 0..60 {
        std::thread::scope(|scope| {
            scope.spawn(|| drop(ask(&server, "DELETE", "/feeds/aa/items/a", &[], "")));
            scope.spawn(|| {
                assert_eq!(form(&server, "", "a", &["f.txt"], &format!("hello {round}")).status, 200);
            });
        });
        if server.get("/feeds/aa/items/a").status == 410 {
            continue;
        }
        for file in files(&server, "a") {
            assert_eq!(server.get(&file).status, 200, "round {round}: {file}");
        }
    }
}

#[test]
fn a_refused_form_leaves_no_files() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    assert_eq!(form(&server, "", "a", &["f.txt"], "kept").status, 200);
    let kept = files(&server, "a").remove(0);
    let refused = form(&server, "?expect=9999", "a", &["f.txt", "g.txt"], "kept");
    assert_eq!(refused.status, 409, "{}", refused.text());
    // What was there before stays.
    assert_eq!(server.get(&kept).status, 200);
    let refused = form(&server, "?expect=9999", "a", &["f.txt"], "refused");
    assert_eq!(refused.status, 409, "{}", refused.text());
    let digest = |bytes: &str| {
        use sha2::Digest as _;
        hex::encode(sha2::Sha256::digest(bytes))
    };
    let path = kept.replace(&digest("kept"), &digest("refused"));
    assert_eq!((kept == path, server.get(&path).status), (false, 404));
}

#[test]
fn equal_bytes_have_every_name_and_the_newest_type() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let upload = |name: &str, media_type: &str| {
        use base64::Engine as _;
        let encoded = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let metadata =
            format!("id {},filename {},filetype {}", encoded("film"), encoded(name), encoded(media_type));
        let headers = [
            ("Tus-Resumable", "1.0.0"),
            ("Upload-Length", "4"),
            ("Upload-Metadata", metadata.as_str()),
            ("Content-Type", "application/offset+octet-stream"),
        ];
        let created = ask(&server, "POST", "/feeds/aa/uploads", &headers, "film");
        assert_eq!(created.status, 201, "{}", created.text());
        files(&server, "film").remove(0)
    };
    let (first, second) = (upload("one.bin", "application/octet-stream"), upload("two.html", "text/html"));
    assert_eq!(server.get("/feeds/aa/items/film").header("content-type"), Some("text/html"));
    assert_eq!(form(&server, "", "form", &["s1.txt", "s2.txt"], "same").status, 200);
    let both = files(&server, "form");
    // The form's file takes the place of an upload with the same bytes, and keeps its name.
    assert_eq!(form(&server, "", "film", &["three.txt"], "film").status, 200);
    let third = files(&server, "film").remove(0);
    assert_eq!(server.get(&third).text(), "film");
    assert_eq!(server.stop(), Some(0));
    let exported = dir.run(&["export", "tree", "--base-url", "http://127.0.0.1:9"]);
    assert!(exported.status.success(), "{}", stderr(&exported));
    for path in [&first, &second, &third, &both[0], &both[1]] {
        let path = path.replace("%2E", ".");
        assert!(dir.path("tree").join(path.trim_start_matches('/')).exists(), "{path}");
    }
}

#[test]
fn the_receipt_of_an_unchanged_item_has_its_time() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let receipt =
        |id: &str| -> Value { ask(&server, "PUT", &format!("/feeds/aa/items/{id}"), &[], "x").json() };
    let first = receipt("a");
    std::thread::sleep(std::time::Duration::from_millis(5));
    receipt("b");
    let again = receipt("a");
    assert_eq!((&again["unchanged"], &again["seq"]), (&json!(1), &first["seq"]));
    assert_eq!(again["modified"], first["modified"]);
}
