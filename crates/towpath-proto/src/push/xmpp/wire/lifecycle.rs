//! Lifecycle of a stream: connecting, opening, keepalive, reconnecting with backoff.

use std::time::Duration;

use super::ns;
use super::stanza::Element;
use crate::follow::{Backoff, Monotonic, Now};

/// Waits before reconnecting after failures.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60));
/// Timeout of connecting, and of each step of opening the stream.
const OPENING: Duration = Duration::from_secs(30);
/// Idle time before a ping.
const SILENCE: Duration = Duration::from_secs(60);
/// Uptime after which the backoff starts over. A server that accepts and drops streams at once must not reset
/// it.
const STEADY: Duration = Duration::from_secs(60);

/// Event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The stream is open; stanzas may be sent.
    Ready,
    /// Stanza.
    Stanza(Element),
    /// Start tag of a stanza that exceeds a limit.
    TooLarge(Element),
}

/// State of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamState {
    /// Disconnected; connect at this time.
    Down(Monotonic),
    /// Connecting, with a deadline.
    Connecting(Monotonic),
    /// Opening, with a deadline for the next step.
    Opening(Monotonic),
    /// Open since the first time; ping at the second.
    Ready(Monotonic, Monotonic),
    /// Open since the first time; the ping must be answered by the second.
    Doubtful(Monotonic, Monotonic),
}

/// Action due by a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamTimer {
    Nothing,
    /// Send a ping.
    Ping,
    /// The connection attempt timed out.
    Unreachable,
    /// End the stream, for this reason.
    GivenUp(&'static str),
}

/// Lifecycle of a stream.
#[derive(Debug)]
pub(crate) struct StreamLifecycle {
    state: StreamState,
    failures: u32,
    /// Reason of the last failure, until it is reported.
    problem: Option<String>,
    /// Reason that was reported last.
    last_problem: Option<String>,
}

impl Default for StreamLifecycle {
    fn default() -> Self {
        Self { state: StreamState::Down(Monotonic::ORIGIN), failures: 0, problem: None, last_problem: None }
    }
}

impl StreamLifecycle {
    pub(crate) fn poll_connect(&mut self, now: Now) -> bool {
        match self.state {
            StreamState::Down(at) if now.monotonic >= at => {
                self.state = StreamState::Connecting(now.after(OPENING));
                true
            }
            _ => false,
        }
    }

    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.state, StreamState::Connecting(_))
    }

    pub(crate) fn is_opening(&self) -> bool {
        matches!(self.state, StreamState::Opening(_))
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, StreamState::Ready(..) | StreamState::Doubtful(..))
    }

    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, StreamState::Down(_))
    }

    /// Records a step of opening the stream.
    pub(crate) fn step(&mut self, now: Now) {
        self.state = StreamState::Opening(now.after(OPENING));
    }

    pub(crate) fn open(&mut self, now: Now) {
        self.state = StreamState::Ready(now.monotonic, now.after(SILENCE));
        self.last_problem = None;
    }

    /// Records input from the server.
    pub(crate) fn record_input(&mut self, now: Now) {
        if let StreamState::Ready(since, _) | StreamState::Doubtful(since, _) = self.state {
            // Any input proves that the server is alive, not only the answer to a ping.
            self.state = StreamState::Ready(since, now.after(SILENCE));
            if now.monotonic.since(since) >= STEADY {
                // Only a steady stream resets the backoff, see STEADY.
                self.failures = 0;
            }
        }
    }

    pub(crate) fn fail(&mut self, now: Now, problem: String) {
        self.failures = self.failures.saturating_add(1);
        self.state = StreamState::Down(now.after(BACKOFF.wait(self.failures)));
        // "logged once": an unchanged reason is not reported again.
        if self.last_problem.as_ref() != Some(&problem) {
            self.last_problem = Some(problem.clone());
            self.problem = Some(problem);
        }
    }

    /// Stops reconnecting.
    pub(crate) fn end(&mut self) {
        self.state = StreamState::Down(Monotonic::NEVER);
    }

    pub(crate) fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    pub(crate) fn poll_timeout(&self) -> Monotonic {
        match self.state {
            StreamState::Down(at) | StreamState::Connecting(at) | StreamState::Opening(at) => at,
            StreamState::Ready(_, at) | StreamState::Doubtful(_, at) => at,
        }
    }

    pub(crate) fn handle_timeout(&mut self, now: Now) -> StreamTimer {
        if now.monotonic < self.poll_timeout() {
            return StreamTimer::Nothing;
        }
        match self.state {
            StreamState::Down(_) => StreamTimer::Nothing,
            StreamState::Connecting(_) => StreamTimer::Unreachable,
            StreamState::Opening(_) => StreamTimer::GivenUp("the server does not open the stream in time"),
            StreamState::Ready(since, _) => {
                self.state = StreamState::Doubtful(since, now.after(OPENING));
                StreamTimer::Ping
            }
            // A half-open connection never fails by itself: TCP may take hours to notice.
            StreamState::Doubtful(..) => StreamTimer::GivenUp("the server does not answer a ping"),
        }
    }
}

/// Returns the condition and text of a stream error (RFC 6120, 4.9).
pub(crate) fn stream_error(error: &Element) -> (String, String) {
    let of_rfc = |child: &&Element| *child.ns == *ns::STREAM_ERRORS;
    let condition = error.children().filter(of_rfc).find(|child| child.name != "text");
    // RFC 6120, 4.9.3.21: the condition for anything that has no other.
    let condition = condition.map_or("undefined-condition", |child| child.name.as_str());
    let text = error.child_text("text", ns::STREAM_ERRORS).unwrap_or_default();
    // The text is foreign input: keep its size in the log bounded.
    (condition.to_owned(), text.chars().take(200).collect())
}

/// Returns the end of a stream, with a stream error if `condition` is not empty.
pub(crate) fn closing_tags(condition: &str) -> String {
    if condition.is_empty() {
        return "</stream:stream>".into();
    }
    let error = format!("<{condition} xmlns='{}'/>", ns::STREAM_ERRORS);
    format!("<stream:error>{error}</stream:error></stream:stream>")
}
