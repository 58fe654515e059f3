//! Publishing, editing and deleting an item.

use std::sync::Arc;

use http::StatusCode;
use maud::{Markup, html};
use towpath_proto::change::Change;
use towpath_proto::{Item, NewChange, Op};
use towpath_store::{AppendError, Expected};

use super::super::feed_head::{FeedHead, Tab};
use super::super::shown::{Shown, see_other};
use super::super::visit::Visit;
use super::form_data::FormData;
use super::form_view;
use super::item_form::ItemForm;
use crate::config::TokenRight;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::Feed;
use crate::engine::access::may_change;
use crate::engine::publish::publish_changes;
use crate::store_error::StoreError;

/// Shows the form: empty, or with an item's fields.
pub(in crate::server::console) async fn form_page(
    visit: &Visit,
    head: &FeedHead,
) -> Result<Markup, RouteError> {
    let feed = &head.feed;
    let Some(session) = visit.session.as_ref() else { return Ok(form_view::signed_out(visit)) };
    if !visit.may(TokenRight::Publish, feed.id().as_str()) {
        return Ok(html! { div class="note late" { p { "Your token may not publish to this feed." } } });
    }
    let draft = match visit.query.get("id") {
        Some(id) => match latest(visit, feed, id).await? {
            Some(change) => ItemForm::of(&change.item, change.seq),
            None => ItemForm { id: id.to_owned(), ..ItemForm::default() },
        },
        None => ItemForm::default(),
    };
    Ok(form_view::form(visit, feed, &draft, session.form_secret(), None))
}

/// Publishes what the form says, or shows a preview of it.
pub(super) async fn publish(visit: &Visit, feed: &Arc<Feed>, form: &FormData) -> Result<Shown, RouteError> {
    let sender = check(visit, feed)?;
    let draft = ItemForm::sent(form)?;
    let before = latest(visit, feed, &draft.id).await?;
    // Before the append, which checks it too, because here the reader can be told what happened.
    if draft.version != before.as_ref().map(|before| before.seq) {
        let why = match (&draft.version, &before) {
            (None, _) => {
                "There is such an item already. Its fields are not those of this form: open it to edit it."
            }
            (Some(_), None) => "The item was removed meanwhile. Empty the form to publish it as a new one.",
            (Some(_), Some(_)) => {
                "Somebody else changed the item meanwhile. Open it again, and repeat your change."
            }
        };
        return refused(visit, feed, &draft, StatusCode::CONFLICT, why).await;
    }
    let item = match draft.item(before.as_ref().map(|before| &before.item)) {
        Ok(item) => item,
        Err(e) => return refused(visit, feed, &draft, StatusCode::BAD_REQUEST, &e.detail).await,
    };
    if form.text("action") == "preview" {
        return preview(visit, feed, &draft, before.as_ref(), &item).await;
    }
    // Somebody may publish between the look above and the append.
    let expected = Expected::Version(draft.version);
    match publish_changes(&visit.engine, feed.id(), expected, vec![NewChange::put(item)]).await {
        Ok(done) => {
            tracing::info!(feed = %feed.id(), token = %sender, item = draft.id, seq = done.appended.head.seq, "published by form");
            // 303, so that reloading the page shows the item and does not publish again (RFC 9110, section 15.4.4).
            Ok(see_other(&visit.item_path(feed.id().as_str(), &draft.id)).into())
        }
        Err(StoreError::Append(AppendError::ItemConflict { .. })) => {
            let why = "Somebody else changed the item meanwhile. Open it again, and repeat your change.";
            refused(visit, feed, &draft, StatusCode::CONFLICT, why).await
        }
        Err(e) => Err(e.into()),
    }
}

/// Deletes an item, if it is still the version that the form showed.
pub(super) async fn delete(visit: &Visit, feed: &Arc<Feed>, form: &FormData) -> Result<Shown, RouteError> {
    let sender = check(visit, feed)?;
    let (id, version) = (form.text("id"), form.text("version").parse().ok());
    let Some(latest) = latest(visit, feed, id).await? else {
        return Err(RouteError::not_found("There is no such item, or it was removed already"));
    };
    let expected = Expected::Version(version.or(Some(latest.seq)));
    let done = publish_changes(&visit.engine, feed.id(), expected, vec![NewChange::delete(id)]).await?;
    tracing::info!(feed = %feed.id(), token = %sender, item = id, seq = done.appended.head.seq, "deleted by form");
    Ok(see_other(&visit.item_path(feed.id().as_str(), id)).into())
}

fn check(visit: &Visit, feed: &Feed) -> Result<String, RouteError> {
    let tokens = visit.engine.tokens.load();
    let sender = may_change(&tokens, TokenRight::Publish, feed.id().as_str(), visit.peer, &visit.request)?;
    feed.not_published_to().map_or(Ok(sender.to_string()), |why| Err(RouteError::conflict(why)))
}

/// Returns the latest version of an item that is not removed.
async fn latest(visit: &Visit, feed: &Feed, id: &str) -> Result<Option<Change>, RouteError> {
    let latest = visit.engine.store.latest(feed.log(), id).await?;
    Ok(latest.filter(|latest| latest.op != Op::Delete))
}

async fn preview(
    visit: &Visit,
    feed: &Arc<Feed>,
    draft: &ItemForm,
    before: Option<&Change>,
    item: &Item,
) -> Result<Shown, RouteError> {
    let shown = form_view::preview(visit, before.map(|before| &before.item), item);
    page(visit, feed, draft, StatusCode::OK, shown).await
}

async fn refused(
    visit: &Visit,
    feed: &Arc<Feed>,
    draft: &ItemForm,
    status: StatusCode,
    why: &str,
) -> Result<Shown, RouteError> {
    let note = html! { div class="note failing" role="alert" { p { strong { "Not published. " } (why) } } };
    page(visit, feed, draft, status, note).await
}

/// Shows the form again, with what the reader wrote.
async fn page(
    visit: &Visit,
    feed: &Arc<Feed>,
    draft: &ItemForm,
    status: StatusCode,
    above: Markup,
) -> Result<Shown, RouteError> {
    let session = visit.session.as_ref();
    let session = session.ok_or_else(|| RouteError::new(RouteErrorKind::Unauthorized, "Sign in first"))?;
    let head = FeedHead::read(visit, feed.id().as_str()).await?;
    let body = form_view::form(visit, feed, draft, session.form_secret(), Some(above));
    Ok(Shown::With(status, head.page(visit, Tab::Publish, &body)))
}
