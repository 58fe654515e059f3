//! Smart Feeds: ordered collections with cursors.
//!
//! The publisher reads a [`query::PullQuery`], runs a [`pull::Pull`] over reads of the log until it has a
//! [`pull::Page`], and writes that with [`publish`]. [`filter`] makes different feeds of the same log,
//! [`events`] writes Server-Sent Events. [`follow`] mirrors any publisher's feed, and [`check`] says what one
//! lacks.

pub mod accept;
pub mod atom;
pub mod check;
mod check_rules;
pub mod cursor;
pub mod events;
pub mod filter;
pub mod follow;
pub mod jsonp;
mod name;
pub mod plan;
pub mod publish;
pub mod pull;
pub mod push;
pub mod query;
mod resolve;
pub mod spec;
mod start;
pub mod toc;
pub mod wire;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod follow_tests;
#[cfg(test)]
mod follow_url_tests;
#[cfg(test)]
pub(crate) mod memory;
#[cfg(test)]
mod publish_tests;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod waiting_tests;
