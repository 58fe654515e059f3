//! Protocols, and constructors of their followers and checks.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_proto::diffdelta::{DiffDeltaChecker, DiffDeltaFollower, FollowOptions};
use towpath_proto::follow::{
    Checker, ContentFolder, FeedName, FollowError, FollowMode, Follower, ReadLimits, StartFrom,
};
use towpath_proto::history::check::{HistoryCheckOptions as HistoryCheck, HistoryChecker};
use towpath_proto::history::follow::{HistoryFollowOptions as HistoryOptions, HistoryFollower};
use towpath_proto::push::websub::check::HubChecker;
use towpath_proto::push::websub::follow::PushFollower;
use towpath_proto::push::websub::follow::topic::TopicNews;
use towpath_proto::push::websub::subscriber as push;
use towpath_proto::replication::check::{ReplicationCheckOptions, ReplicationChecker};
use towpath_proto::replication::follow::{ReplicationFollower, ReplicationOptions};
use towpath_proto::smart::check::SmartChecker;
use towpath_proto::smart::follow::SmartFollower;
use towpath_proto::smart::wire::with_parameter;
use towpath_proto::sup::check::SupChecker;

use crate::random::unguessable;
use crate::route::FollowRoute;

/// Way in which a follower waits for changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowPace {
    /// The publisher may hold requests open until something changes.
    Held,
    /// Requests at intervals of the follower.
    Polled,
}

/// A protocol. The order is that of the delivery guarantee, strongest first: exactly once, at least once, best effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Protocol {
    /// DiffDelta: exactly once, with verifiable cursors.
    DiffDelta,
    /// Data Replication: exactly once if entries have ids, otherwise at least once.
    Replication,
    /// Smart Feeds: exactly once by cursor.
    Smart,
    /// Feed History: at least once.
    History,
    /// Plain RSS, Atom or JSON Feed: best effort, only the entries in the document at each poll.
    Rss,
    /// An HTML page without a feed: best effort, the whole page as one item at each poll.
    Page,
    /// Simple Update Protocol: names the feeds that changed, not their changes.
    Sup,
}

impl Protocol {
    /// All protocols, strongest guarantee first.
    pub const ALL: [Self; 7] =
        [Self::DiffDelta, Self::Replication, Self::Smart, Self::History, Self::Rss, Self::Page, Self::Sup];

    /// Returns true if feeds of the protocol can name a hub.
    pub fn has_hubs(self) -> bool {
        matches!(self, Self::Replication | Self::Smart | Self::History | Self::Rss | Self::Page)
    }

    /// Name on the command line and in state files.
    pub fn name(self) -> &'static str {
        match self {
            Self::DiffDelta => "diffdelta",
            Self::Replication => "replication",
            Self::Smart => "smart",
            Self::History => "history",
            Self::Rss => "rss",
            Self::Page => "page",
            Self::Sup => "sup",
        }
    }

    /// Delivery guarantee, stronger for a smaller number. Protocols of one promise share it.
    fn guarantee_rank(self) -> u8 {
        match self {
            Self::DiffDelta | Self::Replication | Self::Smart => 0,
            Self::History => 1,
            Self::Rss | Self::Page => 2,
            Self::Sup => 3,
        }
    }

    /// Preference of a follower among protocols: first the stronger promise, then the sooner or the cheaper.
    pub fn preference(self, pace: FollowPace) -> (u8, u8) {
        let second = match (pace, self) {
            // A long poll tells a change at once. A page of Data Replication is polled every half minute, or as its
            // publisher hints; DiffDelta's head every `ttl_sec`, which is five minutes by default.
            (FollowPace::Held, Self::Smart) => 0,
            (FollowPace::Held, Self::Replication) => 1,
            (FollowPace::Held, _) => 2,
            // Equal delays: a 304 of DiffDelta's small head costs the least, and an empty page the most.
            (FollowPace::Polled, Self::DiffDelta) => 0,
            (FollowPace::Polled, Self::Replication) => 1,
            (FollowPace::Polled, _) => 2,
        };
        (self.guarantee_rank(), second)
    }

    /// Delivery guarantee, in words.
    pub fn guarantee(self) -> &'static str {
        match self {
            Self::DiffDelta | Self::Replication | Self::Smart => "exactly once",
            Self::History => "at least once",
            Self::Rss | Self::Page => "best effort",
            Self::Sup => "names only the feeds that changed",
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
            format!("{text:?} is not a protocol; expected one of {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// Query parameter of a callback URL that holds its unguessable key.
const CALLBACK_KEY: &str = "towpath-key";
/// Time without a push after which the feed is pulled.
const PULL_AFTER: Duration = Duration::from_secs(600);
/// Largest document that is searched for a hub, in bytes, unless the limits have another size.
const MAX_DOCUMENT: u64 = 64 << 20;

/// Options of a follower. The default follows from the beginning, without end.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FollowerOptions {
    /// Start position, used if the route has no state.
    pub from: StartFrom,
    /// Name of the feed in all changes, instead of the publisher's. A state that says what the copy has goes first.
    pub fixed_name: Option<String>,
    /// [`FollowMode::CatchUp`] finishes once all current changes are delivered.
    pub mode: FollowMode,
    /// Poll interval, instead of long polls and of the publisher's own interval. `None` means the protocol's default.
    pub every: Option<Duration>,
    /// Limits of what is read.
    pub limits: ReadLimits,
    /// Folder for large contents, from [`large_folder`]: entities of Data Replication that are larger than the limit,
    /// and contents that their publisher keeps as files. Each becomes a file named by its SHA-256, and the first
    /// attachment of its item. Without a folder the former end the attempt, and the latter are not downloaded.
    ///
    /// [`large_folder`]: crate::large_folder
    pub large_folder: Option<String>,
}

impl FollowerOptions {
    /// Sets [`from`](Self::from).
    #[must_use]
    pub fn with_from(mut self, from: StartFrom) -> Self {
        self.from = from;
        self
    }

    /// Sets [`fixed_name`](Self::fixed_name).
    #[must_use]
    pub fn with_fixed_name(mut self, fixed_name: impl Into<Option<String>>) -> Self {
        self.fixed_name = fixed_name.into();
        self
    }

    /// Sets [`mode`](Self::mode).
    #[must_use]
    pub fn with_mode(mut self, mode: FollowMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`every`](Self::every).
    #[must_use]
    pub fn with_every(mut self, every: impl Into<Option<Duration>>) -> Self {
        self.every = every.into();
        self
    }

    /// Sets [`limits`](Self::limits).
    #[must_use]
    pub fn with_limits(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets [`large_folder`](Self::large_folder).
    #[must_use]
    pub fn with_large_folder(mut self, large_folder: impl Into<Option<String>>) -> Self {
        self.large_folder = large_folder.into();
        self
    }
}

/// Creates the follower of a feed.
///
/// # Errors
///
/// [`FollowError::Usage`] if the state or start position does not fit, or the protocol cannot be followed.
pub fn follower(route: FollowRoute, options: FollowerOptions) -> Result<Box<dyn Follower>, FollowError> {
    let FollowRoute { protocol, url, name, mut state, .. } = route;
    let FollowerOptions { from, fixed_name, mode, every, limits, large_folder } = options;
    let folder = large_folder.as_deref().map(|base| content_folder(base, limits, mode));
    let name = FeedName::take(state.as_mut(), name, fixed_name);
    let follower: Box<dyn Follower> = match protocol {
        Protocol::DiffDelta => {
            // Random jitter spreads the polls of many clients that start together.
            let options = FollowOptions { from, state, mode, every, jitter: fastrand::u64(..) };
            name.of_named(DiffDeltaFollower::new(&url, options)?.within(limits))
        }
        Protocol::Replication => {
            let limits = (limits, large_folder);
            name.of(replication_follower(&url, from, state, (mode, every), limits)?)
        }
        Protocol::Smart => {
            let mut follower = SmartFollower::new(&url, &from, state, mode)?.within(limits);
            follower.set_pace(every);
            name.of(follower)
        }
        // Plain feeds are Feed History without archives: the same follower finds nothing to go back to.
        Protocol::History | Protocol::Rss | Protocol::Page => {
            name.of(history_follower(protocol, &url, from, state, (mode, every, limits))?)
        }
        Protocol::Sup => {
            let why = "a SUP document only names the feeds that changed; follow the feeds themselves";
            return Err(FollowError::Usage(format!("{url}: {why}")));
        }
    };
    Ok(with_files(follower, folder))
}

/// Returns how contents that are files are downloaded into a folder, given its URL.
pub fn content_folder(base: &str, limits: ReadLimits, mode: FollowMode) -> ContentFolder {
    ContentFolder { base: base.into(), max_file: limits.max_file, mode }
}

fn with_files(follower: Box<dyn Follower>, folder: Option<ContentFolder>) -> Box<dyn Follower> {
    match folder {
        Some(folder) => folder.of(follower),
        None => follower,
    }
}

/// Creates a follower that subscribes `callback` at the feed's hub: of a Smart Feed, of Data Replication, of Atom, RSS and
/// JSON Feed, or of a page.
///
/// Also returns the query parameter that the hub's requests must carry. It is part of the registered callback URL and
/// unguessable, so that strangers cannot deliver (WebSub, section 8.2).
///
/// # Errors
///
/// [`FollowError::Usage`] if the URL, the state or the start position does not fit, or the protocol has no hubs.
pub fn pushed_follower(
    route: FollowRoute,
    options: FollowerOptions,
    callback: &str,
) -> Result<(Box<dyn Follower>, String), FollowError> {
    let FollowRoute { protocol, url, name, mut state, .. } = route;
    if !protocol.has_hubs() {
        let why = format!(
            "a hub pushes Smart Feeds, Data Replication, Atom, RSS, JSON Feed and pages, not {protocol}"
        );
        return Err(FollowError::Usage(format!("{url}: {why}")));
    }
    let FollowerOptions { from, fixed_name, every, limits, large_folder, .. } = options;
    let folder = large_folder.as_deref().map(|base| content_folder(base, limits, FollowMode::Continuous));
    let name = FeedName::take(state.as_mut(), name, fixed_name);
    let (callback, key) = with_key(callback);
    let subscription = subscribe_options(callback, limits.largest_document(MAX_DOCUMENT));
    let follower: Box<dyn Follower> = match protocol {
        Protocol::Smart => name.of(PushFollower::new(&url, &from, state, subscription)?.within(limits)),
        Protocol::Replication => {
            let limits = (limits, large_folder);
            let follower = replication_follower(&url, from, state, (FollowMode::Continuous, every), limits)?;
            name.of(PushFollower::of(follower, subscription))
        }
        _ => {
            let follower =
                history_follower(protocol, &url, from, state, (FollowMode::Continuous, every, limits))?;
            name.of(PushFollower::of(follower, subscription))
        }
    };
    Ok((with_files(follower, folder), key))
}

/// Creates a follower that subscribes `callback` at the hub of any document, and reads nothing of it: see [`TopicNews`].
///
/// A document is searched for the hub if it has at most `max_document` bytes. Also returns the query parameter that the hub's
/// requests must carry, as [`pushed_follower`].
pub fn topic_follower(url: &str, callback: &str, max_document: u64) -> (Box<dyn Follower>, String) {
    let (callback, key) = with_key(callback);
    let options = subscribe_options(callback, max_document);
    (Box::new(PushFollower::of(TopicNews::new(url), options)), key)
}

fn subscribe_options(callback: String, max_document: u64) -> push::SubscribeOptions {
    push::SubscribeOptions { callback, secret: secret(), lease: None, silence: PULL_AFTER, max_document }
}

fn replication_follower(
    url: &str,
    from: StartFrom,
    state: Option<Value>,
    (mode, every): (FollowMode, Option<Duration>),
    (limits, large_folder): (ReadLimits, Option<String>),
) -> Result<ReplicationFollower, FollowError> {
    let defaults = ReplicationOptions::default();
    let options = ReplicationOptions {
        mode,
        poll: every.unwrap_or(defaults.poll),
        follow_hints: every.is_none(),
        max_entity: limits.max_entity,
        large_base: large_folder.map(Into::into),
        ..defaults
    };
    ReplicationFollower::new(url, from, state, options)
}

fn history_follower(
    protocol: Protocol,
    url: &str,
    from: StartFrom,
    state: Option<Value>,
    (mode, every, limits): (FollowMode, Option<Duration>, ReadLimits),
) -> Result<HistoryFollower, FollowError> {
    let defaults = HistoryOptions::default();
    let poll = every.unwrap_or(defaults.poll);
    let page = protocol == Protocol::Page;
    let mut options = HistoryOptions { mode, poll, page, reading: limits.document, ..defaults };
    options.limits.document = limits.largest_document(options.limits.document);
    HistoryFollower::new(url, from, state, options)
}

/// Creates a check of a topic and its hub that subscribes `callback`.
///
/// Also returns the query parameter that the hub's requests must carry, as [`pushed_follower`].
pub fn hub_checker(url: &str, callback: &str) -> (HubChecker, String) {
    let (callback, key) = with_key(callback);
    (HubChecker::new(url, callback, secret()), key)
}

fn with_key(callback: &str) -> (String, String) {
    // 128 bits: a stranger who knows the callback's address still cannot guess it.
    let key = format!("{:032x}", unguessable());
    (with_parameter(callback, CALLBACK_KEY, &key), format!("{CALLBACK_KEY}={key}"))
}

fn secret() -> String {
    format!("{:032x}{:032x}", unguessable(), unguessable())
}

/// Creates the conformance check of a feed.
///
/// # Errors
///
/// [`FollowError::Usage`] if the URL cannot be checked.
pub fn checker(protocol: Protocol, url: &str, limits: ReadLimits) -> Result<Box<dyn Checker>, FollowError> {
    Ok(match protocol {
        Protocol::DiffDelta => Box::new(DiffDeltaChecker::new(url)?.within(limits)),
        Protocol::Replication => {
            let defaults = ReplicationCheckOptions::default();
            let options = ReplicationCheckOptions { max_entity: limits.max_entity, ..defaults };
            Box::new(ReplicationChecker::new(url, options))
        }
        Protocol::Smart => Box::new(SmartChecker::new(url).within(limits)),
        Protocol::History | Protocol::Rss => {
            let history = protocol == Protocol::History;
            Box::new(HistoryChecker::new(url, HistoryCheck { history, limits, ..HistoryCheck::default() }))
        }
        Protocol::Page => return Err(FollowError::Usage(format!("{url}: a page has no rules to check"))),
        Protocol::Sup => Box::new(SupChecker::new(url).within(limits)),
    })
}
