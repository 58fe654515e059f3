//! The HTTP server.
//!
//! Each worker thread runs a single-threaded runtime. The acceptor hands connections to the workers in turn: a request is
//! read, answered and written without crossing to another core. A prebuilt document is sent right where the request is
//! parsed (`connection`); all other requests take `route`.

mod accept;
mod access_log;
mod admission;
mod browser_policy;
mod connection;
pub(crate) mod console;
mod date;
mod descriptors;
#[cfg(test)]
mod dropped_requests;
mod expensive;
mod feed_settings;
mod file_response;
mod guarded_stream;
mod health;
mod http2;
mod if_match;
mod item_response;
mod items;
mod listeners;
mod long_head;
mod long_poll;
mod metrics;
mod openapi;
pub mod problem;
pub(crate) mod publish;
mod publish_cors;
mod range;
mod read_links;
mod read_your_writes;
mod response;
mod route;
mod routed;
mod service;
mod session;
mod sinks;
mod starting;
mod tls;
mod uploads;

pub use accept::serve;
pub(crate) use access_log::ACCESS_TARGET;
pub use connection::StreamServer;
pub use descriptors::DescriptorBudget;
pub use listeners::{Listeners, ServeError, StartedListeners};
pub(crate) use starting::answer_starting;
pub(crate) use tls::LoadedTls;
pub use tls::{TlsError, TlsIdentity};
