//! The DiffDelta site of an engine, and its sources.

use towpath_proto::diffdelta::publish::{SiteUrl, SourcePublisher};

use crate::engine::{Engine, Feed};

/// Returns the site of an engine: base of all links.
pub(crate) fn site(engine: &Engine) -> &SiteUrl {
    engine.extensions.get_or_insert_with(|| SiteUrl::new(&engine.base_url))
}

/// Returns a feed as a source of the site.
pub(super) fn source<'a>(engine: &'a Engine, feed: &'a Feed) -> SourcePublisher<'a> {
    SourcePublisher { site: site(engine), id: feed.id(), ttl_sec: feed.config.ttl.as_secs() }
}
