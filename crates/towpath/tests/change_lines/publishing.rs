//! Publishing as a content management system does: arrays, counts, addresses, times to come, foreign bodies, forms.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::common::waiting::until;
use crate::common::{TestFolder, TestResponse, TestServer, stderr};

const FEEDS: &str = "[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"blog\"\n[feed.publish]\ndeleted = \"/deleted_at\"\n\
    [feed.publish.json]\nitems = \"/post/current\"\nid = \"/uuid\"\ntitle = \"/title\"\nurl = \"/url\"\ncontent = \"/html\"\n\
    tags = \"/tags\"\npublished = \"/published_at\"\n";

const NDJSON: (&str, &str) = ("Content-Type", "application/x-ndjson");
const JSON: (&str, &str) = ("Content-Type", "application/json");

fn post(server: &TestServer, feed: &str, content_type: &str, body: &str) -> TestResponse {
    server.ask("POST", &format!("/feeds/{feed}/items"), &[("Content-Type", content_type)], body.as_bytes())
}

fn item(server: &TestServer, feed: &str, id: &str) -> Value {
    let answer = server.get(&format!("/feeds/{feed}/items/{id}?as=line"));
    assert_eq!(answer.status, 200, "{id}: {}", answer.text());
    answer.json()
}

fn counts(receipt: &TestResponse) -> [u64; 4] {
    assert!(receipt.status < 300, "{}", receipt.text());
    ["appended", "changed", "unchanged", "scheduled"].map(|name| receipt.json()[name].as_u64().unwrap_or(0))
}

#[test]
fn arrays_lines_and_documents_are_published_and_counted() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let array = json!([{"id": "a", "json": {"n": 1}}, {"id": "b"}, {"id": "c", "item": {"title": "C"}}]);
    assert_eq!(counts(&post(&server, "aa", JSON.1, &format!("\n {array:#}"))), [3, 0, 0, 0]);
    assert_eq!(item(&server, "aa", "a")["json"], json!({"n": 1}));
    let again =
        format!("{}\n{}\n", json!({"id": "a", "json": {"n": 1}}), json!({"id": "b", "item": {"title": "B"}}));
    assert_eq!(counts(&post(&server, "aa", "application/x-ndjson", &again)), [1, 1, 1, 0]);
    // One item over several lines, and what tools send as a form by default.
    assert_eq!(counts(&post(&server, "aa", JSON.1, &format!("{:#}", json!({"id": "d"})))), [1, 0, 0, 0]);
    let form = "application/x-www-form-urlencoded";
    assert_eq!(
        counts(&post(&server, "aa", form, &json!([{"id": "d", "op": "delete"}, {"id": "e"}]).to_string())),
        [2, 0, 0, 0]
    );
    for (body, part) in
        [("[{\"id\":\"x\"},", "array"), ("[1]", "item 1"), ("[{\"id\":\"x\"},{\"ids\":1}]", "item 2")]
    {
        let refused = post(&server, "aa", JSON.1, body);
        assert!(refused.status == 400 && refused.text().contains(part), "{body}: {}", refused.text());
    }
    assert_eq!(server.get("/feeds/aa/items/x").status, 404, "all or nothing");
    let many = format!("[{}]", vec!["{\"id\":\"m\"}"; 10_001].join(","));
    assert_eq!(post(&server, "aa", JSON.1, &many).status, 413);
}

#[test]
fn addresses_are_validated_with_a_pointer() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    for (line, pointer) in [
        (json!({"id": "a", "item": {"url": "/posts/1"}}), "/item/url"),
        (json!({"id": "a", "item": {"image": "javascript:alert(1)"}}), "/item/image"),
        (
            json!({"id": "a", "item": {"attachments": [{"url": "http://x.example/"}, {"url": "x.mp3"}]}}),
            "/item/attachments/1/url",
        ),
    ] {
        let refused = post(&server, "aa", "application/x-ndjson", &line.to_string());
        assert_eq!(
            (refused.status, &refused.json()["pointer"]),
            (400, &json!(pointer)),
            "{}",
            refused.text()
        );
        let refused = post(&server, "aa", JSON.1, &json!([{"id": "b"}, line]).to_string());
        assert_eq!(refused.json()["pointer"], format!("/1{pointer}"));
    }
    let put = |query: &str| server.ask("PUT", &format!("/feeds/aa/items/p?{query}"), &[JSON], b"{\"n\":1}");
    assert_eq!(put("url=ftp://x.example/").json()["parameter"], "url");
    assert_eq!(put("attachment=x").json()["parameter"], "attachment");
    let query = "url=https://x.example/p&image=http://x.example/i.png&attachment=http://x.example/1&attachment=http://x.example/2";
    assert_eq!(put(query).status, 201);
    let line = item(&server, "aa", "p");
    assert_eq!((&line["json"], &line["item"]["image"]), (&json!({"n": 1}), &json!("http://x.example/i.png")));
    assert_eq!(line["item"]["attachments"][1]["url"], "http://x.example/2");
    assert!(server.get("/feeds/aa/rss").text().contains("http://x.example/1"), "an enclosure");
    // What is copied from another's feed keeps what that feed has.
    let copied = dir.run_with(
        &["import", "aa", "-", "--server", &server.base],
        b"{\"id\":\"c\",\"item\":{\"url\":\"urn:x:1\"}}\n",
    );
    assert!(copied.status.success(), "{}", stderr(&copied));
    assert_eq!(item(&server, "aa", "c")["item"]["url"], "urn:x:1");
}

#[test]
fn a_line_is_put_and_patched() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let line = json!({"id": "a", "json": {"n": 1, "m": [1]}, "item": {"title": "A", "tags": ["x"]}});
    let path = "/feeds/aa/items/a?as=line";
    assert_eq!(server.ask("PUT", path, &[JSON], line.to_string().as_bytes()).status, 201);
    let other = server.ask("PUT", "/feeds/aa/items/b?as=line", &[JSON], line.to_string().as_bytes());
    assert_eq!((other.status, &other.json()["pointer"]), (400, &json!("/id")));
    let patch = |patch: Value| server.ask("PATCH", path, &[JSON], patch.to_string().as_bytes());
    let done =
        patch(json!({"json": {"m": null, "k": 2}, "item": {"title": null, "url": "http://x.example/"}}));
    assert_eq!(counts(&done)[..3], [1, 1, 0]);
    let line = item(&server, "aa", "a");
    assert_eq!(
        (&line["json"], &line["item"]),
        (&json!({"n": 1, "k": 2}), &json!({"url": "http://x.example/", "tags": ["x"]}))
    );
    assert_eq!(counts(&patch(json!({"item": {"tags": ["x"]}})))[..3], [0, 0, 1]);
    assert_eq!(patch(json!({"content": "text"})).status, 200);
    let line = item(&server, "aa", "a");
    assert_eq!(
        (&line["content"], &line["content_type"]),
        (&json!("text"), &json!("text/plain; charset=utf-8"))
    );
    assert_eq!(patch(json!({"content": null})).status, 200);
    assert_eq!(item(&server, "aa", "a")["content_type"], Value::Null);
    assert_eq!(patch(json!({"id": "z"})).json()["pointer"], "/id");
    assert_eq!(patch(json!({"item": {"url": "x"}})).json()["pointer"], "/item/url");
    assert_eq!(patch(json!({"titel": "x"})).status, 400);
    assert_eq!(server.ask("PATCH", "/feeds/aa/items/none?as=line", &[JSON], b"{}").status, 404);
    let stale = server.ask("PATCH", path, &[JSON, ("If-Match", "\"1\"")], b"{\"json\":1}");
    assert_eq!(stale.status, 412);
}

fn scheduled(server: &TestServer) -> Vec<String> {
    let status = server.json("/feeds?status");
    let feed = status["feeds"].as_array().unwrap().iter().find(|feed| feed["id"] == "aa").unwrap();
    let list = feed["scheduled"].as_array().cloned().unwrap_or_default();
    list.iter().map(|change| change["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_scheduled_appears_at_its_time() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let at =
        |milliseconds: i64| (Timestamp::now() + jiff::SignedDuration::from_millis(milliseconds)).to_string();
    let far = at(3_600_000);
    let lines = json!([{"id": "now", "publish_at": at(-5000)}, {"id": "far", "publish_at": far, "item": {"title": "Far"}},
        {"id": "gone", "publish_at": far}, {"id": "replaced", "publish_at": far, "item": {"title": "Old"}}]);
    assert_eq!(counts(&post(&server, "aa", JSON.1, &lines.to_string())), [1, 0, 0, 3]);
    let accepted = server.ask("PUT", &format!("/feeds/aa/items/put?publish_at={far}&title=Put"), &[], b"x");
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    assert_eq!(scheduled(&server), ["far", "gone", "put", "replaced"]);
    for id in ["far", "gone", "put"] {
        assert_eq!(server.get(&format!("/feeds/aa/items/{id}")).status, 404, "{id} is not there yet");
    }
    // Deleted before its time; replaced by a put for now, and by one for another time.
    let cancelled = server.ask("DELETE", "/feeds/aa/items/gone", &[], b"");
    assert_eq!((cancelled.status, &cancelled.json()["cancelled"]), (200, &json!(1)));
    assert_eq!(server.ask("DELETE", "/feeds/aa/items/gone", &[], b"").status, 404);
    assert_eq!(server.ask("PUT", "/feeds/aa/items/replaced?title=New", &[], b"").status, 201);
    let soon = json!([{"id": "far", "publish_at": at(1500), "item": {"title": "Soon"}}]);
    assert_eq!(counts(&post(&server, "aa", JSON.1, &soon.to_string())), [0, 0, 0, 1]);
    assert_eq!(scheduled(&server), ["far", "put"]);
    // It survives a crash.
    server.kill();
    let server = dir.serve();
    until("it is published", || server.get("/feeds/aa/items/far").status == 200);
    assert_eq!(item(&server, "aa", "far")["item"]["title"], "Soon");
    until("its row is gone", || scheduled(&server) == ["put"]);
    assert_eq!(item(&server, "aa", "replaced")["item"]["title"], "New");
    // A deletion has its time, too.
    let end = json!([{"id": "far", "op": "delete", "publish_at": at(300)}]);
    assert_eq!(counts(&post(&server, "aa", JSON.1, &end.to_string())), [0, 0, 0, 1]);
    until("it is deleted", || server.get("/feeds/aa/items/far").status == 410);
    assert_eq!(server.ask("PUT", "/feeds/aa/items/x?publish_at=soon", &[], b"").status, 400);
    // Read without a server, the time would be ignored.
    let refused = dir.run_with(
        &["import", "aa", "-", "--server", &server.base],
        b"{\"id\":\"x\",\"publish_at\":\"2099-01-01T00:00:00Z\"}\n",
    );
    assert!(stderr(&refused).contains("publish_at is for a running server"), "{}", stderr(&refused));
    // Strangers do not learn what is to come.
    dir.write("towpath.toml", format!("[server]\ntokens = [\"secret\"]\n{FEEDS}").as_bytes());
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    assert!(scheduled(&server).is_empty());
    let seen = server.ask("GET", "/feeds?status", &[("Authorization", "Bearer secret")], b"").text();
    assert!(seen.contains("\"scheduled\":[{\"id\":\"put\",\"op\":\"put\",\"publish_at\":"), "{seen}");
}

#[test]
fn bodies_of_other_programs_are_mapped() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let hook = |current: Value| json!({"post": {"current": current, "previous": {}}}).to_string();
    let first = json!({"uuid": "p1", "title": "Hello", "url": "https://x.example/p1", "html": "<p>Hi</p>", "tags": ["a"],
        "published_at": "2026-01-02T03:04:05Z", "n": 12345678901234567890_u64});
    assert_eq!(counts(&post(&server, "blog", JSON.1, &hook(first.clone()))), [1, 0, 0, 0]);
    let line = item(&server, "blog", "p1");
    assert_eq!((&line["content"], &line["content_type"]), (&json!("<p>Hi</p>"), &json!("text/html")));
    assert_eq!(
        (&line["item"]["published"], &line["item"]["tags"]),
        (&json!("2026-01-02T03:04:05Z"), &json!(["a"]))
    );
    assert_eq!(counts(&post(&server, "blog", "application/json; charset=utf-8", &hook(first))), [0, 0, 1, 0]);
    let two = json!([{"uuid": "p1", "deleted_at": "2026-02-01", "n": "1e400"}, {"uuid": 2, "title": "Two", "deleted_at": null}]);
    assert_eq!(
        counts(&post(&server, "blog", JSON.1, &hook(two).replace("\"1e400\"", "1e400"))),
        [2, 0, 0, 0]
    );
    assert_eq!(server.get("/feeds/blog/items/p1").status, 410);
    assert_eq!(item(&server, "blog", "2")["item"]["title"], "Two");
    for (body, pointer) in [
        ("{\"ping\":true}".to_owned(), "/post/current"),
        (hook(json!("text")), "/post/current"),
        (hook(json!({"title": "no id"})), "/uuid"),
        (hook(json!({"uuid": "u", "url": "mailto:a@x.example"})), "/url"),
    ] {
        let refused = post(&server, "blog", JSON.1, &body);
        assert_eq!(
            (refused.status, &refused.json()["pointer"]),
            (400, &json!(pointer)),
            "{}",
            refused.text()
        );
    }
    // Lines are still taken, by their own type or by the address.
    assert_eq!(counts(&post(&server, "blog", "application/x-ndjson", "{\"id\":\"own\"}")), [1, 0, 0, 0]);
    let own = server.ask("POST", "/feeds/blog/items?as=line", &[JSON], b"[{\"id\":\"own2\"}]");
    assert_eq!(counts(&own), [1, 0, 0, 0]);
    dir.write("bad.toml", FEEDS.replace("\"/uuid\"", "\"uuid\"").as_bytes());
    let bad = dir.run(&["status", "--config", "bad.toml"]);
    assert!(stderr(&bad).contains("publish"), "{}", stderr(&bad));
}

/// A change is made as it was asked for, or not at all.
#[test]
fn unknown_and_repeated_parameters_are_refused() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let item = "/feeds/aa/items/x";
    for (method, address, parameter) in [
        ("PUT", format!("{item}?title=a&title=b"), "title"),
        ("PUT", format!("{item}?titel=a"), "titel"),
        ("PUT", format!("{item}?published=never"), "published"),
        ("PUT", format!("{item}?as=line&title=a"), "title"),
        ("PATCH", format!("{item}?title=a"), "title"),
        ("DELETE", format!("{item}?publish_at=2030-01-01T00:00:00Z"), "publish_at"),
        ("POST", "/feeds/aa/items?expected=7".to_owned(), "expected"),
        ("POST", "/feeds/aa/items?expect=0&expect=1".to_owned(), "expect"),
    ] {
        let refused = server.ask(method, &address, &[NDJSON], b"{\"id\":\"x\"}");
        let told = refused.json();
        assert_eq!(
            (refused.status, &told["parameter"]),
            (400, &json!(parameter)),
            "{method} {address}: {told}"
        );
    }
    assert_eq!(server.get(item).status, 404);
    let near = server.ask("POST", "/feeds/aa/items?expected=7", &[NDJSON], b"{\"id\":\"x\"}");
    assert!(near.text().contains("did you mean expect?"), "{}", near.text());
    let many = server.ask("PUT", &format!("{item}?tag=a&tag=b&author=A&author=B&title=t"), &[], b"x");
    assert_eq!(many.status, 201, "{}", many.text());
}

#[test]
fn forms_with_and_without_files() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let form = "application/x-www-form-urlencoded";
    let text = "id=f%201&title=A+form&author=Ann&tag=x&tag=y&content=%3Cb%3E&content_type=text/html&url=&published=2026-01-01T00:00:00Z";
    assert_eq!(counts(&post(&server, "aa", form, text)), [1, 0, 0, 0]);
    let line = item(&server, "aa", "f%201");
    assert_eq!((&line["content"], &line["item"]["tags"]), (&json!("<b>"), &json!(["x", "y"])));
    for (text, part) in
        [("title=x", "id"), ("id=a&colour=red", "colour"), ("id=a&json={", "json"), ("id=a&url=x", "url")]
    {
        let refused = post(&server, "aa", form, text);
        assert!(refused.status == 400 && refused.text().contains(part), "{text}: {}", refused.text());
    }
    // Numbers stay as written, in forms and when another member is patched.
    let written = r#"{"n":1e400,"m":12345678901234567890123,"f":1.50}"#;
    assert_eq!(counts(&post(&server, "aa", form, &format!("id=numbers&json={written}"))), [1, 0, 0, 0]);
    let patch = ("Content-Type", "application/merge-patch+json");
    let address = "/feeds/aa/items/numbers";
    let patched =
        server.ask("PATCH", &format!("{address}?as=line"), &[patch], b"{\"item\":{\"title\":\"N\"}}");
    assert!((200..300).contains(&patched.status), "{}", patched.text());
    assert_eq!(server.get(address).text(), written);
    let part =
        |head: &str, body: &str| format!("--b1\r\nContent-Disposition: form-data; {head}\r\n\r\n{body}\r\n");
    let body = part("name=\"id\"", "m")
        + &part("name=\"title\"", "Ein Bild é")
        + &part("name=\"content\"; filename=\"a.md\"\r\nContent-Type: text/markdown", "# A")
        + &part("name=\"image\"; filename=\"i.png\"\r\nContent-Type: image/png", "PNG")
        + &part("name=\"file\"; filename=\"../w x.html\"\r\nContent-Type: text/html", "<script>1</script>")
        + &part("name=\"none\"; filename=\"\"\r\nContent-Type: application/octet-stream", "")
        + "--b1--\r\n";
    let multipart = "multipart/form-data; boundary=b1";
    assert_eq!(counts(&post(&server, "aa", multipart, &body)), [1, 0, 0, 0]);
    let line = item(&server, "aa", "m");
    assert_eq!((&line["content"], &line["item"]["title"]), (&json!("# A"), &json!("Ein Bild é")));
    let file = &line["item"]["attachments"][0];
    assert_eq!(
        (&file["title"], &file["size"], &file["media_type"]),
        (&json!("w x.html"), &json!(18), &json!("text/html"))
    );
    assert!(file["url"].as_str().unwrap().contains(file["sha256"].as_str().unwrap()), "{file}");
    let path = |url: &Value| url.as_str().unwrap().strip_prefix(&server.base).unwrap().to_owned();
    let (file, image) = (path(&file["url"]), path(&line["item"]["image"]));
    let answer = server.get(&file);
    assert_eq!((answer.status, answer.text().as_str()), (200, "<script>1</script>"));
    // A stranger's page must not run here.
    assert!(answer.header("content-security-policy").unwrap().contains("sandbox"));
    assert!(answer.header("cache-control").unwrap().contains("immutable"));
    assert_eq!(server.get(&image).header("content-type"), Some("image/png"));
    // The same form again changes nothing, and the files go with their item.
    assert_eq!(counts(&post(&server, "aa", multipart, &body)), [0, 0, 1, 0]);
    assert_eq!(server.get(&file.replace("/feeds/aa/", "/feeds/blog/")).status, 404);
    assert_eq!(server.ask("DELETE", "/feeds/aa/items/m", &[], b"").status, 200);
    assert_eq!((server.get(&file).status, server.get(&image).status), (404, 404));
    assert_eq!(post(&server, "aa", "multipart/form-data", &body).status, 400);
    assert_eq!(post(&server, "aa", multipart, "--b1\r\nContent-Disp").status, 400);
    let large =
        part("name=\"id\"", "l") + &part("name=\"f\"; filename=\"f\"", &"x".repeat(17 << 20)) + "--b1--\r\n";
    assert_eq!(post(&server, "aa", multipart, &large).status, 413);
}

#[test]
fn the_command_line_validates_addresses_as_http_does() {
    let dir = TestFolder::new("[[feed]]\nid = \"aa\"\n");
    // Without a server, straight into the folder.
    for bad in ["/19", "a.example", "javascript:alert(1)"] {
        let put = dir.run(&["put", "aa", "1", "--url", bad]);
        assert_eq!(put.status.code(), Some(2));
        assert!(stderr(&put).contains("--url") && stderr(&put).contains("http"), "{}", stderr(&put));
    }
    let put = dir.run(&["put", "aa", "1", "--url", "https://a.example/1"]);
    assert!(put.status.success(), "{}", stderr(&put));
}
