//! The hub asks the subscriber whether it meant it (WebSub 5.3, PubSubHubbub 0.3 sections 6.2 and 6.3).
//!
//! Call [`Verification::ask`], GET what it returns without following redirects, and tell
//! [`Verification::handle_answer`] what came; ask again when it says so.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::request::{SubscriptionRequest, Verify};
use super::{Dialect, Mode};
use crate::smart::wire::with_parameter;

/// How often a subscriber that does not answer is asked, at most.
const TRIES: u32 = 4;
/// The same for 0.3, where an error is "temporarily not verified" and is asked again "over the course of a longer
/// time period (e.g., 6 hours)".
const OLD_TRIES: u32 = 11;
/// The first pause; each further one is three times as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(5);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(2 * 60 * 60);
/// How much of an answer's body needs to be read: more is no challenge of ours.
pub const MAX_ANSWER: usize = 4 << 10;

/// What came of a question.
#[derive(Debug, Clone, Copy)]
pub enum Answer<'a> {
    /// A whole response.
    Response {
        /// Its status.
        status: u16,
        /// Its body, up to [`MAX_ANSWER`] bytes.
        body: &'a [u8],
    },
    /// None, or not in time.
    Nothing,
}

/// What is known after an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The subscriber meant it. A subscription lasts until this time.
    Confirmed(Timestamp),
    /// Not, or it cannot be known. Everything stays as it was ("Any failures to confirm the subscription action
    /// MUST leave the subscription state unchanged").
    Refused(String),
    /// To be asked again at this time.
    Again(Timestamp),
}

/// A request on its way to being believed.
#[derive(Debug, Clone)]
pub struct Verification {
    /// What was asked for.
    pub request: SubscriptionRequest,
    lease: Duration,
    challenge: String,
    tries: u32,
    asked: Timestamp,
}

impl Verification {
    /// A verification of `request`, which is given this lease. `challenge` is random ("a hub-generated, random
    /// string"), and nobody's else.
    pub fn new(request: SubscriptionRequest, lease: Duration, challenge: String) -> Self {
        Self { request, lease, challenge, tries: 0, asked: Timestamp::UNIX_EPOCH }
    }

    /// What to GET: the callback with arguments appended (WebSub 5.1.1: "Hubs MUST preserve the query string").
    pub fn ask(&mut self, now: Timestamp) -> String {
        self.tries += 1;
        self.asked = now;
        let request = &self.request;
        let mut url = with_parameter(&request.callback, "hub.mode", request.mode.name());
        url = with_parameter(&url, "hub.topic", &request.topic);
        url = with_parameter(&url, "hub.challenge", &self.challenge);
        if request.mode == Mode::Subscribe {
            url = with_parameter(&url, "hub.lease_seconds", &self.lease.as_secs().to_string());
        }
        match &request.verify_token {
            Some(token) => with_parameter(&url, "hub.verify_token", token),
            None => url,
        }
    }

    /// What the subscriber said. A lease is "measured from the time the verification request was made".
    pub fn handle_answer(&self, now: Timestamp, answer: Answer<'_>) -> Verdict {
        let reason = match answer {
            Answer::Response { status: 200..=299, body } if body == self.challenge.as_bytes() => {
                let lease = SignedDuration::try_from(self.lease).unwrap_or(SignedDuration::MAX);
                return Verdict::Confirmed(self.asked.saturating_add(lease).unwrap_or(now));
            }
            Answer::Response { status: 200..=299, .. } => {
                "the subscriber's answer is not the challenge".to_owned()
            }
            Answer::Response { status, .. } => format!("the subscriber answers {status}"),
            Answer::Nothing => "the subscriber does not answer".to_owned(),
        };
        let definite = matches!(answer, Answer::Response { status: 404 | 410, .. });
        let tries = match (self.request.dialect, self.request.verify) {
            // "no retries should occur": who asked is waiting.
            (Dialect::PubSubHubbub, Verify::Sync) => 0,
            (Dialect::PubSubHubbub, Verify::Async) => OLD_TRIES,
            // "The hub MUST consider other server response codes … to mean that the verification request has
            // failed." No answer is no response code.
            (Dialect::WebSub, _) => {
                if matches!(answer, Answer::Nothing) {
                    TRIES
                } else {
                    0
                }
            }
        };
        if definite || self.tries >= tries {
            return Verdict::Refused(reason);
        }
        let pause = FIRST_PAUSE.checked_mul(3_i32.saturating_pow(self.tries - 1)).unwrap_or(LONGEST_PAUSE);
        Verdict::Again(now.saturating_add(pause.min(LONGEST_PAUSE)).unwrap_or(now))
    }
}

/// What to GET to tell a subscriber that its subscription is denied (WebSub 5.2).
pub fn denial(callback: &str, topic: &str, reason: &str) -> String {
    let url = with_parameter(callback, "hub.mode", "denied");
    with_parameter(&with_parameter(&url, "hub.topic", topic), "hub.reason", reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::websub::form::Form;

    fn request(dialect: Dialect, verify: Verify, mode: Mode) -> SubscriptionRequest {
        SubscriptionRequest {
            mode,
            dialect,
            topic: "http://example.com/feeds/a/items?order=modified".into(),
            callback: "http://s.example/push?a=1&hub.mode=b".into(),
            lease_seconds: Some(3600),
            secret: None,
            verify,
            verify_token: (dialect == Dialect::PubSubHubbub).then(|| "t&=é".into()),
        }
    }

    fn verification(dialect: Dialect, verify: Verify, mode: Mode) -> Verification {
        Verification::new(request(dialect, verify, mode), Duration::from_secs(3600), "c0ffee".into())
    }

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn response(status: u16, body: &str) -> Answer<'_> {
        Answer::Response { status, body: body.as_bytes() }
    }

    const WEBSUB: (Dialect, Verify) = (Dialect::WebSub, Verify::Async);
    const SYNC: (Dialect, Verify) = (Dialect::PubSubHubbub, Verify::Sync);
    const ASYNC: (Dialect, Verify) = (Dialect::PubSubHubbub, Verify::Async);

    /// WebSub 5.3 and 5.1.1, 0.3 sections 6.1.1 and 6.2: hub.mode, hub.topic, hub.challenge and, to subscribe,
    /// hub.lease_seconds are REQUIRED; "Hubs MUST preserve the query string … by appending new parameters"; the
    /// token is echoed.
    #[test]
    fn the_question() {
        for (dialect, verify) in [WEBSUB, SYNC, ASYNC] {
            let url = verification(dialect, verify, Mode::Subscribe).ask(time(0));
            let (base, query) = url.split_once('?').unwrap();
            assert_eq!(base, "http://s.example/push");
            assert!(query.starts_with("a=1&hub.mode=b&hub.mode=subscribe&"), "{query}");
            let form = Form::parse(query.as_bytes()).unwrap();
            assert_eq!(form.last("hub.topic"), Some("http://example.com/feeds/a/items?order=modified"));
            assert_eq!(form.last("hub.challenge"), Some("c0ffee"));
            assert_eq!(form.last("hub.lease_seconds"), Some("3600"));
            let token = (dialect == Dialect::PubSubHubbub).then_some("t&=é");
            assert_eq!(form.last("hub.verify_token"), token);
        }
        let url = verification(Dialect::WebSub, Verify::Async, Mode::Unsubscribe).ask(time(0));
        assert!(url.contains("hub.mode=unsubscribe") && !url.contains("lease"), "{url}");
    }

    /// WebSub 5.3: the lease is "measured from the time the verification request was made".
    #[test]
    fn an_echo_confirms() {
        for (dialect, verify) in [WEBSUB, SYNC, ASYNC] {
            let mut asking = verification(dialect, verify, Mode::Subscribe);
            asking.ask(time(100));
            for status in [200, 202, 204] {
                let verdict = asking.handle_answer(time(109), response(status, "c0ffee"));
                assert_eq!(verdict, Verdict::Confirmed(time(3700)));
            }
        }
    }

    /// WebSub 5.3.1: other codes, and other bodies, "MUST … mean that the verification request has failed".
    #[test]
    fn websub_anything_else_has_failed() {
        let mut asking = verification(Dialect::WebSub, Verify::Async, Mode::Subscribe);
        asking.ask(time(0));
        for answer in
            [response(301, "c0ffee"), response(404, ""), response(500, "c0ffee"), response(200, "c0")]
        {
            assert!(matches!(asking.handle_answer(time(1), answer), Verdict::Refused(_)), "{answer:?}");
        }
    }

    /// 0.3 section 6.2.1: synchronous, "no retries should occur"; asynchronous, "temporarily not verified", and
    /// abandoned in the end; 404 is definite.
    #[test]
    fn the_old_text_asks_again() {
        let mut sync = verification(Dialect::PubSubHubbub, Verify::Sync, Mode::Subscribe);
        sync.ask(time(0));
        for answer in [response(500, ""), response(200, "x"), Answer::Nothing] {
            assert!(matches!(sync.handle_answer(time(1), answer), Verdict::Refused(_)), "{answer:?}");
        }
        let mut asking = verification(Dialect::PubSubHubbub, Verify::Async, Mode::Subscribe);
        let (mut now, mut times) = (time(0), 0);
        loop {
            asking.ask(now);
            times += 1;
            match asking.handle_answer(now, response(200, "wrong")) {
                Verdict::Again(at) => now = at,
                Verdict::Refused(_) => break,
                Verdict::Confirmed(_) => panic!("confirmed"),
            }
        }
        assert_eq!(times, OLD_TRIES);
        assert!(now > time(6 * 60 * 60), "{now}");
        let mut asking = verification(Dialect::PubSubHubbub, Verify::Async, Mode::Subscribe);
        asking.ask(time(0));
        assert!(matches!(asking.handle_answer(time(1), response(404, "")), Verdict::Refused(_)));
    }

    #[test]
    fn a_subscriber_that_cannot_be_reached_is_asked_a_few_times() {
        let mut asking = verification(Dialect::WebSub, Verify::Async, Mode::Unsubscribe);
        let mut times = 0;
        loop {
            asking.ask(time(0));
            times += 1;
            match asking.handle_answer(time(0), Answer::Nothing) {
                Verdict::Again(at) => assert!(at > time(0)),
                Verdict::Refused(_) => break,
                Verdict::Confirmed(_) => panic!("confirmed"),
            }
        }
        assert_eq!(times, TRIES);
    }

    /// WebSub 5.2: hub.mode "denied" and hub.topic are REQUIRED.
    #[test]
    fn a_denial_says_what_of() {
        let url = denial("http://s.example/p", "http://t.example/?a=b", "no more");
        assert_eq!(
            url,
            "http://s.example/p?hub.mode=denied&hub.topic=http%3A%2F%2Ft.example%2F%3Fa%3Db&hub.reason=no%20more"
        );
    }
}
