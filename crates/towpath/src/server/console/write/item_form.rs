//! An item as a form describes it.

use bytes::Bytes;
use jiff::Timestamp;
use towpath_proto::change::Seq;
use towpath_proto::{Author, Content, Item};

use super::super::clock;
use super::form_data::FormData;
use crate::document::route_error::RouteError;
use crate::server::publish::UrlRule;

/// Longest content that a form shows for editing, in bytes.
const MAX_EDITED: usize = 1 << 20;

/// Fields of a form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ItemForm {
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

impl ItemForm {
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
            authors: lines_of(&item.authors, author_line),
            tags: lines_of(&item.tags, String::as_str),
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
            title: same_line(base.title.as_deref(), &self.title).or_else(|| given(&self.title)),
            url: same_line(base.url.as_deref(), &self.url).or_else(|| given(&self.url)),
            // A form changes line ends, and the summary of a source may have others.
            summary: same_summary(base.summary.as_deref(), &self.summary).or_else(|| given(&self.summary)),
            authors: after_lines(&base.authors, author_line, &self.authors, |name| Author::named(name)),
            tags: after_lines(&base.tags, String::as_str, &self.tags, str::to_owned),
            published: self.published_at()?,
            updated: base.updated,
            content: None,
            // A form shows a part of an item, and must not take away the rest.
            extra: base.extra.clone(),
        };
        item.content = self.content_after(base.content)?;
        // An address of a source stays, whatever it is.
        if item.url != base.url {
            let named = Item { url: item.url.clone(), ..Item::default() };
            UrlRule::Web.check(&named).map_err(|(_, reason)| RouteError::bad_request(reason).about("url"))?;
        }
        item.check().map_err(|e| RouteError::bad_request(e.to_string()).about("id"))?;
        Ok(item)
    }

    fn published_at(&self) -> Result<Option<Timestamp>, RouteError> {
        let given = Some(self.published.as_str()).filter(|text| !text.is_empty());
        given.map(|text| clock::parse(text, "published")).transpose()
    }

    fn content_after(&self, before: Option<Content>) -> Result<Option<Content>, RouteError> {
        if self.keeps_content {
            return Ok(before);
        }
        if self.content.is_empty() && self.media_type.is_empty() {
            return Ok(None);
        }
        let media_type = if self.media_type.is_empty() { "text/plain" } else { self.media_type.as_str() };
        let old = before.filter(|old| old.text().is_some_and(|old| unix_lines(old) == self.content));
        let bytes = match old {
            Some(old) if old.media_type.trim() == self.media_type => return Ok(Some(old)),
            Some(old) => old.bytes,
            None => Bytes::from(self.content.clone()),
        };
        let content = Content::new(as_utf8(media_type), bytes);
        content.check_type().map_err(|e| RouteError::bad_request(e.to_string()).about("media_type"))?;
        Ok(Some(content))
    }
}

/// Returns the name of an author as a form shows it, or else what is known of a nameless one.
fn author_line(author: &Author) -> &str {
    let others = [&author.email, &author.url].into_iter().flatten().map(String::as_str);
    std::iter::once(author.name.as_str())
        .chain(others)
        .find(|text| !text.trim().is_empty())
        .unwrap_or_default()
}

/// Returns a text as one line of a form.
fn one_line(text: &str) -> String {
    text.trim().replace(['\r', '\n'], " ")
}

/// Returns a field with a line for each value.
fn lines_of<T>(values: &[T], shown: fn(&T) -> &str) -> String {
    values.iter().map(|value| one_line(shown(value))).collect::<Vec<_>>().join("\n")
}

/// Returns the values of a field's lines. A line that was there before, in order, keeps its value whole.
fn after_lines<T: Clone>(before: &[T], shown: fn(&T) -> &str, sent: &str, new: fn(&str) -> T) -> Vec<T> {
    let lines = || sent.lines().map(str::trim).filter(|line| !line.is_empty());
    let known = before.iter().map(|value| (one_line(shown(value)), value));
    // A value that no line can show stays with the others, unless the field is changed.
    if known.clone().map(|(line, _)| line).filter(|line| !line.is_empty()).eq(lines()) {
        return before.to_vec();
    }
    let mut known: Vec<_> = known.collect();
    let value = |line: &str| match known.iter().position(|(shown, _)| shown == line) {
        Some(index) => known.remove(index).1.clone(),
        None => new(line),
    };
    lines().map(value).collect()
}

/// Returns a media type whose character set, if it has one, is UTF-8: a browser sends text as that.
fn as_utf8(media_type: &str) -> String {
    let is_other = |parameter: &str| {
        parameter.split_once('=').is_some_and(|(name, value)| {
            let value = value.trim().trim_matches('"');
            name.trim().eq_ignore_ascii_case("charset") && !value.eq_ignore_ascii_case("utf-8")
        })
    };
    let parts = media_type.split(';').enumerate();
    let parts = parts.map(|(index, part)| if index > 0 && is_other(part) { " charset=utf-8" } else { part });
    parts.collect::<Vec<_>>().join(";")
}

/// Browsers send each line end of a form as carriage return and line feed.
fn unix_lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// Returns the old text if the new one differs from it in what a field of one line drops: line ends and outer spaces.
fn same_line(old: Option<&str>, new: &str) -> Option<String> {
    let line = |text: &str| text.replace(['\r', '\n'], "").trim().to_owned();
    old.filter(|old| line(old) == line(new)).map(str::to_owned)
}

/// Returns the old summary if the new one differs from it in line ends and outer spaces only.
fn same_summary(old: Option<&str>, new: &str) -> Option<String> {
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
        let draft = ItemForm::of(&item, 7);
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
        let sent = ItemForm::sent(&FormData::parse(body.finish().as_bytes())).unwrap();
        assert_eq!(sent.version, Some(7));
        assert_eq!(sent.item(Some(&item)).unwrap(), item);
    }

    /// Sends the form of an item back, with one field changed.
    fn edited(item: &Item, change: impl FnOnce(&mut ItemForm)) -> Result<Item, RouteError> {
        let mut draft = ItemForm::of(item, 7);
        change(&mut draft);
        let fields = [
            ("id", &draft.id),
            ("title", &draft.title),
            ("url", &draft.url),
            ("authors", &draft.authors),
            ("tags", &draft.tags),
            ("media_type", &draft.media_type),
            ("content", &draft.content),
        ];
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(fields.map(|(name, value)| (name, value.replace('\n', "\r\n"))));
        ItemForm::sent(&FormData::parse(body.finish().as_bytes()))?.item(Some(item))
    }

    fn author(name: &str, email: &str) -> Author {
        Author { email: Some(email.into()), ..Author::named(name) }
    }

    #[test]
    fn authors_and_tags_stay_whole() {
        let authors = vec![author("", "ghost@x.example"), author("Ann", "ann1@x"), author("Ann", "ann2@x")];
        let tags = vec!["a\nb".to_owned(), " c ".to_owned(), String::new()];
        let item = Item { authors, tags, url: Some(" http://a.example\n".into()), ..Item::new("a") };
        let titled = edited(&item, |draft| draft.title = "T".into()).unwrap();
        assert_eq!(titled, Item { title: Some("T".into()), ..item.clone() });
        let added = edited(&item, |draft| {
            draft.authors.push_str("\nBob");
            draft.tags.push_str("\nd");
        });
        let added = added.unwrap();
        assert_eq!(added.authors[..3], item.authors);
        assert_eq!(added.authors[3], Author::named("Bob"));
        assert_eq!(added.tags, ["a\nb", " c ", "d"]);
        let removed = edited(&item, |draft| draft.authors = "ghost@x.example\nAnn".into()).unwrap();
        assert_eq!(removed.authors, item.authors[..2]);
    }

    #[test]
    fn spaces_and_character_sets_are_content() {
        let with = |media_type: &str, text: &str| Item {
            content: Some(Content::new(media_type, text.to_owned())),
            ..Item::new("a")
        };
        let change = |item: &Item, text: &str| {
            edited(item, |draft| draft.content = text.into()).unwrap().content.unwrap()
        };
        let plain = with("text/plain", "  indented\r\n\r\n");
        assert_eq!(Some(change(&plain, "  indented\n\n")), plain.content);
        assert_eq!(change(&plain, "indented").bytes, "indented");
        let latin = with("text/plain; Charset=iso-8859-1; format=flowed", "abc");
        assert_eq!(Some(change(&latin, "abc")), latin.content);
        let utf8 = Content::new("text/plain; charset=utf-8; format=flowed", "café");
        assert_eq!(change(&latin, "café"), utf8);
    }

    #[test]
    fn addresses_are_those_that_the_api_takes() {
        let refused = |url: &str| {
            let draft = ItemForm { id: "a".into(), url: url.into(), ..ItemForm::default() };
            draft.item(None).unwrap_err().parameter
        };
        for url in ["javascript:alert(1)", "foo"] {
            assert_eq!(refused(url).as_deref(), Some("url"), "{url}");
        }
        // A source's own address stays until somebody changes it.
        let relative = Item { url: Some("../x".into()), ..Item::new("a") };
        assert_eq!(edited(&relative, |draft| draft.title = "T".into()).unwrap().url, relative.url);
        assert!(edited(&relative, |draft| draft.url = "../y".into()).is_err());
    }

    #[test]
    fn bytes_stay_as_they_are() {
        let bytes = Item { content: Some(Content::new("image/png", vec![0xff])), ..item() };
        let draft = ItemForm::of(&bytes, 1);
        assert!(draft.keeps_content && draft.content.is_empty());
        assert_eq!(draft.item(Some(&bytes)).unwrap(), bytes);
    }

    #[test]
    fn faults_name_their_field() {
        let fault = |draft: ItemForm| draft.item(None).unwrap_err().parameter;
        assert_eq!(fault(ItemForm::default()), Some("id".into()));
        assert_eq!(
            fault(ItemForm { id: "a".into(), published: "x".into(), ..ItemForm::default() }),
            Some("published".into())
        );
        assert_eq!(
            fault(ItemForm { id: "a".into(), media_type: "a\u{7f}".into(), ..ItemForm::default() }),
            Some("media_type".into())
        );
    }
}
