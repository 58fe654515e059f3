//! Discovery of a topic's hub and of its own URL (WebSub 4, PubSubHubbub 0.3 section 5, 0.4 section 4).

use url::Url;

use crate::follow::ResponseHead;
use crate::format::{self, FeedLink, ReadOptions, html, link, sniff};

/// Links that a topic publishes about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubLinks {
    /// Canonical URL: the topic to subscribe to.
    pub topic: String,
    /// Hubs, HTTPS first ("subscribers SHOULD always favor the HTTPS URL for hubs").
    pub hubs: Vec<String>,
}

/// Finds a topic's links: first in the headers, then in the document, which may be an XML feed or an HTML
/// page. Returns `None` if there is no hub.
pub fn discover(head: &ResponseHead, body: &[u8]) -> Option<HubLinks> {
    let base = Url::parse(&head.url).ok();
    let (mut hubs, mut topics) = in_headers(head, base.as_ref());
    if hubs.is_empty() || topics.is_empty() {
        let links = in_document(head, body, base.as_ref());
        let of =
            |rel: &str| links.iter().filter(|link| link.rel == rel).map(|link| link.href.clone()).collect();
        if hubs.is_empty() {
            hubs = of("hub");
        }
        if topics.is_empty() {
            topics = of("self");
        }
    }
    // A hub under another scheme cannot be sent a request.
    hubs.retain(|hub| hub.starts_with("http://") || hub.starts_with("https://"));
    hubs.sort_by_key(|hub| !hub.starts_with("https://"));
    // Without a self link the URL that responded is the best topic.
    let topic = topics.into_iter().next().unwrap_or_else(|| head.url.clone());
    (!hubs.is_empty()).then_some(HubLinks { topic, hubs })
}

/// Returns true if [`discover`] needs no body: the headers have both links.
pub fn is_in_headers(head: &ResponseHead) -> bool {
    let (hubs, topics) = in_headers(head, None);
    !hubs.is_empty() && !topics.is_empty()
}

/// Returns hubs and topics of the headers.
fn in_headers(head: &ResponseHead, base: Option<&Url>) -> (Vec<String>, Vec<String>) {
    let headers = link::from_headers(&head.headers, base);
    let own = |rel: &str| {
        // A link with an anchor describes another resource (RFC 8288, section 3.2).
        let links = headers.iter().filter(|link| link.anchor.is_none() && link.has_rel(rel));
        links.map(|link| link.target.clone()).collect::<Vec<_>>()
    };
    (own("hub"), own("self"))
}

fn in_document(head: &ResponseHead, body: &[u8], base: Option<&Url>) -> Vec<FeedLink> {
    let content_type = head.header("content-type");
    let options = ReadOptions { content_type, base_url: Some(&head.url), ..ReadOptions::default() };
    // Feeds often come with the wrong media type, so the content decides between a feed and a page.
    if let Ok(feed) = format::read(body, &options) {
        return feed.links;
    }
    let (text, _) = sniff::decode(body, content_type);
    let mut links = html::head_links(&text);
    for link in &mut links {
        if let Some(target) = base.and_then(|base| base.join(&link.href).ok()) {
            link.href = target.to_string();
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue};

    const PAGE: &str = "<!doctype html><html><head><link rel=\"hub\" href=\"https://body.example/\">
        <link rel=\"self\" href=\"/feed?self=other\"></head><body>";
    const ATOM: &str = r#"<feed xmlns="http://www.w3.org/2005/Atom"><id>a</id><title>A</title>
        <link rel="hub" href="https://body.example/"/><link rel="self" href="/feed?self=other"/></feed>"#;
    const RSS: &str = r#"<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel><title>A</title>
        <atom:link rel="hub" href="https://body.example/"/><atom:link rel="self" href="/feed?self=other"/>
        </channel></rss>"#;

    fn found(headers: &[(&str, &str)], body: &str) -> Option<(String, Vec<String>)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        let head = ResponseHead { status: 200, url: "http://example.com/feed".into(), headers: map };
        discover(&head, body.as_bytes()).map(|found| (found.topic, found.hubs))
    }

    fn expected(topic: &str, hubs: &[&str]) -> Option<(String, Vec<String>)> {
        Some((topic.to_owned(), hubs.iter().map(|hub| (*hub).to_owned()).collect()))
    }

    const LINKS: (&str, &str) = ("link", "<https://hub.example.com/>; rel=\"hub\", </feed>; rel=\"self\"");

    /// WebSub 4: "Subscribers MUST check for HTTP Link headers first" (websub.rocks, subscriber tests 100 and 104).
    #[test]
    fn headers_come_first() {
        let from_headers = expected("http://example.com/feed", &["https://hub.example.com/"]);
        for body in ["", PAGE, ATOM, RSS, "{}"] {
            assert_eq!(found(&[LINKS], body), from_headers, "{body}");
        }
    }

    /// WebSub 4: "In the absence of HTTP Link headers … subscribers MUST check for embedded link elements"
    /// (websub.rocks, subscriber tests 101, 102, 103 and 200).
    #[test]
    fn then_the_document() {
        let from_body = expected("http://example.com/feed?self=other", &["https://body.example/"]);
        for body in [PAGE, ATOM, RSS] {
            for content_type in ["text/html", "text/xml", "application/atom+xml"] {
                assert_eq!(found(&[("content-type", content_type)], body), from_body, "{body}");
            }
        }
    }

    #[test]
    fn some_have_several_hubs_and_some_none() {
        let links = "<http://a/>; rel=hub, <https://b/>; rel=hub, <ftp://c/>; rel=hub";
        assert_eq!(
            found(&[("link", links)], ""),
            expected("http://example.com/feed", &["https://b/", "http://a/"])
        );
        for body in ["", "{}", "<html><body><link rel=hub href=https://body.example/>", "<feed"] {
            assert_eq!(found(&[], body), None, "{body}");
        }
        assert_eq!(found(&[("link", "<http://x/>; rel=hub; anchor=\"http://y/\"")], ""), None);
    }
}
