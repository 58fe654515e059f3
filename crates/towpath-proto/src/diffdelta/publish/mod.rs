//! From a feed's log to documents: deltas, chains, the global feed, discovery (sections 1, 2, 4, 5, 8 and 9).
//!
//! A run that found deltas *mints* a document. A run that found none *carries* the last one: new times, the
//! same cursor, and the last deltas for clients that skipped a run.
//!
//! Write the result in this order: the snapshot (created exclusively, never rewritten), its index entry and
//! the chain, `latest.json`, `head.json`. A reader that sees a head then finds all that it refers to.
//!
//! | module | contents |
//! |---|---|
//! | [`collapse`] | a range of the log as deltas |
//! | [`delta_item`] | a delta as JSON text |
//! | `document`, `chain` | canonical documents and the chain of cursors |
//! | [`Repeats`] | earlier changes that a mint shows again |
//! | `source`, [`global`] | the publishers of a source and of the global feed |
//! | [`discovery`] | manifest, source list, health, archive indexes, schemas |

mod chain;
pub mod collapse;
pub mod delta_item;
pub mod discovery;
mod document;
pub mod global;
mod health;
mod repeats;
mod site;
mod source;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

pub use chain::{CarryError, DocumentChain, NewSnapshot, PublishedDocuments};
pub use health::SourceHealth;
pub use repeats::{Repeats, wait_after_mint};
pub use site::SiteUrl;
pub use source::{SourceAbout, SourcePublisher};
