//! Helpers for several tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot make its input fails")]
#![allow(dead_code, unreachable_pub, reason = "each test is a crate of its own, and uses some of them")]

pub mod items;
pub mod mutate;
