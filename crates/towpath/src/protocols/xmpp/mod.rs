//! XMPP: feeds as topics of a component beside an XMPP server.

mod answer;
mod state;
mod stored;
mod task;

pub use task::run;

pub(crate) use state::on_append;
