//! An item as a form describes it.

use bytes::Bytes;
use jiff::Timestamp;
use towpath_proto::change::Seq;
use towpath_proto::{Author, Content, Item};

use super::super::clock;
use super::form_data::FormData;
use crate::document::route_error::RouteError;

/// Longest content that a form shows for editing, in bytes.
const MAX_EDITED: usize = 1 << 20;

/// Fields of a form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Draft {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) url: String,
    pub(super) summary: String,
    pub(super) authors: String,
    pub(super) tags: String,
    pub(super) published: String,
    pub(super) media_type: String,
    pub(super) content: String,
    /// True if the content stays as it is: it is no text, or too long for a form.
    pub(super) keeps_content: bool,
    /// Version that the form began with; `None` for a new item.
    pub(super) version: Option<Seq>,
}

impl Draft {
    /// Returns the fields of an item.
    pub(super) fn of(item: &Item, version: Seq) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let content = item.content.as_ref();
        let edited =
            // Browsers drop or replace NUL, so the form would change such a text without a word.
            content.and_then(Content::text).filter(|text| text.len() <= MAX_EDITED && !text.contains('\0'));
        Self {
            id: item.id.clone(),
            title: text(&item.title),
            url: text(&item.url),
            summary: text(&item.summary),
            authors: author_lines(&item.authors),
            tags: item.tags.join("\n"),
            published: item.published.map(|at| at.to_string()).unwrap_or_default(),
            media_type: content.map(|content| content.media_type.clone()).unwrap_or_default(),
            content: edited.unwrap_or_default().to_owned(),
            keeps_content: content.is_some() && edited.is_none(),
            version: Some(version),
        }
    }

    /// Reads the fields that a browser sent.
    pub(super) fn sent(form: &FormData) -> Result<Self, RouteError> {
        let text = |name: &str| form.text(name).to_owned();
        let version = form.given("version").map(|version| version.parse()).transpose();
        Ok(Self {
            // An id is compared exactly, so its spaces stay. A field of one line has no line ends.
            id: text("id"),
            title: form.given("title").unwrap_or_default(),
            url: form.given("url").unwrap_or_default(),
            summary: unix_lines(form.text("summary").trim()),
            authors: form.lines("authors").join("\n"),
            tags: form.lines("tags").join("\n"),
            published: form.given("published").unwrap_or_default(),
            media_type: form.given("media_type").unwrap_or_default(),
            content: unix_lines(form.text("content")),
            keeps_content: !form.text("keeps_content").is_empty(),
            version: version
                .map_err(|_| RouteError::bad_request("version is not a number").about("version"))?,
        })
    }

    /// Makes the item, with what the form does not show from the version that it began with.
    pub(super) fn item(&self, before: Option<&Item>) -> Result<Item, RouteError> {
        let given = |text: &str| Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
        let base = before.cloned().unwrap_or_default();
        let mut item = Item {
            id: self.id.clone(),
            title: given(&self.title),
            url: given(&self.url),
            // A form changes line ends, and the summary of a source may have others.
            summary: same_text(base.summary.as_deref(), &self.summary).or_else(|| given(&self.summary)),
            authors: self.authors_after(&base.authors),
            tags: self.tags.lines().map(str::to_owned).collect(),
            published: self.published_at()?,
            updated: base.updated,
            content: None,
            // A form shows a part of an item, and must not take away the rest.
            extra: base.extra.clone(),
        };
        item.content = self.content_after(base.content)?;
        item.check().map_err(|e| RouteError::bad_request(e.to_string()).about("id"))?;
        Ok(item)
    }

    fn published_at(&self) -> Result<Option<Timestamp>, RouteError> {
        let given = Some(self.published.as_str()).filter(|text| !text.is_empty());
        given.map(|text| clock::parse(text, "published")).transpose()
    }

    /// Returns the authors; those that a name did not change keep their addresses.
    fn authors_after(&self, before: &[Author]) -> Vec<Author> {
        let named = |line: &str| {
            let known = before.iter().find(|author| author.name == line);
            known.cloned().unwrap_or_else(|| Author::named(line))
        };
        self.authors.lines().map(named).collect()
    }

    fn content_after(&self, before: Option<Content>) -> Result<Option<Content>, RouteError> {
        if self.keeps_content {
            return Ok(before);
        }
        if self.content.is_empty() && self.media_type.is_empty() {
            return Ok(None);
        }
        let media_type = if self.media_type.is_empty() { "text/plain" } else { self.media_type.as_str() };
        let old = before.as_ref().and_then(Content::text);
        let text = same_text(old, &self.content).unwrap_or_else(|| self.content.clone());
        let content = Content::new(media_type, Bytes::from(text));
        content.check_type().map_err(|e| RouteError::bad_request(e.to_string()).about("media_type"))?;
        Ok(Some(content))
    }
}

fn author_lines(authors: &[Author]) -> String {
    authors.iter().map(|author| author.name.as_str()).collect::<Vec<_>>().join("\n")
}

/// Browsers send the lines of a form with a carriage return.
fn unix_lines(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// Returns the old text if the new one differs from it in line ends and outer spaces only.
fn same_text(old: Option<&str>, new: &str) -> Option<String> {
    old.filter(|old| unix_lines(old).trim() == new.trim()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> Item {
        let author = Author { email: Some("a@x.example".into()), ..Author::named("Ann") };
        let mut item = Item {
            title: Some("T".into()),
            summary: Some(" s\r\n".into()),
            authors: vec![author],
            tags: vec!["a b".into()],
            published: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            updated: Some("2026-01-02T00:00:00Z".parse().unwrap()),
            content: Some(Content::new("text/plain", "one\r\ntwo")),
            ..Item::new("id/1")
        };
        item.extra.insert("k".into(), 1.into());
        item
    }

    #[test]
    fn a_form_that_changes_nothing_makes_the_same_item() {
        let item = item();
        let draft = Draft::of(&item, 7);
        let escape = |text: &str| text.replace("\r\n", "\n").replace('\n', "\r\n");
        let fields = [
            ("id", draft.id.as_str()),
            ("title", &draft.title),
            ("summary", &draft.summary),
            ("authors", &draft.authors),
            ("tags", &draft.tags),
            ("published", &draft.published),
            ("media_type", &draft.media_type),
            ("content", &draft.content),
            ("version", "7"),
        ];
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(fields.map(|(name, value)| (name, escape(value))));
        let sent = Draft::sent(&FormData::parse(body.finish().as_bytes())).unwrap();
        assert_eq!(sent.version, Some(7));
        assert_eq!(sent.item(Some(&item)).unwrap(), item);
    }

    #[test]
    fn bytes_stay_as_they_are() {
        let bytes = Item { content: Some(Content::new("image/png", vec![0xff])), ..item() };
        let draft = Draft::of(&bytes, 1);
        assert!(draft.keeps_content && draft.content.is_empty());
        assert_eq!(draft.item(Some(&bytes)).unwrap(), bytes);
    }

    #[test]
    fn faults_name_their_field() {
        let fault = |draft: Draft| draft.item(None).unwrap_err().parameter;
        assert_eq!(fault(Draft::default()), Some("id"));
        assert_eq!(
            fault(Draft { id: "a".into(), published: "x".into(), ..Draft::default() }),
            Some("published")
        );
        assert_eq!(
            fault(Draft { id: "a".into(), media_type: "a\u{7f}".into(), ..Draft::default() }),
            Some("media_type")
        );
    }
}
