//! Parts of a request that routes of every protocol read: the feed, and parameters of the query.

use std::borrow::Cow;
use std::sync::Arc;

use towpath_proto::FeedId;

use crate::config::nearest;
use crate::document::route_error::RouteError;
use crate::engine::removed_feed::RemovedFeed;
use crate::engine::{Engine, Feed};

/// Returns the feed of a name.
pub(crate) fn known_feed(engine: &Engine, name: &str) -> Result<Arc<Feed>, RouteError> {
    engine.feed(name).ok_or_else(|| no_feed(engine, name))
}

/// Returns the feed of a name that has a log of its own, also one that publishing may create.
pub(crate) fn feed_with_log(engine: &Engine, name: &str) -> Result<Arc<Feed>, RouteError> {
    let id = FeedId::new(name).map_err(|e| RouteError::not_found(e.to_string()))?;
    let feed = engine.feed_to_publish(&id).ok_or_else(|| no_feed(engine, name))?;
    feed.without_log().map_or(Ok(feed), |why| Err(RouteError::conflict(why)))
}

/// Returns the feed of a name, if it accepts changes.
pub(crate) fn feed_to_change(engine: &Engine, feed: &str) -> Result<Arc<Feed>, RouteError> {
    let feed = feed_with_log(engine, feed)?;
    feed.not_published_to().map_or(Ok(feed), |why| Err(RouteError::conflict(why)))
}

/// Makes the error for a feed that does not exist.
///
/// Followers of a feed that was removed are told so, and do not ask again. A removed private feed looks absent.
pub(crate) fn no_feed(engine: &Engine, name: &str) -> RouteError {
    if let Some(removed) = engine.removed_feed(name).filter(|removed| removed.is_public) {
        return gone_feed(name, &removed);
    }
    // A name comes from the address, which may be as long as a request's head.
    let shown: String = name.chars().take(64).collect();
    // Names of private feeds are for their readers only.
    let near = nearest_feed(engine, &shown, |feed| feed.config.is_public());
    let hint = match near {
        Some(near) => format!("did you mean {near:?}?"),
        None => "add a [[feed]] with this id to the configuration".to_owned(),
    };
    RouteError::not_found(format!("there is no feed {shown:?}; {hint}"))
}

/// Most feeds among which a similar name is looked for.
// Strangers ask for names that do not exist, so the search must cost little.
const MAX_COMPARED: usize = 1000;

/// Returns the feed whose name is most like another, among those that may be named.
pub(crate) fn nearest_feed(engine: &Engine, name: &str, may_name: impl Fn(&Feed) -> bool) -> Option<String> {
    if engine.feed_count() > MAX_COMPARED {
        return None;
    }
    let feeds = engine.feeds();
    let names = feeds.iter().filter(|feed| may_name(feed)).map(|feed| feed.id().as_str());
    nearest(name, &names.collect::<Vec<_>>()).map(str::to_owned)
}

/// Makes the error for a feed that was removed.
pub(crate) fn gone_feed(name: &str, removed: &RemovedFeed) -> RouteError {
    RouteError::gone(match &removed.reason {
        Some(reason) => format!("feed {name:?} was removed from this server: {reason}"),
        None if removed.is_deleted => format!("feed {name:?} was removed from this server"),
        None => format!("feed {name:?} was removed from the configuration of this server"),
    })
}

/// Returns the parameters of a query, decoded.
pub(crate) fn parameters(query: Option<&str>) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
}

/// Checks the names of a query's parameters: those of `once` may come once, those of `repeated` many times.
///
/// # Errors
///
/// Another name, or one that comes again: a change would be made in another way than was asked for.
pub(crate) fn check_parameters(
    query: Option<&str>,
    once: &[&'static str],
    repeated: &[&'static str],
) -> Result<(), RouteError> {
    let mut given = Vec::new();
    for (name, _) in parameters(query).filter(|(name, _)| !repeated.contains(&&**name)) {
        let Some(known) = once.iter().copied().find(|known| *known == name) else {
            let shown: String = name.chars().take(40).collect();
            let all = [once, repeated].concat();
            let hint =
                nearest(&shown, &all).map_or_else(String::new, |near| format!("; did you mean {near}?"));
            return Err(RouteError::bad_request(format!("unknown parameter {shown:?}{hint}")).about(shown));
        };
        if given.contains(&known) {
            let detail = format!("the parameter {known} is given twice; give it once");
            return Err(RouteError::bad_request(detail).about(known));
        }
        given.push(known);
    }
    Ok(())
}

/// Returns true if a request reads or writes lines: `?as=line`.
///
/// # Errors
///
/// Another value: a typing error must not turn a line into the content of an item.
pub(crate) fn asks_for_line(query: Option<&str>) -> Result<bool, RouteError> {
    let mut given = parameters(query).filter(|(name, _)| name == "as").map(|(_, value)| value);
    match given.next().as_deref() {
        None => Ok(false),
        Some("line") => Ok(true),
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            Err(RouteError::bad_request(format!("as={shown:?} is unknown; line is known")).about("as"))
        }
    }
}

/// Parses a number in a path: digits without leading zeros, so that each document has one address.
pub(crate) fn path_number(text: &str) -> Result<u64, RouteError> {
    let number = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
    // `pages/07` would be a second address of page 7, with a cache entry and a link of its own.
    number.ok_or_else(|| RouteError::not_found("there is nothing at this address"))
}
