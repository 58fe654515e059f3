//! Builder of an item from the elements of an XML format, in any order.

use std::collections::HashSet;

use percent_encoding::percent_decode_str;
use serde::de::DeserializeSeed as _;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::budget::Budget;
use super::date;
use super::iri;
use super::json_numbers::numbers_as_text;
use super::json_value::{BoundedValue, SharedBudget};
use super::xml::{Ns, Tag, XmlReader};
use crate::Timestamp;
use crate::format::error::FormatError;
use crate::item::Item;

/// Key of [`Item::extra`] for stored elements of the XML formats.
pub(crate) const EXTRA: &str = "xml";

/// Item under construction.
#[derive(Default)]
pub(crate) struct ItemBuilder {
    pub(crate) item: Item,
    /// Id of the format: `atom:id`, `guid`, `rdf:about`.
    pub(crate) format_id: Option<String>,
    /// Id given by the publisher apart from the format (`fo:id`); takes precedence.
    pub(crate) own_id: Option<String>,
    /// URL as the item has it, given by our writer where the format's own link had to be encoded.
    pub(crate) own_url: Option<String>,
    /// Time of the last change in the feed, as given by our writer.
    pub(crate) modified: Option<Timestamp>,
    /// `true` if the item has no date of its own, and `updated` is the time of its last change in the feed.
    pub(crate) has_assigned_date: bool,
    /// `true` if the format's id is a URL that can replace a missing link.
    pub(crate) id_is_address: bool,
    elements: Vec<Value>,
    /// Memory of these, which counts with the item once it is complete.
    spent: usize,
    /// Set of the item's first tags, as far as they were indexed.
    known_tags: HashSet<String>,
    /// Number of indexed tags.
    looked_through: usize,
}

impl ItemBuilder {
    /// Stores an element that no field of the item holds.
    pub(crate) fn keep(&mut self, xml: &mut XmlReader<'_>, element: String) -> Result<(), FormatError> {
        let before = xml.budget().left();
        xml.budget().value(element.len())?;
        self.spent += before - xml.budget().left();
        self.elements.push(Value::String(element));
        Ok(())
    }

    /// Stores the element that was just started.
    pub(crate) fn keep_element<'i>(
        &mut self,
        xml: &mut XmlReader<'i>,
        tag: Tag<'i>,
    ) -> Result<(), FormatError> {
        let element = xml.capture(tag)?;
        self.keep(xml, element)
    }

    /// Returns `true` if this element was stored and nothing else was read.
    pub(crate) fn kept_only(&self, element: &str, known: &Item) -> bool {
        let kept = matches!(&self.elements[..], [Value::String(kept)] if kept == element);
        kept && self.item == *known
            && !self.has_assigned_date
            && self.own_id.is_none()
            && self.own_url.is_none()
            && self.format_id.is_none()
    }

    /// Adds a tag.
    pub(crate) fn tag(&mut self, tag: String) {
        if !tag.is_empty() {
            self.item.tags.push(tag);
        }
    }

    /// Takes the name of a field that the item has as an empty text.
    pub(crate) fn empty_field(&mut self, name: &str) {
        match name {
            "title" => drop(self.item.title.get_or_insert_default()),
            "summary" => drop(self.item.summary.get_or_insert_default()),
            "tag" => self.item.tags.push(String::new()),
            // A later version may have more of them.
            _ => {}
        }
    }

    /// Adds a tag whose whole element is stored as well: a repeated one is dropped.
    pub(crate) fn tag_of_stored_element(&mut self, tag: String) {
        if !self.has_tag(&tag) {
            self.tag(tag);
        }
    }

    /// Returns `true` if the item has a tag. The index is built on demand: most items have few tags and never
    /// need it.
    fn has_tag(&mut self, tag: &str) -> bool {
        self.known_tags.extend(self.item.tags[self.looked_through..].iter().cloned());
        self.looked_through = self.item.tags.len();
        self.known_tags.contains(tag)
    }

    /// Returns the item of the element at `offset`. `None`, with a problem, if it has no id and nothing to
    /// derive an id from.
    pub(crate) fn finish(
        mut self,
        xml: &mut XmlReader<'_>,
        offset: usize,
    ) -> Option<(Item, Option<Timestamp>)> {
        xml.budget().refund(self.spent);
        if self.has_assigned_date {
            let assigned = self.item.updated.take();
            self.modified = self.modified.or(assigned);
        }
        // RSS 2.0: a permalink guid may stand for the link.
        if self.item.url.is_none() && self.id_is_address {
            self.item.url = self.format_id.clone().filter(|id| iri::has_scheme(id));
        }
        // The publisher's own id is stable even where a format has rewritten its id.
        let id = self.own_id.or(self.format_id).or_else(|| self.item.url.clone());
        let Some(id) = id.or_else(|| digest(&self.item)) else {
            xml.left_out(offset, "an entry without id, link, title and text was left out");
            return None;
        };
        self.item.id = id;
        // After the id: one that is the link as the publisher wrote it has been stored so.
        self.item.url = self.own_url.or(self.item.url.map(iri::encode));
        if !self.elements.is_empty() {
            // Elements that our writer stored as JSON come before those in the document.
            let kept = self.item.extra.entry(EXTRA).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(kept) = kept {
                kept.append(&mut self.elements);
            }
        }
        Some((self.item, self.modified))
    }

    /// Reads [`Item::extra`] as written by our writer as JSON.
    pub(crate) fn extra_json(&mut self, text: &str, budget: &mut Budget) -> Result<bool, FormatError> {
        let before = budget.left();
        let shared = SharedBudget::new(budget);
        let text = numbers_as_text(text);
        let mut parser = serde_json::Deserializer::from_str(&text);
        let read = BoundedValue { shared: &shared, depth: 0 }.deserialize(&mut parser);
        if let Some(exceeded) = shared.exceeded() {
            return Err(exceeded);
        }
        self.spent += before - budget.left();
        match (read, parser.end()) {
            (Ok(Value::Object(extra)), Ok(())) => {
                self.item.extra.extend(extra);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Derives an id from title and texts, for an item without an id.
fn digest(item: &Item) -> Option<String> {
    let content = item.content.as_ref().map(|c| c.bytes.as_ref());
    let parts =
        [item.title.as_deref().map(str::as_bytes), item.summary.as_deref().map(str::as_bytes), content];
    if parts.iter().all(Option::is_none) {
        return None;
    }
    let mut hasher = Sha256::new();
    for part in parts {
        // Lengths keep the boundaries, so that moved text gives another digest.
        let part = part.unwrap_or_default();
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    Some(format!("sha256:{}", hex::encode(hasher.finalize())))
}

/// Returns the date in the element that was just started; `None`, with a problem, if it is malformed.
pub(crate) fn date_element(xml: &mut XmlReader<'_>, tag: Tag<'_>) -> Result<Option<Timestamp>, FormatError> {
    let text = xml.text()?;
    let found = date::parse(&text);
    if found.is_none() {
        let text: String = text.trim().chars().take(60).collect();
        xml.problem(tag.offset, format_args!("<{}> is not a date: {text:?}", tag.name));
    }
    Ok(found)
}

/// Returns the URL in the element that was just started, encoded, and absolute if the base is known.
pub(crate) fn address(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    some_text(xml)?.map(|text| xml.resolve(&text).map(iri::encode)).transpose()
}

/// Returns the text of the element that was just started, unless it is empty.
pub(crate) fn some_text(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    Ok(Some(xml.trimmed_text()?).filter(|t| !t.is_empty()))
}

/// Returns `true` for an element with the publisher's own id of the item.
pub(crate) fn is_own_id(tag: Tag<'_>) -> bool {
    matches!(tag.ns, Ns::Fanout | Ns::Towpath) && tag.local == "id"
}

/// Returns the id in the element that was just started.
pub(crate) fn own_id(xml: &mut XmlReader<'_>, tag: Tag<'_>) -> Result<Option<String>, FormatError> {
    if tag.ns == Ns::Fanout { some_text(xml) } else { own_text(xml) }
}

/// Returns the text of an element of our namespace, which is percent-encoded, so that it can be any text.
pub(crate) fn own_text(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    let text = some_text(xml)?;
    Ok(text.map(|text| percent_decode_str(&text).decode_utf8_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_that_is_kept_besides_is_not_repeated() {
        let mut builder = ItemBuilder::default();
        for (tag, kept_besides) in
            [("a", true), ("b", false), ("a", true), ("b", false), ("c", true), ("b", true)]
        {
            match kept_besides {
                true => builder.tag_of_stored_element(tag.to_owned()),
                false => builder.tag(tag.to_owned()),
            }
        }
        assert_eq!(builder.item.tags, ["a", "b", "b", "c"]);
    }
}
