//! Follower that receives pushes ("Updates/Synchronization via Push"). Its output equals that of a pulling
//! follower.
//!
//! 1. It subscribes, and pulls until it has caught up.
//! 2. A push that continues at its cursor is processed. Old pushes are discarded; after any other push it pulls.
//! 3. After a long silence it pulls anyway.
//!
//! Without a subscription it pulls only. Calls of the callback must reach [`Follower::handle_call`].

pub mod subscriber;
#[cfg(test)]
pub(super) mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::follow::{
    Call, Event, Exchange, FollowError, Follower, Monotonic, Now, ReadLimits, Reply, Request, RequestId,
    ResponseHead, StartFrom, TransferError,
};
use crate::push::websub::follow::subscriber::{SubscribeOptions, Subscriber};
use crate::smart::follow::SmartFollower;
use crate::smart::wire::{Collection, with_parameter};

/// Poll interval until the hub has confirmed the subscription.
const SETTLING: Duration = Duration::from_secs(2);

/// Follower of a Smart Feed with pushes.
#[derive(Debug)]
pub struct PushFollower {
    smart: SmartFollower,
    subscriber: Subscriber,
    silence: Duration,
    was_active: bool,
    warnings: VecDeque<Event>,
}

impl PushFollower {
    /// Follows the feed at `url` as [`SmartFollower::new`] does, with the same state, and subscribes to it.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Usage`] as there.
    pub fn new(
        url: &str,
        from: &StartFrom,
        state: Option<Value>,
        options: SubscribeOptions,
    ) -> Result<Self, FollowError> {
        let mut smart = SmartFollower::new(url, from, state, false)?;
        // Changes between the first pull and the subscription must not wait for long.
        smart.set_pace(Some(SETTLING));
        // Every page carries the links, so the smallest one is requested.
        let page = with_parameter(&with_parameter(smart.url(), "max", "1"), "timeout", "0");
        let silence = options.silence;
        let subscriber = Subscriber::new(&page, options);
        Ok(Self { smart, subscriber, silence, was_active: false, warnings: VecDeque::new() })
    }

    /// Sets the limits of what is read.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        self.smart = self.smart.within(limits);
        self
    }

    /// Returns `true` while the subscription is active.
    pub fn is_subscribed(&self, now: Now) -> bool {
        self.subscriber.is_active(now)
    }

    fn take(&mut self, now: Now, content_type: &str, body: &[u8]) {
        let page = if content_type.contains("xml") {
            Collection::from_atom_within(body, self.smart.url(), self.smart.limits().document)
        } else {
            Collection::from_json_within(body, self.smart.limits().document)
        };
        match page {
            Ok(page) => drop(self.smart.handle_push(now, page)),
            Err(error) => {
                self.warn(&format!("a push cannot be read: {error}"));
                // An unreadable push may hold changes, so they are pulled.
                self.smart.pull_now();
            }
        }
    }

    fn warn(&mut self, text: &str) {
        self.warnings.push_back(Event::Warning(format!("{}: {text}", self.smart.url())));
    }

    /// Selects pushes while subscribed, else polling.
    fn settle(&mut self, now: Now) {
        if let Some(problem) = self.subscriber.take_problem() {
            self.warn(&problem);
        }
        let is_active = self.subscriber.is_active(now);
        self.smart.set_pace(match (is_active, self.subscriber.is_hopeful()) {
            (true, _) => Some(self.silence),
            (false, true) => Some(SETTLING),
            (false, false) => None,
        });
        if is_active && !self.was_active {
            // Entries appended before the subscription began are not pushed.
            self.smart.pull_now();
        }
        self.was_active = is_active;
    }
}

impl Exchange for PushFollower {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        let request = self.subscriber.poll_request(now);
        self.settle(now);
        request.or_else(|| self.smart.poll_request(now))
    }

    fn handle_head(&mut self, now: Now, id: RequestId, head: ResponseHead) {
        self.subscriber.handle_head(id, head.clone());
        self.smart.handle_head(now, id, head);
    }

    fn handle_chunk(&mut self, now: Now, id: RequestId, chunk: Bytes) {
        self.subscriber.handle_chunk(id, &chunk);
        self.smart.handle_chunk(now, id, chunk);
    }

    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) {
        if self.subscriber.handle_end(now, id, result.clone()) {
            return self.settle(now);
        }
        self.smart.handle_end(now, id, result);
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        [self.subscriber.poll_timeout(), self.smart.poll_timeout()].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        false
    }
}

impl Follower for PushFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.warnings.pop_front().or_else(|| self.smart.poll_event())
    }

    fn has_caught_up(&self) -> bool {
        self.smart.has_caught_up()
    }

    fn handle_call(&mut self, now: Now, call: &Call) -> Reply {
        let (reply, delivered) = self.subscriber.handle_call(now, call);
        if let Some(body) = delivered {
            let content_type = call.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            self.take(now, content_type.unwrap_or_default(), &body);
        }
        self.settle(now);
        reply
    }
}
