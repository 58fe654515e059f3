//! Discovery of a feed's SUP document from its responses (section 6): the header `X-SUP-ID`, an `atom:link`, and the
//! header `Link`.

use http::{HeaderMap, HeaderName};
use url::Url;

use super::document::truncated;
use super::id::{SupId, is_id};
use crate::format::{FeedLink, link};

/// The header of section 6.1.
pub const X_SUP_ID: HeaderName = HeaderName::from_static("x-sup-id");

/// The link relation of sections 6.2 and 6.3.
pub const REL: &str = "http://api.friendfeed.com/2008/03#sup";

/// The media type of such a link (section 6.2).
pub const MEDIA_TYPE: &str = "application/json";

/// Link to a feed's SUP document, with the feed's id in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SupLink {
    /// The document's absolute URL, without fragment.
    pub url: String,
    /// The feed's SUP ID (section 4).
    pub id: String,
}

/// Error of parsing a SUP link. The publisher's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SupLinkError {
    /// The text is not an http or https URL.
    #[error("{0:?} is not the URL of a SUP document")]
    Url(String),
    /// The fragment is missing or is not a SUP ID (section 4).
    #[error("{0:?} has no SUP ID as its fragment")]
    Id(String),
}

impl SupLink {
    /// Returns the link of the feed at `feed_url` to the document at `sup_url`.
    pub fn new(sup_url: &str, feed_url: &str) -> Self {
        let url = sup_url.split('#').next().unwrap_or(sup_url).to_owned();
        Self { url, id: SupId::of(feed_url).to_string() }
    }

    /// Parses `updates_uri` of sections 6.1 and 6.2: the document's URL with the SUP ID as its fragment.
    ///
    /// A relative URL is resolved against `base`.
    pub fn parse(text: &str, base: Option<&Url>) -> Result<Self, SupLinkError> {
        let text = text.trim();
        let parsed = Url::options().base_url(base).parse(text);
        let mut url = parsed.map_err(|_| SupLinkError::Url(truncated(text)))?;
        // A link from a hostile feed must not make the follower open files or other schemes.
        if !matches!(url.scheme(), "http" | "https") {
            return Err(SupLinkError::Url(truncated(text)));
        }
        let id = url.fragment().filter(|id| is_id(id)).map(str::to_owned);
        let id = id.ok_or_else(|| SupLinkError::Id(truncated(text)))?;
        // The id is split off, so that all feeds of a publisher share one document and one poll.
        url.set_fragment(None);
        Ok(Self { url: url.into(), id })
    }

    /// Returns the value of `X-SUP-ID` (section 6.1), which is also the `href` of an `atom:link` (section 6.2).
    pub fn href(&self) -> String {
        format!("{}#{}", self.url, self.id)
    }

    /// Returns the value of a `Link` header (section 6.3).
    pub fn link_header(&self) -> String {
        format!("<{}>; rel=\"{REL}\"; type=\"{MEDIA_TYPE}\"", self.href())
    }

    /// Returns the `atom:link` of section 6.2.
    pub fn feed_link(&self) -> FeedLink {
        FeedLink { rel: REL.into(), href: self.href(), media_type: Some(MEDIA_TYPE.into()) }
    }
}

/// SUP links in a response for a feed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Discovery {
    /// The distinct links. There are several if header and document disagree; all of them are used.
    pub links: Vec<SupLink>,
    /// Problems of the links.
    pub warnings: Vec<String>,
}

/// Finds the SUP links of a response, in its headers and in the links of the feed document, if it was parsed.
///
/// `base` is the URL of the response.
pub fn discover(headers: &HeaderMap, feed_links: &[FeedLink], base: Option<&Url>) -> Discovery {
    let mut found = Discovery::default();
    for value in headers.get_all(X_SUP_ID) {
        found.add("X-SUP-ID", &String::from_utf8_lossy(value.as_bytes()), base);
    }
    let links = link::from_headers(headers, base);
    // A link with an anchor describes another resource than the response (RFC 8288, section 3.2).
    for link in links.iter().filter(|link| link.anchor.is_none() && link.has_rel(REL)) {
        found.add("the Link header", &link.target, base);
    }
    // Relation types are compared without case (RFC 8288, section 2.1.2).
    for link in feed_links.iter().filter(|link| link.rel.eq_ignore_ascii_case(REL)) {
        found.add("the feed's link", &link.href, base);
    }
    if found.links.len() > 1 {
        let all: Vec<String> = found.links.iter().map(SupLink::href).collect();
        found.warnings.push(format!("the SUP links disagree; all of them are used: {}", all.join(", ")));
    }
    found
}

impl Discovery {
    fn add(&mut self, source: &str, text: &str, base: Option<&Url>) {
        match SupLink::parse(text, base) {
            Ok(link) if self.links.contains(&link) => {}
            Ok(link) => self.links.push(link),
            Err(error) => self.warnings.push(format!("{source}: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(lines: &[(HeaderName, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    fn example() -> SupLink {
        SupLink { url: "http://example.com/sup.json".into(), id: "4496672d".into() }
    }

    /// Section 6.1: "the following 'X-SUP-ID' header refers to a SUP Feed at … and indicates that the SUP ID …".
    #[test]
    fn section_6_1_the_header_of_the_example() {
        let headers = headers(&[(X_SUP_ID, "http://example.com/sup.json#4496672d")]);
        assert_eq!(discover(&headers, &[], None), Discovery { links: vec![example()], warnings: vec![] });
        assert_eq!(example().href(), "http://example.com/sup.json#4496672d");
    }

    /// Section 6.2: "feed consumers SHOULD be prepared for the presence of the link element in addition to, or
    /// instead of, the X-SUP-ID header" (section 6).
    #[test]
    fn section_6_2_the_link_element_instead_and_in_addition() {
        let link = example().feed_link();
        assert_eq!((link.rel.as_str(), link.media_type.as_deref()), (REL, Some("application/json")));
        let links = [link];
        assert_eq!(discover(&HeaderMap::new(), &links, None).links, [example()]);
        let headers = headers(&[(X_SUP_ID, " http://example.com/sup.json#4496672d ")]);
        assert_eq!(discover(&headers, &links, None), Discovery { links: vec![example()], warnings: vec![] });
    }

    /// Section 6.3, its example on one line.
    #[test]
    fn section_6_3_the_link_header() {
        let value = "<http://example.com/sup.json#276b6c46>; rel=\"http://api.friendfeed.com/2008/03#sup\"; \
                     type=\"application/json\"; title=\"Updates Feed\"";
        let found = discover(&headers(&[(http::header::LINK, value)]), &[], None);
        assert_eq!(found.links[0].id, "276b6c46");
        let written = SupLink::new("https://a.example/sup.json", "https://a.example/feeds/x").link_header();
        let map = HeaderMap::from_iter([(http::header::LINK, HeaderValue::from_str(&written).unwrap())]);
        assert_eq!(
            discover(&map, &[], None).links,
            [SupLink::new("https://a.example/sup.json#old", "https://a.example/feeds/x")]
        );
    }

    #[test]
    fn conflicting_links_are_all_used_with_a_warning() {
        let headers = headers(&[(X_SUP_ID, "http://example.com/other.json#1")]);
        let found = discover(&headers, &[example().feed_link()], None);
        assert_eq!(found.links.len(), 2);
        assert!(found.warnings[0].contains("http://example.com/other.json#1"), "{:?}", found.warnings);
    }

    #[test]
    fn relative_links_are_resolved_and_bad_ones_reported() {
        let base = Url::parse("https://a.example/feeds/x").unwrap();
        let parse = |text: &str| SupLink::parse(text, Some(&base));
        assert_eq!(parse("/sup.json?s=1#ab").unwrap().url, "https://a.example/sup.json?s=1");
        for bad in ["/sup.json", "/sup.json#", "/sup.json#a/b", "ftp://a/#ab", "http://[#ab"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(SupLink::parse("/sup.json#ab", None).is_err());
        assert!(parse(&format!("/sup.json#{}", "x".repeat(129))).is_err());
        let found = discover(&headers(&[(X_SUP_ID, "nowhere")]), &[], None);
        assert!(found.links.is_empty());
        assert_eq!(found.warnings, ["X-SUP-ID: \"nowhere\" is not the URL of a SUP document"]);
    }
}
