//! DiffDelta: a chain of documents for each feed, stored beside the log, and the global feed over all of them.
//!
//! Each run of a source ends in [`publish`], whether it found changes or not. Feeds that are published to have no runs:
//! a task publishes them after appends, many changes at a time where they come fast ([`run`]).

mod documents;
pub(crate) mod export;
mod global;
mod global_included;
mod global_stored;
mod publish;
mod recovery;
mod run;
pub(crate) mod serve;
pub(crate) mod site;
mod site_documents;
mod source_chain;
mod state;
pub(crate) mod stored;
mod task;
#[cfg(test)]
mod tests;
pub(crate) mod verify;

pub(crate) use publish::PUBLISH;
pub use publish::publish;
pub use recovery::recover;
pub use run::Run;
pub use state::DiffDelta;
pub use task::{HeldRole, publish_pending, refresh, run};

pub(crate) use documents::archive_path;
pub(crate) use recovery::Recovery;
pub(crate) use state::{on_append, on_chain_written};
pub(crate) use task::apply_remote;
