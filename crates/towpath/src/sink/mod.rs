//! `[[sink]]`: copies feeds into destinations, each under a role of its own, so that one node of a cluster does it.
//!
//! | module | content |
//! |---|---|
//! | [`supervisor`] | begins and ends the tasks, at the start and at a reload |
//! | [`run`] | a sink's task: attempts, waits, pauses |
//! | [`own_feeds`] | reads own feeds straight from the log |
//! | [`foreign_feed`] | follows a feed of another server |
//! | [`stored_sink`] | checkpoints in the store, for destinations without a place for them |
//! | [`letters`] | items that a destination refused |
//! | [`orders`] | pause, resume, resend |
//! | [`health`] | notes for status, metrics and the log |
//!
//! The state that others read is in [`crate::engine::sinks`].

mod changes;
mod destination;
mod foreign_feed;
mod health;
pub(crate) mod letters;
pub(crate) mod orders;
mod own_feeds;
mod run;
mod stored_sink;
mod supervisor;

pub(crate) use destination::check;
pub(crate) use supervisor::run;
