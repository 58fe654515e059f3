//! Requests about a source: poll now, pause, resume.

use std::sync::Arc;

use super::super::shown::{Shown, see_other};
use super::super::visit::Visit;
use crate::config::TokenRight;
use crate::document::route_error::RouteError;
use crate::engine::Feed;
use crate::engine::access::may_change;
use crate::engine::source_control::SourceControl;

pub(super) async fn request(visit: &Visit, feed: &Arc<Feed>, action: &str) -> Result<Shown, RouteError> {
    let engine = &visit.engine;
    let tokens = engine.tokens.load();
    let sender = may_change(&tokens, TokenRight::Publish, feed.id().as_str(), visit.peer, &visit.request)?;
    if !feed.config.source.as_ref().is_some_and(|source| source.enabled) {
        return Err(RouteError::conflict(format!("Feed {} has no source that runs", feed.id())));
    }
    let edit = |control: &mut SourceControl| match action {
        "poll" => control.poll = Some(visit.now),
        "pause" => control.paused = Some(visit.now),
        _ => control.paused = None,
    };
    SourceControl::change(engine, feed, edit).await?;
    tracing::info!(feed = %feed.id(), token = %sender, action, "a source was controlled");
    Ok(see_other(&format!("{}/source?done={action}", visit.feed_path(feed))).into())
}
