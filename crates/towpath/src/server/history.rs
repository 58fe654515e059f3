//! `/feeds/{feed}/atom`, `/rss` and `/feed.json`: Feed History and RFC 5005.

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use towpath_proto::history::wire::Syntax;

use super::document::Answer;
use super::items::no_feed;
use super::problem::Problem;
use super::replication::numbered;
use super::route::serve;
use crate::engine::Engine;
use crate::engine::history::{self, Found, Which};

/// A feed's newest document, or the one that `part` names: a page's number, or the first and the last change.
pub(super) async fn document(
    engine: &Arc<Engine>,
    feed: &str,
    name: &str,
    part: &[&str],
    request: &Request<Incoming>,
) -> Result<Answer, Problem> {
    let feed = engine.feed(feed).ok_or_else(|| no_feed(feed))?;
    let syntax =
        Syntax::of_name(name).ok_or_else(|| Problem::not_found("there is nothing at this address"))?;
    let found = history::document(engine, &feed, syntax, which(part)?).await?;
    match found {
        Found::Document(document) => Ok(serve(document, request).await),
        Found::Gone => Err(Problem::gone("this part of the feed's past was let go")),
        Found::Nothing => Err(Problem::not_found("there is no such document of this feed")),
        Found::TooLarge => Err(Problem::internal(
            "this feed is complete = true and has more items than one document can hold",
        )),
    }
}

fn which(part: &[&str]) -> Result<Which, Problem> {
    match part {
        [] => Ok(Which::Newest),
        [part] => match part.split_once('-') {
            Some((first, last)) => Ok(Which::Window(numbered(first)?, numbered(last)?)),
            None => Ok(Which::Page(numbered(part)?)),
        },
        _ => Err(Problem::not_found("there is nothing at this address")),
    }
}
