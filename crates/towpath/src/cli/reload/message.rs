//! The message about a reload: what changed, and what needs a restart.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use crate::config::{Config, FeedConfig};
use crate::engine::FeedChanges;
use crate::engine::sinks::SinkChanges;
use crate::plural::counted;

/// Names of feeds and sinks that a message shows.
const SHOWN: usize = 5;

/// Result of a reload.
#[derive(Debug, Default)]
pub(super) struct Reloaded {
    pub(super) feeds: FeedChanges,
    pub(super) sinks: SinkChanges,
    /// Keys and tables that were taken over, beside feeds and sinks.
    pub(super) taken_over: Vec<String>,
    /// Settings that need a restart, and feeds with such ones.
    pub(super) left: Vec<String>,
}

impl Reloaded {
    /// Returns the message, in one line.
    pub(super) fn message(&self) -> String {
        let FeedChanges { added, changed, removed, .. } = &self.feeds;
        let mut parts = vec![
            changed_names("feeds", [("added", added), ("changed", changed), ("removed", removed)])
                .unwrap_or_else(|| "no feed changed".to_owned()),
        ];
        let SinkChanges { added, changed, removed } = &self.sinks;
        parts.extend(changed_names("sinks", [("added", added), ("changed", changed), ("removed", removed)]));
        if !self.taken_over.is_empty() {
            parts.push(format!("changed: {}", self.taken_over.join(", ")));
        }
        if self.left.is_empty() {
            parts.insert(0, "the configuration is in effect".to_owned());
        } else {
            parts.push(format!("needs a restart: {}", self.left.join(", ")));
        }
        parts.join("; ")
    }
}

/// Returns the changes of things with names, or `None` if there are none.
fn changed_names<T: Display>(what: &str, changes: [(&str, &Vec<T>); 3]) -> Option<String> {
    let part = |(name, things): (&str, &Vec<T>)| {
        let shown: Vec<_> = things.iter().take(SHOWN).map(ToString::to_string).collect();
        let more = if things.len() > SHOWN { ", …" } else { "" };
        format!("{} {name} ({}{more})", things.len(), shown.join(", "))
    };
    let parts: Vec<_> = changes.into_iter().filter(|(_, things)| !things.is_empty()).map(part).collect();
    (!parts.is_empty()).then(|| format!("{what}: {}", parts.join(", ")))
}

/// Returns what changed of the tokens.
pub(super) fn changed_tokens(old: &Config, new: &Config) -> Vec<String> {
    let named = (old.tokens != new.tokens).then(|| "[[token]]".to_owned());
    let has_any = old.feeds.iter().chain(&new.feeds).any(|feed| !feed.readers.is_empty());
    let count = if has_any { count_other_readers(&old.feeds, &new.feeds) } else { 0 };
    let readers = (count > 0).then(|| format!("readers of {}", counted(count, "feed")));
    named.into_iter().chain(readers).collect()
}

/// Returns the number of feeds that have other readers than before.
fn count_other_readers(old: &[Arc<FeedConfig>], new: &[Arc<FeedConfig>]) -> usize {
    // By their ids: a search for each of a hundred thousand feeds would take seconds.
    let known: HashMap<_, _> = old.iter().map(|feed| (feed.id(), &feed.readers)).collect();
    let has_others =
        |feed: &&Arc<FeedConfig>| known.get(feed.id()).is_some_and(|known| **known != feed.readers);
    new.iter().filter(has_others).count()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use towpath_proto::FeedId;

    use super::*;

    #[test]
    fn it_names_what_changed() {
        let id = |text: &str| FeedId::new(text).unwrap();
        assert_eq!(Reloaded::default().message(), "the configuration is in effect; no feed changed");
        let added: Vec<FeedId> = (10..17).map(|number| id(&format!("n{number}"))).collect();
        let reloaded = Reloaded {
            feeds: FeedChanges { added, removed: vec![id("old")], ..FeedChanges::default() },
            sinks: SinkChanges { changed: vec!["db".into()], ..SinkChanges::default() },
            taken_over: vec!["server.rate_limit.burst".into()],
            left: vec!["server.listen".into()],
        };
        assert_eq!(
            reloaded.message(),
            "feeds: 7 added (n10, n11, n12, n13, n14, …), 1 removed (old); sinks: 1 changed (db); changed: \
             server.rate_limit.burst; needs a restart: server.listen"
        );
    }

    #[test]
    fn changed_tokens_are_counted() {
        let config = |text: &str| Config::parse(text, Path::new("towpath.toml")).unwrap();
        let old = config("[[feed]]\nid = 'aa'\nreaders = ['x']\n[[feed]]\nid = 'bb'\n");
        assert!(changed_tokens(&old, &old).is_empty());
        let new = config(
            "[[feed]]\nid = 'aa'\nreaders = ['y']\n[[feed]]\nid = 'bb'\n\
             [[token]]\nname = 'ci'\ntoken = 't'\nrights = ['read']\n",
        );
        assert_eq!(changed_tokens(&old, &new), ["[[token]]", "readers of 1 feed"]);
    }
}
