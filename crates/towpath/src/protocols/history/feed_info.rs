//! A feed as its documents describe it, and the deliveries of its hub.

use towpath_proto::change::Change;
use towpath_proto::format::{FeedAbout, FeedLink, link};
use towpath_proto::history::publish::{FeedInfo, HistoryDocument};
use towpath_proto::history::wire::Syntax;

use crate::engine::feed_about::feed_about;
use crate::engine::{Engine, Feed};
use crate::protocols::addresses::{feed_links, hub_url};
use crate::store_error::StoreError;

/// Builds the part of the newest document that a hub delivers to its subscribers (WebSub, section 7).
///
/// # Errors
///
/// [`StoreError`] if the feed's description cannot be read.
pub(crate) async fn part(
    engine: &Engine,
    feed: &Feed,
    syntax: Syntax,
    changes: &[Change],
) -> Result<String, StoreError> {
    let about = feed_about(engine, feed).await?;
    Ok(feed_info(engine, feed, about).document(syntax, &HistoryDocument::Push, changes))
}

/// Makes the `Link` header of a delivery: the hub and the topic.
pub(crate) fn topic_links(engine: &Engine, feed: &Feed, syntax: Syntax) -> String {
    let is_topic = |link: &&FeedLink| matches!(link.rel.as_str(), "hub" | "self");
    let links = feed_info(engine, feed, FeedAbout::default()).document_links(syntax, &HistoryDocument::Push);
    let links: Vec<String> = links.iter().filter(is_topic).map(|l| link::write(&l.href, &l.rel)).collect();
    links.join(", ")
}

/// Returns the description of a feed in its documents.
pub(super) fn feed_info(engine: &Engine, feed: &Feed, about: FeedAbout) -> FeedInfo {
    let url = format!("{}/feeds/{}", engine.base_url, feed.id());
    // A static tree has no server, so nobody could subscribe there.
    let own = (!engine.is_tree).then(|| hub_url(engine, feed.id()));
    let hubs = own.into_iter().chain(engine.hubs_of(feed).iter().cloned()).collect();
    FeedInfo {
        // A feed without a home of its own has its page for browsers here.
        home: Some(about.home.unwrap_or_else(|| url.clone())),
        url,
        name: feed.id().to_string(),
        title: feed.config.title().to_owned(),
        lang: about.lang,
        description: about.description,
        image: about.image,
        author: about.author,
        links: feed_links(engine, feed),
        hubs,
    }
}
