//! Any JSON as a feed, through pointers (RFC 6901).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use super::json::{kind, parse, resolve, scalar};
use super::{FeedDocument, Format, FormatError, date};
use crate::Timestamp;
use crate::item::{Author, Content, Item};

/// Where a JSON document has what: pointers (RFC 6901). `items` is into the document, all others into one item.
///
/// A value with `{` in it is a template: `https://example.com/{/id}` has each `{pointer}` replaced by what it
/// points at, percent-encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mapping {
    /// The array (or object, whose values are the items) of items; the empty pointer is the document itself.
    pub items: String,
    /// The item's id: text or a number.
    pub id: String,
    /// See [`crate::item::Item::url`].
    pub url: Option<String>,
    /// See [`crate::item::Item::title`].
    pub title: Option<String>,
    /// See [`crate::item::Item::summary`].
    pub summary: Option<String>,
    /// A text to use as content, of type `content_type`; the whole item as JSON where absent.
    pub content: Option<String>,
    /// The media type of `content`: itself a type, not a pointer. `text/html` where absent.
    pub content_type: Option<String>,
    /// A name, or an array of names.
    pub authors: Option<String>,
    /// A tag, or an array of tags.
    pub tags: Option<String>,
    /// A date, date and time, or Unix seconds.
    pub published: Option<String>,
    /// A date, date and time, or Unix seconds.
    pub updated: Option<String>,
}

/// What stays as it is in an address (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The most problems that one document may list.
const MAX_PROBLEMS: usize = 100;

/// Reads any JSON as a feed. Relative addresses are resolved against `base_url`.
///
/// The content of an item is the item itself as compact JSON with sorted keys, unless the mapping says where
/// else it is.
pub(crate) fn read(
    text: &str,
    mapping: &Mapping,
    base_url: Option<&str>,
) -> Result<FeedDocument, FormatError> {
    mapping.check()?;
    let document: Value = parse(text)?;
    let found = document.pointer(&mapping.items);
    let items: Vec<&Value> = match found {
        Some(Value::Array(items)) => items.iter().collect(),
        Some(Value::Object(items)) => items.values().collect(),
        other => {
            let what = other.map_or("nothing", kind);
            return Err(mapping_error(
                &mapping.items,
                format!("{what} is there instead of an array or object"),
            ));
        }
    };
    let base = base_url.and_then(|u| Url::parse(u).ok());
    let mut feed = FeedDocument::new(Format::Json);
    for (index, value) in items.iter().enumerate() {
        let mut reader = ItemReader { mapping, index, base: base.as_ref(), problems: &mut feed.problems };
        feed.items.extend(reader.read(value));
    }
    // One item without id is the item's fault, all of them are the pointer's.
    if feed.items.is_empty() && !items.is_empty() {
        let reason = format!("nothing is there in any of the {} items", items.len());
        return Err(mapping_error(&mapping.id, reason));
    }
    Ok(feed)
}

fn mapping_error(pointer: &str, reason: String) -> FormatError {
    FormatError::Mapping { place: format!("{pointer:?}"), reason }
}

impl Mapping {
    /// Checks that each value is a pointer (RFC 6901, section 3) or a template of pointers.
    pub fn check(&self) -> Result<(), FormatError> {
        if !is_pointer(&self.items) {
            return Err(mapping_error(&self.items, "items is not a pointer: it must begin with /".into()));
        }
        let fields = [
            ("id", Some(&self.id)),
            ("url", self.url.as_ref()),
            ("title", self.title.as_ref()),
            ("summary", self.summary.as_ref()),
            ("content", self.content.as_ref()),
            ("authors", self.authors.as_ref()),
            ("tags", self.tags.as_ref()),
            ("published", self.published.as_ref()),
            ("updated", self.updated.as_ref()),
        ];
        for (name, value) in fields {
            if value.is_some_and(|v| !v.contains('{') && !is_pointer(v)) {
                let reason = format!("{name} is not a pointer: it must begin with /");
                return Err(mapping_error(value.map_or("", |v| v), reason));
            }
        }
        Ok(())
    }
}

fn is_pointer(text: &str) -> bool {
    text.is_empty() || text.starts_with('/')
}

/// Reads one item.
struct ItemReader<'a> {
    mapping: &'a Mapping,
    index: usize,
    base: Option<&'a Url>,
    problems: &'a mut Vec<String>,
}

impl ItemReader<'_> {
    fn read(&mut self, value: &Value) -> Option<Item> {
        let mapping = self.mapping;
        let Some(id) = self.text(value, Some(&mapping.id)).filter(|id| !id.is_empty()) else {
            self.problem(&mapping.id, "there is no id; the item was left out");
            return None;
        };
        Some(Item {
            id,
            url: self.text(value, mapping.url.as_ref()).map(|u| resolve(u, self.base)),
            title: self.text(value, mapping.title.as_ref()),
            summary: self.text(value, mapping.summary.as_ref()),
            content: self.content(value),
            authors: self.authors(value),
            tags: self.list(value, mapping.tags.as_ref(), scalar),
            published: self.date(value, mapping.published.as_ref()),
            updated: self.date(value, mapping.updated.as_ref()),
            ..Item::default()
        })
    }

    fn problem(&mut self, pointer: &str, what: &str) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(format!("item {}, {pointer:?}: {what}", self.index + 1));
        }
    }

    /// The text (or number) that a pointer or template gives.
    fn text(&mut self, value: &Value, pointer: Option<&String>) -> Option<String> {
        let pointer = pointer?;
        if pointer.contains('{') {
            return template(pointer, value);
        }
        let found = value.pointer(pointer)?;
        let text = scalar(found);
        if text.is_none() && !found.is_null() {
            self.problem(pointer, &format!("{} is there instead of text", kind(found)));
        }
        text
    }

    fn content(&mut self, value: &Value) -> Option<Content> {
        let Some(pointer) = &self.mapping.content else {
            return Some(Content::new("application/json", value.to_string()));
        };
        let text = match value.pointer(pointer) {
            Some(found @ (Value::Array(_) | Value::Object(_))) => Some(found.to_string()),
            _ => self.text(value, Some(pointer)),
        };
        let media_type = self.mapping.content_type.as_deref().unwrap_or("text/html");
        text.map(|text| Content::new(media_type, text))
    }

    fn authors(&mut self, value: &Value) -> Vec<Author> {
        self.list(value, self.mapping.authors.as_ref(), |found| match found {
            Value::Object(_) => {
                serde_json::from_value(found.clone()).ok().filter(|a: &Author| !a.name.is_empty())
            }
            _ => scalar(found).map(Author::named),
        })
    }

    /// What `read` makes of a value, or of each of an array's.
    fn list<T>(
        &mut self,
        value: &Value,
        pointer: Option<&String>,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Vec<T> {
        let Some(pointer) = pointer else { return Vec::new() };
        let found: Vec<&Value> = match value.pointer(pointer) {
            Some(Value::Array(values)) => values.iter().collect(),
            Some(Value::Null) | None => Vec::new(),
            Some(one) => vec![one],
        };
        let list: Vec<T> = found.iter().filter_map(|v| read(v)).collect();
        if list.len() < found.len() {
            self.problem(pointer, "a value that is no text was left out");
        }
        list
    }

    fn date(&mut self, value: &Value, pointer: Option<&String>) -> Option<Timestamp> {
        let text = self.text(value, pointer).filter(|t| !t.trim().is_empty())?;
        let date = date::parse_or_seconds(&text);
        if date.is_none() {
            let text: String = text.chars().take(60).collect();
            self.problem(pointer.map_or("", |p| p), &format!("this is no date: {text:?}"));
        }
        date
    }
}

/// A template with its pointers replaced; `None` where one finds no text.
fn template(template: &str, value: &Value) -> Option<String> {
    let mut out = String::with_capacity(template.len() + 16);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (pointer, after) = after.split_once('}')?;
        out.push_str(before);
        let text = scalar(value.pointer(pointer)?)?;
        out.extend(utf8_percent_encode(&text, UNRESERVED));
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}
