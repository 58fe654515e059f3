use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::diffdelta::publish::testing::{at, feed, items, risk, site, texts};
use crate::diffdelta::wire::delta_item::read;
use crate::diffdelta::wire::{DeltaKind, ImpactReason};
use crate::format::jcs::{Style, canonical};
use crate::item::Content;

fn delta(kind: DeltaKind, item: Item) -> Delta {
    Delta {
        kind,
        hash: item.content_hash(),
        before: None,
        observed: at(0),
        removed_at: (kind == DeltaKind::Removed).then(|| at(60)),
        reason: ImpactReason::Substantive,
        item,
    }
}

fn render(delta: &Delta) -> (RenderedItem, String) {
    let (site, source) = (site(), feed("ab"));
    let rendering = ItemRenderer { site: &site, source: &source, lang: "de-AT", risk: &risk };
    let rendered = rendering.render(std::slice::from_ref(delta)).remove(0);
    let mut text = Vec::new();
    rendered.write(&mut text);
    (rendered, String::from_utf8(text).unwrap())
}

fn rendered_json(item: Item) -> Value {
    serde_json::from_str(&render(&delta(DeltaKind::New, item)).1).unwrap()
}

/// Thousands of sources may have one item each that waits for the global feed.
#[test]
fn an_item_alone_takes_the_memory_of_its_text() {
    let memory = |rendered: RenderedItem| rendered.members.try_into_mut().unwrap().capacity();
    let (rendered, _) = render(&delta(DeltaKind::New, Item::new("one")));
    let length = rendered.members.len();
    assert_eq!(memory(rendered), length);
}

/// Items of one call share memory, whatever their lengths.
#[test]
fn items_are_rendered_in_their_order() {
    let (site, source) = (site(), feed("ab"));
    let rendering = ItemRenderer { site: &site, source: &source, lang: "de-AT", risk: &risk };
    let lengths = [3, BLOCK, 500, 2 * BLOCK, 0, BLOCK / 2, BLOCK / 2, BLOCK / 2];
    let item = |(n, length): (usize, &usize)| Item {
        content: Some(Content::new("text/plain", "x".repeat(*length))),
        ..Item::new(n.to_string())
    };
    let deltas: Vec<Delta> =
        lengths.iter().enumerate().map(item).map(|item| delta(DeltaKind::New, item)).collect();
    let alone: Vec<RenderedItem> = deltas.iter().map(|delta| render(delta).0).collect();
    assert_eq!(rendering.render(&deltas), alone);
}

/// Section 9: every required field is present and describes the item.
#[test]
fn an_item_fills_the_fields_of_the_schema() {
    let value = rendered_json(Item {
        url: Some("https://example.com/1".into()),
        title: Some("Title".into()),
        summary: Some("Summary".into()),
        content: Some(Content::new("text/html", "<p>Hello <b>world</b></p>")),
        published: "2024-01-02T03:04:05+01:00".parse().ok(),
        updated: "2024-01-02T03:04:05.5Z".parse().ok(),
        ..Item::new("one")
    });
    assert_eq!(value["change"], "new");
    assert_eq!(value["source"], "ab");
    assert_eq!(value["id"], "one");
    assert_eq!(value["url"], "https://example.com/1");
    assert_eq!(value["headline"], "Title");
    assert_eq!(value["title"], "Title");
    assert_eq!(value["summary"], "Summary");
    assert_eq!(value["published_at"], "2024-01-02T02:04:05Z");
    assert_eq!(value["updated_at"], "2024-01-02T03:04:05Z");
    assert_eq!(value["content"]["lang"], "de");
    assert_eq!(value["content"]["excerpt_text"], "Hello world");
    assert_eq!(value["provenance"]["fetched_at"], at(0).to_string());
    assert_eq!(value["provenance"]["evidence_urls"][0], "https://example.com/1");
    assert_eq!(value["risk"]["reasons"], serde_json::json!(["test-rule"]));
}

/// Cut off after 500 characters, JSON is neither readable nor JSON.
#[test]
fn the_excerpt_of_json_is_the_summary() {
    let json = format!("{{\"cveID\":\"CVE-1\",\"notes\":\"{}\"}}", "x".repeat(900));
    for media_type in ["application/json", "application/ld+json", "text/json; charset=utf-8"] {
        let value = rendered_json(Item {
            summary: Some("A <b>flaw</b> in it".into()),
            content: Some(Content::new(media_type, json.clone())),
            ..Item::new("CVE-1")
        });
        assert_eq!(value["content"]["excerpt_text"], "A flaw in it", "{media_type}");
        assert_eq!(value["headline"], "A flaw in it");
    }
    let value =
        rendered_json(Item { content: Some(Content::new("application/json", json)), ..Item::new("CVE-1") });
    assert_eq!(value["content"]["excerpt_text"], "");
    assert_eq!(value["headline"], "CVE-1");
}

/// Summary and excerpt do not repeat each other: readers pay for a document by the byte.
#[test]
fn a_document_costs_at_most_twice_its_items() {
    let text = |words: usize| "a plain word, ".repeat(words);
    let dated = |item: Item| Item {
        title: Some(text(4)),
        url: Some("https://example.com/catalogue/2024/entry-1".into()),
        published: "2024-01-02T03:04:05Z".parse().ok(),
        ..item
    };
    let json: String = (0..12).map(|n| format!(",\"member{n}\":\"{}\"", text(4))).collect();
    let contents = [
        ("application/json", format!("{{\"cveID\":\"CVE-2024-1\"{json}}}"), Some(text(25))),
        ("text/plain", text(80), None),
        ("text/html", format!("<p>{}</p>", text(60)), Some(text(20))),
        ("text/html", format!("<p>{}</p>", text(60)), Some(format!("<p>{}</p>", text(20)))),
    ];
    for (media_type, content, summary) in contents {
        let content = Some(Content::new(media_type, content));
        let item = dated(Item { content, summary, ..Item::new("CVE-2024-1") });
        let line = crate::line::Line::new(crate::change::Op::Put, &item, None);
        let (line, shown) =
            (serde_json::to_vec(&line).unwrap().len(), render(&delta(DeltaKind::New, item)).1);
        assert!(shown.len() <= 2 * line, "{media_type}: {} bytes for {line}: {shown}", shown.len());
    }
}

/// A document of an older version states every text by itself.
#[test]
fn an_item_without_the_list_of_equal_texts_is_restored() {
    let value = serde_json::json!({
        "id": "a", "headline": "Head", "title": "Title", "summary": "Summary",
        "content": {"lang": "en", "excerpt_text": "Excerpt"},
        "source_payload": {"profile": PROFILE, "content_text": "Content", "content_type": "text/plain"}
    });
    let item = read(value).unwrap().item;
    assert_eq!((item.title.as_deref(), item.summary.as_deref()), (Some("Title"), Some("Summary")));
    assert_eq!(item.content, Some(Content::new("text/plain", "Content")));
}

#[test]
fn an_empty_item_has_the_required_fields() {
    let value = rendered_json(Item::new("a/b c"));
    assert_eq!(value["url"], "http://127.0.0.1:8080/feeds/ab/items/a%2Fb%20c");
    assert_eq!(value["headline"], "a/b c");
    assert_eq!(value["published_at"], at(0).to_string());
    assert_eq!(value["updated_at"], at(0).to_string());
    assert_eq!(value["content"]["excerpt_text"], "");
    assert!(value.get("title").is_none() && value.get("summary").is_none());
}

#[test]
fn lengths_are_in_characters() {
    let long = "é😀".repeat(1500);
    let value = rendered_json(Item {
        title: Some(long.clone()),
        summary: Some(long.clone()),
        content: Some(Content::new("text/plain", long.clone())),
        ..Item::new(&long[..2000])
    });
    let length = |v: &Value| v.as_str().unwrap().chars().count();
    assert_eq!(length(&value["title"]), 200);
    assert_eq!(length(&value["headline"]), 2000);
    assert_eq!(length(&value["summary"]), 2000);
    assert_eq!(length(&value["content"]["excerpt_text"]), 500);
    // `sha256:` and 64 hex digits.
    assert_eq!(length(&value["id"]), 71);
    assert!(value["id"].as_str().unwrap().starts_with("sha256:"));
}

/// Section 3.1: Python and RFC 8785 write these scores with equal bytes.
#[test]
fn a_whole_score_is_written_without_a_point() {
    for (score, text) in [(0.0, "0"), (1.0, "1"), (0.1 + 0.2, "0.3"), (0.999, "1"), (f64::NAN, "0")] {
        let risk = RiskField { reasons: vec![], score };
        assert_eq!(serde_json::to_string(&risk).unwrap(), format!("{{\"score\":{text}}}"));
    }
}

/// Section 9: from a score of 0.4 on.
#[test]
fn flagged_is_decided_on_the_rounded_score() {
    // 0.399 is shown as 0.4, and a reader must find it where the text wants a 0.4.
    assert!(is_flagged(0.4) && is_flagged(0.399) && is_flagged(1.0));
    assert!(!is_flagged(0.39) && !is_flagged(0.0) && !is_flagged(f64::NAN));
}

#[test]
fn an_item_of_another_publisher_is_read() {
    let value = serde_json::json!({
        "source": "aws", "id": "1", "url": "https://example.com", "headline": "Head",
        "published_at": "2024-01-01T00:00:00+00:00", "updated_at": "yesterday",
        "content": {"lang": "en", "excerpt_text": "Excerpt"}, "risk": {"score": 0.0},
        "provenance": {"fetched_at": "2024-01-02T00:00:00Z"},
        "source_payload": {"html": "<p>", "profile": "theirs"}, "signals": ["ga"]
    });
    let read = read(value).unwrap();
    assert_eq!(read.source, "aws");
    assert_eq!(read.kind, None);
    assert_eq!(read.modified, "2024-01-02T00:00:00Z".parse().ok());
    assert_eq!(read.item.title.as_deref(), Some("Head"));
    assert_eq!(read.item.summary.as_deref(), Some("Excerpt"));
    assert_eq!(read.item.published, "2024-01-01T00:00:00Z".parse().ok());
    // `yesterday` is no date: the date is dropped, the item is not.
    assert_eq!(read.item.updated, None);
    // Public feeds have dates without a zone.
    let zoneless = serde_json::json!({"id": "1", "published_at": "2025-12-10T01:15:52"});
    let zoneless = crate::diffdelta::wire::delta_item::read(zoneless).unwrap();
    assert_eq!(zoneless.item.published, "2025-12-10T01:15:52Z".parse().ok());
    let extra = &read.item.extra["diffdelta"];
    assert_eq!(extra["source_payload"]["html"], "<p>");
    assert_eq!(extra["signals"][0], "ga");
    assert!(extra.get("url").is_none());
}

#[test]
fn an_invalid_item_is_refused_with_a_reason() {
    for (value, reason) in [
        (serde_json::json!([]), "not an object"),
        (serde_json::json!({"id": 7}), "without an id"),
        (serde_json::json!({"id": "a", "source_payload": {"profile": PROFILE, "tags": 1}}), "source_payload"),
        (
            serde_json::json!({"id": "a", "source_payload": {"profile": PROFILE, "content_base64": "*"}}),
            "Base 64",
        ),
        (serde_json::json!({"id": "a", "source_payload": {"profile": PROFILE, "extra": "["}}), "extra"),
    ] {
        let error = read(value).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

proptest! {
    #[test]
    fn every_item_is_restored_identically(item in items()) {
        for kind in [DeltaKind::New, DeltaKind::Updated, DeltaKind::Removed] {
            let delta = delta(kind, item.clone());
            let (_, text) = render(&delta);
            let read = read(serde_json::from_str(&text).unwrap()).unwrap();
            prop_assert_eq!(&read.item, &item);
            prop_assert_eq!(read.kind, Some(kind));
            prop_assert_eq!(read.modified, Some(if kind == DeltaKind::Removed { at(60) } else { at(0) }));
        }
    }

    /// Section 3.1: the text is canonical as written, by RFC 8785 and by Python.
    #[test]
    fn the_text_is_canonical_in_either_style(item in items()) {
        let (_, text) = render(&delta(DeltaKind::Updated, item));
        for style in [Style::Jcs, Style::Python] {
            let canonical = canonical(text.as_bytes(), style).unwrap();
            prop_assert_eq!(std::str::from_utf8(&canonical).unwrap(), &text);
        }
    }

    #[test]
    fn a_rendered_item_can_be_read_back_from_a_document(item in items()) {
        let (rendered, text) = render(&delta(DeltaKind::Removed, item));
        let bucket = if rendered.flagged { "flagged" } else { "removed" };
        let document = format!("{{\"x\":1,\"buckets\":{{\"{bucket}\":[{text}]}}}}");
        let read = RenderedItem::parse_document(document.as_bytes()).unwrap();
        prop_assert_eq!(read, vec![rendered]);
    }

    #[test]
    fn hostile_members_never_panic(key in "[a-z_]{1,14}", text in texts()) {
        let _ = read(serde_json::json!({"id": "a", key: text}));
    }
}
