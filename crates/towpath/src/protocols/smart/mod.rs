//! Smart Feeds: pull requests, answered from the log now or after the next append.
//!
//! A [`PullRequest`] either has its page at once, or it is at the head of the log and may wait there. A waiting one
//! joins the [`PullWaitRegistry`], which answers all requests with the same [`PollKey`] by one [`SharedResponse`].

mod pull;
pub(crate) mod serve;
mod shared_poll;
mod state;
mod view;
pub mod wait_registry;

pub use crate::engine::access::Access;
pub use pull::{BuildResponse, PullRequest, PullRequestError, PullResult};
pub use shared_poll::{PollKey, PullPollHandle, PullWaitRegistry, PullWaiter, SharedFormat, SharedResponse};
pub(crate) use state::WaitingReaders;
pub use state::{Smart, settings};
pub use view::View;

pub(crate) use state::{on_append, on_removed};
