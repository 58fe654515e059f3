//! Mirroring a feed by pull ("Updates/Synchronization via Pull").
//!
//! The follower polls the feed in its order by modification, again and again, each time with the cursor of
//! the last item before as `since`, and lets the publisher hold the request until there is more. It needs no
//! more of a publisher than the text does: `last_cursor` and `since=cursor:`. A publisher that has lost its
//! place sends items again; none is missed.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::spec::{Span, Spec};
use super::start::{agree, base_of, feed_url, position_spec, resume};
use super::wire::{Collection, backwards, with_parameter};
use crate::asking::{Answer, Asked, Asking};
use crate::change::Op;
use crate::follow::{
    Event, Exchange, FollowError, Followed, Follower, Request, RequestId, ResponseHead, StartFrom,
    TransferError,
};

/// How many items to ask for at once.
pub(super) const PAGE: usize = 200;
/// How long the publisher is asked to hold a request, in seconds (the text's default).
const HOLD: u64 = 55;
/// The first wait after a failure; each further one is twice as long, up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The longest wait that a publisher may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);
/// Between two polls of a publisher that does not hold requests.
const IDLE_WAIT: Duration = Duration::from_secs(30);
/// How often the same cursor may come again on the way to the end: after each restart of a publisher that
/// loses its place.
const MAX_RETURNS: u32 = 8;
/// How often in a row a redirect may lose what was asked for.
const MAX_REDIRECTS: u32 = 8;
/// How many cursors are remembered on the way to the end.
const MAX_REMEMBERED: usize = 1 << 20;

/// Where following stands. As JSON this is the follower's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) protocol: String,
    pub(super) url: String,
    /// The position that was reached, as the value of `since`; from the beginning where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<String>,
}

/// What is being asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The most recent item, to begin after it.
    Latest,
    /// What comes next.
    Next,
}

/// A follower of a Smart Feed.
#[derive(Debug)]
pub struct SmartFollower {
    pub(super) state: State,
    /// The base URL that is asked: where that of the state leads to.
    base: String,
    redirects: u32,
    goal: Goal,
    once: bool,
    pub(super) asking: Asking<Goal>,
    events: std::collections::VecDeque<Event>,
    pub(super) not_before: Option<Timestamp>,
    pub(super) failures: u32,
    /// Whether the last page was not the end.
    pub(super) behind: bool,
    finished: bool,
    returns: HashMap<String, u32>,
    /// Whether to ask once more when the end is reached.
    pub(super) again: bool,
    /// How long after the end the publisher is asked again; it is asked to hold requests where this is absent.
    pub(super) every: Option<Duration>,
    /// When the latest item that was told was modified.
    pub(super) latest: Option<Timestamp>,
}

impl SmartFollower {
    /// Follows the feed at `url`, its base URL, in `order=modified`: the order in which every change comes by. A
    /// warning says so where the address has another one and following begins.
    ///
    /// With `state`, a checkpoint of an earlier follower of the same feed, `from` does not count. With `once`
    /// it ends when it has caught up, or failed.
    pub fn new(url: &str, from: &StartFrom, state: Option<Value>, once: bool) -> Result<Self, FollowError> {
        let (base, other) = feed_url(url)?;
        let other = other.filter(|_| state.is_none());
        let mut follower = Self::over(base, from, state, once)?;
        if let Some(order) = other {
            let warning =
                format!("{url}: not every change comes by in order={order}; following order=modified");
            follower.events.push_back(Event::Warning(warning));
        }
        Ok(follower)
    }

    /// The same by way of another carrier than HTTP: `url` is only a name, and requests are answered with
    /// [`Self::handle_page`].
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] for a state of another feed.
    pub fn over(
        url: String,
        from: &StartFrom,
        state: Option<Value>,
        once: bool,
    ) -> Result<Self, FollowError> {
        let (mut goal, mut since) = (Goal::Next, None);
        if let Some(state) = state {
            since = resume(&url, state)?;
        } else {
            match from {
                StartFrom::Beginning => {}
                StartFrom::Now => goal = Goal::Latest,
                StartFrom::Time(time) => since = Some(format!("time:{time}")),
                StartFrom::Position(position) => since = Some(position_spec(position)),
            }
        }
        Ok(Self {
            base: url.clone(),
            redirects: 0,
            state: State { protocol: "smart".into(), url, since },
            goal,
            once,
            asking: Asking::default(),
            events: std::collections::VecDeque::new(),
            not_before: None,
            failures: 0,
            behind: true,
            finished: false,
            returns: HashMap::new(),
            again: false,
            every: None,
            latest: None,
        })
    }

    /// The address of the request that comes next. While there is more to get it is not held.
    fn next_url(&self) -> String {
        let (url, since) = (&self.base, &self.state.since);
        if self.goal == Goal::Latest {
            return with_parameter(&backwards(url), "max", "1");
        }
        let mut next = url.clone();
        if let Some(since) = since {
            next = with_parameter(&next, "since", since);
        }
        let hold = if self.once || self.behind || self.every.is_some() { 0 } else { HOLD };
        next = with_parameter(&next, "max", &PAGE.to_string());
        with_parameter(&next, "timeout", &hold.to_string())
    }

    fn end(&mut self, now: Timestamp, answer: Answer<Goal>) {
        let (asked, whole) = answer.whole();
        let url = asked.url.clone();
        let (head, body) = match whole {
            Ok(whole) => whole,
            Err(source) => return self.fail(now, None, FollowError::Transfer { url, source }),
        };
        if head.status != 200 {
            return self.refused(now, asked.purpose, &head, url);
        }
        if head.url != asked.url && !self.redirected(&asked, &head.url) {
            return self.ask_there(now, url, &head.url);
        }
        self.redirects = 0;
        let is_atom = head.header(CONTENT_TYPE.as_str()).is_some_and(|value| value.contains("xml"));
        let read =
            if is_atom { Collection::from_atom(&body, &head.url) } else { Collection::from_json(&body) };
        let page = read.map_err(|error| FollowError::Protocol { url, reason: error.to_string() });
        self.answered(now, &asked, page);
    }

    /// From here on the address is asked that has answered. Returns whether it was asked for the same: a redirect may
    /// have lost where to begin, or the order.
    fn redirected(&mut self, asked: &Asked<Goal>, answered: &str) -> bool {
        if let Some(base) = base_of(answered) {
            self.base = base;
        }
        let parameter = if asked.purpose == Goal::Latest { "order" } else { "since" };
        agree(&asked.url, answered, parameter)
    }

    fn ask_there(&mut self, now: Timestamp, url: String, answered: &str) {
        self.redirects += 1;
        if self.redirects > MAX_REDIRECTS {
            let reason = format!("redirects lose what is asked for, the last one to {answered}");
            self.fail(now, None, FollowError::Protocol { url, reason });
        }
    }

    pub(super) fn answered(
        &mut self,
        now: Timestamp,
        asked: &Asked<Goal>,
        page: Result<Collection, FollowError>,
    ) {
        match page {
            Ok(page) if asked.purpose == Goal::Latest => self.begin_after(now, &asked.url, page),
            Ok(page) => self.take(now, asked, page),
            Err(error) => self.fail(now, None, error),
        }
    }

    /// A publisher that does not know the descending order is asked for what comes from now on.
    fn refused(&mut self, now: Timestamp, goal: Goal, head: &ResponseHead, url: String) {
        if goal == Goal::Latest && matches!(head.status, 400 | 404 | 501) {
            let spec = Span::second(now.as_second()).map(Spec::Time);
            return self.start_at(spec.map(|spec| spec.to_string()));
        }
        self.fail(now, head.retry_after(now), FollowError::Status { url, status: head.status });
    }

    fn fail(&mut self, now: Timestamp, wait: Option<Duration>, error: FollowError) {
        self.events.push_back(Event::Failed(error));
        self.finished = self.once;
        self.base.clone_from(&self.state.url);
        self.redirects = 0;
        let doubled = FIRST_WAIT.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.wait(now, doubled.min(LONGEST_WAIT).max(wait.unwrap_or_default().min(LONGEST_ASKED)));
    }

    pub(super) fn wait(&mut self, now: Timestamp, wait: Duration) {
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        self.not_before = now.checked_add(wait).ok();
    }

    /// The most recent item is known: begin after it. An empty feed is begun at its start.
    fn begin_after(&mut self, now: Timestamp, url: &str, page: Collection) {
        if !page.items.is_empty() && page.last_cursor.is_none() {
            return self.fail(now, None, no_cursor(url));
        }
        self.failures = 0;
        self.start_at(page.last_cursor.map(|cursor| Spec::Cursor(cursor).to_string()));
    }

    fn start_at(&mut self, since: Option<String>) {
        self.state.since = since;
        self.goal = Goal::Next;
        self.checkpoint();
    }

    pub(super) fn checkpoint(&mut self) {
        if let Ok(state) = serde_json::to_value(&self.state) {
            self.events.push_back(Event::Checkpoint(state));
        }
    }

    fn take(&mut self, now: Timestamp, asked: &Asked<Goal>, page: Collection) {
        let since = page.last_cursor.clone().map(|cursor| Spec::Cursor(cursor).to_string());
        let moved = since.is_some() && since != self.state.since;
        if !page.items.is_empty() && !moved {
            let error = match page.last_cursor {
                None => no_cursor(&asked.url),
                Some(cursor) => {
                    let reason = format!("items after the cursor {cursor:?} end at the same cursor");
                    FollowError::Protocol { url: asked.url.clone(), reason }
                }
            };
            return self.fail(now, None, error);
        }
        self.failures = 0;
        self.behind = moved;
        self.tell(&asked.url, page);
        if moved {
            self.state.since = since;
            self.checkpoint();
            return self.watch_for_circles(now, &asked.url);
        }
        self.returns.clear();
        self.finished = self.once;
        if std::mem::take(&mut self.again) {
            self.behind = true;
            return;
        }
        // A publisher that answers at once without anything does not hold requests, or is going down.
        let held = now.duration_since(asked.sent) >= SignedDuration::from_secs(1);
        if let Some(every) = self.every {
            self.wait(now, every);
        } else if !held && !asked.url.ends_with("timeout=0") {
            self.wait(now, IDLE_WAIT);
        }
    }

    /// Cursors that come again and again would never lead to an end.
    fn watch_for_circles(&mut self, now: Timestamp, url: &str) {
        let Some(since) = self.state.since.clone() else { return };
        if self.returns.len() >= MAX_REMEMBERED {
            self.returns.clear();
        }
        let seen = self.returns.entry(since).or_insert(0);
        *seen += 1;
        if *seen > MAX_RETURNS {
            let reason = format!("the cursors go round in a circle: {:?}", self.state.since);
            self.returns.clear();
            self.fail(now, Some(IDLE_WAIT), FollowError::Protocol { url: url.to_owned(), reason });
        }
    }

    /// Tells what is in a page.
    pub(super) fn tell(&mut self, url: &str, page: Collection) {
        for problem in &page.problems {
            self.events.push_back(Event::Warning(format!("{url}: {problem}")));
        }
        self.hand_over(page);
    }

    /// Tells the items. One without a cursor of its own has the position before it: from there it comes again.
    fn hand_over(&mut self, page: Collection) {
        let start = self.state.since.as_deref().unwrap_or_default();
        let mut position = start.strip_prefix("cursor:").unwrap_or(start).to_owned();
        let count = page.items.len();
        for (index, object) in page.items.into_iter().enumerate() {
            let last = page.last_cursor.as_ref().filter(|_| index + 1 == count);
            if let Some(cursor) = last.or(object.cursor.as_ref()) {
                position.clone_from(cursor);
            }
            self.latest = self.latest.max(object.modified);
            self.events.push_back(Event::Change(Box::new(Followed {
                feed: self.state.url.clone(),
                op: if object.deleted { Op::Delete } else { Op::Put },
                item: object.item,
                patch: None,
                modified: object.modified,
                position: position.clone(),
                entry_id: None,
            })));
        }
    }
}

fn no_cursor(url: &str) -> FollowError {
    FollowError::Protocol {
        url: url.to_owned(),
        reason: "there are items, and no cursor for the last one".into(),
    }
}

impl Exchange for SmartFollower {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        let early = self.not_before.is_some_and(|time| now < time);
        if self.finished || self.asking.is_busy() || early {
            return None;
        }
        self.not_before = None;
        let url = self.next_url();
        let mut request = self.asking.get(url).with(ACCEPT, "application/json, application/atom+xml;q=0.9");
        request.patience += Duration::from_secs(HOLD);
        Some(self.asking.ask(now, self.goal, request))
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        self.asking.handle_head(id, head);
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        self.asking.handle_chunk(id, &chunk);
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if let Some(answer) = self.asking.handle_end(id, result) {
            self.end(now, answer);
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        self.not_before.filter(|_| !self.asking.is_busy() && !self.finished)
    }

    fn is_finished(&self) -> bool {
        self.finished && self.events.is_empty()
    }
}

impl Follower for SmartFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn has_caught_up(&self) -> bool {
        !self.behind
    }
}
