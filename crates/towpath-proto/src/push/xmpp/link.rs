//! What every stream has in common: when it is connected, how long it may take, when it is given up.

use jiff::{SignedDuration, Timestamp};

/// The first pause after a failure; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(60);
/// How long connecting, and each step of opening the stream, may take.
const OPENING: SignedDuration = SignedDuration::from_secs(30);
/// After how long a silence the server is asked whether it is there, and how long it may take to answer.
const SILENCE: SignedDuration = SignedDuration::from_secs(60);
/// How long a stream must have been good for the pauses to begin again.
const STEADY: SignedDuration = SignedDuration::from_secs(60);

/// How far the stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not there; to be connected at this time.
    Down(Timestamp),
    /// Being connected, until then at the latest.
    Connecting(Timestamp),
    /// Being opened; the next step is due then.
    Opening(Timestamp),
    /// Open since the first time. At the second the server is asked whether it is there.
    Ready(Timestamp, Timestamp),
    /// It was asked, and has until then to answer.
    Doubtful(Timestamp, Timestamp),
}

/// What the time has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// The server is to be asked whether it is there.
    Ping,
    /// The connection was not made in time.
    Unreachable,
    /// The stream is to be ended, because of this.
    GivenUp(&'static str),
}

/// The life of a connection.
#[derive(Debug)]
pub(super) struct Link {
    state: State,
    failures: u32,
    /// Why it went down, where that was not told yet.
    problem: Option<String>,
    /// What was told last.
    told: Option<String>,
}

impl Default for Link {
    fn default() -> Self {
        Self { state: State::Down(Timestamp::MIN), failures: 0, problem: None, told: None }
    }
}

impl Link {
    pub(super) fn poll_connect(&mut self, now: Timestamp) -> bool {
        match self.state {
            State::Down(at) if now >= at => {
                self.state = State::Connecting(after(now, OPENING));
                true
            }
            _ => false,
        }
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.state, State::Connecting(_))
    }

    pub(super) fn is_opening(&self) -> bool {
        matches!(self.state, State::Opening(_))
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(..) | State::Doubtful(..))
    }

    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Down(_))
    }

    /// A step of opening was made, and the next one is waited for.
    pub(super) fn step(&mut self, now: Timestamp) {
        self.state = State::Opening(after(now, OPENING));
    }

    pub(super) fn open(&mut self, now: Timestamp) {
        self.state = State::Ready(now, after(now, SILENCE));
        self.told = None;
    }

    /// Something came from the server.
    pub(super) fn hear(&mut self, now: Timestamp) {
        if let State::Ready(since, _) | State::Doubtful(since, _) = self.state {
            self.state = State::Ready(since, after(now, SILENCE));
            if now.duration_since(since) >= STEADY {
                self.failures = 0;
            }
        }
    }

    pub(super) fn fail(&mut self, now: Timestamp, problem: String) {
        let pause = FIRST_PAUSE.checked_mul(1 << self.failures.min(16)).unwrap_or(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.state = State::Down(after(now, pause.min(LONGEST_PAUSE)));
        // "logged once": not again while it stays the same.
        if self.told.as_ref() != Some(&problem) {
            self.told = Some(problem.clone());
            self.problem = Some(problem);
        }
    }

    /// It is not wanted any more.
    pub(super) fn end(&mut self) {
        self.state = State::Down(Timestamp::MAX);
    }

    pub(super) fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    pub(super) fn poll_timeout(&self) -> Timestamp {
        match self.state {
            State::Down(at) | State::Connecting(at) | State::Opening(at) => at,
            State::Ready(_, at) | State::Doubtful(_, at) => at,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) -> Due {
        if now < self.poll_timeout() {
            return Due::Nothing;
        }
        match self.state {
            State::Down(_) => Due::Nothing,
            State::Connecting(_) => Due::Unreachable,
            State::Opening(_) => Due::GivenUp("the server does not open the stream in time"),
            State::Ready(since, _) => {
                self.state = State::Doubtful(since, after(now, OPENING));
                Due::Ping
            }
            State::Doubtful(..) => Due::GivenUp("the server has fallen silent"),
        }
    }
}

/// The time after a pause.
pub(super) fn after(now: Timestamp, pause: SignedDuration) -> Timestamp {
    now.saturating_add(pause).unwrap_or(Timestamp::MAX)
}

/// The condition of a stream error (RFC 6120, 4.9) and its words.
pub(super) fn stream_error(error: &super::stanza::Element) -> (String, String) {
    let of_rfc = |child: &&super::stanza::Element| *child.ns == *super::ns::STREAM_ERRORS;
    let condition = error.children().filter(of_rfc).find(|child| child.name != "text");
    let condition = condition.map_or("undefined-condition", |child| child.name.as_str());
    let text = error.child_text("text", super::ns::STREAM_ERRORS).unwrap_or_default();
    (condition.to_owned(), text.chars().take(200).collect())
}

/// The end of a stream, with an error of our own or without.
pub(super) fn farewell(condition: &str) -> String {
    if condition.is_empty() {
        return "</stream:stream>".into();
    }
    let error = format!("<{condition} xmlns='{}'/>", super::ns::STREAM_ERRORS);
    format!("<stream:error>{error}</stream:error></stream:stream>")
}
