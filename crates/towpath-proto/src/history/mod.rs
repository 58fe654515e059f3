//! Feed History: feeds with links to older entries (draft-nottingham-atompub-feed-history-00, its later drafts, and
//! RFC 5005), in Atom, RSS and JSON Feed.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | syntaxes, link relations, and the link to older entries in any draft's form |
//! | [`publish`] | documents from ranges of the log |
//! | [`follow`] | a state machine from responses to changes |
//! | [`check`] | conformance findings |

pub mod check;
pub mod follow;
pub mod publish;
pub mod wire;
