//! Rules of RSS across elements.

use std::collections::HashSet;

use super::grammar::Element;
use super::history::history_element;
use super::rss_grammar::{RDF_ROOT, RSS};
use super::rules::rss as rules;
use super::values::is_absolute;
use super::walk::{CommonRules, Dialect, Frame, WalkState};
use super::xml::XmlStart;

static COMMON: CommonRules = CommonRules {
    known_element: rules::KNOWN_ELEMENT,
    known_attribute: rules::KNOWN_ATTRIBUTE,
    no_text: rules::NO_TEXT,
    text_only: rules::TEXT_ONLY,
    language: rules::LANGUAGE_TAG,
    base: rules::BASE,
};

/// The test of an RSS document.
#[derive(Debug, Default)]
pub(super) struct RssDialect {
    /// True for version 2, whose elements are all known.
    is_version_2: bool,
    has_text: bool,
    has_guid: bool,
    is_no_permalink: bool,
    /// Hours or days of the element that is open.
    skipped: HashSet<String>,
}

impl Dialect for RssDialect {
    fn rules(&self) -> &'static CommonRules {
        &COMMON
    }

    fn root(&mut self, start: &XmlStart<'_>, walk: &mut WalkState<'_>) -> Option<&'static Element> {
        if start.local == RDF_ROOT.name && start.ns == RDF_ROOT.ns {
            return Some(&RDF_ROOT);
        }
        let has_no_ns = start.ns.is_empty();
        walk.judge(rules::NAMESPACE, has_no_ns, || format!("the namespace is {:?}", start.ns));
        if let Some(version) = start.attribute("version") {
            self.is_version_2 = version.starts_with("2.");
            walk.judge(rules::VERSION_2, self.is_version_2, || format!("the version is {version:?}"));
        }
        (start.local == "rss" && has_no_ns).then_some(&RSS)
    }

    fn owns(&self, ns: &str) -> bool {
        self.is_version_2 && ns.is_empty()
    }

    fn start(
        &mut self,
        parent: &'static Element,
        element: Option<&'static Element>,
        start: &XmlStart<'_>,
        walk: &mut WalkState<'_>,
    ) {
        history_element(parent.name == "channel", start, walk);
        let Some(element) = element else { return };
        match (parent.name, element.name) {
            (_, "item") => (self.has_text, self.has_guid) = (false, false),
            ("item", "title" | "description") => self.has_text = true,
            (_, "skipHours" | "skipDays") => self.skipped.clear(),
            ("item", "guid") => {
                self.has_guid = true;
                self.is_no_permalink = start.attribute("isPermaLink") == Some("false");
            }
            _ => {}
        }
    }

    fn end(&mut self, element: &'static Element, frame: &Frame, walk: &mut WalkState<'_>) {
        let text = frame.text.trim();
        match element.name {
            "hour" | "day" => {
                let is_new = self.skipped.insert(text.to_owned());
                walk.judge(rules::SKIP_ONCE, is_new, || format!("{text:?} again"));
            }
            "item" if element.ns.is_empty() => {
                walk.judge(rules::ITEM_TEXT, self.has_text, || "neither of them".to_owned());
                walk.judge(rules::ITEM_GUID, self.has_guid, || "no guid".to_owned());
            }
            "guid" => {
                walk.judge(rules::GUID_TEXT, !text.is_empty(), || "an empty guid".to_owned());
                let fits = self.is_no_permalink || text.is_empty() || is_absolute(text);
                walk.judge(rules::GUID_URL, fits, || format!("{text:?}"));
            }
            _ => {}
        }
    }
}
