//! The DiffDelta site of an engine, and its sources.

use towpath_proto::diffdelta::publish::{SiteUrl, SourceAbout, SourcePublisher};

use crate::engine::{Engine, Feed};

/// Returns the site of an engine: base of all links.
pub(crate) fn site(engine: &Engine) -> &SiteUrl {
    engine.extensions.get_or_insert_with(|| SiteUrl::new(&engine.base_url))
}

/// Returns a feed as a source of the site.
pub(super) fn source<'a>(engine: &'a Engine, feed: &'a Feed) -> SourcePublisher<'a> {
    let config = &feed.config;
    let about = SourceAbout {
        name: config.title(),
        description: config.description.as_deref().unwrap_or_default(),
        homepage: config.home.as_deref(),
        tags: &config.tags,
    };
    SourcePublisher { site: site(engine), id: feed.id(), ttl_sec: config.ttl.as_secs(), about }
}
