//! Writing JSON Feed 1.1.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::read::take_authors;
use super::{EXTRA, OWN};
use crate::format::document::{Entry, Head};
use crate::item::{Author, Content, Item, Shown};

type Object = Map<String, Value>;

/// A feed document (JSON Feed 1.1), the same text for the same arguments. `next_url` is the head's link
/// `next`, `hubs` are its links `hub`.
pub fn write<'a>(head: &Head<'_>, entries: impl IntoIterator<Item = Entry<'a>>) -> String {
    let mut top = Object::new();
    top.insert("version".into(), "https://jsonfeed.org/version/1.1".into());
    top.insert("title".into(), head.title.into());
    let optional = [
        ("home_page_url", head.home),
        ("feed_url", head.link("self")),
        ("next_url", head.link("next")),
        ("language", head.lang),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            top.insert(key.into(), value.into());
        }
    }
    let hubs = head.links.iter().filter(|l| l.rel == "hub");
    let hubs: Vec<Value> = hubs.map(|l| json!({"type": "WebSub", "url": l.href})).collect();
    if !hubs.is_empty() {
        top.insert("hubs".into(), hubs.into());
    }
    top.insert(OWN.into(), own_head(head));
    top.insert("items".into(), entries.into_iter().map(|entry| item(&entry)).collect());
    Value::Object(top).to_string()
}

fn own_head(head: &Head<'_>) -> Value {
    let mut own = Object::new();
    own.insert("id".into(), head.id.into());
    own.insert("updated".into(), head.updated.to_string().into());
    let links = head.links.iter().filter(|l| !matches!(l.rel.as_str(), "self" | "next" | "hub"));
    let links: Vec<Value> = links
        .map(|link| {
            let mut object = json!({"rel": link.rel, "href": link.href});
            if let Some(media_type) = &link.media_type {
                object["type"] = media_type.as_str().into();
            }
            object
        })
        .collect();
    if !links.is_empty() {
        own.insert("links".into(), links.into());
    }
    if let Some(stateful) = head.stateful {
        own.insert("stateful".into(), stateful.into());
    }
    for (key, flag) in [("complete", head.complete), ("archive", head.archive)] {
        if flag {
            own.insert(key.into(), true.into());
        }
    }
    let deleted = head.deleted.iter();
    let deleted: Vec<Value> =
        deleted.map(|d| json!({"id": d.id, "when": d.when.unwrap_or(head.updated).to_string()})).collect();
    if !deleted.is_empty() {
        own.insert("deleted".into(), deleted.into());
    }
    Value::Object(own)
}

fn item(entry: &Entry<'_>) -> Value {
    let item = entry.item;
    let mut own = Object::new();
    if entry.tells_modified {
        own.insert("modified".into(), entry.modified.to_string().into());
    }
    let mut object = kept(item, &mut own);
    object.insert("id".into(), item.id.clone().into());
    let optional = [
        ("url", item.url.clone()),
        ("title", item.title.clone()),
        ("summary", item.summary.clone()),
        ("date_published", item.published.map(|t| t.to_string())),
        ("date_modified", item.updated.map(|t| t.to_string())),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            object.insert(key.into(), value.into());
        }
    }
    if !item.tags.is_empty() {
        object.insert("tags".into(), item.tags.clone().into());
    }
    authors(&item.authors, &mut object, &mut own);
    content(item.content.as_ref(), &mut object, &mut own);
    if !own.is_empty() {
        object.insert(OWN.into(), own.into());
    }
    Value::Object(object)
}

/// The keys that were kept of a JSON Feed, and into `own` whatever else was kept. A kept key that now has a
/// field of the item in its place stays apart as well.
fn kept(item: &Item, own: &mut Object) -> Object {
    let mut extra = item.extra.clone();
    let mut object = match extra.remove(EXTRA) {
        Some(Value::Object(object)) => object,
        Some(other) => {
            extra.insert(EXTRA.into(), other);
            Object::new()
        }
        None => Object::new(),
    };
    if !super::read::comes_back(&object, item) {
        extra.insert(EXTRA.into(), Value::Object(std::mem::take(&mut object)));
    }
    if !extra.is_empty() {
        own.insert("extra".into(), Value::Object(extra));
    }
    object
}

/// The authors, unless a kept key says the same and more.
fn authors(authors: &[Author], object: &mut Object, own: &mut Object) {
    if authors.is_empty() || take_authors(&mut object.clone()) == authors {
        return;
    }
    let public = authors.iter().map(|author| {
        let mut object = Object::new();
        object.insert("name".into(), author.name.clone().into());
        if let Some(url) = &author.url {
            object.insert("url".into(), url.clone().into());
        }
        Value::Object(object)
    });
    object.insert("authors".into(), public.collect());
    if authors.iter().any(|a| a.email.is_some()) {
        own.insert("authors".into(), json!(authors));
    }
}

/// "content_html and content_text are each optional strings — but one or both must be present."
fn content(content: Option<&Content>, object: &mut Object, own: &mut Object) {
    if let Some((content, (shown, text))) = content.and_then(|content| Some((content, content.shown()?))) {
        let key = match shown {
            Shown::Html => "content_html",
            Shown::Text => "content_text",
        };
        object.insert(key.into(), text.into());
        if let Some(own_type) = content.type_beyond(shown) {
            own.insert("content".into(), json!({"type": own_type}));
        }
        return;
    }
    let media_type = content.map(|content| content.media_type.as_str());
    let own_form = content.map_or(Value::Null, |content| match content.text() {
        Some(text) => json!({"type": media_type, "text": text}),
        None => json!({"type": media_type, "base64": STANDARD.encode(&content.bytes)}),
    });
    own.insert("content".into(), own_form);
    object.entry("content_text").or_insert_with(|| "".into());
}
