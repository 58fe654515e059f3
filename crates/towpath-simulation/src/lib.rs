//! Deterministic simulation of towpath: one seed decides everything that happens, and a run can be repeated.
//!
//! | part | real | modelled |
//! |---|---|---|
//! | nodes | engine, protocols, sources, mirrors, background tasks, router, hyper | the listener; long polls wait in hyper, as those of encrypted connections |
//! | store | deciding, applying, notifying, reading, opening it again, the engine with its files | when the commit thread runs ([`gate`]), the pause after a failed write ([`recovery`]), syncs, crashes and full disks ([`disk`]) |
//! | webhook | the sink with its tasks, its positions in the store | the [`receiver`] |
//! | hub | subscriptions, their verification, deliveries | the [`subscriber`] |
//! | clients | fetcher, discovery, followers, their driver | the output: a copy that is saved as a database would ([`follower`]) |
//! | network | HTTP on both sides | the streams that carry it ([`network`]) |
//! | time, randomness | all uses of them | the functions of the C library that tell them ([`system`]) |
//!
//! Everything runs in one thread, by tokio's paused clock. A store's commit thread runs only while that thread waits for
//! it. A run is a process of its own, because some states of the program are global. Clusters, other sinks and XMPP have
//! tests of their own, and no part in it.

#![cfg(target_os = "linux")]

pub mod bug;
pub mod command;
pub mod disk;
pub mod fleet;
pub mod follower;
pub mod gate;
pub mod ledger;
pub mod many;
pub mod network;
pub mod node;
pub mod publisher;
pub mod receiver;
pub mod recovery;
pub mod run;
pub mod store;
pub mod subscriber;
pub mod system;
pub mod trace;
pub mod world;
