//! `towpath follow`: the changes of one feed or many as lines of JSON on standard output, and nothing else there.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::Value;
use towpath_proto::follow::{FollowError, StartFrom};
use url::{Host, Url};

use super::feed_list::{self, ListError};
use super::fleet_lines::{FleetLines, States};
use super::lines::{Lines, LinesError};
use super::node::{AccountArgs, follow_node};
use super::read_token::ReadTokenArgs;
use super::state_file::{self, StateError, StateFile};
use super::state_log::StateLog;
use super::{CliError, Exit};
use crate::client::fleet::{FleetEnded, FleetOptions, follow_fleet};
use crate::client::{
    DiscoverError, Ended, Fetcher, Follow, ListenError, Protocol, SetupError, discover, drive, drive_called,
    follower, listen, pushed_follower,
};
use crate::config::parse_duration;
use crate::stop::{self, Stop};

#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// The address of the feed, or of several
    #[arg(value_name = "URL", value_parser = parse_feed, required_unless_present = "feeds")]
    urls: Vec<Url>,
    /// Follow the feeds of a list: one address on a line (lines with # are comments), or OPML
    #[arg(long, value_name = "FILE")]
    feeds: Option<PathBuf>,
    /// auto, diffdelta, replication, history, smart, sup or rss
    #[arg(long, default_value = "auto", value_parser = parse_protocol)]
    pub(super) protocol: ProtocolArg,
    /// Keep how far every feed was followed in FILE, and go on from there
    #[arg(long, value_name = "FILE")]
    pub(super) state: Option<PathBuf>,
    /// Where to begin without a state: beginning, now, a time (RFC 3339) or a cursor
    #[arg(long, value_name = "WHERE", default_value = "beginning", value_parser = parse_start)]
    pub(super) from: StartFrom,
    /// Stop at the end of what there is now
    #[arg(long)]
    pub(super) once: bool,
    /// Of many feeds: how often to ask one that no SUP document speaks for [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = parse_every)]
    every: Option<Duration>,
    /// Have the feed's hub push to --callback, and pull only what that misses (Smart Feeds)
    #[arg(long, requires = "callback", conflicts_with = "once")]
    pub(super) push: bool,
    /// The address that the hub is to call, which leads to --callback-listen
    #[arg(long, value_name = "URL", requires = "push", value_parser = parse_url)]
    callback: Option<Url>,
    /// Where to wait for the hub's calls [default: the callback's port]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "push")]
    callback_listen: Option<SocketAddr>,
    #[command(flatten)]
    token: ReadTokenArgs,
    #[command(flatten)]
    pub(super) account: AccountArgs,
}

/// A protocol, or `None` for whatever the feed offers. (A type of its own: clap reads `Option` otherwise.)
#[derive(Debug, Clone, Copy)]
pub(super) struct ProtocolArg(pub(super) Option<Protocol>);

pub(super) fn parse_protocol(text: &str) -> Result<ProtocolArg, String> {
    if text == "auto" {
        return Ok(ProtocolArg(None));
    }
    let names = || Protocol::ALL.map(Protocol::name).join(", ");
    let unknown = |_: String| format!("{text:?} is no protocol; there are auto, {}", names());
    text.parse().map(|protocol| ProtocolArg(Some(protocol))).map_err(unknown)
}

/// Whether an address is of a node.
fn is_node(url: &Url) -> bool {
    url.scheme() == "xmpp"
}

/// An address of HTTP, or of a node.
pub(super) fn parse_feed(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if is_node(&url) => Ok(url),
        _ => parse_url(text),
    }
}

pub(super) fn parse_url(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(url),
        Ok(url) => Err(format!("{:?} is neither http nor https", url.scheme())),
        Err(url::ParseError::RelativeUrlWithoutBase) => Err("it must begin with http:// or https://".into()),
        Err(e) => Err(e.to_string()),
    }
}

fn parse_start(text: &str) -> Result<StartFrom, String> {
    Ok(match text {
        "" => return Err("an empty cursor is no place to begin".into()),
        "beginning" => StartFrom::Beginning,
        "now" => StartFrom::Now,
        _ => parse_time(text).map_or_else(|| StartFrom::Position(text.to_owned()), StartFrom::Time),
    })
}

/// A time, or the beginning of a day in UTC.
fn parse_time(text: &str) -> Option<Timestamp> {
    let day = || text.parse::<Date>().ok()?.to_zoned(TimeZone::UTC).ok();
    text.parse().ok().or_else(|| day().map(|day| day.timestamp()))
}

fn parse_every(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        every if every < Duration::from_secs(1) => Err("it must be a second or more".into()),
        every => Ok(every),
    }
}

/// Follows feeds until it is stopped, or with `--once` until their ends.
pub(crate) async fn follow(args: FollowArgs) -> Result<Exit, CliError> {
    super::log_to_stderr();
    let stop = stop::on_signal();
    match (&args.feeds, args.urls.as_slice()) {
        (None, [url]) if is_node(url) => {
            args.token.refuse_for_nodes()?;
            follow_node(&args, url, &stop).await
        }
        (None, [url]) => follow_one(&args, url, &stop).await,
        (_, urls) if urls.iter().any(is_node) => Err(CliError::usage("an xmpp: address is followed alone")),
        _ => follow_many(args, &stop).await,
    }
}

async fn follow_one(args: &FollowArgs, feed: &Url, stop: &Stop) -> Result<Exit, CliError> {
    if args.every.is_some() {
        let why = "--every is for many feeds; a single one is asked as often as its publisher allows";
        return Err(CliError::usage(why));
    }
    let fetcher = args.token.fetcher([feed])?;
    let way = choose(args, feed, &fetcher).await?;
    let state_file = match &args.state {
        Some(path) => Some(StateFile::open(path, feed, way.protocol, &way.url)?),
        None => None,
    };
    let follow =
        Follow { url: way.url, from: args.from.clone(), state: way.state, once: args.once, every: None };
    let mut lines = Lines::new(std::io::stdout(), state_file);
    let ended = if let Some(callback) = &args.callback {
        if way.protocol != Protocol::Smart {
            return Err(CliError::usage("--push is for Smart Feeds; this state is of another protocol"));
        }
        let (mut follower, key) = pushed_follower(follow, callback.as_str())?;
        let calls = listen(args.callback_listen.unwrap_or_else(|| where_to_listen(callback)), key).await?;
        drive_called(&mut follower, &fetcher, &mut lines, stop, calls).await
    } else {
        let mut follower = follower(way.protocol, follow)?;
        drive(&mut *follower, &fetcher, &mut lines, stop).await
    };
    match ended {
        Ok(ended) => Ok(exit(&ended, args.once)),
        // As every program in a pipe ends whose reader has seen enough.
        Err(LinesError::Closed) => Ok(Exit::Failed),
        Err(e) => Err(CliError::failed(e.to_string())),
    }
}

async fn follow_many(args: FollowArgs, stop: &Stop) -> Result<Exit, CliError> {
    if args.push {
        return Err(CliError::usage("--push is for a single feed: many have a callback each"));
    }
    if let StartFrom::Position(position) = &args.from {
        let why = format!("the position {position:?} is one of a single feed: many begin at a time, or now");
        return Err(CliError::usage(why));
    }
    if args.protocol.0 == Some(Protocol::Sup) {
        let why = "a SUP document says which feeds moved: name the feeds, their SUP documents are found";
        return Err(CliError::usage(why));
    }
    let mut feeds = args.urls;
    if let Some(list) = &args.feeds {
        feeds.extend(feed_list::read(list)?);
    }
    let (feeds, doubles) = feed_list::without_doubles(feeds);
    doubles.iter().for_each(|url| eprintln!("towpath: warning: {url} is named twice and followed once"));
    let (states, schedule) = match &args.state {
        Some(path) => {
            let log = StateLog::open(path, args.protocol.0)?;
            let schedule = log.load_schedule()?;
            (States::Log(log), schedule)
        }
        None => (States::Memory(HashMap::new()), None),
    };
    let usual = FleetOptions::default();
    let options = FleetOptions {
        protocol: args.protocol.0,
        from: args.from,
        once: args.once,
        every: args.every.unwrap_or(usual.every),
        schedule,
        clock: usual.clock,
    };
    let fetcher = args.token.fetcher(&feeds)?;
    let ledger = Arc::new(FleetLines::new(std::io::stdout(), states));
    let feeds: Vec<Arc<str>> = feeds.into_iter().map(|url| url.as_str().into()).collect();
    match follow_fleet(feeds, ledger, &fetcher, options, stop).await {
        Ok(ended) => Ok(exit_of_many(&ended, args.once)),
        Err(refusal) if matches!(*refusal, LinesError::Closed) => Ok(Exit::Failed),
        Err(refusal) => Err(CliError::failed(refusal.to_string())),
    }
}

/// The worst of all feeds: misuse, then failure, then items that are missing.
fn exit_of_many(ended: &FleetEnded, once: bool) -> Exit {
    if once && ended.stopped {
        eprintln!("towpath: stopped before the end");
        return Exit::Failed;
    }
    match ended {
        FleetEnded { misused: 1.., .. } if once => Exit::Usage,
        FleetEnded { failed: 1.., .. } if once => Exit::Failed,
        FleetEnded { incomplete: 1.., .. } => Exit::Incomplete,
        _ => Exit::Done,
    }
}

/// The callback's own address, or its port on all of this machine's addresses.
pub(super) fn where_to_listen(callback: &Url) -> SocketAddr {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let host = match callback.host() {
        Some(Host::Ipv4(address)) => IpAddr::V4(address),
        Some(Host::Ipv6(address)) => IpAddr::V6(address),
        Some(Host::Domain("localhost")) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        _ => any,
    };
    SocketAddr::new(host, callback.port_or_known_default().unwrap_or(80))
}

pub(super) fn exit(ended: &Ended, once: bool) -> Exit {
    // To be stopped is how a follow without an end is meant to end.
    let done = ended.stopped && !once;
    match &ended.failed {
        Some(FollowError::Usage(_)) if !done => Exit::Usage,
        Some(_) if !done => Exit::Failed,
        _ if ended.stopped && once => {
            eprintln!("towpath: stopped before the end");
            Exit::Failed
        }
        _ if ended.incomplete => Exit::Incomplete,
        _ => Exit::Done,
    }
}

/// How a feed is followed.
struct Way {
    protocol: Protocol,
    url: String,
    state: Option<Value>,
}

/// By the state's protocol, else the one asked for, else the strongest that the feed offers.
async fn choose(args: &FollowArgs, feed: &Url, fetcher: &Fetcher) -> Result<Way, CliError> {
    let asked = args.protocol.0.or(args.push.then_some(Protocol::Smart));
    let kept = match &args.state {
        Some(path) => state_file::load(path, feed, asked)?,
        None => None,
    };
    if let Some(kept) = kept {
        return Ok(Way { protocol: kept.protocol, url: kept.follows, state: Some(kept.state) });
    }
    let (protocol, url) = match asked {
        Some(protocol) => (protocol, feed.to_string()),
        None => {
            let offer = discover(fetcher, feed.as_str()).await?;
            eprintln!("towpath: following {} by {}, because {}", offer.url, offer.protocol, offer.why);
            (offer.protocol, offer.url)
        }
    };
    Ok(Way { protocol, url, state: None })
}

impl From<StateError> for CliError {
    fn from(error: StateError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<ListError> for CliError {
    fn from(error: ListError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<SetupError> for CliError {
    fn from(error: SetupError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<ListenError> for CliError {
    fn from(error: ListenError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<DiscoverError> for CliError {
    fn from(error: DiscoverError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<FollowError> for CliError {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Usage(text) => Self::usage(text),
            other => Self::failed(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_a_word_a_time_or_a_cursor() {
        let time = |text: &str| StartFrom::Time(text.parse().unwrap());
        for (text, start) in [
            ("beginning", StartFrom::Beginning),
            ("now", StartFrom::Now),
            ("2024-02-29T12:00:00+02:00", time("2024-02-29T10:00:00Z")),
            ("2024-02-29", time("2024-02-29T00:00:00Z")),
            ("sha256:ab", StartFrom::Position("sha256:ab".into())),
            ("1389003527_0_3678689003", StartFrom::Position("1389003527_0_3678689003".into())),
            ("<id@example.com>", StartFrom::Position("<id@example.com>".into())),
        ] {
            assert_eq!(parse_start(text), Ok(start), "{text}");
        }
        assert!(parse_start("").is_err());
    }

    #[test]
    fn the_exit_code_says_how_it_ended() {
        let failed = Some(FollowError::Status { url: "http://x/".into(), status: 500 });
        let misused = Some(FollowError::Usage("no".into()));
        let ended = |stopped, failed: &Option<FollowError>, incomplete| Ended {
            stopped,
            failed: failed.clone(),
            incomplete,
        };
        for (ended, once, expected) in [
            (ended(false, &None, false), true, Exit::Done),
            (ended(false, &None, true), true, Exit::Incomplete),
            (ended(false, &failed, true), true, Exit::Failed),
            (ended(false, &misused, false), false, Exit::Usage),
            (ended(true, &None, false), true, Exit::Failed),
            (ended(true, &None, false), false, Exit::Done),
            // What failed was tried again until the follow was stopped; what is missing stays missing.
            (ended(true, &failed, false), false, Exit::Done),
            (ended(true, &failed, true), false, Exit::Incomplete),
        ] {
            assert_eq!(exit(&ended, once), expected, "{ended:?}");
        }
    }
}
