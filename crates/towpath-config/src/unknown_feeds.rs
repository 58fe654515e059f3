//! Feeds that sinks and tokens name, and that nothing has.

use super::hints::nearest;
use super::{Config, EVENTS_FEED, FeedPattern};

impl Config {
    /// Returns a warning for each feed that a sink or a token names by its id, and that `exists` does not know. Where
    /// publishing creates feeds there is none: the feed comes with its first item.
    pub fn warnings_of_unknown_feeds(&self, exists: impl Fn(&str) -> bool) -> Vec<String> {
        if self.server.create_feeds {
            return Vec::new();
        }
        let of_sinks = self.sinks.iter().map(|sink| (format!("sink {:?}", sink.name), &sink.feeds));
        let of_tokens = self.tokens.iter().map(|token| (format!("token {:?}", token.name), &token.feeds));
        let known: Vec<&str> = self.feeds.iter().map(|feed| feed.id().as_str()).collect();
        let mut warnings = Vec::new();
        for (owner, feeds) in of_sinks.chain(of_tokens) {
            let ids = feeds.iter().filter_map(FeedPattern::as_id);
            for id in ids.filter(|id| *id != EVENTS_FEED && !exists(id)) {
                let near =
                    nearest(id, &known).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                warnings.push(format!("{owner} names feed {id:?}, and there is none{near}"));
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_misspelt_feed_is_told() {
        let warnings = |text: &str| {
            let config = Config::parse(text, Path::new("towpath.toml")).unwrap();
            config.warnings_of_unknown_feeds(|id| config.feeds.iter().any(|feed| feed.id().as_str() == id))
        };
        let text = format!(
            "[[feed]]\nid = 'orders'\n[[sink]]\nname = 'copy'\ninto = 'dir:copy'\nfeeds = ['ordrs', 'orders', 'new-*', '{EVENTS_FEED}']\n\
                    [[token]]\nname = 'ci'\ntoken = 'x'\nrights = ['read']\nfeeds = ['notes']\n"
        );
        assert_eq!(
            warnings(&text),
            [
                "sink \"copy\" names feed \"ordrs\", and there is none; did you mean \"orders\"?",
                "token \"ci\" names feed \"notes\", and there is none",
            ]
        );
        assert!(warnings(&format!("[server]\ncreate_feeds = true\n{text}")).is_empty());
    }
}
