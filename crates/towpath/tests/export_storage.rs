//! `towpath export` and `serve --export` to object storage: a real S3 server on loopback.

use std::process::Output;
use std::time::{Duration, Instant};

use crate::common::notes::{NOTES, eleven, put};
use crate::common::tree::{address, nginx};
use crate::common::{PATIENCE, TestFolder, get_from, stderr, stdout};
use crate::storage::{KEY, SECRET};

fn export(dir: &TestFolder, endpoint: &str, secret: &str, args: &[&str]) -> Output {
    let mut command = dir.command(&[&["export"], args].concat());
    command.env("AWS_ENDPOINT", endpoint).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1");
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", secret);
    command.output().unwrap()
}

fn follow(dir: &TestFolder, base: &str, path: &str, protocol: &str) -> String {
    let output = dir.run(&["follow", &format!("{base}{path}"), "--protocol", protocol, "--once"]);
    assert!(output.status.success(), "{base}{path}: {}", stderr(&output));
    // Pages of a snapshot may come in any order.
    let mut lines: Vec<String> = stdout(&output).replace(base, "").lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_is_followed_as_the_server_is() {
    let dir = TestFolder::new(&format!("{NOTES}[[feed]]\nid = \"files\"\n"));
    std::fs::create_dir_all(dir.path("storage/bucket")).unwrap();
    let locked = crate::storage::serve(&dir.path("storage"), true).await;
    let open = crate::storage::serve(&dir.path("storage"), false).await;
    let server = dir.serve();
    eleven(&server);
    assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &[], b"").status, 201);
    put(&server, "i12", "t12");
    let attachments = ["text/html", "image/svg+xml", "image/png"].map(|media_type| {
        let form = format!(
            "--b\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\na\r\n--b\r\nContent-Disposition: form-data; \
             name=\"file\"; filename=\"a\"\r\nContent-Type: {media_type}\r\n\r\n{media_type}\r\n--b--\r\n"
        );
        let multipart = [("Content-Type", "multipart/form-data; boundary=b")];
        let posted = server.ask("POST", "/feeds/files/items", &multipart, form.as_bytes());
        assert_eq!(posted.status, 200, "{}", posted.text());
        let line = server.json("/feeds/files/items/a?as=line");
        line["item"]["attachments"][0]["url"].as_str().unwrap().replace(&server.base, "")
    });
    drop(server);
    // A bucket stores some headers as metadata; the server in front of it restores them.
    let (port, base) = address();
    let first = export(&dir, &locked, SECRET, &["s3://bucket/my/tree", "--base-url", &base]);
    assert!(first.status.success(), "{}", stderr(&first));
    let again = export(&dir, &locked, SECRET, &["s3://bucket/my/tree", "--base-url", &base]);
    assert!(stderr(&again).contains("0 documents written"), "{}", stderr(&again));
    let location = format!(
        "location / {{ proxy_pass {open}/bucket/my/tree$uri; proxy_set_header Host {}; \
         add_header Link $upstream_http_x_amz_meta_link; add_header X-SUP-ID $upstream_http_x_amz_meta_supid; \
         add_header Towpath-Feed $upstream_http_x_amz_meta_feed; }}",
        open.trim_start_matches("http://")
    );
    let nginx = nginx(port, "", &location);
    let server = dir.serve();
    for (path, protocol) in [
        ("/diff/notes/head.json", "diffdelta"),
        ("/feeds/notes/replication", "replication"),
        ("/feeds/notes/snapshots/latest", "replication"),
        ("/feeds/notes/atom", "history"),
        ("/feeds/notes/feed.json", "history"),
    ] {
        assert_eq!(
            follow(&dir, &nginx.base, path, protocol),
            follow(&dir, &server.base, path, protocol),
            "{path}"
        );
    }
    for path in [
        "/feeds/notes/replication/pages/1",
        "/feeds/notes/atom/1",
        "/feeds/notes/atom/3",
        "/diff/notes/head.json",
    ] {
        let (here, there) = (get_from(&nginx.base, path, &[]), server.get(path));
        for name in ["content-type", "cache-control"] {
            assert_eq!(here.header(name), there.header(name), "{path}");
        }
    }
    // What a browser would run has no type of its own: a bucket sends no policy with it.
    for (path, media_type) in
        attachments.iter().zip(["application/octet-stream", "application/octet-stream", "image/png"])
    {
        assert_eq!(get_from(&nginx.base, path, &[]).header("content-type"), Some(media_type), "{path}");
    }
    // Protocols whose links are in the documents can be followed from the bucket itself.
    let bucket = format!("{open}/bucket/my/tree");
    drop(server);
    let moved = export(&dir, &locked, SECRET, &["s3://bucket/my/tree", "--base-url", &bucket]);
    assert!(moved.status.success(), "{}", stderr(&moved));
    for (path, protocol) in [("/diff/notes/head.json", "diffdelta"), ("/feeds/notes/rss", "history")] {
        assert_eq!(follow(&dir, &bucket, path, protocol).lines().count(), 12, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_errors_are_reported_plainly() {
    let dir = TestFolder::new(NOTES);
    std::fs::create_dir_all(dir.path("storage/bucket")).unwrap();
    let endpoint = crate::storage::serve(&dir.path("storage"), true).await;
    for (endpoint, secret, to, printed) in [
        (
            endpoint.as_str(),
            SECRET,
            "s3://nobucket/x",
            "s3://nobucket/x/.towpath/tree.json: there is no such bucket",
        ),
        (&endpoint, "wrong", "s3://bucket/x", "s3://bucket/x/.towpath/tree.json: the credentials"),
    ] {
        let output = export(&dir, endpoint, secret, &[to]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(printed), "{}", stderr(&output));
    }
    assert_eq!(std::fs::read_dir(dir.path("storage/bucket")).unwrap().count(), 0, "nothing half done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_continues_when_the_storage_is_back() {
    let dir = TestFolder::new(NOTES);
    std::fs::create_dir_all(dir.path("storage")).unwrap();
    let endpoint = crate::storage::serve(&dir.path("storage"), true).await;
    let mut command = dir.command(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--export",
        "s3://bucket",
        "--export-every",
        "100ms",
    ]);
    command.env("AWS_ENDPOINT", &endpoint).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
    let server = dir.start(command);
    eleven(&server);
    let wait = |done: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "{}", dir.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // The second failure is the one that must not be logged again.
    wait(&|| server.get("/metrics").text().contains("towpath_exports_failed_total 2"));
    assert_eq!(dir.log().matches("there is no such bucket").count(), 1, "printed of once: {}", dir.log());
    std::fs::create_dir(dir.path("storage/bucket")).unwrap();
    let object = dir.path("storage/bucket/diff/notes/head.json.object");
    wait(&|| std::fs::read(&object).is_ok_and(|body| body == server.get("/diff/notes/head.json").body));
    assert_eq!(server.stop(), Some(0));
}
