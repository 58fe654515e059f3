//! Bad documents and bad configurations: an error that names the position, no loss of items, no panic.

use std::time::{Duration, Instant};

use crate::common::{TestFolder, stderr, stdout};

/// Configuration with one source per name, whose format is detected.
fn config(feeds: &[(&str, &str)]) -> String {
    let feed =
        |(id, file): &(&str, &str)| format!("[[feed]]\nid = \"{id}\"\n[feed.source]\nurl = \"{file}\"\n");
    feeds.iter().map(feed).collect()
}

/// Result of `towpath run` on one document.
struct RunResult {
    code: i32,
    state: String,
}

/// Runs one pass over one document. It must be quick, whatever the document holds.
fn pass(name: &str, document: &[u8]) -> RunResult {
    let dir = TestFolder::new(&config(&[("aa", name)]));
    dir.write(name, document);
    pass_in(&dir)
}

fn pass_in(dir: &TestFolder) -> RunResult {
    let began = Instant::now();
    let output = dir.run(&["run"]);
    let table = stdout(&output);
    let row = table.lines().nth(1).unwrap_or_else(|| panic!("{table}{}", stderr(&output)));
    assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    RunResult { code: output.status.code().unwrap(), state: row.to_owned() }
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
            let result = pass(name, &whole.as_bytes()[..end]);
            assert_eq!(result.code, 1, "{name} cut at {end}: {}", result.state);
            let names_position = result.state.contains("line ") || result.state.contains("byte ");
            assert!(
                result.state.contains("TRUNCATED") && names_position,
                "{name} cut at {end}: {}",
                result.state
            );
        }
    }
}

#[test]
fn a_cut_off_document_keeps_the_items() {
    let dir = TestFolder::new(&config(&[("aa", "a.rss")]));
    dir.write("a.rss", RSS.as_bytes());
    assert_eq!(pass_in(&dir).code, 0);
    dir.write("a.rss", &RSS.as_bytes()[..100]);
    assert_eq!(pass_in(&dir).code, 1);
    let server = dir.serve();
    for id in ["one", "two"] {
        assert_eq!(server.get(&format!("/feeds/aa/items/{id}?as=line")).status, 200);
    }
}

#[test]
fn entity_bombs_and_deep_documents_end_quickly() {
    // Billion laughs: expanded, the title would have 2 * 10^19 characters.
    let mut bomb = String::from("<?xml version=\"1.0\"?><!DOCTYPE rss [<!ENTITY a0 \"ha\">");
    for n in 1..20 {
        bomb.push_str(&format!("<!ENTITY a{n} \"{}\">", format!("&a{};", n - 1).repeat(10)));
    }
    bomb.push_str(
        "]><rss version=\"2.0\"><channel><item><guid>1</guid><title>&a19;</title></item></channel></rss>",
    );
    // An external entity would publish a file of this machine.
    let outside = "<?xml version=\"1.0\"?><!DOCTYPE rss [<!ENTITY x SYSTEM \"file:///etc/passwd\">]>\
                   <rss version=\"2.0\"><channel><item><guid>1</guid><title>&x;</title></item></channel></rss>";
    for document in [bomb.as_str(), outside] {
        let dir = TestFolder::new(&config(&[("aa", "a.rss")]));
        dir.write("a.rss", document.as_bytes());
        let result = pass_in(&dir);
        let server = dir.serve();
        let served = server.get("/feeds/aa/items/1?as=line").text();
        assert!(!served.contains("haha") && !served.contains("root:"), "{served}");
        assert!(result.state.len() < 2000, "{}", result.state);
    }
    // A recursive reader would overflow its stack, which ends the whole process.
    let deep_xml = format!("<rss version=\"2.0\"><channel>{}", "<a>".repeat(300_000));
    let deep_json =
        format!("{{\"version\":\"https://jsonfeed.org/version/1\",\"items\":{}", "[".repeat(300_000));
    // Comparing all pairs of attributes would take 10^9 steps.
    let attributes: String = (0..50_000).map(|n| format!(" a{n}=\"x\"")).collect();
    let wide = format!("<rss version=\"2.0\"{attributes}><channel>");
    for (name, document) in [("a.rss", deep_xml), ("a.json", deep_json), ("b.rss", wide)] {
        let result = pass(name, document.as_bytes());
        assert_eq!(result.code, 1, "{}", result.state);
    }
}

#[test]
fn a_document_that_is_no_feed_is_named() {
    let html = "<!DOCTYPE html><html><head><title>Sign in</title></head><body><p>Sign in</body></html>";
    let garbage: Vec<u8> = (0..5000_u32).map(|n| ((n * 7919) >> 3) as u8).collect();
    for document in [html.as_bytes(), b"", b"   \n", b"null", b"[1,2,3]", b"\x00\x00\x00", garbage.as_slice()]
    {
        let result = pass("a.xml", document);
        assert_eq!(result.code, 1, "{}", result.state);
        assert!(result.state.contains("PARSE_ERROR: a.xml: "), "{}", result.state);
    }
}

#[test]
fn duplicates_bad_dates_and_odd_ids() {
    // One byte over the limit on ids, and exactly at it.
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
    let dir = TestFolder::new(&config(&[("aa", "a.json")]));
    dir.write("a.json", items.to_string().as_bytes());
    let result = pass_in(&dir);
    assert_eq!(result.code, 0, "{}", result.state);
    assert!(result.state.contains("left out"), "{}", result.state);
    let server = dir.serve();
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
    // Thirteen items, without one repeated id, one too long, one empty and one missing.
    assert_eq!(server.json("/feeds/aa")["seq"], 9);
    let when = server.json("/feeds/aa/items/when?as=line");
    assert!(when["item"]["published"].is_null() && when["item"]["updated"].is_null(), "{when}");
}

#[test]
fn invalid_configurations_are_refused() {
    for (text, positions) in [
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
        let dir = TestFolder::new(text);
        for command in ["run", "serve"] {
            let output = dir.run(&[command]);
            let result = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{text}: {result}");
            for position in &positions {
                assert!(result.contains(position), "{position} of {text}: {result}");
            }
        }
    }
    let dir = TestFolder::new("");
    let missing = dir.run(&["run", "--config", "nowhere.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("nowhere.toml"));
    let latin = TestFolder::new("");
    // Latin-1, as an editor may have saved it; the file must be UTF-8.
    latin.write("towpath.toml", b"[[feed]]\nid = \"aa\"\ntitle = \"\xe9\"\n");
    assert_eq!(latin.run(&["run"]).status.code(), Some(2));
}

/// A filter feed shows another feed's items, so items published to it would be invisible.
#[test]
fn a_feed_without_a_log_is_not_published_to() {
    let filter =
        "[[feed]]\nid = \"all\"\n[[feed]]\nid = \"few\"\nfilter = { of = \"all\", tags = [\"x\"] }\n";
    let dir = TestFolder::new(filter);
    for command in [&["put", "few", "a", "--title", "A"][..], &["snapshot", "few"]] {
        let output = dir.run(command);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("feed few shows items of feed all: go to that one"), "{text}");
    }
    assert!(dir.run(&["put", "all", "a", "--title", "A"]).status.success());
}

#[test]
fn an_impossible_start_says_what_to_do() {
    let dir = TestFolder::new("");
    let server = dir.serve();
    let port = server.base.rsplit(':').next().unwrap();
    let refusal = |dir: &TestFolder, args: &[&str]| {
        let output = dir.run(args);
        assert_eq!(stdout(&output), "");
        (output.status.code(), stderr(&output))
    };
    let (code, message) = refusal(&TestFolder::new(""), &["serve", "--listen", &format!("127.0.0.1:{port}")]);
    assert_eq!(code, Some(1));
    assert!(message.contains("the port is in use") && message.contains("--listen"), "{message}");
    let (code, message) = refusal(&dir, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(1));
    assert!(message.contains("another process") && message.contains("--data"), "{message}");
    let elsewhere = TestFolder::new("");
    let (code, message) = refusal(&elsewhere, &["serve", "--config", "examples/quickstart.toml"]);
    assert_eq!(code, Some(2));
    let searched = elsewhere.folder.path().canonicalize().unwrap();
    assert!(message.contains(&searched.display().to_string()), "{message}");
    assert!(message.contains("absolute path"), "{message}");
}

/// A malformed date costs the date only. Counted as left out, it made a whole document look incomplete.
#[test]
fn what_was_left_out_is_counted_apart_from_warnings() {
    let item =
        |id: &str, date: &str| format!("<item>{id}<title>t{date}</title><pubDate>{date}</pubDate></item>");
    let items: String = (0..6).map(|n| item(&format!("<guid>{n}</guid>"), "soon")).collect();
    let result = pass("a.rss", format!("<rss><channel>{items}</channel></rss>").as_bytes());
    assert!(result.state.contains("ok, 6 warnings: line 1"), "{}", result.state);
    let nothing = "<item></item>".repeat(2);
    let twice = "<item><guid>1</guid><title>other</title></item>";
    let text = format!("<rss><channel>{items}{nothing}{twice}</channel></rss>");
    let result = pass("a.rss", text.as_bytes());
    assert!(result.state.contains("ok, 3 left out, 6 warnings: line 1"), "{}", result.state);
    // Beyond the hundred that are listed, too.
    let result = pass("a.rss", format!("<rss><channel>{}</channel></rss>", nothing.repeat(150)).as_bytes());
    assert!(result.state.contains("ok, 300 left out: line 1"), "{}", result.state);
}
