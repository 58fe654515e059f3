//! Items of every kind, for property tests.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use towpath_proto::format::FeedLink;
use towpath_proto::{Author, Content, Item, Timestamp};

/// Non-empty texts that XML can hold: markup, quotes, white space at the ends, all kinds of line ends.
fn text() -> impl Strategy<Value = String> {
    // `]]>` would end a CDATA section early; white space at the ends is easily trimmed.
    prop_oneof!["[ -~]{1,20}", "[ \t\r\n<>&\"'a😀é]{1,12}", "<p>[a-z &;]{0,9}</p>", "]]>[a-z]{0,3}"]
}

/// Texts as of [`text`], and the empty one: an item with an empty title is not one without a title.
fn maybe_empty() -> impl Strategy<Value = String> {
    prop_oneof![4 => text(), 1 => Just(String::new())]
}

/// Absolute URLs, most of them valid.
fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        "https://[a-z]{1,9}\\.example/[a-z0-9/?&=%é]{0,12}",
        "mailto:[a-z]{1,5}@x\\.example",
        "urn:[a-z ]{1,4}:\\}"
    ]
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    (0..4_102_444_800_i64, prop_oneof![Just(0), 0..1_000_000_000_i32])
        .prop_map(|(seconds, nanoseconds)| Timestamp::new(seconds, nanoseconds).unwrap())
}

fn author() -> impl Strategy<Value = Author> {
    let email = prop_oneof!["[a-z]{1,5}@[a-z]{1,5}\\.example", "[a-z]{1,5}"];
    let url = prop_oneof![address(), "[a-z]{1,5}"];
    (text(), prop::option::of(email), prop::option::of(url)).prop_map(|(name, email, url)| Author {
        name,
        email,
        url,
    })
}

fn content() -> impl Strategy<Value = Content> {
    let media_type = prop_oneof![
        Just("text/plain"),
        Just("text/html"),
        // Case, quotes and spaces vary: the type must come back as it was.
        Just("Text/HTML; charset=UTF-8"),
        Just("text/plain;charset=\"utf-8\""),
        Just("text/html; charset=iso-8859-1"),
        Just("text/markdown"),
        Just("text/markdown; charset=utf-8"),
        Just("application/json"),
        Just("application/xml"),
        Just("application/xhtml+xml"),
        Just("image/svg+xml"),
        Just("image/png"),
        Just("multipart/mixed; boundary=x"),
        Just("text"),
        Just(""),
    ];
    let bytes = prop_oneof![
        text().prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..40),
        Just(b"{\"a\":[1,\"\\u0001\"]}".to_vec()),
        Just(b"<?xml version=\"1.0\"?><a/>".to_vec()),
        Just(b"<a xmlns=\"\"><b c=\"1\"/>\n</a>".to_vec()),
        Just(b"<a><b/></a>".to_vec()),
        Just(b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>".to_vec()),
        Just(b"<div xmlns=\"http://www.w3.org/1999/xhtml\">a <b>c</b> &lt;</div>".to_vec()),
        // RFC 4287, 3.1.1.3 wants an XHTML div, whatever its prefix.
        Just(b"<x:div xmlns:x=\"http://www.w3.org/1999/xhtml\"><x:br/></x:div>".to_vec()),
    ];
    (media_type, bytes).prop_map(|(media_type, bytes)| Content::new(media_type, bytes))
}

/// Extra data: as our readers store it, as other sources may write it, and of a wrong form.
fn extra() -> impl Strategy<Value = Map<String, Value>> {
    let element = prop_oneof![
        Just(r#"<g:point xmlns:g="http://www.georss.org/georss">45 -71</g:point>"#),
        Just(
            r#"<link xmlns="http://www.w3.org/2005/Atom" rel="enclosure" href="https://a.example/a" type="audio/mpeg" length="3"/>"#
        ),
        Just(r#"<link xmlns="http://www.w3.org/2005/Atom" rel="enclosure" href="https://a.example/b"/>"#),
        Just(r#"<link xmlns="http://www.w3.org/2005/Atom" rel="alternate" href="https://a.example/c"/>"#),
        Just(r#"<category xmlns="http://www.w3.org/2005/Atom" term="t" scheme="urn:s"/>"#),
        Just(r#"<category xmlns="" domain="d">t</category>"#),
        Just(r#"<comments xmlns="">https://a.example/comments</comments>"#),
        // Fields of an item in disguise: written as they are, the entry would have them twice.
        Just(r#"<title xmlns="http://www.w3.org/2005/Atom">another</title>"#),
        Just(r#"<title xmlns="">another</title>"#),
        Just(r#"<fo:id xmlns:fo="http://fanout.org/protocol/atom">another</fo:id>"#),
        // No element, two of them, no namespace, text: other sources may store anything here.
        Just("<unclosed"),
        Just("<a/><b/>"),
        Just("<a/>"),
        Just("text"),
    ];
    let elements = prop::collection::vec(element, 0..4).prop_map(|list| json!(list));
    let json_feed = prop_oneof![
        Just(json!({"_custom": {"a": 1}, "external_url": "https://e.example/", "attachments": []})),
        Just(json!({"authors": [{"name": "x", "avatar": "https://a.example/"}]})),
        Just(json!({"date_modified": "never", "tags": [1], "title": 7})),
        Just(json!({"content_text": "plain"})),
        Just(json!({"content_html": "<p>", "id": "x", "url": "u", "date_published": "2024-01-01"})),
        Just(json!([1])),
    ];
    (prop::option::of(elements), prop::option::of(json_feed), prop::option::of(text())).prop_map(
        |(xml, json_feed, other)| {
            let mut extra = Map::new();
            let parts = [("xml", xml), ("json_feed", json_feed), ("other", other.map(Value::from))];
            extra.extend(parts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
            extra
        },
    )
}

/// Items whose texts XML can hold, with any text as id.
pub fn any_item() -> impl Strategy<Value = Item> {
    let id = prop_oneof![text(), address(), "[\u{0}-\u{1f}a/%]{1,6}", "[0-9]{1,5}"];
    let texts =
        (prop::option::of(maybe_empty()), prop::option::of(maybe_empty()), prop::option::of(address()));
    let dates = (prop::option::of(timestamp()), prop::option::of(timestamp()));
    let lists = (prop::collection::vec(author(), 0..3), prop::collection::vec(maybe_empty(), 0..3));
    (id, texts, prop::option::of(content()), dates, lists, extra()).prop_map(
        |(id, (title, summary, url), content, (published, updated), (authors, tags), extra)| Item {
            id,
            url,
            title,
            summary,
            content,
            authors,
            tags,
            published,
            updated,
            extra,
        },
    )
}

/// Returns the links that every document of a published feed has.
pub fn head_links() -> Vec<FeedLink> {
    let link = |rel: &str, href: &str, media_type: Option<&str>| FeedLink {
        rel: rel.into(),
        href: href.into(),
        media_type: media_type.map(str::to_owned),
    };
    vec![
        link("self", "https://a.example/feeds/x/atom?a=1&b=2", None),
        link("hub", "https://a.example/feeds/x/hub", None),
        link("this", "https://a.example/feeds/x/atom/7", Some("application/atom+xml")),
        link("prev-archive", "https://a.example/feeds/x/atom/6", None),
        link(
            "http://api.friendfeed.com/2008/03#sup",
            "https://a.example/sup.json#0123abcdef",
            Some("application/json"),
        ),
    ]
}
