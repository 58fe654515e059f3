//! Feeds that a page links to.

use std::ops::ControlFlow;

use html5gum::emitters::callback::CallbackEvent;
use url::Url;

use super::tokens::{SkippedElements, read};
use crate::format::media_type::essence;

/// Maximum number of alternates of a page.
const MAX_ALTERNATES: usize = 64;

/// Alternate representation of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternate {
    /// URL, absolute, without fragment.
    pub href: String,
    /// Media type in lower case, without parameters; empty if not given.
    pub media_type: String,
}

/// Returns the `link` elements with the relation `alternate` (or `feed`) of the page at `page`, in order,
/// without duplicates. Relative URLs are resolved against the page's `base`.
pub fn alternates(html: &str, page: &Url) -> Vec<Alternate> {
    let mut reader = AlternatesReader::default();
    read(html, |event| {
        reader.handle(&event);
        // The rest of the page needs no reading once the limit is reached.
        if reader.links.len() == MAX_ALTERNATES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    // The base may follow the links in the source, so URLs are resolved at the end.
    let base = reader.base.as_deref().and_then(|base| page.join(base.trim()).ok());
    let base = base.as_ref().unwrap_or(page);
    let mut found: Vec<Alternate> = Vec::new();
    for AlternateLink { href, media_type, .. } in reader.links {
        // A malformed URL is skipped: pages often have some.
        let Ok(mut url) = base.join(href.trim()) else { continue };
        url.set_fragment(None);
        let is_known = found.iter().any(|known| known.href == url.as_str());
        if matches!(url.scheme(), "http" | "https") && !is_known {
            let media_type = essence(&media_type).to_ascii_lowercase();
            found.push(Alternate { href: url.into(), media_type });
        }
    }
    found
}

#[derive(Default)]
struct AlternateLink {
    rel: String,
    href: String,
    media_type: String,
}

#[derive(Default)]
struct AlternatesReader {
    dropped: SkippedElements,
    name: Vec<u8>,
    attribute: Vec<u8>,
    link: AlternateLink,
    links: Vec<AlternateLink>,
    base: Option<String>,
}

impl AlternatesReader {
    fn handle(&mut self, event: &CallbackEvent<'_>) {
        match event {
            CallbackEvent::OpenStartTag { name } => {
                self.name = name.to_vec();
                self.link = AlternateLink::default();
            }
            CallbackEvent::AttributeName { name } => self.attribute = name.to_vec(),
            CallbackEvent::AttributeValue { value } => {
                let value = String::from_utf8_lossy(value);
                match self.attribute.as_slice() {
                    b"rel" => self.link.rel = value.into_owned(),
                    b"href" => self.link.href = value.into_owned(),
                    b"type" => self.link.media_type = value.into_owned(),
                    _ => {}
                }
            }
            CallbackEvent::CloseStartTag { .. } => self.open(),
            CallbackEvent::EndTag { name } => self.dropped.close(name),
            _ => {}
        }
    }

    /// Handles a complete start tag.
    fn open(&mut self) {
        let link = std::mem::take(&mut self.link);
        // Markup inside a script or template is not part of the page.
        let is_shown = !self.dropped.is_on();
        self.dropped.open(&self.name);
        match self.name.as_slice() {
            // Only the first `base` counts (HTML standard, section 4.2.3).
            b"base" if is_shown && self.base.is_none() && !link.href.is_empty() => {
                self.base = Some(link.href);
            }
            b"link" if is_shown && !link.href.is_empty() && names_alternate(&link.rel) => {
                self.links.push(link);
            }
            _ => {}
        }
    }
}

fn names_alternate(rel: &str) -> bool {
    let mut rels = rel.split_ascii_whitespace().map(str::to_ascii_lowercase).collect::<Vec<_>>();
    // An alternate style sheet is not a representation of the page.
    !rels.iter().any(|rel| rel == "stylesheet")
        && rels.drain(..).any(|rel| rel == "alternate" || rel == "feed")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(html: &str) -> Vec<(String, String)> {
        let page = Url::parse("https://a.example/blog/post").unwrap();
        alternates(html, &page).into_iter().map(|a| (a.href, a.media_type)).collect()
    }

    #[test]
    fn links_are_resolved_against_the_base_in_order_and_once() {
        let html = "<!doctype html><html><head><title><link rel=alternate href=/no></title>
            <LINK REL='Alternate home' TYPE='application/atom+xml; charset=utf-8' HREF='atom.xml#x'>
            <base href='/deep/'><base href='/other/'>
            <link rel=alternate type=application/rss+xml href='//b.example/rss?a=1&amp;b=2'>
            <link rel='alternate stylesheet' href=a.css><link rel=stylesheet href=b.css>
            <link rel=alternate hreflang=de href='https://a.example/de'>
            <link rel=alternate href='atom.xml'><link rel=alternate href='javascript:x'>
            <script>'<link rel=alternate href=/script>'</script><!-- <link rel=alternate href=/comment> -->
            <template><link rel=alternate href=/template></template>";
        let expected = [
            ("https://a.example/deep/atom.xml", "application/atom+xml"),
            ("https://b.example/rss?a=1&b=2", "application/rss+xml"),
            ("https://a.example/de", ""),
        ];
        assert_eq!(found(html), expected.map(|(href, t)| (href.to_owned(), t.to_owned())));
    }

    #[test]
    fn hostile_pages_are_bounded() {
        assert_eq!(found(""), []);
        assert_eq!(found("<link rel=alternate"), []);
        let many: String = (0..10_000).map(|n| format!("<link rel=alternate href=/{n}>")).collect();
        assert_eq!(found(&many).len(), MAX_ALTERNATES);
        assert_eq!(found(&"<link rel=alternate href=>".repeat(1000)), []);
    }

    proptest! {
        #[test]
        fn whatever_the_page_links_are_absolute_and_few(
            parts in proptest::collection::vec("<(link|base|/?template|script) ?(rel|href|type)?=?['\"]?[a-z:/ .]{0,12}['\"]?>?", 0..40)
        ) {
            let page = Url::parse("https://a.example/").unwrap();
            for alternate in alternates(&parts.concat(), &page) {
                prop_assert!(alternate.href.starts_with("http"), "{}", alternate.href);
            }
        }
    }
}
