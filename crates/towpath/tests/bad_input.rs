//! Bad documents and bad configurations: an error that names the place, nothing lost, no panic.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{Place, stderr, stdout};

/// A source of `file` for each name, polled as whatever it is.
fn config(feeds: &[(&str, &str)]) -> String {
    let feed =
        |(id, file): &(&str, &str)| format!("[[feed]]\nid = \"{id}\"\n[feed.source]\nurl = \"{file}\"\n");
    feeds.iter().map(feed).collect()
}

/// What `towpath run` says of one document.
struct Told {
    code: i32,
    state: String,
}

/// One pass over one document; the pass must be quick whatever is in it.
fn pass(name: &str, document: &[u8]) -> Told {
    let place = Place::new(&config(&[("aa", name)]));
    place.write(name, document);
    pass_in(&place)
}

fn pass_in(place: &Place) -> Told {
    let began = Instant::now();
    let output = place.run(&["run"]);
    let table = stdout(&output);
    let row = table.lines().nth(1).unwrap_or_else(|| panic!("{table}{}", stderr(&output)));
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    Told { code: output.status.code().unwrap(), state: row.to_owned() }
}

const RSS: &str = r#"<?xml version="1.0"?><rss version="2.0"><channel><title>t</title>
<item><guid>one</guid><title>One</title></item><item><guid>two</guid><title>Two</title></item></channel></rss>"#;
const ATOM: &str = r#"<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:x</id><title>t</title>
<entry><id>urn:1</id><title>One</title><updated>2024-01-01T00:00:00Z</updated></entry></feed>"#;
const JSON_FEED: &str =
    r#"{"version":"https://jsonfeed.org/version/1.1","title":"t","items":[{"id":"1","content_text":"x"}]}"#;

#[test]
fn cut_off_documents_are_refused_wherever_they_end() {
    for (name, whole) in [("a.rss", RSS), ("a.atom", ATOM), ("a.json", JSON_FEED)] {
        assert_eq!(pass(name, whole.as_bytes()).code, 0, "{name}");
        for end in [whole.len() - 1, whole.len() - 12, whole.len() / 2, whole.len() / 3] {
            let told = pass(name, &whole.as_bytes()[..end]);
            assert_eq!(told.code, 1, "{name} cut at {end}: {}", told.state);
            let place = told.state.contains("line ") || told.state.contains("byte ");
            assert!(told.state.contains("TRUNCATED") && place, "{name} cut at {end}: {}", told.state);
        }
    }
}

#[test]
fn a_cut_off_document_keeps_what_is_known() {
    let place = Place::new(&config(&[("aa", "a.rss")]));
    place.write("a.rss", RSS.as_bytes());
    assert_eq!(pass_in(&place).code, 0);
    place.write("a.rss", &RSS.as_bytes()[..100]);
    assert_eq!(pass_in(&place).code, 1);
    let server = place.serve();
    for id in ["one", "two"] {
        assert_eq!(server.get(&format!("/feeds/aa/items/{id}?as=line")).status, 200);
    }
}

#[test]
fn entity_bombs_and_deep_documents_end_quickly() {
    let mut bomb = String::from("<?xml version=\"1.0\"?><!DOCTYPE rss [<!ENTITY a0 \"ha\">");
    for n in 1..20 {
        bomb.push_str(&format!("<!ENTITY a{n} \"{}\">", format!("&a{};", n - 1).repeat(10)));
    }
    bomb.push_str(
        "]><rss version=\"2.0\"><channel><item><guid>1</guid><title>&a19;</title></item></channel></rss>",
    );
    let outside = "<?xml version=\"1.0\"?><!DOCTYPE rss [<!ENTITY x SYSTEM \"file:///etc/passwd\">]>\
                   <rss version=\"2.0\"><channel><item><guid>1</guid><title>&x;</title></item></channel></rss>";
    for document in [bomb.as_str(), outside] {
        let place = Place::new(&config(&[("aa", "a.rss")]));
        place.write("a.rss", document.as_bytes());
        let told = pass_in(&place);
        let server = place.serve();
        let served = server.get("/feeds/aa/items/1?as=line").text();
        assert!(!served.contains("haha") && !served.contains("root:"), "{served}");
        assert!(told.state.len() < 2000, "{}", told.state);
    }
    let deep_xml = format!("<rss version=\"2.0\"><channel>{}", "<a>".repeat(300_000));
    let deep_json =
        format!("{{\"version\":\"https://jsonfeed.org/version/1\",\"items\":{}", "[".repeat(300_000));
    let attributes: String = (0..50_000).map(|n| format!(" a{n}=\"x\"")).collect();
    let wide = format!("<rss version=\"2.0\"{attributes}><channel>");
    for (name, document) in [("a.rss", deep_xml), ("a.json", deep_json), ("b.rss", wide)] {
        let told = pass(name, document.as_bytes());
        assert_eq!(told.code, 1, "{}", told.state);
    }
}

#[test]
fn what_is_no_feed_is_named() {
    let html = "<!DOCTYPE html><html><head><title>Sign in</title></head><body><p>Sign in</body></html>";
    let garbage: Vec<u8> = (0..5000_u32).map(|n| ((n * 7919) >> 3) as u8).collect();
    for document in [html.as_bytes(), b"", b"   \n", b"null", b"[1,2,3]", b"\x00\x00\x00", garbage.as_slice()]
    {
        let told = pass("a.xml", document);
        assert_eq!(told.code, 1, "{}", told.state);
        assert!(told.state.contains("PARSE_ERROR: a.xml: "), "{}", told.state);
    }
}

#[test]
fn duplicates_bad_dates_and_ids_of_all_kinds() {
    let long = "x".repeat(2049);
    let longest = "y".repeat(2048);
    let items = serde_json::json!({"version": "https://jsonfeed.org/version/1.1", "title": "t", "items": [
        {"id": "twice", "content_text": "first"}, {"id": "twice", "content_text": "second"},
        {"id": "a/b", "content_text": "slash"}, {"id": "a\nb\t", "content_text": "lines"},
        {"id": "\"quoted\"", "content_text": "quotes"}, {"id": "😀\u{e000}", "content_text": "emoji"},
        {"id": "..", "content_text": "dots"}, {"id": "%41", "content_text": "percent"},
        {"id": long, "content_text": "too long"}, {"id": longest, "content_text": "just right"},
        {"id": "", "content_text": "empty"}, {"content_text": "none"},
        {"id": "when", "content_text": "x", "date_published": "yesterday", "date_modified": "2024-02-30T25:00:00Z"},
    ]});
    let place = Place::new(&config(&[("aa", "a.json")]));
    place.write("a.json", items.to_string().as_bytes());
    let told = pass_in(&place);
    assert_eq!(told.code, 0, "{}", told.state);
    assert!(told.state.contains("left out"), "{}", told.state);
    let server = place.serve();
    for (id, content) in [
        ("twice", "first"),
        ("a%2Fb", "slash"),
        ("a%0Ab%09", "lines"),
        ("%22quoted%22", "quotes"),
        ("%F0%9F%98%80%EE%80%80", "emoji"),
        ("%2E%2E", "dots"),
        ("%2541", "percent"),
        (longest.as_str(), "just right"),
        ("when", "x"),
    ] {
        let answer = server.get(&format!("/feeds/aa/items/{id}"));
        assert_eq!((answer.status, answer.text().as_str()), (200, content), "{id}");
    }
    assert_eq!(server.json("/feeds/aa")["seq"], 9);
    let when = server.json("/feeds/aa/items/when?as=line");
    assert!(when["item"]["published"].is_null() && when["item"]["updated"].is_null(), "{when}");
}

#[test]
fn configurations_that_make_no_sense() {
    for (text, places) in [
        ("[server]\nlisen = \"x\"\n", vec!["towpath.toml", "line 2", "lisen"]),
        ("[[feed]]\nid = \"aa\"\ntitel = \"x\"\n", vec!["line 3", "titel"]),
        ("[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"bb\"\n[[feed]]\nid = \"aa\"\n", vec!["\"aa\"", "number 3"]),
        ("[[feed]]\nid = \"_global\"\n", vec!["line 2", "_global"]),
        ("[[feed]]\nid = \"Upper Case\"\n", vec!["line 2", "Upper Case"]),
        ("[[feed]]\ntitle = \"x\"\n", vec!["line 1", "id"]),
        ("[[feed]]\nid = \"aa\"\nttl = \"soon\"\n", vec!["line 3", "soon"]),
        ("[[feed]]\nid = \"aa\"\nttl = 0\n", vec!["aa", "ttl"]),
        ("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"x\"\nevery = \"-1s\"\n", vec!["line 5", "-1s"]),
        ("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"x\"\nformat = \"yaml\"\n", vec!["line 5", "yaml"]),
        (
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"x\"\nformat = \"json\"\n",
            vec!["aa", "[feed.source.json]"],
        ),
        (
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"x\"\nformat = \"json\"\n[feed.source.json]\nitems = \"a\"\nid = \"/i\"\n",
            vec!["aa", "items"],
        ),
        ("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"gopher://x/\"\n", vec!["aa", "gopher"]),
        ("[[feed]]\nid = \"aa\"\n[feed.source]\nfollow = \"not an address\"\n", vec!["aa", "not an address"]),
        ("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"x\"\nfollow = \"http://x/\"\n", vec!["aa", "both"]),
        (
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"x\"\n[feed.source.guard]\nmax_removed = 7\n",
            vec!["aa", "max_removed"],
        ),
        (
            "[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"http://x/\"\n[feed.source.headers]\n\"a b\" = \"c\"\n",
            vec!["aa", "a b"],
        ),
        ("[server]\nlisten = \"here\"\n", vec!["line 2", "listen"]),
        ("[server]\nthreads = 0\n", vec!["threads"]),
        ("[server]\nfetches = 0\n", vec!["fetches"]),
        ("[risk]\nrules = \"missing.toml\"\n", vec!["missing.toml"]),
        ("[server\n", vec!["line 1"]),
        ("\u{0}", vec!["line 1"]),
    ] {
        let place = Place::new(text);
        for command in ["run", "serve"] {
            let output = place.run(&[command]);
            let told = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{text}: {told}");
            for place in &places {
                assert!(told.contains(place), "{place} of {text}: {told}");
            }
        }
    }
    let place = Place::new("");
    let missing = place.run(&["run", "--config", "nowhere.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("nowhere.toml"));
    let latin = Place::new("");
    latin.write("towpath.toml", b"[[feed]]\nid = \"aa\"\ntitle = \"\xe9\"\n");
    assert_eq!(latin.run(&["run"]).status.code(), Some(2));
}

/// What would be published to a feed that shows another one's items, nobody would see.
#[test]
fn a_feed_without_a_log_is_not_published_to() {
    let filter =
        "[[feed]]\nid = \"all\"\n[[feed]]\nid = \"few\"\nfilter = { of = \"all\", tags = [\"x\"] }\n";
    let place = Place::new(filter);
    for command in [&["put", "few", "a", "--title", "A"][..], &["snapshot", "few"]] {
        let output = place.run(command);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("feed few shows items of feed all: go to that one"), "{text}");
    }
    assert!(place.run(&["put", "all", "a", "--title", "A"]).status.success());
}
