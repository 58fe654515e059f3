//! Tests of pushes ("Push Interface"): in order, each beginning at the end of the last, across restarts of
//! either side.

use super::*;
use crate::follow::Now;
use crate::push::xmpp::wire::shim::PushHeaders;

fn ids(messages: &[Element]) -> Vec<String> {
    messages.iter().flat_map(item_ids).collect()
}

/// "The previous item is the one that would have immediately preceeded the first item in the push."
#[test]
fn each_push_begins_where_the_last_ended() {
    for kind in [CursorKind::Sequence, CursorKind::Toc] {
        let mut harness = ComponentHarness::new(kind);
        harness.subscribe("alice@example.net/1", "comments");
        let mut previous = None;
        for (number, id) in ["a", "b", "a", "c"].into_iter().enumerate() {
            harness.put(id, "x");
            let pushed = harness.work();
            assert_eq!(ids(&pushed), [id]);
            let headers = PushHeaders::read(&pushed[0]);
            assert_eq!(headers.previous, previous, "{number}");
            assert!(headers.last.is_some() && headers.last != previous);
            assert_eq!(headers.total, Some([1, 2, 2, 3][number]));
            previous = headers.last;
        }
    }
}

/// "the ?order=created portion of the node name could mean to only push out notifications for newly added items".
#[test]
fn the_order_says_what_is_pushed() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.subscribe("new@example.net/1", "comments?order=created");
    harness.subscribe("all@example.net/1", "comments?order=-modified");
    let mut got = |id: &str| {
        harness.put(id, "x");
        let to = |message: &Element| message.attribute("to").unwrap().to_owned();
        let mut names: Vec<String> = harness.work().iter().map(to).collect();
        names.sort();
        names
    };
    assert_eq!(got("a"), ["all@example.net/1", "new@example.net/1"]);
    assert_eq!(got("a"), ["all@example.net/1"]);
}

/// Items appended during a delivery form the next push, without duplicates.
#[test]
fn what_comes_meanwhile_goes_together() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for number in 0..400 {
        harness.subscribe(&format!("u{number}@example.net/1"), "comments");
    }
    harness.put("a", &"x".repeat(1000));
    harness.answer_all();
    let first = harness.component.poll_output(Now::simulated(harness.now)).unwrap();
    assert!(first.len() < 80_000);
    harness.server.push(first.as_bytes());
    harness.put("b", "x");
    harness.put("c", "x");
    let mut messages = Vec::new();
    while let Some(received) = harness.server.poll().unwrap() {
        messages.extend(received.stanza());
    }
    messages.extend(harness.work());
    let to = |message: &Element| message.attribute("to").unwrap().to_owned();
    let counts = counted(messages.iter().map(to));
    assert!(counts.len() == 400 && counts.values().all(|count| *count == 3), "{counts:?}");
    let mut of_first = messages.iter().filter(|message| to(message) == "u0@example.net/1").map(item_ids);
    assert_eq!(of_first.next().unwrap(), ["a"]);
    assert_eq!(of_first.next().unwrap(), ["b"]);
    assert_eq!(of_first.next().unwrap(), ["c"]);
}

/// A message has one item, and names the cursor before it and its own, also where several were read together.
#[test]
fn each_item_is_a_push_of_its_own() {
    for kind in [CursorKind::Sequence, CursorKind::Toc] {
        let mut harness = ComponentHarness::new(kind);
        harness.subscribe("alice@example.net/1", "comments");
        harness.put("first", "x");
        let mut previous = PushHeaders::read(&harness.work()[0]).last;
        harness.holds_answers = true;
        for id in ["a", "b", "c"] {
            harness.put(id, "x");
        }
        harness.holds_answers = false;
        let pushed = harness.work();
        assert_eq!(pushed.iter().map(item_ids).collect::<Vec<_>>(), [["a"], ["b"], ["c"]]);
        for push in &pushed {
            let headers = PushHeaders::read(push);
            assert_eq!(headers.previous, previous);
            assert_eq!(headers.total, Some(4));
            previous = headers.last;
        }
        assert_eq!(harness.component.pushes(), 4);
    }
}

/// A topic with many subscribers delays neither other topics nor responses.
#[test]
fn topics_and_answers_take_turns() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for number in 0..500 {
        harness.subscribe(&format!("u{number}@example.net/1"), "comments");
    }
    harness.subscribe("one@example.net/1", "comments?order=created");
    harness.put("a", &"x".repeat(10_000));
    harness.answer_all();
    let mut before = 0;
    while let Some(output) = harness.component.poll_output(Now::simulated(harness.now)) {
        if output.contains("one@example.net") {
            break;
        }
        before += output.matches("<message").count();
    }
    assert!(before < 20, "{before}");
    let ping = "<iq type='get' from='a@b.c' to='example.com' id='p'><ping xmlns='urn:xmpp:ping'/></iq>";
    harness.component.handle_bytes(Now::simulated(harness.now), ping.as_bytes());
    assert!(harness.component.poll_output(Now::simulated(harness.now)).unwrap().contains("id=\"p\""));
}

/// Subscriptions survive a lost stream, and items appended meanwhile are pushed.
#[test]
fn the_server_starts_again() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.subscribe("alice@example.net/1", "comments");
    harness.put("a", "x");
    let headers = PushHeaders::read(&harness.work()[0]);
    harness.component.handle_disconnected(Now::simulated(harness.now), "reset");
    harness.put("b", "x");
    assert!(harness.work().is_empty());
    let notices = harness.notices();
    assert!(
        matches!(notices.last(), Some(ComponentEvent::Down(why)) if why.contains("reset")),
        "{notices:?}"
    );

    harness.now = harness.component.poll_timeout().simulated_wall();
    assert!(harness.component.poll_connect(Now::simulated(harness.now)));
    harness.component.handle_connected(Now::simulated(harness.now));
    harness.server = StreamReader::new(StreamLimits::default());
    harness.component.handle_bytes(Now::simulated(harness.now), SERVER.as_bytes());
    let pushed = harness.work();
    assert_eq!(ids(&pushed), ["b"]);
    assert_eq!(PushHeaders::read(&pushed[0]).previous, headers.last);
    assert_eq!(harness.notices(), [ComponentEvent::Connected]);
}

/// "Servers SHOULD NOT queue outbound notifications indefinitely": the gap shows.
#[test]
fn after_long_the_gap_is_left_to_be_pulled() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.subscribe("alice@example.net/1", "comments");
    harness.put("a", "x");
    let first = PushHeaders::read(&harness.work()[0]);
    harness.component.handle_disconnected(Now::simulated(harness.now), "reset");
    harness.put("b", "x");
    harness.now = harness.now.saturating_add(jiff::SignedDuration::from_hours(1)).unwrap();
    harness.connect();
    assert!(harness.work().is_empty());
    harness.put("c", "x");
    let pushed = harness.work();
    assert_eq!(ids(&pushed), ["c"]);
    assert!(PushHeaders::read(&pushed[0]).previous != first.last);
}

/// A push that was interrupted by a lost stream is sent again to all subscribers. Receivers detect the
/// duplicate by its cursor.
#[test]
fn a_push_that_was_cut_off_is_sent_again() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for number in 0..400 {
        harness.subscribe(&format!("u{number}@example.net/1"), "comments");
    }
    harness.put("a", &"x".repeat(1000));
    harness.answer_all();
    harness.component.poll_output(Now::simulated(harness.now)).unwrap();
    harness.component.handle_disconnected(Now::simulated(harness.now), "reset");
    harness.now = harness.component.poll_timeout().simulated_wall();
    assert!(harness.component.poll_connect(Now::simulated(harness.now)));
    harness.component.handle_connected(Now::simulated(harness.now));
    harness.server = StreamReader::new(StreamLimits::default());
    harness.component.handle_bytes(Now::simulated(harness.now), SERVER.as_bytes());
    let counts = counted(harness.work().iter().map(|message| message.attribute("to").unwrap().to_owned()));
    assert!(counts.len() == 400 && counts.values().all(|count| *count == 1));
}

#[test]
fn the_component_starts_again() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.subscribe("alice@example.net/1", "comments");
    harness.put("a", "x");
    harness.work();
    harness.start_again(Vec::new(), None);
    harness.connect();
    harness.put("b", "x");
    let pushed = harness.work();
    assert_eq!(ids(&pushed), ["b"]);
    let PushHeaders { previous, last, .. } = PushHeaders::read(&pushed[0]);
    assert!(previous.is_some());

    // With the persisted position, items from before the reconnect are pushed. After a long time they are
    // left to be pulled.
    let places: Vec<(FanoutTopic, PushPosition)> = harness
        .component
        .take_unpersisted()
        .into_iter()
        .map(|(topic, place)| (topic, place.unwrap()))
        .collect();
    assert_eq!((places.len(), harness.component.has_unpersisted()), (1, false));
    harness.put("c", "x");
    for (seen, pushed) in [(harness.now, vec!["c"]), (time(1000), Vec::new())] {
        harness.start_again(places.clone(), Some(seen));
        harness.component.poll_connect(Now::simulated(harness.now));
        harness.component.handle_connected(Now::simulated(harness.now));
        harness.server = StreamReader::new(StreamLimits::default());
        harness.component.handle_bytes(Now::simulated(harness.now), SERVER.as_bytes());
        let messages = harness.work();
        assert_eq!(ids(&messages), pushed);
        if let Some(message) = messages.first() {
            assert_eq!(PushHeaders::read(message).previous, last);
        }
    }
}

/// A position is persisted only after the push was sent to all subscribers.
#[test]
fn a_place_is_kept_when_all_have_it() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for number in 0..400 {
        harness.subscribe(&format!("u{number}@example.net/1"), "comments");
    }
    harness.component.take_unpersisted();
    harness.put("a", &"x".repeat(1000));
    harness.answer_all();
    harness.component.poll_output(Now::simulated(harness.now)).unwrap();
    assert!(!harness.component.has_unpersisted());
    while harness.component.poll_output(Now::simulated(harness.now)).is_some() {}
    assert!(harness.component.has_unpersisted());
}

/// Pending requests get an error when the component stops.
#[test]
fn a_component_that_is_stopped_says_so() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.holds_answers = true;
    let iq = "<iq type='get' from='a@b.c' to='example.com' id='q'><pubsub \
              xmlns='http://jabber.org/protocol/pubsub'><items node='comments'/></pubsub></iq>";
    assert!(harness.send(iq).is_empty());
    harness.component.close();
    let last = harness.component.poll_output(Now::simulated(harness.now)).unwrap();
    harness.server.push(last.as_bytes());
    let answer = harness.server.poll().unwrap().and_then(Received::stanza).unwrap();
    assert_eq!(error_of(&answer).0, "recipient-unavailable");
    assert!(matches!(harness.server.poll(), Ok(Some(Received::Closed))));
}

/// XEP-0060, 6.2: no pushes after unsubscribing, and none to an address that is gone.
#[test]
fn who_has_left_is_sent_nothing() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.subscribe("alice@example.net/1", "comments");
    harness.subscribe("gone@example.net/1", "comments");
    harness.subscribe("here@example.net/1", "comments");
    harness.pubsub("set", "<unsubscribe node='comments' jid='alice@example.net/1'/>");
    for (who, condition) in [("gone", "gone"), ("here", "service-unavailable")] {
        let bounce = format!(
            "<message type='error' from='{who}@example.net/1' to='example.com'><error type='cancel'><{condition} \
             xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error></message>"
        );
        assert!(harness.send(&bounce).is_empty());
    }
    assert_eq!(harness.kept.len(), 1);
    harness.put("a", "x");
    let pushed = harness.work();
    assert_eq!(pushed.len(), 1);
    assert_eq!(pushed[0].attribute("to"), Some("here@example.net/1"));
}

/// A push that is larger than a stanza is split into several, in order.
#[test]
fn large_updates_are_several_pushes() {
    let mut harness = ComponentHarness::new(CursorKind::Toc);
    harness.subscribe("alice@example.net/1", "comments");
    harness.holds_answers = true;
    for number in 0..10 {
        harness.put(&format!("i{number}"), &"x".repeat(20_000));
    }
    harness.holds_answers = false;
    let pushed = harness.work();
    assert!(pushed.len() > 3);
    assert_eq!(ids(&pushed), (0..10).map(|number| format!("i{number}")).collect::<Vec<_>>());
    let headers: Vec<PushHeaders> = pushed.iter().map(PushHeaders::read).collect();
    for pair in headers.windows(2) {
        assert_eq!(pair[0].last, pair[1].previous);
    }
}

/// Backpressure: no input is read while too much is pending; afterwards all of it is.
#[test]
fn a_flood_of_requests_is_answered_in_its_time() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    harness.put("a", "x");
    harness.holds_answers = true;
    let iq = |n: usize| {
        format!(
            "<iq type='get' from='a@b.c' to='example.com' id='{n}'><pubsub \
             xmlns='http://jabber.org/protocol/pubsub'><items node='comments'/></pubsub></iq>"
        )
    };
    let flood: String = (0..500).map(iq).collect();
    assert!(harness.send(&flood).is_empty());
    assert!(!harness.component.wants_bytes());
    harness.holds_answers = false;
    let answers = harness.work();
    assert_eq!(answers.len(), 500);
    assert!(harness.component.wants_bytes());
}

/// XEP-0060, 8.4.2: "the service MUST also send notifications of node deletion to all subscribers". Their subscriptions
/// are gone, also from the store. Subscribers of other feeds notice nothing.
#[test]
fn subscribers_of_a_removed_feed_are_told() {
    let mut harness = ComponentHarness::new(CursorKind::Sequence);
    for (jid, node) in [("a@example.net/1", "comments?order=created"), ("b@example.net", "comments")] {
        harness.subscribe(jid, node);
    }
    let (feed, other) = (FeedId::new("comments").unwrap(), FeedId::new("likes").unwrap());
    harness.component.handle_removed(&other, "never mind");
    assert!(harness.work().is_empty() && harness.kept.len() == 2);
    harness.component.handle_disconnected(Now::simulated(harness.now), "reset");
    harness.component.handle_removed(&feed, "moved");
    assert_eq!(harness.component.subscriptions(), 2, "nobody can be told now");
    harness.now = harness.now.saturating_add(jiff::SignedDuration::from_secs(5)).unwrap();
    harness.connect();
    harness.component.handle_removed(&feed, "moved <to> likes");
    let told = harness.work();
    let told: Vec<_> = told
        .iter()
        .map(|message| {
            let event = message.child("event", ns::PUBSUB_EVENT).unwrap();
            let delete = event.child("delete", ns::PUBSUB_EVENT).unwrap();
            assert_eq!(
                (message.attribute("from"), message.attribute("type")),
                (Some("example.com"), Some("headline"))
            );
            let body = message.children().find(|child| child.name == "body").unwrap().text();
            (message.attribute("to").unwrap(), delete.attribute("node").unwrap(), body)
        })
        .collect();
    let reason = || "moved <to> likes".to_owned();
    assert_eq!(
        told,
        [("a@example.net/1", "comments?order=created", reason()), ("b@example.net", "comments", reason())]
    );
    assert!(harness.kept.is_empty() && harness.component.subscriptions() == 0);
    harness.put("a", "late");
    assert!(harness.work().is_empty());
}
