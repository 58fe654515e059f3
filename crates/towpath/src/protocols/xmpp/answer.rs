//! Answers to the component's questions, from the log and the store.

use std::sync::Arc;
use std::time::Duration;

use towpath_proto::FeedId;
use towpath_proto::push::xmpp::component::{StoreRequest, StoreRequestError, StoreResponse};
use towpath_proto::smart::pull::PullPage;
use towpath_proto::smart::query::PullQuery;

use crate::engine::request::gone_feed;
use crate::engine::roles::Lease;
use crate::engine::{Engine, Feed};
use crate::protocols::smart::{Access, PullRequest, PullRequestError, settings};
use crate::protocols::xmpp::stored;
use crate::store_error::StoreError;

/// An answer on its way to the component. It owns what the component borrows.
pub(crate) enum PendingAnswer {
    Page(Result<(Arc<Feed>, PullPage), StoreRequestError>),
    Feeds(Vec<(FeedId, String)>, u64),
    Written(Result<(), StoreRequestError>),
}

impl PendingAnswer {
    /// Passes it to the component.
    pub(crate) fn pass_to(self, engine: &Engine, take: impl FnOnce(StoreResponse<'_>)) {
        match self {
            Self::Page(Ok((feed, page))) => take(StoreResponse::Page(Ok((settings(engine, &feed), page)))),
            Self::Page(Err(reason)) => take(StoreResponse::Page(Err(reason))),
            Self::Feeds(feeds, total) => take(StoreResponse::Feeds(feeds, total)),
            Self::Written(written) => take(StoreResponse::Written(written)),
        }
    }
}

pub(crate) async fn respond(engine: &Arc<Engine>, lease: &Lease, question: StoreRequest) -> PendingAnswer {
    match question {
        StoreRequest::Page(feed, query) => PendingAnswer::Page(page(engine, &feed, query).await),
        StoreRequest::Items(feed, query, ids) => PendingAnswer::Page(items(engine, &feed, query, &ids).await),
        StoreRequest::Feeds(after, max) => feeds(engine, after.as_ref(), max),
        StoreRequest::Keep(subscription, first) => {
            let kept = stored::save(engine.store.as_ref(), lease, &subscription, first).await;
            PendingAnswer::Written(kept.map_err(|e| store(&e)))
        }
        StoreRequest::Forget(subscription) => {
            let forgotten = stored::delete(engine.store.as_ref(), lease, &subscription).await;
            PendingAnswer::Written(forgotten.map_err(|e| store(&e)))
        }
    }
}

async fn page(
    engine: &Arc<Engine>,
    id: &FeedId,
    query: PullQuery,
) -> Result<(Arc<Feed>, PullPage), StoreRequestError> {
    let feed = public_feed(engine, id)?;
    // XMPP has its own maximum; the feed's page limit counts as well.
    let max = query.max.min(settings(engine, &feed).limits.max_items);
    let page = request(engine, &feed, PullQuery { max, ..query }).run_without_waiting().await;
    page.map(|page| (feed, page)).map_err(refused)
}

async fn items(
    engine: &Arc<Engine>,
    id: &FeedId,
    query: PullQuery,
    ids: &[String],
) -> Result<(Arc<Feed>, PullPage), StoreRequestError> {
    let feed = public_feed(engine, id)?;
    let page = request(engine, &feed, query).read_items(ids).await;
    page.map(|page| (feed, page)).map_err(refused)
}

/// Returns a feed that XMPP serves, or why it does not.
pub(super) fn public_feed(engine: &Engine, id: &FeedId) -> Result<Arc<Feed>, StoreRequestError> {
    let feed = engine.feed(id.as_str()).ok_or_else(|| missing(engine, id))?;
    // Tokens to read exist over HTTP only, so XMPP serves public feeds.
    if feed.config.is_public() { Ok(feed) } else { Err(StoreRequestError::Forbidden) }
}

/// Returns the error for a feed that is not there, with the reason if it was removed.
fn missing(engine: &Engine, id: &FeedId) -> StoreRequestError {
    match engine.removed_feed(id.as_str()).filter(|removed| removed.is_public) {
        Some(removed) => StoreRequestError::Removed(gone_feed(id.as_str(), &removed).detail),
        None => StoreRequestError::NoFeed,
    }
}

fn request(engine: &Arc<Engine>, feed: &Arc<Feed>, query: PullQuery) -> PullRequest {
    let (engine, feed) = (engine.clone(), feed.clone());
    let query = PullQuery { timeout: Duration::ZERO, ..query };
    PullRequest { engine, feed, access: Access::Whole, reader: None, expires: None, query }
}

fn refused(error: PullRequestError) -> StoreRequestError {
    match error {
        PullRequestError::Pull(error) => StoreRequestError::Pull(error),
        PullRequestError::Store(error) => store(&error),
    }
}

fn store(error: &StoreError) -> StoreRequestError {
    tracing::warn!(%error, "cannot answer over XMPP");
    StoreRequestError::Store(error.to_string())
}

fn feeds(engine: &Engine, after: Option<&FeedId>, max: usize) -> PendingAnswer {
    let public: Vec<_> = engine.feeds().into_iter().filter(|feed| feed.config.is_public()).collect();
    let total = public.len() as u64;
    // Continues after a name, not an index: a feed that comes or goes shifts nothing (XEP-0059).
    let later = public.iter().filter(|feed| after.is_none_or(|after| feed.id() > after));
    let named = later.take(max).map(|feed| (feed.id().clone(), feed.config.title().to_owned()));
    PendingAnswer::Feeds(named.collect(), total)
}
