//! `/feeds/{feed}/atom`, `/rss` and `/feed.json`: Feed History and RFC 5005.

use std::sync::Arc;

use http::Request;
use towpath_proto::history::wire::Syntax;

use crate::document::prebuilt::Answer;
use crate::document::respond::respond;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::request::{known_feed, path_number};
use crate::protocols::history::documents::{self, HistoryAddress, HistoryLookup};

/// Answers with a feed's newest document, or with the one that `part` names: a page's number, or first and last change.
pub(crate) async fn document<B>(
    engine: &Arc<Engine>,
    feed: &str,
    name: &str,
    part: &[&str],
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, feed)?;
    let syntax =
        Syntax::of_name(name).ok_or_else(|| RouteError::not_found("there is nothing at this address"))?;
    let found = documents::document(engine, &feed, syntax, which(part)?).await?;
    match found {
        HistoryLookup::Document(document) => respond(document, request.headers()).await,
        // 410, not 404: a follower names the gap once and goes on, instead of trying again for ever.
        HistoryLookup::Gone => Err(RouteError::gone("this part of the feed's past was let go")),
        HistoryLookup::NotFound => Err(RouteError::not_found("there is no such document of this feed")),
        // The operator's mistake, not the reader's: the feed has outgrown `complete = true`.
        HistoryLookup::TooLarge => Err(RouteError::internal(
            "this feed is complete = true and has more items than one document can hold",
        )),
    }
}

fn which(part: &[&str]) -> Result<HistoryAddress, RouteError> {
    match part {
        [] => Ok(HistoryAddress::Newest),
        [part] => match part.split_once('-') {
            Some((first, last)) => Ok(HistoryAddress::Window(path_number(first)?, path_number(last)?)),
            None => Ok(HistoryAddress::Page(path_number(part)?)),
        },
        _ => Err(RouteError::not_found("there is nothing at this address")),
    }
}
