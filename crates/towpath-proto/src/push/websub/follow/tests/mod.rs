//! Tests of the push follower, step by step.

mod lease;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use jiff::Timestamp;

use super::subscriber::SubscribeOptions;
use crate::follow::{
    Call, Event, Exchange as _, Follower as _, Monotonic, Now, Reply, Request, ResponseHead, StartFrom,
    TransferError,
};
use crate::push::websub::follow::PushFollower;
use crate::push::websub::wire::Dialect;
use crate::push::websub::wire::form::HubForm;
use crate::push::websub::wire::request::{HubRequest, SubscriptionRequest};
use crate::push::websub::wire::signature::{Algorithm, HEADER, sign};

const URL: &str = "http://example.com/feeds/a/items";
const TOPIC: &str = "http://example.com/feeds/a/items?order=modified";
const LINKS: &str = "<http://example.com/feeds/a/hub>; rel=\"hub\", <http://example.com/feeds/a/items?order=modified>; rel=\"self\"";

pub(in crate::push::websub) fn options() -> SubscribeOptions {
    SubscribeOptions {
        callback: "http://me.example/push?key=k".into(),
        secret: "secret".into(),
        lease: Some(Duration::from_secs(4000)),
        silence: Duration::from_secs(600),
        max_document: 64 << 20,
    }
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn follower() -> PushFollower {
    PushFollower::new(URL, &StartFrom::Beginning, None, options()).unwrap()
}

fn answer(follower: &mut PushFollower, now: i64, request: &Request, status: u16, link: bool, body: &str) {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    if link {
        headers.insert("link", HeaderValue::from_static(LINKS));
    }
    follower.handle_head(
        Now::simulated(time(now)),
        request.id,
        ResponseHead { status, url: request.url.clone(), headers },
    );
    follower.handle_chunk(Now::simulated(time(now)), request.id, Bytes::from(body.to_owned()));
    follower.handle_end(Now::simulated(time(now)), request.id, Ok(()));
}

fn ask(follower: &mut PushFollower, now: i64, query: &str) -> Reply {
    let call = Call {
        method: Method::GET,
        query: format!("key=k&{query}"),
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    follower.handle_call(Now::simulated(time(now)), &call)
}

fn push(follower: &mut PushFollower, now: i64, signature: Option<&str>, body: &str) -> u16 {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    if let Some(signature) = signature {
        headers.insert(HEADER, HeaderValue::from_str(signature).unwrap());
    }
    let body = Bytes::from(body.to_owned());
    follower
        .handle_call(
            Now::simulated(time(now)),
            &Call { method: Method::POST, query: "key=k".into(), headers, body },
        )
        .status
}

fn signed_push(follower: &mut PushFollower, now: i64, body: &str) -> u16 {
    let signature = sign(Algorithm::Sha256, b"secret", body.as_bytes());
    push(follower, now, Some(&signature), body)
}

fn page(prev: Option<&str>, last: &str, ids: &[&str]) -> String {
    let prev = prev.map(|prev| format!("\"prev_cursor\":\"{prev}\",")).unwrap_or_default();
    let items: Vec<String> = ids.iter().map(|id| format!("{{\"id\":\"{id}\"}}")).collect();
    format!("{{{prev}\"last_cursor\":\"{last}\",\"items\":[{}]}}", items.join(","))
}

fn told(follower: &mut PushFollower) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(event) = follower.poll_event() {
        if let Event::Change(change) = event {
            ids.push(change.item.id);
        }
    }
    ids
}

fn warnings(follower: &mut PushFollower) -> Vec<String> {
    let events = std::iter::from_fn(|| follower.poll_event());
    events.filter_map(|event| if let Event::Warning(text) = event { Some(text) } else { None }).collect()
}

fn request_of(request: &Request) -> SubscriptionRequest {
    let content_type = request.headers.get("content-type").map(|value| value.to_str().unwrap());
    match HubRequest::parse(content_type, &request.body).unwrap() {
        HubRequest::Subscription(request) => *request,
        HubRequest::Publish(_) => panic!("not a subscription"),
    }
}

/// Returns all requests that are due now.
fn requests(follower: &mut PushFollower, now: i64) -> Vec<Request> {
    std::iter::from_fn(|| follower.poll_request(Now::simulated(time(now)))).collect()
}

/// Runs discovery and the first pull, which reaches the end of the feed at `m2`. Returns the request to the
/// hub.
fn discovered(follower: &mut PushFollower) -> Request {
    let first = requests(follower, 0);
    assert_eq!(first.len(), 2, "{first:?}");
    answer(follower, 0, &first[0], 200, true, &page(None, "m1", &["a"]));
    answer(follower, 0, &first[1], 200, true, &page(None, "m2", &["a", "b"]));
    let next = requests(follower, 0);
    assert_eq!(next[0].method, Method::POST);
    assert!(
        next[1].url.contains("since=cursor%3Am2") && next[1].url.ends_with("timeout=0"),
        "{}",
        next[1].url
    );
    answer(follower, 0, &next[1], 200, true, &page(None, "m2", &[]));
    assert_eq!(told(follower), ["a", "b"]);
    next[0].clone()
}

const QUESTION: &str = "hub.mode=subscribe&hub.topic=http%3A%2F%2Fexample.com%2Ffeeds%2Fa%2Fitems%3Forder%3Dmodified&hub.challenge=c0&hub.lease_seconds=4000";

/// Returns a follower that is subscribed and idle at `m2`.
fn subscribed() -> PushFollower {
    let mut follower = follower();
    let request = discovered(&mut follower);
    answer(&mut follower, 0, &request, 202, false, "");
    assert_eq!(ask(&mut follower, 1, QUESTION), Reply { status: 200, body: Bytes::from_static(b"c0") });
    let pull = requests(&mut follower, 1);
    assert_eq!(pull.len(), 1, "what came meanwhile is pulled once");
    answer(&mut follower, 1, &pull[0], 200, true, &page(None, "m2", &[]));
    assert!(follower.is_subscribed(Now::simulated(time(1))));
    follower
}

/// WebSub 5.1: the parameters of a request; "this MUST be the "self" URL found during the discovery step"
/// (websub.rocks, subscriber tests 100 and 200).
#[test]
fn a_subscription_is_asked_for() {
    let mut follower = follower();
    let request = discovered(&mut follower);
    assert_eq!(request.url, "http://example.com/feeds/a/hub");
    let asked = request_of(&request);
    assert_eq!((asked.topic.as_str(), asked.dialect), (TOPIC, Dialect::WebSub));
    assert_eq!(asked.callback, "http://me.example/push?key=k");
    assert_eq!((asked.secret.as_deref(), asked.lease_seconds), (Some("secret"), Some(4000)));
}

/// WebSub 4: headers come first, so the end of the body does not matter to them.
#[test]
fn headers_name_the_hub_whatever_becomes_of_the_body() {
    let mut follower = follower();
    let page = requests(&mut follower, 0).remove(0);
    // As much as the follower itself would read.
    assert_eq!(page.max_body, 64 << 20);
    let headers = [("link".parse().unwrap(), HeaderValue::from_static(LINKS))].into_iter().collect();
    let now = Now::simulated(time(0));
    follower.handle_head(now, page.id, ResponseHead { status: 200, url: page.url.clone(), headers });
    follower.handle_end(now, page.id, Err(TransferError::TooLarge { limit: page.max_body }));
    let request = requests(&mut follower, 0).remove(0);
    assert_eq!((request.method.clone(), request_of(&request).topic.as_str()), (Method::POST, TOPIC));
    // So with the hub: its status says that it has accepted the request.
    let head = ResponseHead { status: 202, url: request.url.clone(), headers: HeaderMap::new() };
    follower.handle_head(now, request.id, head);
    follower.handle_end(now, request.id, Err(TransferError::Body("cut off".into())));
    assert!(warnings(&mut follower).is_empty());
    assert_eq!(ask(&mut follower, 1, QUESTION).status, 200);
}

/// WebSub 4: links within a document are at its begin, so a document that is too large is searched as far as it came.
#[test]
fn the_begin_of_a_document_names_the_hub() {
    let atom = "<feed xmlns='http://www.w3.org/2005/Atom'><id>a</id><title>A</title><link rel='hub' href='http://example.com/hub'/>\
                <link rel='self' href='http://example.com/feed'/><entry><id>b</id><content>xxxx";
    let html = "<!doctype html><html><head><link rel=hub href=http://example.com/hub>\
                <link rel=self href=/feed></head><body>xxxx";
    for (body, found) in [(atom, true), (html, true), ("{\"items\":[{\"id\":\"xxxx", false)] {
        let mut follower = follower();
        let page = requests(&mut follower, 0).remove(0);
        let now = Now::simulated(time(0));
        let head = ResponseHead { status: 200, url: page.url.clone(), headers: HeaderMap::new() };
        follower.handle_head(now, page.id, head);
        follower.handle_chunk(now, page.id, Bytes::from_static(body.as_bytes()));
        follower.handle_end(now, page.id, Err(TransferError::TooLarge { limit: 1 << 20 }));
        let posts = requests(&mut follower, 0).into_iter().filter(|request| request.method == Method::POST);
        let topics: Vec<String> = posts.map(|request| request_of(&request).topic).collect();
        if found {
            assert_eq!(topics, ["http://example.com/feed"], "{body}");
        } else {
            let told = warnings(&mut follower);
            assert!(topics.is_empty() && told[0].contains("larger than 1048576 bytes"), "{told:?}");
        }
    }
}

/// 0.3 section 6.1: hub.verify is REQUIRED; a hub that insists gets it.
#[test]
fn an_old_hub_is_asked_in_its_own_words() {
    let mut follower = follower();
    let request = discovered(&mut follower);
    answer(&mut follower, 0, &request, 400, false, "hub.verify is missing");
    let again = requests(&mut follower, 0);
    assert_eq!(request_of(&again[0]).dialect, Dialect::PubSubHubbub);
    // Synchronous: verification arrives before the response.
    assert_eq!(ask(&mut follower, 0, QUESTION).status, 200);
    answer(&mut follower, 0, &again[0], 204, false, "");
    assert!(follower.is_subscribed(Now::simulated(time(1))));
}

/// WebSub 5.3.1: "If the subscriber does not agree with the action, the subscriber MUST respond with a 404"
/// (websub.rocks, subscriber test 205).
#[test]
fn only_what_was_asked_for_is_confirmed() {
    let mut unasked = follower();
    assert_eq!(ask(&mut unasked, 0, QUESTION).status, 404);
    let mut follower = follower();
    let request = discovered(&mut follower);
    answer(&mut follower, 0, &request, 202, false, "");
    for wrong in [
        "hub.mode=subscribe&hub.topic=http%3A%2F%2Fexample.com%2Fother&hub.challenge=c0&hub.lease_seconds=1",
        "hub.mode=unsubscribe&hub.topic=http%3A%2F%2Fexample.com%2Ffeeds%2Fa%2Fitems%3Forder%3Dmodified&hub.challenge=c0",
        "hub.mode=subscribe&hub.topic=http%3A%2F%2Fexample.com%2Ffeeds%2Fa%2Fitems%3Forder%3Dmodified",
        "hub.mode=denied&hub.topic=http%3A%2F%2Fexample.com%2Fother",
        "hub.challenge=c0",
        "%ff",
        "",
    ] {
        assert_eq!(ask(&mut follower, 0, wrong).status, 404, "{wrong}");
    }
    assert!(!follower.is_subscribed(Now::simulated(time(0))));
    assert_eq!(ask(&mut follower, 0, QUESTION).status, 200);
}

/// WebSub 5.1.1: hubs "MUST always decode non-reserved characters" of the topic, so they may ask about it decoded.
#[test]
fn a_topic_is_confirmed_in_another_spelling() {
    let mut follower = follower();
    let page = requests(&mut follower, 0).remove(0);
    let links = HeaderValue::from_static(
        "<http://example.com/hub>; rel=hub, <http://example.com/%61%2Fb%7e>; rel=self",
    );
    let headers = [("link".parse().unwrap(), links)].into_iter().collect();
    let now = Now::simulated(time(0));
    follower.handle_head(now, page.id, ResponseHead { status: 200, url: page.url.clone(), headers });
    follower.handle_end(now, page.id, Ok(()));
    let request = requests(&mut follower, 0).remove(0);
    answer(&mut follower, 0, &request, 202, false, "");
    // A slash is reserved, and encoded or not it is another topic.
    for (topic, status) in [("a/b~", 404), ("b%2Fb~", 404), ("a%2Fb~", 200), ("%61%2Fb%7e", 200)] {
        let topic = url::form_urlencoded::byte_serialize(format!("http://example.com/{topic}").as_bytes())
            .collect::<String>();
        let query = format!("hub.mode=subscribe&hub.topic={topic}&hub.challenge=c0&hub.lease_seconds=4000");
        assert_eq!(ask(&mut follower, 0, &query).status, status, "{topic}");
    }
}

/// Updates/Synchronization via Push: the items are processed if the previous cursor matches. Old pushes are
/// discarded. Otherwise the client pulls since its own cursor.
#[test]
fn pushes_that_follow_are_told_and_gaps_are_pulled() {
    let mut follower = subscribed();
    assert_eq!(signed_push(&mut follower, 2, &page(Some("m2"), "m3", &["c"])), 202);
    assert_eq!(told(&mut follower), ["c"]);
    assert!(requests(&mut follower, 2).is_empty());
    assert_eq!(signed_push(&mut follower, 3, &page(Some("m2"), "m3", &["c"])), 202);
    assert!(told(&mut follower).is_empty() && requests(&mut follower, 3).is_empty(), "doubled");
    assert_eq!(signed_push(&mut follower, 4, &page(Some("m4"), "m5", &["e"])), 202);
    assert!(told(&mut follower).is_empty(), "the gap comes first");
    let pull = requests(&mut follower, 4);
    assert!(pull[0].url.contains("since=cursor%3Am3"), "{}", pull[0].url);
    answer(&mut follower, 4, &pull[0], 200, true, &page(None, "m5", &["d", "e"]));
    assert_eq!(told(&mut follower), ["d", "e"]);
}

/// A push during a pull may hold items that the pull's response lacks.
#[test]
fn a_push_during_a_pull_is_not_lost() {
    let mut follower = subscribed();
    signed_push(&mut follower, 2, &page(Some("m3"), "m4", &["d"]));
    let pull = requests(&mut follower, 2);
    signed_push(&mut follower, 3, &page(Some("m4"), "m5", &["e"]));
    answer(&mut follower, 3, &pull[0], 200, true, &page(None, "m2", &[]));
    let again = requests(&mut follower, 3);
    assert_eq!(again.len(), 1, "the answer was made before the push");
    answer(&mut follower, 3, &again[0], 200, true, &page(None, "m5", &["c", "d", "e"]));
    assert_eq!(told(&mut follower), ["c", "d", "e"]);
}

/// "If a long period of time passes and there has been no pushes, the client should perform a pull request since L".
#[test]
fn a_long_silence_is_looked_into() {
    let mut follower = subscribed();
    assert!(requests(&mut follower, 600).is_empty());
    assert_eq!(follower.poll_timeout().map(Monotonic::simulated_wall), Some(time(601)));
    let pull = requests(&mut follower, 601);
    assert!(pull[0].url.contains("since=cursor%3Am2"));
    answer(&mut follower, 601, &pull[0], 200, true, &page(None, "m2", &[]));
    signed_push(&mut follower, 700, &page(Some("m2"), "m3", &["c"]));
    assert_eq!(
        follower.poll_timeout().map(Monotonic::simulated_wall),
        Some(time(1300)),
        "measured from the last push"
    );
}

/// WebSub 7.1.2, 0.3 section 7.4: wrong, acknowledged and ignored; missing, refused (websub.rocks, subscriber tests
/// 300, 301 and 302).
#[test]
fn only_what_is_signed_is_believed() {
    let mut follower = subscribed();
    let body = page(Some("m2"), "m3", &["c"]);
    let right = sign(Algorithm::Sha256, b"secret", body.as_bytes());
    assert_eq!(push(&mut follower, 2, None, &body), 403);
    for wrong in [format!("{right}abcd"), sign(Algorithm::Sha1, b"other", body.as_bytes()), "md5=00".into()] {
        assert_eq!(push(&mut follower, 2, Some(&wrong), &body), 202, "{wrong}");
    }
    assert!(told(&mut follower).is_empty() && requests(&mut follower, 2).is_empty());
    let old = sign(Algorithm::Sha1, b"secret", body.as_bytes());
    assert_eq!(push(&mut follower, 2, Some(&old), &body), 202);
    assert_eq!(told(&mut follower), ["c"]);
}

/// Without a subscription the follower pulls, with long polls.
#[test]
fn without_a_hub_it_pulls() {
    let mut follower = follower();
    let first = requests(&mut follower, 0);
    answer(&mut follower, 0, &first[0], 200, false, &page(None, "m1", &["a"]));
    answer(&mut follower, 0, &first[1], 200, false, &page(None, "m1", &["a"]));
    let next = requests(&mut follower, 0);
    answer(&mut follower, 0, &next[0], 200, false, &page(None, "m1", &[]));
    let held = requests(&mut follower, 1);
    assert!(held.iter().any(|request| request.url.ends_with("timeout=55")), "{held:?}");
}

/// WebSub 5.2: a hub may deny a subscription at any time.
#[test]
fn a_denied_subscription_goes_on_by_pulling() {
    let mut follower = subscribed();
    let denial = "hub.mode=denied&hub.topic=http%3A%2F%2Fexample.com%2Ffeeds%2Fa%2Fitems%3Forder%3Dmodified&hub.reason=no";
    assert_eq!(ask(&mut follower, 5, denial).status, 200);
    assert!(!follower.is_subscribed(Now::simulated(time(5))));
    let held = requests(&mut follower, 5);
    assert_eq!(held.len(), 1);
    assert!(held[0].url.ends_with("timeout=55"), "{}", held[0].url);
    let body = page(Some("m2"), "m3", &["c"]);
    assert_eq!(signed_push(&mut follower, 6, &body), 410);
}

/// The hub's arguments are the last ones: a callback's own query may use the same names.
#[test]
fn own_arguments_do_not_stand_in_for_the_hubs() {
    assert_eq!(HubForm::parse(b"hub.mode=x&hub.mode=y").unwrap().last("hub.mode"), Some("y"));
}
