//! WebSub, and PubSubHubbub 0.3 and 0.4 before it: subscriptions of Smart Feeds, from both sides.
//!
//! | part | contents | specifications | //! |---|---|---| //! | [`wire`] | requests, forms, signatures,
//! discovery of a topic's hub | WebSub 4, 5.1, 7.1; PubSubHubbub 0.3 sections 5, 6.1, 7.4 | //! | [`publish`]
//! | the hub: verification, subscriptions, deliveries | WebSub 5.3, 7; Smart Feeds "Push Interface" | //! |
//! [`follow`] | the subscriber, and a follower that receives pushes | WebSub 5; Smart Feeds "HTTP Push",
//! "Updates/Synchronization via Push" | //! | [`check`] | conformance findings about a hub | WebSub, Smart
//! Feeds "HTTP Push" |
//!
//! The presence of `hub.verify` selects the dialect: PubSubHubbub 0.3 requires it, later versions do not
//! define it.

pub mod check;
pub mod follow;
pub mod publish;
pub mod wire;

#[cfg(test)]
mod tests;

pub use follow::subscriber;
pub use publish::{address_block, delivery, dispatch, ping, subscription, verification_queue, verify};
pub use wire::{Dialect, Mode, decode_unreserved, request, signature};
