//! Requests that are known: the same bytes again lead to the same waiting.
//!
//! Clients that follow a feed are answered with the same cursor, and ask next in the same words: ten thousand of one
//! program send the same bytes. hyper parses the first of them, which is routed, authorised and answered from the log
//! as any other. What it led to is remembered by its bytes, all of them, and those who send exactly these join it,
//! until the feed's log moves. Everything that the answer could depend on is in those bytes, in the place where the log
//! ends, or in the configuration; so nothing is parsed here, and nothing is decided.

use std::collections::HashMap;
use std::sync::Arc;

use towpath_proto::change::Seq;
use towpath_proto::smart::accept::PageFormat;

use super::smart::Held;
use crate::engine::smart::{Asked, Company};

/// The longest request that is remembered, in bytes.
pub(super) const MAX_REQUEST: usize = 2048;
/// How many different requests each worker remembers at the most.
const MAX_KNOWN: usize = 64;

/// What a worker remembers of the requests that wait on its connections.
#[derive(Default)]
pub(super) struct Rearms(Known<Rearm>);

/// What a request led to.
pub(super) struct Rearm {
    /// What was asked.
    pub(super) asked: Arc<Asked>,
    /// In which format the answer is to be.
    pub(super) format: PageFormat,
    /// Where the log ended, when there was no answer.
    pub(super) after: Seq,
    /// Who waits for the answer.
    pub(super) company: Company,
}

impl Rearms {
    /// Waits as those do who sent the same bytes before. `None` where they, or what came of them, are not known.
    pub(super) fn join(&mut self, request: &[u8]) -> Option<Held> {
        let rearm = self.0.0.get(request)?;
        let held = Held::again(rearm);
        if held.is_none() {
            self.0.0.remove(request);
        }
        held
    }

    /// Remembers what a request led to: all of the bytes from which hyper made it, and no others.
    pub(super) fn remember(&mut self, request: &[u8], held: &Held) {
        self.0.put(request, held.rearm(), |known| known.company.is_waiting());
    }
}

/// What is known of requests, by their bytes. There are tokens among them: they are found by a hash with a random key,
/// so that the time that it takes says nothing of them.
struct Known<T>(HashMap<Box<[u8]>, T>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Known<T> {
    /// Adds one. Where there are too many, those are forgotten that are of no use any more, or else all.
    fn put(&mut self, request: &[u8], value: T, is_of_use: impl Fn(&T) -> bool) {
        if request.is_empty() || request.len() > MAX_REQUEST {
            return;
        }
        if self.0.len() >= MAX_KNOWN {
            self.0.retain(|_, known| is_of_use(known));
        }
        if self.0.len() >= MAX_KNOWN {
            self.0.clear();
        }
        self.0.insert(request.into(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_make_up_is_bounded() {
        let mut known = Known::default();
        for n in 0..1000_usize {
            known.put(&n.to_be_bytes(), n, |_| true);
            assert!((1..=MAX_KNOWN).contains(&known.0.len()));
        }
        known.put(&[b'x'; MAX_REQUEST + 1], 0, |_| true);
        known.put(&[], 0, |_| true);
        assert!(known.0.values().all(|n| *n > 0));
    }

    #[test]
    fn what_is_of_no_use_goes_first() {
        let mut known = Known::default();
        for n in 0..=MAX_KNOWN {
            known.put(&n.to_be_bytes(), n, |n| *n == 7);
        }
        let mut left: Vec<usize> = known.0.into_values().collect();
        left.sort_unstable();
        assert_eq!(left, [7, MAX_KNOWN]);
    }
}
