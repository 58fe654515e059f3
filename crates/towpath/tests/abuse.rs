//! Abuse of a running towpath: each attack is made as an attacker would, and a legitimate client is served meanwhile.
//!
//! The suite runs a short form. `cargo xtask abuse` runs the full one against a release build.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

#[path = "abuse/access.rs"]
mod access;
#[path = "abuse/connections.rs"]
mod connections;
#[path = "abuse/documents.rs"]
mod documents;
#[path = "abuse/everything.rs"]
mod everything;
#[path = "abuse/http2.rs"]
mod http2;
#[path = "abuse/hub.rs"]
mod hub;
#[path = "abuse/threat_model.rs"]
mod threat_model;
#[path = "abuse/tls.rs"]
mod tls;
#[path = "abuse/web.rs"]
mod web;

/// Returns the size of an attack: the first in the suite, the second in `cargo xtask abuse`.
#[allow(dead_code)]
fn size(short: usize, full: usize) -> usize {
    if std::env::var_os("TOWPATH_ABUSE_FULL").is_some() { full } else { short }
}
