//! Documents that do not answer: nothing known is dropped, and what is missing is told once it can be.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_proto::Timestamp;
use towpath_proto::follow::StartFrom;
use towpath_proto::history::follow::{HistoryFollower, Options};

use crate::web::{Answer, Site, Told, atom, drive, follow, link, serve, site, start};

const FEED: &str = "http://a.example/feed";

fn chain(length: u32) -> Site {
    let entry = |number: u32| (format!("urn:{number}"), number);
    let prev = |number: u32| match number {
        1 => String::new(),
        number => link("prev-archive", &format!("/{}", number - 1)),
    };
    let document = |number: u32| {
        let (id, day) = entry(number);
        // Every document has a version of the same entry.
        atom(&prev(number), &[(&id, "x", day), ("urn:all", &format!("v{number}"), day)])
    };
    let mut site = site(&[(FEED, document(length))]);
    for number in 1..length {
        site.insert(format!("http://a.example/{number}"), Answer::ok(document(number)));
    }
    site
}

fn everything(length: u32) -> Vec<String> {
    (1..=length).map(|n| format!("urn:{n}")).chain(["urn:all".into()]).collect()
}

/// Follows a site from the beginning for a day: the follower, the time that it has come to, the day's end, what was told.
fn a_day_of(site: &Site) -> (HistoryFollower, Timestamp, Timestamp, Told) {
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, Options::default()).unwrap();
    let (mut now, day) = (start(), start() + Duration::from_secs(86_400));
    let told = drive(&mut follower, &mut now, day, serve(site));
    (follower, now, day, told)
}

/// RFC 9110, section 10.2.3, within bounds: a publisher that asks to be left alone for three thousand years is asked
/// again a day later.
#[test]
fn an_archive_that_asks_to_be_left_alone_is_asked_again_within_days() {
    let whole = chain(6);
    let mut broken = whole.clone();
    let busy = Answer::status(503).with("retry-after", "99999999999");
    broken.insert("http://a.example/3".into(), busy);
    let (mut follower, mut now, day, told) = a_day_of(&broken);
    let mut items = BTreeMap::new();
    told.apply(&mut items);
    assert!(!items.contains_key("urn:3"), "{items:?}");
    let told = drive(&mut follower, &mut now, day + Duration::from_secs(2 * 86_400), serve(&whole));
    told.apply(&mut items);
    assert_eq!(items.keys().cloned().collect::<Vec<_>>(), everything(6));
}

/// RFC 5005, section 4.2: "Clients SHOULD warn users when they are not able to reconstruct the entire logical
/// feed".
#[test]
fn an_archive_that_answers_500_for_a_day() {
    let whole = chain(6);
    let mut broken = whole.clone();
    broken.insert("http://a.example/3".into(), Answer::status(500));
    let (mut follower, mut now, day, told) = a_day_of(&broken);
    let mut items = BTreeMap::new();
    told.apply(&mut items);
    assert_eq!(items.keys().collect::<Vec<_>>(), ["urn:4", "urn:5", "urn:6", "urn:all"]);
    assert_eq!(told.incomplete.len(), 1, "named once: {:?}", told.incomplete);
    assert!(told.incomplete[0].contains("http://a.example/3") && told.incomplete[0].contains("500"));
    let asked = told.asked.iter().filter(|(_, url)| url.ends_with("/3")).count();
    assert!((5..30).contains(&asked), "less and less often: {asked}");
    // It answers again.
    let told = drive(&mut follower, &mut now, day + Duration::from_secs(2 * 86_400), serve(&whole));
    told.apply(&mut items);
    assert_eq!(items.keys().cloned().collect::<Vec<_>>(), everything(6));
    assert_eq!(items["urn:all"].title.as_deref(), Some("v6"), "what is read late is older");
    assert!(told.warnings[0].contains("answers again"), "{:?}", told.warnings);
}

#[test]
fn a_gap_outlives_the_process_and_is_named_in_every_run() {
    let whole = chain(4);
    let mut broken = whole.clone();
    broken.insert("http://a.example/2".into(), Answer::ok("<feed>&nonsense;"));
    let first = follow(FEED, None, &broken);
    assert_eq!((first.changes.len(), first.incomplete.len()), (4, 1));
    let second = follow(FEED, first.state.clone(), &broken);
    assert_eq!((second.changes.len(), second.incomplete.len()), (0, 1));
    let third = follow(FEED, first.state, &whole);
    let ids: Vec<_> = third.changes.iter().map(|c| c.item.id.as_str()).collect();
    assert_eq!(ids, ["urn:2", "urn:1"]);
    assert_eq!(third.incomplete, Vec::<String>::new());
    let fourth = follow(FEED, third.state, &whole);
    assert_eq!((fourth.asked.len(), fourth.changes.len()), (1, 0));
}

/// RFC 5005, section 4.1: publishers "may refuse to serve (e.g., with HTTP status code 403 or 410)".
#[test]
fn what_is_gone_is_named_and_not_asked_for_again() {
    let mut site = chain(5);
    site.insert("http://a.example/2".into(), Answer::status(410));
    let told = follow(FEED, None, &site);
    assert_eq!(told.incomplete.len(), 1);
    assert!(told.incomplete[0].contains("http://a.example/2 is gone"), "{:?}", told.incomplete);
    let again = follow(FEED, told.state, &site);
    assert_eq!((again.asked.len(), again.incomplete.len()), (1, 0));
}

/// Found by HEAD, but not to be had by GET.
#[test]
fn documents_that_fail_on_the_way_forward() {
    let mut whole = chain(6);
    for number in 2..=6 {
        let url = if number == 6 { FEED.to_owned() } else { format!("http://a.example/{number}") };
        let answer = whole.remove(&url).unwrap();
        whole.insert(url, answer.with("link", &format!("</{}>; rel=prev-archive", number - 1)));
    }
    let fail = |site: &Site, names: &'static [&'static str]| {
        let site = site.clone();
        move |request: &towpath_proto::follow::Request| {
            let fails = request.method == "GET" && names.iter().any(|name| request.url.ends_with(name));
            if fails { Some(Answer::status(503)) } else { site.get(&request.url).cloned() }
        }
    };
    let options = Options { once: true, ..Options::default() };
    let new = |state| HistoryFollower::new(FEED, StartFrom::Beginning, state, options.clone()).unwrap();
    let far = start() + Duration::from_secs(86_400);
    // One or two of them are asked for again later.
    let told = drive(&mut new(None), &mut start(), far, fail(&whole, &["/2", "/4"]));
    let mut items = BTreeMap::new();
    told.apply(&mut items);
    assert_eq!(items.keys().collect::<Vec<_>>(), ["urn:1", "urn:3", "urn:5", "urn:6", "urn:all"]);
    assert_eq!(told.incomplete.len(), 2);
    let told = drive(&mut new(told.state), &mut start(), far, fail(&whole, &[]));
    told.apply(&mut items);
    assert_eq!(items.keys().cloned().collect::<Vec<_>>(), everything(6));
    assert_eq!(items["urn:all"].title.as_deref(), Some("v6"));
    // Where nothing answers, the attempt failed; what was read before is kept.
    let told = drive(&mut new(None), &mut start(), far, fail(&whole, &["/2", "/3", "/4"]));
    assert_eq!((told.failed.len(), told.incomplete.len()), (1, 0));
    let mut items = BTreeMap::new();
    told.apply(&mut items);
    let told = drive(&mut new(told.state), &mut start(), far, fail(&whole, &[]));
    told.apply(&mut items);
    assert_eq!(items.keys().cloned().collect::<Vec<_>>(), everything(6));
}
