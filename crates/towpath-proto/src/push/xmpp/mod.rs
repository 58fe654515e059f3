//! Smart Feeds over XMPP ("XMPP Pull/Push"): publish-subscribe nodes, paged by result set management.
//!
//! | part | contents | specifications | //! |---|---|---| //! | [`wire`] | streams, stanzas, addresses,
//! payloads, the session of a client | RFC 6120, 7622, 5122; XEP-0059, 0060, 0131 | //! | [`publish`] | the
//! component: its stream, answers, pushes | XEP-0030, 0060, 0114; Smart Feeds "Push Interface" | //! |
//! [`follow`] | the follower of a node | Smart Feeds "Updates/Synchronization via Push" | //! | [`check`] |
//! conformance findings about a node | all of them |

pub mod check;
pub mod follow;
pub mod publish;
pub mod wire;

#[cfg(test)]
mod tests;

pub use publish::{component, fanout};
pub use wire::{jid, session, stream, uri};
