//! The registry of a running towpath: configuration, log, feeds, clock and documents.
//!
//! It knows no protocol and no server. A protocol keeps its state in [`Extensions`], per engine or per feed, and
//! learns of appends through [`Hooks`].

pub mod access;
pub(crate) mod append_counts;
pub(crate) mod attachments;
pub(crate) mod certificate;
pub(crate) mod change_counts;
pub(crate) mod changed_feeds;
pub(crate) mod check_pool;
pub(crate) mod client_address;
pub(crate) mod disk;
pub(crate) mod export_health;
mod extensions;
mod failures;
mod feed;
pub(crate) mod feed_about;
mod feed_changes;
mod feed_map;
mod feed_records;
pub(crate) mod finding;
pub(crate) mod health_parts;
mod hooks;
mod hubs;
pub(crate) mod identity;
pub(crate) mod item_versions;
pub(crate) mod json_record;
mod log_health;
pub(crate) mod log_upkeep;
mod metrics;
pub(crate) mod mirror_state;
mod private_feeds;
pub mod publish;
pub(crate) mod rate_limit;
pub(crate) mod read_link;
mod registry;
pub(crate) mod removed_feed;
mod replica_age;
pub(crate) mod request;
pub(crate) mod request_body;
pub mod roles;
pub mod scheduled;
pub mod sink_status;
pub mod sinks;
pub(crate) mod source_control;
mod store_health;
mod store_watch;
pub(crate) mod stored_feeds;
pub(crate) mod table_keys;
pub(crate) mod table_scan;
pub mod tokens;
pub(crate) mod work;
mod written_feeds;

pub use extensions::Extensions;
pub use feed::Feed;
pub use feed_changes::{FeedChanges, FeedPlan};
pub use feed_map::SortedFeeds;
pub use hooks::{Append, FeedAppendHook, Hooks, TableWriteHook};
pub use metrics::Metrics;
pub(crate) use registry::risk_scorer;
pub use registry::{Engine, EngineError, FeedRemovedHook};
pub(crate) use store_watch::watch_store;
