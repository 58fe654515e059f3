//! Any HTML page as a feed, mapped by CSS selectors.

mod build;
mod mapping;
mod selector;
#[cfg(test)]
mod tests;
mod tree;

pub use mapping::HtmlMapping;

use std::ops::Range;

use super::budget::Budget;
use super::date;
use super::error::FormatError;
use super::feed_document::{FeedDocument, Format};
use super::iri::{self, web_page};
use super::json::Base;
use super::problems::Problems;
use crate::Timestamp;
use crate::item::{Author, Content, Item};
use mapping::{ItemSelectors, ValueSelector};
use tree::Tree;

/// Reads a page as a feed. Relative URLs are resolved against `base_url`, or the page's own `base`.
pub(crate) fn read(
    html: &str,
    mapping: &HtmlMapping,
    base_url: Option<&str>,
    mut budget: Budget,
) -> Result<FeedDocument, FormatError> {
    let selectors = mapping.parse()?;
    let tree = build::build(html, &mut budget)?;
    let base = Base::new(page_base(&tree, base_url).as_deref(), budget);
    let mut feed = FeedDocument::new(Format::Html);
    let whole = 0..tree.nodes.len();
    feed.title = first(&tree, "title", whole.clone()).map(|title| tree.text(title)).filter(|t| !t.is_empty());
    feed.lang = tree.attribute(0, "lang").map(str::to_owned);
    feed.home = base_url.map(str::to_owned);
    let mut reader = PageReader { tree: &tree, selectors: &selectors, base, problems: Problems::default() };
    let items = outermost(&tree, selectors.items.all(&tree, whole));
    if items.is_empty() {
        // A page that was redesigned must not be taken for an empty feed.
        return Err(mapping::error(&mapping.items, "no element of the page matches".into()));
    }
    let count = items.len();
    for (index, element) in items.into_iter().enumerate() {
        let item = reader.item(index, element)?;
        feed.push(item.map(|item| (item, None)), &mut reader.base.budget)?;
    }
    if feed.items.is_empty() {
        let pointer = mapping.id.as_deref().or(mapping.url.as_deref()).unwrap_or(mapping::DEFAULT_URL);
        let reason = format!("nothing is there in any of the {count} items");
        return Err(mapping::error(pointer, reason));
    }
    (feed.problems, feed.counts) = reader.problems.into_parts();
    Ok(feed)
}

/// Reads a whole page as one item: its title, and the content of its body.
pub(crate) fn read_whole(html: &str, url: &str, mut budget: Budget) -> Result<Item, FormatError> {
    let tree = build::build(html, &mut budget)?;
    let mut base = Base::new(page_base(&tree, Some(url)).as_deref(), budget);
    let whole = 0..tree.nodes.len();
    let title = first(&tree, "title", whole.clone()).map(|title| tree.text(title)).filter(|t| !t.is_empty());
    let body = first(&tree, "body", whole).unwrap_or(0);
    let content = tree.inner_html(body, |target| base.resolve(target.trim().to_owned()))?;
    base.budget.text(content.len())?;
    let (url, content) = (Some(url.to_owned()), Some(Content::new("text/html", content)));
    Ok(Item { url, title, content, ..Item::default() })
}

/// Returns the URL that relative ones are resolved against: that of the page's `base` element, if it has one, or the
/// page's own. A page from a file may tell its own as its canonical one.
fn page_base(tree: &Tree, base_url: Option<&str>) -> Option<String> {
    let own = first(tree, "base", 0..tree.nodes.len()).and_then(|base| tree.attribute(base, "href"));
    match (own, base_url) {
        (Some(own), Some(url)) => url::Url::parse(url).ok()?.join(own.trim()).ok().map(String::from),
        (Some(own), None) => Some(own.trim().to_owned()),
        (None, Some(url)) => Some(url.to_owned()),
        (None, None) => canonical(tree).map(str::to_owned),
    }
}

/// Returns the canonical URL of a page (RFC 6596), if it is absolute.
fn canonical(tree: &Tree) -> Option<&str> {
    let links = (0..tree.nodes.len()).filter(|node| tree.name(*node) == Some("link"));
    let mut canonical = links
        .filter(|link| tree.attribute(*link, "rel").is_some_and(|rel| rel.eq_ignore_ascii_case("canonical")));
    let href = tree.attribute(canonical.next()?, "href")?.trim();
    web_page(href).map(|_| href)
}

fn first(tree: &Tree, name: &str, mut nodes: Range<usize>) -> Option<usize> {
    nodes.find(|node| tree.name(*node) == Some(name))
}

/// Drops elements within other ones: what is below an item is part of it.
fn outermost(tree: &Tree, elements: Vec<usize>) -> Vec<usize> {
    let mut end = 0;
    let is_outside = |element: &usize| {
        let outside = *element >= end;
        if outside {
            end = tree.end(*element);
        }
        outside
    };
    elements.into_iter().filter(is_outside).collect()
}

/// Reader of a page's items.
struct PageReader<'a> {
    tree: &'a Tree,
    selectors: &'a ItemSelectors,
    base: Base,
    problems: Problems,
}

impl PageReader<'_> {
    fn item(&mut self, index: usize, element: usize) -> Result<Option<Item>, FormatError> {
        let selectors = self.selectors;
        let url = self.one(&selectors.url, element)?;
        // A page whose items have no id of their own names them by their links.
        let id = match &selectors.id {
            Some(id) => self.one(id, element)?,
            None => url.clone(),
        };
        let Some(id) = id else {
            self.problems.leave_out(|| format!("item {}: it has no id and was left out", index + 1));
            return Ok(None);
        };
        Ok(Some(Item {
            id,
            url: url.map(iri::encode),
            title: self.some(selectors.title.as_ref(), element)?,
            summary: self.some(selectors.summary.as_ref(), element)?,
            content: Some(self.content(element)?),
            authors: self.list(selectors.authors.as_ref(), element)?.into_iter().map(Author::named).collect(),
            tags: self.list(selectors.tags.as_ref(), element)?,
            published: self.date(index, selectors.published.as_ref(), element)?,
            updated: self.date(index, selectors.updated.as_ref(), element)?,
            ..Item::default()
        }))
    }

    /// Returns the HTML of the selected elements, or of the whole item.
    fn content(&mut self, element: usize) -> Result<Content, FormatError> {
        let mut html = String::new();
        for part in self.elements(self.selectors.content.as_ref(), element) {
            let base = &mut self.base;
            let inner = self.tree.inner_html(part, |url| base.resolve(url.trim().to_owned()))?;
            self.base.budget.text(html.len() + inner.len())?;
            html.push_str(&inner);
        }
        Ok(Content::new("text/html", html))
    }

    /// Returns the elements that a selector finds in an item; the item itself without a selector.
    fn elements(&self, value: Option<&ValueSelector>, element: usize) -> Vec<usize> {
        match value.and_then(|value| value.selector.as_ref()) {
            None => vec![element],
            Some(selector) => {
                let mut found = selector.all(self.tree, element..self.tree.end(element));
                found.retain(|found| *found != element);
                found
            }
        }
    }

    /// Returns the values that a selector finds in an item, without empty ones.
    fn values(&mut self, value: &ValueSelector, element: usize) -> Result<Vec<String>, FormatError> {
        let mut values = Vec::new();
        for found in self.elements(Some(value), element) {
            values.extend(self.value(value, found)?);
        }
        Ok(values)
    }

    fn value(&mut self, value: &ValueSelector, found: usize) -> Result<Option<String>, FormatError> {
        let text = match value.attribute.as_deref() {
            Some(name) => self.tree.attribute(found, name).unwrap_or_default().trim().to_owned(),
            None => self.tree.text(found),
        };
        if text.is_empty() {
            return Ok(None);
        }
        self.base.budget.text(text.len())?;
        match value.attribute.as_deref() {
            Some("href" | "src") => self.base.resolve(text).map(Some),
            _ => Ok(Some(text)),
        }
    }

    fn one(&mut self, value: &ValueSelector, element: usize) -> Result<Option<String>, FormatError> {
        for found in self.elements(Some(value), element) {
            if let Some(found) = self.value(value, found)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn some(&mut self, value: Option<&ValueSelector>, element: usize) -> Result<Option<String>, FormatError> {
        value.map_or(Ok(None), |value| self.one(value, element))
    }

    fn list(&mut self, value: Option<&ValueSelector>, element: usize) -> Result<Vec<String>, FormatError> {
        value.map_or(Ok(Vec::new()), |value| self.values(value, element))
    }

    fn date(
        &mut self,
        index: usize,
        value: Option<&ValueSelector>,
        element: usize,
    ) -> Result<Option<Timestamp>, FormatError> {
        let Some(value) = value else { return Ok(None) };
        for found in self.elements(Some(value), element) {
            // HTML's `time` has the date for programs in an attribute, and any words inside.
            let machine = value.attribute.is_none().then(|| self.tree.attribute(found, "datetime")).flatten();
            let text = match machine {
                Some(machine) => Some(machine.to_owned()),
                None => self.value(value, found)?,
            };
            let Some(text) = text else { continue };
            let date = date::parse_or_seconds(text.trim());
            if date.is_none() {
                let text: String = text.chars().take(60).collect();
                self.problems.warn(|| format!("item {}: this is not a date: {text:?}", index + 1));
            }
            return Ok(date);
        }
        Ok(None)
    }
}
