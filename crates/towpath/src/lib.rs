//! towpath as a library: the server, the pollers and the followers around the pure protocols of
//! [`towpath_proto`] and the log of [`towpath_store`].

pub mod blocking;
pub mod cli;
pub mod client;
pub mod config;
pub mod engine;
mod random;
pub mod server;
mod shown;
pub mod source;
pub mod stop;
