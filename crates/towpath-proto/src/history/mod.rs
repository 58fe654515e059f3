//! Feed History: feeds that tell their past (draft-nottingham-atompub-feed-history-00, its later drafts, and
//! RFC 5005), in Atom, RSS and JSON Feed.
//!
//! | module | what |
//! |---|---|
//! | [`wire`] | what a document says of its place in a feed's history, in whichever draft's words |
//! | [`publish`] | documents from stretches of the log |
//! | [`follow`] | a state machine from responses to changes |
//! | [`check`] | conformance findings |

pub mod check;
pub mod follow;
pub mod publish;
pub mod wire;
