//! Followers of ours follow an exported tree, served by nginx with the configuration that was generated, and by
//! nothing but a file server: to the same output as from the server itself.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::process::Output;

use common::notes::{NOTES, delete, eleven, put};
use common::tree::{Process, address, files, nginx_of, paths};
use common::{Answer, Place, Server, free_port, stderr, stdout};

/// A server with a feed that has a past, its tree, and the address that the tree is to have.
fn exported() -> (Place, Server, u16, String) {
    let place = Place::new(NOTES);
    let server = place.serve();
    eleven(&server);
    delete(&server, "i2");
    put(&server, "i3", "t3again");
    assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &[], b"").status, 201);
    put(&server, "i12", "t12");
    drop(server);
    let (port, base) = address();
    let done = place.run(&["export", "tree", "--base-url", &base]);
    assert!(done.status.success(), "{}", stderr(&done));
    let server = place.serve_at(free_port());
    (place, server, port, base)
}

/// What a follower says, without the server's address.
fn follow(place: &Place, base: &str, path: &str, protocol: &str) -> String {
    let url = format!("{base}{path}");
    let output = place.run(&["follow", &url, "--protocol", protocol, "--once"]);
    assert!(output.status.success(), "{protocol} {url}: {}", stderr(&output));
    let lines = stdout(&output).replace(base, "");
    assert!(lines.lines().count() >= 11, "{protocol} {url}: {lines}");
    // The pages of a snapshot may come in any order.
    if !path.contains("/snapshots/") {
        return lines;
    }
    let mut sorted: Vec<&str> = lines.lines().collect();
    sorted.sort_unstable();
    sorted.join("\n")
}

fn get(tree: &Process, path: &str, headers: &[(&str, &str)]) -> Answer {
    common::get_from(&tree.base, path, headers)
}

#[test]
fn followers_read_from_nginx_what_they_read_from_the_server() {
    let (place, server, port, base) = exported();
    let nginx = nginx_of(port, &place.path("tree"));
    for (path, protocol) in [
        ("/diff/notes/head.json", "diffdelta"),
        ("/diff/head.json", "diffdelta"),
        ("/feeds/notes/replication", "replication"),
        ("/feeds/notes/snapshots/latest", "replication"),
        ("/feeds/notes/atom", "history"),
        ("/feeds/notes/rss", "history"),
        ("/feeds/notes/feed.json", "history"),
    ] {
        let expected = follow(&place, &server.base, path, protocol);
        assert_eq!(follow(&place, &nginx.base, path, protocol), expected, "{path}");
    }
    // Every header that counts is the server's.
    for path in paths(&place.path("tree")) {
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
            let links = |answer: &Answer, base: &str| {
                let lines = answer.headers.iter().filter(|(name, _)| name == "link");
                let lines = lines.map(|(_, line)| line.replace(base, "").replace("?seconds=60", ""));
                let mut lines: Vec<String> =
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
    // What is compressed is what is not.
    let path = "/diff/notes/latest.json";
    let zipped = get(&nginx, path, &[("accept-encoding", "gzip")]);
    assert_eq!(zipped.header("content-encoding"), Some("gzip"));
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&zipped.body[..]), &mut plain).unwrap();
    assert_eq!(plain, get(&nginx, path, &[]).body);
    let etag = get(&nginx, path, &[]).header("etag").unwrap().to_owned();
    assert_eq!(get(&nginx, path, &[("if-none-match", &etag)]).status, 304);
    for hidden in ["/.towpath/tree.json", "/.towpath/towpath.conf", "/_headers", "/nothing", "/feeds/nothing"]
    {
        assert_eq!(get(&nginx, hidden, &[]).status, 404, "{hidden}");
    }
}

#[test]
fn nginx_needs_no_reload_when_the_tree_moves_on() {
    let (place, server, port, base) = exported();
    let nginx = nginx_of(port, &place.path("tree"));
    let state = place.path("state").display().to_string();
    let url = format!("{base}/feeds/notes/replication");
    let args = ["follow", &url, "--protocol", "replication", "--once", "--state", &state];
    assert!(place.run(&args).status.success());
    for n in 13..20 {
        put(&server, &format!("i{n}"), &format!("t{n}"));
        assert_eq!(server.ask("GET", "/feeds/notes", &[], b"").status, 200);
    }
    drop(server);
    assert!(place.run(&["export", "tree", "--base-url", &base]).status.success());
    let rest: Output = place.run(&args);
    assert!(rest.status.success(), "{}", stderr(&rest));
    let lines = common::lines(&rest);
    let ids: Vec<&str> = lines.iter().map(|line| line["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["i13", "i14", "i15", "i16", "i17", "i18", "i19"]);
    drop(nginx);
}

#[test]
fn a_tree_below_a_path_of_its_own() {
    let (place, server, port, base) = exported();
    let base = format!("{base}/my.feeds/v1");
    drop(server);
    assert!(place.run(&["export", "tree", "--base-url", &base]).status.success());
    let nginx = nginx_of(port, &place.path("tree"));
    let below = format!("{}/my.feeds/v1", nginx.base);
    for (path, protocol) in [
        ("/diff/notes/head.json", "diffdelta"),
        ("/feeds/notes/replication", "replication"),
        ("/feeds/notes/atom", "history"),
    ] {
        follow(&place, &below, path, protocol);
    }
    assert_eq!(get(&nginx, "/diff/notes/head.json", &[]).status, 404);
}

#[test]
fn followers_read_the_same_from_a_plain_file_server() {
    let (place, server, port, _) = exported();
    let plain = files(port, &place.path("tree"));
    for (path, protocol) in [
        ("/diff/notes/head.json", "diffdelta"),
        ("/diff/head.json", "diffdelta"),
        ("/feeds/notes/atom", "history"),
        ("/feeds/notes/rss", "history"),
        ("/feeds/notes/feed.json", "history"),
    ] {
        let expected = follow(&place, &server.base, path, protocol);
        assert_eq!(follow(&place, &plain.base, path, protocol), expected, "{path}");
    }
    // Many feeds at once: the SUP document of the tree is found, and speaks for the feed.
    let list = format!("{}/feeds/notes/atom\n", plain.base);
    place.write("list", list.as_bytes());
    let output = place.run(&["follow", "--feeds", "list", "--once"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let sup = format!("{}/sup.json", plain.base);
    let check = place.run(&["check", &sup, "--protocol", "sup"]);
    assert!(!stdout(&check).to_lowercase().contains("error"), "{}{}", stdout(&check), stderr(&check));
}
