//! Judges attempts to deliver. Pure: the answer and the time since the first failure are arguments.

use std::time::Duration;

use towpath_client::{CallbackError, CallbackResponse};
use towpath_proto::follow::Backoff;

/// Waits between attempts: seconds at first, hours after a day.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(5), Duration::from_secs(6 * 3600));
/// Longest wait that a receiver may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Attempts of a message that the receiver refuses as such.
// A receiver that is being replaced may answer 400 for some seconds.
const REFUSALS: u32 = 3;
/// Wait after the first refusal of a line; the second is twice as long.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);
/// Items set aside in a row after which the receiver is taken to be at fault, not the items.
const SET_ASIDE_IN_ROW: u32 = 10;

/// Verdict on an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The receiver has taken the message.
    Delivered,
    /// The receiver refuses the message: smaller ones may be taken.
    Refused(String),
    /// Sends the same message again after the wait.
    Retry { reason: String, wait: Duration },
    /// The receiver takes nothing more.
    Gone(String),
}

/// Attempts to deliver to one receiver.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Failed attempts in a row.
    failures: u32,
    /// Refusals of the current single line.
    refusals: u32,
    /// Lines set aside since the last delivery.
    set_aside: u32,
}

impl Attempts {
    /// Judges an answer to a message of `lines` lines. `entropy` is any random number.
    pub(super) fn judge(
        &mut self,
        answer: &Result<CallbackResponse, CallbackError>,
        lines: usize,
        entropy: u64,
    ) -> Verdict {
        let (reason, asked) = match answer {
            Ok(response) => match response.status {
                200..=299 => {
                    *self = Self::default();
                    return Verdict::Delivered;
                }
                410 => return Verdict::Gone("it answers 410: it wants no more messages".into()),
                // These are about the message. Others, such as 401 or 404, are about the receiver, and no item
                // is at fault.
                status @ (400 | 406 | 413 | 414 | 415 | 422) => {
                    let reason = format!("it answers {status}{}", said(response));
                    if let Some(verdict) = self.refused(&reason, lines) {
                        return verdict;
                    }
                    (reason, response.retry_after)
                }
                status => (reason_of(status, response), response.retry_after),
            },
            Err(error @ CallbackError::Url(_)) => return Verdict::Gone(error.to_string()),
            // A name that is resolved anew, or another configuration, may lead to a permitted address.
            Err(error @ CallbackError::NotPublic(_)) => {
                (format!("{error}; set allow_private to deliver to a private address"), None)
            }
            Err(error) => (error.to_string(), None),
        };
        self.failures = self.failures.saturating_add(1);
        let wait =
            BACKOFF.jittered(self.failures, entropy).max(asked.unwrap_or_default().min(MAX_RETRY_AFTER));
        Verdict::Retry { reason, wait }
    }

    /// Judges a refusal; `None` if the receiver is waited for as if it were away.
    fn refused(&mut self, reason: &str, lines: usize) -> Option<Verdict> {
        if lines > 1 {
            return Some(Verdict::Refused(reason.to_owned()));
        }
        // Everything is refused: without this, a broken receiver would empty a whole feed into the dead letters.
        if self.set_aside >= SET_ASIDE_IN_ROW {
            return None;
        }
        self.refusals += 1;
        if self.refusals < REFUSALS {
            return Some(Verdict::Retry { reason: reason.to_owned(), wait: REFUSAL_WAIT * self.refusals });
        }
        (self.refusals, self.failures) = (0, 0);
        self.set_aside += 1;
        Some(Verdict::Refused(reason.to_owned()))
    }
}

fn reason_of(status: u16, response: &CallbackResponse) -> String {
    match (status, &response.location) {
        (300..=399, Some(location)) => {
            format!(
                "it answers {status} with a redirect to {location}, which is not followed: change the URL"
            )
        }
        (300..=399, None) => format!("it answers {status}, and redirects are not followed"),
        (401 | 403, _) => {
            format!("it answers {status}: does it know the secret that the messages are signed with?")
        }
        (429, _) => "it answers 429: it gets too many messages".into(),
        _ => format!("it answers {status}{}", said(response)),
    }
}

/// Returns the beginning of the receiver's own words.
fn said(response: &CallbackResponse) -> String {
    let text = String::from_utf8_lossy(&response.body);
    // The receiver chooses this text, and it goes to logs and terminals: no escape sequences, and not much of
    // it.
    let text: String = text.trim().chars().filter(|c| !c.is_control()).take(200).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn answer(status: u16) -> Result<CallbackResponse, CallbackError> {
        Ok(CallbackResponse { status, retry_after: None, location: None, body: Bytes::new(), address: None })
    }

    fn wait(verdict: Verdict) -> Duration {
        match verdict {
            Verdict::Retry { wait, .. } => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn waits_grow_from_seconds_to_hours_and_start_again() {
        let mut attempts = Attempts::default();
        let waits: Vec<u64> =
            (0..16).map(|_| wait(attempts.judge(&answer(503), 1, u64::MAX)).as_secs()).collect();
        assert!(waits[0] < 6 && waits[15] > 3 * 3600, "{waits:?}");
        assert!(waits.iter().sum::<u64>() > 24 * 3600 / 2, "{waits:?}");
        assert_eq!(attempts.judge(&answer(204), 1, 0), Verdict::Delivered);
        assert!(wait(attempts.judge(&answer(503), 1, 0)) < Duration::from_secs(6));
    }

    #[test]
    fn a_receiver_may_ask_for_a_wait() {
        let mut asks = answer(429).unwrap();
        asks.retry_after = Some(Duration::from_secs(120));
        assert_eq!(wait(Attempts::default().judge(&Ok(asks.clone()), 1, 0)), Duration::from_secs(120));
        asks.retry_after = Some(Duration::MAX);
        assert_eq!(wait(Attempts::default().judge(&Ok(asks), 1, 0)), MAX_RETRY_AFTER);
    }

    #[test]
    fn a_redirect_is_named() {
        let mut redirect = answer(308).unwrap();
        redirect.location = Some("https://new.example/hook".into());
        let verdict = Attempts::default().judge(&Ok(redirect), 1, 0);
        assert!(
            matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("https://new.example/hook"))
        );
    }

    #[test]
    fn gone_is_for_good_and_a_private_address_is_not() {
        assert!(matches!(Attempts::default().judge(&answer(410), 5, 0), Verdict::Gone(_)));
        let private = towpath_proto::address::check([127, 0, 0, 1].into()).unwrap_err();
        let verdict = Attempts::default().judge(&Err(private.into()), 1, 0);
        assert!(
            matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("allow_private")),
            "{verdict:?}"
        );
    }

    #[test]
    fn a_refused_batch_is_divided_and_a_refused_line_gets_three_attempts() {
        let mut attempts = Attempts::default();
        assert!(matches!(attempts.judge(&answer(422), 8, 0), Verdict::Refused(_)));
        for _ in 1..REFUSALS {
            assert!(matches!(attempts.judge(&answer(422), 1, 0), Verdict::Retry { .. }));
        }
        assert!(matches!(attempts.judge(&answer(422), 1, 0), Verdict::Refused(_)));
    }

    #[test]
    fn a_receiver_that_refuses_everything_is_waited_for() {
        let mut attempts = Attempts::default();
        let refused = (0..200).filter(|_| matches!(attempts.judge(&answer(400), 1, 0), Verdict::Refused(_)));
        assert_eq!(refused.count() as u32, SET_ASIDE_IN_ROW);
        assert_eq!(attempts.judge(&answer(200), 1, 0), Verdict::Delivered);
    }
}
