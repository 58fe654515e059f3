//! Follower of a feed by pull ("Updates/Synchronization via Pull").
//!
//! The follower polls the feed in the order by modification, each time with the last item's cursor as `since`. At the end
//! it lets the publisher hold the request (long poll). It needs only the required parts of the text: `last_cursor` and
//! `since=cursor:`. A publisher that cannot read a cursor sends items again; none is missed.

mod ahead;
pub mod push;
mod start;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use self::start::{agree, base_of, feed_url, position_of, resume, start_spec};
use self::state::SmartFollowState;
use crate::change::Op;
use crate::follow::html_answer::html_answer;
use crate::follow::single_request::{CollectedResponse, SentRequest, SingleRequest, SingleRequestExchange};
use crate::follow::{
    Backoff, Event, FollowError, FollowMode, Followed, Follower, MAX_DOCUMENT, Monotonic, Now, ReadLimits,
    Request, ResponseHead, StartFrom,
};
use crate::smart::wire::spec::{PositionSpec, TimeSpan};
use crate::smart::wire::{Collection, reversed, with_parameter};
use http::header::{ACCEPT, CONTENT_TYPE};
use jiff::Timestamp;
use serde_json::Value;

/// Items per request.
const PAGE: usize = 200;
/// Timeout of a long poll, in seconds (the text's default).
const HOLD: u64 = 55;
/// Waits after failures.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(300));
// A hostile `Retry-After` must not silence the feed.
/// Maximum wait that a publisher may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Interval between polls of a publisher that does not hold requests.
const IDLE_WAIT: Duration = Duration::from_secs(30);
/// Maximum repetitions of a cursor before the end is reached. A publisher that restarts and loses its cursors causes one.
const MAX_RETURNS: u32 = 8;
// A redirect that drops `since` gives the first page, over and over.
/// Maximum consecutive redirects that lose the query's parameters.
const MAX_REDIRECTS: u32 = 8;
// With 200 items per cursor, a circle of 200 million items is still detected.
/// Maximum number of cursors stored to detect a circle.
const MAX_REMEMBERED: usize = 1 << 20;

/// Purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullGoal {
    /// The latest item, to begin after it.
    Latest,
    /// The items after the current position.
    Next,
}

/// A follower of a Smart Feed.
#[derive(Debug)]
pub struct SmartFollower {
    state: SmartFollowState,
    /// The base URL of requests: that of the state, after redirects.
    base: String,
    redirects: u32,
    goal: PullGoal,
    mode: FollowMode,
    request: SingleRequest<PullGoal>,
    events: std::collections::VecDeque<Event>,
    not_before: Option<Monotonic>,
    failures: u32,
    /// True until a page reaches the end of the feed.
    behind: bool,
    finished: bool,
    returns: HashMap<String, u32>,
    /// True to poll once more at the end.
    repoll: bool,
    /// Poll interval at the end; `None` for long polls.
    interval: Option<Duration>,
    /// Latest modification time among delivered items.
    last_modified: Option<Timestamp>,
    limits: ReadLimits,
}

impl SmartFollower {
    /// Creates a follower of the feed with the base URL `url`.
    ///
    /// The order is `order=modified`, in which every change appears; if the URL has another one, a warning says so.
    /// `state` is a checkpoint of an earlier follower of the feed, and overrides `from`.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] for an invalid URL, a state of another feed, or a start position that looks mistyped.
    pub fn new(
        url: &str,
        from: &StartFrom,
        state: Option<Value>,
        mode: FollowMode,
    ) -> Result<Self, FollowError> {
        let (base, other_order) = feed_url(url)?;
        let other_order = other_order.filter(|_| state.is_none());
        let mut follower = Self::over(base, from, state, mode)?;
        if let Some(order) = other_order {
            let warning =
                format!("{url}: not every change appears in order={order}; following order=modified");
            follower.events.push_back(Event::Warning(warning));
        }
        Ok(follower)
    }

    /// Creates a follower over another transport than HTTP.
    ///
    /// `url` is only a name, and the driver passes responses to [`Self::handle_page`].
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] for a state of another feed, or a start position that looks mistyped.
    pub fn over(
        url: String,
        from: &StartFrom,
        state: Option<Value>,
        mode: FollowMode,
    ) -> Result<Self, FollowError> {
        let (mut goal, mut since) = (PullGoal::Next, None);
        if let Some(state) = state {
            since = resume(&url, state)?;
        } else {
            match from {
                StartFrom::Beginning => {}
                StartFrom::Now => goal = PullGoal::Latest,
                StartFrom::Time(time) => since = Some(format!("time:{time}")),
                StartFrom::Position(position) => since = Some(start_spec(position)?),
            }
        }
        Ok(Self {
            base: url.clone(),
            redirects: 0,
            // The URL before redirects: a checkpoint must be valid for the URL that the user gave.
            state: SmartFollowState { protocol: "smart".into(), url, since },
            goal,
            mode,
            request: SingleRequest::default(),
            events: std::collections::VecDeque::new(),
            not_before: None,
            failures: 0,
            behind: true,
            finished: false,
            returns: HashMap::new(),
            repoll: false,
            interval: None,
            last_modified: None,
            limits: ReadLimits::default(),
        })
    }

    /// Sets the limits of what is read.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the limits of what is read.
    pub(crate) fn limits(&self) -> &ReadLimits {
        &self.limits
    }

    /// Returns the URL of the next request. It is a long poll only at the end of the feed.
    fn next_url(&self) -> String {
        let (url, since) = (&self.base, &self.state.since);
        if self.goal == PullGoal::Latest {
            // The latest item is the first in the descending order.
            return with_parameter(&reversed(url), "max", "1");
        }
        // Items are there while behind, and a single pass must not wait for new ones.
        let hold =
            if self.mode == FollowMode::CatchUp || self.behind || self.interval.is_some() { 0 } else { HOLD };
        page_url(url, since.as_deref(), hold)
    }

    fn get(&mut self, url: String) -> Request {
        let mut request = self.request.get(url).with(ACCEPT, "application/json, application/atom+xml;q=0.9");
        request.max_body = self.limits.largest_document(MAX_DOCUMENT);
        // The publisher may be silent for the whole hold.
        request.patience += Duration::from_secs(HOLD);
        request
    }

    fn end(&mut self, now: Now, answer: CollectedResponse<PullGoal>) {
        let (sent, whole) = answer.whole();
        let url = sent.url.clone();
        let (head, body) = match whole {
            Ok(whole) => whole,
            Err(source) => return self.fail(now, None, FollowError::Transfer { url, source }),
        };
        // Any other 2xx has no page: 204 and 206 would look like an empty end of the feed.
        if head.status != 200 {
            return self.handle_error_status(now, sent.purpose, &head, url);
        }
        if head.url != sent.url && !self.follow_redirect(&sent, &head.url) {
            return self.count_redirect(now, url, &head.url);
        }
        self.redirects = 0;
        let media_type = head.header(CONTENT_TYPE.as_str());
        // The publisher chooses the format. A missing or wrong type is read as JSON, which it has to offer.
        let is_atom = media_type.is_some_and(|value| value.contains("xml"));
        let read = if is_atom {
            Collection::from_atom_within(&body, &head.url, self.limits.document)
        } else {
            Collection::from_json_within(&body, self.limits.document)
        };
        let page = read.map_err(|error| {
            let reason = html_answer(media_type, &body).unwrap_or_else(|| error.to_string());
            FollowError::Protocol { url, reason }
        });
        // Only with a page that can be read: an error page of a proxy must not void everything.
        if head.is_reset() && page.is_ok() && sent.purpose == PullGoal::Next {
            self.begin_anew(&sent.url);
        }
        self.handle_response(now, &sent, page);
    }

    /// Handles a redirect: later requests go to its target.
    ///
    /// Returns false if the redirect lost the position or the order, so that the response is not for this request.
    fn follow_redirect(&mut self, sent: &SentRequest<PullGoal>, target: &str) -> bool {
        if let Some(base) = base_of(target) {
            self.base = base;
        }
        // A target without this parameter answers another question, and its items would be taken for the next
        // ones.
        let parameter = if sent.purpose == PullGoal::Latest { "order" } else { "since" };
        agree(&sent.url, target, parameter)
    }

    fn count_redirect(&mut self, now: Now, url: String, target: &str) {
        self.redirects += 1;
        if self.redirects > MAX_REDIRECTS {
            let reason = format!("redirects lose the query's parameters, the last one to {target}");
            self.fail(now, None, FollowError::Protocol { url, reason });
        }
    }

    fn handle_response(
        &mut self,
        now: Now,
        sent: &SentRequest<PullGoal>,
        page: Result<Collection, FollowError>,
    ) {
        match page {
            Ok(page) if sent.purpose == PullGoal::Latest => self.begin_after(now, &sent.url, page),
            Ok(page) => self.process_page(now, sent, page),
            Err(error) => self.fail(now, None, error),
        }
    }

    /// Handles an error status. Without a descending order, following begins at the current time.
    fn handle_error_status(&mut self, now: Now, goal: PullGoal, head: &ResponseHead, url: String) {
        if goal == PullGoal::Latest && matches!(head.status, 400 | 404 | 501) {
            // The whole second: changes in it are sent again rather than lost.
            let spec = TimeSpan::second(now.wall.as_second()).map(PositionSpec::Time);
            return self.start_at(spec.map(|spec| spec.to_string()));
        }
        self.fail(now, head.retry_after(now.wall), FollowError::status(url, head.status));
    }

    fn fail(&mut self, now: Now, wait: Option<Duration>, error: FollowError) {
        self.events.push_back(Event::Failed(error));
        self.finished = self.mode == FollowMode::CatchUp;
        // After a failure the redirect is tried anew: its target may be what fails.
        self.base.clone_from(&self.state.url);
        self.redirects = 0;
        self.failures = self.failures.saturating_add(1);
        self.wait(now, BACKOFF.wait_or_longer(self.failures, wait, MAX_RETRY_AFTER));
    }

    fn wait(&mut self, now: Now, wait: Duration) {
        self.not_before = Some(now.after(wait));
    }

    /// Begins after the latest item. An empty feed is followed from its beginning.
    fn begin_after(&mut self, now: Now, url: &str, page: Collection) {
        if !page.is_empty() && page.last_cursor.is_none() {
            return self.fail(now, None, no_cursor(url));
        }
        self.failures = 0;
        self.start_at(page.last_cursor.map(|cursor| PositionSpec::Cursor(cursor).to_string()));
    }

    fn start_at(&mut self, since: Option<String>) {
        self.state.since = since;
        self.goal = PullGoal::Next;
        self.checkpoint();
    }

    fn checkpoint(&mut self) {
        if let Ok(state) = serde_json::to_value(&self.state) {
            self.events.push_back(Event::Checkpoint(state));
        }
    }

    fn process_page(&mut self, now: Now, sent: &SentRequest<PullGoal>, page: Collection) {
        let since = page.last_cursor.clone().map(|cursor| PositionSpec::Cursor(cursor).to_string());
        let advanced = since.is_some() && since != self.state.since;
        // Items without progress would be delivered again and again, as fast as the publisher responds.
        if !page.is_empty() && !advanced {
            let error = match page.last_cursor {
                None => no_cursor(&sent.url),
                Some(cursor) => {
                    let reason = format!("items after the cursor {cursor:?} end at the same cursor");
                    FollowError::Protocol { url: sent.url.clone(), reason }
                }
            };
            return self.fail(now, None, error);
        }
        self.failures = 0;
        self.behind = advanced;
        self.deliver_page(&sent.url, page);
        if advanced {
            self.state.since = since;
            self.checkpoint();
            return self.detect_circle(now, &sent.url);
        }
        // The end was reached, so the repetitions before it were no circle.
        self.returns.clear();
        self.finished = self.mode == FollowMode::CatchUp;
        if std::mem::take(&mut self.repoll) {
            self.behind = true;
            return;
        }
        // An immediate empty response: the publisher does not hold requests, or is shutting down.
        let held = now.monotonic.since(sent.sent) >= Duration::from_secs(1);
        // A request with `timeout=0` was not to be held: the next one is a long poll, without a wait.
        if let Some(interval) = self.interval {
            self.wait(now, interval);
        } else if !held && !sent.url.ends_with("timeout=0") {
            self.wait(now, IDLE_WAIT);
        }
    }

    /// Detects cursors that repeat without end.
    fn detect_circle(&mut self, now: Now, url: &str) {
        let Some(since) = self.state.since.clone() else { return };
        // Bounded memory: a circle longer than this costs another round before it is detected.
        if self.returns.len() >= MAX_REMEMBERED {
            self.returns.clear();
        }
        let count = self.returns.entry(since).or_insert(0);
        *count += 1;
        if *count > MAX_RETURNS {
            let reason = format!("the cursors form a circle: {:?}", self.state.since);
            self.returns.clear();
            self.fail(now, Some(IDLE_WAIT), FollowError::Protocol { url: url.to_owned(), reason });
        }
    }

    /// Delivers a page: its problems and its items.
    fn deliver_page(&mut self, url: &str, page: Collection) {
        for (index, problem) in page.problems.iter().enumerate() {
            let text = format!("{url}: {problem}");
            let is_left_out = index < page.left_out;
            self.events.push_back(if is_left_out { Event::Incomplete(text) } else { Event::Warning(text) });
        }
        self.deliver_items(page);
    }

    /// Delivers the items. An item without its own cursor has the position before it, from which it is sent again.
    fn deliver_items(&mut self, page: Collection) {
        let start = self.state.since.as_deref().unwrap_or_default();
        let mut position = start.strip_prefix("cursor:").map_or_else(|| start.to_owned(), position_of);
        let count = page.items.len();
        for (index, object) in page.items.into_iter().enumerate() {
            let last = page.last_cursor.as_ref().filter(|_| index + 1 == count);
            if let Some(cursor) = last.or(object.cursor.as_ref()) {
                position = position_of(cursor);
            }
            self.last_modified = self.last_modified.max(object.modified);
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

/// Returns the URL of the page after a position, with the longest time to wait for its first item, in seconds.
fn page_url(base: &str, since: Option<&str>, hold: u64) -> String {
    let page = since.map_or_else(|| base.to_owned(), |since| with_parameter(base, "since", since));
    with_parameter(&with_parameter(&page, "max", &PAGE.to_string()), "timeout", &hold.to_string())
}

fn no_cursor(url: &str) -> FollowError {
    FollowError::Protocol {
        url: url.to_owned(),
        reason: "the page has items, but no cursor for the last one".into(),
    }
}

impl SingleRequestExchange for SmartFollower {
    type Purpose = PullGoal;

    fn single_request(&self) -> &SingleRequest<PullGoal> {
        &self.request
    }

    fn single_request_mut(&mut self) -> &mut SingleRequest<PullGoal> {
        &mut self.request
    }

    fn next_request(&mut self, now: Now) -> Option<Request> {
        if self.request.is_in_flight() {
            return self.request_ahead(now);
        }
        let early = self.not_before.is_some_and(|time| now.monotonic < time);
        if self.finished || early {
            return None;
        }
        self.not_before = None;
        let request = self.get(self.next_url());
        Some(self.request.send(now, self.goal, request))
    }

    fn handle_response(&mut self, now: Now, response: CollectedResponse<PullGoal>) {
        self.end(now, response);
        self.keep_ahead();
    }

    fn next_timeout(&self) -> Option<Monotonic> {
        self.not_before.filter(|_| !self.request.is_in_flight() && !self.finished)
    }

    fn is_over(&self) -> bool {
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
