//! Atom, RSS and JSON Feed with their history, as a real server serves them (Feed History -00, RFC 5005).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use towpath_proto::format::{self, FeedDocument, ReadOptions};

use crate::common::notes::{NOTES, SYNTAXES, delete, eleven, put};
use crate::common::{PATIENCE, TestFolder, TestResponse, TestServer, free_port, wait_until};

fn read(answer: &TestResponse) -> FeedDocument {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let options = ReadOptions { content_type: answer.header("content-type"), ..ReadOptions::default() };
    let document = format::read(&answer.body, &options).unwrap_or_else(|e| panic!("{e}: {}", answer.text()));
    assert_eq!(document.problems, [""; 0]);
    document
}

fn path<'a>(server: &TestServer, url: &'a str) -> &'a str {
    url.strip_prefix(server.base.as_str()).unwrap_or_else(|| panic!("{url} is not absolute, or not ours"))
}

fn titles(document: &FeedDocument) -> BTreeSet<String> {
    document.items.iter().map(|item| item.title.clone().unwrap()).collect()
}

fn set(titles: &[&str]) -> BTreeSet<String> {
    titles.iter().map(|title| (*title).to_owned()).collect()
}

/// Targets of a response's `Link` lines, by relation.
fn links(answer: &TestResponse) -> BTreeMap<String, String> {
    let lines = answer.headers.iter().filter(|(name, _)| name == "link").map(|(_, value)| value);
    let parse = |line: &String| {
        let (target, rel) = line.split_once(">; rel=").unwrap();
        let rel = rel.split(';').next().unwrap_or_default();
        (rel.trim_matches('"').to_owned(), target.trim_start_matches('<').to_owned())
    };
    lines.map(parse).collect()
}

/// -00, section 4: "The value of the 'prev' link relation's href attribute MUST be a URI indicating the location of the
/// previous representation of the feed"; RFC 5005, section 4: `prev-archive`, `current`, `next-archive`.
#[test]
fn sections_4_the_prev_links_lead_through_every_entry() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    eleven(&server);
    for (name, media_type) in SYNTAXES {
        let newest = server.get(&format!("/feeds/notes/{name}"));
        assert_eq!(newest.header("content-type"), Some(media_type));
        let document = read(&newest);
        assert_eq!(titles(&document), set(&["t7", "t8", "t9", "t10", "t11"]), "{name}");
        // -00, section 3.
        assert_eq!((document.stateful, document.archive, document.complete), (Some(true), false, false));
        let mut all = titles(&document);
        let mut current = document;
        for number in [2, 1] {
            let prev = current.link("prev-archive").unwrap().to_owned();
            assert_eq!(current.link("prev"), Some(prev.as_str()));
            assert_eq!(path(&server, &prev), format!("/feeds/notes/{name}/{number}"));
            let answer = server.get(path(&server, &prev));
            current = read(&answer);
            assert_eq!((current.stateful, current.archive), (Some(true), true));
            assert_eq!(current.items.len(), 3);
            // "MUST be a URI indicating a permanent location that is unique to that Feed Document instance".
            assert_eq!(current.link("this"), Some(prev.as_str()));
            assert_eq!(current.link("self"), Some(prev.as_str()));
            assert_eq!(path(&server, current.link("current").unwrap()), format!("/feeds/notes/{name}"));
            let next = format!("/feeds/notes/{name}/{}", number + 1);
            assert_eq!(path(&server, current.link("next-archive").unwrap()), next);
            all.extend(titles(&current));
        }
        assert_eq!((current.link("prev"), current.link("prev-archive")), (None, None));
        assert_eq!(all.len(), 11, "{name}: {all:?}");
    }
    let json = server.json("/feeds/notes/feed.json");
    assert_eq!(json["next_url"], format!("{}/feeds/notes/feed.json/2", server.base));
    assert_eq!(server.json("/feeds/notes/feed.json/1").get("next_url"), None);
}

/// HEAD requests are enough to walk the chain of documents.
#[test]
fn the_prev_links_by_head() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    eleven(&server);
    for (name, _) in SYNTAXES {
        let mut at = format!("/feeds/notes/{name}");
        let mut walked = Vec::new();
        loop {
            let head = server.ask("HEAD", &at, &[], b"");
            let whole = server.get(&at);
            assert_eq!((head.status, head.body.len()), (200, 0));
            // Without the date that a document has only once its second is over, and the one of the answer.
            let lasting = |answer: &TestResponse| -> Vec<(String, String)> {
                let of_its_time = |name: &str| matches!(name, "date" | "last-modified");
                answer.headers.iter().filter(|(name, _)| !of_its_time(name)).cloned().collect()
            };
            assert_eq!(lasting(&head), lasting(&whole), "RFC 9110, section 9.3.2");
            let links = links(&head);
            assert_eq!(path(&server, &links["self"]), at);
            assert!(links.contains_key("http://api.friendfeed.com/2008/03#sup"));
            walked.push(at.clone());
            match links.get("prev-archive") {
                Some(prev) => at = path(&server, prev).to_owned(),
                None => break,
            }
        }
        assert_eq!(walked.len(), 3, "{walked:?}");
    }
}

/// -00, section 4: "the content obtained by dereferencing that URI SHOULD NOT change over time".
#[test]
fn section_4_permanent_documents_stay_byte_for_byte() {
    let port = free_port();
    let dir = TestFolder::new(NOTES);
    let server = dir.serve_at(port);
    let mut seen: BTreeMap<String, (Vec<u8>, Option<String>)> = BTreeMap::new();
    let mut remember = |server: &TestServer| {
        for (name, _) in SYNTAXES {
            let newest = read(&server.get(&format!("/feeds/notes/{name}")));
            let snapshot = path(server, newest.link("this").unwrap()).to_owned();
            let shown = server.get(&snapshot);
            assert_eq!(read(&shown).items, newest.items, "the newest document as it is now");
            let prev = newest.link("prev").map(|url| path(server, url).to_owned());
            for address in [Some(snapshot), prev].into_iter().flatten() {
                let answer = server.get(&address);
                let cache = answer.header("cache-control").map(str::to_owned);
                assert_eq!(cache.as_deref(), Some("public, max-age=31536000, immutable"), "{address}");
                let kept =
                    (answer.body, answer.headers.into_iter().find(|(n, _)| n == "etag").map(|(_, v)| v));
                let before = seen.entry(address.clone()).or_insert_with(|| kept.clone());
                assert_eq!(*before, kept, "{address}");
            }
        }
    };
    for n in 1..=8 {
        put(&server, &format!("i{n}"), &format!("t{n}"));
        remember(&server);
    }
    delete(&server, "i2");
    put(&server, "i8", "again");
    remember(&server);
    server.kill();
    // A new title and new limits leave earlier documents unchanged.
    dir.write("towpath.toml", NOTES.replace("\"Notes\"", "\"Renamed\"").replace("= 3", "= 5").as_bytes());
    let server = dir.serve_at(port);
    for n in 9..=20 {
        put(&server, &format!("i{n}"), &format!("t{n}"));
    }
    remember(&server);
    assert!(read(&server.get("/feeds/notes/atom")).title.as_deref() == Some("Renamed"));
    assert!(seen.len() > 30, "{}", seen.len());
    for (address, kept) in &seen {
        let answer = server.get(address);
        assert_eq!((answer.status, &answer.body), (200, &kept.0), "{address}");
    }
}

/// Documents removed by retention are 410, and no others; documents that never existed are 404.
#[test]
fn documents_removed_by_retention_are_410_and_unknown_ones_404() {
    let port = free_port();
    let dir = TestFolder::new(NOTES);
    let server = dir.serve_at(port);
    eleven(&server);
    let kept: Vec<Vec<u8>> =
        ["/2", "/4-7", ""].map(|part| server.get(&format!("/feeds/notes/atom{part}")).body).into();
    // Leading zeros, open and reversed ranges, and ranges that no document ever had.
    for part in
        ["0", "01", "4", "99", "x", "-", "1-", "-1", "5-4", "2-3", "4-10", "7-12", "11-11", "1-99", "1/2"]
    {
        for (name, _) in SYNTAXES {
            let answer = server.get(&format!("/feeds/notes/{name}/{part}"));
            assert_eq!(answer.status, 404, "{name}/{part}: {}", answer.text());
        }
    }
    server.kill();
    // The contents have two bytes each: one page may stay.
    dir.write("towpath.toml", format!("{NOTES}[feed.retention]\nbytes = 14\ngrace = \"0s\"\n").as_bytes());
    let server = dir.serve_at(port);
    let end = Instant::now() + PATIENCE;
    while server.get("/feeds/notes/atom/1").status != 410 {
        assert!(Instant::now() < end, "page 1 stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (name, _) in SYNTAXES {
        for part in ["1", "1-3", "1-5", "2-3"] {
            let answer = server.get(&format!("/feeds/notes/{name}/{part}"));
            assert_eq!(answer.status, 410, "{name}/{part}: {}", answer.text());
        }
    }
    // What comes after it is unchanged: the 410 says where the chain ends now.
    assert_eq!(server.get("/feeds/notes/atom/2").body, kept[0]);
    assert_eq!(server.get("/feeds/notes/atom/4-7").body, kept[1]);
    assert_eq!(server.get("/feeds/notes/atom").body, kept[2]);
    server.kill();
    // Now nothing but the newest page may stay.
    dir.write("towpath.toml", format!("{NOTES}[feed.retention]\nbytes = 1\ngrace = \"0s\"\n").as_bytes());
    let server = dir.serve_at(port);
    let end = Instant::now() + PATIENCE;
    while server.get("/feeds/notes/atom/3").status != 410 {
        assert!(Instant::now() < end, "page 3 stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (name, _) in SYNTAXES {
        let newest = read(&server.get(&format!("/feeds/notes/{name}")));
        assert_eq!(titles(&newest), set(&["t10", "t11"]), "{name}");
        // A follower is told by the 410 that changes are missing.
        let prev = newest.link("prev-archive").unwrap();
        assert_eq!(
            (path(&server, prev), newest.link("prev")),
            (&*format!("/feeds/notes/{name}/3"), Some(prev))
        );
        assert_eq!(server.get(path(&server, prev)).status, 410, "{name}");
        let snapshot = read(&server.get(path(&server, newest.link("this").unwrap())));
        assert_eq!(titles(&snapshot), titles(&newest), "{name}");
        assert_eq!(server.get(&format!("/feeds/notes/{name}/7-11")).status, 410, "{name}");
    }
}

/// -00, section 3: 'If the content of the stateful flag is "0", it indicates that the Feed Document is a complete
/// representation of the entire feed'; RFC 5005, section 2: `fh:complete`.
#[test]
fn section_3_a_complete_feed_shows_all_there_is_and_has_no_past() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\npage_items = 2\ncomplete = true\n");
    let server = dir.serve();
    for (name, _) in SYNTAXES {
        assert_eq!(titles(&read(&server.get(&format!("/feeds/notes/{name}")))), set(&[]), "{name}");
    }
    for n in 1..=7 {
        put(&server, &format!("i{n}"), &format!("t{n}"));
    }
    delete(&server, "i3");
    put(&server, "i1", "one");
    delete(&server, "i7");
    for (name, _) in SYNTAXES {
        let document = read(&server.get(&format!("/feeds/notes/{name}")));
        assert_eq!((document.stateful, document.complete), (Some(false), true), "{name}");
        assert_eq!(titles(&document), set(&["one", "t2", "t4", "t5", "t6"]), "{name}");
        assert!(document.deleted.is_empty(), "absence says it");
        for rel in ["this", "prev", "prev-archive", "next", "next-archive"] {
            assert_eq!(document.link(rel), None, "{name}: {rel}");
        }
        for part in ["1", "1-2"] {
            assert_eq!(server.get(&format!("/feeds/notes/{name}/{part}")).status, 404);
        }
    }
}

/// RFC 6721, section 3: a deleted entry is reported; earlier entries with its id are not shown in the same document.
#[test]
fn rfc_6721_deletions_are_reported() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    put(&server, "i1", "t1");
    put(&server, "i2", "t2");
    delete(&server, "i1");
    for (name, _) in SYNTAXES {
        let document = read(&server.get(&format!("/feeds/notes/{name}")));
        assert_eq!(titles(&document), set(&["t2"]), "{name}");
        assert_eq!(document.deleted.len(), 1, "{name}");
        assert_eq!(document.deleted[0].id, "i1", "{name}");
        assert!(document.deleted[0].when.is_some());
    }
}

#[test]
fn conditional_requests_codings_and_freshness() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    assert_eq!(titles(&read(&server.get("/feeds/notes/atom"))), set(&[]), "an empty feed is a feed");
    eleven(&server);
    // There is no Last-Modified within the second of the last change: the next change could have the same one.
    std::thread::sleep(Duration::from_millis(1100));
    for address in ["atom", "rss", "feed.json", "atom/1", "atom/1-5"] {
        let address = format!("/feeds/notes/{address}");
        let first = server.get(&address);
        let (tag, modified) = (first.header("etag").unwrap(), first.header("last-modified").unwrap());
        for (name, value) in [("if-none-match", tag), ("if-modified-since", modified)] {
            let answer = server.ask("GET", &address, &[(name, value)], b"");
            assert_eq!((answer.status, answer.body.len()), (304, 0), "{address} {name}");
            for repeated in ["etag", "cache-control", "last-modified", "link", "x-sup-id"] {
                assert_eq!(answer.header(repeated), first.header(repeated), "{address} {repeated}");
            }
        }
        for coding in ["gzip", "br"] {
            let answer = server.ask("GET", &address, &[("accept-encoding", coding)], b"");
            assert_eq!(answer.header("content-encoding"), Some(coding), "{address}");
            assert!(answer.body.len() < first.body.len());
        }
        assert_eq!(server.ask("POST", &address, &[], b"").status, 405);
    }
    let before = server.get("/feeds/notes/atom");
    put(&server, "i12", "t12");
    let tag = before.header("etag").unwrap();
    let after = server.ask("GET", "/feeds/notes/atom", &[("if-none-match", tag)], b"");
    assert!(titles(&read(&after)).contains("t12"), "a client reads its own write");
    assert_eq!(after.header("cache-control"), Some("no-cache"));
    assert_ne!(after.header("last-modified"), before.header("last-modified"));
}

/// RFC 9110, section 8.8.2: `Last-Modified` is the time when the representation last changed. A title is part of it.
#[test]
fn a_changed_title_reaches_clients_without_tags() {
    let titled = |title: &str| format!("[[feed]]\nid = \"notes\"\ntitle = {title:?}\n");
    let dir = TestFolder::new(&titled("Old"));
    let (port, addresses) = (free_port(), SYNTAXES.map(|(name, _)| format!("/feeds/notes/{name}")));
    let server = dir.serve_at(port);
    put(&server, "a", "A");
    // A document has its date once no other change can share it.
    let dated = |server: &TestServer, address: &str| {
        wait_until("it has a date", || server.get(address).header("last-modified").is_some());
        server.get(address).header("last-modified").unwrap().to_owned()
    };
    let old = addresses.clone().map(|address| (dated(&server, &address), address));
    let since = |server: &TestServer, address: &str, date: &str| {
        server.ask("GET", address, &[("if-modified-since", date)], b"")
    };
    for (date, address) in &old {
        assert_eq!(since(&server, address, date).status, 304);
    }
    dir.write("towpath.toml", titled("New").as_bytes());
    let reloaded = dir.run(&["reload"]);
    assert!(reloaded.status.success(), "{}", crate::common::stderr(&reloaded));
    for (date, address) in &old {
        let answer = since(&server, address, date);
        assert!(answer.status == 200 && answer.text().contains("New"), "{address}: {}", answer.text());
        assert_eq!(since(&server, address, &dated(&server, address)).status, 304);
    }
    let old = addresses.map(|address| (dated(&server, &address), address));
    assert_eq!(server.stop(), Some(0));
    dir.write("towpath.toml", titled("Newest").as_bytes());
    let server = dir.serve_at(port);
    for (date, address) in &old {
        let answer = since(&server, address, date);
        assert!(answer.status == 200 && answer.text().contains("Newest"), "{address}: {}", answer.text());
    }
}
