//! The protocols that a feed can be followed by, and their followers and checks.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;
use towpath_proto::diffdelta::{DiffDeltaChecker, DiffDeltaFollower, FollowOptions};
use towpath_proto::follow::{Checker, FollowError, Follower, StartFrom};
use towpath_proto::history::check::{CheckOptions as HistoryCheck, HistoryChecker};
use towpath_proto::history::follow::{HistoryFollower, Options as HistoryOptions};
use towpath_proto::push::websub::check::HubChecker;
use towpath_proto::push::websub::follow::PushFollower;
use towpath_proto::push::websub::subscriber as push;
use towpath_proto::replication::check::{CheckOptions, ReplicationChecker};
use towpath_proto::replication::follow::{Options, ReplicationFollower};
use towpath_proto::smart::check::SmartChecker;
use towpath_proto::smart::follow::SmartFollower;
use towpath_proto::smart::wire::with_parameter;
use towpath_proto::sup::check::SupChecker;

use crate::random::unguessable;

/// A protocol, the strongest first: what loses nothing and repeats nothing, before what may repeat, before
/// what may lose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// DiffDelta: exactly once, and every cursor can be verified.
    DiffDelta,
    /// Data Replication: exactly once where entries have names, at least once where not.
    Replication,
    /// Smart Feeds: exactly once by cursor.
    Smart,
    /// Feed History: at least once.
    History,
    /// Plain RSS, Atom or JSON Feed: whatever is in the document when it is asked for.
    Rss,
    /// Simple Update Protocol: says which feeds moved, not how.
    Sup,
}

impl Protocol {
    /// All of them, the strongest first.
    pub const ALL: [Self; 6] =
        [Self::DiffDelta, Self::Replication, Self::Smart, Self::History, Self::Rss, Self::Sup];

    /// Its name on the command line and in state files.
    pub fn name(self) -> &'static str {
        match self {
            Self::DiffDelta => "diffdelta",
            Self::Replication => "replication",
            Self::Smart => "smart",
            Self::History => "history",
            Self::Rss => "rss",
            Self::Sup => "sup",
        }
    }

    /// What it promises to whoever follows by it.
    pub fn promise(self) -> &'static str {
        match self {
            Self::DiffDelta | Self::Replication | Self::Smart => "exactly once",
            Self::History => "at least once",
            Self::Rss => "best effort",
            Self::Sup => "says only which feeds moved",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|protocol| protocol.name() == text);
        known.ok_or_else(|| {
            format!("{text:?} is no protocol; there are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// The argument of a callback that nobody can guess.
const CALLBACK_KEY: &str = "towpath-key";
/// After how long without a push a feed is pulled all the same.
const SILENCE: Duration = Duration::from_secs(600);

/// What a follower is made of.
#[derive(Debug, Clone)]
pub struct Follow {
    /// The feed's address.
    pub url: String,
    /// Where to begin, unless there is a state.
    pub from: StartFrom,
    /// The last checkpoint of the same feed and protocol.
    pub state: Option<Value>,
    /// Whether to stop at the end of what there is now.
    pub once: bool,
    /// How often to ask, where the protocol leaves that to who follows (Data Replication, Feed History); what is usual
    /// where this is `None`.
    pub every: Option<Duration>,
}

/// The follower of a feed.
///
/// # Errors
///
/// [`FollowError::Usage`] where the state or the start does not fit, or the protocol cannot be followed.
pub fn follower(protocol: Protocol, follow: Follow) -> Result<Box<dyn Follower>, FollowError> {
    let Follow { url, from, state, once, every } = follow;
    Ok(match protocol {
        Protocol::DiffDelta => {
            let options = FollowOptions { from, state, once, jitter: fastrand::u64(..) };
            Box::new(DiffDeltaFollower::new(&url, options)?)
        }
        Protocol::Replication => {
            let usual = Options::default();
            let options = Options { once, poll: every.unwrap_or(usual.poll), ..usual };
            Box::new(ReplicationFollower::new(&url, from, state, options)?)
        }
        Protocol::Smart => Box::new(SmartFollower::new(&url, &from, state, once)?),
        Protocol::History | Protocol::Rss => {
            let usual = HistoryOptions::default();
            let options = HistoryOptions { once, poll: every.unwrap_or(usual.poll), ..usual };
            Box::new(HistoryFollower::new(&url, from, state, options)?)
        }
        Protocol::Sup => {
            let why = "a SUP document says which feeds moved; follow the feeds themselves";
            return Err(FollowError::Usage(format!("{url}: {why}")));
        }
    })
}

/// A follower of a Smart Feed that is pushed to, where a hub is told to call `callback`.
///
/// Returns with it what the hub's calls must have in their query: the address of the callback is completed with
/// something that nobody can guess (WebSub 8.2).
///
/// # Errors
///
/// [`FollowError::Usage`] where the address, the state or the start does not fit.
pub fn pushed_follower(follow: Follow, callback: &str) -> Result<(PushFollower, String), FollowError> {
    let Follow { url, from, state, .. } = follow;
    let (callback, key) = with_key(callback);
    let options = push::Options { callback, secret: secret(), lease: None, silence: SILENCE };
    let follower = PushFollower::new(&url, &from, state, options)?;
    Ok((follower, key))
}

/// A check of a topic and its hub, where the hub is told to call `callback`; with what its calls must have in their
/// query.
pub fn hub_checker(url: &str, callback: &str) -> (HubChecker, String) {
    let (callback, key) = with_key(callback);
    (HubChecker::new(url, callback, secret()), key)
}

fn with_key(callback: &str) -> (String, String) {
    let key = format!("{:032x}", unguessable());
    (with_parameter(callback, CALLBACK_KEY, &key), format!("{CALLBACK_KEY}={key}"))
}

fn secret() -> String {
    format!("{:032x}{:032x}", unguessable(), unguessable())
}

/// The conformance check of a feed.
///
/// # Errors
///
/// [`FollowError::Usage`] where the address is none that can be checked.
pub fn checker(protocol: Protocol, url: &str) -> Result<Box<dyn Checker>, FollowError> {
    Ok(match protocol {
        Protocol::DiffDelta => Box::new(DiffDeltaChecker::new(url)?),
        Protocol::Replication => Box::new(ReplicationChecker::new(url, CheckOptions::default())),
        Protocol::Smart => Box::new(SmartChecker::new(url)),
        Protocol::History | Protocol::Rss => {
            let history = protocol == Protocol::History;
            Box::new(HistoryChecker::new(url, HistoryCheck { history, ..HistoryCheck::default() }))
        }
        Protocol::Sup => Box::new(SupChecker::new(url)),
    })
}
