//! Abuse of a running towpath: each attack is made as an attacker would, and a legitimate client is served meanwhile.
//!
//! The suite runs a short form. `cargo xtask abuse` runs the full one against a release build.

mod access;
mod connections;
mod documents;
mod everything;
mod http2;
mod hub;
mod threat_model;
mod tls;
mod web;

/// Returns the size of an attack: the first in the suite, the second in `cargo xtask abuse`.
fn size(short: usize, full: usize) -> usize {
    if std::env::var_os("TOWPATH_ABUSE_FULL").is_some() { full } else { short }
}
