//! A follower that is pushed to ("Updates/Synchronization via Push"): what it tells is what a pulling one tells.
//!
//! 1. It subscribes, and pulls until it has caught up.
//! 2. A push that follows on what was told is told. What is old is discarded. With anything else the feed is pulled.
//! 3. After a long silence it is pulled all the same.
//!
//! While there is no subscription the feed is followed by pulling alone. What comes to the callback goes to
//! [`Follower::handle_call`].

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use serde_json::Value;

use super::subscriber::{Options, Subscriber};
use crate::follow::{
    Call, Event, Exchange, FollowError, Follower, Reply, Request, RequestId, ResponseHead, StartFrom,
    TransferError,
};
use crate::smart::follow::SmartFollower;
use crate::smart::wire::{Collection, with_parameter};

/// How often the feed is pulled while the hub makes up its mind.
const SETTLING: Duration = Duration::from_secs(2);

/// A follower of a Smart Feed that is pushed to.
#[derive(Debug)]
pub struct PushFollower {
    smart: SmartFollower,
    subscriber: Subscriber,
    silence: Duration,
    was_active: bool,
    warnings: VecDeque<Event>,
}

impl PushFollower {
    /// Follows the feed at `url` as [`SmartFollower::new`] does, its states included, and subscribes to it.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] as there.
    pub fn new(
        url: &str,
        from: &StartFrom,
        state: Option<Value>,
        options: Options,
    ) -> Result<Self, FollowError> {
        let mut smart = SmartFollower::new(url, from, state, false)?;
        smart.set_pace(Some(SETTLING));
        // The links of any page will do.
        let page = with_parameter(&with_parameter(smart.url(), "max", "1"), "timeout", "0");
        let silence = options.silence;
        let subscriber = Subscriber::new(&page, options);
        Ok(Self { smart, subscriber, silence, was_active: false, warnings: VecDeque::new() })
    }

    /// Whether the hub pushes, as far as is known.
    pub fn is_subscribed(&self, now: Timestamp) -> bool {
        self.subscriber.is_active(now)
    }

    fn take(&mut self, now: Timestamp, content_type: &str, body: &[u8]) {
        let page = if content_type.contains("xml") {
            Collection::from_atom(body, self.smart.url())
        } else {
            Collection::from_json(body)
        };
        match page {
            Ok(page) => drop(self.smart.handle_push(now, page)),
            Err(error) => {
                self.warn(&format!("a push cannot be read: {error}"));
                self.smart.pull_now();
            }
        }
    }

    fn warn(&mut self, text: &str) {
        self.warnings.push_back(Event::Warning(format!("{}: {text}", self.smart.url())));
    }

    /// Goes by pushes where there is a subscription, else by pulling.
    fn settle(&mut self, now: Timestamp) {
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
            // What was appended before it began is pushed to nobody.
            self.smart.pull_now();
        }
        self.was_active = is_active;
    }
}

impl Exchange for PushFollower {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        let request = self.subscriber.poll_request(now);
        self.settle(now);
        request.or_else(|| self.smart.poll_request(now))
    }

    fn handle_head(&mut self, now: Timestamp, id: RequestId, head: ResponseHead) {
        self.subscriber.handle_head(id, head.clone());
        self.smart.handle_head(now, id, head);
    }

    fn handle_chunk(&mut self, now: Timestamp, id: RequestId, chunk: Bytes) {
        self.subscriber.handle_chunk(id, &chunk);
        self.smart.handle_chunk(now, id, chunk);
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if self.subscriber.handle_end(now, id, result.clone()) {
            return self.settle(now);
        }
        self.smart.handle_end(now, id, result);
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
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

    fn handle_call(&mut self, now: Timestamp, call: &Call) -> Reply {
        let (reply, delivered) = self.subscriber.handle_call(now, call);
        if let Some(body) = delivered {
            let content_type = call.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            self.take(now, content_type.unwrap_or_default(), &body);
        }
        self.settle(now);
        reply
    }
}
