//! Atom and RSS for other software: access, discovery and validity.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::notes::{NOTES, SYNTAXES, delete, eleven, put};
use crate::common::{TestFolder, lines, python, stderr, stdout};

const ACCESS: &str = r#"
[[feed]]
id = "notes"
readers = ["all", { token = "part", filter = { tags = ["x"] } }]
[[feed]]
id = "open"
title = "Open <feed>"
[[feed]]
id = "few"
filter = { of = "open", tags = ["x"] }
"#;

#[test]
fn tokens_and_filters() {
    let dir = TestFolder::new(ACCESS);
    let server = dir.serve();
    put(&server, "i1", "t1");
    for path in ["/feeds/notes/atom", "/feeds/notes/rss", "/feeds/notes/feed.json", "/feeds/notes/atom/1-1"] {
        assert_eq!(server.get(path).status, 401, "{path}");
        let read = server.ask("GET", path, &[("authorization", "Bearer all")], b"");
        assert_eq!((read.status, read.header("cache-control")), (200, Some("private, no-store")), "{path}");
        assert!(read.header("x-sup-id").is_some());
        assert_eq!(server.ask("GET", path, &[("authorization", "Bearer part")], b"").status, 403, "{path}");
        // Asked after a reader: its response may not be kept for others.
        assert_eq!(server.get(path).status, 401, "{path} was not kept");
    }
    let filter = server.get("/feeds/few/atom");
    assert_eq!(filter.status, 404);
    assert!(filter.json()["detail"].as_str().unwrap().contains("Accept: application/atom+xml"));
    assert_eq!(server.get("/feeds/none/atom").status, 404);
}

/// Links that browsers and feed readers look for in a page.
#[test]
fn pages_link_to_their_feeds() {
    let dir = TestFolder::new(ACCESS);
    let server = dir.serve();
    let html = server.ask("GET", "/feeds/open", &[("accept", "text/html")], b"").text();
    for (name, media_type) in SYNTAXES {
        let media_type = media_type.split(';').next().unwrap();
        let link = format!(
            "<link rel=\"alternate\" type=\"{media_type}\" title=\"Open &lt;feed&gt;\" href=\"{}/feeds/open/{name}\">",
            server.base
        );
        assert!(html.contains(&link), "{html}");
    }
    let addresses = server.json("/feeds/open")["addresses"].to_string();
    let filtered = server.ask("GET", "/feeds/few", &[("accept", "text/html")], b"").text();
    for (name, _) in SYNTAXES {
        assert!(addresses.contains(&format!("{}/feeds/open/{name}\"", server.base)), "{addresses}");
    }
    assert!(!filtered.contains("rel=\"alternate\""));
}

/// RFC 8288, section 3.3: a relation that is a URL must be quoted, and readers that split at commas and semicolons need the
/// others quoted, too.
#[test]
fn link_relations_are_quoted_everywhere() {
    let dir = TestFolder::new("[hub]\n[[feed]]\nid = \"open\"\npage_items = 2\n");
    let server = dir.serve();
    for n in 0..5 {
        assert_eq!(server.ask("PUT", &format!("/feeds/open/items/{n}"), &[], b"x").status, 201);
    }
    assert_eq!(server.ask("POST", "/feeds/open/snapshots", &[], b"").status, 201);
    let described = server.json("/feeds/open");
    let mut paths: Vec<String> = described["addresses"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|address| !["events", "hub"].contains(&address["name"].as_str().unwrap()))
        .map(|address| address["url"].as_str().unwrap().strip_prefix(&server.base).unwrap().to_owned())
        .collect();
    for more in ["items?max=1", "items/0", "replication/pages/1", "snapshots/latest"] {
        paths.push(format!("/feeds/open/{more}"));
    }
    let mut relations = std::collections::BTreeSet::new();
    for path in paths {
        for (_, links) in server.get(&path).headers.iter().filter(|(name, _)| name == "link") {
            for relation in links.split("rel=").skip(1) {
                let relation = relation.strip_prefix('"').and_then(|relation| relation.split_once('"'));
                let Some((relation, _)) = relation else { panic!("{path}: {links}") };
                relations.insert(relation.to_owned());
            }
        }
    }
    for known in ["self", "next", "prev", "hub", "alternate", "http://api.friendfeed.com/2008/03#sup"] {
        assert!(relations.contains(known), "{known}: {relations:?}");
    }
}

/// A feed whose elements have prefixes of their own, declared in unusual places.
const PREFIXED: &str = r#"<a:feed xmlns:a="http://www.w3.org/2005/Atom" xmlns:geo="http://www.georss.org/georss">
<a:id>tag:x.example,2026:f</a:id><a:title>F</a:title><a:updated>2026-01-01T00:00:00Z</a:updated>
<a:author><a:name>N</a:name></a:author>
<a:entry><a:id>tag:x.example,2026:1</a:id><a:title>One</a:title><a:updated>2026-01-01T00:00:00Z</a:updated>
<a:link href="http://x.example/1"/><a:summary>S</a:summary><geo:point>45.256 -71.92</geo:point>
<m:thumb xmlns:m="http://search.yahoo.com/mrss/" url="t.png"><m:credit geo:by="me">A &amp; B</m:credit></m:thumb>
</a:entry></a:feed>"#;

/// "Extension elements that came in with a polled Atom feed going out again with their namespaces", byte-stable and
/// valid by the schema of RFC 4287.
#[test]
fn extension_elements_go_out_with_their_namespaces_and_documents_are_valid() {
    let source = "[[feed]]\nid = \"geo\"\n[feed.source]\nurl = \"geo.xml\"\nevery = \"1s\"\n";
    let dir = TestFolder::new(&format!("{NOTES}{source}"));
    dir.write("geo.xml", PREFIXED.as_bytes());
    let server = dir.serve();
    server.wait_for_first("geo");
    eleven(&server);
    delete(&server, "i1");
    let batch = r#"{"id":"a b\n","content_type":"image/png","content_base64":"iVBORwD/AQ=="}
        {"id":"bare"}
        {"id":"html","content_type":"text/html","content":"<p>x</p>","item":{"title":"<b> & ]]>","url":"https://x.example/"}}
        {"op":"delete","id":"bare"}"#;
    let answer = server.ask("POST", "/feeds/notes/items", &[], batch.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (mut files, folder) = (Vec::new(), dir.path("atom"));
    std::fs::create_dir(&folder).unwrap();
    for (number, address) in
        ["geo/atom", "geo/atom/1-1", "notes/atom", "notes/atom/1", "notes/atom/4", "notes/atom/1-5"]
            .into_iter()
            .enumerate()
    {
        let answer = server.get(&format!("/feeds/{address}"));
        assert_eq!(answer.status, 200, "{address}");
        assert!(!answer.text().contains("xml:base"));
        files.push(folder.join(format!("{number}.xml")));
        std::fs::write(&files[number], &answer.body).unwrap();
    }
    let found =
        Command::new(python()).args(["-c", NAMESPACES]).arg(&files[0]).arg(&files[1]).output().unwrap();
    assert_eq!(
        stdout(&found).trim(),
        "45.256 -71.92|t.png|me|A & B\n45.256 -71.92|t.png|me|A & B",
        "{}",
        stderr(&found)
    );
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../towpath-proto/tests/data/rfc4287-atom.rng");
    match Command::new("xmllint").arg("--noout").arg("--relaxng").arg(schema).args(&files).output() {
        Ok(checked) => assert!(checked.status.success(), "{}", stderr(&checked)),
        Err(_) if std::env::var_os("REQUIRE_XMLLINT").is_none() => {
            eprintln!("xmllint is not installed: nothing was validated");
        }
        Err(e) => panic!("xmllint: {e}"),
    }
}

const NAMESPACES: &str = r#"
import sys, xml.etree.ElementTree as tree
geo, media = "{http://www.georss.org/georss}", "{http://search.yahoo.com/mrss/}"
for name in sys.argv[1:]:
    entry = tree.parse(name).getroot().find("{http://www.w3.org/2005/Atom}entry")
    thumb = entry.find(media + "thumb")
    credit = thumb.find(media + "credit")
    print(entry.find(geo + "point").text, thumb.get("url"), credit.get(geo + "by"), credit.text, sep="|")
"#;

/// Parsers that share nothing with each other find the same entries.
#[test]
fn other_parsers_read_the_newest_documents() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    eleven(&server);
    let expected: Vec<(String, String)> =
        (1..=11).rev().map(|n| (format!("i{n}"), format!("t{n}"))).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/parsers.py");
    for (format, name, parsers) in [("atom", "atom", 3), ("rss", "rss", 3), ("json", "feed.json", 2)] {
        let url = format!("{}/feeds/notes/{name}", server.base);
        let received = Command::new(python()).arg(&script).args([format, &url]).output().unwrap();
        assert!(received.status.success(), "{}", stderr(&received));
        let read: BTreeMap<String, Vec<(String, String)>> = serde_json::from_slice(&received.stdout).unwrap();
        assert_eq!(read.len(), parsers, "{read:?}");
        for (parser, found) in read {
            let found: Vec<(String, String)> = found
                .into_iter()
                // An Atom id is a URI that ends with the item's own.
                .map(|(id, title)| (id.rsplit('/').next().unwrap().to_owned(), title))
                .collect();
            assert!(found.len() >= 5, "{parser} of {name}: {found:?}");
            assert_eq!(found, expected[..found.len()], "{parser} of {name}");
        }
    }
}

const SANITISED: &str = r#"
import sys, feedparser
for url in sys.argv[1:]:
    entry = feedparser.parse(url).entries[0]
    assert entry.content[0].type.split(";")[0] in ("text/html", "application/xhtml+xml"), entry.content
    print(entry.content[0].value)
"#;

/// feedparser removes scripts from what it takes for HTML, and takes attributes of foreign namespaces for its own.
#[test]
fn content_with_a_charset_is_html_to_feedparser() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let html = ("content-type", "text/html; charset=utf-8");
    let content = b"<p onclick='x()'>a<script>alert(1)</script></p>";
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[html], content).status, 201);
    let urls = ["atom", "rss"].map(|name| format!("{}/feeds/notes/{name}", server.base));
    let read = Command::new(python()).args(["-c", SANITISED]).args(&urls).output().unwrap();
    assert!(read.status.success(), "{}", stderr(&read));
    assert_eq!(stdout(&read), "<p>a</p>\n<p>a</p>\n");
}

/// Another reader finds the same entries in Atom and in RSS.
#[test]
fn feedparser_reads_the_whole_history() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    eleven(&server);
    put(&server, "i4", "changed");
    delete(&server, "i5");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/history.py");
    for (name, version) in [("atom", "atom10"), ("rss", "rss20")] {
        let url = format!("{}/feeds/notes/{name}", server.base);
        let received = Command::new(python()).arg(&script).arg(&url).output().unwrap();
        assert!(received.status.success(), "{}", stderr(&received));
        let documents: Vec<Value> = serde_json::from_slice(&received.stdout).unwrap();
        assert_eq!(documents.len(), 4, "{documents:?}");
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for (number, document) in documents.iter().enumerate() {
            let is_newest = number == 3;
            assert_eq!((document["version"].as_str(), document["wrong"].as_str()), (Some(version), Some("")));
            assert_eq!(document["stateful"], "1", "{document}");
            assert_eq!(document["is_archive"], !is_newest, "{document}");
            // Archives show the feed's id: a title may change, their bytes may not.
            assert_eq!(document["title"], if is_newest { "Notes" } else { "notes" });
            assert!(document["links"]["http://api.friendfeed.com/2008/03#sup"].is_string());
            for entry in document["entries"].as_array().unwrap() {
                assert_eq!(entry["tags"], serde_json::json!(["x"]));
                assert_eq!(entry["title"], entry["content"], "{entry}");
                found.insert(entry["id"].as_str().unwrap().into(), entry["title"].as_str().unwrap().into());
            }
        }
        assert_eq!(found.len(), 11, "{found:?}");
        let title = |id: &str| {
            let key = found.keys().find(|key| key.rsplit('/').next() == Some(id)).unwrap();
            found[key].clone()
        };
        assert_eq!((title("i4").as_str(), title("i11").as_str()), ("changed", "t11"));
    }
}

/// Our follower rebuilds the feed from its documents in every syntax; documents removed by retention are reported by
/// exit code 3.
#[test]
fn the_whole_feed_is_followed_and_checked() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    eleven(&server);
    put(&server, "i4", "changed");
    delete(&server, "i5");
    for (name, _) in SYNTAXES {
        let url = format!("{}/feeds/notes/{name}", server.base);
        let followed = dir.run(&["follow", &url, "--protocol", "history", "--once"]);
        assert_eq!(followed.status.code(), Some(0), "{name}: {}", stderr(&followed));
        let mut items: BTreeMap<String, Value> = BTreeMap::new();
        for line in lines(&followed) {
            let id = line["id"].as_str().unwrap().to_owned();
            let gone = line["op"] == "delete";
            if gone {
                items.remove(&id)
            } else {
                items.insert(id, line)
            };
        }
        assert_eq!(items.len(), 10, "{name}: {:?}", items.keys());
        let text = |id: &str| items[id]["content"].as_str().map(str::to_owned);
        assert_eq!((text("i4").as_deref(), text("i11").as_deref()), (Some("changed"), Some("t11")), "{name}");
        let checked = dir.run(&["check", &url, "--protocol", "history"]);
        assert_eq!(checked.status.code(), Some(0), "{name}: {}{}", stdout(&checked), stderr(&checked));
    }
}

/// A follower that resumes from its state prints only new changes.
#[test]
fn a_follower_resumes_from_its_state() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    eleven(&server);
    let url = format!("{}/feeds/notes/atom", server.base);
    let args = ["follow", &url, "--protocol", "history", "--once", "--state", "state"];
    assert_eq!(lines(&dir.run(&args)).len(), 11);
    assert_eq!(lines(&dir.run(&args)).len(), 0);
    for n in 12..=20 {
        put(&server, &format!("i{n}"), &format!("t{n}"));
    }
    delete(&server, "i1");
    let received: Vec<String> =
        lines(&dir.run(&args)).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    let expected: Vec<String> = (12..=20).chain([1]).map(|n| format!("i{n}")).collect();
    assert_eq!(received, expected);
}
