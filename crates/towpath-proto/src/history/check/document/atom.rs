//! Rules of RFC 4287 and RFC 6721 across elements.

use std::collections::HashSet;

use super::atom_grammar::{DELETED, ENTRY, FEED};
use super::grammar::{Body, Element};
use super::history::history_element;
use super::rules::atom as rules;
use super::values::{is_base64, is_media_type};
use super::walk::{CommonRules, Dialect, Frame, WalkState};
use super::xml::XmlStart;
use super::xml_name::is_space;
use crate::format::xml::{ATOM, TOMBSTONES};
use crate::format::{media_type, relation};

static COMMON: CommonRules = CommonRules {
    known_element: rules::KNOWN_ELEMENT,
    known_attribute: rules::KNOWN_ATTRIBUTE,
    no_text: rules::NO_TEXT,
    text_only: rules::TEXT_ONLY,
    language: rules::LANGUAGE,
    base: rules::BASE,
};

/// Type and language of an alternate link.
type Alternate = (String, String);

/// Facts of a feed or an entry that concern several of its elements.
#[derive(Debug, Default)]
struct Facts {
    has_author: bool,
    has_self: bool,
    has_content: bool,
    has_summary: bool,
    has_source_content: bool,
    has_encoded_content: bool,
    alternates: HashSet<Alternate>,
}

/// The test of an Atom document.
#[derive(Debug, Default)]
pub(super) struct AtomDialect {
    feed: Facts,
    entry: Facts,
    is_in_entry: bool,
    is_in_source: bool,
    /// Number of the first entry without an author, whom the feed may name later.
    without_author: Option<u64>,
    deleted: HashSet<(String, String)>,
    has_src: bool,
    /// Id of the feed, once it was read.
    feed_id: Option<String>,
}

impl AtomDialect {
    fn link(&mut self, start: &XmlStart<'_>, walk: &mut WalkState<'_>) {
        let facts = if self.is_in_entry { &mut self.entry } else { &mut self.feed };
        match relation(start.attribute("rel").unwrap_or("alternate")).as_ref() {
            "self" => facts.has_self = true,
            "alternate" => {
                let lower = |name| start.attribute(name).unwrap_or_default().to_ascii_lowercase();
                let alternate = (lower("type"), lower("hreflang"));
                let is_new = facts.alternates.insert(alternate);
                let rule = if self.is_in_entry { rules::ENTRY_ALTERNATES } else { rules::FEED_ALTERNATES };
                walk.judge(rule, is_new, || "a second alternate of its type and language".to_owned());
            }
            _ => {}
        }
    }

    fn end_id(&mut self, id: &str, walk: &mut WalkState<'_>) {
        if !self.is_in_entry {
            self.feed_id = Some(id.to_owned());
        } else if !self.is_in_source {
            walk.judge(rules::OTHER_IDS, self.feed_id.as_deref() != Some(id), || format!("{id:?}"));
        }
    }

    fn end_entry(&mut self, walk: &mut WalkState<'_>) {
        let entry = std::mem::take(&mut self.entry);
        let has_text = entry.has_content || !entry.alternates.is_empty();
        walk.judge(rules::ENTRY_TEXT, has_text, || "neither of them".to_owned());
        if entry.has_source_content {
            walk.judge(rules::REFERENCE_SUMMARY, entry.has_summary, || "no summary".to_owned());
        }
        if entry.has_encoded_content {
            walk.judge(rules::ENCODED_SUMMARY, entry.has_summary, || "no summary".to_owned());
        }
        if !entry.has_author {
            // Judged at the end of the feed, whose own author may stand behind its entries.
            self.without_author.get_or_insert(walk.entry);
        }
        self.is_in_entry = false;
    }

    fn end_content(&mut self, frame: &Frame, walk: &mut WalkState<'_>) {
        self.entry.has_content = true;
        let kind = frame.kind.as_deref();
        let is_mime = kind.is_some_and(is_media_type);
        let is_text_kind = matches!(kind, None | Some("text" | "html" | "xhtml"));
        let major = kind.unwrap_or_default().to_ascii_lowercase();
        // RFC 4287, section 4.1.3.1, forbids composite types: an element has no room for several parts.
        let is_composite = major.starts_with("multipart/") || major.starts_with("message/");
        walk.judge(rules::CONTENT_TYPE, is_text_kind || (is_mime && !is_composite), || {
            format!("type is {:?}", kind.unwrap_or_default())
        });
        if std::mem::take(&mut self.has_src) {
            self.entry.has_source_content = true;
            let is_empty = frame.children == 0 && frame.text.chars().all(is_space);
            walk.judge(rules::CONTENT_EMPTY, is_empty, || "content with src and a body".to_owned());
            walk.judge(rules::CONTENT_SRC_TYPED, kind.is_some(), || "no type".to_owned());
            let fits = kind.is_none() || is_mime;
            return walk
                .judge(rules::CONTENT_SRC_TYPE, fits, || format!("type is {:?}", kind.unwrap_or_default()));
        }
        // From here on in the order of RFC 4287, section 4.1.3.3: the first case that fits decides.
        if is_text_kind {
            return test_text(kind, frame, walk);
        }
        let essence = media_type::essence(&major);
        if essence.ends_with("+xml") || essence.ends_with("/xml") {
            let is_single = frame.children == 1 && frame.text.chars().all(is_space);
            return walk.judge(rules::CONTENT_XML, is_single, || format!("{} elements", frame.children));
        }
        if essence.starts_with("text/") {
            let holds = frame.children == 0;
            return walk.judge(rules::CONTENT_TEXT, holds, || format!("child elements in {essence}"));
        }
        if is_mime {
            self.entry.has_encoded_content = true;
            let fits = frame.children == 0 && is_base64(&frame.text);
            walk.judge(rules::CONTENT_BASE64, fits, || format!("content of {essence}"));
        }
    }
}

/// Tests a text construct, or content that is one (RFC 4287, section 3.1).
fn test_text(kind: Option<&str>, frame: &Frame, walk: &mut WalkState<'_>) {
    match kind.unwrap_or("text") {
        "text" => {
            let holds = frame.children == 0;
            walk.judge(rules::PLAIN_TEXT, holds, || "child elements in plain text".to_owned());
        }
        "html" => {
            let holds = frame.children == 0;
            walk.judge(rules::HTML_TEXT, holds, || "child elements in escaped HTML".to_owned());
            let outer = outer_tag(&frame.text);
            walk.judge(rules::HTML_DIV, outer.is_none(), || format!("<{}>", outer.unwrap_or_default()));
        }
        "xhtml" => {
            let is_div = frame.children == 1 && frame.begins_with_div && frame.text.chars().all(is_space);
            walk.judge(rules::XHTML_DIV, is_div, || "something else than one div".to_owned());
        }
        other => walk.judge(rules::TEXT_TYPE, false, || format!("type is {other:?}")),
    }
}

/// Returns the first tag of HTML that cannot stand in a `div`.
fn outer_tag(html: &str) -> Option<&'static str> {
    let mut rest = html;
    while let Some((_, after)) = rest.split_once('<') {
        let name = after.find(|c: char| !c.is_ascii_alphanumeric()).map_or(after, |end| &after[..end]);
        let outer = ["html", "head", "body", "frameset"].into_iter().find(|o| o.eq_ignore_ascii_case(name));
        if outer.is_some() {
            return outer;
        }
        rest = after;
    }
    None
}

impl Dialect for AtomDialect {
    fn rules(&self) -> &'static CommonRules {
        &COMMON
    }

    fn root(&mut self, start: &XmlStart<'_>, walk: &mut WalkState<'_>) -> Option<&'static Element> {
        let is_known = matches!(start.ns.as_ref(), ATOM | TOMBSTONES);
        walk.judge(rules::NAMESPACE, is_known, || format!("the namespace is {:?}", start.ns));
        if !is_known {
            return None;
        }
        self.is_in_entry = start.local == "entry";
        [&FEED, &ENTRY, &DELETED].into_iter().find(|e| e.ns == start.ns && e.name == start.local)
    }

    fn owns(&self, ns: &str) -> bool {
        matches!(ns, ATOM | TOMBSTONES)
    }

    fn start(
        &mut self,
        parent: &'static Element,
        element: Option<&'static Element>,
        start: &XmlStart<'_>,
        walk: &mut WalkState<'_>,
    ) {
        history_element(parent.name == "feed", start, walk);
        let Some(element) = element else { return };
        match (parent.name, element.name) {
            ("feed", "entry") => self.is_in_entry = true,
            (_, "source") => self.is_in_source = true,
            ("feed", "author") => self.feed.has_author = true,
            ("entry", "author") => self.entry.has_author = true,
            // An entry that was copied has the author of its source (RFC 4287, section 4.1.2).
            ("source", "author") if self.is_in_entry => self.entry.has_author = true,
            ("feed" | "entry", "link") => self.link(start, walk),
            ("entry", "summary") => self.entry.has_summary = true,
            ("entry", "content") => self.has_src = start.attribute("src").is_some(),
            ("feed", "deleted-entry") => {
                let value = |name| start.attribute(name).unwrap_or_default().to_owned();
                // Both count: an entry may be deleted, come back and be deleted again.
                let is_new = self.deleted.insert((value("ref"), value("when")));
                walk.judge(rules::DELETED_ONCE, is_new, || format!("{:?} again", value("ref")));
            }
            _ => {}
        }
    }

    fn end(&mut self, element: &'static Element, frame: &Frame, walk: &mut WalkState<'_>) {
        match (element.body, element.name) {
            (Body::Construct, _) => {
                let kind = frame.kind.as_deref();
                walk.judge(rules::TEXT_TYPE, true, String::new);
                test_text(kind, frame, walk);
            }
            (Body::Content, _) => self.end_content(frame, walk),
            (_, "id") => self.end_id(&frame.text, walk),
            (_, "name") => {
                let text = frame.text.trim();
                walk.judge(rules::PERSON_NAMED, !text.is_empty(), || "an empty name".to_owned());
            }
            (_, "source") => self.is_in_source = false,
            (_, "entry") => self.end_entry(walk),
            (_, "feed") => {
                walk.judge(rules::FEED_SELF, self.feed.has_self, || "no link with rel=\"self\"".to_owned());
                let without = self.without_author.filter(|_| !self.feed.has_author);
                walk.judge(rules::AUTHOR, without.is_none(), || {
                    format!("neither the feed nor entry {} has one", without.unwrap_or_default())
                });
            }
            _ => {}
        }
    }
}
