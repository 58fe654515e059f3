//! The end of the feed: when to poll next, by the publisher's hints.
//!
//! A page may link to an event stream (`rel=alternate`, `type="text/event-stream"`). It is held open at the end of the
//! feed, and each event makes a poll due. Else the page's `Cache-Control` gives the interval, and a SUP document that the
//! page names may shorten it ([`super::sup_hints`]). A hub's deliveries do the same from outside.

use std::time::Duration;

use http::header::{ACCEPT, CACHE_CONTROL};
use url::Url;

use super::sup_hints::SupHints;
use super::{FollowPhase, ReplicationFollower};
use crate::follow::{FollowMode, Monotonic, Now, Request, RequestId, ResponseHead};
use crate::format::link;
use crate::sup::wire::discovery::{Discovery, discover};

/// Media type of an event stream (HTML, section 9.2.5).
const EVENT_STREAM: &str = "text/event-stream";
/// Poll interval while an event stream is open, in case it is silent.
const OPEN_POLL: Duration = Duration::from_secs(300);
/// Time until an event stream that ended or failed is requested again.
const REOPEN_AFTER: Duration = Duration::from_secs(30);
/// Longest lifetime in caches that counts as a poll interval.
// A page that may be cached for days is still worth a 304 per hour.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);

/// Hints of the newest page, and the event stream.
#[derive(Debug, Default)]
pub(super) struct TailHints {
    events: Option<String>,
    lifetime: Option<Duration>,
    stream: Option<EventStream>,
    not_before: Option<Monotonic>,
    /// True if an event came while a poll was under way.
    rung: bool,
    /// True if a hub delivered, and a cache may still have the page from before.
    awaits_pushed: bool,
    /// SUP links of the newest page.
    pub(super) announced: Discovery,
    pub(super) sup: Option<SupHints>,
}

/// An event stream in flight.
#[derive(Debug)]
struct EventStream {
    id: RequestId,
    is_open: bool,
    scanner: EventScanner,
}

/// Finds the ends of events in a stream, whatever its pieces (HTML, section 9.2.6).
#[derive(Debug, Default)]
struct EventScanner {
    is_inside_line: bool,
    /// True if the event has a line other than a comment.
    has_field: bool,
}

impl EventScanner {
    /// Reads a piece; returns true if an event ended in it.
    fn scan(&mut self, piece: &[u8]) -> bool {
        let mut has_ended = false;
        for &byte in piece {
            let is_line_end = matches!(byte, b'\n' | b'\r');
            if is_line_end && !self.is_inside_line {
                has_ended |= std::mem::take(&mut self.has_field);
            } else if !is_line_end && !self.is_inside_line {
                // A line that begins with a colon keeps the connection alive, and means nothing.
                self.has_field |= byte != b':';
            }
            self.is_inside_line = !is_line_end;
        }
        has_ended
    }
}

impl TailHints {
    /// Takes the hints of a page.
    pub(super) fn note(&mut self, head: &ResponseHead) {
        let directives = head.header(CACHE_CONTROL.as_str()).unwrap_or_default().split(',');
        let age = directives.filter_map(|directive| directive.trim().strip_prefix("max-age=")).next_back();
        let seconds = age.and_then(|age| age.trim_matches('"').parse::<u64>().ok()).filter(|age| *age > 0);
        self.lifetime = seconds.map(|age| Duration::from_secs(age).min(MAX_LIFETIME));
        // A 304 need not repeat the links.
        if head.status == 200 {
            let links = link::from_headers(&head.headers, Url::parse(&head.url).ok().as_ref());
            let is_stream = |link: &&link::Link| {
                let is_type = |(name, value): &(String, String)| name == "type" && value == EVENT_STREAM;
                link.anchor.is_none() && link.has_rel("alternate") && link.params.iter().any(is_type)
            };
            self.events = links.iter().find(is_stream).map(|link| link.target.clone());
            self.announced = discover(&head.headers, &[], Url::parse(&head.url).ok().as_ref());
        }
    }
}

impl ReplicationFollower {
    /// Returns when to poll at the end of the feed, and requests the event stream unless it is open.
    pub(super) fn tail_wait(&mut self) -> Duration {
        if self.options.mode == FollowMode::CatchUp {
            return self.options.poll;
        }
        if std::mem::take(&mut self.tail.rung) {
            return Duration::ZERO;
        }
        if let Some(pace) = self.pace {
            let awaits_pushed = std::mem::take(&mut self.tail.awaits_pushed);
            return if awaits_pushed { self.options.poll.min(pace) } else { pace };
        }
        if !self.options.follow_hints {
            return self.options.poll;
        }
        let is_open = self.tail.stream.as_ref().is_some_and(|stream| stream.is_open);
        if is_open { OPEN_POLL } else { self.tail.lifetime.unwrap_or(self.options.poll) }
    }

    /// Sets the interval between polls at the end of the feed; `None` for the options' and the publisher's.
    pub fn set_pace(&mut self, pace: Option<Duration>) {
        self.pace = pace;
    }

    /// Polls at once, unless the last attempt failed.
    pub fn pull_now(&mut self) {
        if self.is_idle() && self.failures == 0 {
            self.wake = None;
        } else {
            self.tail.rung = true;
        }
    }

    /// Polls at once, and once more after the interval of the options: caches between the feed and here may still have
    /// the page from before the push.
    pub fn pull_after_push(&mut self) {
        self.tail.awaits_pushed = true;
        self.pull_now();
    }

    /// Returns true if hints of the publisher count.
    pub(super) fn takes_hints(&self) -> bool {
        self.options.mode == FollowMode::Continuous && self.options.follow_hints && self.pace.is_none()
    }

    /// Returns true if an event stream is open, or was requested.
    pub(super) fn has_events(&self) -> bool {
        self.tail.stream.is_some()
    }

    /// Requests the event stream that the newest page names, at the end of the feed.
    pub(super) fn open_events(&mut self, now: Now) {
        let is_early = self.tail.not_before.is_some_and(|time| now.monotonic < time);
        if !self.takes_hints() || self.tail.stream.is_some() || is_early {
            return;
        }
        let Some(url) = self.tail.events.clone() else { return };
        self.last_id += 1;
        let id = RequestId(self.last_id);
        // Endless by nature; only pieces are in memory.
        let request = Request { max_body: u64::MAX, is_streamed: true, ..Request::get(id, url) };
        self.requests.push_back(request.with(ACCEPT, EVENT_STREAM));
        self.tail.stream = Some(EventStream { id, is_open: false, scanner: EventScanner::default() });
    }

    fn ring(&mut self, now: Now) {
        if matches!(self.phase, FollowPhase::Idle) && self.failures == 0 {
            self.wake = Some(now.monotonic);
        } else {
            self.tail.rung = true;
        }
    }

    /// Handles the head of the event stream; returns false for any other response.
    pub(super) fn events_head(&mut self, now: Now, id: RequestId, head: &ResponseHead) -> bool {
        let Some(stream) = self.tail.stream.as_mut().filter(|stream| stream.id == id) else { return false };
        let is_events = head.header("content-type").is_some_and(|value| value.starts_with(EVENT_STREAM));
        stream.is_open = head.status == 200 && is_events;
        if stream.is_open {
            // What came between the last poll and this moment has no event.
            self.ring(now);
        }
        true
    }

    /// Handles a piece of the event stream; returns false for any other response.
    pub(super) fn events_piece(&mut self, now: Now, id: RequestId, piece: &[u8]) -> bool {
        let Some(stream) = self.tail.stream.as_mut().filter(|stream| stream.id == id) else { return false };
        if stream.scanner.scan(piece) && stream.is_open {
            self.ring(now);
        }
        true
    }

    /// Handles the end of the event stream; returns false for any other response.
    pub(super) fn events_end(&mut self, now: Now, id: RequestId) -> bool {
        let Some(stream) = self.tail.stream.take_if(|stream| stream.id == id) else { return false };
        self.tail.not_before = Some(now.after(REOPEN_AFTER));
        // The poll that is due was far away, because of the stream.
        if stream.is_open && matches!(self.phase, FollowPhase::Idle) && self.failures == 0 {
            self.wake = Some(now.after(self.options.poll));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_in_any_pieces() {
        let stream = b":\n\nretry: 1\n\n:\n\nevent: put\r\ndata: {}\r\n\r\n:\n\n";
        for size in 1..stream.len() {
            let mut scanner = EventScanner::default();
            let ends = stream.chunks(size).filter(|piece| scanner.scan(piece)).count();
            assert!((1..=3).contains(&ends), "{size}: {ends}");
        }
        let mut scanner = EventScanner::default();
        assert!(!scanner.scan(b":\n\n:\n\n: keep alive\n\n\n\n") && !scanner.scan(b"data: 1\n"));
        assert!(scanner.scan(b"\n") && !scanner.scan(b"\n"));
    }

    #[test]
    fn hints_come_from_cache_control_and_links() {
        let mut hints = TailHints::default();
        let mut head =
            ResponseHead { status: 200, url: "http://x/r".into(), headers: http::HeaderMap::new() };
        head.headers.insert("cache-control", "public, max-age=90".parse().unwrap());
        let link = "</e>; rel=\"alternate\"; type=\"text/event-stream\"";
        head.headers.append("link", "</other>; rel=alternate; type=text/html".parse().unwrap());
        head.headers.append("link", link.parse().unwrap());
        hints.note(&head);
        assert_eq!(
            (hints.lifetime, hints.events.as_deref()),
            (Some(Duration::from_secs(90)), Some("http://x/e"))
        );
        for (value, lifetime) in
            [("max-age=0", None), ("no-cache", None), ("max-age=999999", Some(MAX_LIFETIME))]
        {
            head.headers.insert("cache-control", value.parse().unwrap());
            hints.note(&head);
            assert_eq!(hints.lifetime, lifetime, "{value}");
        }
        hints.note(&ResponseHead { status: 304, headers: http::HeaderMap::new(), ..head });
        assert_eq!(hints.events.as_deref(), Some("http://x/e"));
    }
}
