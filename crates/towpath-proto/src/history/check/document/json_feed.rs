//! Rules of JSON Feed 1.1: its objects and their members as tables.

use serde_json::{Map, Value};

use super::findings::DocumentFindings;
use super::rules::json_feed as rules;
use super::values::{is_http, is_json_date, is_language, is_media_type, is_reference};

/// Type of a member.
#[derive(Clone, Copy, PartialEq)]
enum MemberType {
    Text,
    Url,
    Date,
    Language,
    MediaType,
    Flag,
    Number,
    Texts,
    Object(ObjectKind),
    Objects(ObjectKind),
}

/// Kind of an object, which decides its members.
#[derive(Clone, Copy, PartialEq)]
enum ObjectKind {
    Feed,
    Item,
    Author,
    Attachment,
    Hub,
}

impl ObjectKind {
    fn members(self) -> &'static [Member] {
        match self {
            Self::Feed => FEED,
            Self::Item => ITEM,
            Self::Author => AUTHOR,
            Self::Attachment => ATTACHMENT,
            Self::Hub => HUB,
        }
    }
}

use MemberType::{Date, Flag, Language, MediaType, Number, Object, Objects, Text, Texts, Url};

/// Member of an object: name and type.
type Member = (&'static str, MemberType);

const AUTHOR: &[Member] = &[("name", Text), ("url", Url), ("avatar", Url)];
const HUB: &[Member] = &[("type", Text), ("url", Url)];
const ATTACHMENT: &[Member] = &[
    ("url", Url),
    ("mime_type", MediaType),
    ("title", Text),
    ("size_in_bytes", Number),
    ("duration_in_seconds", Number),
];
const ITEM: &[Member] = &[
    ("id", Text),
    ("url", Url),
    ("external_url", Url),
    ("title", Text),
    ("content_html", Text),
    ("content_text", Text),
    ("summary", Text),
    ("image", Url),
    ("banner_image", Url),
    ("date_published", Date),
    ("date_modified", Date),
    ("author", Object(ObjectKind::Author)),
    ("authors", Objects(ObjectKind::Author)),
    ("tags", Texts),
    ("language", Language),
    ("attachments", Objects(ObjectKind::Attachment)),
];
const FEED: &[Member] = &[
    ("version", Text),
    ("title", Text),
    ("home_page_url", Url),
    ("feed_url", Url),
    ("description", Text),
    ("user_comment", Text),
    ("next_url", Url),
    ("icon", Url),
    ("favicon", Url),
    ("author", Object(ObjectKind::Author)),
    ("authors", Objects(ObjectKind::Author)),
    ("language", Language),
    ("expired", Flag),
    ("hubs", Objects(ObjectKind::Hub)),
    ("items", Objects(ObjectKind::Item)),
];

/// Tests a document.
pub(super) fn test_json_feed(feed: &Value) -> DocumentFindings {
    let mut findings = DocumentFindings::default();
    // The reader refuses other values, and items that are no array.
    let Some(top) = feed.as_object() else { return findings };
    let version = top.get("version").and_then(Value::as_str).unwrap_or_default();
    // Both published versions, and the form without a scheme that some writers have, begin like this.
    let is_version = matches!(version, "https://jsonfeed.org/version/1" | "https://jsonfeed.org/version/1.1");
    findings.judge(rules::VERSION, is_version, || format!("{version:?}"));
    findings.judge(rules::TITLE, is_filled(top, "title"), || "no title".to_owned());
    findings.judge(rules::ITEMS, top.contains_key("items"), || "no items".to_owned());
    findings.judge(rules::RECOMMENDED, top.contains_key("feed_url"), || "no feed_url".to_owned());
    if let Some(next) = top.get("next_url") {
        let is_other = top.get("feed_url") != Some(next);
        findings.judge(rules::NEXT, is_other, || next.to_string());
    }
    test_object(&mut findings, "", top, ObjectKind::Feed);
    findings
}

fn is_text(object: &Map<String, Value>, name: &str) -> bool {
    object.get(name).is_some_and(Value::is_string)
}

fn is_filled(object: &Map<String, Value>, name: &str) -> bool {
    object.get(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty())
}

/// Tests an object's members, then what its kind requires.
fn test_object(findings: &mut DocumentFindings, place: &str, object: &Map<String, Value>, kind: ObjectKind) {
    for (name, value) in object {
        let at = || format!("{place}/{name}");
        match kind.members().iter().find(|(known, _)| known == name) {
            Some((_, kind)) => test_member(findings, &at, value, *kind),
            None => {
                let mut start = name.chars();
                let is_extension =
                    start.next() == Some('_') && start.next().is_some_and(|c| c.is_ascii_alphabetic());
                findings.judge(rules::EXTENSION, is_extension, at);
                let members = value.as_object().into_iter().flat_map(Map::keys);
                let period = std::iter::once(name).chain(members).find(|name| name.contains('.'));
                findings.judge(rules::EXTENSION_NAMES, period.is_none(), || format!("{}: {period:?}", at()));
            }
        }
    }
    let has = |name: &str| is_text(object, name);
    let is_filled = |name: &str| is_filled(object, name);
    let at = || place.to_owned();
    match kind {
        ObjectKind::Feed => {}
        ObjectKind::Item => {
            // A number has no text, and fails too.
            findings.judge(rules::ID, is_filled("id"), at);
            findings.judge(rules::CONTENT, has("content_html") || has("content_text"), at);
        }
        ObjectKind::Author => {
            let has_any = AUTHOR.iter().any(|(name, _)| is_filled(name));
            findings.judge(rules::AUTHOR, has_any, at);
        }
        ObjectKind::Attachment => {
            findings.judge(rules::ATTACHMENT, is_filled("url") && is_filled("mime_type"), at);
        }
        ObjectKind::Hub => findings.judge(rules::HUB, is_filled("type") && is_filled("url"), at),
    }
}

fn test_member(findings: &mut DocumentFindings, at: &dyn Fn() -> String, value: &Value, kind: MemberType) {
    let is_type = match kind {
        Text | Url | Date | Language | MediaType => value.is_string(),
        Flag => value.is_boolean(),
        Number => value.as_f64().is_some_and(|number| number >= 0.0),
        Texts => value.as_array().is_some_and(|texts| texts.iter().all(Value::is_string)),
        Object(_) => value.is_object(),
        Objects(_) => value.as_array().is_some_and(|values| values.iter().all(Value::is_object)),
    };
    // An id that is a number has a rule of its own.
    if !at().ends_with("/id") {
        findings.judge(rules::TYPES, is_type, || format!("{} is {}", at(), kind_of(value)));
    }
    match (kind, value) {
        (Object(kind), Value::Object(object)) => test_object(findings, &at(), object, kind),
        (Objects(kind), Value::Array(values)) => {
            for (index, value) in values.iter().enumerate() {
                if let Value::Object(object) = value {
                    test_object(findings, &format!("{}/{index}", at()), object, kind);
                }
            }
        }
        (kind, Value::String(text)) => test_text(findings, at, text, kind),
        _ => {}
    }
}

fn test_text(findings: &mut DocumentFindings, at: &dyn Fn() -> String, text: &str, kind: MemberType) {
    let (rule, fits) = match kind {
        // Relative URLs occur, and the specification does not say what they are relative to.
        Url => (rules::URLS, is_http(text) || (text.contains(':') && is_reference(text))),
        Date => (rules::DATE, is_json_date(text)),
        Language => (rules::LANGUAGE, is_language(text)),
        MediaType => (rules::MIME_TYPE, is_media_type(text)),
        _ => return,
    };
    findings.judge(rule, fits, || format!("{} is {text:?}", at()));
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array, or one with other values",
        Value::Object(_) => "an object",
    }
}
