//! The hub's side of WebSub: subscriptions, their verification, and deliveries.

pub mod address_block;
pub mod delivery;
pub mod dispatch;
pub mod subscription;
pub mod verification_queue;
pub mod verify;
