//! Malformed input of every kind: an error with its position, or a problem; never a panic, never time or
//! memory beyond what the input's size warrants.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::mutate::mutants;
use towpath_proto::Timestamp;
use towpath_proto::format::document::{DocumentEntry, DocumentHead};
use towpath_proto::format::json_pointers::Mapping;
use towpath_proto::format::{FeedDocument, Format, FormatError, ReadOptions, atom, json_feed, read, rss};

fn auto(text: &str) -> Result<FeedDocument, FormatError> {
    read(text.as_bytes(), &ReadOptions::default())
}

fn atom(inner: &str) -> String {
    format!("<feed xmlns=\"http://www.w3.org/2005/Atom\">\n{inner}\n</feed>")
}

fn malformed(text: &str) -> (usize, usize, String) {
    match auto(text) {
        Err(FormatError::Malformed { line, column, reason }) => (line, column, reason),
        other => panic!("{other:?} of {text}"),
    }
}

/// Writes a parsed document in every format, and checks that each parses with an equal number of items.
fn goes_out_again(feed: &FeedDocument) {
    let head = DocumentHead::new("urn:feed", "feed", Timestamp::UNIX_EPOCH);
    let entries = || feed.items.iter().map(|item| DocumentEntry::new(item, Timestamp::UNIX_EPOCH));
    let documents =
        [atom::write(&head, entries()), rss::write(&head, entries()), json_feed::write(&head, entries())];
    for document in documents {
        let again = read(document.as_bytes(), &ReadOptions::default()).unwrap();
        assert_eq!(again.items.len(), feed.items.len(), "{document}");
        for (found, expected) in again.items.iter().zip(&feed.items) {
            assert_eq!(found.id, expected.id, "{document}");
            assert_eq!(found.content, expected.content, "{document}");
            assert_eq!(found.extra, expected.extra, "{document}");
        }
    }
}

fn catalogue() -> Mapping {
    Mapping {
        items: "/vulnerabilities".into(),
        id: "/cveID".into(),
        title: Some("/vulnerabilityName".into()),
        published: Some("/dateAdded".into()),
        tags: Some("/cwes".into()),
        ..Mapping::default()
    }
}

fn seeds(extensions: &[&str]) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let wanted = paths.iter().filter(|p| p.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)));
    wanted.map(|p| std::fs::read(p).unwrap()).collect()
}

#[test]
fn cut_off_xml_names_the_end_and_what_is_open() {
    for seed in seeds(&["xml", "rdf"]) {
        // In UTF-16 an odd length adds another problem.
        let text = String::from_utf8_lossy(&seed).into_owned();
        if text.contains('\0') || text.contains("windows-1251") {
            continue;
        }
        let end = text.trim_end().len();
        for at in (1..end).filter(|at| text.is_char_boundary(*at)) {
            match auto(&text[..at]) {
                Err(FormatError::Truncated { line, column, .. }) => assert!(line >= 1 && column >= 1),
                // Before the first element the document is not recognizable as a feed.
                Err(FormatError::Unknown(_)) => assert!(at < 400, "at {at}: {}", &text[..at]),
                other => panic!("cut off at {at}: {other:?}\n{}", &text[..at]),
            }
        }
    }
    let error = auto("<rss>\n<channel>\n <item><title>x").unwrap_err();
    let FormatError::Truncated { line: 3, column: 16, reason } = &error else { panic!("{error:?}") };
    assert!(reason.contains("<title> of line 3, column 8"), "{reason}");
}

#[test]
fn cut_off_json_names_the_end() {
    for seed in seeds(&["json"]) {
        let text = String::from_utf8(seed).unwrap();
        let mapping = catalogue();
        let options = ReadOptions { mapping: Some(&mapping), ..ReadOptions::default() };
        for at in (1..text.trim_end().len()).filter(|at| text.is_char_boundary(*at)) {
            for options in [&options, &ReadOptions::default()] {
                let error = read(&text.as_bytes()[..at], options).unwrap_err();
                assert!(matches!(error, FormatError::Truncated { .. }), "at {at}: {error:?}");
            }
        }
    }
    let error = auto("{\"items\": [\n  {\"id\": 1},\n  {\"id").unwrap_err();
    assert!(matches!(error, FormatError::Truncated { line: 3, column: 7, .. }), "{error:?}");
}

#[test]
fn ill_formed_xml_names_the_place() {
    assert_eq!(malformed(&atom("<title>a</titel>")).0, 2);
    let (line, column, reason) = malformed(&atom(" <title>AT&T & more</title>"));
    assert_eq!((line, column), (2, 11), "{reason}");
    let (line, column, reason) = malformed(&atom("<title>a &unknown; b</title>"));
    assert_eq!((line, column), (2, 10), "{reason}");
    assert!(reason.contains("unknown entity &unknown;"));
    let (line, _, reason) = malformed(&atom("\n<title>a &#xZZ; b</title>"));
    assert_eq!(line, 3, "{reason}");
    for bad in [
        "<title a>x</title>",
        "<title a=b>x</title>",
        "<title a='1' a='2'/>",
        // Rust's parser of numbers takes a plus sign; XML does not.
        "<title>&#+65;</title>",
        "< title/>",
    ] {
        assert_eq!(malformed(&atom(bad)).0, 2, "{bad}");
    }
    // XML 1.0, section 2.1: behind the root element only comments and instructions may follow.
    let (line, _, reason) = malformed(&(atom("") + "\n<!-- fine --><more/>"));
    assert_eq!(line, 4, "{reason}");
}

#[test]
fn undeclared_prefixes_name_the_place() {
    let (line, column, reason) = malformed(&atom(" <dc:creator>x</dc:creator>"));
    assert_eq!((line, column), (2, 2));
    assert!(reason.contains("<dc:"), "{reason}");
    let (line, _, reason) = malformed(&atom("<entry><id>urn:x</id>\n<rights x:y='1'/></entry>"));
    assert_eq!(line, 3);
    assert!(reason.contains("x:y"), "{reason}");
    let (_, _, reason) = malformed("<atom:feed/>");
    assert!(reason.contains("<atom:"), "{reason}");
}

#[test]
fn entities_of_a_dtd_are_never_expanded() {
    let bomb = "<?xml version='1.0'?><!DOCTYPE lolz [<!ENTITY lol 'lol'><!ENTITY lol2 '&lol;&lol;&lol;'>\n\
        <!ENTITY x SYSTEM 'file:///etc/passwd'>]>\n";
    for reference in ["lol2", "lol", "x"] {
        for place in [
            "<title>&E;</title>",
            "<entry><id>a</id><x y='&E;'/></entry>",
            "<entry><id>a</id><z>&E;</z></entry>",
        ] {
            let text = bomb.to_owned() + &atom(&place.replace('E', reference));
            assert!(matches!(auto(&text), Err(FormatError::Limit(_))), "{text}");
        }
    }
    // Declared but unused entities are harmless; so is the DOCTYPE of RSS 0.91.
    assert!(auto(&(bomb.to_owned() + &atom("<title>x&nbsp;y</title>"))).is_ok());
}

#[test]
fn nesting_has_a_limit() {
    // One level over the limit, and depths at which a recursive reader overflows its stack.
    for depth in [257, 10_000, 1_000_000] {
        let text = atom(&format!("<entry><id>a</id>{}{}</entry>", "<b>".repeat(depth), "</b>".repeat(depth)));
        assert!(matches!(auto(&text), Err(FormatError::Limit(_))), "{depth}");
    }
    let json = |depth: usize| {
        format!("{{\"items\":[{{\"id\":1,\"x\":{}{}}}]}}", "[".repeat(depth), "]".repeat(depth))
    };
    assert!(auto(&json(100)).is_ok());
    assert!(matches!(auto(&json(100_000)), Err(FormatError::Limit(_))));
    // Names must be unique (XML 1.0, section 3.1). Comparing all pairs takes 5 * 10^9 steps.
    let attributes: String = (0..100_000).map(|n| format!(" a{n}='1'")).collect();
    assert!(matches!(auto(&atom(&format!("<x{attributes}/>"))), Err(FormatError::Limit(_))));
    let namespaces: String = (0..200).map(|n| format!(" xmlns:a{n}='n'")).collect();
    assert!(matches!(auto(&atom(&format!("<x{namespaces}/>"))), Err(FormatError::Limit(_))));
}

/// Amplification: a small document with repeated parts is refused before it fills the memory.
#[test]
fn repetition_has_a_limit() {
    let feed = |attribute: &str, first: &str, each: &str| {
        let entries = format!("<entry><id>a</id>{each}</entry>").repeat(10_000);
        format!("<feed xmlns='http://www.w3.org/2005/Atom' {attribute}>{first}{entries}</feed>")
    };
    let json = |authors: &str, each: &str| {
        let items = vec![format!("{{\"id\":1{each}}}"); 10_000].join(",");
        format!("{{\"authors\":[{authors}],\"items\":[{items}]}}")
    };
    // 1 MiB for each of 10,000 entries: 10 GB from a document of less than 2 MB.
    let long = "n".repeat(1 << 20);
    let base = format!("https://a.example/{long}/");
    let author = "<author><name>A. Author</name></author>";
    let limit = |text: &str, base_url: Option<&str>| {
        let options = ReadOptions { base_url, ..ReadOptions::default() };
        match read(text.as_bytes(), &options) {
            Err(FormatError::Limit(reason)) => reason,
            other => panic!("{:?} of {}", other.map(|feed| feed.items.len()), &text[..60]),
        }
    };
    for text in [
        // RFC 4287, section 4.2.1: entries without an author have the feed's,
        // so 10,000 entries would hold 10,000 each.
        feed("", &author.repeat(10_000), ""),
        feed("", &author.replace("A. Author", &long), ""),
        json(&vec!["{\"name\":\"a\"}"; 10_000].join(","), ""),
        json(&format!("{{\"name\":\"{long}\"}}"), ""),
    ] {
        assert!(limit(&text, None).contains("authors"));
    }
    for (attribute, each) in [
        (format!("xmlns:x='{long}'"), "<x:y/>"),
        // Written again, each quotation mark takes six bytes.
        (format!("xmlns:x='{}'", long.replace('n', "\"")), "<x:y/>"),
        (format!("xml:base='{base}'"), "<link href='b'/>"),
        (format!("xml:base='{base}'"), "<link href='..'/>"),
        (format!("xml:base='{base}'"), "<link rel='related' href='b'/>"),
        (format!("xml:base='{base}'"), "<author><uri>b</uri></author>"),
    ] {
        let reason = limit(&feed(&attribute, "", each), None);
        // The reason names the long value's place, where a publisher can mend it.
        assert!(reason.contains("line 1, column 1"), "{reason}");
    }
    assert!(limit(&feed("", "", "<link href='b'/>"), Some(&base)).contains("relative"));
    assert!(limit(&json("", ",\"url\":\"b\""), Some(&base)).contains("relative"));
    // Real feeds stay far below the limit.
    let attributes = "xml:base='https://a.example/b/' xmlns:m='http://search.yahoo.com/mrss/'";
    let usual = auto(&feed(attributes, &author.repeat(3), "<link href='c'/><m:x/>")).unwrap();
    let item = &usual.items[9_999];
    assert_eq!((item.authors.len(), item.url.as_deref()), (3, Some("https://a.example/b/c")));
}

#[test]
fn what_is_no_feed_is_told_apart() {
    let unknown = |text: &str| match auto(text) {
        Err(FormatError::Unknown(reason)) => reason,
        other => panic!("{other:?} of {text}"),
    };
    assert!(unknown("").contains("empty") && unknown(" \r\n").contains("empty"));
    assert!(unknown("<!DOCTYPE html><html><body>Sign in</body></html>").contains("HTML page"));
    assert!(unknown("<html xmlns='http://www.w3.org/1999/xhtml'/>").contains("HTML page"));
    assert!(unknown("<opml version='2.0'/>").contains("<opml>"));
    assert!(unknown("Internal Server Error").contains("Internal Server"));
    assert!(unknown("{\"error\": 1}").contains("JSON"));
    assert!(unknown("[]").contains("JSON"));
    let as_atom = ReadOptions { format: Some(Format::Atom), ..ReadOptions::default() };
    assert!(matches!(read(b"<rss/>", &as_atom), Err(FormatError::Unknown(_))));
    assert!(matches!(read(b"{}", &as_atom), Err(FormatError::Unknown(_))));
}

#[test]
fn dates_that_are_none_and_entries_without_id_are_problems() {
    let feed =
        auto(&atom("<entry><id>a</id><updated>31 Foo</updated></entry><entry><updated/></entry>")).unwrap();
    assert_eq!((feed.items.len(), feed.items[0].updated), (1, None));
    assert_eq!(feed.problems.len(), 3, "{:?}", feed.problems);
    assert!(feed.problems.iter().all(|p| p.starts_with("line 2, column")), "{:?}", feed.problems);
    let many = atom(&"<entry><id>a</id><updated>never</updated></entry>".repeat(1000));
    let feed = auto(&many).unwrap();
    // Problems go to a log: the first hundred, and one line that counts the others.
    assert_eq!((feed.items.len(), feed.problems.len()), (1000, 101));
    assert_eq!(feed.problems[100], "and 900 more");
}

#[test]
fn characters_that_are_none_are_replaced_and_told() {
    let feed = auto(&atom("<title>a\u{1}b&#2;</title>")).unwrap();
    assert_eq!(feed.title.as_deref(), Some("a\u{fffd}b\u{fffd}"));
    assert_eq!(feed.problems.len(), 2);
    let feed = read(&[atom("<title>").as_bytes(), b"\xff"].concat()[..41 + 7], &ReadOptions::default());
    assert!(matches!(feed, Err(FormatError::Truncated { .. })));
}

#[test]
fn two_entries_with_one_id_both_stay() {
    let feed = auto(&atom(&"<entry><id>a</id></entry>".repeat(2))).unwrap();
    // The protocols disagree on which of them counts, so the reader drops none.
    assert_eq!(feed.items.len(), 2);
}

/// Time must grow linearly. For 16 times the input a quadratic algorithm takes 256 times as long; the margin
/// between 16 and 96 is for a busy machine.
#[test]
fn time_is_linear() {
    type Document = fn(usize) -> String;
    let documents: [(&str, Document); 10] = [
        ("entries", |n| atom(&"<entry><id>a</id><title>b</title></entry>".repeat(n))),
        ("references", |n| {
            atom(&format!("<entry><id>a</id><summary>{}</summary></entry>", "&lt;".repeat(n)))
        }),
        ("kept references", |n| {
            atom(&format!("<entry><id>a</id><x>{}</x></entry>", "&lt;<!---->".repeat(n)))
        }),
        ("kept elements", |n| atom(&format!("<entry><id>a</id><x>{}</x></entry>", "<y z='1'/>".repeat(n)))),
        ("bad dates", |n| atom(&"<entry><id>a</id><updated>x</updated></entry>\n".repeat(n))),
        ("sections", |n| {
            atom(&format!("<entry><id>a</id><title>{}</title></entry>", "<![CDATA[a]]>b".repeat(n)))
        }),
        ("tags", |n| {
            let tags: String = (0..n).map(|n| format!("<category term='{n}' label='l'/>")).collect();
            atom(&format!("<entry><id>a</id>{tags}</entry>"))
        }),
        ("deleted entries", |n| {
            let entry = |n| format!("<at:deleted-entry ref='{n}' when='2024-01-01T00:00:00Z'/>");
            let entries: String = (0..n).map(entry).collect();
            let feed = "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:at='http://purl.org/atompub/tombstones/1.0'>";
            format!("{feed}{entries}</feed>")
        }),
        ("problems in JSON", |n| format!("{{\"items\":[{}1]}}", "{\"a\":1},".repeat(n))),
        ("carriage returns", |n| atom(&"<entry><id>a</id><title>b\r</title></entry>\r".repeat(n))),
    ];
    let fastest = |text: &str| {
        let run = |_| {
            let start = Instant::now();
            let _ = auto(text);
            start.elapsed()
        };
        // The fastest run: other tests use the machine meanwhile.
        (0..3).map(run).min().unwrap_or_default()
    };
    for (name, document) in documents {
        let (small, large) = (fastest(&document(1_000)), fastest(&document(16_000)));
        let allowed = small * 96 + Duration::from_millis(50);
        assert!(large < allowed, "{name}: {small:?} for 1,000, {large:?} for 16,000");
    }
}

#[test]
fn damaged_xml_is_read_or_refused() {
    let tokens: &[&[u8]] = &[
        b"<",
        b">",
        b"</",
        b"/>",
        b"&",
        b";",
        b"&amp;",
        b"&nbsp;",
        b"&#x1;",
        b"]]>",
        b"<![CDATA[",
        b"<!--",
        b"-->",
        b"<?",
        b"?>",
        b"<!DOCTYPE a [<!ENTITY b 'c'>]>",
        b"xmlns=\"\"",
        b" xmlns:a='b'",
        // Not a URL, though everything relative is resolved against it.
        b"xml:base='//['",
        b" type=\"xhtml\"",
        b" type='image/png'",
        b"<a>",
        b"</a>",
        b"\"",
        b"'",
        b"\0",
        b"\xff",
        b"\r\n",
        b"<entry>",
        b"</entry>",
        b"<item>",
        b"</item>",
        b"<content>",
        b"</content>",
        b"xml:space='preserve'",
        b":",
        b"=",
    ];
    mutants(&seeds(&["xml", "rdf"]), tokens, 4_000, |bytes| {
        for base_url in [None, Some("https://a.example/b/c")] {
            if let Ok(feed) = read(bytes, &ReadOptions { base_url, ..ReadOptions::default() }) {
                goes_out_again(&feed);
            }
        }
    });
}

#[test]
fn damaged_json_is_read_or_refused() {
    let tokens: &[&[u8]] = &[
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"null",
        b"1e999",
        b"-0",
        b"\"id\":",
        b"\"authors\":[{}]",
        b"\\u0000",
        // Half of a surrogate pair, which no Rust string can hold.
        b"\\ud800",
        b"\"_towpath\":{\"content\":{\"base64\":\"*\"}}",
        b"\xff",
        b"true",
        b"\"tags\":[\"a\"]",
        b"{\"items\":[",
    ];
    let mapping = catalogue();
    mutants(&seeds(&["json"]), tokens, 4_000, |bytes| {
        for mapping in [None, Some(&mapping)] {
            if let Ok(feed) = read(bytes, &ReadOptions { mapping, ..ReadOptions::default() }) {
                goes_out_again(&feed);
            }
        }
    });
}
