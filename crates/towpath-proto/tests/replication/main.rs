//! Data Replication between a publisher in memory and the follower.

#![expect(clippy::unwrap_used, clippy::panic, reason = "what helps a test may fail it")]

#[path = "../common/planted.rs"]
#[allow(dead_code, unreachable_pub, reason = "an integration test is a crate of its own")]
mod planted;

mod check;
mod consumer;
mod errors;
#[path = "../common/histories.rs"]
mod histories;
mod hostile;
mod mirror;
mod publisher;
mod random;
mod snapshots;
mod tail;
