//! `[server]`: the address, the data folder and the limits of the server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_client::PrivateFetches;

use super::access_log::AccessLogConfig;
use super::durations::{duration, five_minutes};
use super::listen::ListenConfig;
use super::rate_limit::RateLimitConfig;
use super::schema::{ByteSize, Mebibytes};
use super::secret::Secret;
use super::sizes::{bytes, mebibytes};
use super::trusted_proxies::TrustedProxies;

/// Private addresses that sources are fetched from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrivateFetchesConfig {
    /// None, even if a source's own address is private.
    None,
    /// The private network of a source's own address, for this source.
    #[default]
    Named,
    /// All, also where a publisher's redirects and links lead there.
    All,
}

impl From<PrivateFetchesConfig> for PrivateFetches {
    fn from(config: PrivateFetchesConfig) -> Self {
        match config {
            PrivateFetchesConfig::None => Self::None,
            PrivateFetchesConfig::Named => Self::Named,
            PrivateFetchesConfig::All => Self::All,
        }
    }
}

/// Certificate and key, to serve TLS instead of plain HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file with the server's certificate, followed by those of its issuers.
    #[schemars(example = "/etc/towpath/cert.pem")]
    pub cert: PathBuf,
    /// PEM file with the certificate's private key.
    #[schemars(example = "/etc/towpath/key.pem")]
    pub key: PathBuf,
    /// Offers HTTP/2 to clients, beside HTTP/1.1.
    #[serde(default = "offered")]
    pub http2: bool,
}

fn offered() -> bool {
    true
}

/// The address, the data folder and the limits of the server.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address to listen on: `HOST:PORT`, `unix:PATH`, `systemd` for the sockets that the service manager passes, or a
    /// list of these.
    #[schemars(example = "localhost:8080", extend("x-default" = "`\"127.0.0.1:8080\"`"))]
    pub listen: ListenConfig,
    /// Public URL, without a trailing slash. Links in feeds begin with it.
    #[schemars(example = "https://feeds.example.com", extend("x-default" = "the scheme and `listen`, with loopback for an unspecified address"))]
    pub base_url: Option<String>,
    /// Certificate and key, to serve TLS instead of plain HTTP.
    pub tls: Option<TlsConfig>,
    /// The data folder. A relative path begins at the configuration's folder.
    #[schemars(example = "/var/lib/towpath")]
    pub data: PathBuf,
    /// Cluster whose log this node replicates into the data folder: `nats://host:port,host:port`. Without it the data
    /// folder is the log itself.
    #[schemars(example = "nats://10.0.0.1:4222,10.0.0.2:4222")]
    pub cluster: Option<Secret>,
    /// Bearer tokens with all rights, as they are or as `sha256:…`. Without any token that may publish, programs on
    /// this machine may, unless `base_url` is public. See also `[[token]]`.
    #[schemars(example = ["${TOWPATH_TOKEN}"], extend("x-default" = "none"))]
    pub tokens: Vec<Secret>,
    /// Networks of proxies in front of this server. Their `X-Forwarded-For` or `Forwarded` header is believed to name the
    /// client.
    #[schemars(example = ["10.0.0.0/8", "192.0.2.7"], extend("x-default" = "none"))]
    pub trusted_proxies: TrustedProxies,
    /// Origins whose pages may read the feeds in a browser, such as `https://app.example`, or `*`.
    #[schemars(example = ["https://app.example"], extend("x-default" = "every one if `base_url` is public, else none"))]
    pub cors_origins: Option<Vec<String>>,
    /// Origins whose pages may publish from a browser, such as `https://cms.example`. Each of their requests needs a token;
    /// cookies never count. Reading needs `cors_origins`.
    #[schemars(example = ["https://cms.example"], extend("x-default" = "none"))]
    pub publish_origins: Vec<String>,
    /// Limits of expensive requests per client.
    pub rate_limit: RateLimitConfig,
    /// Lets publishing create feeds that the file does not name. True without a file. Logs whose feeds left the file are
    /// served too; one that was private stays so, for tokens that may read all feeds.
    pub create_feeds: bool,
    /// Maximum number of feeds that are made over HTTP (`PUT /feeds/{feed}`); 0 forbids it.
    pub http_feeds: usize,
    /// Reads the configuration again when one of its files changes. Otherwise `towpath reload` and SIGHUP do that.
    pub reload_on_change: bool,
    /// Number of threads that serve requests.
    #[schemars(example = 4, extend("x-default" = "the number of cores"))]
    pub threads: Option<usize>,
    /// Free disk space that is reserved, in MiB: with less, nothing is written. 0 reserves none.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub reserve_mib: u64,
    /// Limit of an item's content that is stored as a file, in MiB: above 64 MiB by PUT, and any by resumable uploads. 0
    /// permits neither.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub large_content_mib: u64,
    /// Memory limit of prebuilt documents, in MiB.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub cache_mib: u64,
    /// Maximum number of concurrent fetches of sources; a quarter of them of one host.
    pub fetches: usize,
    /// Memory limit of all documents that are being fetched and read at once, in MiB.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub fetch_mib: u64,
    /// Private addresses that sources are fetched from.
    pub private_fetches: PrivateFetchesConfig,
    /// Maximum number of open connections.
    #[schemars(example = 20_000, extend("x-default" = "as many as the limit of open files leaves room for"))]
    pub max_connections: Option<usize>,
    /// Maximum number of open connections from one IPv4 address or IPv6 /64. Loopback addresses and trusted
    /// proxies have no limit.
    pub max_connections_per_address: usize,
    /// Maximum number of clients that wait for changes: long polls and event streams.
    pub waiters: usize,
    /// Maximum duration of a long poll, whatever the request asks for.
    #[serde(deserialize_with = "duration")]
    pub longest_wait: Duration,
    /// Bytes per second that a client reads, and sends of a request's body, at least.
    #[serde(deserialize_with = "bytes")]
    #[schemars(with = "ByteSize")]
    pub min_rate: u32,
    /// Time that a client may be slower than `min_rate`.
    #[serde(deserialize_with = "duration")]
    pub rate_grace: Duration,
    /// Memory limit of request bodies that are being received and published, in MiB: of each what is above 128 KiB. Those
    /// beyond it wait, and get 503 within 10 seconds.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub body_mib: u64,
    /// Memory limit of response bodies that wait to be sent, in MiB.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub response_mib: usize,
    /// Interval of comments on an idle event stream, so that proxies do not close it.
    #[serde(deserialize_with = "duration")]
    pub heartbeat: Duration,
    /// URLs of WebSub hubs of others, which public feeds without `hubs` of their own name and tell of changes.
    #[schemars(example = ["https://hub.example/"], extend("x-default" = "none"))]
    pub hubs: Vec<String>,
    /// Maximum number of feeds with metrics of their own, the first ones by name. 0 shows none.
    pub metrics_feeds: usize,
    /// Log lines of requests. Without this table there are none.
    pub access_log: Option<AccessLogConfig>,
    /// Permits subscribers' callbacks on this machine and in private networks.
    pub allow_private_callbacks: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)).into(),
            base_url: None,
            tls: None,
            data: PathBuf::from("data"),
            cluster: None,
            tokens: Vec::new(),
            trusted_proxies: TrustedProxies::default(),
            cors_origins: None,
            publish_origins: Vec::new(),
            rate_limit: RateLimitConfig::default(),
            create_feeds: false,
            http_feeds: 1000,
            reload_on_change: false,
            threads: None,
            reserve_mib: 256,
            large_content_mib: 5120,
            cache_mib: 64,
            fetches: 16,
            fetch_mib: 256,
            private_fetches: PrivateFetchesConfig::Named,
            max_connections: None,
            max_connections_per_address: 1024,
            waiters: 50_000,
            longest_wait: five_minutes(),
            min_rate: 1000,
            rate_grace: Duration::from_secs(10),
            body_mib: 256,
            response_mib: 128,
            // Common proxies close connections that are idle for 30 or 60 s.
            heartbeat: Duration::from_secs(25),
            hubs: Vec::new(),
            metrics_feeds: 1000,
            access_log: None,
            allow_private_callbacks: false,
        }
    }
}
