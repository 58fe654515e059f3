//! Pulling followers that a hub can wake.

use std::time::Duration;

use crate::follow::{Follower, Now};
use crate::history::follow::HistoryFollower;
use crate::replication::follow::ReplicationFollower;
use crate::smart::follow::SmartFollower;
use crate::smart::wire::{Collection, with_parameter};

/// A pulling follower beneath a subscription.
pub trait Pulled: Follower {
    /// Poll interval until the hub has confirmed the subscription; `None` for the follower's own.
    const PACE_WHILE_SUBSCRIBING: Option<Duration>;

    /// URL of the feed.
    fn url(&self) -> &str;

    /// URL of a small response that names the hub.
    fn page(&self) -> String;

    /// Sets the interval between pulls; `None` for the follower's own.
    fn set_pace(&mut self, interval: Option<Duration>);

    /// Makes the next pull due at once.
    fn pull_now(&mut self);

    /// Handles the body of a delivery.
    ///
    /// # Errors
    ///
    /// The reason for which it cannot be read.
    fn handle_push(&mut self, now: Now, content_type: &str, body: &[u8]) -> Result<(), String>;
}

impl Pulled for SmartFollower {
    // Changes between the first pull and the subscription must not wait for long.
    const PACE_WHILE_SUBSCRIBING: Option<Duration> = Some(Duration::from_secs(2));

    fn url(&self) -> &str {
        self.url()
    }

    fn page(&self) -> String {
        // Every page carries the links, so the smallest one is requested.
        with_parameter(&with_parameter(self.url(), "max", "1"), "timeout", "0")
    }

    fn set_pace(&mut self, interval: Option<Duration>) {
        self.set_pace(interval);
    }

    fn pull_now(&mut self) {
        self.pull_now();
    }

    fn handle_push(&mut self, now: Now, content_type: &str, body: &[u8]) -> Result<(), String> {
        // A delivery has the type of the topic (WebSub, section 7), which its URL may have chosen.
        let page = if content_type.contains("xml") {
            Collection::from_atom_within(body, self.url(), self.limits().document)
        } else {
            Collection::from_json_within(body, self.limits().document)
        };
        self.handle_push(now, page.map_err(|error| error.to_string())?);
        Ok(())
    }
}

/// Atom, RSS and JSON Feed, with their history or without.
///
/// A delivery has a part of the newest document or the whole of it (WebSub, section 7), and may have overtaken another. So
/// it says only that there is something new: the newest document and the archives before it tell what.
impl Pulled for HistoryFollower {
    const PACE_WHILE_SUBSCRIBING: Option<Duration> = None;

    fn url(&self) -> &str {
        self.url()
    }

    fn page(&self) -> String {
        self.url().to_owned()
    }

    fn set_pace(&mut self, interval: Option<Duration>) {
        self.set_pace(interval);
    }

    fn pull_now(&mut self) {
        self.pull_now();
    }

    fn handle_push(&mut self, _: Now, _: &str, _: &[u8]) -> Result<(), String> {
        self.pull_after_push();
        Ok(())
    }
}

/// Data Replication, whose newest page may name a hub.
///
/// The text knows no pushes, so a delivery says only that there is something new.
impl Pulled for ReplicationFollower {
    const PACE_WHILE_SUBSCRIBING: Option<Duration> = None;

    fn url(&self) -> &str {
        self.url()
    }

    fn page(&self) -> String {
        self.entry()
    }

    fn set_pace(&mut self, interval: Option<Duration>) {
        self.set_pace(interval);
    }

    fn pull_now(&mut self) {
        self.pull_now();
    }

    fn handle_push(&mut self, _: Now, _: &str, _: &[u8]) -> Result<(), String> {
        self.pull_after_push();
        Ok(())
    }
}
