//! The hub's side of WebSub: subscriptions, their verification, and deliveries. The publisher's pings to other hubs.

pub mod address_block;
pub mod delivery;
pub mod dispatch;
pub mod ping;
pub mod subscription;
pub mod verification_queue;
pub mod verify;
