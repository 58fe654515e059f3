//! The consumer's side: fetches documents over HTTP and drives the protocols' state machines.
//!
//! | module | what |
//! |---|---|
//! | [`fetch`] | one request and its response: redirects, time-outs, limits |
//! | [`body`] | a response's body, piece by piece |
//! | [`local`] | the same for files of this machine |
//! | [`validators`] | conditional requests |
//! | [`backoff`] | how long to wait after a failure |

pub mod backoff;
pub mod body;
mod coding;
mod explain;
pub mod fetch;
pub mod local;
mod tls;
pub mod validators;

pub use backoff::{backoff, retry_after};
pub use body::Body;
pub use fetch::{FetchOptions, Fetched, Fetcher, Whole};
pub use local::{local_path, read_local};
pub use tls::SetupError;
pub use validators::Validators;
