//! Followers read an exported tree as they read the server: from nginx with the generated configuration, and from a
//! plain file server.

use std::process::Output;

use crate::common::notes::{NOTES, delete, eleven, put};
use crate::common::tree::{Process, address, files, nginx_of, paths};
use crate::common::{TestFolder, TestResponse, TestServer, free_port, stderr, stdout};

/// A server with a feed that has history, its tree, and the tree's address.
fn exported() -> (TestFolder, TestServer, u16, String) {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    eleven(&server);
    delete(&server, "i2");
    put(&server, "i3", "t3again");
    assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &[], b"").status, 201);
    put(&server, "i12", "t12");
    drop(server);
    let (port, base) = address();
    let done = dir.run(&["export", "tree", "--base-url", &base]);
    assert!(done.status.success(), "{}", stderr(&done));
    let server = dir.serve_at(free_port());
    (dir, server, port, base)
}

/// Output of a follower, without the server's address.
fn follow(dir: &TestFolder, base: &str, path: &str, protocol: &str) -> String {
    let url = format!("{base}{path}");
    let output = dir.run(&["follow", &url, "--protocol", protocol, "--once"]);
    assert!(output.status.success(), "{protocol} {url}: {}", stderr(&output));
    let lines = stdout(&output).replace(base, "");
    assert!(lines.lines().count() >= 11, "{protocol} {url}: {lines}");
    // Pages of a snapshot may come in any order.
    if !path.contains("/snapshots/") {
        return lines;
    }
    let mut sorted: Vec<&str> = lines.lines().collect();
    sorted.sort_unstable();
    sorted.join("\n")
}

fn get(tree: &Process, path: &str, headers: &[(&str, &str)]) -> TestResponse {
    crate::common::get_from(&tree.base, path, headers)
}

#[test]
fn followers_read_from_nginx_what_they_read_from_the_server() {
    let (dir, server, port, base) = exported();
    let nginx = nginx_of(port, &dir.path("tree"));
    for (path, protocol) in [
        ("/diff/notes/head.json", "diffdelta"),
        ("/diff/head.json", "diffdelta"),
        ("/feeds/notes/replication", "replication"),
        ("/feeds/notes/snapshots/latest", "replication"),
        ("/feeds/notes/atom", "history"),
        ("/feeds/notes/rss", "history"),
        ("/feeds/notes/feed.json", "history"),
    ] {
        let expected = follow(&dir, &server.base, path, protocol);
        assert_eq!(follow(&dir, &nginx.base, path, protocol), expected, "{path}");
    }
    // Every relevant header equals the server's.
    for path in paths(&dir.path("tree")) {
        let (here, there) = (get(&nginx, &path, &[]), server.get(&path));
        assert_eq!(here.status, 200, "{path}");
        let own = ["/sup/", "/feeds"];
        let is_own = own.iter().any(|start| path == *start || path.starts_with("/sup/"));
        if !is_own {
            assert_eq!(there.status, 200, "{path}");
            assert_eq!(here.header("content-type"), there.header("content-type"), "{path}");
        }
        let is_page = path.contains("/pages/") || path.ends_with("/replication");
        if is_page {
            let links = |answer: &TestResponse, base: &str| {
                let lines = answer.headers.iter().filter(|(name, _)| name == "link");
                // A tree has no event stream.
                let lines = lines.filter(|(_, line)| !line.contains("text/event-stream"));
                let lines = lines.map(|(_, line)| line.replace(base, "").replace("?seconds=60", ""));
                let mut lines: Vec<String> =
                    // SUP ids are derived from the feed's address, which differs.
                    lines.map(|line| line.split('#').next().unwrap().to_owned()).collect();
                lines.sort();
                lines
            };
            assert_eq!(links(&here, &base), links(&there, &server.base), "{path}");
            assert!(here.header("x-sup-id").unwrap().starts_with(&format!("{base}/sup.json#")), "{path}");
        }
        if there.header("cache-control").is_some() && !is_own {
            assert_eq!(here.header("cache-control"), there.header("cache-control"), "{path}");
        }
    }
    // The compressed body decompresses to the identity body.
    let path = "/diff/notes/latest.json";
    let zipped = get(&nginx, path, &[("accept-encoding", "gzip")]);
    assert_eq!(zipped.header("content-encoding"), Some("gzip"));
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&zipped.body[..]), &mut plain).unwrap();
    assert_eq!(plain, get(&nginx, path, &[]).body);
    let etag = get(&nginx, path, &[]).header("etag").unwrap().to_owned();
    assert_eq!(get(&nginx, path, &[("if-none-match", &etag)]).status, 304);
    // A page that retention dropped is gone; one that never was is not there.
    for folder in ["atom", "replication/pages"] {
        let marks = dir.path("tree").join(".towpath/gone/feeds/notes").join(folder);
        std::fs::create_dir_all(&marks).unwrap();
        std::fs::write(marks.join("98.gone"), b"").unwrap();
        assert_eq!(get(&nginx, &format!("/feeds/notes/{folder}/98"), &[]).status, 410, "{folder}");
        assert_eq!(get(&nginx, &format!("/feeds/notes/{folder}/99"), &[]).status, 404, "{folder}");
    }
    // Files for the exporter and the web server are no documents.
    for hidden in ["/.towpath/tree.json", "/.towpath/towpath.conf", "/_headers", "/nothing", "/feeds/nothing"]
    {
        assert_eq!(get(&nginx, hidden, &[]).status, 404, "{hidden}");
    }
}

#[test]
fn nginx_needs_no_reload_when_the_tree_changes() {
    let (dir, server, port, base) = exported();
    let nginx = nginx_of(port, &dir.path("tree"));
    let state = dir.path("state").display().to_string();
    let url = format!("{base}/feeds/notes/replication");
    let args = ["follow", &url, "--protocol", "replication", "--once", "--state", &state];
    assert!(dir.run(&args).status.success());
    for n in 13..20 {
        put(&server, &format!("i{n}"), &format!("t{n}"));
        assert_eq!(server.ask("GET", "/feeds/notes", &[], b"").status, 200);
    }
    drop(server);
    assert!(dir.run(&["export", "tree", "--base-url", &base]).status.success());
    let rest: Output = dir.run(&args);
    assert!(rest.status.success(), "{}", stderr(&rest));
    let lines = crate::common::lines(&rest);
    let ids: Vec<&str> = lines.iter().map(|line| line["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["i13", "i14", "i15", "i16", "i17", "i18", "i19"]);
    // The same process served both passes.
    drop(nginx);
}

#[test]
fn a_tree_below_a_path_of_its_own() {
    let (dir, server, port, base) = exported();
    let base = format!("{base}/my.feeds/v1");
    drop(server);
    assert!(dir.run(&["export", "tree", "--base-url", &base]).status.success());
    let nginx = nginx_of(port, &dir.path("tree"));
    let below = format!("{}/my.feeds/v1", nginx.base);
    for (path, protocol) in [
        ("/diff/notes/head.json", "diffdelta"),
        ("/feeds/notes/replication", "replication"),
        ("/feeds/notes/atom", "history"),
    ] {
        follow(&dir, &below, path, protocol);
    }
    assert_eq!(get(&nginx, "/diff/notes/head.json", &[]).status, 404);
}

#[test]
fn followers_read_the_same_from_a_plain_file_server() {
    let (dir, server, port, _) = exported();
    let plain = files(port, &dir.path("tree"));
    for (path, protocol) in [
        ("/diff/notes/head.json", "diffdelta"),
        ("/diff/head.json", "diffdelta"),
        ("/feeds/notes/atom", "history"),
        ("/feeds/notes/rss", "history"),
        ("/feeds/notes/feed.json", "history"),
    ] {
        let mut expected = follow(&dir, &server.base, path, protocol);
        if protocol == "history" {
            // No header tells the feed's name, and nothing is guessed from the URL.
            expected = expected.replace("\"feed\":\"notes\"", &format!("\"feed\":\"{path}\""));
        }
        assert_eq!(follow(&dir, &plain.base, path, protocol), expected, "{path}");
    }
    // The feed's description tells it.
    let described = dir.run(&["follow", &format!("{}/feeds/notes", plain.base), "--once"]);
    assert!(
        crate::common::lines(&described).iter().all(|line| line["feed"] == "notes"),
        "{}",
        stdout(&described)
    );
    // Many feeds at once: the tree's SUP document is discovered, and covers the feed.
    let list = format!("{}/feeds/notes/atom\n", plain.base);
    dir.write("list", list.as_bytes());
    let output = dir.run(&["follow", "--feeds", "list", "--once"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let sup = format!("{}/sup.json", plain.base);
    let check = dir.run(&["check", &sup, "--protocol", "sup"]);
    assert!(!stdout(&check).to_lowercase().contains("error"), "{}{}", stdout(&check), stderr(&check));
}

#[test]
fn uploaded_files_are_in_the_tree_until_their_item_is_deleted() {
    let (dir, server, port, base) = exported();
    let body = "--b1\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\nfile\r\n--b1\r\nContent-Disposition: form-data; \
                name=\"file\"; filename=\"tide table.pdf\"\r\nContent-Type: application/pdf\r\n\r\nPDF\r\n--b1\r\n\
                Content-Disposition: form-data; name=\"page\"; filename=\".htaccess\"\r\nContent-Type: text/html\r\n\r\n<b>\r\n--b1--\r\n";
    let multipart = [("Content-Type", "multipart/form-data; boundary=b1")];
    let put = server.ask("POST", "/feeds/notes/items", &multipart, body.as_bytes());
    assert_eq!(put.status, 200, "{}", put.text());
    let line = server.json("/feeds/notes/items/file?as=line");
    let addresses: Vec<String> = line["item"]["attachments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["url"].as_str().unwrap().replace(&server.base, ""))
        .collect();
    drop(server);
    assert!(dir.run(&["export", "tree", "--base-url", &base]).status.success());
    let nginx = nginx_of(port, &dir.path("tree"));
    let file = get(&nginx, &addresses[0], &[]);
    assert_eq!(
        (file.status, file.text().as_str(), file.header("content-type")),
        (200, "PDF", Some("application/pdf"))
    );
    assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
    // Nothing of a web server's own.
    assert_eq!(get(&nginx, &addresses[1], &[]).status, 404);
    assert!(dir.run(&["delete", "notes", "file"]).status.success());
    assert!(dir.run(&["export", "tree", "--base-url", &base]).status.success());
    assert_eq!(get(&nginx, &addresses[0], &[]).status, 410);
}
