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
pub(super) struct Rearms(HashMap<Box<[u8]>, Rearm>);

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
        let rearm = self.0.get(request)?;
        let held = Held::again(rearm);
        if held.is_none() {
            self.0.remove(request);
        }
        held
    }

    /// Remembers what a request led to: all of the bytes from which hyper made it, and no others.
    pub(super) fn remember(&mut self, request: &[u8], held: &Held) {
        if request.is_empty() || request.len() > MAX_REQUEST {
            return;
        }
        if self.0.len() >= MAX_KNOWN {
            self.0.retain(|_, rearm| rearm.company.is_waiting());
        }
        if self.0.len() >= MAX_KNOWN {
            self.0.clear();
        }
        self.0.insert(request.into(), held.rearm());
    }
}
