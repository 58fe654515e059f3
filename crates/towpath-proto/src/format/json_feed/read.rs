//! Reading JSON Feed documents.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};

use super::extension::{EXTRA, JsonObject, OWN};
use crate::Timestamp;
use crate::format::budget::Budget;
use crate::format::date;
use crate::format::error::FormatError;
use crate::format::feed_document::{DeletedEntry, FeedDocument, FeedLink, Format};
use crate::format::html;
use crate::format::iri;
use crate::format::json::{Base, kind, scalar};
use crate::format::json_list::{ListDocument, ListMember, ListReader, read_list};
use crate::format::problems::Problems;
use crate::item::{Author, Content, ContentForm, Item};

/// Parses a JSON Feed; relative URLs are resolved against `base_url`.
pub(crate) fn read(text: &str, base_url: Option<&str>, budget: Budget) -> Result<FeedDocument, FormatError> {
    let (base, feed) = (Base::new(base_url, budget), FeedDocument::new(Format::JsonFeed));
    let mut reader = FeedReader { base, feed, problems: Problems::default() };
    let ListDocument::Object { members: mut top, list } = read_list(text, &mut reader)? else {
        return Err(not_a_feed("an array"));
    };
    let version = top.get("version").and_then(Value::as_str).unwrap_or_default();
    let is_feed = version.contains("jsonfeed.org/version/");
    match list {
        ListMember::Array => {}
        ListMember::Absent if is_feed => {}
        _ => return Err(not_a_feed("an object without an array of items")),
    }
    let FeedReader { mut base, mut feed, problems } = reader;
    (feed.problems, feed.counts) = problems.into_parts();
    feed.title = take_text(&mut top, "title");
    feed.home = take_text(&mut top, "home_page_url").map(|u| base.resolve(u)).transpose()?.map(iri::encode);
    feed.lang = take_text(&mut top, "language");
    feed.description = take_text(&mut top, "description");
    let icon = take_text(&mut top, "icon").or_else(|| take_text(&mut top, "favicon"));
    feed.image = icon.map(|u| base.resolve(u)).transpose()?.map(iri::encode);
    feed.links = links(&mut top, &mut base)?;
    // In our own documents, addresses are as the items have them.
    if !top.contains_key(OWN) {
        // JSON Feed has no base: its texts are parts of the feed's pages, which may be on another host.
        base.set_home(feed.home.as_deref());
        feed.items.iter_mut().try_for_each(|item| resolve_addresses(item, &mut base))?;
    }
    own_head(&mut top, &mut feed);
    let authors = take_authors(&mut top);
    // Our writer's own form: the author of the feed alone, not of its items.
    if !feed.authors.is_empty() {
        return Ok(feed);
    }
    feed.authors.clone_from(&authors);
    feed.inherit_authors(&authors, &mut base.budget)?;
    Ok(feed)
}

/// Reader of a feed's items.
struct FeedReader {
    base: Base,
    feed: FeedDocument,
    problems: Problems,
}

impl ListReader for FeedReader {
    fn base(&mut self) -> &mut Base {
        &mut self.base
    }

    fn read_item(&mut self, index: usize, item: Value) -> Result<(), FormatError> {
        let Self { base, feed, problems } = self;
        let mut reader = ItemReader { index, base, problems, modified: None };
        let Value::Object(object) = item else {
            reader.leave_out(&format!("{} instead of an object was left out", kind(&item)));
            return Ok(());
        };
        let read = reader.read(object)?;
        let modified = reader.modified;
        feed.push(read.map(|item| (item, modified)), &mut base.budget)
    }

    fn restart(&mut self) {
        (self.feed.items, self.feed.modified) = (Vec::new(), Vec::new());
        self.problems = Problems::default();
    }
}

fn not_a_feed(what: &str) -> FormatError {
    let reason = format!("JSON, but {what} is not a JSON Feed; any other JSON needs pointers to its items");
    FormatError::Unknown(reason)
}

fn take_text(object: &mut JsonObject, key: &str) -> Option<String> {
    match object.get(key) {
        Some(Value::String(_)) => match object.remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

fn links(top: &mut JsonObject, base: &mut Base) -> Result<Vec<FeedLink>, FormatError> {
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

/// Resolves the relative addresses of an item's content, images and attachments, and encodes the last two.
fn resolve_addresses(item: &mut Item, base: &mut Base) -> Result<(), FormatError> {
    // Still relative if the document's own URL is unknown.
    item.url = item.url.take().map(|url| base.resolve(url)).transpose()?;
    if let Some(content) = item.content.as_mut().filter(|content| content.media_type == "text/html") {
        let resolved = content.text().map(|html| base.resolve_html(html)).transpose()?;
        content.bytes = resolved.flatten().map_or_else(|| content.bytes.clone(), Bytes::from);
    }
    let Some(Value::Object(members)) = item.extra.get_mut(EXTRA) else { return Ok(()) };
    let mut resolve = |value: Option<&mut Value>| match value {
        Some(Value::String(address)) => {
            let written = std::mem::take(address);
            let resolved = if html::is_relative(&written) { base.resolve(written)? } else { written };
            *address = iri::encode(resolved);
            Ok(())
        }
        _ => Ok::<_, FormatError>(()),
    };
    for name in ADDRESSES {
        resolve(members.get_mut(name))?;
    }
    let attachments = members.get_mut("attachments").and_then(Value::as_array_mut);
    attachments.into_iter().flatten().try_for_each(|attachment| resolve(attachment.get_mut("url")))
}

/// Reads our extension of the feed: its id, time of change, links, deletions.
fn own_head(top: &mut JsonObject, feed: &mut FeedDocument) {
    let Some(Value::Object(mut own)) = top.remove(OWN) else { return };
    feed.id = take_text(&mut own, "id");
    feed.description = take_text(&mut own, "description").or(feed.description.take());
    feed.updated = take_text(&mut own, "updated").and_then(|t| date::parse(&t));
    feed.stateful = own.get("stateful").and_then(Value::as_bool);
    feed.complete = own.get("complete").and_then(Value::as_bool).unwrap_or_default();
    feed.archive = own.get("archive").and_then(Value::as_bool).unwrap_or_default();
    feed.authors.extend(own.remove("author").and_then(|author| serde_json::from_value(author).ok()));
    for link in own.get("links").and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| link.get(key).and_then(Value::as_str).map(str::to_owned);
        if let (Some(rel), Some(href)) = (text("rel"), text("href")) {
            feed.links.push(FeedLink { rel, href, media_type: text("type") });
        }
    }
    for entry in own.get("deleted").and_then(Value::as_array).into_iter().flatten() {
        // An entry without an id names nothing, and is skipped.
        if let Some(id) = entry.get("id").and_then(Value::as_str) {
            let when = entry.get("when").and_then(Value::as_str).and_then(date::parse);
            feed.deleted.push(DeletedEntry { id: id.to_owned(), when });
        }
    }
}

/// Removes `authors` of 1.1, else `author` of 1.0. Members beyond name and address stay in the object.
pub(super) fn take_authors(object: &mut JsonObject) -> Vec<Author> {
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
        // Members such as an avatar have no field in an author; they must survive a round trip.
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

/// Members of an item that are addresses, beside its `url`.
const ADDRESSES: [&str; 3] = ["image", "banner_image", "external_url"];

/// Returns `true` if no address in stored members needs encoding.
fn has_good_addresses(members: &JsonObject) -> bool {
    let attachments = members.get("attachments").and_then(Value::as_array).into_iter().flatten();
    let addresses = attachments.map(|one| one.get("url")).chain(ADDRESSES.map(|name| members.get(name)));
    addresses.flatten().filter_map(Value::as_str).all(|address| iri::encoded(address) == address)
}

/// Returns `true` if stored members would be stored again beside the item's fields, without changing the
/// item.
pub(super) fn comes_back(kept: &JsonObject, item: &Item) -> bool {
    const FIELDS: [&str; 8] =
        ["id", OWN, "url", "title", "summary", "content_html", "date_published", "date_modified"];
    let shown = item.content.as_ref().and_then(Content::shown);
    let is_html = matches!(shown, Some((ContentForm::Html, _)));
    if FIELDS.iter().any(|key| kept.contains_key(*key)) || (!is_html && kept.contains_key("content_text")) {
        return false;
    }
    if !has_good_addresses(kept) {
        return false;
    }
    let mut object = kept.clone();
    // Tags and authors that are also stored would be written twice, or with different values.
    let authors = take_authors(&mut object);
    let tags = take_tags(&mut object);
    let has_authors = kept.contains_key("author") || kept.contains_key("authors");
    let tags_clash = !tags.is_empty() || (!item.tags.is_empty() && kept.contains_key("tags"));
    object == *kept && !tags_clash && (!has_authors || authors == item.authors)
}

/// Reader of an item.
struct ItemReader<'a> {
    index: usize,
    base: &'a mut Base,
    problems: &'a mut Problems,
    /// Time of the last change in the feed, as given by our writer.
    modified: Option<Timestamp>,
}

impl ItemReader<'_> {
    fn read(&mut self, mut object: JsonObject) -> Result<Option<Item>, FormatError> {
        let own = match object.remove(OWN) {
            Some(Value::Object(own)) => own,
            _ => JsonObject::new(),
        };
        // Our writer's forms of what the item holds elsewhere.
        for name in
            own.get("derived").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
        {
            object.remove(name);
        }
        let url = take_text(&mut object, "url").map(|u| self.base.resolve(u)).transpose()?;
        // "id (required, string)"; a number is to be read as text ("Suggestions for Readers").
        let id = object.remove("id").as_ref().and_then(scalar).filter(|id| !id.is_empty());
        let Some(id) = id.or_else(|| url.clone()) else {
            self.leave_out("an item without id and url was left out");
            return Ok(None);
        };
        let url = url.map(iri::encode);
        let mut item = Item { url, title: take_text(&mut object, "title"), ..Item::new(id) };
        item.summary = take_text(&mut object, "summary");
        item.published = self.date(&mut object, "date_published");
        item.updated = self.date(&mut object, "date_modified");
        // JSON Feed 1.0 has `author`, 1.1 `authors`.
        item.authors = take_authors(&mut object);
        item.tags = take_tags(&mut object);
        item.content = self.content(&mut object);
        self.own_fields(own, &mut item);
        if !object.is_empty() {
            // Unknown members are stored, so that extensions of other publishers survive.
            item.extra.insert(EXTRA.to_owned(), Value::Object(object));
        }
        Ok(Some(item))
    }

    fn content(&mut self, object: &mut JsonObject) -> Option<Content> {
        if let Some(html) = take_text(object, "content_html") {
            return Some(Content::new("text/html", html));
        }
        take_text(object, "content_text").map(|text| Content::new("text/plain", text))
    }

    /// Reads our extension of the item.
    fn own_fields(&mut self, mut own: JsonObject, item: &mut Item) {
        // Our writer's own form of a URL that the public member cannot have.
        item.url = take_text(&mut own, "url").or(item.url.take());
        if own.remove("summary_in").is_some() {
            item.summary = item.content.as_ref().and_then(Content::text).map(str::to_owned);
        } else if let Some(summary) = take_text(&mut own, "summary") {
            item.summary = Some(summary);
        }
        match own.remove("content") {
            // Our writer marks an item without content: JSON Feed requires some content.
            Some(Value::Null) => item.content = None,
            Some(Value::Object(mut content)) => {
                let media_type = take_text(&mut content, "type").unwrap_or_default();
                let bytes = match take_text(&mut content, "base64") {
                    Some(text) => STANDARD.decode(text).ok().map(Bytes::from),
                    None => take_text(&mut content, "text")
                        .map(Bytes::from)
                        // Without its own text, the extension gives the type of the public content.
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

    /// Returns a date; `None`, with a problem, if it is malformed.
    fn date(&mut self, object: &mut JsonObject, key: &str) -> Option<Timestamp> {
        let value = object.remove(key).filter(|v| !v.is_null())?;
        let found = value.as_str().and_then(date::parse);
        if found.is_none() {
            let value: String = value.to_string().chars().take(60).collect();
            self.problem(&format!("{key} is not a date: {value}"));
        }
        found
    }

    fn problem(&mut self, what: &str) {
        self.problems.warn(|| format!("item {}: {what}", self.index + 1));
    }

    fn leave_out(&mut self, what: &str) {
        self.problems.leave_out(|| format!("item {}: {what}", self.index + 1));
    }
}

fn take_tags(object: &mut JsonObject) -> Vec<String> {
    match object.get("tags") {
        // A list with anything but text stays in the object, unchanged.
        Some(Value::Array(tags)) if tags.iter().all(Value::is_string) => {}
        _ => return Vec::new(),
    }
    match object.remove("tags") {
        Some(Value::Array(tags)) => tags.iter().filter_map(scalar).collect(),
        _ => Vec::new(),
    }
}
