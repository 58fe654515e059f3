//! Follower that receives pushes: of Smart Feeds ("Updates/Synchronization via Push"), and of Atom, RSS, JSON Feed and
//! Data Replication documents that name a hub (WebSub). Its output equals that of the pulling follower beneath ([`Pulled`]).
//! [`topic`] has no follower beneath: somebody else reads the feed, whenever the hub says so.
//!
//! 1. It subscribes, and pulls until it has caught up.
//! 2. A push that continues at its cursor is processed. Old pushes are discarded; after any other push it pulls.
//! 3. After a long silence it pulls anyway.
//!
//! Without a subscription it pulls only. Calls of the callback must reach [`Follower::handle_call`].

pub mod pulled;
pub mod subscriber;
#[cfg(test)]
pub(super) mod tests;
pub mod topic;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use serde_json::Value;

use crate::follow::{
    Call, Event, Exchange, FollowError, FollowMode, Follower, Monotonic, Now, ReadLimits, Reply, Request,
    RequestId, ResponseHead, StartFrom, TransferError,
};
use crate::push::websub::follow::pulled::Pulled;
use crate::push::websub::follow::subscriber::{SubscribeOptions, Subscriber};
use crate::smart::follow::SmartFollower;

/// Follower of a feed with pushes.
#[derive(Debug)]
pub struct PushFollower<F = SmartFollower> {
    feed: F,
    subscriber: Subscriber,
    silence: Duration,
    was_active: bool,
    warnings: VecDeque<Event>,
}

impl PushFollower {
    /// Follows the Smart Feed at `url` as [`SmartFollower::new`] does, with the same state, and subscribes to it.
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
        Ok(Self::of(SmartFollower::new(url, from, state, FollowMode::Continuous)?, options))
    }

    /// Sets the limits of what is read.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        self.feed = self.feed.within(limits);
        self
    }
}

impl<F: Pulled> PushFollower<F> {
    /// Subscribes to the feed of a follower, which must not be one that finishes.
    pub fn of(mut feed: F, options: SubscribeOptions) -> Self {
        feed.set_pace(F::PACE_WHILE_SUBSCRIBING);
        let silence = options.silence;
        let subscriber = Subscriber::new(&feed.page(), options);
        Self { feed, subscriber, silence, was_active: false, warnings: VecDeque::new() }
    }

    /// Returns `true` while the subscription is active.
    pub fn is_subscribed(&self, now: Now) -> bool {
        self.subscriber.is_active(now)
    }

    fn handle_delivery(&mut self, now: Now, content_type: &str, body: &[u8]) {
        if let Err(error) = self.feed.handle_push(now, content_type, body) {
            self.warn(&format!("a push cannot be read: {error}"));
            // An unreadable push may hold changes, so they are pulled.
            self.feed.pull_now();
        }
    }

    fn warn(&mut self, text: &str) {
        self.warnings.push_back(Event::Warning(format!("{}: {text}", self.feed.url())));
    }

    /// Selects pushes while subscribed, else polling.
    fn update_pace(&mut self, now: Now) {
        if let Some(problem) = self.subscriber.take_problem() {
            self.warn(&problem);
        }
        let is_active = self.subscriber.is_active(now);
        self.feed.set_pace(match (is_active, self.subscriber.is_hopeful()) {
            (true, _) => Some(self.silence),
            (false, true) => F::PACE_WHILE_SUBSCRIBING,
            (false, false) => None,
        });
        if is_active && !self.was_active {
            // Entries appended before the subscription began are not pushed.
            self.feed.pull_now();
        }
        self.was_active = is_active;
    }
}

impl<F: Pulled> Exchange for PushFollower<F> {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        let request = self.subscriber.poll_request(now);
        self.update_pace(now);
        request.or_else(|| self.feed.poll_request(now))
    }

    fn handle_head(&mut self, now: Now, id: RequestId, head: ResponseHead) {
        self.subscriber.handle_head(id, head.clone());
        self.feed.handle_head(now, id, head);
    }

    fn handle_chunk(&mut self, now: Now, id: RequestId, chunk: Bytes) {
        self.subscriber.handle_chunk(id, &chunk);
        self.feed.handle_chunk(now, id, chunk);
    }

    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) {
        if self.subscriber.handle_end(now, id, result.clone()) {
            return self.update_pace(now);
        }
        self.feed.handle_end(now, id, result);
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        [self.subscriber.poll_timeout(), self.feed.poll_timeout()].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        false
    }
}

impl<F: Pulled> Follower for PushFollower<F> {
    fn poll_event(&mut self) -> Option<Event> {
        self.warnings.pop_front().or_else(|| self.feed.poll_event())
    }

    fn has_caught_up(&self) -> bool {
        self.feed.has_caught_up()
    }

    fn progress(&self) -> Option<String> {
        self.feed.progress()
    }

    fn handle_call(&mut self, now: Now, call: &Call) -> Reply {
        let (reply, delivered) = self.subscriber.handle_call(now, call);
        if let Some(body) = delivered {
            let content_type = call.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            self.handle_delivery(now, content_type.unwrap_or_default(), &body);
        }
        self.update_pace(now);
        reply
    }
}
