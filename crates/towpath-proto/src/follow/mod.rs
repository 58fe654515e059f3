//! The kit of every follower and conformance check: exchange of requests and responses, backoff, time.
//!
//! A follower is a state machine without sockets or clock. Its driver calls, in this order, over and over:
//!
//! 1. [`Follower::poll_event`] until it is empty: deliver the changes, flush them, then persist the last
//!    [`Event::Checkpoint`];
//! 2. [`Exchange::poll_request`] until it is empty: send each request;
//! 3. for each response [`Exchange::handle_head`], [`Exchange::handle_chunk`] for every piece of the body,
//!    and [`Exchange::handle_end`] once;
//! 4. with no request in flight, wait until [`Exchange::poll_timeout`] and start over. The follower has ended
//!    when [`Exchange::is_finished`].
//!
//! Every call passes in [`Now`]: monotonic time for timers, wall-clock time for dates.

mod backoff;
mod content_file;
mod download;
mod exchange;
mod filter;
pub(crate) mod html_answer;
mod mode;
mod named;
pub(crate) mod probes;
mod read_limits;
pub(crate) mod single_request;
mod start;
mod time;

pub use backoff::Backoff;
pub(crate) use content_file::add_file;
pub use content_file::{ContentFile, ContentFolder, FileChange};
pub use download::{BodyUse, ChunkUse, Download, DownloadEnd, DownloadStep, FileLimit};
pub use exchange::{
    Call, Checker, Event, Exchange, FeedReset, FollowError, Followed, Follower, LargePart, LargeStep, Reply,
    Request, RequestId, ResponseHead, TOWPATH_FEED, TOWPATH_RESET, TransferError, after_colon, retry_after,
};
pub use filter::{FilteredFollower, FollowFilter};
pub use mode::FollowMode;
pub use named::FeedName;
pub(crate) use read_limits::MAX_DOCUMENT;
pub use read_limits::ReadLimits;
pub use start::StartFrom;
pub(crate) use start::{meant, no_start};
pub use time::{Monotonic, Now};
