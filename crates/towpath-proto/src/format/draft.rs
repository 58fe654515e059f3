//! An item of an XML format while its elements are read, in whatever order they come.

use std::collections::HashSet;

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::date;
use super::xml::{Tag, XmlReader};
use crate::Timestamp;
use crate::format::FormatError;
use crate::item::Item;

/// The key of [`Item::extra`] under which the XML formats keep elements.
pub(crate) const EXTRA: &str = "xml";

/// What is known of an item so far.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) item: Item,
    /// The id that the format itself has: `atom:id`, `guid`, `rdf:about`.
    pub(crate) format_id: Option<String>,
    /// The id that the publisher gives the item apart from the format (`fo:id`), which comes first.
    pub(crate) own_id: Option<String>,
    /// When the item was last changed in the feed that the document is of, where a writer of ours says so.
    pub(crate) modified: Option<Timestamp>,
    /// The format's id is an address that can stand in for a missing link.
    pub(crate) id_is_address: bool,
    elements: Vec<Value>,
    /// The first of the item's tags, as many as were looked through.
    known_tags: HashSet<String>,
    /// How many of the item's tags that is.
    looked_through: usize,
}

impl Draft {
    /// Keeps an element that the item's fields have no place for.
    pub(crate) fn keep(&mut self, element: String) {
        self.elements.push(Value::String(element));
    }

    /// Keeps the element just started.
    pub(crate) fn keep_element<'i>(
        &mut self,
        xml: &mut XmlReader<'i>,
        tag: Tag<'i>,
    ) -> Result<(), FormatError> {
        self.keep(xml.capture(tag)?);
        Ok(())
    }

    /// Whether nothing was read but this one element, which was kept.
    pub(crate) fn kept_only(&self, element: &str, known: &Item) -> bool {
        let kept = matches!(&self.elements[..], [Value::String(kept)] if kept == element);
        kept && self.item == *known && self.own_id.is_none() && self.format_id.is_none()
    }

    /// Takes a tag; one that is kept as a whole element besides is not repeated.
    pub(crate) fn tag(&mut self, tag: String, kept_besides: bool) {
        if !(tag.is_empty() || kept_besides && self.has_tag(&tag)) {
            self.item.tags.push(tag);
        }
    }

    /// Whether the item has a tag. Most have few and never ask, so what is needed to answer is made only then.
    fn has_tag(&mut self, tag: &str) -> bool {
        self.known_tags.extend(self.item.tags[self.looked_through..].iter().cloned());
        self.looked_through = self.item.tags.len();
        self.known_tags.contains(tag)
    }

    /// The item that was read from the element at `offset`; `None`, and a problem, where it has no id and
    /// nothing to make one of.
    pub(crate) fn finish(
        mut self,
        xml: &mut XmlReader<'_>,
        offset: usize,
    ) -> Option<(Item, Option<Timestamp>)> {
        if self.item.url.is_none() && self.id_is_address {
            self.item.url = self.format_id.clone().filter(|id| super::has_scheme(id));
        }
        let id = self.own_id.or(self.format_id).or_else(|| self.item.url.clone());
        let Some(id) = id.or_else(|| digest(&self.item)) else {
            xml.problem(offset, "an entry without id, link, title and text was left out");
            return None;
        };
        self.item.id = id;
        if !self.elements.is_empty() {
            // What a writer of ours kept as JSON comes before what stands there as elements.
            let kept = self.item.extra.entry(EXTRA).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(kept) = kept {
                kept.append(&mut self.elements);
            }
        }
        Some((self.item, self.modified))
    }

    /// Takes what a writer of ours kept of [`Item::extra`] as JSON.
    pub(crate) fn extra_json(&mut self, text: &str) -> bool {
        match serde_json::from_str::<Map<String, Value>>(text) {
            Ok(extra) => {
                self.item.extra.extend(extra);
                true
            }
            Err(_) => false,
        }
    }
}

/// An id for an item that has none: the same for the same title and texts.
fn digest(item: &Item) -> Option<String> {
    let content = item.content.as_ref().map(|c| c.bytes.as_ref());
    let parts =
        [item.title.as_deref().map(str::as_bytes), item.summary.as_deref().map(str::as_bytes), content];
    if parts.iter().all(Option::is_none) {
        return None;
    }
    let mut hasher = Sha256::new();
    for part in parts {
        let part = part.unwrap_or_default();
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    Some(format!("sha256:{}", hex::encode(hasher.finalize())))
}

/// The date that the element just started holds; a problem where it is none.
pub(crate) fn date_element(xml: &mut XmlReader<'_>, tag: Tag<'_>) -> Result<Option<Timestamp>, FormatError> {
    let text = xml.text()?;
    let found = date::parse(&text);
    if found.is_none() {
        let text: String = text.trim().chars().take(60).collect();
        xml.problem(tag.offset, format_args!("<{}> is no date: {text:?}", tag.name));
    }
    Ok(found)
}

/// The address that the element just started holds, absolute where the base is known.
pub(crate) fn address(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    some_text(xml)?.map(|text| xml.resolve(&text)).transpose()
}

/// The text of the element just started, where there is some.
pub(crate) fn some_text(xml: &mut XmlReader<'_>) -> Result<Option<String>, FormatError> {
    Ok(Some(xml.trimmed_text()?).filter(|t| !t.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_that_is_kept_besides_is_not_repeated() {
        let mut draft = Draft::default();
        for (tag, kept_besides) in
            [("a", true), ("b", false), ("a", true), ("b", false), ("c", true), ("b", true)]
        {
            draft.tag(tag.to_owned(), kept_besides);
        }
        assert_eq!(draft.item.tags, ["a", "b", "b", "c"]);
    }
}
