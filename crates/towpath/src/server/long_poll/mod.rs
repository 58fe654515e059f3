//! Long polls: requests that wait for an append, off hyper while they wait.
//!
//! The way of a long poll, for ten thousand clients that follow one feed:
//!
//! 1. **Request.** hyper parses it, `route` authorises it, [`serve`](crate::protocols::smart::serve) runs it. It is at the head of the log, so there is
//!    no page yet: [`serve`](crate::protocols::smart::serve) returns a [`LongPoll`].
//! 2. **Wait registry** ([`wait_registry`](crate::protocols::smart::wait_registry)). Requests with equal queries,
//!    access and format join one shared poll there. The position counts, not the cursor's text.
//! 3. **Parked** ([`parked`]). The connection is taken back from hyper, with all of hyper's buffers. What stays is a
//!    task with a socket: an idle long poll takes 2.0 kB of memory (the kernel's socket aside).
//! 4. **Append.** The store's hook has the registry run the query of each shared poll of that feed once. An append
//!    costs the same for one waiter as for ten thousand, except for their wake-ups.
//! 5. **Shared response** ([`shared_response`]). Its head and body are put into bytes once; each worker thread wakes
//!    its own waiters and writes these bytes to their sockets as they are.
//! 6. **Next request by the request cache** ([`request_cache`]). Clients of one program ask next in the same bytes.
//!    The first such request goes through hyper, as in step 1. Its bytes are cached, and requests with exactly these
//!    bytes join its shared poll while the log has not grown.
//!
//! So each wake and re-arm is one write and one read: 8 to 12 µs of processor time, 80,000 to 125,000 a second on one
//! core. [`timer`] and the signal to stop are set up once for each connection.
//!
//! Any other bytes, and incomplete requests, go to hyper with the socket: [`rewind`] lets hyper read them first. So
//! there is one parser, and one check of access and limits. At its deadline a request gets a response of its own,
//! sent by hyper: an empty page echoes the client's own cursor.
//!
//! [`events`] streams server-sent events from the same registry; its connections stay with hyper.

pub(super) mod events;
pub(super) mod many_events;
pub(super) mod parked;
pub(super) mod poll;
pub(super) mod request_cache;
pub(super) mod rewind;

mod shared_response;
mod timer;
