//! Arguments of `towpath follow`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use towpath_client::{Protocol, large_folder};
use towpath_proto::follow::{FollowMode, StartFrom};
use towpath_sinks::Destination;
use url::Url;

use crate::cli::account::AccountArgs;
use crate::cli::feed_url::{parse_feed, parse_url};
use crate::cli::limit_args::LimitArgs;
use crate::cli::protocol_arg::{ProtocolArg, parse_protocol};
use crate::cli::request_headers::RequestHeaderArgs;
use crate::config::parse_duration;

#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// URLs of the feeds to follow
    #[arg(value_name = "URL", value_parser = parse_feed, required_unless_present = "feeds")]
    pub(crate) urls: Vec<Url>,
    /// Also follow the feeds listed in FILE: one URL per line (# starts a comment line), or OPML
    #[arg(long, value_name = "FILE")]
    pub(crate) feeds: Option<PathBuf>,
    /// Protocol: auto, diffdelta, replication, history, smart, rss, page, or sup: a SUP document decides when each feed is
    /// polled, by its own protocol, as for several feeds
    #[arg(long, default_value = "auto", value_parser = parse_protocol)]
    pub(crate) protocol: ProtocolArg,
    /// Save the position of each feed in FILE, and resume from it
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    /// Apply changes to DEST instead of printing them: sqlite:PATH, postgres://…, dir:PATH, exec:COMMAND, webhook:URL or
    /// nats://HOST/SUBJECT
    #[arg(long, value_name = "DEST")]
    pub(crate) into: Option<Destination>,
    /// Save only positions that the reader of the lines writes back on standard input
    #[arg(long, requires = "state", conflicts_with = "into")]
    pub(crate) ack: bool,
    /// Stop at an item that DEST refuses, instead of keeping it aside
    #[arg(long, requires = "into")]
    pub(crate) stop_on_refused_item: bool,
    /// Stop when standard input ends: for a program that starts this one, and must not leave it behind
    #[arg(long, conflicts_with = "ack")]
    pub(crate) stop_with_stdin: bool,
    /// Start position without saved state: beginning, now, a time (RFC 3339), a day, or a position of the feed
    #[arg(long, value_name = "WHERE", default_value = "beginning", value_parser = StartFrom::parse)]
    pub(crate) from: StartFrom,
    /// Exit once all current changes are printed
    #[arg(long)]
    pub(crate) once: bool,
    /// Poll interval. One feed: instead of long polls and its publisher's interval. Several: for those without SUP
    /// [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = parse_every)]
    pub(crate) every: Option<Duration>,
    /// Subscribe --callback at the feed's hub, and pull what it misses (Smart Feeds, Atom, RSS, JSON Feed)
    #[arg(long, requires = "callback", conflicts_with = "once")]
    pub(crate) push: bool,
    /// Public URL that the hub calls, which must reach --callback-listen
    #[arg(long, value_name = "URL", requires = "push", value_parser = parse_url)]
    pub(crate) callback: Option<Url>,
    /// Address on which to receive the hub's calls [default: the callback's port]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "push")]
    pub(crate) callback_listen: Option<SocketAddr>,
    /// Write large contents to files in FOLDER, which their items name as attachments: those that the publisher keeps as
    /// files, and those of Data Replication above the limit entity_mib
    #[arg(long, value_name = "FOLDER", value_parser = parse_folder)]
    pub(crate) large_content: Option<String>,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    #[command(flatten)]
    pub(crate) headers: RequestHeaderArgs,
    #[command(flatten)]
    pub(crate) account: AccountArgs,
}

impl FollowArgs {
    /// Returns the mode that `--once` stands for.
    pub(crate) fn mode(&self) -> FollowMode {
        if self.once { FollowMode::CatchUp } else { FollowMode::Continuous }
    }

    /// Returns true for `--protocol sup`. SUP tells which feeds changed and not what, so even one feed is followed as several
    /// are.
    pub(crate) fn is_by_sup(&self) -> bool {
        self.protocol.0 == Some(Protocol::Sup)
    }

    /// Returns the protocol of several feeds; `None` to discover each one's.
    pub(crate) fn feed_protocol(&self) -> Option<Protocol> {
        self.protocol.0.filter(|_| !self.is_by_sup())
    }
}

/// Parses a folder for large contents into its URL.
fn parse_folder(text: &str) -> Result<String, String> {
    large_folder(Path::new(text)).map_err(|e| e.to_string())
}

/// Parses a poll interval of a second or more.
pub(crate) fn parse_every(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        every if every < Duration::from_secs(1) => Err("it must be a second or more".into()),
        every => Ok(every),
    }
}
