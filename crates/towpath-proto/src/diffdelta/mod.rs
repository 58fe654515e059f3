//! DiffDelta Feed Specification v1: verifiable JSON deltas, cursors, archives.
//!
//! A publisher turns a feed's log into documents. For each source, in this order:
//!
//! 1. [`DeltaWindow`]: the changes since the last minted place, collapsed into item deltas;
//! 2. [`SourcePublisher::mint`] where there are deltas (or on the first success), [`SourcePublisher::carry`] otherwise: both
//!    give `latest.json`, `head.json` and the chain's new state, a mint also an archive snapshot;
//! 3. [`GlobalPublisher`], the same over all sources, fed with what the sources minted.
//!
//! Every cursor can be recomputed by anyone with [`cursor::prove`]; [`DiffDeltaFollower`] does so with every
//! document on its way. The decisions where the text is silent are in the project's protocol notes.
//!
//! | part | the text |
//! |---|---|
//! | [`wire`] | sections 1, 2, 3, 6 and 9: documents, cursors, headers, delta items as both ends have them |
//! | [`publish`] | sections 2, 4, 5, 8 and 9: from a feed's log to documents and chains |
//! | [`follow`] | sections 2.2, 2.3 and 6: from anybody's documents to changes |
//! | [`check`] | sections 1 to 9: the conformance check |

pub mod check;
pub mod follow;
pub mod publish;
pub mod wire;

pub use check::DiffDeltaChecker;
pub use follow::{DiffDeltaFollower, FollowOptions};
pub use publish::collapse::{Delta, DeltaWindow, StateDigest};
pub use publish::global::{GlobalChain, GlobalPublisher, PendingDeltas};
pub use publish::{DocumentChain, PublishedDocuments, Repeats, SiteUrl, SourcePublisher};
pub use publish::{collapse, delta_item, discovery, global};
pub use wire::cursor::{Cursor, Proof, prove};
pub use wire::{cursor, headers};
