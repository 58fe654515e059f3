//! What the component asks of the store.

use std::sync::Arc;
use std::time::Duration;

use towpath_proto::FeedId;
use towpath_proto::push::xmpp::component::{Answer, Question, Unanswered};
use towpath_proto::smart::pull::Page;
use towpath_proto::smart::query::PullQuery;
use towpath_store::StoreError;

use super::kept;
use crate::engine::roles::Lease;
use crate::engine::smart::{Access, AskError, Asked};
use crate::engine::{Engine, Feed};

/// An answer on its way to the component.
pub(super) enum Answered {
    Page(Result<(Arc<Feed>, Page), Unanswered>),
    Feeds(Vec<(FeedId, String)>, u64),
    Written(Result<(), Unanswered>),
}

impl Answered {
    /// Hands it over as the component takes it.
    pub(super) fn give(self, engine: &Engine, take: impl FnOnce(Answer<'_>)) {
        match self {
            Self::Page(Ok((feed, page))) => take(Answer::Page(Ok((feed.settings(engine), page)))),
            Self::Page(Err(reason)) => take(Answer::Page(Err(reason))),
            Self::Feeds(feeds, total) => take(Answer::Feeds(feeds, total)),
            Self::Written(written) => take(Answer::Written(written)),
        }
    }
}

pub(super) async fn answer(engine: &Arc<Engine>, lease: &Lease, question: Question) -> Answered {
    match question {
        Question::Page(feed, query) => Answered::Page(page(engine, &feed, query).await),
        Question::Feeds(after, max) => feeds(engine, after.as_ref(), max),
        Question::Keep(subscription, first) => {
            let kept = kept::keep(engine.store.as_ref(), lease, &subscription, first).await;
            Answered::Written(kept.map_err(|e| store(&e)))
        }
        Question::Forget(subscription) => {
            let forgotten = kept::forget(engine.store.as_ref(), lease, &subscription).await;
            Answered::Written(forgotten.map_err(|e| store(&e)))
        }
    }
}

async fn page(engine: &Arc<Engine>, id: &FeedId, query: PullQuery) -> Result<(Arc<Feed>, Page), Unanswered> {
    let feed = engine.feed(id.as_str()).ok_or(Unanswered::NoFeed)?;
    // Tokens to read are HTTP's: over XMPP there is what is open to everybody.
    if !feed.config.is_public() {
        return Err(Unanswered::Forbidden);
    }
    let max = query.max.min(feed.settings(engine).limits.max_items);
    let query = PullQuery { max, timeout: Duration::ZERO, ..query };
    let asked = Asked { engine: engine.clone(), feed: feed.clone(), access: Access::Whole, query };
    match asked.at_once().await {
        Ok(page) => Ok((feed, page)),
        Err(AskError::Pull(error)) => Err(Unanswered::Pull(error)),
        Err(AskError::Store(error)) => Err(store(&error)),
    }
}

fn store(error: &StoreError) -> Unanswered {
    tracing::warn!("cannot answer over XMPP: {error}");
    Unanswered::Store(error.to_string())
}

fn feeds(engine: &Engine, after: Option<&FeedId>, max: usize) -> Answered {
    let public: Vec<_> = engine.feeds().into_iter().filter(|feed| feed.config.is_public()).collect();
    let total = public.len() as u64;
    let later = public.iter().filter(|feed| after.is_none_or(|after| feed.id() > after));
    let named = later.take(max).map(|feed| (feed.id().clone(), feed.config.title().to_owned()));
    Answered::Feeds(named.collect(), total)
}
