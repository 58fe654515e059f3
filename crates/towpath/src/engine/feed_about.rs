//! Description of a feed as a whole: home, language, image, author. The configuration goes before the source.

use towpath_proto::FeedId;
use towpath_proto::format::FeedAbout;
use towpath_store::{Table, TableWrite};

use crate::config::FeedConfig;
use crate::engine::roles::{Lease, conditions};
use crate::engine::{Engine, Feed};
use crate::store_error::StoreError;

fn key(feed: &FeedId) -> Vec<u8> {
    format!("about/{feed}").into_bytes()
}

/// Returns the description of a feed.
///
/// # Errors
///
/// [`StoreError`] if the description that the source gave cannot be read.
pub(crate) async fn feed_about(engine: &Engine, feed: &Feed) -> Result<FeedAbout, StoreError> {
    // Only a polled source describes itself, and a configuration may say everything already.
    let stored = if feed.is_polled() { stored(engine, feed.id()).await? } else { FeedAbout::default() };
    Ok(merged(&feed.config, stored))
}

/// Stores what a source says about itself. Returns true if that is news.
///
/// # Errors
///
/// [`StoreError`] if the description cannot be read or written, or the lease is over.
pub(crate) async fn save(
    engine: &Engine,
    lease: &Lease,
    feed: &Feed,
    about: &FeedAbout,
) -> Result<bool, StoreError> {
    // Compared first: it seldom changes, and each write is one more sync.
    if stored(engine, feed.id()).await? == *about {
        return Ok(false);
    }
    let value = serde_json::to_vec(about).map_err(|e| StoreError::Encode(e.to_string()))?;
    let write = TableWrite { table: Table::Sources, key: key(feed.id()), value: Some(value.into()) };
    engine.store.write(vec![write], conditions(lease)).await?;
    Ok(true)
}

async fn stored(engine: &Engine, feed: &FeedId) -> Result<FeedAbout, StoreError> {
    let Some(bytes) = engine.store.get(Table::Sources, &key(feed)).await? else {
        return Ok(FeedAbout::default());
    };
    serde_json::from_slice(&bytes).map_err(|e| StoreError::Damaged(format!("the description of {feed}: {e}")))
}

fn merged(config: &FeedConfig, source: FeedAbout) -> FeedAbout {
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    FeedAbout {
        home: text(&config.home).or(source.home),
        lang: config.lang.clone().or(source.lang),
        description: text(&config.description).or(source.description),
        image: text(&config.image).or(source.image),
        author: config.author.as_deref().cloned().or(source.author),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_goes_before_the_source() {
        let mut config = FeedConfig::unnamed(FeedId::new("aa").unwrap());
        config.home = Some("https://a.example/".into());
        let text = |text: &str| Some(text.to_owned());
        let source = FeedAbout { home: text("https://b.example/"), lang: text("de"), ..FeedAbout::default() };
        let both = merged(&config, source);
        assert_eq!((both.home, both.lang), (text("https://a.example/"), text("de")));
    }
}
