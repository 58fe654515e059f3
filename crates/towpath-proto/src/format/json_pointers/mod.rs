//! Any JSON as a feed, mapped by pointers (RFC 6901).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeSeed as _;
use serde_json::Value;
use serde_json::value::RawValue;

use super::budget::Budget;
use super::date;
use super::error::FormatError;
use super::feed_document::{FeedDocument, Format};
use super::iri;
use super::json::{Base, kind, scalar, syntax_error, without_mark};
use super::json_numbers::numbers_as_text;
use super::json_value::{BoundedValue, SharedBudget};
use super::media_type;
use super::problems::Problems;
use crate::Timestamp;
use crate::item::{Author, Content, Item};

mod lines;
mod mapping;
mod node;
mod stream;
mod template;

use lines::{is_lines, read_lines};
pub use mapping::Mapping;
use mapping::mapping_error;
use node::RawNode;
pub use node::raw_at;
use stream::{ItemsValue, RawItemReader, read_items};
use template::{TemplatePart, parts};

/// Characters that stay unencoded in a URL (RFC 3986, section 2.3).
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Reads any JSON as a feed. Relative URLs are resolved against `base_url`.
///
/// With `lines`, or if its lines are objects, each line is an item (NDJSON).
///
/// Without a mapping for it, an item's content is the item itself, as compact JSON with sorted keys and
/// numbers as written.
pub(crate) fn read(
    text: &str,
    mapping: &Mapping,
    (base_url, lines): (Option<&str>, bool),
    budget: Budget,
) -> Result<FeedDocument, FormatError> {
    mapping.check()?;
    let text = without_mark(text);
    let (base, feed) = (Base::new(base_url, budget), FeedDocument::new(Format::Json));
    let takes_scalars = mapping.takes_scalars();
    let problems = Problems::default();
    let mut reader =
        MappedListReader { text, mapping, takes_scalars, base, feed, problems, count: 0, scalars: 0 };
    let found = match lines || (mapping.items.is_empty() && is_lines(text)) {
        true => read_lines(text, &mut reader).map(|()| ItemsValue::List)?,
        false => read_items(text, &mapping.items, &mut reader)?,
    };
    let what = match found {
        ItemsValue::List => None,
        ItemsValue::Nothing => Some("nothing"),
        ItemsValue::Other(kind) => Some(kind),
    };
    if let Some(what) = what {
        let reason = format!("{what} is there instead of an array or object");
        return Err(mapping_error(&mapping.items, reason));
    }
    // A single item without id is skipped; without any id the pointer is wrong.
    if reader.feed.items.is_empty() && reader.scalars == reader.count && reader.count > 0 {
        let reason = format!("none of the {} members is an object", reader.count);
        return Err(mapping_error(&mapping.items, reason));
    }
    if reader.feed.items.is_empty() && reader.count > 0 {
        let reason = format!("nothing is there in any of the {} items", reader.count);
        return Err(mapping_error(&mapping.id, reason));
    }
    let MappedListReader { mut feed, problems, .. } = reader;
    (feed.problems, feed.counts) = problems.into_parts();
    Ok(feed)
}

/// Reader of all items. Only one item at a time stands in memory as a tree.
struct MappedListReader<'a> {
    text: &'a str,
    mapping: &'a Mapping,
    /// True if numbers, texts and truth values may be items.
    takes_scalars: bool,
    base: Base,
    feed: FeedDocument,
    problems: Problems,
    /// Number of items so far, skipped ones included.
    count: usize,
    /// Number of those that were skipped because they are no objects.
    scalars: usize,
}

impl RawItemReader for MappedListReader<'_> {
    fn read_item(&mut self, key: Option<&str>, raw: &RawValue) -> Result<(), FormatError> {
        let before = self.base.budget.left();
        let shared = SharedBudget::new(&mut self.base.budget);
        let text = numbers_as_text(raw.get());
        let mut parser = serde_json::Deserializer::from_str(&text);
        let value = BoundedValue { shared: &shared, depth: 0 }.deserialize(&mut parser).map_err(|error| {
            let offset = (raw.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
            shared.exceeded().unwrap_or_else(|| syntax_error(self.text, offset, &error))
        })?;
        let tree = before.saturating_sub(self.base.budget.left());
        if self.is_no_item(&value) {
            self.leave_out(key, &value);
            self.base.budget.refund(tree);
            return Ok(());
        }
        // Parsed and kept as text: a value alone would change numbers beyond 64 bits.
        let item = RawNode { value: &value, raw, key };
        let (base, problems) = (&mut self.base, &mut self.problems);
        let mut reader = MappedItemReader { mapping: self.mapping, index: self.count, item, base, problems };
        self.count += 1;
        if let Some(item) = reader.read()? {
            self.base.budget.item(&item)?;
            self.feed.items.push(item);
        }
        self.base.budget.refund(tree);
        Ok(())
    }

    fn restart(&mut self) {
        self.feed.items.clear();
        self.problems = Problems::default();
        (self.count, self.scalars) = (0, 0);
    }
}

impl MappedListReader<'_> {
    /// Returns true for a value beside the items, such as a count among an object's members.
    fn is_no_item(&self, value: &Value) -> bool {
        match value {
            Value::Object(_) | Value::Array(_) => false,
            Value::Null => true,
            Value::Bool(_) | Value::Number(_) | Value::String(_) => !self.takes_scalars,
        }
    }

    fn leave_out(&mut self, key: Option<&str>, value: &Value) {
        self.count += 1;
        self.scalars += 1;
        let index = self.count;
        self.problems.leave_out(|| {
            let name = key
                .map_or_else(String::new, |key| format!(", {:?}", key.chars().take(60).collect::<String>()));
            format!("item {index}{name}: {} is there instead of an object and was left out", kind(value))
        });
    }
}

/// Reader of an item.
struct MappedItemReader<'a> {
    mapping: &'a Mapping,
    index: usize,
    item: RawNode<'a>,
    base: &'a mut Base,
    problems: &'a mut Problems,
}

impl MappedItemReader<'_> {
    fn read(&mut self) -> Result<Option<Item>, FormatError> {
        let mapping = self.mapping;
        let Some(id) = self.text(Some(&mapping.id)).filter(|id| !id.is_empty()) else {
            let index = self.index + 1;
            self.problems
                .leave_out(|| format!("item {index}, {:?}: the item has no id and was left out", mapping.id));
            return Ok(None);
        };
        let url = self.text(mapping.url.as_ref()).map(|u| self.base.resolve(u)).transpose()?.map(iri::encode);
        let content = self.content(url.as_deref())?;
        Ok(Some(Item {
            id,
            url,
            title: self.text(mapping.title.as_ref()),
            summary: self.text(mapping.summary.as_ref()),
            content,
            authors: self.authors(),
            tags: self.list(mapping.tags.as_ref(), scalar),
            published: self.date(mapping.published.as_ref()),
            updated: self.date(mapping.updated.as_ref()),
            ..Item::default()
        }))
    }

    fn problem(&mut self, pointer: &str, what: &str) {
        self.problems.warn(|| format!("item {}, {pointer:?}: {what}", self.index + 1));
    }

    /// Returns the text or number that a pointer or template selects.
    fn text(&mut self, pointer: Option<&String>) -> Option<String> {
        let pointer = pointer?;
        if pointer.contains('{') {
            // The pointer of a template that matches nothing is not a problem: the field stays absent.
            return template(pointer, self.item);
        }
        let text = self.item.scalar(pointer);
        if text.is_none()
            && let Some(found) = self.item.value.pointer(pointer).filter(|found| !found.is_null())
        {
            // An absent or null value is normal; a value of another type hints at a wrong pointer.
            self.problem(pointer, &format!("{} is there instead of text", kind(found)));
        }
        text
    }

    /// Returns the content. HTML is a part of the item's page, which its relative addresses are resolved against.
    fn content(&mut self, page: Option<&str>) -> Result<Option<Content>, FormatError> {
        let Some(pointer) = &self.mapping.content else {
            return Ok(Some(Content::new("application/json", self.item.compact())));
        };
        let text = match self.item.value.pointer(pointer) {
            Some(Value::Array(_) | Value::Object(_)) => self.item.at(pointer).map(RawNode::compact),
            _ => self.text(Some(pointer)),
        };
        let media_type = self.mapping.content_type.as_deref().unwrap_or("text/html");
        let Some(mut text) = text else { return Ok(None) };
        if media_type::essence(media_type).eq_ignore_ascii_case("text/html") {
            text = self.base.resolve_html_of(page, &text)?.unwrap_or(text);
        }
        Ok(Some(Content::new(media_type, text)))
    }

    fn authors(&mut self) -> Vec<Author> {
        self.list(self.mapping.authors.as_ref(), |found| match found {
            Value::Object(_) => {
                // An author without a name could not be shown.
                serde_json::from_value(found.clone()).ok().filter(|a: &Author| !a.name.is_empty())
            }
            _ => scalar(found).map(Author::named),
        })
    }

    /// Applies `read` to a value, or to each value of an array.
    fn list<T>(&mut self, pointer: Option<&String>, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        let Some(pointer) = pointer else { return Vec::new() };
        let found: Vec<&Value> = match self.item.value.pointer(pointer) {
            Some(Value::Array(values)) => values.iter().collect(),
            Some(Value::Null) | None => Vec::new(),
            Some(one) => vec![one],
        };
        let list: Vec<T> = found.iter().filter_map(|v| read(v)).collect();
        if list.len() < found.len() {
            self.problem(pointer, "a value that is not text was skipped");
        }
        list
    }

    fn date(&mut self, pointer: Option<&String>) -> Option<Timestamp> {
        let text = self.text(pointer).filter(|t| !t.trim().is_empty())?;
        let found = pointer.and_then(|pointer| self.item.value.pointer(pointer));
        let date = match found {
            Some(Value::Number(_)) => date::of_number(&text),
            _ => date::parse_or_seconds(&text),
        };
        if date.is_none() {
            let text: String = text.chars().take(60).collect();
            self.problem(pointer.map_or("", |p| p), &format!("this is not a date: {text:?}"));
        }
        date
    }
}

/// Expands a template; `None` if a pointer selects no text.
fn template(template: &str, item: RawNode<'_>) -> Option<String> {
    let mut out = String::with_capacity(template.len() + 16);
    for part in parts(template) {
        match part {
            TemplatePart::Text(text) => out.push_str(text),
            TemplatePart::Pointer(pointer) => {
                // Encoded, because a value with a slash or a question mark would change the URL's structure.
                out.extend(utf8_percent_encode(&item.scalar(pointer)?, UNRESERVED));
            }
            TemplatePart::Unclosed(_) => return None,
        }
    }
    Some(out)
}
