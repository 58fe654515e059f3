//! The five feed protocols of towpath as pure functions and state machines.
//!
//! No code here opens a socket or a file, starts a task, or reads a clock: bytes and times are arguments.
//! `publish` modules turn a read-only view of a feed's log into documents. `follow` modules are state
//! machines that return requests and turn responses into [`follow::Event`]s. `wire` modules hold the types
//! that both ends share, and `check` modules test conformance.
//!
//! | module | specification |
//! |---|---|
//! | [`diffdelta`] | DiffDelta Feed Specification v1 |
//! | [`replication`] | Data Replication: multipart pages and snapshots |
//! | [`history`] | draft-nottingham-atompub-feed-history-00 and RFC 5005 |
//! | [`smart`] | Smart Feeds: ordered collections with cursors |
//! | [`sup`] | Simple Update Protocol |
//! | [`push`] | WebSub and XMPP: push transports of Smart Feeds |

pub mod address;
pub mod attachment;
pub mod change;
pub mod diff;
pub mod diffdelta;
pub mod duration;
pub mod feed_id;
pub mod follow;
pub mod format;
pub mod history;
pub mod item;
pub mod line;
pub mod patch;
pub mod push;
pub mod replication;
pub mod report;
pub mod risk;
pub mod smart;
pub mod sup;

#[cfg(test)]
#[path = "../tests/common/histories.rs"]
mod histories;
#[cfg(test)]
#[path = "../tests/common/planted.rs"]
#[allow(dead_code, unreachable_pub, reason = "integration tests use it, too")]
mod planted;

pub use change::{Change, NewChange, Op, Seq};
pub use feed_id::FeedId;
pub use item::{Author, Content, ContentHash, Item};
pub use jiff::Timestamp;
