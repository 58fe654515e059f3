//! Smart Feeds: ordered collections with cursors.
