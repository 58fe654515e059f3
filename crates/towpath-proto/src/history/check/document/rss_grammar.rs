//! Grammar of RSS 2.0, and what of RSS 1.0 the check knows.

use super::atom_grammar::{
    ARCHIVE, COMPLETE, DELETED as ATOM_DELETED, INCREMENTAL, LINK as ATOM_LINK, PREV, STATEFUL,
};
use super::grammar::{Attribute, Body, Element, many, maybe, once, up_to};
use super::rules::{atom, history, rss as rules};
use super::values::{
    is_absolute, is_contact, is_http, is_language, is_media_type, is_number, is_rfc_822, is_rfc_3339,
};
use crate::format::xml::{CONTENT, TOMBSTONES};

/// Namespace of RSS 1.0.
pub(super) const RSS_1: &str = "http://purl.org/rss/1.0/";
/// Namespace of RDF, in which the root of RSS 1.0 is.
pub(super) const RDF: &str = "http://www.w3.org/1999/02/22-rdf-syntax-ns#";

const fn text(name: &'static str) -> Element {
    Element::new("", name, Body::Text)
}

const fn url(name: &'static str) -> Element {
    Element::new("", name, Body::Trimmed(is_absolute, rules::URL))
}

const fn date(name: &'static str) -> Element {
    Element::new("", name, Body::Trimmed(is_rfc_822, rules::DATE))
}

const fn contact(name: &'static str) -> Element {
    Element::new("", name, Body::Trimmed(is_contact, rules::CONTACT))
}

fn is_width(text: &str) -> bool {
    text.parse().is_ok_and(|width: u32| (1..=144).contains(&width))
}

fn is_height(text: &str) -> bool {
    text.parse().is_ok_and(|height: u32| (1..=400).contains(&height))
}

fn is_hour(text: &str) -> bool {
    // RSS 0.91 counted from 1 to 24, and readers of 2.0 take 24 for 0.
    is_number(text) && text.parse().is_ok_and(|hour: u32| hour <= 23)
}

fn is_day(text: &str) -> bool {
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"].contains(&text)
}

fn is_flag(text: &str) -> bool {
    matches!(text, "true" | "false")
}

fn is_cloud_protocol(text: &str) -> bool {
    matches!(text, "xml-rpc" | "http-post" | "soap" | "https-post")
}

fn is_any(_: &str) -> bool {
    true
}

static TITLE: Element = text("title");
static LINK: Element = url("link");
static URL: Element = url("url");
static NAME: Element = text("name");
static DESCRIPTION: Element = text("description");
static COPYRIGHT: Element = text("copyright");
static GENERATOR: Element = text("generator");
static RATING: Element = text("rating");
static LANGUAGE: Element = Element::new("", "language", Body::Trimmed(is_language, rules::LANGUAGE));
static MANAGING_EDITOR: Element = contact("managingEditor");
static WEB_MASTER: Element = contact("webMaster");
static PUB_DATE: Element = date("pubDate");
static LAST_BUILD_DATE: Element = date("lastBuildDate");
static DOCS: Element = Element::new("", "docs", Body::Trimmed(is_absolute, rules::DOCS));
static TTL: Element = Element::new("", "ttl", Body::Trimmed(is_number, rules::TTL));
static CATEGORY: Element = text("category").with(&[Attribute::any("domain")], &[]);
static CLOUD: Element = Element::new("", "cloud", Body::Empty(rules::NO_TEXT)).with(
    &[
        Attribute::needed("domain", rules::CLOUD, is_any, rules::CLOUD),
        Attribute::needed("port", rules::CLOUD, is_number, rules::CLOUD_PORT),
        Attribute::needed("path", rules::CLOUD, is_any, rules::CLOUD),
        Attribute::needed("registerProcedure", rules::CLOUD, is_any, rules::CLOUD),
        Attribute::needed("protocol", rules::CLOUD, is_cloud_protocol, rules::CLOUD_PROTOCOL),
    ],
    &[],
);
static WIDTH: Element = Element::new("", "width", Body::Trimmed(is_width, rules::IMAGE_SIZE));
static HEIGHT: Element = Element::new("", "height", Body::Trimmed(is_height, rules::IMAGE_SIZE));
static IMAGE: Element = Element::new("", "image", Body::Elements).with(
    &[],
    &[
        once(&URL, rules::IMAGE),
        once(&TITLE, rules::IMAGE),
        once(&LINK, rules::IMAGE),
        maybe(&WIDTH, rules::IMAGE_SIZE),
        maybe(&HEIGHT, rules::IMAGE_SIZE),
        maybe(&DESCRIPTION, rules::IMAGE),
    ],
);
static TEXT_INPUT: Element = Element::new("", "textInput", Body::Elements).with(
    &[],
    &[
        once(&TITLE, rules::TEXT_INPUT),
        once(&DESCRIPTION, rules::TEXT_INPUT),
        once(&NAME, rules::TEXT_INPUT),
        once(&LINK, rules::TEXT_INPUT),
    ],
);
static HOUR: Element = Element::new("", "hour", Body::Trimmed(is_hour, rules::SKIP_HOURS));
static DAY: Element = Element::new("", "day", Body::Trimmed(is_day, rules::SKIP_DAYS));
static SKIP_HOURS: Element =
    Element::new("", "skipHours", Body::Elements).with(&[], &[up_to(24, &HOUR, rules::SKIP_HOURS)]);
static SKIP_DAYS: Element =
    Element::new("", "skipDays", Body::Elements).with(&[], &[up_to(7, &DAY, rules::SKIP_DAYS)]);
static AUTHOR: Element = Element::new("", "author", Body::Trimmed(is_contact, rules::AUTHOR));
static COMMENTS: Element = Element::new("", "comments", Body::Trimmed(is_absolute, rules::COMMENTS));
static ENCLOSURE: Element = Element::new("", "enclosure", Body::Empty(rules::NO_TEXT)).with(
    &[
        Attribute::needed("url", rules::ENCLOSURE, is_http, rules::ENCLOSURE_URL),
        Attribute::needed("length", rules::ENCLOSURE, is_number, rules::ENCLOSURE_LENGTH),
        Attribute::needed("type", rules::ENCLOSURE, is_media_type, rules::ENCLOSURE_TYPE),
    ],
    &[],
);
static GUID: Element = text("guid").with(&[Attribute::value("isPermaLink", is_flag, rules::GUID_FLAG)], &[]);
static SOURCE: Element =
    text("source").with(&[Attribute::needed("url", rules::SOURCE, is_absolute, rules::SOURCE)], &[]);
static ENCODED: Element = Element::new(CONTENT, "encoded", Body::Text);
static ITEM: Element = Element::new("", "item", Body::Elements).with(
    &[],
    &[
        maybe(&TITLE, rules::ITEM_ONCE),
        maybe(&LINK, rules::ITEM_ONCE),
        maybe(&DESCRIPTION, rules::ITEM_ONCE),
        maybe(&AUTHOR, rules::ITEM_ONCE),
        many(&CATEGORY),
        maybe(&COMMENTS, rules::ITEM_ONCE),
        // The specification has one; podcasts with several are usual, and readers take the first.
        many(&ENCLOSURE),
        maybe(&GUID, rules::ITEM_ONCE),
        maybe(&PUB_DATE, rules::ITEM_ONCE),
        maybe(&SOURCE, rules::ITEM_ONCE),
        many(&ATOM_LINK),
        maybe(&ENCODED, rules::ENCODED),
    ],
);
/// A deleted entry. In RSS its `ref` is a guid, which may be any text.
static DELETED: Element = Element::new(TOMBSTONES, "deleted-entry", Body::Elements).with(
    &[
        Attribute::needed("ref", atom::DELETED, is_any, atom::DELETED),
        Attribute::needed("when", atom::DELETED, is_rfc_3339, atom::DELETED),
    ],
    ATOM_DELETED.children,
);
static CHANNEL: Element = Element::new("", "channel", Body::Elements).with(
    &[],
    &[
        once(&TITLE, rules::TITLE),
        once(&LINK, rules::LINK),
        once(&DESCRIPTION, rules::DESCRIPTION),
        maybe(&LANGUAGE, rules::ONCE),
        maybe(&COPYRIGHT, rules::ONCE),
        maybe(&MANAGING_EDITOR, rules::ONCE),
        maybe(&WEB_MASTER, rules::ONCE),
        maybe(&PUB_DATE, rules::ONCE),
        maybe(&LAST_BUILD_DATE, rules::ONCE),
        many(&CATEGORY),
        maybe(&GENERATOR, rules::ONCE),
        maybe(&DOCS, rules::ONCE),
        maybe(&CLOUD, rules::ONCE),
        maybe(&TTL, rules::ONCE),
        maybe(&IMAGE, rules::ONCE),
        maybe(&RATING, rules::ONCE),
        maybe(&TEXT_INPUT, rules::ONCE),
        maybe(&SKIP_HOURS, rules::ONCE),
        maybe(&SKIP_DAYS, rules::ONCE),
        many(&ITEM),
        many(&ATOM_LINK),
        many(&DELETED),
        maybe(&STATEFUL, history::STATEFUL),
        maybe(&INCREMENTAL, history::INCREMENTAL),
        maybe(&PREV, history::PREV),
        maybe(&ARCHIVE, history::ARCHIVE),
        maybe(&COMPLETE, history::COMPLETE),
    ],
);
/// The root of RSS 2.0.
pub(super) static RSS: Element = Element::new("", "rss", Body::Elements).with(
    &[Attribute { name: "version", required: Some(rules::VERSION), value: None }],
    &[once(&CHANNEL, rules::CHANNEL)],
);

const fn rdf_text(name: &'static str) -> Element {
    Element::new(RSS_1, name, Body::Text)
}

static RDF_TITLE: Element = rdf_text("title");
static RDF_LINK: Element = Element::new(RSS_1, "link", Body::Trimmed(is_absolute, rules::URL));
static RDF_DESCRIPTION: Element = rdf_text("description");
static RDF_CHANNEL: Element = Element::new(RSS_1, "channel", Body::Elements).with(
    &[],
    &[
        once(&RDF_TITLE, rules::TITLE),
        once(&RDF_LINK, rules::LINK),
        once(&RDF_DESCRIPTION, rules::DESCRIPTION),
    ],
);
static RDF_ITEM: Element = Element::new(RSS_1, "item", Body::Elements)
    .with(&[], &[once(&RDF_TITLE, rules::RDF_ITEM), once(&RDF_LINK, rules::RDF_ITEM)]);
/// The root of RSS 1.0.
pub(super) static RDF_ROOT: Element = Element::new(RDF, "RDF", Body::Elements)
    .with(&[], &[once(&RDF_CHANNEL, rules::CHANNEL), many(&RDF_ITEM)]);
