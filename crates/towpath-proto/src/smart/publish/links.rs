//! The URLs that a page names.

use http::header::HeaderValue;

use super::page::PullPage;
use super::query::{FORMAT, PullQuery};
use super::settings::FeedSettings;
use crate::smart::wire::accept::PageFormat;
use crate::smart::wire::spec::PositionSpec;
use crate::smart::wire::{base_url, with_parameter, with_since};

/// The URLs that a page names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullPageLinks {
    /// The feed's base URL, without the parameters of the range.
    pub base: String,
    /// The next page, if the log has more now.
    pub next: Option<String>,
}

impl PullPageLinks {
    /// Returns the URLs of the page that answers `query`.
    pub fn new(feed: &FeedSettings, query: &PullQuery, page: &PullPage) -> Self {
        let base = base_url(&feed.base, &query.base_query);
        let last = page.last_cursor.as_ref().filter(|_| page.more);
        let next = last.map(|cursor| {
            let mut next = with_since(&base, &PositionSpec::Cursor(cursor.clone()));
            if let Some(until) = &query.until {
                next = with_parameter(&next, "until", &until.to_string());
            }
            // Only if the client gave `max`: the default may change between two pages.
            match query.requested_max {
                Some(max) => with_parameter(&next, "max", &max.to_string()),
                None => next,
            }
        });
        Self { base, next }
    }
}

/// Returns the `Link` header of a feed with a hub: the hub and the topic (WebSub 4).
///
/// A topic has one representation (WebSub 4.1), so a negotiated format other than the default has its own URL. Lines are not
/// pushed: their topic is that of the JSON page.
pub fn topic_links(feed: &FeedSettings, query: &PullQuery, format: PageFormat) -> Option<HeaderValue> {
    let hub = feed.hub.as_ref()?;
    let mut topic = base_url(&feed.base, &query.topic_query());
    if format != PageFormat::Lines && query.format().unwrap_or(PageFormat::Json) != format {
        topic = with_parameter(&topic, FORMAT, format.name());
    }
    HeaderValue::from_str(&format!("<{hub}>; rel=\"hub\", <{topic}>; rel=\"self\"")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smart::publish::cursor::CursorKind;
    use crate::smart::publish::query::PullLimits;
    use crate::smart::publish::testing::settings;

    /// WebSub 4: `rel=self` is "the canonical URL for the topic", and 4.1: it has one representation. Smart Feeds, "HTTP
    /// Push": the topic is the feed's base URL, "though the query string parameters may differ".
    #[test]
    fn a_topic_has_order_and_format_only() {
        let feed = FeedSettings { hub: Some("http://hub/".into()), ..settings(CursorKind::Sequence) };
        for (query, format, topic) in [
            ("", PageFormat::Json, ""),
            ("order=created&max=1&since=time:0", PageFormat::Json, "?order=created"),
            ("lang=de&order=created&q&a=1&a=2", PageFormat::Json, "?order=created"),
            ("as=line", PageFormat::Lines, ""),
            ("as=line&%6Frder=created", PageFormat::Lines, "?%6Frder=created"),
            ("foo=bar", PageFormat::Atom, "?format=atom"),
            ("foo=bar&format=atom", PageFormat::Atom, "?format=atom"),
        ] {
            let parsed = PullQuery::parse(query, &PullLimits::default()).unwrap();
            let links = topic_links(&feed, &parsed, format).unwrap();
            let expected = format!("<http://hub/>; rel=\"hub\", <{}{topic}>; rel=\"self\"", feed.base);
            assert_eq!(links, expected, "{query}");
        }
    }
}
