//! Health of a feed in one word and one sentence.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};

use super::clock::{distance, time_since};
use super::visit::Visit;
use crate::document::route_error::RouteError;
use crate::engine::Feed;
use crate::engine::source_control::SourceControl;
use crate::source::detail_visibility::DetailVisibility;
use crate::source::state::SourceState;
use crate::source::status::source_state;

/// Time by which a poll may be late before the page says so.
const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// State of a feed, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FeedState {
    Failing,
    Ended,
    Late,
    Paused,
    Waiting,
    Ok,
    /// Without a source.
    Published,
}

impl FeedState {
    pub(super) const ALL: [Self; 7] =
        [Self::Failing, Self::Ended, Self::Late, Self::Paused, Self::Waiting, Self::Ok, Self::Published];

    /// Name in addresses and on the page.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Failing => "failing",
            Self::Ended => "ended",
            Self::Late => "late",
            Self::Paused => "paused",
            Self::Waiting => "waiting",
            Self::Ok => "ok",
            Self::Published => "published",
        }
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Failing | Self::Ended => "state failing",
            Self::Late => "state late",
            Self::Ok => "state ok",
            Self::Paused | Self::Waiting | Self::Published => "state idle",
        }
    }

    pub(super) fn badge(self) -> Markup {
        html! { span class=(self.class()) { (self.name()) } }
    }
}

/// Health of a feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) state: FeedState,
    /// Reason in one sentence; empty if all is well.
    pub(super) reason: String,
    pub(super) next: Option<Timestamp>,
}

/// Reads the health of a feed.
pub(super) async fn of_feed(visit: &Visit, feed: &Arc<Feed>) -> Result<Health, RouteError> {
    let details = DetailVisibility::shown_if(visit.sees_details(feed.id().as_str()));
    let failure = visit.engine.failures.of(feed.id().as_str());
    let source = source_state(&visit.engine, feed, details).await?;
    let mut health = match &source {
        None => Health { state: FeedState::Published, reason: String::new(), next: None },
        Some(state) => {
            let is_on = feed.config.source.as_ref().is_some_and(|source| source.enabled);
            let paused = match is_on {
                true => SourceControl::load(&visit.engine, feed).await?.paused,
                false => None,
            };
            judge(state, is_on, paused, visit.now)
        }
    };
    if let Some(failure) = failure {
        // Over what the source says: its changes arrive, and no reader sees them.
        health.state = FeedState::Failing;
        health.reason = match details {
            DetailVisibility::Shown => format!("Publishing fails: {failure}."),
            DetailVisibility::Hidden => "Publishing fails.".to_owned(),
        };
    }
    Ok(health)
}

/// Judges the state of a source.
fn judge(source: &SourceState, is_on: bool, paused: Option<Timestamp>, now: Timestamp) -> Health {
    let since =
        || source.last_ok.map_or("from the start".to_owned(), |at| format!("for {}", time_since(at, now)));
    let (state, reason) = match &source.error {
        _ if paused.is_some() => (
            FeedState::Paused,
            paused.map_or_else(String::new, |at| format!("Paused {}.", distance(at, now))),
        ),
        _ if !is_on => (FeedState::Paused, "Switched off in the configuration.".to_owned()),
        Some(error) if source.ended => (FeedState::Ended, format!("{}: {}", error.code, error.message)),
        Some(error) => {
            (FeedState::Failing, format!("Failing {}. {}: {}", since(), error.code, error.message))
        }
        None if source.last_ok.is_none() => (FeedState::Waiting, "Not asked yet.".to_owned()),
        None => match source.next {
            Some(next) if now.duration_since(next) > GRACE => {
                (FeedState::Late, format!("The poll was due {}.", distance(next, now)))
            }
            _ => (FeedState::Ok, String::new()),
        },
    };
    Health { state, reason, next: source.next.filter(|_| is_on && paused.is_none()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::state::SourceFailure;

    #[test]
    fn states_of_a_source() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let at = |seconds: i64| Some(Timestamp::from_second(1_000_000 + seconds).unwrap());
        let fine = SourceState { last_ok: at(-30), next: at(30), ..SourceState::default() };
        let of = |source: &SourceState| {
            let Health { state, reason, .. } = judge(source, true, None, now);
            (state, reason)
        };
        assert_eq!(of(&fine), (FeedState::Ok, String::new()));
        assert_eq!(of(&SourceState::default()).0, FeedState::Waiting);
        let late = SourceState { next: at(-600), ..fine.clone() };
        assert_eq!(of(&late), (FeedState::Late, "The poll was due 10 min ago.".into()));
        let error = Some(SourceFailure::new("TIMEOUT", "no answer".into()));
        let failing = SourceState { error, last_ok: at(-7200), ..fine.clone() };
        assert_eq!(of(&failing), (FeedState::Failing, "Failing for 2 h. TIMEOUT: no answer".into()));
        assert_eq!(of(&SourceState { ended: true, ..failing }).0, FeedState::Ended);
        assert_eq!(judge(&fine, false, None, now).state, FeedState::Paused);
        let paused = judge(&fine, true, at(-60), now);
        assert_eq!((paused.reason.as_str(), paused.next), ("Paused 1 min ago.", None));
    }
}
