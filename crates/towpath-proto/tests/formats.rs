//! Golden tests of publishers' documents: each document in `data/formats` has the lines of its items in
//! `*.items.ndjson`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::path::{Path, PathBuf};

use towpath_proto::Op;
use towpath_proto::format::json_pointers::Mapping;
use towpath_proto::format::{FeedDocument, Format, FormatError, ReadOptions, read};
use towpath_proto::line::Line;

const BASE: &str = "https://from.example/dir/doc";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats").join(name)
}

fn options() -> ReadOptions<'static> {
    ReadOptions { base_url: Some(BASE), ..ReadOptions::default() }
}

/// Parses a document and compares its items with the golden lines. `UPDATE_GOLDEN=1` rewrites them.
fn golden(name: &str, options: &ReadOptions) -> FeedDocument {
    let feed = read(&std::fs::read(data(name)).unwrap(), options).unwrap();
    let lines = feed.items.iter().map(|item| {
        let line = Line::new(Op::Put, item, None);
        serde_json::to_string(&line).unwrap() + "\n"
    });
    let lines: String = lines.collect();
    let golden = data(&format!("{name}.items.ndjson"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &lines).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    for (index, (found, expected)) in lines.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "item {} of {name}", index + 1);
    }
    assert_eq!(lines.lines().count(), expected.lines().count(), "items of {name}");
    feed
}

fn rels(feed: &FeedDocument) -> Vec<(&str, &str)> {
    feed.links.iter().map(|l| (l.rel.as_str(), l.href.as_str())).collect()
}

#[test]
fn atom_with_a_prefix_bases_and_extensions() {
    let feed = golden("atom-prefixed.xml", &options());
    assert_eq!(feed.format, Format::Atom);
    assert_eq!(feed.title.as_deref(), Some("dive into mark & more"));
    assert_eq!((feed.lang.as_deref(), feed.home.as_deref()), (Some("en-GB"), Some("http://example.org/")));
    // Feed History -00, section 3: white space in the flag is ignored.
    assert_eq!((feed.stateful, feed.is_complete()), (Some(true), false));
    assert_eq!(feed.link("self"), Some("http://example.org/base/feed.atom"));
    // RFC 4287, section 4.2.7.2: registered relations may be written as IRIs.
    assert_eq!(feed.link("prev-archive"), Some("http://example.org/base/archive/7"));
    assert_eq!(feed.link("this"), Some("https://cdn.example.org/snapshots/8"));
    assert_eq!(feed.link("hub"), Some("https://hub.example.org/"));
    let sup = feed.link("http://api.friendfeed.com/2008/03#sup");
    assert_eq!(sup, Some("http://example.org/sup.json#4496672d"));
    // RFC 6721, section 3.
    assert_eq!(feed.deleted.len(), 1);
    assert_eq!(feed.deleted[0].id, "tag:example.org,2003:3.1000");
    assert_eq!(feed.deleted[0].when, "2005-07-31T22:00:00Z".parse().ok());
    assert_eq!(feed.problems, ["line 48, column 5: <atom:updated> is not a date: \"not a date\""]);
}

#[test]
fn atom_0_3() {
    let feed = golden("atom-0.3.xml", &options());
    assert_eq!((feed.format, feed.problems.len()), (Format::Atom, 0));
}

#[test]
fn rss_2_0_with_modules() {
    let feed = golden("rss-2.0.xml", &options());
    assert_eq!(feed.title.as_deref(), Some("Canal & Towpath"));
    assert_eq!((feed.lang.as_deref(), feed.home.as_deref()), (Some("en-US"), Some("https://blog.example/")));
    assert_eq!(feed.stateful, Some(true));
    let expected =
        [("self", "https://blog.example/feed/"), ("prev-archive", "https://blog.example/feed/?page=2")];
    assert_eq!(rels(&feed), expected);
    assert_eq!(feed.problems.len(), 2, "{:?}", feed.problems);
    // What is left out comes first.
    assert!(feed.problems[0].contains("without id, link, title and text"));
    assert!(feed.problems[1].ends_with("<pubDate> is not a date: \"soon\""));
}

#[test]
fn older_rss() {
    for name in ["rss-0.90.rdf", "rss-0.91.xml", "rss-0.92.xml", "rss-1.0.rdf"] {
        let feed = golden(name, &options());
        assert_eq!((feed.format, feed.problems.len()), (Format::Rss, 0), "{name}");
        assert!(feed.title.is_some() && feed.home.is_some(), "{name}");
    }
}

#[test]
fn other_character_sets() {
    for name in ["rss-windows-1251.xml", "rss-utf-16.xml"] {
        let feed = golden(name, &options());
        assert_eq!((feed.title.as_deref(), feed.problems.len()), (Some("Новости"), 0), "{name}");
    }
}

#[test]
fn json_feed() {
    let feed = golden("feed.json", &options());
    assert_eq!(feed.format, Format::JsonFeed);
    assert_eq!(feed.lang.as_deref(), Some("en"));
    let expected = [
        ("self", "https://jsonfeed.example/feed.json"),
        ("next", "https://from.example/dir/feed.json?page=2"),
        ("hub", "https://hub.example/"),
    ];
    assert_eq!(rels(&feed), expected);
    assert_eq!(feed.problems.len(), 3, "{:?}", feed.problems);
}

fn catalogue() -> Mapping {
    Mapping {
        items: "/vulnerabilities".into(),
        id: "/cveID".into(),
        url: Some("https://nvd.example/vuln/{/cveID}?v={/vendor}".into()),
        title: Some("/vulnerabilityName".into()),
        summary: Some("/shortDescription".into()),
        tags: Some("/cwes".into()),
        published: Some("/dateAdded".into()),
        ..Mapping::default()
    }
}

#[test]
fn any_json_through_pointers() {
    let mapping = catalogue();
    let feed = golden("catalogue.json", &ReadOptions { mapping: Some(&mapping), ..options() });
    assert_eq!((feed.format, feed.items.len()), (Format::Json, 3));
    let expected = [
        "item 4, \"/cveID\": the item has no id and was left out",
        "item 3, \"/vulnerabilityName\": an array is there instead of text",
        "item 3, \"/cwes\": a value that is not text was skipped",
        "item 3, \"/dateAdded\": this is not a date: \"last week\"",
    ];
    assert_eq!(feed.problems, expected);
}

/// Distinct numbers of any size and precision are distinct ids, and content stays unchanged.
#[test]
fn numbers_in_any_json_stay_as_they_are_written() {
    let document = r#"{"list": [
        {"v": 1.50, "id": 18446744073709551616, "n": {"big": [18446744073709551617]}},
        {"id": 18446744073709551617, "v": 1, "v": -0},
        {"id": -9223372036854775809}, {"id": 7}, {"id": 0.1}, {"id": 0.10}
    ]}"#;
    let mapping = Mapping {
        items: "/list".into(),
        id: "/id".into(),
        url: Some("https://x.example/{/id}".into()),
        title: Some("/n/big/0".into()),
        ..Mapping::default()
    };
    let options = ReadOptions { mapping: Some(&mapping), format: Some(Format::Json), ..options() };
    let items = read(document.as_bytes(), &options).unwrap().items;
    let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
    let expected =
        // 0.1 and 0.10 are equal as numbers and different as ids.
        ["18446744073709551616", "18446744073709551617", "-9223372036854775809", "7", "0.1", "0.10"];
    assert_eq!(ids, expected);
    assert_eq!(items[0].url.as_deref(), Some("https://x.example/18446744073709551616"));
    assert_eq!(items[0].title.as_deref(), Some("18446744073709551617"));
    let content = |index: usize| items[index].content.as_ref().unwrap().text().unwrap();
    assert_eq!(content(0), r#"{"id":18446744073709551616,"n":{"big":[18446744073709551617]},"v":1.50}"#);
    assert_eq!(content(1), r#"{"id":18446744073709551617,"v":-0}"#, "of one name's values the last");
    let mapping = Mapping { content: Some("/n".into()), ..mapping.clone() };
    let options = ReadOptions { mapping: Some(&mapping), ..options };
    let items = read(document.as_bytes(), &options).unwrap().items;
    assert_eq!(items[0].content.as_ref().unwrap().text(), Some(r#"{"big":[18446744073709551617]}"#));
}

#[test]
fn pointers_that_find_nothing() {
    let document = std::fs::read(data("catalogue.json")).unwrap();
    let error = |mapping: &Mapping| {
        read(&document, &ReadOptions { mapping: Some(mapping), ..options() }).unwrap_err().to_string()
    };
    let wrong = |change: fn(&mut Mapping)| {
        let mut mapping = catalogue();
        change(&mut mapping);
        error(&mapping)
    };
    assert_eq!(wrong(|m| m.items = "/no".into()), "\"/no\": nothing is there instead of an array or object");
    assert_eq!(
        wrong(|m| m.items = "/count".into()),
        "\"/count\": a number is there instead of an array or object"
    );
    assert_eq!(wrong(|m| m.id = "/no".into()), "\"/no\": nothing is there in any of the 4 items");
    assert!(wrong(|m| m.title = Some("name".into())).contains("must begin with /"));
    let unclosed = wrong(|m| m.url = Some("https://x/{/y?a={/cveID}".into()));
    assert!(unclosed.contains("url has a { without its }") && unclosed.contains("/y?a="), "{unclosed}");
    let no_pointer = wrong(|m| m.url = Some("https://x/{cveID}".into()));
    assert!(no_pointer.contains("{cveID}") && no_pointer.contains("must begin with /"), "{no_pointer}");
    // Without a mapping JSON is no feed: guessed members would give wrong items.
    let no_mapping = ReadOptions { format: Some(Format::Json), ..options() };
    assert!(matches!(read(&document, &no_mapping), Err(FormatError::Mapping { .. })));
    assert!(matches!(read(&document, &options()), Err(FormatError::Unknown(_))));
}

/// An object of items often has counts and times beside them, and a failing service answers with an error alone.
#[test]
fn values_that_are_no_objects_are_items_only_where_the_mapping_reads_them() {
    let document = br#"{"count": 2, "a": {"t": "One"}, "ok": true, "b": null, "next": "x", "c": ["Two"]}"#;
    let mapping = Mapping { id: "#key".into(), title: Some("/t".into()), ..Mapping::default() };
    let of = |mapping: &Mapping, document: &[u8]| {
        read(document, &ReadOptions { mapping: Some(mapping), format: Some(Format::Json), ..options() })
    };
    let feed = of(&mapping, document).unwrap();
    let ids: Vec<_> = feed.items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!((ids, feed.counts.left_out), (vec!["a", "c"], 4));
    assert_eq!(
        feed.problems[0],
        "item 1, \"count\": a number is there instead of an object and was left out"
    );
    let error = of(&mapping, br#"{"error": "busy", "code": 7}"#).unwrap_err().to_string();
    assert!(error.contains("none of the 2 members is an object"), "{error}");
    // Rates by name, and a list of names: the mapping takes the values themselves.
    let rates = Mapping { id: "#key".into(), ..Mapping::default() };
    let feed = of(&rates, br#"{"EUR": 1.10, "USD": 1, "XXX": null}"#).unwrap();
    let contents: Vec<_> =
        feed.items.iter().map(|item| item.content.as_ref().unwrap().text().unwrap()).collect();
    assert_eq!((contents, feed.counts.left_out), (vec!["1.10", "1"], 1));
    let names = Mapping {
        title: Some(String::new()),
        url: Some("https://x.example/{}".into()),
        ..Mapping::default()
    };
    let feed = of(&names, br#"["Oak", "Elm"]"#).unwrap();
    assert_eq!((feed.items.len(), feed.items[1].url.as_deref()), (2, Some("https://x.example/Elm")));
}

/// Issue of many readers: `<img src="/i.png">` means nothing to those who get the item from elsewhere.
#[test]
fn relative_addresses_in_contents_are_resolved_where_they_are_read() {
    let text = |text: &str| read(text.as_bytes(), &options()).unwrap().items.remove(0);
    let content = |item: &towpath_proto::Item| item.content.as_ref().unwrap().text().unwrap().to_owned();
    let atom = text(
        "<feed xmlns='http://www.w3.org/2005/Atom' xml:base='/b/'><entry><id>1</id>\
         <summary type='html'>&lt;a href='s'&gt;</summary>\
         <content type='html' xml:base='c/'>&lt;img src=\"i.png\" alt='/x'&gt; &lt;a href=#n&gt;</content></entry></feed>",
    );
    assert_eq!(content(&atom), "<img src=\"https://from.example/b/c/i.png\" alt='/x'> <a href=#n>");
    assert_eq!(atom.summary.as_deref(), Some("<a href='https://from.example/b/s'>"));
    let xhtml = text(
        "<feed xmlns='http://www.w3.org/2005/Atom'><entry><id>1</id><content type='xhtml' xml:base='/b/'>\
         <div xmlns='http://www.w3.org/1999/xhtml'><img src='i.png'/><a href='https://a.example/'  >x</a></div></content></entry></feed>",
    );
    assert_eq!(
        content(&xhtml),
        "<div xmlns='http://www.w3.org/1999/xhtml'><img src=\"https://from.example/b/i.png\"/>\
         <a href='https://a.example/'  >x</a></div>"
    );
    let rss = text(
        "<rss version='2.0' xmlns:c='http://purl.org/rss/1.0/modules/content/' xmlns:m='http://search.yahoo.com/mrss/'>\
         <channel><item><guid>1</guid><description><![CDATA[<a href=d>]]></description>\
         <c:encoded><![CDATA[<a href='/e'>]]></c:encoded><m:thumbnail url='/t.png'/></item></channel></rss>",
    );
    assert_eq!(content(&rss), "<a href='https://from.example/e'>");
    assert_eq!(rss.summary.as_deref(), Some("<a href=https://from.example/dir/d>"));
    assert!(rss.extra["xml"][0].as_str().unwrap().contains("url=\"https://from.example/t.png\""), "{rss:?}");
    let json = text(
        "{\"version\":\"https://jsonfeed.org/version/1.1\",\"items\":[{\"id\":\"1\",\"content_html\":\"<a href=e>\",\
         \"image\":\"/i.png\",\"attachments\":[{\"url\":\"a.mp3\",\"mime_type\":\"audio/mpeg\"}]}]}",
    );
    assert_eq!(content(&json), "<a href=https://from.example/dir/e>");
    assert_eq!(json.extra["json_feed"]["image"], "https://from.example/i.png");
    assert_eq!(json.extra["json_feed"]["attachments"][0]["url"], "https://from.example/dir/a.mp3");
}

/// `xml:base` nests, in every format that is XML.
#[test]
fn xml_base_counts_within_contents() {
    let content = |text: &str| {
        let item = read(text.as_bytes(), &options()).unwrap().items.remove(0);
        item.content
            .as_ref()
            .and_then(|content| content.text())
            .or(item.summary.as_deref())
            .unwrap()
            .to_owned()
    };
    let rss = "<rss version='2.0' xml:base='https://cdn.example/a/'><channel xml:base='b/'><item xml:base='c/'><guid>1</guid>\
        <description>&lt;img src='i.png'&gt;</description></item></channel></rss>";
    assert_eq!(content(rss), "<img src='https://cdn.example/a/b/c/i.png'>");
    let xhtml = "<feed xmlns='http://www.w3.org/2005/Atom' xml:base='https://cdn.example/'><entry><id>1</id>\
        <content type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml' xml:base='d/'><p xml:base='e/'><img src='i.png'/></p>\
        <a href='x'>x</a></div></content></entry></feed>";
    let xhtml = content(xhtml);
    assert!(xhtml.contains("src=\"https://cdn.example/d/e/i.png\""), "{xhtml}");
    assert!(xhtml.contains("href=\"https://cdn.example/d/x\"") && !xhtml.contains("xml:base"), "{xhtml}");
}

/// A published item may have relative addresses: they lead to the item's page, not to our own host, and our
/// reader finds the item as it was.
#[test]
fn no_address_is_relative_to_our_own_document() {
    use towpath_proto::format::document::{DocumentEntry, DocumentHead};
    use towpath_proto::format::{atom, json_feed, rss};
    use towpath_proto::{Content, Item};

    let item = Item {
        url: Some("https://blog.example/2025/lock".into()),
        content: Some(Content::new("text/html", "<img src='/i.png'>")),
        ..Item::new("1")
    };
    let head = DocumentHead::new("https://ours.example/feeds/x", "X", towpath_proto::Timestamp::UNIX_EPOCH);
    let entries = || [DocumentEntry::new(&item, head.updated)];
    let base = "xml:base=\"https://blog.example/2025/lock\"";
    for (written, shown) in [
        (atom::write(&head, entries()), base),
        (rss::write(&head, entries()), base),
        (json_feed::write(&head, entries()), "<img src='https://blog.example/i.png'>"),
    ] {
        assert!(written.contains(shown), "{written}");
        let ours =
            ReadOptions { base_url: Some("https://ours.example/feeds/x/atom"), ..ReadOptions::default() };
        assert_eq!(read(written.as_bytes(), &ours).unwrap().items, std::slice::from_ref(&item), "{written}");
    }
}

/// An item without a URL of its own is a part of its feed's page. Readers of Atom take the document's own URL first
/// (RFC 3986, section 5.1.3); RSS and JSON Feed have no such rule.
#[test]
fn items_without_url_are_resolved_against_the_feeds_page() {
    const HOME: &str = "https://blog.example/w/";
    let page = "<a href='a'>&lt;";
    let escaped = "&lt;a href='a'>&amp;lt;";
    let atom = format!(
        "<feed xmlns='http://www.w3.org/2005/Atom'><link href='{HOME}'/><entry><id>1</id>\
         <content type='html'>{escaped}</content></entry></feed>"
    );
    let rss = format!(
        "<rss version='2.0' xmlns:m='http://search.yahoo.com/mrss/'><channel><link>{HOME}</link>\
         <item><guid isPermaLink='false'>1</guid><link>p</link><description>{escaped}</description>\
         <m:thumbnail url='t.png'/><enclosure url='e.mp3'/></item></channel></rss>"
    );
    let json = serde_json::json!({
        "version": "https://jsonfeed.org/version/1.1",
        "items": [{"id": "1", "content_html": page, "image": "t.png"}],
        "home_page_url": HOME,
    });
    for (format, document, known, alone) in [
        ("atom", atom, "https://from.example/dir/a", "https://blog.example/w/a"),
        ("rss", rss, "https://blog.example/w/a", "https://blog.example/w/a"),
        ("json", json.to_string(), "https://blog.example/w/a", "https://blog.example/w/a"),
    ] {
        for (options, expected) in [(options(), known), (ReadOptions::default(), alone)] {
            let item = read(document.as_bytes(), &options).unwrap().items.remove(0);
            let shown = item.content.as_ref().and_then(|content| content.text()).or(item.summary.as_deref());
            assert_eq!(shown, Some(format!("<a href='{expected}'>&lt;").as_str()), "{format}");
            if format != "atom" {
                let extra = serde_json::to_string(&item.extra).unwrap();
                assert!(extra.contains("https://blog.example/w/t.png"), "{format}: {extra}");
            }
            if format == "rss" {
                assert_eq!(item.url.as_deref(), Some("https://blog.example/w/p"));
                let extra = serde_json::to_string(&item.extra).unwrap();
                assert!(extra.contains("https://blog.example/w/e.mp3"), "{extra}");
            }
        }
    }
    // The base of the text itself comes before both.
    let based = format!(
        "<rss version='2.0' xml:base='https://cdn.example/x/'><channel><link>{HOME}</link>\
         <item><guid>1</guid><description>&lt;img src='i'></description></item></channel></rss>"
    );
    let item = read(based.as_bytes(), &options()).unwrap().items.remove(0);
    assert_eq!(item.summary.as_deref(), Some("<img src='https://cdn.example/x/i'>"));
    // Links of the feed itself are the document's own.
    let paged = format!(
        "<rss version='2.0' xmlns:a='http://www.w3.org/2005/Atom'><channel><link>{HOME}</link>\
         <a:link rel='next' href='?page=2'/></channel></rss>"
    );
    let feed = read(paged.as_bytes(), &options()).unwrap();
    assert!(feed.link("next").unwrap().starts_with("https://from.example/"), "{:?}", feed.links);
}

/// JSON has no base of its own: HTML in it is a part of the item's page, or else of the document.
#[test]
fn addresses_in_mapped_json_are_resolved() {
    let mapping = Mapping {
        id: "/id".into(),
        url: Some("/url".into()),
        content: Some("/html".into()),
        ..Mapping::default()
    };
    let document =
        br#"[{"id": 1, "url": "/p/1", "html": "<img src=i.png>"}, {"id": 2, "html": "<img src=i.png>"}]"#;
    let options = ReadOptions { mapping: Some(&mapping), ..options() };
    let items = read(document, &options).unwrap().items;
    let texts: Vec<_> = items.iter().map(|item| item.content.as_ref().unwrap().text().unwrap()).collect();
    assert_eq!(texts, ["<img src=https://from.example/p/i.png>", "<img src=https://from.example/dir/i.png>"]);
}

/// A page from a file has the URL that it says of itself.
#[test]
fn addresses_in_pages_are_resolved() {
    use towpath_proto::format::HtmlMapping;

    let html = HtmlMapping { items: "article".into(), ..HtmlMapping::default() };
    let page = "<title>T</title><link rel=canonical href='https://blog.example/w/'><article><a href=p>x</a>\
        <video poster=v.png></video><img srcset='a.png 1x, /b.png 2x'></article>";
    let content = |options: &ReadOptions| {
        let item = read(page.as_bytes(), options).unwrap().items.remove(0);
        item.content.unwrap().text().unwrap().to_owned()
    };
    let alone = ReadOptions { format: Some(Format::Html), html: Some(&html), ..ReadOptions::default() };
    for (options, base) in [
        (alone.clone(), "https://blog.example"),
        (ReadOptions { base_url: Some("https://from.example/w/x"), ..alone }, "https://from.example"),
    ] {
        let content = content(&options);
        for address in ["href=\"/w/p\"", "poster=\"/w/v.png\"", "srcset=\"/w/a.png 1x, /b.png 2x\""] {
            let expected =
                address.replace("\"/", &format!("\"{base}/")).replace(", /", &format!(", {base}/"));
            assert!(content.contains(&expected), "{expected} in {content}");
        }
    }
}

/// Nobody knows what the relative addresses of an item without URL lead to in a feed without a page, except that it is
/// nothing on our own host.
#[test]
fn addresses_without_any_base_lead_nowhere() {
    use towpath_proto::format::document::{DocumentEntry, DocumentHead};
    use towpath_proto::format::{atom, json_feed, rss};
    use towpath_proto::{Content, Item};

    let content = |media_type: &str, text: &str| Item {
        content: Some(Content::new(media_type, text.to_owned())),
        ..Item::new("1")
    };
    let html = content("text/html", "<img src='/i.png'>");
    let xhtml = content(
        "application/xhtml+xml",
        "<div xmlns=\"http://www.w3.org/1999/xhtml\"><img src=\"/i.png\"/></div>",
    );
    let mut head =
        DocumentHead::new("https://ours.example/feeds/x", "X", towpath_proto::Timestamp::UNIX_EPOCH);
    // A feed without a page has ours.
    let ours = Some("https://ours.example/feeds/x");
    for (told, home) in
        [(None, None), (ours, None), (Some("https://blog.example/w/"), Some("https://blog.example/w/"))]
    {
        head.home = told;
        for item in [&html, &xhtml] {
            let entries = || [DocumentEntry::new(item, head.updated)];
            let base = format!("xml:base=\"{}\"", home.unwrap_or("about:invalid"));
            let resolved = home.map_or("about:invalid#/i.png", |_| "https://blog.example/i.png");
            for (written, shown) in [
                (atom::write(&head, entries()), base.as_str()),
                (rss::write(&head, entries()), base.as_str()),
                (json_feed::write(&head, entries()), resolved),
            ] {
                assert!(written.contains(shown), "{shown} in {written}");
                let ours = ReadOptions {
                    base_url: Some("https://ours.example/feeds/x/atom"),
                    ..ReadOptions::default()
                };
                let read = read(written.as_bytes(), &ours).unwrap();
                assert_eq!(read.items, std::slice::from_ref(item), "{written}");
            }
        }
    }
}

/// RFC 4287, section 4.1.3.3: XML is a child element, not Base 64.
#[test]
fn xml_stays_xml_in_atom() {
    use towpath_proto::format::atom;
    use towpath_proto::format::document::{DocumentEntry, DocumentHead};
    use towpath_proto::{Content, Item};

    let head = DocumentHead::new("https://ours.example/feeds/x", "X", towpath_proto::Timestamp::UNIX_EPOCH);
    for (document, shown) in [
        ("<?xml version=\"1.0\"?>\n<a><b/></a>\n", "<a xmlns=\"\"><b/></a>"),
        ("<a><b/></a>", "<a xmlns=\"\"><b/></a>"),
        ("<a xmlns=\"urn:x\" b='1'/>", "<a xmlns=\"urn:x\" b='1'/>"),
        ("<!-- c --><a xmlns=\"urn:x\"><!-- d --><![CDATA[<]]></a>", "<a xmlns=\"urn:x\">&lt;</a>"),
    ] {
        let content = Some(Content::new("application/xml", document));
        let item = Item { content, url: Some("https://a.example/".into()), ..Item::new("1") };
        let written = atom::write(&head, [DocumentEntry::new(&item, head.updated)]);
        assert!(
            written.contains("<content type=\"application/xml\"") && written.contains(shown),
            "{written}"
        );
        assert_eq!(read(written.as_bytes(), &ReadOptions::default()).unwrap().items, [item], "{written}");
    }
    let item = Item { content: Some(Content::new("application/xml", "<a>")), ..Item::new("1") };
    let written = atom::write(&head, [DocumentEntry::new(&item, head.updated)]);
    assert_eq!(
        read(written.as_bytes(), &ReadOptions::default()).unwrap().items,
        [item],
        "what is no XML too"
    );
}

/// RFC 6721's `ref` names the entry by its id, which in RSS is the guid.
#[test]
fn a_tombstone_in_rss_names_the_guid() {
    use towpath_proto::format::document::{DocumentHead, EntryIds};
    use towpath_proto::format::{DeletedEntry, rss};

    let now = towpath_proto::Timestamp::UNIX_EPOCH;
    let mut head = DocumentHead::new("https://ours.example/feeds/x", "X", now);
    head.ids = EntryIds { base: "https://ours.example/feeds/x/items/", always_own_id: false };
    head.deleted = vec![DeletedEntry { id: "CVE 1".into(), when: Some(now) }];
    let written = rss::write(&head, []);
    assert!(written.contains("<at:deleted-entry ref=\"CVE 1\" when="), "{written}");
    assert_eq!(read(written.as_bytes(), &ReadOptions::default()).unwrap().deleted, head.deleted);
}

/// A day without hyphens is no number of seconds, unless it is a JSON number.
#[test]
fn dates_in_any_json_are_texts_or_seconds() {
    let document = r#"[{"id": 1, "at": "20250124"}, {"id": 2, "at": 20250124}, {"id": 3, "at": 1389003527.25},
        {"id": 4, "at": "1389003527.25"}, {"id": 5, "at": "202501"}]"#;
    let mapping = Mapping { id: "/id".into(), published: Some("/at".into()), ..Mapping::default() };
    let feed = read(document.as_bytes(), &ReadOptions { mapping: Some(&mapping), ..options() }).unwrap();
    let dates: Vec<_> = feed.items.iter().map(|item| item.published.map(|date| date.to_string())).collect();
    let expected = [
        Some("2025-01-24T00:00:00Z"),
        Some("1970-08-23T09:02:04Z"),
        Some("2014-01-06T10:18:47.25Z"),
        Some("2014-01-06T10:18:47.25Z"),
        None,
    ];
    assert_eq!(dates.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
    assert_eq!(feed.problems, ["item 5, \"/at\": this is not a date: \"202501\""]);
}

/// RFC 4287, section 4.2.7.1: an address is an IRI, which has no spaces.
#[test]
fn addresses_of_foreign_documents_are_encoded() {
    let rss = "<rss version='2.0' xmlns:m='http://search.yahoo.com/mrss/'><channel><link>http://a.example/the feed</link>\
        <item><link>http://a.example/c d.html</link><enclosure url='http://a.example/my file.mp3' type='audio/mpeg' length=''/>\
        <m:thumbnail url='http://a.example/{1}.png'/></item></channel></rss>";
    let feed = read(rss.as_bytes(), &options()).unwrap();
    assert_eq!(feed.home.as_deref(), Some("http://a.example/the%20feed"));
    let item = &feed.items[0];
    assert_eq!(item.url.as_deref(), Some("http://a.example/c%20d.html"));
    // The id stays as it was before addresses were encoded, or the item would come a second time.
    assert_eq!(item.id, "http://a.example/c d.html");
    let kept = item.extra["xml"].to_string();
    assert!(kept.contains("http://a.example/my%20file.mp3") && !kept.contains("length"), "{kept}");
    assert!(kept.contains("http://a.example/%7B1%7D.png"), "{kept}");
    let json = r#"{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1","url":"http://a.example/c d",
        "attachments":[{"url":"http://a.example/a b.mp3","mime_type":"audio/mpeg"}]}]}"#;
    let item = read(json.as_bytes(), &options()).unwrap().items.remove(0);
    assert_eq!(item.url.as_deref(), Some("http://a.example/c%20d"));
    assert!(item.extra["json_feed"].to_string().contains("http://a.example/a%20b.mp3"), "{item:?}");
    let mapping = Mapping { id: "/id".into(), url: Some("/url".into()), ..Mapping::default() };
    let mapped = ReadOptions { mapping: Some(&mapping), ..options() };
    let item = read(br#"[{"id":1,"url":"http://a.example/c d?q=100%"}]"#, &mapped).unwrap().items.remove(0);
    assert_eq!(item.url.as_deref(), Some("http://a.example/c%20d?q=100%25"));
}

/// RFC 4287, section 4.2.7.2: a registered relation and its IRI are equal.
#[test]
fn relations_may_be_written_as_iris() {
    let relation = |rel: &str| format!("http://www.iana.org/assignments/relation/{rel}");
    let atom = format!(
        "<feed xmlns='http://www.w3.org/2005/Atom'><entry><id>urn:1</id><link rel='{}' href='http://a.example/1'/>\
         <link rel='{}' href='http://a.example/1.mp3'/></entry></feed>",
        relation("alternate"),
        relation("enclosure")
    );
    let item = read(atom.as_bytes(), &options()).unwrap().items.remove(0);
    assert_eq!(item.url.as_deref(), Some("http://a.example/1"));
    assert_eq!(towpath_proto::attachment::attachments(&item)[0].url, "http://a.example/1.mp3");
}

#[test]
fn too_many_namespaces_are_an_error_in_our_words() {
    let declarations: String = (0..3000).map(|n| format!(" xmlns:n{n}='urn:{n}'")).collect();
    let rss = format!("<rss version='2.0'><channel{declarations}/></rss>");
    let error = read(rss.as_bytes(), &options()).unwrap_err().to_string();
    assert!(!error.contains("NamespaceResolver") && error.contains("namespace"), "{error}");
}

/// An item without a valid id may be any known one.
#[test]
fn a_document_is_whole_if_every_item_has_a_valid_id() {
    let mapping = Mapping { id: "/id".into(), ..Mapping::default() };
    let whole = |json: &str| {
        let options = ReadOptions { mapping: Some(&mapping), ..options() };
        read(json.as_bytes(), &options).unwrap().is_whole()
    };
    assert!(whole(r#"[{"id": 1}, {"id": 1}, {"id": 2}]"#));
    assert!(!whole(r#"[{"id": 1}, {"id": ""}]"#));
    assert!(!whole(r#"[{"id": 1}, {"name": 2}]"#));
    assert!(!whole(&format!(r#"[{{"id": 1}}, {{"id": "{}"}}]"#, "x".repeat(5000))));
    let atom = "<feed xmlns='http://www.w3.org/2005/Atom'><entry><id>urn:1</id></entry><entry/></feed>";
    assert!(!read(atom.as_bytes(), &options()).unwrap().is_whole());
}

/// Most publishers of RSS write HTML in titles, although nothing tells so. Titles of ours are texts as they are.
#[test]
fn titles_of_rss_are_shown_as_text() {
    let document = |mark: &str| {
        format!(
            "<rss version='2.0' {mark}><channel><title>Tom &amp;amp; Jerry</title><item><guid>1</guid><title>\
             <![CDATA[It&#8217;s a <i>boat</i>]]></title></item><item><guid>2</guid><title>Vec&lt;T&gt; &amp;amp; more</title>\
             </item></channel></rss>"
        )
    };
    let titles = |text: &str| {
        let feed = read(text.as_bytes(), &options()).unwrap();
        let items = feed.items.into_iter().map(|item| item.title.unwrap());
        [feed.title.unwrap()].into_iter().chain(items).collect::<Vec<_>>()
    };
    assert_eq!(titles(&document("")), ["Tom & Jerry", "It’s a boat", "Vec<T> &amp; more"]);
    let own = "xmlns:tp='urn:x-towpath:1' tp:addresses='kept'";
    assert_eq!(titles(&document(own)), ["Tom &amp; Jerry", "It&#8217;s a <i>boat</i>", "Vec<T> &amp; more"]);
}

/// Podcasts name their image and author in Apple's module.
#[test]
fn the_head_of_a_podcast_is_read() {
    let document = |own: &str| {
        format!(
            "<rss version='2.0' xmlns:i='http://www.itunes.com/dtds/podcast-1.0.dtd'><channel><title>t</title>\
             <i:image href='/cover.jpg'/>{own}<i:author>Ann</i:author></channel></rss>"
        )
    };
    let head = |own: &str| {
        let feed = read(document(own).as_bytes(), &options()).unwrap();
        (feed.image.unwrap(), feed.authors.into_iter().map(|author| author.name).collect::<Vec<_>>())
    };
    assert_eq!(head(""), ("https://from.example/cover.jpg".into(), vec!["Ann".into()]));
    let own = "<image><url>/own.png</url></image><managingEditor>bo@a.example (Bo)</managingEditor>";
    assert_eq!(head(own), ("https://from.example/own.png".into(), vec!["Bo".into()]));
}

/// JSON has no largest number (RFC 8259, section 6). One that nothing in memory holds keeps its digits as a text.
#[test]
fn numbers_of_any_size_keep_their_digits() {
    let feed = br#"{"version":"https://jsonfeed.org/version/1.1","_n":1e400,"items":[
        {"id":123456789012345678901234567890,"content_text":"a","_n":{"big":1e400,"tiny":1e-400,"fine":[1.5,-0.25]}},
        {"id":123456789012345678901234567891,"content_text":"b","_n":18446744073709551615}]}"#;
    let items = read(feed, &ReadOptions::default()).unwrap().items;
    let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
    assert_eq!(ids, ["123456789012345678901234567890", "123456789012345678901234567891"]);
    let expected = serde_json::json!({"big": "1e400", "tiny": "1e-400", "fine": [1.5, -0.25]});
    assert_eq!(items[0].extra["json_feed"]["_n"], expected);
    assert_eq!(items[1].extra["json_feed"]["_n"], serde_json::json!(18_446_744_073_709_551_615_u64));

    let mapping = Mapping { id: "/id".into(), title: Some("/n".into()), ..Mapping::default() };
    let options = ReadOptions { format: Some(Format::Json), mapping: Some(&mapping), ..options() };
    let items = read(br#"[{"id":1,"n":1e400},{"id":2,"n":-0.10}]"#, &options).unwrap().items;
    let titles: Vec<Option<&str>> = items.iter().map(|item| item.title.as_deref()).collect();
    assert_eq!(titles, [Some("1e400"), Some("-0.10")]);
    assert!(items[0].content.as_ref().unwrap().text().unwrap().contains("\"n\":1e400"), "as written");

    let line = br#"{"id":"a","json":{"n":1e400},"item":{"extra":{"n":[1e400,2]}}}"#;
    let item = Line::parse(line).unwrap().into_change().unwrap().item;
    assert_eq!(item.extra["n"], serde_json::json!(["1e400", 2]));
    assert_eq!(item.content.unwrap().text(), Some(r#"{"n":1e400}"#));
}
