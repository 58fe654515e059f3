//! towpath as a library: the server, the pollers and the followers around the pure protocols of
//! [`towpath_proto`] and the log of [`towpath_store`].

pub(crate) mod alerts;
pub mod blocking;
pub mod cli;
pub use towpath_config as config;
pub mod document;
pub mod engine;
pub mod export;
mod plural;
mod private_files;
pub mod protocols;
pub mod server;
pub(crate) mod sink;
pub mod source;
pub(crate) mod spans;
pub mod stop;
pub mod store_error;
pub(crate) mod wall_clock;
