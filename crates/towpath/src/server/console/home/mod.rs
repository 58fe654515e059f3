//! Home: every feed with its health, and the server's own.

mod cluster;
mod data;
mod server_health;
mod view;

use super::layout::{Page, Section};
use super::visit::Visit;
use crate::document::route_error::RouteError;

/// Shows the list of feeds.
pub(super) async fn show(visit: &Visit) -> Result<Page, RouteError> {
    let list = data::read(visit).await?;
    let server = server_health::read(visit, list.total);
    let cluster = cluster::read(visit).await?;
    Ok(Page::new("towpath", Section::Feeds, view::body(visit, &list, &server, cluster.as_ref())))
}
