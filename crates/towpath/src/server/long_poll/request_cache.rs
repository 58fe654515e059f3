//! Request cache: the same request bytes lead to the same shared poll.
//!
//! Clients that follow a feed get the same cursor in a shared response, and ask next in the same words: ten thousand
//! instances of one program send the same bytes. hyper parses the first of these requests; it is routed, authorised
//! and run like any other. Its result is cached under all of its bytes. A request with exactly these bytes joins that
//! shared poll, until the feed's log grows.
//!
//! The result depends on nothing but these bytes, the head of the log and the configuration. So nothing is parsed
//! here and nothing is decided: there is no second parser, and no second check of limits. Only tokens of private feeds
//! are looked up again, because they can be withdrawn while the server runs.

use std::collections::HashMap;
use std::sync::Arc;

use towpath_proto::change::Seq;
use towpath_proto::smart::accept::PageFormat;

use super::poll::LongPoll;
use crate::protocols::smart::{PullPollHandle, PullRequest};

/// Longest request that is cached, in bytes.
// It is also a buffer on the stack of each read, so it stays small.
pub(super) const MAX_REQUEST: usize = 2048;
/// Most requests that one worker caches.
// One per program and feed is usual: each entry serves all clients that send these bytes.
const MAX_ENTRIES: usize = 64;

/// Cache of the requests that wait on the connections of one worker.
#[derive(Default)]
pub(in crate::server) struct RequestCache(BytesMap<CachedPoll>);

/// Result of a request that waits: all that a request with the same bytes needs to wait beside it.
pub(super) struct CachedPoll {
    /// The request.
    pub(super) request: Arc<PullRequest>,
    /// Format of the response.
    pub(super) format: PageFormat,
    /// Head of the log when the request was run.
    pub(super) after: Seq,
    /// The shared poll that it joined.
    pub(super) shared_poll: PullPollHandle,
}

impl CachedPoll {
    /// Makes the entry with which an equal request waits beside this one.
    fn of(poll: &LongPoll) -> Self {
        let (request, shared_poll) = (poll.request.clone(), poll.waiter.shared_poll());
        Self { request, format: poll.format, after: poll.after, shared_poll }
    }

    /// Waits in the shared poll. Returns `None` if there may be a page by now, or if the registry is full.
    fn rejoin(&self) -> Option<LongPoll> {
        let Self { request, format, after, shared_poll } = self;
        // Tokens can be withdrawn at any time, and this is the only check that equal bytes do not settle.
        if !request.is_still_allowed() {
            return None;
        }
        let waiter = request.rejoin(shared_poll, *after)?;
        request.engine.metrics.routed.inc();
        request.engine.metrics.rearmed.inc();
        // A new one from the request's own timeout; the first client's has begun earlier.
        let deadline = request.deadline();
        Some(LongPoll {
            waiter,
            after: *after,
            deadline,
            format: *format,
            request: request.clone(),
            origin: None,
        })
    }
}

impl RequestCache {
    /// Waits in the shared poll of the same bytes. Returns `None` if they are not cached, or not valid any more.
    pub(super) fn join(&mut self, request: &[u8]) -> Option<LongPoll> {
        let cached = self.0.0.get(request)?;
        let poll = cached.rejoin();
        // Mostly the log has grown. A poll that has its response never opens again.
        if poll.is_none() {
            // Now and not when the map is full: each entry holds a request with its feed.
            self.0.0.remove(request);
        }
        poll
    }

    /// Caches a request under its bytes: exactly the bytes from which hyper parsed it.
    pub(in crate::server) fn insert(&mut self, request: &[u8], poll: &LongPoll) {
        self.0.insert(request, CachedPoll::of(poll), |cached| cached.shared_poll.is_open());
    }
}

/// Bounded map from request bytes to values.
///
/// The keys hold bearer tokens. They are found by a hash with a random key, so a lookup's time tells nothing of them.
struct BytesMap<T>(HashMap<Box<[u8]>, T>);

impl<T> Default for BytesMap<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> BytesMap<T> {
    /// Inserts a value. A full map first drops the entries that are not useful, or else all.
    fn insert(&mut self, request: &[u8], value: T, is_useful: impl Fn(&T) -> bool) {
        // A look-up reads no more bytes than that, so a longer key would never be found.
        if request.is_empty() || request.len() > MAX_REQUEST {
            return;
        }
        if self.0.len() >= MAX_ENTRIES {
            self.0.retain(|_, cached| is_useful(cached));
        }
        // A client can fill the map with useful entries of its own; then the popular ones are back after one request.
        if self.0.len() >= MAX_ENTRIES {
            self.0.clear();
        }
        self.0.insert(request.into(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_cannot_grow_the_cache() {
        let mut map = BytesMap::default();
        for n in 0..1000_usize {
            map.insert(&n.to_be_bytes(), n, |_| true);
            assert!((1..=MAX_ENTRIES).contains(&map.0.len()));
        }
        map.insert(&[b'x'; MAX_REQUEST + 1], 0, |_| true);
        map.insert(&[], 0, |_| true);
        assert!(map.0.values().all(|n| *n > 0));
    }

    #[test]
    fn useless_entries_are_dropped_first() {
        let mut map = BytesMap::default();
        for n in 0..=MAX_ENTRIES {
            map.insert(&n.to_be_bytes(), n, |n| *n == 7);
        }
        let mut left: Vec<usize> = map.0.into_values().collect();
        left.sort_unstable();
        // The one useful entry, and the one that found the map full.
        assert_eq!(left, [7, MAX_ENTRIES]);
    }
}
