//! Errors of a publisher's page or snapshot.

use jiff::Timestamp;

use crate::format::http_date::HttpDateError;
use crate::format::multipart::{BoundaryError, ContentTypeError, EntityError};

/// Violation of the text by a page, an entity or a snapshot: always the publisher's fault.
///
/// Entities count from 0 within their page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicationError {
    /// The page has no Content-Type.
    #[error("the page has no Content-Type header")]
    MissingContentType,
    /// The page is not multipart, or its boundary cannot be read.
    #[error(transparent)]
    ContentType(#[from] ContentTypeError),
    /// The boundary is empty or too long.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// The page has no Last-Modified.
    #[error("the page has no Last-Modified header")]
    MissingLastModified,
    /// The page's Last-Modified is not a date.
    #[error("the page's Last-Modified: {0}")]
    InvalidLastModified(HttpDateError),
    /// The feed page has no self link.
    #[error("the page has no Link header with rel=self")]
    MissingSelfLink,
    /// The page has no next link, although another page names it as its predecessor.
    #[error("the page has no Link header with rel=next, and {from} names it as its prev")]
    MissingNextLink {
        /// The page that links here.
        from: String,
    },
    /// The links of two adjacent pages do not match.
    #[error("the links of neighbours do not match: {from} has {rel} here, and back from here leads {back}")]
    InconsistentLinks {
        /// The page that links here.
        from: String,
        /// Its relation, `prev` or `next`.
        rel: &'static str,
        /// Target of the opposite link.
        back: String,
    },
    /// The links lead back to a page that was visited before.
    #[error("the feed forms a loop: {0} was visited already")]
    Loop(String),
    /// The links lead back along more pages than a feed may have.
    #[error("the feed has more than {limit} pages before this one: a prev link for each")]
    TooManyPages {
        /// Maximum number of pages.
        limit: usize,
    },
    /// The entity's Content-Type, Last-Modified, Content-ID or Operation-Type is missing.
    #[error("entity {index} has no {header} header")]
    MissingInEntity {
        /// Number of the entity.
        index: u64,
        /// Name of the header.
        header: &'static str,
    },
    /// The entity's Last-Modified is not a date.
    #[error("entity {index}: Last-Modified: {source}")]
    InvalidLastModifiedInEntity {
        /// Number of the entity.
        index: u64,
        /// Error of the date parser.
        source: HttpDateError,
    },
    /// The entity's Operation-Type is none of PUT, PATCH and DELETE.
    #[error("entity {index}: Operation-Type {value:?} is none of PUT, PATCH and DELETE")]
    UnknownOperation {
        /// Number of the entity.
        index: u64,
        /// The operation, without `http-equiv=`.
        value: String,
    },
    /// The entity's `Towpath-Item` cannot be parsed, in its header or in its body.
    #[error("entity {index}: Towpath-Item: {reason}")]
    ItemHeader {
        /// Number of the entity.
        index: u64,
        /// Error of the parser.
        reason: String,
    },
    /// The body is malformed, or an entity is too large.
    #[error(transparent)]
    Entity(#[from] EntityError),
    /// An entity is older than the one before it.
    #[error("entity {index}: timestamps go backwards, from {before} to {after}")]
    Backwards {
        /// Number of the entity.
        index: u64,
        /// The Last-Modified of the entity before it.
        before: Timestamp,
        /// The Last-Modified of the entity.
        after: Timestamp,
    },
    /// The page changed at or before the stored position.
    #[error("a published page was changed, at entity {index} or before it")]
    PageChanged {
        /// Number of the last entity that was read before.
        index: u64,
    },
    /// The feed has no page that is old enough to prove that nothing is missing.
    #[error("timestamps not old enough: the oldest page begins at {first}, and {wanted} was asked for")]
    NotOldEnough {
        /// First known time of the oldest page.
        first: Timestamp,
        /// The requested start.
        wanted: Timestamp,
    },
    /// The entity at the stored position is not in the feed.
    #[error("missing content ID: {0} was not found before a later entity or the end of the feed")]
    MissingContentId(String),
    /// The snapshot's index is not JSON, or a property is missing or has the wrong type.
    #[error("the snapshot's index: {0}")]
    Index(String),
}

impl ReplicationError {
    /// Returns the number of the entity, if the error concerns one.
    pub fn entity(&self) -> Option<u64> {
        match self {
            Self::MissingInEntity { index, .. }
            | Self::InvalidLastModifiedInEntity { index, .. }
            | Self::UnknownOperation { index, .. }
            | Self::ItemHeader { index, .. }
            | Self::Backwards { index, .. }
            | Self::PageChanged { index }
            | Self::Entity(
                EntityError::Multipart { index, .. }
                | EntityError::TooLarge { index, .. }
                | EntityError::Length { index, .. },
            ) => Some(*index),
            _ => None,
        }
    }
}
