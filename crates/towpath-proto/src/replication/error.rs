//! What a publisher's page or snapshot can have wrong.

use jiff::Timestamp;

use crate::format::http_date::HttpDateError;
use crate::format::multipart::{BoundaryError, ContentTypeError, EntityError};

/// How a page, an entity or a snapshot breaks the text. Always the publisher's fault. Entities count from 0
/// within their page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicationError {
    /// A page without a Content-Type.
    #[error("the page has no Content-Type header")]
    MissingContentType,
    /// A page that is not multipart, or whose boundary cannot be read.
    #[error(transparent)]
    ContentType(#[from] ContentTypeError),
    /// A boundary that no parser can take.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// A page without a Last-Modified.
    #[error("the page has no Last-Modified header")]
    MissingLastModified,
    /// A page whose Last-Modified is no date.
    #[error("the page's Last-Modified: {0}")]
    InvalidLastModified(HttpDateError),
    /// A feed page without a self link.
    #[error("the page has no Link header with rel=self")]
    MissingSelfLink,
    /// A page that another one calls its predecessor has no next link.
    #[error("the page has no Link header with rel=next, and {from} names it as its prev")]
    MissingNextLink {
        /// The page that links here.
        from: String,
    },
    /// The links of two neighbours do not match.
    #[error("the links of neighbours do not match: {from} has {rel} here, and back from here leads {back}")]
    InconsistentLinks {
        /// The page that links here.
        from: String,
        /// Its relation, `prev` or `next`.
        rel: &'static str,
        /// Where the opposite link leads instead.
        back: String,
    },
    /// Following the links leads back to a page that was there before.
    #[error("the feed forms a loop: {0} was visited already")]
    Loop(String),
    /// The entity's Content-Type, Last-Modified, Content-ID or Operation-Type is missing.
    #[error("entity {index} has no {header} header")]
    MissingInEntity {
        /// Which entity.
        index: u64,
        /// Which header.
        header: &'static str,
    },
    /// The entity's Last-Modified is no date.
    #[error("entity {index}: Last-Modified: {source}")]
    InvalidLastModifiedInEntity {
        /// Which entity.
        index: u64,
        /// What stands there.
        source: HttpDateError,
    },
    /// The entity's Operation-Type is none of PUT, PATCH and DELETE.
    #[error("entity {index}: Operation-Type {value:?} is none of PUT, PATCH and DELETE")]
    UnknownOperation {
        /// Which entity.
        index: u64,
        /// The operation, without `http-equiv=`.
        value: String,
    },
    /// The entity's `Towpath-Item` cannot be read, in its header or in its body.
    #[error("entity {index}: Towpath-Item: {reason}")]
    ItemHeader {
        /// Which entity.
        index: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The body is broken, or an entity is too large.
    #[error(transparent)]
    Entity(#[from] EntityError),
    /// An entity is older than the one before it.
    #[error("entity {index}: timestamps go backwards, from {before} to {after}")]
    Backwards {
        /// Which entity.
        index: u64,
        /// The Last-Modified of the entity before it.
        before: Timestamp,
        /// Its own.
        after: Timestamp,
    },
    /// What stands before the remembered place of a page is not what stood there.
    #[error("a published page was changed, at entity {index} or before it")]
    PageChanged {
        /// The last entity that was known.
        index: u64,
    },
    /// The feed has no page that is old enough to prove that nothing is missing.
    #[error("timestamps not old enough: the oldest page begins at {first}, and {wanted} was asked for")]
    NotOldEnough {
        /// Where the oldest page begins, as far as known.
        first: Timestamp,
        /// What was asked for.
        wanted: Timestamp,
    },
    /// The remembered entity is not in the feed.
    #[error("missing content ID: {0} was not found before a later entity or the end of the feed")]
    MissingContentId(String),
    /// A snapshot's index is no JSON, or a property is missing or of another type.
    #[error("the snapshot's index: {0}")]
    Index(String),
}

impl ReplicationError {
    /// The entity that it is about, where it is about one.
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
