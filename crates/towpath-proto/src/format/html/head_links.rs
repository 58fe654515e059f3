//! Links in a page's head.

use std::ops::ControlFlow;

use html5gum::emitters::callback::CallbackEvent;

use super::tokens::read;
use crate::format::feed_document::FeedLink;

/// Returns the `link` elements before a page's body, with targets as written (RFC 5988, appendix A). Elements
/// in the body are ignored: they may come from any commenter (WebSub 8.1).
pub fn head_links(html: &str) -> Vec<FeedLink> {
    let mut links = Vec::new();
    let (mut is_link, mut attribute) = (false, Vec::new());
    let mut link = LinkBuilder::default();
    read(html, |event| {
        match event {
            // An open body ends the head even without an end tag (HTML standard, section 13.1.2.4).
            CallbackEvent::OpenStartTag { name: b"body" } | CallbackEvent::EndTag { name: b"head" } => {
                return ControlFlow::Break(());
            }
            CallbackEvent::OpenStartTag { name } => {
                (is_link, link) = (name == b"link", LinkBuilder::default());
            }
            CallbackEvent::AttributeName { name } if is_link => attribute = name.to_vec(),
            CallbackEvent::AttributeValue { value } if is_link => {
                link.set(&attribute, String::from_utf8_lossy(value).into_owned());
            }
            CallbackEvent::CloseStartTag { .. } if is_link => {
                links.extend(std::mem::take(&mut link).finish());
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    links
}

#[derive(Default)]
struct LinkBuilder {
    rels: String,
    href: Option<String>,
    media_type: Option<String>,
}

impl LinkBuilder {
    fn set(&mut self, attribute: &[u8], value: String) {
        match attribute {
            b"rel" => self.rels = value,
            b"href" => self.href = Some(value),
            b"type" => self.media_type = Some(value),
            _ => {}
        }
    }

    /// Returns a link for each relation.
    fn finish(self) -> Vec<FeedLink> {
        let Self { rels, href: Some(href), media_type } = self else { return Vec::new() };
        let link = |rel: &str| FeedLink {
            rel: rel.to_ascii_lowercase(),
            href: href.clone(),
            media_type: media_type.clone(),
        };
        rels.split_ascii_whitespace().map(link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_head_only() {
        let html = "<!doctype html><html><head><title>x</title><LINK REL='hub self' href=\"/a?b=1&amp;c\">
            <link rel=alternate type=application/atom+xml href=feed><link rel=nothing><!-- <link rel=hub href=no> -->
            </head><body><link rel=hub href=http://evil.example/></body>";
        let links: Vec<_> = head_links(html).into_iter().map(|link| (link.rel, link.href)).collect();
        let expected = [("hub", "/a?b=1&c"), ("self", "/a?b=1&c"), ("alternate", "feed")];
        assert_eq!(links, expected.map(|(rel, href)| (rel.to_owned(), href.to_owned())));
        assert!(head_links("<body><link rel=hub href=x>").is_empty());
    }
}
