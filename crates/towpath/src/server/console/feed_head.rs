//! Head of a feed's pages: name, facts, health, tabs.

use std::sync::Arc;

use maud::{Markup, html};
use towpath_proto::history::wire::Syntax;
use towpath_store::LogHead;

use super::clock::{ago, moment};
use super::health::{self, Health};
use super::layout::{Page, Section};
use super::moment::Moment;
use super::text::{clip, count, foreign};
use super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::engine::Feed;
use crate::protocols::history::documents::{self, HistoryAddress};

/// A tab of a feed's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Items,
    Changes,
    History,
    Source,
    Follow,
    Subscribers,
    Live,
    Publish,
}

impl Tab {
    const ALL: [(Self, &str, &str); 8] = [
        (Self::Items, "", "Items"),
        (Self::Changes, "changes", "Changes"),
        (Self::History, "history", "History"),
        (Self::Source, "source", "Source"),
        (Self::Follow, "follow", "Follow"),
        (Self::Subscribers, "subscribers", "Subscribers"),
        (Self::Live, "live", "Live"),
        (Self::Publish, "publish", "Publish"),
    ];

    pub(super) fn of(segment: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, name, _)| *name == segment).map(|(tab, ..)| tab)
    }

    fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(tab, ..)| *tab == self).map_or("", |(.., name)| name)
    }

    /// Returns true if a feed has the tab. A filter shows items of another feed, whose log and source are not its own.
    pub(super) fn is_of(self, feed: &Feed) -> bool {
        match self {
            Self::Items | Self::Follow | Self::Live => true,
            Self::Source => feed.config.source.is_some(),
            Self::Publish => feed.not_published_to().is_none(),
            Self::Changes | Self::History | Self::Subscribers => !feed.is_filter(),
        }
    }
}

/// A feed as its page's head shows it.
pub(super) struct FeedHead {
    pub(super) feed: Arc<Feed>,
    pub(super) head: LogHead,
    pub(super) health: Health,
    /// Past moment that the page shows.
    pub(super) past: Option<Moment>,
}

impl FeedHead {
    pub(super) async fn read(visit: &Visit, id: &str) -> Result<Self, RouteError> {
        let feed = visit.feed(id)?;
        let head = visit.engine.store.head(feed.log()).await?;
        let health = health::of_feed(visit, &feed).await?;
        let past = match feed.is_filter() {
            // The past of another feed's log is not the filter's to show.
            true => None,
            false => Moment::of(visit, &feed).await?,
        };
        Ok(Self { feed, head, health, past })
    }

    /// Makes the page of a tab.
    pub(super) fn page(&self, visit: &Visit, tab: Tab, body: &Markup) -> Page {
        let title = clip(self.feed.config.title(), 120).into_owned();
        let title = if tab == Tab::Items { title } else { format!("{} · {title}", tab.name()) };
        let body = html! { (self.header(visit)) (self.tabs(visit, tab)) (body) };
        Page::new(title, Section::Feeds, body).with_head(alternates(visit, &self.feed))
    }

    /// Makes the head of the page: name, facts, health.
    pub(super) fn header(&self, visit: &Visit) -> Markup {
        let Self { feed, head, health, .. } = self;
        html! {
            p class="crumbs" { a href={ (visit.root) "/" } { "Feeds" } " / " span class="mono" { (feed.id()) } }
            div class="title" { h1 { (foreign(&clip(feed.config.title(), 200))) } (health.state.badge()) }
            ul class="facts" id="facts" data-live="" {
                // The counts and the time are those of the whole feed, which may be private.
                @if !feed.is_filter() {
                    li { (count(head.live, "item")) }
                    li { (count(head.seq, "change")) }
                    @if head.seq > 0 { li { "last change " (ago(head.modified, visit.now)) } }
                }
                @if let Some(next) = health.next { li { "next poll " (ago(next, visit.now)) } }
                @if !feed.config.is_public() { li { "private" } }
                @if feed.is_filter() { li { "filter of " a href={ (visit.root) "/feeds/" (feed.log()) } { (feed.log()) } } }
            }
            @if !health.reason.is_empty() {
                div class={ "note " (health.state.class().trim_start_matches("state ")) } { p { (foreign(&clip(&health.reason, 600))) } }
            }
        }
    }

    fn tabs(&self, visit: &Visit, current: Tab) -> Markup {
        let path = visit.feed_path(&self.feed);
        html! {
            nav class="tabs" aria-label="Feed" { ul {
                @for (tab, segment, name) in Tab::ALL {
                    @if tab.is_of(&self.feed) {
                        @let href = if segment.is_empty() { path.clone() } else { format!("{path}/{segment}") };
                        li { a href=(href) aria-current=[(tab == current).then_some("page")] { (name) } }
                    }
                }
            } }
        }
    }
}

/// Makes the links by which browsers and feed readers find a feed's documents.
pub(super) fn alternates(visit: &Visit, feed: &Feed) -> Markup {
    let engine = &visit.engine;
    let address =
        |syntax| format!("{}{}", engine.base_url, documents::path(feed, syntax, HistoryAddress::Newest));
    html! {
        @if !feed.is_filter() {
            @for syntax in Syntax::ALL {
                link rel="alternate" type=(syntax.media_type()) title=(feed.config.title()) href=(address(syntax));
            }
        }
    }
}

/// Makes the note that a page shows the past.
pub(super) fn past_note(past: &Moment, present: &str) -> Markup {
    html! {
        div class="note past" {
            p { strong { "As it was at " (moment(past.at)) "." } " After change " (past.seq) ". " a href=(present) { "Back to the present" } }
        }
    }
}
