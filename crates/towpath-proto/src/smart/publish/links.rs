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
/// A topic has one representation (WebSub 4.1), so a negotiated format other than the default has its own URL.
pub fn topic_links(feed: &FeedSettings, query: &PullQuery, format: PageFormat) -> Option<HeaderValue> {
    let hub = feed.hub.as_ref()?;
    let mut topic = base_url(&feed.base, &query.base_query);
    if query.format().unwrap_or(PageFormat::Json) != format {
        topic = with_parameter(&topic, FORMAT, format.name());
    }
    HeaderValue::from_str(&format!("<{hub}>; rel=\"hub\", <{topic}>; rel=\"self\"")).ok()
}
