use super::*;
use crate::item::Author;

fn there_and_back(change: &NewChange) {
    let line = Line::new(change.op, &change.item, change.patch.as_ref());
    let text = serde_json::to_vec(&line).unwrap();
    // Lines are separated by line ends, so a line must not have one.
    assert!(!text.contains(&b'\n'));
    assert_eq!(&Line::parse(&text).unwrap().into_change().unwrap(), change);
}

#[test]
fn every_kind_of_change_comes_back() {
    there_and_back(&NewChange::delete("a\n\"/😀"));
    there_and_back(&NewChange::patch("a", Content::new("application/merge-patch+json", "{}")));
    let mut item = Item::new("a");
    there_and_back(&NewChange::put(item.clone()));
    // Not UTF-8, so it must be written in Base 64.
    item.content = Some(Content::new("image/png", vec![0x89, 0xff]));
    item.authors = vec![Author::named("Ann")];
    item.published = Some("2024-01-01T00:00:00.123Z".parse().unwrap());
    item.extra.insert("image".into(), "http://example.com/a.png".into());
    item.extra.insert(
        "attachments".into(),
        serde_json::json!([{"url": "http://example.com/a.mp3", "size": 3, "sha256": "0f".repeat(32)}]),
    );
    there_and_back(&NewChange::put(item.clone()));
    // What a line would not give back stays in `extra`.
    item.extra.insert("image".into(), serde_json::json!({"url": "http://example.com/a.png"}));
    for attachments in
        [serde_json::json!([]), serde_json::json!([{"url": "a", "size": null}]), serde_json::json!("a")]
    {
        item.extra.insert("attachments".into(), attachments);
        there_and_back(&NewChange::put(item.clone()));
    }
}

/// A source's own form of attachments and images is told in the one form that readers know, and comes back.
#[test]
fn media_of_a_source_are_told_in_one_form() {
    let enclosure = "<link xmlns=\"http://www.w3.org/2005/Atom\" rel=\"enclosure\" type=\"audio/mpeg\" length=\"7\" \
                     href=\"http://example.com/a.mp3\"/>";
    let members = serde_json::json!({
        "attachments": [{"url": "http://example.com/a.mp3", "mime_type": "audio/mpeg", "size_in_bytes": 7}],
        "image": "http://example.com/a.png",
    });
    let told =
        serde_json::json!([{"url": "http://example.com/a.mp3", "media_type": "audio/mpeg", "size": 7}]);
    for (key, value, has_image) in
        [("xml", serde_json::json!([enclosure]), false), ("json_feed", members, true)]
    {
        let mut item = Item::new("a");
        item.extra.insert(key.into(), value);
        let text = serde_json::to_value(Line::new(Op::Put, &item, None)).unwrap();
        assert_eq!(text["item"]["attachments"], told);
        assert_eq!(text["item"].get("image").is_some(), has_image);
        there_and_back(&NewChange::put(item.clone()));
        // Published ones come back too, whether they are the source's or others.
        item.extra.insert("image".into(), "http://example.com/a.png".into());
        for url in ["http://example.com/a.mp3", "http://example.com/b.mp3"] {
            let published = serde_json::json!([{"url": url, "media_type": "audio/mpeg", "size": 7}]);
            item.extra.insert("attachments".into(), published.clone());
            assert_eq!(
                serde_json::to_value(Line::new(Op::Put, &item, None)).unwrap()["item"]["attachments"],
                published
            );
            there_and_back(&NewChange::put(item.clone()));
        }
    }
}

#[test]
fn op_defaults_to_put_and_feed_and_position_are_ignored() {
    let line = Line::parse(br#"{"id":"a","feed":"f","position":"9","content":"x"}"#).unwrap();
    let change = line.into_change().unwrap();
    assert_eq!(change.op, Op::Put);
    assert_eq!(change.item.content.unwrap().media_type, "text/plain; charset=utf-8");
}

#[test]
fn bad_lines_name_the_item() {
    let error = |text: &str| match Line::parse(text.as_bytes()) {
        Ok(line) => line.into_change().unwrap_err().to_string(),
        Err(e) => e.to_string(),
    };
    assert!(error(r#"{"id":"a","content_base64":"*"}"#).contains("\"a\""));
    assert!(error(r#"{"id":"a","op":"patch"}"#).contains("no content"));
    assert!(error(r#"{"id":"a","op":"patch","patch":{}}"#).contains("no content"));
    assert!(error(r#"{"id":"a","json":1,"content":"x"}"#).contains("more than one"));
    assert!(error(r#"{"id":"a","json":1,"content_type":"text/plain"}"#).contains("not JSON"));
    assert!(error(r#"{"id":"","content":"x"}"#).contains("empty"));
    let long = format!(r#"{{"id":"a","content":"x","content_type":"{}"}}"#, "x".repeat(70_000));
    assert!(error(&long).contains("content type is 1 to 1024"));
    assert!(error(r#"{"id":"a","content":"x","content_type":"a\nb"}"#).contains("a\\nb"));
    assert!(error(r#"{"id":"a","op":"shove"}"#).contains("shove"));
    for digest in ["", "0f", &"0F".repeat(32), &"xx".repeat(32)] {
        let line = format!(r#"{{"id":"a","item":{{"attachments":[{{"url":"a","sha256":"{digest}"}}]}}}}"#);
        assert!(error(&line).contains("64 hex digits"), "{digest}");
    }
    // Dropped in silence, a misspelled key would be lost data.
    assert!(error(r#"{"id":"a","titel":"x"}"#).contains("titel"));
    assert!(error(r#"{"id":"a","item":{"titel":"x"}}"#).contains("titel"));
    assert!(error(r#"{"id":"a","content":"#).contains("EOF"));
}

#[test]
fn an_error_names_the_member() {
    for (text, place) in [
        (r#"{"id":"a","item":{"published":"tomorrow"}}"#, "/item/published"),
        (r#"{"id":"a","item":{"tags":["x",5]}}"#, "/item/tags/1"),
        (r#"{"id":"a","item":{"authors":5}}"#, "/item/authors"),
        (r#"{"id":5}"#, "/id"),
        ("null", ""),
        ("{", ""),
    ] {
        let Err(LineError::Json { pointer, .. }) = Line::parse(text.as_bytes()) else { panic!("{text}") };
        assert_eq!(pointer, place, "{text}");
    }
}

/// Each byte of JSON comes back, also where the line cannot have it as a value.
#[test]
fn json_is_a_value_where_its_text_survives() {
    let deep = format!("{}1{}", "[".repeat(101), "]".repeat(101));
    for (text, is_json) in [
        (r#"{"b": 1e2, "a":[12345678901234567890,1.10],"b":"\u00e9\\"}"#, true),
        ("null", true),
        (r#""{[{[""#, true),
        (" 1", false),
        ("{\n}", false),
        ("{", false),
        ("", false),
        (deep.as_str(), false),
    ] {
        let item =
            Item { content: Some(Content::new("application/feed+json", text.to_owned())), ..Item::new("a") };
        let change = NewChange::put(item);
        there_and_back(&change);
        assert_eq!(Line::new(Op::Put, &change.item, None).json.is_some(), is_json, "{text}");
    }
}

#[test]
fn json_with_line_ends_is_made_one_line() {
    let line =
        Line::parse(b"{\"id\":\"a\",\"json\":{\n  \"b\": \"x y\\\" z\",\r\n\t\"c\": [ 1.0 ]\n}}").unwrap();
    assert!(!serde_json::to_vec(&line).unwrap().contains(&b'\n'));
    let content = line.into_change().unwrap().item.content.unwrap();
    assert_eq!(content.text(), Some(r#"{"b":"x y\" z","c":[1.0]}"#));
}

#[test]
fn a_patch_is_told_with_the_item_or_alone() {
    let read = |text: &str| Line::parse(text.as_bytes()).unwrap().into_change().unwrap();
    let patched = Item { content: Some(Content::new("application/json", r#"{"a":2}"#)), ..Item::new("a") };
    let patch = Content::new(MERGE_PATCH, r#"{"a":2}"#);
    let whole = serde_json::to_string(&Line::new(Op::Patch, &patched, Some(&patch))).unwrap();
    assert_eq!(read(&whole), NewChange::patch("a", patch.clone()), "{whole}");
    // Without the patch, the item after it is what a copy takes.
    let state = serde_json::to_string(&Line::new(Op::Patch, &patched, None)).unwrap();
    assert_eq!(read(&state), NewChange::put(patched));
    for old in [
        r#"{"id":"a","op":"patch","content_type":"application/merge-patch+json","content":"{\"a\":2}"}"#,
        r#"{"id":"a","op":"patch","content_type":"application/merge-patch+json","content":"{\"a\":2}","item":{}}"#,
        r#"{"id":"a","op":"patch","patch":{"json":{"a":2}}}"#,
    ] {
        assert_eq!(read(old), NewChange::patch("a", patch.clone()), "{old}");
    }
}
