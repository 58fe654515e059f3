//! The consumer's side: fetches documents over HTTP and drives the protocols' state machines.
//!
//! | module | what |
//! |---|---|
//! | [`fetch`] | one request and its response: redirects, time-outs, limits |
//! | [`body`] | a response's body, piece by piece |
//! | [`callback`] | requests to addresses that somebody else has named |
//! | [`drive`] | carries a follower's or a check's requests and hands over what it tells |
//! | [`fleet`] | many feeds, by their SUP documents where there are some |
//! | [`protocol`] | the followers and checks that there are |
//! | [`discover`] | which protocol an address can best be followed by |
//! | [`listen`] | the callback of a follower that is pushed to |
//! | [`local`] | the same for files of this machine |
//! | [`validators`] | conditional requests |
//! | [`clock`] | where the time comes from |
//! | [`backoff`] | how long to wait after a failure |
//! | [`xmpp`] | nodes, with an account of an XMPP server |

pub mod backoff;
pub mod body;
pub mod callback;
mod carrier;
pub mod clock;
mod coding;
pub mod discover;
pub mod drive;
pub(crate) mod explain;
pub mod fetch;
pub mod fleet;
mod heard;
pub mod listen;
pub mod local;
mod plain;
pub mod protocol;
mod tls;
pub mod validators;
pub mod xmpp;

pub use backoff::{backoff, backoff_or_asked};
pub use body::Body;
pub use callback::{CallError, CallOptions, Called, Caller};
pub use clock::{Clock, SystemClock};
pub use discover::{DiscoverError, Offer, discover};
pub use drive::{Ended, Notice, Output, drive, drive_called, drive_check};
pub use fetch::{FetchOptions, Fetched, Fetcher, Whole};
pub use listen::{Called as Delivered, Calls, ListenError, listen};
pub use local::{local_path, read_local};
pub use protocol::{Follow, Protocol, checker, follower, hub_checker, pushed_follower};
pub use tls::SetupError;
pub(crate) use tls::install_provider;
pub use validators::Validators;
