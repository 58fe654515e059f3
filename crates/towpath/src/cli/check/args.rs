//! Arguments of `towpath check`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use url::Url;

use super::super::account::AccountArgs;
use super::super::feed_url::{parse_feed, parse_url};
use super::super::follow::args::parse_every;
use super::super::limit_args::LimitArgs;
use super::super::protocol_arg::{ProtocolArg, parse_protocol};
use super::super::request_headers::RequestHeaderArgs;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// URL of the feed
    #[arg(value_parser = parse_feed)]
    pub(super) url: Url,
    /// Protocol: auto, diffdelta, replication, history, smart, sup, rss or page
    #[arg(long, default_value = "auto", value_parser = parse_protocol)]
    pub(super) protocol: ProtocolArg,
    /// Output format of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub(super) format: ReportFormat,
    /// Check again and again, and print what changed
    #[arg(long, conflicts_with = "callback")]
    pub(super) watch: bool,
    /// Time between two checks
    #[arg(long, value_name = "TIME", default_value = "1h", requires = "watch", value_parser = parse_every)]
    pub(super) every: Duration,
    /// Number of checks, after which to exit [default: until stopped]
    #[arg(long, value_name = "NUMBER", requires = "watch", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) times: Option<u32>,
    /// File for the last report; a later run with it prints what changed since
    #[arg(long, value_name = "FILE", requires = "watch")]
    pub(super) state: Option<PathBuf>,
    /// Check the feed's hub: subscribe with this URL, which must reach --callback-listen
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub(super) callback: Option<Url>,
    /// Address on which to receive the hub's calls [default: the callback's port]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "callback")]
    pub(super) callback_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) headers: RequestHeaderArgs,
    #[command(flatten)]
    pub(super) account: AccountArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ReportFormat {
    /// For reading
    Text,
    /// All findings; with --watch a line for each change
    Json,
    /// XML that build servers show as tests
    Junit,
    /// SARIF 2.1.0, which code hosts show as alerts
    Sarif,
}
