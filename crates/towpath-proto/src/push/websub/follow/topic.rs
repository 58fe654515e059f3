//! A topic that somebody else reads: the hub only says when there is something new.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::follow::{
    Event, Exchange, Follower, Monotonic, Now, Request, RequestId, ResponseHead, TransferError,
};
use crate::push::websub::follow::pulled::Pulled;

/// Follower without items. Its checkpoints say that the topic is to be read now ([`TopicNews::is_subscribed`]).
///
/// There is one after each delivery, and one whenever the subscription begins or lapses: changes from before its begin
/// are not pushed.
#[derive(Debug)]
pub struct TopicNews {
    url: String,
    is_subscribed: bool,
    has_news: bool,
}

impl TopicNews {
    /// Creates the follower of a topic.
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), is_subscribed: false, has_news: false }
    }

    /// Reads a checkpoint: true while the hub pushes.
    pub fn is_subscribed(checkpoint: &Value) -> bool {
        checkpoint["subscribed"] == true
    }
}

impl Pulled for TopicNews {
    const PACE_WHILE_SUBSCRIBING: Option<Duration> = None;

    fn url(&self) -> &str {
        &self.url
    }

    fn page(&self) -> String {
        self.url.clone()
    }

    fn set_pace(&mut self, interval: Option<Duration>) {
        // Only a subscription has an interval of its own.
        self.has_news |= self.is_subscribed != interval.is_some();
        self.is_subscribed = interval.is_some();
    }

    fn pull_now(&mut self) {
        self.has_news = true;
    }

    fn handle_push(&mut self, _: Now, _: &str, _: &[u8]) -> Result<(), String> {
        self.has_news = true;
        Ok(())
    }
}

impl Exchange for TopicNews {
    fn poll_request(&mut self, _: Now) -> Option<Request> {
        None
    }

    fn handle_head(&mut self, _: Now, _: RequestId, _: ResponseHead) {}

    fn handle_chunk(&mut self, _: Now, _: RequestId, _: Bytes) {}

    fn handle_end(&mut self, _: Now, _: RequestId, _: Result<(), TransferError>) {}

    fn poll_timeout(&self) -> Option<Monotonic> {
        None
    }

    fn is_finished(&self) -> bool {
        false
    }
}

impl Follower for TopicNews {
    fn poll_event(&mut self) -> Option<Event> {
        std::mem::take(&mut self.has_news)
            .then(|| Event::Checkpoint(json!({ "subscribed": self.is_subscribed })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_delivery_and_each_change_of_the_subscription_is_news() {
        let mut topic = TopicNews::new("https://a.example/feed");
        let news = |topic: &mut TopicNews| {
            let events: Vec<Event> = std::iter::from_fn(|| topic.poll_event()).collect();
            let is_subscribed = |event: &Event| match event {
                Event::Checkpoint(checkpoint) => TopicNews::is_subscribed(checkpoint),
                other => panic!("{other:?}"),
            };
            events.iter().map(is_subscribed).collect::<Vec<_>>()
        };
        topic.set_pace(None);
        assert!(news(&mut topic).is_empty());
        topic.set_pace(Some(Duration::from_secs(600)));
        topic.pull_now();
        assert_eq!(news(&mut topic), [true]);
        topic.set_pace(Some(Duration::from_secs(600)));
        assert!(news(&mut topic).is_empty());
        topic.handle_push(Now::simulated(jiff::Timestamp::UNIX_EPOCH), "text/plain", b"").unwrap();
        assert_eq!(news(&mut topic), [true]);
        topic.set_pace(None);
        assert_eq!(news(&mut topic), [false], "the subscription lapsed");
    }
}
