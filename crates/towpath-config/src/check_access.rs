//! Validation of readers and filters, within a feed and across feeds.

use std::collections::HashMap;
use std::sync::Arc;

use towpath_proto::smart::filter::Filter;

use super::access::FilterConfig;
use super::feed::{FeedConfig, FeedVisibility};
use super::problems::Problems;
use super::token::TokenDigest;

/// Gives each filter the readers of the feed that it filters, unless its own configuration says who may read it.
///
/// A filter on a private feed would otherwise show that feed's items to everybody.
pub(super) fn inherit_readers(feeds: &mut [Arc<FeedConfig>]) {
    let private = feeds.iter().filter(|feed| feed.filter.is_none() && !feed.is_public());
    let private: HashMap<_, _> = private.map(|feed| (feed.id().clone(), feed.readers.clone())).collect();
    for feed in feeds.iter_mut().map(Arc::make_mut) {
        let says_nothing = feed.readers.is_empty() && feed.visibility.is_none();
        let Some(filter) = feed.filter.as_deref().filter(|_| says_nothing) else { continue };
        if let Some(readers) = private.get(&filter.of) {
            feed.readers.clone_from(readers);
            feed.visibility = Some(FeedVisibility::Private);
        }
    }
}

/// Validates the readers of one feed.
pub(super) fn check_readers(feed: &FeedConfig, problems: &mut Problems) {
    if feed.visibility == Some(FeedVisibility::Public) && !feed.readers.is_empty() {
        let message = "visibility is public, so readers would have no effect; leave one of them out";
        problems.add("visibility", message);
    }
    for (index, reader) in feed.readers.iter().enumerate() {
        if reader.token.is_blank() {
            problems.add("readers", "readers: an empty token would let everybody read");
        }
        let checked = TokenDigest::check_configured(&reader.token);
        problems.check("readers", checked.map_err(|e| format!("readers: number {}: {e}", index + 1)));
        // Two entries with one token would leave open which filter applies.
        if feed.readers[..index].iter().any(|earlier| earlier.token == reader.token) {
            problems.add("readers", format!("readers: number {} has the token of an earlier one", index + 1));
        }
        // The feed's filter and the reader's would have to be combined; nothing defines how.
        if reader.filter.is_some() && feed.filter.is_some() {
            problems.add("readers", "readers: a feed with a filter has no readers with filters of their own");
        }
        reader.filter.iter().for_each(|filter| problems.check("readers", check_risk(filter)));
    }
    if let Some(filter) = &feed.filter {
        problems.check("filter", check_risk(&filter.filter));
    }
}

fn check_risk(filter: &Filter) -> Result<(), String> {
    let bounds = [filter.min_risk, filter.max_risk];
    let fits = bounds.into_iter().flatten().all(|risk| (0.0..=1.0).contains(&risk));
    if fits { Ok(()) } else { Err("filter: min_risk and max_risk are between 0 and 1".into()) }
}

/// Validates filters across feeds.
pub(super) fn check_filters(feeds: &[Arc<FeedConfig>], problems: &mut Problems) {
    let by_id: HashMap<_, _> = feeds.iter().map(|feed| (feed.id(), feed)).collect();
    for (index, feed) in feeds.iter().enumerate() {
        // Checked after all feeds are read: a filter may name a feed further down.
        let Some(FilterConfig { of, .. }) = feed.filter.as_deref() else { continue };
        problems.enter("feed", Some(index), format!("feed {:?}: ", feed.id().as_str()));
        match by_id.get(of) {
            None => problems.add("filter.of", format!("filter.of is {of}, and there is no such [[feed]]")),
            Some(other) if other.filter.is_some() => problems.add(
                "filter.of",
                format!("filter.of is {of}, which is a filter itself; name the feed that it filters"),
            ),
            Some(_) => {}
        }
        problems.ensure(feed.source.is_none(), "source", "a feed has a source or a filter, not both");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("towpath.toml")).map_err(|e| e.to_string())
    }

    #[test]
    fn a_filter_has_the_readers_of_its_feed() {
        let own = "[[feed]]\nid = 'own'\nreaders = ['a', { token = 'b', filter = { tags = ['x'] } }]\n";
        let filter = |text: &str| {
            let text =
                format!("{own}[[feed]]\nid = 'view'\nfilter = {{ of = 'own', tags = ['y'] }}\n{text}\n");
            let feed = parse(&text).unwrap().feeds.remove(1);
            (feed.is_public(), feed.readers.len())
        };
        assert_eq!(filter(""), (false, 2));
        assert_eq!(filter("visibility = 'public'"), (true, 0));
        assert_eq!(filter("visibility = 'private'"), (false, 0));
        assert_eq!(filter("readers = ['c']"), (false, 1));
        let hidden =
            "[[feed]]\nid = 'own'\nvisibility = 'private'\n[[feed]]\nid = 'view'\nfilter = { of = 'own' }";
        assert!(!parse(hidden).unwrap().feeds[1].is_public());
        let open = "[[feed]]\nid = 'own'\n[[feed]]\nid = 'view'\nfilter = { of = 'own' }";
        assert!(parse(open).unwrap().feeds[1].is_public());
    }

    #[test]
    fn invalid_values_are_named() {
        let all = "[[feed]]\nid = \"all\"\n";
        for (text, needle) in [
            ("filter = { tags = ['a'] }", "filter.of"),
            ("filter = { of = 'all', tag = 'a' }", "tag"),
            ("filter = { of = 'none' }", "no such"),
            ("filter = { of = 'xx' }", "filter itself"),
            ("filter = { of = 'all', min_risk = 2.0 }", "min_risk"),
            ("filter = { of = 'all' }\nreaders = [{ token = 'a', filter = {} }]", "of their own"),
            ("filter = { of = 'all' }\n[feed.source]\nurl = 'x'", "not both"),
            ("readers = ['']", "empty token"),
            ("readers = ['a', 'a']", "number 2"),
            ("readers = [5]", "a reader is"),
            ("cursor = 'version'", "version"),
            ("readers = ['a']\nvisibility = 'public'", "no effect"),
            ("visibility = 'none'", "private"),
        ] {
            let error = parse(&format!("{all}[[feed]]\nid = \"xx\"\n{text}\n")).unwrap_err();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
