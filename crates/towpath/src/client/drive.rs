//! The driver of every follower and check: carries their requests, hands over what they tell.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use towpath_proto::follow::{Checker, Event, FollowError, Followed, Follower};

use super::carrier::{Carrier, Step};
use super::fetch::Fetcher;
use super::heard::Heard;
use super::listen::Calls;
use crate::stop::{Stop, stopped};

/// Changes that are handed over together, at most.
const BATCH_CHANGES: usize = 1000;
/// The content of a batch, in bytes, at most (one change may exceed it alone).
const BATCH_BYTES: usize = 4 << 20;
/// How long a change may wait for others to join its batch.
const BATCH_AGE: Duration = Duration::from_millis(200);
/// How long an output may take to end what it has begun, once following is to stop.
pub(super) const LAST_DELIVERY: Duration = Duration::from_secs(5);

/// How often a long beginning is told of.
const PROGRESS: Duration = Duration::from_secs(2);

/// Where a follow's changes go.
pub trait Output: Send {
    /// Why it takes no more.
    type Error: Send;

    /// Takes changes over, in order, and after that the checkpoint that covers them and all before. When it
    /// returns, both are kept; an output that can keep them in one transaction follows exactly once.
    fn deliver(
        &mut self,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Takes notice of something a person should know.
    fn notice(&mut self, notice: Notice);

    /// Hears that the publisher was asked, and everything told that it has and handed over.
    fn well(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What is told beside changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Following goes on.
    Warning(String),
    /// Items were missed that cannot be had any more.
    Incomplete(String),
    /// An attempt failed.
    Failed(FollowError),
}

/// How a follow ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// Whether it was stopped from outside before it was finished.
    pub stopped: bool,
    /// The last attempt that failed, if any did.
    pub failed: Option<FollowError>,
    /// Whether items were missed for ever.
    pub incomplete: bool,
}

/// Drives a follower until it is finished, `stop` says so, or the output refuses.
///
/// Memory is bounded: one batch, and one piece of a body for every request under way.
///
/// # Errors
///
/// The output's.
pub async fn drive<F: Follower + ?Sized, O: Output>(
    follower: &mut F,
    fetcher: &Fetcher,
    output: &mut O,
    stop: &Stop,
) -> Result<Ended, O::Error> {
    drive_called(follower, fetcher, output, stop, Calls::none()).await
}

/// The same for a follower that is called by others, too.
///
/// # Errors
///
/// The output's.
pub async fn drive_called<F: Follower + ?Sized, O: Output>(
    follower: &mut F,
    fetcher: &Fetcher,
    output: &mut O,
    stop: &Stop,
    calls: Calls,
) -> Result<Ended, O::Error> {
    let mut carrier = Carrier::new(fetcher.clone());
    drive_by(&mut carrier, follower, output, stop, calls).await
}

/// The same, and what the publisher's answers said beside.
pub(super) async fn drive_and_hear<F: Follower + ?Sized, O: Output>(
    follower: &mut F,
    fetcher: &Fetcher,
    output: &mut O,
    stop: &Stop,
) -> Result<(Ended, Heard), O::Error> {
    let mut carrier = Carrier::new(fetcher.clone());
    let ended = drive_by(&mut carrier, follower, output, stop, Calls::none()).await?;
    Ok((ended, carrier.heard))
}

async fn drive_by<F: Follower + ?Sized, O: Output>(
    carrier: &mut Carrier,
    follower: &mut F,
    output: &mut O,
    stop: &Stop,
    mut calls: Calls,
) -> Result<Ended, O::Error> {
    let mut hand = Hand::new(output, stop);
    let mut told = Instant::now();
    let mut is_answered = false;
    while !*stop.borrow() {
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            follower.progress().inspect(|progress| tracing::info!("{progress}"));
        }
        hand.take_events(follower).await?;
        is_answered &= !std::mem::take(&mut hand.has_failed);
        if is_answered && follower.has_caught_up() {
            is_answered = false;
            // All is well once what was told is kept, too.
            hand.deliver().await?;
            hand.output.well().await;
        }
        carrier.send(follower);
        // Asking may have led to events as well.
        hand.take_events(follower).await?;
        if follower.is_finished() {
            break;
        }
        let due = hand.due();
        tokio::select! {
            step = carrier.step(follower) => match step {
                Step::Moved => {}
                Step::Answered => is_answered = true,
                Step::Stuck => {
                    hand.stuck();
                    break;
                }
            },
            called = calls.next() => {
                let reply = follower.handle_call(Timestamp::now(), &called.call);
                // Whoever has called may have gone.
                let _ = called.reply.send(reply);
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => hand.deliver().await?,
            () = stopped(stop) => {}
        }
    }
    let finished = follower.is_finished();
    hand.deliver().await?;
    Ok(hand.ended(!finished && *stop.borrow()))
}

/// Drives a check until it is finished or `stop` says so; says whether it is finished.
pub async fn drive_check<C: Checker + ?Sized>(
    check: &mut C,
    fetcher: &Fetcher,
    stop: &Stop,
    mut calls: Calls,
) -> bool {
    let mut carrier = Carrier::new(fetcher.clone());
    while !*stop.borrow() {
        carrier.send(check);
        if check.is_finished() {
            return true;
        }
        tokio::select! {
            step = carrier.step(check) => if step == Step::Stuck { return check.is_finished() },
            called = calls.next() => {
                let reply = check.handle_call(Timestamp::now(), &called.call);
                let _ = called.reply.send(reply);
            }
            () = stopped(stop) => {}
        }
    }
    false
}

/// The batch on its way from the follower to the output.
pub(super) struct Hand<'a, O> {
    output: &'a mut O,
    stop: &'a Stop,
    changes: Vec<Followed>,
    bytes: usize,
    /// The last checkpoint, and how many of `changes` it covers.
    checkpoint: Option<(Value, usize)>,
    since: Option<Instant>,
    /// Whether the output was given up; nothing may be handed over after a hole.
    abandoned: bool,
    /// Whether an attempt failed since the last look.
    has_failed: bool,
    ended: Ended,
}

impl<'a, O: Output> Hand<'a, O> {
    pub(super) fn new(output: &'a mut O, stop: &'a Stop) -> Self {
        Self {
            output,
            stop,
            changes: Vec::new(),
            bytes: 0,
            checkpoint: None,
            since: None,
            abandoned: false,
            has_failed: false,
            ended: Ended::default(),
        }
    }

    /// When the batch must go although it is not full.
    pub(super) fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + BATCH_AGE)
    }

    pub(super) async fn take_events<F: Follower + ?Sized>(
        &mut self,
        follower: &mut F,
    ) -> Result<(), O::Error> {
        while let Some(event) = follower.poll_event() {
            self.take(event);
            let full = self.changes.len() >= BATCH_CHANGES || self.bytes >= BATCH_BYTES;
            if full || self.due().is_some_and(|due| Instant::now() >= due) {
                self.deliver().await?;
            }
            if *self.stop.borrow() {
                break;
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Change(change) => {
                self.bytes += size(&change);
                self.changes.push(*change);
                self.since.get_or_insert_with(Instant::now);
            }
            Event::Checkpoint(state) => {
                self.checkpoint = Some((state, self.changes.len()));
                self.since.get_or_insert_with(Instant::now);
            }
            Event::Warning(text) => self.output.notice(Notice::Warning(text)),
            Event::Incomplete(text) => {
                self.ended.incomplete = true;
                self.output.notice(Notice::Incomplete(text));
            }
            Event::Failed(error) => {
                self.has_failed = true;
                self.ended.failed = Some(error.clone());
                self.output.notice(Notice::Failed(error));
            }
        }
    }

    /// Hands over what there is: what the checkpoint covers with it, the rest after it.
    pub(super) async fn deliver(&mut self) -> Result<(), O::Error> {
        let mut covered = std::mem::take(&mut self.changes);
        (self.bytes, self.since) = (0, None);
        if let Some((state, count)) = self.checkpoint.take() {
            let rest = covered.split_off(count);
            self.hand_over(covered, Some(state)).await?;
            covered = rest;
        }
        if covered.is_empty() { Ok(()) } else { self.hand_over(covered, None).await }
    }

    async fn hand_over(&mut self, changes: Vec<Followed>, state: Option<Value>) -> Result<(), O::Error> {
        if self.abandoned {
            return Ok(());
        }
        let stop = self.stop;
        let too_late = async {
            stopped(stop).await;
            tokio::time::sleep(LAST_DELIVERY).await;
        };
        tokio::select! {
            delivered = self.output.deliver(changes, state) => delivered,
            // Whoever reads the output has stopped reading: what he did not take is told again next time.
            () = too_late => {
                self.abandoned = true;
                Ok(())
            }
        }
    }

    /// How it ended.
    pub(super) fn ended(self, stopped: bool) -> Ended {
        Ended { stopped, ..self.ended }
    }

    fn stuck(&mut self) {
        let why = "nothing is left to ask, yet the end was not reached";
        self.take(Event::Failed(FollowError::Usage(why.into())));
    }
}

/// About the memory that a change takes.
fn size(change: &Followed) -> usize {
    let content = change.item.content.as_ref().or(change.patch.as_ref());
    content.map_or(0, |content| content.bytes.len()) + change.item.summary.as_ref().map_or(0, String::len)
}
