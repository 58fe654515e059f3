//! Grammar of Atom (RFC 4287, section 4) and of deleted entries (RFC 6721, section 3).

use super::grammar::{Attribute, Body, Child, Element, many, maybe, once};
use super::rules::{atom as rules, history};
use super::values::{
    is_absolute, is_email, is_language, is_media_type, is_number, is_reference, is_relation, is_rfc_3339,
};
use crate::format::xml::{ATOM, HISTORY, TOMBSTONES};

const fn date(name: &'static str) -> Element {
    Element::new(ATOM, name, Body::Value(is_rfc_3339, rules::DATE))
}

const fn construct(name: &'static str) -> Element {
    Element::new(ATOM, name, Body::Construct).with(&TYPE, &[])
}

const fn person(ns: &'static str, name: &'static str) -> Element {
    Element::new(ns, name, Body::Elements).with(&[], &PERSON)
}

static TYPE: [Attribute; 1] = [Attribute::any("type")];
static PERSON: [Child; 3] =
    [once(&NAME, rules::PERSON_NAME), maybe(&URI, rules::PERSON_URI), maybe(&EMAIL, rules::PERSON_EMAIL)];
static NAME: Element = Element::new(ATOM, "name", Body::Text);
static URI: Element = Element::new(ATOM, "uri", Body::Value(is_reference, rules::PERSON_URI));
static EMAIL: Element = Element::new(ATOM, "email", Body::Value(is_email, rules::PERSON_EMAIL));
static AUTHOR: Element = person(ATOM, "author");
static CONTRIBUTOR: Element = person(ATOM, "contributor");
static TITLE: Element = construct("title");
static SUBTITLE: Element = construct("subtitle");
static RIGHTS: Element = construct("rights");
static SUMMARY: Element = construct("summary");
static UPDATED: Element = date("updated");
static PUBLISHED: Element = date("published");
static FEED_ID: Element = Element::new(ATOM, "id", Body::Value(is_absolute, rules::FEED_ID_IRI));
static ENTRY_ID: Element = Element::new(ATOM, "id", Body::Value(is_absolute, rules::ENTRY_ID_IRI));
static ICON: Element = Element::new(ATOM, "icon", Body::Value(is_reference, rules::ICON));
static LOGO: Element = Element::new(ATOM, "logo", Body::Value(is_reference, rules::LOGO));
static GENERATOR: Element = Element::new(ATOM, "generator", Body::Text)
    .with(&[Attribute::value("uri", is_reference, rules::GENERATOR_URI), Attribute::any("version")], &[]);
static CATEGORY: Element = Element::new(ATOM, "category", Body::Any).with(
    &[
        Attribute::needed("term", rules::CATEGORY_TERM, |_| true, rules::CATEGORY_TERM),
        Attribute::value("scheme", is_absolute, rules::CATEGORY_SCHEME),
        Attribute::any("label"),
    ],
    &[],
);
/// A link, also in RSS.
pub(super) static LINK: Element = Element::new(ATOM, "link", Body::Any).with(
    &[
        Attribute::needed("href", rules::LINK_HREF, is_reference, rules::LINK_IRI),
        Attribute::value("rel", is_relation, rules::LINK_REL),
        Attribute::value("type", is_media_type, rules::LINK_TYPE),
        Attribute::value("hreflang", is_language, rules::LINK_HREFLANG),
        Attribute::value("length", is_number, rules::LINK_LENGTH),
        Attribute::any("title"),
    ],
    &[],
);
static CONTENT: Element = Element::new(ATOM, "content", Body::Content)
    .with(&[Attribute::any("type"), Attribute::value("src", is_reference, rules::CONTENT_SRC)], &[]);
static SOURCE: Element = Element::new(ATOM, "source", Body::Elements).with(
    &[],
    &[
        many(&AUTHOR),
        many(&CATEGORY),
        many(&CONTRIBUTOR),
        many(&LINK),
        maybe(&FEED_ID, rules::SOURCE),
        maybe(&TITLE, rules::SOURCE),
        maybe(&UPDATED, rules::SOURCE),
        maybe(&GENERATOR, rules::SOURCE),
        maybe(&ICON, rules::SOURCE),
        maybe(&LOGO, rules::SOURCE),
        maybe(&RIGHTS, rules::SOURCE),
        maybe(&SUBTITLE, rules::SOURCE),
    ],
);
/// An entry.
pub(super) static ENTRY: Element = Element::new(ATOM, "entry", Body::Elements).with(
    &[],
    &[
        once(&ENTRY_ID, rules::ENTRY_ID),
        once(&TITLE, rules::ENTRY_TITLE),
        once(&UPDATED, rules::ENTRY_UPDATED),
        many(&AUTHOR),
        many(&CATEGORY),
        many(&CONTRIBUTOR),
        many(&LINK),
        maybe(&CONTENT, rules::ENTRY_CONTENT),
        maybe(&PUBLISHED, rules::ENTRY_PUBLISHED),
        maybe(&RIGHTS, rules::ENTRY_RIGHTS),
        maybe(&SOURCE, rules::ENTRY_SOURCE),
        maybe(&SUMMARY, rules::ENTRY_SUMMARY),
    ],
);
static BY: Element = person(TOMBSTONES, "by");
static COMMENT: Element = Element::new(TOMBSTONES, "comment", Body::Construct).with(&TYPE, &[]);
/// A deleted entry, also in RSS.
pub(super) static DELETED: Element = Element::new(TOMBSTONES, "deleted-entry", Body::Elements).with(
    &[
        Attribute::needed("ref", rules::DELETED, is_absolute, rules::DELETED_REF),
        Attribute::needed("when", rules::DELETED, is_rfc_3339, rules::DELETED),
    ],
    &[
        maybe(&BY, rules::DELETED_BY),
        maybe(&COMMENT, rules::DELETED_BY),
        maybe(&SOURCE, rules::DELETED_BY),
        many(&LINK),
    ],
);

fn is_zero_or_one(text: &str) -> bool {
    matches!(text, "0" | "1")
}

fn is_true_or_false(text: &str) -> bool {
    matches!(text, "true" | "false")
}

/// Element of Feed History, also in RSS.
pub(super) static STATEFUL: Element =
    Element::new(HISTORY, "Stateful", Body::Trimmed(is_zero_or_one, history::FLAG));
/// Element of Feed History, also in RSS.
pub(super) static INCREMENTAL: Element =
    Element::new(HISTORY, "incremental", Body::Trimmed(is_true_or_false, history::INCREMENTAL_VALUE));
/// Element of Feed History, also in RSS.
pub(super) static PREV: Element =
    Element::new(HISTORY, "prev", Body::Trimmed(is_reference, history::PREV_VALUE));
/// Element of Feed History, also in RSS.
pub(super) static ARCHIVE: Element = Element::new(HISTORY, "archive", Body::Empty(history::ARCHIVE_EMPTY));
/// Element of Feed History, also in RSS.
pub(super) static COMPLETE: Element = Element::new(HISTORY, "complete", Body::Empty(history::COMPLETE_EMPTY));
/// A feed.
pub(super) static FEED: Element = Element::new(ATOM, "feed", Body::Elements).with(
    &[],
    &[
        once(&FEED_ID, rules::FEED_ID),
        once(&TITLE, rules::FEED_TITLE),
        once(&UPDATED, rules::FEED_UPDATED),
        many(&AUTHOR),
        many(&CATEGORY),
        many(&CONTRIBUTOR),
        many(&LINK),
        maybe(&GENERATOR, rules::FEED_GENERATOR),
        maybe(&ICON, rules::FEED_ICON),
        maybe(&LOGO, rules::FEED_LOGO),
        maybe(&RIGHTS, rules::FEED_RIGHTS),
        maybe(&SUBTITLE, rules::FEED_SUBTITLE),
        many(&ENTRY),
        many(&DELETED),
        maybe(&STATEFUL, history::STATEFUL),
        maybe(&INCREMENTAL, history::INCREMENTAL),
        maybe(&PREV, history::PREV),
        maybe(&ARCHIVE, history::ARCHIVE),
        maybe(&COMPLETE, history::COMPLETE),
    ],
);
