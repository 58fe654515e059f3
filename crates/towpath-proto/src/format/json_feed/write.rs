//! Writing JSON Feed 1.1 documents.

use std::borrow::Cow;
use std::convert::Infallible;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use url::Url;

use super::extension::{EXTRA, JsonObject, OWN};
use super::read::take_authors;
use crate::attachment::{self, Attachment};
use crate::format::atom;
use crate::format::document::{DocumentEntry, DocumentHead};
use crate::format::html;
use crate::format::iri::encoded;
use crate::item::{Author, ContentForm, Item};

/// Writes a feed document (JSON Feed 1.1); deterministic. `next_url` is the head's link `next`, `hubs` are
/// its links `hub`.
pub fn write<'a>(head: &DocumentHead<'_>, entries: impl IntoIterator<Item = DocumentEntry<'a>>) -> String {
    let mut top = JsonObject::new();
    top.insert("version".into(), "https://jsonfeed.org/version/1.1".into());
    top.insert("title".into(), head.title.into());
    let optional = [
        ("home_page_url", head.home.map(encoded)),
        ("feed_url", head.link("self").map(Cow::Borrowed)),
        ("next_url", head.link("next").map(Cow::Borrowed)),
        ("language", head.lang.map(Cow::Borrowed)),
        ("description", head.description.map(plain)),
        ("icon", head.image.map(encoded)),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            top.insert(key.into(), value.into());
        }
    }
    // JSON Feed has a list of hubs, while other formats use links.
    let hubs = head.links.iter().filter(|l| l.rel == "hub");
    let hubs: Vec<Value> = hubs.map(|l| json!({"type": "WebSub", "url": l.href})).collect();
    if !hubs.is_empty() {
        top.insert("hubs".into(), hubs.into());
    }
    if let Some(author) = head.author {
        top.insert("authors".into(), json!([{"name": author.shown_name()}]));
        if let Some(url) = &author.url {
            top["authors"][0]["url"] = encoded(url).into();
        }
    }
    top.insert(OWN.into(), own_head(head));
    top.insert("items".into(), entries.into_iter().map(|entry| item(&entry, head.items_page())).collect());
    Value::Object(top).to_string()
}

/// Returns a text without HTML, which "the only place HTML is allowed in this format" is not.
fn plain(text: &str) -> Cow<'_, str> {
    if html::looks_like_html(text) { html::to_text(text, usize::MAX).into() } else { text.into() }
}

fn own_head(head: &DocumentHead<'_>) -> Value {
    let mut own = JsonObject::new();
    if let Some(description) = head.description.filter(|text| plain(text) != *text) {
        own.insert("description".into(), description.into());
    }
    own.insert("id".into(), head.id.into());
    own.insert("updated".into(), head.updated.to_string().into());
    // These relations have members of their own.
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
    if let Some(author) = head.author {
        own.insert("author".into(), json!(author));
    }
    let deleted = head.deleted.iter();
    let deleted: Vec<Value> =
        deleted.map(|d| json!({"id": d.id, "when": d.when.unwrap_or(head.updated).to_string()})).collect();
    if !deleted.is_empty() {
        own.insert("deleted".into(), deleted.into());
    }
    Value::Object(own)
}

fn item(entry: &DocumentEntry<'_>, home: Option<&str>) -> Value {
    let item = entry.item;
    let mut own = JsonObject::new();
    if entry.tells_modified {
        own.insert("modified".into(), entry.modified.to_string().into());
    }
    let mut object = kept(item, &mut own);
    object.insert("id".into(), item.id.clone().into());
    let optional = [
        ("url", item.url.as_deref().map(|url| encoded(url).into_owned())),
        ("title", item.title.clone()),
        ("date_published", item.published.map(|t| t.to_string())),
        ("date_modified", item.updated.map(|t| t.to_string())),
    ];
    for (key, value) in optional {
        if let Some(value) = value {
            object.insert(key.into(), value.into());
        }
    }
    if let Some(url) = item.url.as_deref().filter(|url| encoded(url) != **url) {
        own.insert("url".into(), url.into());
    }
    if !item.tags.is_empty() {
        object.insert("tags".into(), item.tags.clone().into());
    }
    authors(&item.authors, &mut object, &mut own);
    summary(item, &mut object, &mut own);
    media(item, &mut object, &mut own);
    content(item, home, &mut object, &mut own);
    if !own.is_empty() {
        object.insert(OWN.into(), own.into());
    }
    Value::Object(object)
}

/// Returns the stored members of a JSON Feed, and moves other stored data into `own`. A stored member that an
/// item's field now replaces goes into `own` as well.
fn kept(item: &Item, own: &mut JsonObject) -> JsonObject {
    // The stored value may come from another format or from a publisher, so its type is checked.
    let mut extra = item.extra.clone();
    let mut object = match extra.remove(EXTRA) {
        Some(Value::Object(object)) => object,
        Some(other) => {
            extra.insert(EXTRA.into(), other);
            JsonObject::new()
        }
        None => JsonObject::new(),
    };
    // Members that would read back differently are kept apart, in our extension.
    if !super::read::comes_back(&object, item) {
        extra.insert(EXTRA.into(), Value::Object(std::mem::take(&mut object)));
    }
    if !extra.is_empty() {
        own.insert("extra".into(), Value::Object(extra));
    }
    object
}

/// Writes the authors, unless a stored member holds them with more detail.
fn authors(authors: &[Author], object: &mut JsonObject, own: &mut JsonObject) {
    // The stored members already hold these authors, with details that a field cannot hold.
    if authors.is_empty() || take_authors(&mut object.clone()) == authors {
        return;
    }
    let public = authors.iter().map(|author| {
        let mut object = JsonObject::new();
        object.insert("name".into(), author.shown_name().into());
        if let Some(url) = &author.url {
            object.insert("url".into(), encoded(url).into());
        }
        Value::Object(object)
    });
    // JSON Feed has no e-mail addresses, so the full list goes into the extension.
    object.insert("authors".into(), public.collect());
    let is_encoded = |author: &Author| author.url.as_deref().is_some_and(|url| encoded(url) != url);
    let is_derived = |author: &Author| author.shown_name() != author.name;
    if authors.iter().any(|author| author.email.is_some() || is_encoded(author) || is_derived(author)) {
        own.insert("authors".into(), json!(authors));
    }
}

/// Writes the summary, a "plain text sentence or two". One in HTML goes into the extension, for "the only place HTML is
/// allowed in this format is in content_html".
fn summary(item: &Item, object: &mut JsonObject, own: &mut JsonObject) {
    let Some(summary) = &item.summary else { return };
    if !html::looks_like_html(summary) {
        object.insert("summary".into(), summary.as_str().into());
    } else if item.content.is_some() || html::has_relative(summary) {
        object.insert("summary".into(), plain(summary).into());
        own.insert("summary".into(), summary.as_str().into());
    } else {
        // The summary is then shown as the content, and is not written twice.
        own.insert("summary_in".into(), "content_html".into());
    }
}

/// Writes the attachments and the image that the item holds in another form, and names these members.
fn media(item: &Item, object: &mut JsonObject, own: &mut JsonObject) {
    let mut derived: Vec<&str> = Vec::new();
    let attachments = attachment::attachments(item);
    if !attachments.is_empty() && !object.contains_key("attachments") {
        object.insert("attachments".into(), attachments.iter().map(json_attachment).collect());
        derived.push("attachments");
    }
    if let Some(image) = attachment::image(item).filter(|_| !object.contains_key("image")) {
        object.insert("image".into(), encoded(&image).into());
        derived.push("image");
    }
    if !derived.is_empty() {
        own.insert("derived".into(), derived.into());
    }
}

fn json_attachment(attachment: &Attachment) -> Value {
    // "mime_type (required, string)".
    let media_type = attachment.media_type.as_deref().unwrap_or("application/octet-stream");
    let mut member = json!({"url": encoded(&attachment.url), "mime_type": media_type});
    if let Some(size) = attachment.size {
        member["size_in_bytes"] = size.into();
    }
    if let Some(title) = &attachment.title {
        member["title"] = title.as_str().into();
    }
    member
}

/// "content_html and content_text are each optional strings — but one or both must be present."
fn content(item: &Item, home: Option<&str>, object: &mut JsonObject, own: &mut JsonObject) {
    let content = item.content.as_ref();
    if let Some((content, (shown, text))) = content.and_then(|content| Some((content, content.shown()?))) {
        let key = match shown {
            ContentForm::Html => "content_html",
            ContentForm::Text => "content_text",
        };
        if let Some(resolved) = resolved(item, home, shown, text) {
            object.insert(key.into(), resolved.into());
            own.insert("content".into(), json!({"type": content.media_type, "text": text}));
            return;
        }
        object.insert(key.into(), text.into());
        // The member implies only the general type.
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
    // Readers require some content, and show the summary. The real one is in the extension.
    let summary = item.summary.as_deref().unwrap_or_default();
    match html::looks_like_html(summary) {
        true => {
            let resolved = resolved(item, home, ContentForm::Html, summary);
            object.insert("content_html".into(), resolved.unwrap_or_else(|| summary.to_owned()).into());
        }
        false => drop(object.entry("content_text").or_insert_with(|| summary.into())),
    }
}

/// Returns HTML with its relative addresses resolved against the item's page or the feed's, if it has any. JSON Feed has
/// no base, and readers would look for them beside our document.
fn resolved(item: &Item, home: Option<&str>, shown: ContentForm, text: &str) -> Option<String> {
    if shown != ContentForm::Html || !html::has_relative(text) {
        return None;
    }
    let base = atom::page(item, home).and_then(|page| Url::parse(page).ok());
    let nowhere = |address: &str| format!("{}#{address}", atom::NOWHERE);
    let join = |address: &str| {
        base.as_ref().and_then(|base| base.join(address).ok()).map_or_else(|| nowhere(address), String::from)
    };
    html::resolved(text, |address| Ok::<_, Infallible>(join(address))).ok().map(Cow::into_owned)
}
