//! Simple Update Protocol: the documents that list the feeds with recent updates.

pub(crate) mod serve;
mod state;

pub use state::{DELAY, Sup};

pub(crate) use state::{Arrival, on_append, recover};
