//! Many feeds followed by one program: who is asked when, and by how many requests at once.
//!
//! A feed at rest is data, not a task: its address, its SUP links, when it is due, and how it is followed; its
//! state lies in the [`Ledger`]. When it is to be asked, a follower is made from that, follows to the end of
//! what there is, and is dropped. When that is, is decided by the SUP [`Consumer`]: feeds whose publisher
//! offers a SUP document are asked when it names them, the others now and then. No request is held open for a
//! feed that is silent.
//!
//! Feeds are asked side by side, so that one that is slow or dead delays no other: at most [`PER_HOST`] of a
//! host, the hosts in turn, and at most [`QUICK`] in all, not counting those that take longer than [`SLOW`],
//! of which there may be more, up to [`ALL`].

mod ask;
mod lanes;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use towpath_proto::follow::Exchange as _;
use towpath_proto::follow::{Event, FollowError, Followed, Follower as _, StartFrom};
use towpath_proto::sup::follow::{Consumer, FeedKey, Settings};
use url::Url;

use self::ask::{Asked, Asker};
use self::lanes::Lanes;
use super::carrier::{Carrier, Step};
use super::clock::{Clock, SystemClock};
use super::discover::Offer;
use super::drive::{LAST_DELIVERY, Notice};
use super::fetch::Fetcher;
use super::protocol::Protocol;
use crate::stop::{Stop, stopped};

/// Feeds of one host that are asked at once.
pub const PER_HOST: usize = 8;
/// Feeds that are asked at once, not counting slow ones.
pub const QUICK: usize = 64;
/// The same with slow ones.
pub const ALL: usize = 256;
/// After this time a feed is a slow one.
pub const SLOW: Duration = Duration::from_secs(5);
/// How many times longer a feed is left alone that its SUP document speaks for.
pub const BACKGROUND: u32 = 24;
/// How often it is kept when each feed is due.
const KEEP_SCHEDULE: Duration = Duration::from_secs(600);

/// How a fleet is followed.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// The protocol of every feed; each feed's strongest where this is `None`.
    pub protocol: Option<Protocol>,
    /// Where to begin feeds that have no state.
    pub from: StartFrom,
    /// Ask every feed once, whatever its SUP document says.
    pub once: bool,
    /// How often to ask a feed that no SUP document speaks for.
    pub every: Duration,
    /// What [`Ledger::keep_schedule`] kept last.
    pub schedule: Option<Box<RawValue>>,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

impl Default for FleetOptions {
    /// For ever, each feed by its strongest protocol, from its beginning, every 15 minutes.
    fn default() -> Self {
        Self {
            protocol: None,
            from: StartFrom::Beginning,
            once: false,
            every: Duration::from_secs(900),
            schedule: None,
            clock: Arc::new(SystemClock),
        }
    }
}

/// How a feed is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// By which protocol.
    pub protocol: Protocol,
    /// At which address, where the feed's own only leads to it.
    pub follows: Option<Box<str>>,
}

/// What was kept of a feed.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// How it is followed.
    pub way: Way,
    /// The last checkpoint.
    pub state: Value,
}

/// Where a fleet's changes go and its states are kept.
pub trait Ledger: Send + Sync + 'static {
    /// Why it takes no more. The fleet ends with it.
    type Error: Send + 'static;

    /// What was kept of a feed.
    fn load(&self, feed: &str) -> impl Future<Output = Result<Option<Kept>, Self::Error>> + Send;

    /// Takes a feed's changes over, in order, and after that the checkpoint that covers them and all before.
    /// When it returns, both are kept. Several feeds deliver at once.
    fn deliver(
        &self,
        feed: &Arc<str>,
        way: &Way,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Keeps when each feed is due, for [`FleetOptions::schedule`]. What is kept late only leads to feeds
    /// being asked once more.
    fn keep_schedule(&self, schedule: Box<RawValue>) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Takes notice of something a person should know of a feed, or of a SUP document.
    fn notice(&self, feed: &str, notice: Notice);

    /// A feed will be followed like this.
    fn chosen(&self, feed: &str, offer: &Offer);
}

/// How a fleet ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetEnded {
    /// Whether it was stopped from outside.
    pub stopped: bool,
    /// How many attempts to follow a feed failed.
    pub failed: usize,
    /// How many of these were the user's fault.
    pub misused: usize,
    /// How many feeds missed items for ever.
    pub incomplete: usize,
}

/// Follows feeds until `stop` says so, the ledger refuses, or, with [`FleetOptions::once`], each was asked.
///
/// # Errors
///
/// The ledger's.
pub async fn follow_fleet<L: Ledger>(
    feeds: Vec<Arc<str>>,
    ledger: Arc<L>,
    fetcher: &Fetcher,
    options: FleetOptions,
    stop: &Stop,
) -> Result<FleetEnded, L::Error> {
    let mut fleet = Fleet::new(feeds, ledger, fetcher, options, stop);
    let ended = fleet.sail(stop).await;
    // Followers have been told to stop by `stop`; whoever follows on without it is cut off.
    fleet.asks.abort_all();
    ended
}

struct Fleet<L: Ledger> {
    asker: Arc<Asker<L>>,
    once: bool,
    clock: Arc<dyn Clock>,
    consumer: Consumer,
    /// Carries the consumer's requests.
    carrier: Carrier,
    /// By the feeds' numbers.
    feeds: Vec<(Arc<str>, Option<Way>)>,
    lanes: Lanes,
    asks: JoinSet<Result<Asked, L::Error>>,
    running: HashMap<Id, Running>,
    kept: Instant,
    ended: FleetEnded,
}

struct Running {
    feed: FeedKey,
    host: Arc<str>,
    since: Instant,
}

impl<L: Ledger> Fleet<L> {
    fn new(
        feeds: Vec<Arc<str>>,
        ledger: Arc<L>,
        fetcher: &Fetcher,
        options: FleetOptions,
        stop: &Stop,
    ) -> Self {
        let FleetOptions { protocol, from, once, every, schedule, clock } = options;
        let mut consumer = consumer(&feeds, &*ledger, every, schedule);
        let now = clock.now();
        let mut numbered: Vec<(Arc<str>, Option<Way>)> = vec![("".into(), None); consumer.feed_count()];
        for feed in feeds {
            let number = consumer.add_feed(feed.clone(), now).index();
            numbered.resize(numbered.len().max(number + 1), (feed.clone(), None));
            numbered[number].0 = feed;
        }
        if once {
            consumer.ask_all();
        }
        let (fetcher, stop) = (fetcher.clone(), stop.clone());
        Self {
            carrier: Carrier::with_clock(fetcher.clone(), clock.clone()),
            asker: Arc::new(Asker { ledger, fetcher, protocol, from, stop }),
            once,
            clock,
            consumer,
            feeds: numbered,
            lanes: Lanes::new(PER_HOST),
            asks: JoinSet::new(),
            running: HashMap::new(),
            kept: Instant::now(),
            ended: FleetEnded::default(),
        }
    }

    async fn sail(&mut self, stop: &Stop) -> Result<FleetEnded, L::Error> {
        self.line_up();
        while !*stop.borrow() {
            if !self.once {
                self.line_up();
                self.carrier.send(&mut self.consumer);
            }
            self.tell();
            self.ask();
            if self.once && self.asks.is_empty() && self.lanes.is_empty() {
                break;
            }
            if self.kept.elapsed() >= KEEP_SCHEDULE {
                self.keep_schedule().await?;
            }
            self.wait(stop).await?;
        }
        self.ended.stopped = *stop.borrow();
        self.wind_up().await?;
        self.keep_schedule().await?;
        Ok(std::mem::take(&mut self.ended))
    }

    /// Feeds that are due wait for their host's turn.
    fn line_up(&mut self) {
        let now = self.clock.now();
        while let Some(ask) = self.consumer.poll_ask(now) {
            self.lanes.push(host(&ask.url), ask.feed);
        }
    }

    /// Tells what the consumer has to say. A SUP document that fails costs nothing but more requests.
    fn tell(&mut self) {
        while let Some(event) = self.consumer.poll_event() {
            let text = match event {
                Event::Warning(text) => text,
                Event::Failed(error) => format!("{error} (a SUP document)"),
                Event::Change(_) | Event::Checkpoint(_) | Event::Incomplete(_) => continue,
            };
            self.asker.ledger.notice("", Notice::Warning(text));
        }
    }

    /// Asks as many feeds as there is room for.
    fn ask(&mut self) {
        while self.lanes.has_turn() && self.has_room() {
            let Some((host, feed)) = self.lanes.pop() else { return };
            let (url, way) = self.feeds[feed.index()].clone();
            let asker = self.asker.clone();
            let task = self.asks.spawn(async move { asker.ask(url, way).await });
            self.running.insert(task.id(), Running { feed, host, since: Instant::now() });
        }
    }

    fn has_room(&self) -> bool {
        let quick = || self.running.values().filter(|running| running.since.elapsed() < SLOW).count();
        self.running.len() < QUICK || (self.running.len() < ALL && quick() < QUICK)
    }

    /// Waits until something happens, and takes it in.
    async fn wait(&mut self, stop: &Stop) -> Result<(), L::Error> {
        let until = self.consumer.poll_timeout().filter(|_| !self.once);
        let idle = self.asks.is_empty() && !self.carrier.is_busy();
        let clock = self.clock.clone();
        let due = async {
            match until {
                Some(until) => clock.sleep_until(until, idle).await,
                None => std::future::pending().await,
            }
        };
        // There is no room: some of those that run may be slow ones soon.
        let blocked = self.lanes.has_turn();
        tokio::select! {
            Some(done) = self.asks.join_next_with_id(), if !self.asks.is_empty() => self.take(done)?,
            Step::Moved | Step::Answered = self.carrier.arrive(&mut self.consumer), if self.carrier.is_busy() => {}
            () = due => {}
            () = tokio::time::sleep(SLOW / 10), if blocked => {}
            () = stopped(stop) => {}
        }
        Ok(())
    }

    /// A feed was asked.
    fn take(&mut self, done: Result<(Id, Result<Asked, L::Error>), JoinError>) -> Result<(), L::Error> {
        let (id, asked) = match done {
            Ok((id, asked)) => (id, Some(asked?)),
            Err(error) => {
                tracing::error!("following a feed broke off: {error}");
                (error.id(), None)
            }
        };
        let Some(Running { feed, host, .. }) = self.running.remove(&id) else { return Ok(()) };
        self.lanes.done(host);
        let Some(Asked { way, heard, has_changed, ended }) = asked else {
            self.ended.failed += 1;
            self.consumer.handle_failure(self.clock.now(), feed, None);
            return Ok(());
        };
        let own = &mut self.feeds[feed.index()].1;
        *own = way.or(own.take());
        self.ended.incomplete += usize::from(ended.incomplete);
        if ended.stopped {
            return Ok(());
        }
        match ended.failed {
            None => self.consumer.handle_answer(self.clock.now(), feed, heard.sup, has_changed),
            Some(error) => {
                self.ended.failed += 1;
                self.ended.misused += usize::from(matches!(error, FollowError::Usage(_)));
                self.consumer.handle_failure(self.clock.now(), feed, heard.retry_after);
            }
        }
        Ok(())
    }

    /// Lets those that are being asked hand over what they have begun.
    async fn wind_up(&mut self) -> Result<(), L::Error> {
        let end = Instant::now() + LAST_DELIVERY;
        while !self.asks.is_empty() {
            let next = tokio::time::timeout_at(end, self.asks.join_next_with_id());
            let Ok(Some(done)) = next.await else { break };
            self.take(done)?;
        }
        Ok(())
    }

    async fn keep_schedule(&mut self) -> Result<(), L::Error> {
        self.kept = Instant::now();
        match RawValue::from_string(self.consumer.to_json()) {
            Ok(schedule) => self.asker.ledger.keep_schedule(schedule).await,
            // It was written as JSON just now.
            Err(_) => Ok(()),
        }
    }
}

/// The consumer, going on from its last schedule. One that cannot be read is no loss but of requests.
fn consumer<L: Ledger>(
    feeds: &[Arc<str>],
    ledger: &L,
    every: Duration,
    schedule: Option<Box<RawValue>>,
) -> Consumer {
    let settings = Settings { background: every.saturating_mul(BACKGROUND), plain: every };
    let Some(schedule) = schedule else { return Consumer::new(settings) };
    let wanted: std::collections::HashSet<&str> = feeds.iter().map(AsRef::as_ref).collect();
    Consumer::from_json(settings, schedule.get(), |feed| wanted.contains(feed)).unwrap_or_else(|error| {
        ledger.notice("", Notice::Warning(format!("every feed is asked anew: {error}")));
        Consumer::new(settings)
    })
}

/// Whose feeds are asked one after another: scheme, name and port.
fn host(url: &str) -> Arc<str> {
    Url::parse(url).map_or_else(|_| url.into(), |url| url.origin().ascii_serialization().into())
}
