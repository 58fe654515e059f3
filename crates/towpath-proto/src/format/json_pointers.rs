//! Any JSON as a feed, through pointers (RFC 6901).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json::{Base, kind, parse, scalar};
use super::{FeedDocument, Format, FormatError, date};
use crate::Timestamp;
use crate::item::{Author, Content, Item};

mod node;
mod template;

use node::Node;
use template::{Part, parts};

/// Where a JSON document has what: pointers (RFC 6901). `items` is into the document, all others into one item.
///
/// A value with `{` in it is a template: `https://example.com/{/id}` has each `{pointer}` replaced by what it
/// points at, percent-encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// The array (or object, whose values are the items) of items; the empty pointer is the document itself.
    #[serde(default)]
    pub items: String,
    /// The item's id: text or a number, which counts as it is written.
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
/// The content of an item is the item itself as compact JSON with sorted keys and numbers as they are written,
/// unless the mapping says where else it is.
pub(crate) fn read(
    text: &str,
    mapping: &Mapping,
    base_url: Option<&str>,
) -> Result<FeedDocument, FormatError> {
    mapping.check()?;
    let document = parse(text)?;
    let document = Node { value: &document, raw: parse(text)? };
    let found = document.at(&mapping.items);
    let Some(items) = found.and_then(Node::children) else {
        let what = found.map_or("nothing", |found| kind(found.value));
        let reason = format!("{what} is there instead of an array or object");
        return Err(mapping_error(&mapping.items, reason));
    };
    let mut base = Base::new(base_url, text.len());
    let mut feed = FeedDocument::new(Format::Json);
    for (index, item) in items.iter().enumerate() {
        let problems = &mut feed.problems;
        let mut reader = ItemReader { mapping, index, item: *item, base: &mut base, problems };
        feed.items.extend(reader.read()?);
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
            let Some(value) = value else { continue };
            check_value(value).map_err(|reason| mapping_error(value, format!("{name} {reason}")))?;
        }
        Ok(())
    }
}

/// Checks a pointer or template.
fn check_value(value: &str) -> Result<(), String> {
    if !value.contains('{') {
        return if is_pointer(value) { Ok(()) } else { Err("is not a pointer: it must begin with /".into()) };
    }
    for part in parts(value) {
        match part {
            Part::Unclosed(rest) => {
                return Err(format!(
                    "has a {{ without its }}: a pointer is written {{/id}}, here is {rest:?}"
                ));
            }
            Part::Pointer(pointer) if !is_pointer(pointer) => {
                return Err(format!("has {{{pointer}}}, which is not a pointer: it must begin with /"));
            }
            Part::Pointer(_) | Part::Text(_) => {}
        }
    }
    Ok(())
}

fn is_pointer(text: &str) -> bool {
    text.is_empty() || text.starts_with('/')
}

/// Reads one item.
struct ItemReader<'a> {
    mapping: &'a Mapping,
    index: usize,
    item: Node<'a>,
    base: &'a mut Base,
    problems: &'a mut Vec<String>,
}

impl ItemReader<'_> {
    fn read(&mut self) -> Result<Option<Item>, FormatError> {
        let mapping = self.mapping;
        let Some(id) = self.text(Some(&mapping.id)).filter(|id| !id.is_empty()) else {
            self.problem(&mapping.id, "there is no id; the item was left out");
            return Ok(None);
        };
        let url = self.text(mapping.url.as_ref()).map(|u| self.base.resolve(u)).transpose()?;
        Ok(Some(Item {
            id,
            url,
            title: self.text(mapping.title.as_ref()),
            summary: self.text(mapping.summary.as_ref()),
            content: self.content(),
            authors: self.authors(),
            tags: self.list(mapping.tags.as_ref(), scalar),
            published: self.date(mapping.published.as_ref()),
            updated: self.date(mapping.updated.as_ref()),
            ..Item::default()
        }))
    }

    fn problem(&mut self, pointer: &str, what: &str) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(format!("item {}, {pointer:?}: {what}", self.index + 1));
        }
    }

    /// The text (or number) that a pointer or template gives.
    fn text(&mut self, pointer: Option<&String>) -> Option<String> {
        let pointer = pointer?;
        if pointer.contains('{') {
            return template(pointer, self.item);
        }
        let text = self.item.scalar(pointer);
        if text.is_none()
            && let Some(found) = self.item.value.pointer(pointer).filter(|found| !found.is_null())
        {
            self.problem(pointer, &format!("{} is there instead of text", kind(found)));
        }
        text
    }

    fn content(&mut self) -> Option<Content> {
        let Some(pointer) = &self.mapping.content else {
            return Some(Content::new("application/json", self.item.compact()));
        };
        let text = match self.item.value.pointer(pointer) {
            Some(Value::Array(_) | Value::Object(_)) => self.item.at(pointer).map(Node::compact),
            _ => self.text(Some(pointer)),
        };
        let media_type = self.mapping.content_type.as_deref().unwrap_or("text/html");
        text.map(|text| Content::new(media_type, text))
    }

    fn authors(&mut self) -> Vec<Author> {
        self.list(self.mapping.authors.as_ref(), |found| match found {
            Value::Object(_) => {
                serde_json::from_value(found.clone()).ok().filter(|a: &Author| !a.name.is_empty())
            }
            _ => scalar(found).map(Author::named),
        })
    }

    /// What `read` makes of a value, or of each of an array's.
    fn list<T>(&mut self, pointer: Option<&String>, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        let Some(pointer) = pointer else { return Vec::new() };
        let found: Vec<&Value> = match self.item.value.pointer(pointer) {
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

    fn date(&mut self, pointer: Option<&String>) -> Option<Timestamp> {
        let text = self.text(pointer).filter(|t| !t.trim().is_empty())?;
        let date = date::parse_or_seconds(&text);
        if date.is_none() {
            let text: String = text.chars().take(60).collect();
            self.problem(pointer.map_or("", |p| p), &format!("this is no date: {text:?}"));
        }
        date
    }
}

/// A template with its pointers replaced; `None` where one finds no text.
fn template(template: &str, item: Node<'_>) -> Option<String> {
    let mut out = String::with_capacity(template.len() + 16);
    for part in parts(template) {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Pointer(pointer) => {
                out.extend(utf8_percent_encode(&item.scalar(pointer)?, UNRESERVED));
            }
            Part::Unclosed(_) => return None,
        }
    }
    Some(out)
}
