//! Verification of intent: the hub asks the callback to confirm a request (WebSub 5.3, PubSubHubbub 0.3
//! sections 6.2 and 6.3).
//!
//! Call [`IntentVerification::request_url`], GET the URL without following redirects, and pass the result to
//! [`IntentVerification::handle_response`]. Repeat when it returns [`VerificationOutcome::RetryAt`].

use std::time::Duration;

use crate::follow::{Backoff, Monotonic};
use crate::push::websub::wire::request::{SubscriptionRequest, VerifyMode};
use crate::push::websub::wire::{Dialect, Mode};
use crate::smart::wire::with_parameter;

/// Maximum number of attempts while the callback does not respond.
const TRIES: u32 = 4;
/// Maximum number of attempts for 0.3. There an error means "temporarily not verified" and is retried "over
/// the course of a longer time period (e.g., 6 hours)".
const OLD_TRIES: u32 = 11;
/// Waits between attempts.
const BACKOFF: Backoff =
    Backoff::doubling(Duration::from_secs(5), Duration::from_secs(2 * 60 * 60)).with_factor(3);
/// Maximum bytes of a response's body to read: anything longer cannot be the challenge.
pub const MAX_RESPONSE: usize = 4 << 10;

/// Result of a verification request.
#[derive(Debug, Clone, Copy)]
pub enum CallbackResponse<'a> {
    /// A complete response.
    Response {
        /// Status code.
        status: u16,
        /// Body, up to [`MAX_RESPONSE`] bytes.
        body: &'a [u8],
    },
    /// No response, or none in time.
    None,
}

/// Result of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerificationOutcome {
    /// The subscriber confirmed. The lease ends at this time.
    Confirmed(Monotonic),
    /// Refused or unverifiable. The subscription stays unchanged ("Any failures to confirm the subscription
    /// action MUST leave the subscription state unchanged").
    Refused(String),
    /// Send the request again at this time.
    RetryAt(Monotonic),
}

/// Verification of a request, in progress.
#[derive(Debug, Clone)]
pub struct IntentVerification {
    /// Request to verify.
    pub request: SubscriptionRequest,
    lease: Duration,
    challenge: String,
    tries: u32,
    asked: Monotonic,
}

impl IntentVerification {
    /// Creates a verification of `request` with a granted lease. `challenge` must be random and unique ("a
    /// hub-generated, random string").
    pub fn new(request: SubscriptionRequest, lease: Duration, challenge: String) -> Self {
        Self { request, lease, challenge, tries: 0, asked: Monotonic::ORIGIN }
    }

    /// Returns the URL to GET: the callback with appended arguments (WebSub 5.1.1: "Hubs MUST preserve the
    /// query string").
    pub fn request_url(&mut self, now: Monotonic) -> String {
        self.tries += 1;
        // Of this attempt: a lease begins when the request that was confirmed was made (WebSub 5.3).
        self.asked = now;
        let request = &self.request;
        let mut url = with_parameter(&request.callback, "hub.mode", request.mode.name());
        url = with_parameter(&url, "hub.topic", &request.topic);
        url = with_parameter(&url, "hub.challenge", &self.challenge);
        // Unsubscribing has no lease to announce.
        if request.mode == Mode::Subscribe {
            url = with_parameter(&url, "hub.lease_seconds", &self.lease.as_secs().to_string());
        }
        match &request.verify_token {
            Some(token) => with_parameter(&url, "hub.verify_token", token),
            None => url,
        }
    }

    /// Evaluates the response. A lease is "measured from the time the verification request was made".
    pub fn handle_response(&self, now: Monotonic, answer: CallbackResponse<'_>) -> VerificationOutcome {
        let reason = match answer {
            // The whole body and nothing else. A server that echoes any query, as an error page does, must not
            // subscribe anybody.
            CallbackResponse::Response { status: 200..=299, body } if body == self.challenge.as_bytes() => {
                return VerificationOutcome::Confirmed(self.asked + self.lease);
            }
            CallbackResponse::Response { status: 200..=299, .. } => {
                "the subscriber's answer is not the challenge".to_owned()
            }
            CallbackResponse::Response { status, .. } => format!("the subscriber answers {status}"),
            CallbackResponse::None => "the subscriber does not answer".to_owned(),
        };
        // 404 and 410 are explicit refusals in both dialects.
        let definite = matches!(answer, CallbackResponse::Response { status: 404 | 410, .. });
        let tries = match (self.request.dialect, self.request.verify) {
            // "no retries should occur": the subscriber's own request is still open.
            (Dialect::PubSubHubbub, VerifyMode::Sync) => 0,
            (Dialect::PubSubHubbub, VerifyMode::Async) => OLD_TRIES,
            // "The hub MUST consider other server response codes … to mean that the verification request has
            // failed." A missing response has no code, so only that is retried.
            (Dialect::WebSub, _) => {
                if matches!(answer, CallbackResponse::None) {
                    TRIES
                } else {
                    0
                }
            }
        };
        if definite || self.tries >= tries {
            return VerificationOutcome::Refused(reason);
        }
        VerificationOutcome::RetryAt(now + BACKOFF.wait(self.tries))
    }
}

/// Returns the URL to GET to tell a subscriber that its subscription is denied (WebSub 5.2).
pub fn denial(callback: &str, topic: &str, reason: &str) -> String {
    let url = with_parameter(callback, "hub.mode", "denied");
    with_parameter(&with_parameter(&url, "hub.topic", topic), "hub.reason", reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::websub::wire::form::HubForm;

    fn request(dialect: Dialect, verify: VerifyMode, mode: Mode) -> SubscriptionRequest {
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

    fn start(dialect: Dialect, verify: VerifyMode, mode: Mode) -> IntentVerification {
        IntentVerification::new(request(dialect, verify, mode), Duration::from_secs(3600), "c0ffee".into())
    }

    fn time(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn response(status: u16, body: &str) -> CallbackResponse<'_> {
        CallbackResponse::Response { status, body: body.as_bytes() }
    }

    const WEBSUB: (Dialect, VerifyMode) = (Dialect::WebSub, VerifyMode::Async);
    const SYNC: (Dialect, VerifyMode) = (Dialect::PubSubHubbub, VerifyMode::Sync);
    const ASYNC: (Dialect, VerifyMode) = (Dialect::PubSubHubbub, VerifyMode::Async);

    /// WebSub 5.3 and 5.1.1, 0.3 sections 6.1.1 and 6.2: hub.mode, hub.topic, hub.challenge and, to subscribe,
    /// hub.lease_seconds are REQUIRED; "Hubs MUST preserve the query string … by appending new parameters"; the
    /// token is echoed.
    #[test]
    fn the_question() {
        for (dialect, verify) in [WEBSUB, SYNC, ASYNC] {
            let url = start(dialect, verify, Mode::Subscribe).request_url(time(0));
            let (base, query) = url.split_once('?').unwrap();
            assert_eq!(base, "http://s.example/push");
            assert!(query.starts_with("a=1&hub.mode=b&hub.mode=subscribe&"), "{query}");
            let form = HubForm::parse(query.as_bytes()).unwrap();
            assert_eq!(form.last("hub.topic"), Some("http://example.com/feeds/a/items?order=modified"));
            assert_eq!(form.last("hub.challenge"), Some("c0ffee"));
            assert_eq!(form.last("hub.lease_seconds"), Some("3600"));
            let token = (dialect == Dialect::PubSubHubbub).then_some("t&=é");
            assert_eq!(form.last("hub.verify_token"), token);
        }
        let url = start(Dialect::WebSub, VerifyMode::Async, Mode::Unsubscribe).request_url(time(0));
        assert!(url.contains("hub.mode=unsubscribe") && !url.contains("lease"), "{url}");
    }

    /// WebSub 5.3: the lease is "measured from the time the verification request was made".
    #[test]
    fn an_echo_confirms() {
        for (dialect, verify) in [WEBSUB, SYNC, ASYNC] {
            let mut verification = start(dialect, verify, Mode::Subscribe);
            verification.request_url(time(100));
            for status in [200, 202, 204] {
                let verdict = verification.handle_response(time(109), response(status, "c0ffee"));
                assert_eq!(verdict, VerificationOutcome::Confirmed(time(3700)));
            }
        }
    }

    /// WebSub 5.3.1: other codes, and other bodies, "MUST … mean that the verification request has failed".
    #[test]
    fn websub_anything_else_has_failed() {
        let mut verification = start(Dialect::WebSub, VerifyMode::Async, Mode::Subscribe);
        verification.request_url(time(0));
        for answer in
            [response(301, "c0ffee"), response(404, ""), response(500, "c0ffee"), response(200, "c0")]
        {
            assert!(
                matches!(verification.handle_response(time(1), answer), VerificationOutcome::Refused(_)),
                "{answer:?}"
            );
        }
    }

    /// 0.3 section 6.2.1: synchronous, "no retries should occur"; asynchronous, "temporarily not verified", and
    /// abandoned in the end; 404 is definite.
    #[test]
    fn the_old_text_asks_again() {
        let mut sync = start(Dialect::PubSubHubbub, VerifyMode::Sync, Mode::Subscribe);
        sync.request_url(time(0));
        for answer in [response(500, ""), response(200, "x"), CallbackResponse::None] {
            assert!(
                matches!(sync.handle_response(time(1), answer), VerificationOutcome::Refused(_)),
                "{answer:?}"
            );
        }
        let mut verification = start(Dialect::PubSubHubbub, VerifyMode::Async, Mode::Subscribe);
        let (mut now, mut times) = (time(0), 0);
        loop {
            verification.request_url(now);
            times += 1;
            match verification.handle_response(now, response(200, "wrong")) {
                VerificationOutcome::RetryAt(at) => now = at,
                VerificationOutcome::Refused(_) => break,
                VerificationOutcome::Confirmed(_) => panic!("confirmed"),
            }
        }
        assert_eq!(times, OLD_TRIES);
        assert!(now > time(6 * 60 * 60), "{now:?}");
        let mut verification = start(Dialect::PubSubHubbub, VerifyMode::Async, Mode::Subscribe);
        verification.request_url(time(0));
        assert!(matches!(
            verification.handle_response(time(1), response(404, "")),
            VerificationOutcome::Refused(_)
        ));
    }

    #[test]
    fn a_subscriber_that_cannot_be_reached_is_asked_a_few_times() {
        let mut verification = start(Dialect::WebSub, VerifyMode::Async, Mode::Unsubscribe);
        let mut times = 0;
        loop {
            verification.request_url(time(0));
            times += 1;
            match verification.handle_response(time(0), CallbackResponse::None) {
                VerificationOutcome::RetryAt(at) => assert!(at > time(0)),
                VerificationOutcome::Refused(_) => break,
                VerificationOutcome::Confirmed(_) => panic!("confirmed"),
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
