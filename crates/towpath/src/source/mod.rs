//! Sources: documents that are polled, and what is known of each between polls.
//!
//! One poll is four steps that know nothing of each other: [`load`] gets bytes, the formats of
//! [`towpath_proto::format`] read them, [`towpath_proto::diff`] compares with what is known, and the store
//! appends. [`poll`] goes through them, [`schedule`] says when. A source may also be a feed that is followed: [`mirror`].

pub mod load;
pub mod mirror;
pub mod poll;
pub mod schedule;
pub mod state;
