//! Real servers and nodes on real networks, the faults injected into them, and the checks of clients and followers.

pub mod clients;
pub mod events;
pub mod followers;
pub mod injector;
pub mod linearizability;
pub mod machines;
pub mod network;
