//! Selectors of a page's items and of their fields.

use serde::{Deserialize, Serialize};

use super::selector::Selector;
use crate::format::error::FormatError;

/// Selector of an item's URL, if none is given: its first link.
pub(super) const DEFAULT_URL: &str = "a@href";

/// CSS selectors of a page's items, and within an item of its fields.
///
/// A field is the text of the first element that matches, or with `selector@name` the value of that attribute. `@name`
/// alone is an attribute of the item's own element. `authors` and `tags` take all elements that match.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HtmlMapping {
    /// The items. An element within another item is part of that item.
    #[cfg_attr(feature = "schema", schemars(example = "article.post"))]
    pub items: String,
    /// Id of the item; by default its URL.
    #[cfg_attr(feature = "schema", schemars(example = "@data-id"))]
    pub id: Option<String>,
    /// Address of the item's page; by default the item's first link.
    #[cfg_attr(feature = "schema", schemars(example = "h2 a@href"))]
    pub url: Option<String>,
    /// Title, as plain text.
    #[cfg_attr(feature = "schema", schemars(example = &"h2"))]
    pub title: Option<String>,
    /// Short description, as plain text.
    #[cfg_attr(feature = "schema", schemars(example = "p.teaser"))]
    pub summary: Option<String>,
    /// Elements whose HTML is the content; by default the whole item.
    #[cfg_attr(feature = "schema", schemars(example = "div.body"))]
    pub content: Option<String>,
    /// Names of the authors.
    #[cfg_attr(feature = "schema", schemars(example = ".author"))]
    pub authors: Option<String>,
    /// Tags of the item.
    #[cfg_attr(feature = "schema", schemars(example = ".tags a"))]
    pub tags: Option<String>,
    /// Date, date and time, or Unix seconds; of a `time` element its `datetime`.
    #[cfg_attr(feature = "schema", schemars(example = &"time"))]
    pub published: Option<String>,
    /// Time of the item's last update, in the forms of `published`.
    #[cfg_attr(feature = "schema", schemars(example = "time.updated"))]
    pub updated: Option<String>,
}

/// Parsed form of [`HtmlMapping`].
pub(super) struct ItemSelectors {
    pub(super) items: Selector,
    pub(super) id: Option<ValueSelector>,
    pub(super) url: ValueSelector,
    pub(super) title: Option<ValueSelector>,
    pub(super) summary: Option<ValueSelector>,
    pub(super) content: Option<ValueSelector>,
    pub(super) authors: Option<ValueSelector>,
    pub(super) tags: Option<ValueSelector>,
    pub(super) published: Option<ValueSelector>,
    pub(super) updated: Option<ValueSelector>,
}

/// Selector of a text or attribute.
pub(super) struct ValueSelector {
    /// Element within the item; the item itself if `None`.
    pub(super) selector: Option<Selector>,
    /// Attribute; the element's text if `None`.
    pub(super) attribute: Option<String>,
}

impl HtmlMapping {
    /// Checks that each value is a selector.
    ///
    /// # Errors
    ///
    /// Returns [`FormatError::Mapping`] with the first value that is not.
    pub fn check(&self) -> Result<(), FormatError> {
        self.parse().map(drop)
    }

    pub(super) fn parse(&self) -> Result<ItemSelectors, FormatError> {
        let items = Selector::parse(&self.items).map_err(|e| error(&self.items, format!("items: {e}")))?;
        let some =
            |name: &str, text: &Option<String>| text.as_deref().map(|text| value(name, text)).transpose();
        Ok(ItemSelectors {
            items,
            id: some("id", &self.id)?,
            url: value("url", self.url.as_deref().unwrap_or(DEFAULT_URL))?,
            title: some("title", &self.title)?,
            summary: some("summary", &self.summary)?,
            content: some("content", &self.content)?,
            authors: some("authors", &self.authors)?,
            tags: some("tags", &self.tags)?,
            published: some("published", &self.published)?,
            updated: some("updated", &self.updated)?,
        })
    }
}

fn value(name: &str, text: &str) -> Result<ValueSelector, FormatError> {
    let wrong = |reason: String| error(text, format!("{name}: {reason}"));
    let (selector, attribute) = match text.rsplit_once('@') {
        // An `@` in brackets or quotation marks is part of the selector.
        Some((selector, attribute)) if !attribute.contains(['"', '\'', ']']) => {
            (selector.trim(), Some(attribute.trim().to_ascii_lowercase()))
        }
        _ => (text.trim(), None),
    };
    if attribute.as_deref() == Some("") {
        return Err(wrong("the name of an attribute is expected after @".into()));
    }
    let is_own = selector.is_empty() && attribute.is_some();
    let selector = match is_own {
        true => None,
        false => Some(Selector::parse(selector).map_err(wrong)?),
    };
    Ok(ValueSelector { selector, attribute })
}

pub(super) fn error(selector: &str, reason: String) -> FormatError {
    FormatError::Mapping { place: format!("{selector:?}"), reason }
}
