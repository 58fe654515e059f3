//! The types that publishers and followers share: documents, cursors, headers, addresses.
//!
//! | module | contents |
//! |---|---|
//! | [`cursor`] | cursors by canonical_v1 (sections 2.1 and 3) |
//! | [`headers`] | response headers and paths (sections 1 and 6) |
//! | `buckets` | the items of a document, as a follower reads them (section 4) |
//! | `documents` | the documents' fields (sections 1, 2 and 5), re-exported here |
//! | `delta_item`, `payload` | reading delta items (section 9) |
//! | `locate` | from a user's URL to a feed's documents (sections 1 and 8) |
//! | `uri` | RFC 3986 URIs, as the schema requires them |

mod buckets;
pub mod cursor;
pub(super) mod delta_item;
mod documents;
pub mod headers;
pub(super) mod locate;
pub(super) mod payload;
pub(super) mod uri;

pub use buckets::ItemBuckets;
pub use documents::{
    ArchiveIndex, DeltaCounts, DeltaDocument, DeltaKind, FLAGGED_FROM, FetchStatus, GLOBAL, HeadDocument,
    Impact, ImpactReason, SCHEMA_VERSION, SnapshotEntry, SourceStatus, Sources, StatusError, TTL_SEC,
};
pub(super) use documents::{hundredths, serialize_score};
