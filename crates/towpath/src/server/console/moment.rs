//! A past moment of a feed: what its log had said until then.

use jiff::Timestamp;
use maud::{Markup, html};
use towpath_proto::change::Seq;
use towpath_store::LogHead;

use super::clock;
use super::text::number;
use super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::engine::Feed;

/// A moment, and the last change before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Timestamp,
    pub(super) seq: Seq,
}

impl Moment {
    /// Returns the moment that a page's address names; `None` for the present.
    pub(super) async fn of(visit: &Visit, feed: &Feed) -> Result<Option<Self>, RouteError> {
        let Some(text) = visit.query.get("at") else { return Ok(None) };
        let at = clock::parse(text, "at")?;
        // A change of the very moment belongs to it, and the index finds what lies before a time.
        let end = at.checked_add(jiff::SignedDuration::from_nanos(1)).unwrap_or(at);
        let store = &visit.engine.store;
        let seq = store.last_before(feed.log(), end).await?;
        let horizon = store.head(feed.log()).await?.horizon;
        if seq < horizon {
            return Err(RouteError::gone(format!(
                "Feed {} as it was at {at} is no longer kept: its old versions up to change {horizon} were let go",
                feed.id()
            )));
        }
        Ok(Some(Self { at, seq }))
    }

    /// Returns the moment as addresses name it.
    pub(super) fn parameter(self) -> String {
        self.at.to_string()
    }
}

/// Returns the time of a change, for a slider that moves along the log.
pub(super) async fn time_of(visit: &Visit, feed: &Feed, seq: Seq) -> Result<Option<Timestamp>, RouteError> {
    Ok(visit.engine.store.change(feed.log(), seq).await?.map(|change| change.modified))
}

/// Makes the form that leads to a moment: a slider along the log, and a field for a time.
pub(super) fn picker(past: Option<Moment>, LogHead { seq: head, horizon, .. }: LogHead) -> Markup {
    let seq = past.map_or(head, |past| past.seq);
    let shown = past.map(|past| past.at.strftime("%Y-%m-%dT%H:%M:%S").to_string());
    html! {
        details class="details past" open[past.is_some()] {
            summary { "Any moment of the past" }
            div class="moment" {
                form class="slide" method="get" {
                    div class="field wide" {
                        label for="moment" { "Along the log: " span id="moment-shown" { "change " (number(seq)) " of " (number(head)) } }
                        input id="moment" type="range" name="change" min=(horizon + 1) max=(head.max(1)) value=(seq.max(1)) data-slider="moment-shown";
                    }
                    button type="submit" { "Go there" }
                }
                form class="row" method="get" {
                    div class="field" {
                        label for="at" { "At a time (UTC)" }
                        input id="at" type="datetime-local" name="at" step="1" value=[shown];
                    }
                    button type="submit" { "Show" }
                }
            }
        }
    }
}
