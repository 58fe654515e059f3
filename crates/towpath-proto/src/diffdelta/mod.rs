//! DiffDelta Feed Specification v1: verifiable JSON deltas, cursors, archives.
//!
//! A publisher turns a feed's log into documents. For each source, in this order:
//!
//! 1. [`Window`]: the changes since the last minted place, collapsed into item deltas;
//! 2. [`Source::mint`] where there are deltas (or on the first success), [`Source::carry`] otherwise: both
//!    give `latest.json`, `head.json` and the chain's new state, a mint also an archive snapshot;
//! 3. [`Global`], the same over all sources, fed with what the sources minted.
//!
//! Every cursor can be recomputed by anyone with [`cursor::prove`]; [`DiffDeltaFollower`] does so with every
//! document on its way. The decisions where the text is silent are in the project's protocol notes.
//!
//! | module | the text |
//! |---|---|
//! | [`cursor`] | section 3: canonical_v1 |
//! | [`wire`] | sections 1 and 2: the documents' fields |
//! | [`delta_item`] | section 9: an item as a delta, and back |
//! | [`collapse`], [`publish`], [`global`] | sections 2, 4 and 5: deltas, chains, documents |
//! | [`discovery`], [`headers`] | sections 6, 8 and 9 |

pub mod check;
pub mod collapse;
pub mod cursor;
pub mod delta_item;
pub mod discovery;
mod document;
pub mod follow;
pub mod global;
pub mod headers;
pub mod publish;
mod site;
mod uri;
pub mod wire;

pub use check::DiffDeltaChecker;
pub use collapse::{Delta, StateDigest, Window};
pub use cursor::{Cursor, Proof, prove};
pub use follow::{DiffDeltaFollower, FollowOptions};
pub use global::{Global, GlobalChain, Pending};
pub use publish::{Chain, Published, Site, Source};

#[cfg(test)]
mod testing;
