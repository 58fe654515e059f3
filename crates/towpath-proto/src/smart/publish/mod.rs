//! Publishing a log as a Smart Feed: from a pull request to its response.
//!
//! The publisher reads a [`query::PullQuery`], runs a [`pull::Pull`] over reads of the log until it has a
//! [`pull::PullPage`], and writes that with [`respond`]. [`filter`] makes different feeds of the same log, [`events`]
//! writes Server-Sent Events.

pub mod atom;
pub mod cursor;
mod error;
pub mod events;
pub mod filter;
mod json;
pub mod jsonp;
pub mod lines;
mod links;
pub mod log_read;
mod page;
pub mod pull;
pub mod query;
mod query_error;
mod response;
mod settings;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod toc;

pub use self::json::json;
pub use self::links::{PullPageLinks, topic_links};
pub use self::response::{fail, not_acceptable, push, refuse, respond};
