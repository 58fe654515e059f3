//! Hubs of others that a feed's documents name.

use crate::engine::{Engine, Feed};

impl Engine {
    /// Returns the hubs of others that the Atom, RSS and JSON Feed documents of a feed name.
    ///
    /// A hub reads without a token, and filters have no documents. So only listed feeds have hubs.
    pub(crate) fn hubs_of<'a>(&'a self, feed: &'a Feed) -> &'a [String] {
        if self.is_tree { self.tree_hubs_of(feed) } else { self.server_hubs_of(feed) }
    }

    /// Returns the hubs of a feed in the static tree of the configuration.
    pub(crate) fn tree_hubs_of<'a>(&'a self, feed: &'a Feed) -> &'a [String] {
        let of_tree = self.config.export.as_ref().and_then(|export| export.hubs.as_deref());
        match of_tree {
            Some(hubs) if feed.is_listed() => hubs,
            _ => self.server_hubs_of(feed),
        }
    }

    fn server_hubs_of<'a>(&'a self, feed: &'a Feed) -> &'a [String] {
        match feed.is_listed() {
            true => feed.config.hubs.as_deref().unwrap_or(&self.config.server.hubs),
            false => &[],
        }
    }
}
