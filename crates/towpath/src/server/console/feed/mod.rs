//! Pages of a feed: one for each tab.

mod backwards;
mod change_line;
mod changes;
mod follow;
mod history;
mod items;
mod items_view;
mod live;
pub(super) mod scan;
mod source;
mod subscribers;

use maud::html;

use super::feed_head::{FeedHead, Tab};
use super::layout::{Page, Section};
use super::shown::{Shown, see_other};
use super::visit::Visit;
use super::write::publish::form_page;
use crate::document::route_error::RouteError;

/// Shows a tab of a feed's page.
pub(super) async fn show(visit: &Visit, id: &str, segment: &str) -> Result<Shown, RouteError> {
    let tab = Tab::of(segment).ok_or_else(|| RouteError::not_found("there is nothing at this address"))?;
    let head = FeedHead::read(visit, id).await?;
    if !tab.is_of(&head.feed) {
        return Err(RouteError::not_found(format!("feed {} has no page {segment}", head.feed.id())));
    }
    let body = match tab {
        Tab::Items => match items::redirect(visit, &head).await? {
            Some(path) => return Ok(see_other(&path).into()),
            None => items::body(visit, &head).await?,
        },
        Tab::Changes => changes::body(visit, &head).await?,
        Tab::History => history::body(visit, &head).await?,
        Tab::Source => source::body(visit, &head).await?,
        Tab::Follow => follow::body(visit, &head).await?,
        Tab::Subscribers => subscribers::body(visit, &head).await?,
        Tab::Live => live::body(visit, Some(&head.feed)),
        Tab::Publish => form_page(visit, &head).await?,
    };
    Ok(head.page(visit, tab, &body).into())
}

/// Shows the changes of all feeds as they come.
pub(super) fn show_live(visit: &Visit) -> Page {
    let body = html! { div class="title" { h1 { "Live" } } (live::body(visit, None)) };
    Page::new("Live", Section::Live, body)
}
