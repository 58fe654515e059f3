//! Feed History between publishers in memory, the follower and the check.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing helper fails the test")]
#![allow(unreachable_pub, reason = "an integration test is a crate of its own")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/histories.rs"]
mod histories;

#[path = "../common/planted.rs"]
#[allow(dead_code, reason = "not all helpers are used here")]
mod planted;

mod check;
mod examples;
mod follower;
mod gaps;
mod hostile;
mod positions;
mod publisher;
mod random;
mod round_trip;
mod schema;
mod web;
