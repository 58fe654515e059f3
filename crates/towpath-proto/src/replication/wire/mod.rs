//! The types that publishers and followers share: headers, entities, a snapshot's index, errors.

mod empty_feed;
pub mod entity;
mod error;
mod headers;
mod snapshot;

pub(super) use empty_feed::says_empty;
pub use empty_feed::{EMPTY_FEED, empty_feed};
pub use error::ReplicationError;
pub use headers::{
    CONTENT_ID, EntityHead, FeedEntityHead, FeedPageHead, IN_BODY, IN_BODY_TYPE, ITEM, OPERATION_TYPE,
    PageHead, operation_type, parse_operation_type,
};
pub(super) use snapshot::says_json;
pub use snapshot::{Continuation, SnapshotIndex, floor_to_second};
