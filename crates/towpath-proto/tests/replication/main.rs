//! Data Replication between a publisher in memory and the follower.

mod consumer;
mod errors;
mod mirror;
mod publisher;
mod random;
mod snapshots;
