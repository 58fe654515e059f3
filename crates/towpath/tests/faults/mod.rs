//! Real servers and nodes on real networks, what is done to them, and what clients and followers see of it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

pub mod clients;
pub mod followers;
pub mod harm;
pub mod linear;
pub mod machines;
pub mod network;
