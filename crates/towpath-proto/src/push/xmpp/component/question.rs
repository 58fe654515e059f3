//! What the component is told, asks and tells.

use super::super::entry::MIN_ROOM;
use super::super::error::StanzaError;
use super::super::fanout::{Place, Subscription, Topic};
use super::MAX_ADDRESSING;
use crate::feed_id::FeedId;
use crate::smart::pull::{FeedSettings, Page, PullError};
use crate::smart::query::PullQuery;

/// What the component is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its name, which is its address.
    pub jid: String,
    /// What it shares with the server.
    pub secret: String,
    /// The largest stanza that it sends: less than the server takes.
    pub stanza_bytes: usize,
    /// Subscriptions at the most.
    pub subscriptions: usize,
    /// Subscriptions of one account.
    pub account_subscriptions: usize,
}

/// The least that [`Settings::stanza_bytes`] can be.
pub const MIN_STANZA: usize = MIN_ROOM + MAX_ADDRESSING;

/// Numbers a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuestionId(pub u64);

/// What the component wants to know or have done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// A page of a feed, as everybody may see it: [`Answer::Page`].
    Page(FeedId, PullQuery),
    /// The feeds that everybody may see, in the order of their names, so many after this one: [`Answer::Feeds`].
    Feeds(Option<FeedId>, usize),
    /// Keep a subscription over restarts, and of the first one to its topic where that begins: [`Answer::Written`].
    Keep(Subscription, Option<(Topic, Place)>),
    /// Forget one, known by its address and node: [`Answer::Written`].
    Forget(Subscription),
}

/// What became of a question.
#[derive(Debug)]
pub enum Answer<'a> {
    /// For [`Question::Page`]: the feed and its page.
    Page(Result<(&'a FeedSettings, Page), Unanswered>),
    /// For [`Question::Feeds`]: names with titles, and how many there are in all.
    Feeds(Vec<(FeedId, String)>, u64),
    /// For [`Question::Keep`] and [`Question::Forget`]: whether it is on disk.
    Written(Result<(), Unanswered>),
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// There is no such feed.
    #[error("there is no such node")]
    NoFeed,
    /// It is not for everybody.
    #[error("this feed is not open to everybody")]
    Forbidden,
    /// What was asked of it makes no sense.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// Our own fault; the words are for our own log.
    #[error("the log cannot be read or written")]
    Store(String),
}

impl From<Unanswered> for StanzaError {
    fn from(reason: Unanswered) -> Self {
        let text = reason.to_string();
        match reason {
            Unanswered::NoFeed | Unanswered::Pull(PullError::UnknownId(_)) => {
                Self::ITEM_NOT_FOUND.because(text)
            }
            Unanswered::Forbidden => Self::FORBIDDEN.because(text),
            Unanswered::Pull(PullError::Query(_)) => Self::BAD_REQUEST.because(text),
            Unanswered::Pull(PullError::Answer) | Unanswered::Store(_) => Self::INTERNAL.because(text),
        }
    }
}

/// What a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The server has taken the component in.
    Connected,
    /// There is no stream any more, or none yet: why. Told once while it stays the same.
    Down(String),
    /// Somebody's request was refused.
    Refused(String, StanzaError),
}
