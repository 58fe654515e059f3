//! Reading JSON Feed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::{EXTRA, OWN};
use crate::Timestamp;
use crate::format::json::{Base, kind, parse, scalar};
use crate::format::{DeletedEntry, FeedDocument, FeedLink, Format, FormatError, date};
use crate::item::{Author, Content, Item, Shown};

type Object = Map<String, Value>;

/// Reads a JSON Feed; relative addresses are resolved against `base_url`.
pub(crate) fn read(text: &str, base_url: Option<&str>) -> Result<FeedDocument, FormatError> {
    let value: Value = parse(text)?;
    let Value::Object(mut top) = value else { return Err(not_a_feed("an array")) };
    let version = top.get("version").and_then(Value::as_str).unwrap_or_default();
    let is_feed = version.contains("jsonfeed.org/version/");
    let items = match top.remove("items") {
        Some(Value::Array(items)) => items,
        None if is_feed => Vec::new(),
        _ => return Err(not_a_feed("an object without an array of items")),
    };
    let mut base = Base::new(base_url, text.len());
    let mut feed = FeedDocument::new(Format::JsonFeed);
    feed.title = take_text(&mut top, "title");
    feed.home = take_text(&mut top, "home_page_url").map(|u| base.resolve(u)).transpose()?;
    feed.lang = take_text(&mut top, "language");
    feed.links = links(&mut top, &mut base)?;
    own_head(&mut top, &mut feed);
    let authors = take_authors(&mut top);
    feed.items.reserve(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let Value::Object(object) = item else {
            let reason = format!("item {}: {} instead of an object was left out", index + 1, kind(&item));
            feed.problems.push(reason);
            continue;
        };
        let mut reader = ItemReader { index, base: &mut base, problems: &mut feed.problems, modified: None };
        if let Some(item) = reader.read(object)? {
            let modified = reader.modified;
            feed.push(Some((item, modified)));
        }
    }
    feed.inherit_authors(&authors, &mut base.budget)?;
    Ok(feed)
}

fn not_a_feed(what: &str) -> FormatError {
    let reason = format!("JSON, but {what} is no JSON Feed; any other JSON needs pointers to its items");
    FormatError::Unknown(reason)
}

fn take_text(object: &mut Object, key: &str) -> Option<String> {
    match object.get(key) {
        Some(Value::String(_)) => match object.remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

fn links(top: &mut Object, base: &mut Base) -> Result<Vec<FeedLink>, FormatError> {
    let mut links = Vec::new();
    let mut add = |rel: &str, href: String| {
        let href = base.resolve(href)?;
        links.push(FeedLink { rel: rel.to_owned(), href, media_type: None });
        Ok(())
    };
    for (rel, key) in [("self", "feed_url"), ("next", "next_url")] {
        if let Some(href) = take_text(top, key) {
            add(rel, href)?;
        }
    }
    if let Some(Value::Array(hubs)) = top.remove("hubs") {
        for hub in &hubs {
            if let Some(href) = hub.get("url").and_then(Value::as_str) {
                add("hub", href.to_owned())?;
            }
        }
    }
    Ok(links)
}

/// What a writer of ours says of the feed besides: its id, when it changed, links, deletions.
fn own_head(top: &mut Object, feed: &mut FeedDocument) {
    let Some(Value::Object(mut own)) = top.remove(OWN) else { return };
    feed.id = take_text(&mut own, "id");
    feed.updated = take_text(&mut own, "updated").and_then(|t| date::parse(&t));
    feed.stateful = own.get("stateful").and_then(Value::as_bool);
    feed.complete = own.get("complete").and_then(Value::as_bool).unwrap_or_default();
    feed.archive = own.get("archive").and_then(Value::as_bool).unwrap_or_default();
    for link in own.get("links").and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| link.get(key).and_then(Value::as_str).map(str::to_owned);
        if let (Some(rel), Some(href)) = (text("rel"), text("href")) {
            feed.links.push(FeedLink { rel, href, media_type: text("type") });
        }
    }
    for entry in own.get("deleted").and_then(Value::as_array).into_iter().flatten() {
        if let Some(id) = entry.get("id").and_then(Value::as_str) {
            let when = entry.get("when").and_then(Value::as_str).and_then(date::parse);
            feed.deleted.push(DeletedEntry { id: id.to_owned(), when });
        }
    }
}

/// `authors` of 1.1, else `author` of 1.0. What is more than a name and an address stays in the object.
pub(super) fn take_authors(object: &mut Object) -> Vec<Author> {
    let mut authors = Vec::new();
    let mut has_more = false;
    let found: Vec<&Value> = match (object.get("authors"), object.get("author")) {
        (Some(Value::Array(authors)), _) => authors.iter().collect(),
        (_, Some(author)) => vec![author],
        _ => Vec::new(),
    };
    for author in found {
        let text = |key: &str| author.get(key).and_then(Value::as_str).map(str::to_owned);
        let keys = author.as_object().into_iter().flat_map(Map::keys);
        has_more |= keys.into_iter().any(|key| !matches!(key.as_str(), "name" | "url"));
        let author = Author { name: text("name").unwrap_or_default(), email: None, url: text("url") };
        if author != Author::default() {
            authors.push(author);
        }
    }
    if !has_more {
        object.remove("author");
        object.remove("authors");
    }
    authors
}

/// Whether keys that were kept would be kept again beside the item's fields, and make no other item of it.
pub(super) fn comes_back(kept: &Object, item: &Item) -> bool {
    const FIELDS: [&str; 8] =
        ["id", OWN, "url", "title", "summary", "content_html", "date_published", "date_modified"];
    let shown = item.content.as_ref().and_then(Content::shown);
    let is_html = matches!(shown, Some((Shown::Html, _)));
    if FIELDS.iter().any(|key| kept.contains_key(*key)) || (!is_html && kept.contains_key("content_text")) {
        return false;
    }
    let mut object = kept.clone();
    let authors = take_authors(&mut object);
    let tags = take_tags(&mut object);
    let has_authors = kept.contains_key("author") || kept.contains_key("authors");
    let tags_clash = !tags.is_empty() || (!item.tags.is_empty() && kept.contains_key("tags"));
    object == *kept && !tags_clash && (!has_authors || authors == item.authors)
}

/// Reads one item.
struct ItemReader<'a> {
    index: usize,
    base: &'a mut Base,
    problems: &'a mut Vec<String>,
    /// When the item was last changed in its feed, where a writer of ours says so.
    modified: Option<Timestamp>,
}

impl ItemReader<'_> {
    fn read(&mut self, mut object: Object) -> Result<Option<Item>, FormatError> {
        let own = match object.remove(OWN) {
            Some(Value::Object(own)) => own,
            _ => Object::new(),
        };
        let url = take_text(&mut object, "url").map(|u| self.base.resolve(u)).transpose()?;
        // "id (required, string)"; a number is to be read as text ("Suggestions for Readers").
        let id = object.remove("id").as_ref().and_then(scalar).filter(|id| !id.is_empty());
        let Some(id) = id.or_else(|| url.clone()) else {
            self.problem("an item without id and url was left out");
            return Ok(None);
        };
        let mut item = Item { url, title: take_text(&mut object, "title"), ..Item::new(id) };
        item.summary = take_text(&mut object, "summary");
        item.published = self.date(&mut object, "date_published");
        item.updated = self.date(&mut object, "date_modified");
        item.authors = take_authors(&mut object);
        item.tags = take_tags(&mut object);
        item.content = self.content(&mut object);
        self.own_fields(own, &mut item);
        if !object.is_empty() {
            item.extra.insert(EXTRA.to_owned(), Value::Object(object));
        }
        Ok(Some(item))
    }

    fn content(&mut self, object: &mut Object) -> Option<Content> {
        if let Some(html) = take_text(object, "content_html") {
            return Some(Content::new("text/html", html));
        }
        take_text(object, "content_text").map(|text| Content::new("text/plain", text))
    }

    /// What a writer of ours says of the item besides.
    fn own_fields(&mut self, mut own: Object, item: &mut Item) {
        match own.remove("content") {
            Some(Value::Null) => item.content = None,
            Some(Value::Object(mut content)) => {
                let media_type = take_text(&mut content, "type").unwrap_or_default();
                let bytes = match take_text(&mut content, "base64") {
                    Some(text) => STANDARD.decode(text).ok().map(Bytes::from),
                    None => take_text(&mut content, "text")
                        .map(Bytes::from)
                        .or_else(|| item.content.take().map(|public| public.bytes)),
                };
                match bytes {
                    Some(bytes) => item.content = Some(Content::new(media_type, bytes)),
                    None => self.problem("the content is not Base 64"),
                }
            }
            _ => {}
        }
        self.modified = take_text(&mut own, "modified").and_then(|t| date::parse(&t));
        if let Some(authors) = own.remove("authors") {
            match serde_json::from_value(authors) {
                Ok(authors) => item.authors = authors,
                Err(_) => self.problem("the authors are not of their form"),
            }
        }
        if let Some(Value::Object(extra)) = own.remove("extra") {
            item.extra.extend(extra);
        }
    }

    /// A date; a problem where it is none.
    fn date(&mut self, object: &mut Object, key: &str) -> Option<Timestamp> {
        let value = object.remove(key).filter(|v| !v.is_null())?;
        let found = value.as_str().and_then(date::parse);
        if found.is_none() {
            let value: String = value.to_string().chars().take(60).collect();
            self.problem(&format!("{key} is no date: {value}"));
        }
        found
    }

    fn problem(&mut self, what: &str) {
        self.problems.push(format!("item {}: {what}", self.index + 1));
    }
}

fn take_tags(object: &mut Object) -> Vec<String> {
    match object.get("tags") {
        Some(Value::Array(tags)) if tags.iter().all(Value::is_string) => {}
        _ => return Vec::new(),
    }
    match object.remove("tags") {
        Some(Value::Array(tags)) => tags.iter().filter_map(scalar).collect(),
        _ => Vec::new(),
    }
}
