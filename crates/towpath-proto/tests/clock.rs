//! Followers whose wall clock is set, back by an hour and forward by a year, while monotonic time goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use http::{HeaderMap, Method};
use towpath_proto::Timestamp;
use towpath_proto::diffdelta::follow::{DiffDeltaFollower, FollowOptions};
use towpath_proto::follow::{
    Call, Exchange, FollowMode, Follower, Monotonic, Now, Request, ResponseHead, StartFrom, TransferError,
};
use towpath_proto::history::follow::{HistoryFollowOptions as HistoryOptions, HistoryFollower};
use towpath_proto::push::websub::delivery::{AfterDelivery, DeliveredRange, DeliveryOutcome, RetryPolicy};
use towpath_proto::push::websub::dispatch::{Dispatcher, EndedDelivery, HubLimits, SubscriberPlace};
use towpath_proto::push::websub::follow::PushFollower;
use towpath_proto::push::websub::request::{HubRequest, Leases};
use towpath_proto::push::websub::subscriber;
use towpath_proto::push::websub::subscription::HubSubscription;
use towpath_proto::push::websub::verify::{CallbackResponse, IntentVerification, VerificationOutcome};
use towpath_proto::replication::follow::{ReplicationFollower, ReplicationOptions};
use towpath_proto::smart::follow::SmartFollower;
use towpath_proto::sup::follow::{PollReason, PolledContent, SupFollower, SupPollIntervals};
use towpath_proto::sup::wire::discovery::{Discovery, SupLink};

const URL: &str = "http://a.example/feed";
const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 86_400;

fn start() -> Now {
    Now::simulated("2026-01-01T00:00:00Z".parse().unwrap())
}

fn set_wall(now: &mut Now, by: i64) {
    now.wall = Timestamp::from_second(now.wall.as_second() + by).unwrap();
}

fn refuse(follower: &mut dyn Follower, now: Now, request: &Request) {
    follower.handle_end(now, request.id, Err(TransferError::Connect("refused".into())));
    while follower.poll_event().is_some() {}
}

/// Every request fails; the follower retries when it said, whatever the wall clock does meanwhile.
fn keeps_its_timers(follower: &mut dyn Follower) {
    let mut now = start();
    let mut retries = 0;
    while retries < 8 {
        while let Some(request) = follower.poll_request(now) {
            refuse(follower, now, &request);
        }
        let due = follower.poll_timeout().expect("a time to retry");
        let wait = due.since(now.monotonic);
        // A timer that follows the wall clock would now be a year away.
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(3600), "{wait:?}");
        set_wall(&mut now, [-HOUR, YEAR, -YEAR, HOUR][retries % 4]);
        assert!(follower.poll_request(now).is_none(), "retries before it is due");
        // A time computed from the wall clock would have moved with the jump.
        assert_eq!(follower.poll_timeout(), Some(due));
        now.monotonic = due;
        let request = follower.poll_request(now).expect("a retry once it is due");
        refuse(follower, now, &request);
        retries += 1;
    }
}

#[test]
fn smart_feeds() {
    keeps_its_timers(
        &mut SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::Continuous).unwrap(),
    );
}

#[test]
fn diffdelta() {
    keeps_its_timers(&mut DiffDeltaFollower::new(URL, FollowOptions::default()).unwrap());
}

#[test]
fn replication() {
    let options = ReplicationOptions::default();
    keeps_its_timers(&mut ReplicationFollower::new(URL, StartFrom::Beginning, None, options).unwrap());
}

#[test]
fn feed_history() {
    let options = HistoryOptions::default();
    keeps_its_timers(&mut HistoryFollower::new(URL, StartFrom::Beginning, None, options).unwrap());
}

fn push_follower() -> PushFollower {
    let options = subscriber::SubscribeOptions {
        callback: "http://b.example/push".into(),
        secret: "secret".into(),
        lease: None,
        silence: Duration::from_secs(600),
        max_document: 64 << 20,
    };
    PushFollower::new(URL, &StartFrom::Beginning, None, options).unwrap()
}

#[test]
fn websub() {
    keeps_its_timers(&mut push_follower());
}

/// A lease lasts as long as the hub said, and is renewed before it ends.
#[test]
fn websub_leases() {
    let mut follower = push_follower();
    let mut now = start();
    let page = follower.poll_request(now).unwrap();
    let headers: HeaderMap =
        [(http::header::LINK, format!("<http://hub.example/>; rel=hub, <{URL}>; rel=self").parse().unwrap())]
            .into_iter()
            .collect();
    follower.handle_head(now, page.id, ResponseHead { status: 200, url: page.url, headers });
    follower.handle_end(now, page.id, Ok(()));
    let ask = std::iter::from_fn(|| follower.poll_request(now)).find(|r| r.method == Method::POST).unwrap();
    let head = ResponseHead { status: 202, url: ask.url, headers: HeaderMap::new() };
    follower.handle_head(now, ask.id, head);
    follower.handle_end(now, ask.id, Ok(()));
    let topic = form_encoded(URL);
    let query = format!("hub.mode=subscribe&hub.topic={topic}&hub.challenge=c&hub.lease_seconds=1000");
    let call = Call { method: Method::GET, query, headers: HeaderMap::new(), body: bytes::Bytes::new() };
    assert_eq!(follower.handle_call(now, &call).status, 200);
    for jump in [YEAR, -YEAR, -HOUR] {
        set_wall(&mut now, jump);
        assert!(follower.is_subscribed(now), "{jump}");
        assert!(follower.poll_timeout().unwrap() <= now.after(Duration::from_secs(1000)));
    }
    now.monotonic = now.after(Duration::from_secs(1000));
    assert!(!follower.is_subscribed(now));
}

const LEASE: Duration = Duration::from_secs(1000);

fn hub_verification() -> IntentVerification {
    let form = format!("hub.mode=subscribe&hub.callback=http://s.example/&hub.topic={}", form_encoded(URL));
    let parsed = HubRequest::parse(Some("application/x-www-form-urlencoded"), form.as_bytes()).unwrap();
    let HubRequest::Subscription(request) = parsed else { panic!("no subscription") };
    IntentVerification::new(*request, LEASE, "c".into())
}

/// A hub retries verifications and deliveries, and ends leases, when it said, whatever the wall clock does meanwhile.
#[test]
fn hub_timers() {
    for jump in [-HOUR, YEAR, -YEAR] {
        let mut now = start();
        let mut verification = hub_verification();
        verification.request_url(now.monotonic);
        set_wall(&mut now, jump);
        let outcome = verification.handle_response(now.monotonic, CallbackResponse::None);
        assert_eq!(outcome, VerificationOutcome::RetryAt(now.after(Duration::from_secs(5))));
        let answer = CallbackResponse::Response { status: 200, body: b"c" };
        let VerificationOutcome::Confirmed(ends) = verification.handle_response(now.monotonic, answer) else {
            panic!("not confirmed")
        };
        assert_eq!(ends, now.after(LEASE));

        let mut hub = Dispatcher::new(HubLimits::default(), RetryPolicy::default());
        let place = SubscriberPlace { topic: "t", host: "s.example:80", address: "203.0.113.9" };
        hub.add(1, place, 0, ends, ());
        hub.handle_append("t", 1);
        assert!(hub.poll_delivery(now.monotonic).is_some());
        let range = DeliveredRange { through: 1, scanned: 1 };
        let failed =
            EndedDelivery { id: 1, range, outcome: DeliveryOutcome::Unreachable, took: Duration::ZERO };
        let retry = now.after(Duration::from_secs(2));
        assert_eq!(hub.handle_end(now.monotonic, failed), Some(AfterDelivery::Retry(retry)));
        set_wall(&mut now, -jump);
        assert_eq!(hub.poll_timeout(), Some(retry));
        assert!(hub.poll_delivery(now.monotonic).is_none());
        now.monotonic = retry;
        assert!(hub.poll_delivery(now.monotonic).is_some());
        assert_eq!(hub.poll_lease(now.monotonic), None);
        assert_eq!(hub.poll_lease(ends), Some(1));
    }
}

/// A clock that was a year ahead wrote the end of a lease.
#[test]
fn a_stored_lease_is_believed_no_further_than_the_longest_one() {
    let mut ahead = start();
    set_wall(&mut ahead, YEAR);
    let verification = hub_verification();
    let ends = ahead.date_of(ahead.after(LEASE));
    let stored = HubSubscription::new(&verification.request, "t", LEASE, ends, None).unwrap();
    let longest = Leases::default().max;
    let now = start();
    assert_eq!(now.restore(stored.end(), longest), now.after(longest));
    // And a clock that was an hour behind.
    let mut behind = start();
    set_wall(&mut behind, HOUR);
    assert_eq!(behind.restore(now.date_of(now.after(LEASE)), longest), behind.monotonic);
}

fn form_encoded(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

#[test]
fn sup_feeds() {
    let mut consumer = SupFollower::new(SupPollIntervals::default());
    let mut now = start();
    let feed = consumer.add_feed(URL, now);
    for retry in 0..8 {
        assert!(consumer.poll_feed(now).is_some(), "{retry}");
        consumer.handle_failure(now, feed, None);
        let due = consumer.poll_timeout().unwrap();
        assert!(due.since(now.monotonic) <= Duration::from_secs(3600));
        set_wall(&mut now, [-HOUR, YEAR, -YEAR, HOUR][retry % 4]);
        assert!(consumer.poll_feed(now).is_none(), "{retry}");
        now.monotonic = due;
    }
}

fn sup_link() -> Discovery {
    let link = SupLink { url: "http://a.example/sup.json".into(), id: "f1".into() };
    Discovery { links: vec![link], warnings: Vec::new() }
}

#[test]
fn sup_documents() {
    // The feed itself is not due while its document fails.
    let long = Duration::from_secs(365 * 86_400);
    let mut consumer = SupFollower::new(SupPollIntervals { background: long, plain: long });
    let now = start();
    consumer.add_feed(URL, now);
    let ask = consumer.poll_feed(now).unwrap();
    consumer.handle_success(now, ask.feed, sup_link(), PolledContent::Changed);
    keeps_its_timers(&mut consumer);
}

/// The schedule was persisted by a clock that was a year ahead.
#[test]
fn a_schedule_from_a_year_ahead_is_believed_no_further_than_the_longest_wait() {
    let settings = SupPollIntervals::default();
    let mut consumer = SupFollower::new(settings);
    let mut ahead = start();
    set_wall(&mut ahead, YEAR);
    consumer.add_feed(URL, ahead);
    let ask = consumer.poll_feed(ahead).unwrap();
    consumer.handle_success(ahead, ask.feed, Discovery::default(), PolledContent::Unchanged);
    let state = consumer.state(ahead);

    // Monotonic time starts anew with each process; only the wall clock connects the two.
    let now = Now { monotonic: Monotonic::ORIGIN, wall: start().wall };
    let mut restored = SupFollower::restore(settings, state, now).unwrap();
    let due = restored.poll_timeout().unwrap();
    // A day is the longest wait that the consumer accepts.
    assert!(due.since_origin() <= Duration::from_secs(86_400), "{due:?}");
    let later = now + due.since_origin();
    let ask = restored.poll_feed(later).unwrap();
    assert_eq!(ask.reason, PollReason::Background);
    restored.handle_success(later, ask.feed, Discovery::default(), PolledContent::Unchanged);
    let next = restored.poll_timeout().unwrap();
    assert!(next.since(later.monotonic) <= settings.plain, "{next:?}");
}

/// RFC 9110, section 10.2.3: a date in `Retry-After` is read by the wall clock, the wait is measured without it.
#[test]
fn a_retry_after_date_is_read_by_the_wall_clock() {
    let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::Continuous).unwrap();
    let mut now = start();
    let request = follower.poll_request(now).unwrap();
    let date = "Thu, 01 Jan 2026 00:02:00 GMT".parse().unwrap();
    let headers: HeaderMap = [(http::header::RETRY_AFTER, date)].into_iter().collect();
    follower.handle_head(now, request.id, ResponseHead { status: 503, url: request.url, headers });
    follower.handle_end(now, request.id, Ok(()));
    let due = now.after(Duration::from_secs(120));
    assert_eq!(follower.poll_timeout(), Some(due));
    set_wall(&mut now, -HOUR);
    // The wait is over, although the wall clock is back before the header's date.
    now.monotonic = due;
    assert!(follower.poll_request(now).is_some());
}
