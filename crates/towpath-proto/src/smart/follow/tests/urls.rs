//! URLs of a follower's requests.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::change::NewChange;
use crate::follow::{Event, Exchange, FollowError, FollowMode, Follower, Now, StartFrom};
use crate::item::Item;
use crate::smart::follow::SmartFollower;
use crate::smart::follow::start::{base_of, feed_url};
use crate::smart::follow::tests::{SmartPublisher, URL, answer_from};
use crate::smart::publish::testing::{log, time};

/// "The client should repeatedly poll a feed that is ordered by modified time."
#[test]
fn a_feed_is_followed_in_the_order_by_modification() {
    let cases = [
        ("http://a/b", "http://a/b?order=modified", None),
        ("http://a/b?", "http://a/b?order=modified", None),
        ("http://a/b?x=%41&order=modified#c", "http://a/b?x=%41&order=modified", None),
        ("http://a/b?order=-modified&x", "http://a/b?order=modified&x", Some("-modified")),
        ("http://a/b?order=created", "http://a/b?order=modified", Some("created")),
        ("http://a/b?x&order=-created", "http://a/b?x&order=modified", Some("-created")),
        // "The base URL scheme must be defined by the feed."
        ("http://a/b?order=updated", "http://a/b?order=updated", None),
    ];
    for (url, base, other) in cases {
        let (found, order) = feed_url(url).unwrap();
        assert_eq!((found.as_str(), order.map(|order| order.to_string()).as_deref()), (base, other), "{url}");
    }
    let page = "http://a/b?since=cursor%3Ax&order=-modified&max=1&q=1&timeout=0";
    assert_eq!(base_of(page).unwrap(), "http://a/b?order=modified&q=1");
}

/// Follows once, with redirects; returns the items, the state, and the warnings.
fn follow(
    publisher: &mut SmartPublisher,
    url: &str,
    from: &StartFrom,
    state: &mut Option<Value>,
    leads_to: impl Fn(&str) -> String,
) -> (BTreeSet<String>, Vec<Event>) {
    let mut follower = SmartFollower::new(url, from, state.clone(), FollowMode::CatchUp).unwrap();
    let (mut items, mut said) = (BTreeSet::new(), Vec::new());
    let mut requests = 0;
    while !follower.is_finished() {
        let now = time(1000);
        if let Some(request) = follower.poll_request(Now::simulated(now)) {
            let there = leads_to(&request.url);
            let response = publisher.get(&there);
            answer_from(&there, &mut follower, now, &request, &response);
            requests += 1;
            assert!(requests < 20);
        }
        while let Some(event) = follower.poll_event() {
            match event {
                Event::Change(change) => drop(items.insert(change.item.id)),
                Event::Checkpoint(kept) => *state = Some(kept),
                other => said.push(other),
            }
        }
    }
    (items, said)
}

#[test]
fn no_order_misses_changes() {
    for order in ["-modified", "-created", "created", "modified"] {
        let (mut publisher, mut state) = (SmartPublisher::new(log(&[("a", 10), ("b", 20)])), None);
        let url = format!("{URL}?order={order}");
        let mut once = |publisher: &mut SmartPublisher| {
            follow(publisher, &url, &StartFrom::Beginning, &mut state, str::to_owned)
        };
        let (items, said) = once(&mut publisher);
        assert_eq!(items.len(), 2);
        let warned = matches!(&said[..], [Event::Warning(text)] if text.contains(&format!("order={order};")));
        assert!(warned || order == "modified" && said.is_empty(), "{said:?}");
        for new in [NewChange::put(Item::new("c")), NewChange::delete("a")] {
            publisher.log.append(new, time(30));
        }
        publisher.log.append(NewChange::put(Item { title: Some("new".into()), ..Item::new("b") }), time(30));
        let (items, said) = once(&mut publisher);
        assert_eq!(items.into_iter().collect::<String>(), "abc", "{order}");
        assert!(said.is_empty(), "it was said when following began: {said:?}");
    }
}

/// A redirect with a fixed Location loses the parameters, so its response is not for the request.
#[test]
fn a_redirect_leads_to_the_base_url() {
    let elsewhere = "http://example.com/elsewhere";
    let fixed = |url: &str| {
        let to = format!("{elsewhere}?order=modified");
        if url.starts_with(elsewhere) { url.to_owned() } else { to }
    };
    let whole = |url: &str| url.replace(URL, elsewhere);
    let plain = |url: &str| if url.starts_with(elsewhere) { url.to_owned() } else { elsewhere.to_owned() };
    let redirects: [&dyn Fn(&str) -> String; 3] = [&fixed, &whole, &plain];
    for redirect in redirects {
        for from in [StartFrom::Beginning, StartFrom::Now, StartFrom::Time(time(20))] {
            let (mut publisher, mut state) = (SmartPublisher::new(log(&[("a", 10), ("b", 20)])), None);
            let (items, said) = follow(&mut publisher, URL, &from, &mut state, redirect);
            let expected = match from {
                StartFrom::Beginning => "ab",
                StartFrom::Time(_) => "b",
                _ => "",
            };
            assert_eq!(
                (items.into_iter().collect::<String>().as_str(), said.len()),
                (expected, 0),
                "{from:?}"
            );
            publisher.log.append(NewChange::put(Item::new("c")), time(30));
            let (items, said) = follow(&mut publisher, URL, &from, &mut state, redirect);
            assert_eq!((items.into_iter().collect::<String>().as_str(), said.len()), ("c", 0), "{from:?}");
        }
    }
}

#[test]
fn redirects_that_lose_everything_end() {
    let mut publisher = SmartPublisher::new(log(&[("a", 10), ("b", 20)]));
    let forgetful = |_: &str| URL.to_owned();
    let (items, said) =
        follow(&mut publisher, URL, &StartFrom::Position("m1-0".into()), &mut None, forgetful);
    assert!(items.is_empty(), "what is not known to be next is not told");
    let [Event::Failed(FollowError::Protocol { reason, .. })] = &said[..] else { panic!("{said:?}") };
    assert!(reason.contains("redirects lose"), "{reason}");
}

/// "All items have a unique id within a feed". An item without one is named; the follower goes on after it.
#[test]
fn an_item_without_an_id_is_left_out() {
    let mut follower = SmartFollower::new(URL, &StartFrom::Beginning, None, FollowMode::CatchUp).unwrap();
    let body = r#"{"items": [{"id": "a"}, {"title": "t"}, "text", {"id": "b"}], "last_cursor": "x"}"#;
    let mut said = Vec::new();
    for (asked, body) in [("order=modified&max", body), ("since=cursor%3Ax", r#"{"items": [], "url": "u"}"#)]
    {
        let request = follower.poll_request(Now::simulated(time(0))).unwrap();
        assert!(request.url.contains(asked), "{}", request.url);
        answer_from(&request.url, &mut follower, time(0), &request, &http::Response::new(body.into()));
        while let Some(event) = follower.poll_event() {
            match event {
                Event::Change(change) => said.push(change.item.id),
                Event::Incomplete(text) => said.push(text.split_once(": ").unwrap().1.to_owned()),
                Event::Checkpoint(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let left_out =
        ["item 2 is left out: it has no id", "item 3 is left out: it is not an object"].map(str::to_owned);
    assert_eq!(said, [&left_out[..], &["a".to_owned(), "b".to_owned()]].concat());
    assert!(follower.is_finished());
}
