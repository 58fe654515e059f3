//! XMPP: feeds as topics of a component beside an XMPP server.

mod answer;
mod state;
mod stored;
pub(crate) mod subscribers;
mod task;

pub use task::run;

pub(crate) use state::{on_append, on_removed};
