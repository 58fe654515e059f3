//! Sources: documents that are polled, feeds that are mirrored, and their state.
//!
//! A poll has four independent steps: [`load`] fetches bytes, [`towpath_proto::format`] parses them,
//! [`towpath_proto::diff`] compares them with the known items, and the store appends the changes. [`poll`] runs the
//! steps, [`schedule`] decides when, by [`waits`]. [`mirror`] follows another feed instead.
//! `pushed` polls a source when its hub says so.

mod apply;
pub(crate) mod detail_visibility;
pub mod document;
pub(crate) mod fetch_permits;
pub mod load;
pub mod local;
pub(crate) mod metrics;
pub mod mirror;
pub mod poll;
mod poll_error;
pub(crate) mod poll_log;
pub mod poll_summary;
pub(crate) mod pushed;
pub mod schedule;
pub mod state;
pub(crate) mod status;
pub mod waits;

/// Returns a fetcher for a source: with its headers, and, if the operator named it, with access to private addresses.
fn fetcher_of(
    fetcher: &towpath_client::Fetcher,
    source: &crate::config::SourceConfig,
    url: &str,
) -> towpath_client::Fetcher {
    let fetcher = if source.is_from_http { fetcher.clone() } else { fetcher.with_named([url]) };
    match url::Url::parse(url) {
        Ok(url) => fetcher.with_headers(&url, source.header_map()),
        // Its requests fail.
        Err(_) => fetcher,
    }
}
