//! The state machine of alerts: which events are open, what is told when, and what waits to be sent.
//!
//! It has no clock and no IO: [`AlertBook::observe`] takes the conditions of a moment, [`AlertBook::due`] hands out
//! messages, and [`AlertBook::handle_sent`] takes the outcomes. The whole state is serialised between restarts, so an event
//! that was told is not told again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::kind::AlertKind;
use super::notice::{AlertEntry, AlertNotice, NoticeContent};

/// Most messages that wait for one destination. The oldest make room.
// A destination that is down for weeks must not grow the book, which is saved as one row.
const MAX_WAITING: usize = 100;
/// Wait after the first failed attempt. It doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// Longest wait between attempts.
const LONGEST_RETRY: Duration = Duration::from_secs(1800);
/// Attempts after which a message is given up: about a day.
const MAX_ATTEMPTS: u32 = 56;

/// Something that is wrong at a moment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Condition {
    pub(super) kind: AlertKind,
    /// Name of the feed or sink; empty for the node.
    pub(super) subject: String,
    /// Begin, if it is known. Otherwise it begins with its first observation.
    pub(super) since: Option<Timestamp>,
    /// Time for which it must last before it is told.
    pub(super) hold: Duration,
    pub(super) message: String,
}

/// Times of messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct AlertTiming {
    /// Wait for further events of a kind before the first one is told.
    pub(super) wait: Duration,
    /// Minimum time between messages of one kind.
    pub(super) pause: Duration,
    /// Interval of reminders; zero for none.
    pub(super) repeat: Duration,
}

/// Outcome of an attempt to send a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryAttempt {
    Delivered,
    Failed,
}

/// Destination of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AlertDestination {
    Feed,
    Webhook,
    Email,
}

impl AlertDestination {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Feed => "feed",
            Self::Webhook => "webhook",
            Self::Email => "email",
        }
    }
}

/// Events and messages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AlertBook {
    kinds: BTreeMap<AlertKind, KindBook>,
    outbox: Vec<WaitingNotice>,
    /// Number of the last message.
    number: u64,
    /// Name of the cluster's node that the book is about.
    // Derived from the configuration at each start: a folder that moved to another machine has another name.
    #[serde(skip)]
    pub(super) node: Option<String>,
}

/// Events of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct KindBook {
    open: BTreeMap<String, OpenEvent>,
    /// Events that were told and are over, with their begins. Their end is not told yet.
    recovered: BTreeMap<String, Timestamp>,
    /// Time of the first event that is not told yet.
    news_since: Option<Timestamp>,
    /// Time of the last message.
    told_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OpenEvent {
    since: Timestamp,
    message: String,
    /// It lasted for long enough to be told.
    is_ripe: bool,
    is_told: bool,
}

/// A message that waits to be sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct WaitingNotice {
    pub(super) destination: AlertDestination,
    pub(super) notice: AlertNotice,
    attempts: u32,
    due: Timestamp,
}

impl AlertBook {
    /// Takes what is wrong now, and queues the messages that are due about it.
    pub(super) fn observe(
        &mut self,
        now: Timestamp,
        conditions: Vec<Condition>,
        timing: AlertTiming,
        destinations: &[AlertDestination],
    ) {
        self.leave_future(now);
        self.take(now, conditions);
        for (kind, book) in &mut self.kinds {
            if let Some(content) = book.message(now, timing) {
                self.number += 1;
                let mut notice = AlertNotice::new(*kind, now, self.number, content);
                if let Some(node) = &self.node {
                    notice = notice.of_node(node);
                }
                for destination in destinations {
                    push(
                        &mut self.outbox,
                        WaitingNotice {
                            destination: *destination,
                            notice: notice.clone(),
                            attempts: 0,
                            due: now,
                        },
                    );
                }
            }
        }
    }

    /// Moves all times with a clock that jumped: an event has lasted, and a message waits, for as long as before.
    pub(super) fn shift(&mut self, jump: SignedDuration) {
        self.change_times(
            |time| time.checked_add(jump).unwrap_or(time),
            |due| due.checked_add(jump).unwrap_or(due),
        );
    }

    /// Brings times of a clock that was ahead back to now. A restart may lie between, so nothing else tells of it.
    // With a message of next year, the pause after it would keep back all others until then.
    fn leave_future(&mut self, now: Timestamp) {
        self.change_times(|time| time.min(now), |due| due.min(later(now, LONGEST_RETRY)));
    }

    fn change_times(&mut self, past: impl Fn(Timestamp) -> Timestamp, due: impl Fn(Timestamp) -> Timestamp) {
        for book in self.kinds.values_mut() {
            let begun = book.open.values_mut().map(|event| &mut event.since);
            let told = book.news_since.iter_mut().chain(&mut book.told_at);
            begun.chain(book.recovered.values_mut()).chain(told).for_each(|time| *time = past(*time));
        }
        self.outbox.iter_mut().for_each(|waiting| waiting.due = due(waiting.due));
    }

    fn take(&mut self, now: Timestamp, conditions: Vec<Condition>) {
        let mut seen: BTreeSet<(AlertKind, String)> = BTreeSet::new();
        for Condition { kind, subject, since, hold, message } in conditions {
            let book = self.kinds.entry(kind).or_default();
            seen.insert((kind, subject.clone()));
            // Ended and begun again before its end was told: it goes on.
            let begun = book.recovered.remove(&subject);
            let event = book.open.entry(subject).or_insert_with(|| OpenEvent {
                // A begin in the future comes from another clock, and would make the event last a negative time.
                since: begun.or(since).unwrap_or(now).min(now),
                message: String::new(),
                is_ripe: begun.is_some(),
                is_told: begun.is_some(),
            });
            event.message = message;
            let is_ripe = elapsed(event.since, now) >= hold;
            if is_ripe && !event.is_told && book.news_since.is_none() {
                book.news_since = Some(now);
            }
            event.is_ripe = is_ripe || event.is_told;
        }
        for (kind, book) in &mut self.kinds {
            let ended: Vec<String> = book
                .open
                .keys()
                .filter(|subject| !seen.contains(&(*kind, (*subject).clone())))
                .cloned()
                .collect();
            for subject in ended {
                let Some(event) = book.open.remove(&subject) else { continue };
                // Nobody needs to know that what they were never told of is over.
                if event.is_told {
                    book.recovered.insert(subject, event.since);
                    book.news_since.get_or_insert(now);
                }
            }
        }
    }

    /// Returns the messages to send now.
    pub(super) fn due(&self, now: Timestamp) -> Vec<WaitingNotice> {
        self.outbox.iter().filter(|waiting| waiting.due <= now).cloned().collect()
    }

    /// Takes the outcome of an attempt. Returns true if the message is given up.
    pub(super) fn handle_sent(
        &mut self,
        sent: &WaitingNotice,
        attempt: DeliveryAttempt,
        now: Timestamp,
    ) -> bool {
        let is_this = |waiting: &WaitingNotice| {
            waiting.destination == sent.destination && waiting.notice.id == sent.notice.id
        };
        // By id and not by index: newer messages may have pushed it out while it was being sent.
        let Some(index) = self.outbox.iter().position(is_this) else { return false };
        let waiting = &mut self.outbox[index];
        waiting.attempts += 1;
        let is_delivered = attempt == DeliveryAttempt::Delivered;
        let is_given_up = !is_delivered && waiting.attempts >= MAX_ATTEMPTS;
        if is_delivered || is_given_up {
            self.outbox.remove(index);
        } else {
            // 2^15 times the first wait is above the longest one, and larger shifts would overflow.
            let doubled = FIRST_RETRY.saturating_mul(1 << waiting.attempts.min(16).saturating_sub(1));
            waiting.due = later(now, doubled.min(LONGEST_RETRY));
        }
        is_given_up
    }

    /// Returns the number of open events of a kind that were told.
    pub(super) fn open(&self, kind: AlertKind) -> usize {
        self.kinds.get(&kind).map_or(0, |book| book.open.values().filter(|event| event.is_told).count())
    }

    /// Returns true if an event is open, told or not.
    pub(super) fn has(&self, kind: AlertKind, subject: &str) -> bool {
        self.kinds.get(&kind).is_some_and(|book| book.open.contains_key(subject))
    }
}

impl KindBook {
    /// Takes the message that is due, if one is. Its events count as told from now on.
    fn message(&mut self, now: Timestamp, timing: AlertTiming) -> Option<NoticeContent> {
        // All events of a kind share one message: a network failure breaks a hundred sources at once.
        let since_last = self.told_at.map(|at| elapsed(at, now));
        let has_news = self.news_since.is_some_and(|since| elapsed(since, now) >= timing.wait);
        let is_reminder = !timing.repeat.is_zero()
            && since_last.is_some_and(|since| since >= timing.repeat)
            && self.open.values().any(|event| event.is_told);
        // A flapping sink must not send a message with each of its changes.
        if since_last.is_some_and(|since| since < timing.pause) || !(has_news || is_reminder) {
            return None;
        }
        self.news_since = None;
        let entry = |(subject, event): (&String, &OpenEvent)| AlertEntry {
            subject: subject.clone(),
            since: event.since,
            message: event.message.clone(),
        };
        let ended = |(subject, since): (&String, &Timestamp)| AlertEntry {
            subject: subject.clone(),
            since: *since,
            message: String::new(),
        };
        let content = NoticeContent {
            began: self.open.iter().filter(|(_, event)| event.is_ripe && !event.is_told).map(entry).collect(),
            recovered: self.recovered.iter().map(ended).collect(),
            still: self.open.iter().filter(|(_, event)| event.is_told).map(entry).collect(),
        };
        // What began may be over before it was to be told.
        if content.began.count + content.recovered.count == 0 && !is_reminder {
            return None;
        }
        self.told_at = Some(now);
        self.recovered.clear();
        self.open.values_mut().for_each(|event| event.is_told |= event.is_ripe);
        Some(content)
    }
}

fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

fn later(now: Timestamp, wait: Duration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Adds a message. The oldest of a full queue is dropped: the newest says what is wrong now.
fn push(outbox: &mut Vec<WaitingNotice>, waiting: WaitingNotice) {
    let of_this = outbox.iter().filter(|other| other.destination == waiting.destination).count();
    if of_this >= MAX_WAITING
        && let Some(oldest) = outbox.iter().position(|other| other.destination == waiting.destination)
    {
        outbox.remove(oldest);
    }
    outbox.push(waiting);
}

#[cfg(test)]
mod tests;
