//! Pushes ("Push Interface"): in order, each beginning where the last ended, over restarts of either side.

use super::*;
use crate::push::xmpp::shim::PushHeaders;

fn ids(messages: &[Element]) -> Vec<String> {
    messages.iter().flat_map(item_ids).collect()
}

/// "The previous item is the one that would have immediately preceeded the first item in the push."
#[test]
fn each_push_begins_where_the_last_ended() {
    for kind in [CursorKind::Sequence, CursorKind::Toc] {
        let mut world = World::new(kind);
        world.subscribe("alice@example.net/1", "comments");
        let mut previous = None;
        for (number, id) in ["a", "b", "a", "c"].into_iter().enumerate() {
            world.put(id, "x");
            let pushed = world.work();
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
    let mut world = World::new(CursorKind::Sequence);
    world.subscribe("new@example.net/1", "comments?order=created");
    world.subscribe("all@example.net/1", "comments?order=-modified");
    let mut got = |id: &str| {
        world.put(id, "x");
        let to = |message: &Element| message.attribute("to").unwrap().to_owned();
        let mut names: Vec<String> = world.work().iter().map(to).collect();
        names.sort();
        names
    };
    assert_eq!(got("a"), ["all@example.net/1", "new@example.net/1"]);
    assert_eq!(got("a"), ["all@example.net/1"]);
}

/// What is appended while a delivery runs goes together into the next, and nothing twice.
#[test]
fn what_comes_meanwhile_goes_together() {
    let mut world = World::new(CursorKind::Sequence);
    for number in 0..400 {
        world.subscribe(&format!("u{number}@example.net/1"), "comments");
    }
    world.put("a", &"x".repeat(1000));
    world.answer_all();
    let first = world.component.poll_output(world.now).unwrap();
    assert!(first.len() < 80_000);
    world.server.push(first.as_bytes());
    world.put("b", "x");
    world.put("c", "x");
    let mut messages = Vec::new();
    while let Some(received) = world.server.poll().unwrap() {
        messages.extend(received.stanza());
    }
    messages.extend(world.work());
    let to = |message: &Element| message.attribute("to").unwrap().to_owned();
    let counts = counted(messages.iter().map(to));
    assert!(counts.len() == 400 && counts.values().all(|count| *count == 2), "{counts:?}");
    let mut of_first = messages.iter().filter(|message| to(message) == "u0@example.net/1").map(item_ids);
    assert_eq!(of_first.next().unwrap(), ["a"]);
    assert_eq!(of_first.next().unwrap(), ["b", "c"]);
}

/// A topic with many subscribers does not hold up another, nor an answer.
#[test]
fn topics_and_answers_take_turns() {
    let mut world = World::new(CursorKind::Sequence);
    for number in 0..500 {
        world.subscribe(&format!("u{number}@example.net/1"), "comments");
    }
    world.subscribe("one@example.net/1", "comments?order=created");
    world.put("a", &"x".repeat(10_000));
    world.answer_all();
    let mut before = 0;
    while let Some(output) = world.component.poll_output(world.now) {
        if output.contains("one@example.net") {
            break;
        }
        before += output.matches("<message").count();
    }
    assert!(before < 20, "{before}");
    let ping = "<iq type='get' from='a@b.c' to='example.com' id='p'><ping xmlns='urn:xmpp:ping'/></iq>";
    world.component.handle_bytes(world.now, ping.as_bytes());
    assert!(world.component.poll_output(world.now).unwrap().contains("id=\"p\""));
}

/// Nobody has to subscribe again, and what came while the stream was down is pushed.
#[test]
fn the_server_starts_again() {
    let mut world = World::new(CursorKind::Sequence);
    world.subscribe("alice@example.net/1", "comments");
    world.put("a", "x");
    let headers = PushHeaders::read(&world.work()[0]);
    world.component.handle_disconnected(world.now, "reset");
    world.put("b", "x");
    assert!(world.work().is_empty());
    let notices = world.notices();
    assert!(matches!(notices.last(), Some(Notice::Down(why)) if why.contains("reset")), "{notices:?}");

    world.now = world.component.poll_timeout();
    assert!(world.component.poll_connect(world.now));
    world.component.handle_connected(world.now);
    world.server = StreamReader::new(Limits::default());
    world.component.handle_bytes(world.now, SERVER.as_bytes());
    let pushed = world.work();
    assert_eq!(ids(&pushed), ["b"]);
    assert_eq!(PushHeaders::read(&pushed[0]).previous, headers.last);
    assert_eq!(world.notices(), [Notice::Connected]);
}

/// "Servers SHOULD NOT queue outbound notifications indefinitely": the gap shows.
#[test]
fn after_long_the_gap_is_left_to_be_pulled() {
    let mut world = World::new(CursorKind::Sequence);
    world.subscribe("alice@example.net/1", "comments");
    world.put("a", "x");
    let first = PushHeaders::read(&world.work()[0]);
    world.component.handle_disconnected(world.now, "reset");
    world.put("b", "x");
    world.now = world.now.saturating_add(jiff::SignedDuration::from_hours(1)).unwrap();
    world.connect();
    assert!(world.work().is_empty());
    world.put("c", "x");
    let pushed = world.work();
    assert_eq!(ids(&pushed), ["c"]);
    assert!(PushHeaders::read(&pushed[0]).previous != first.last);
}

/// A push that was under way when the stream broke is sent again to all; who had it knows it by its cursor.
#[test]
fn a_push_that_was_cut_off_is_sent_again() {
    let mut world = World::new(CursorKind::Sequence);
    for number in 0..400 {
        world.subscribe(&format!("u{number}@example.net/1"), "comments");
    }
    world.put("a", &"x".repeat(1000));
    world.answer_all();
    world.component.poll_output(world.now).unwrap();
    world.component.handle_disconnected(world.now, "reset");
    world.now = world.component.poll_timeout();
    assert!(world.component.poll_connect(world.now));
    world.component.handle_connected(world.now);
    world.server = StreamReader::new(Limits::default());
    world.component.handle_bytes(world.now, SERVER.as_bytes());
    let counts = counted(world.work().iter().map(|message| message.attribute("to").unwrap().to_owned()));
    assert!(counts.len() == 400 && counts.values().all(|count| *count == 1));
}

#[test]
fn the_component_starts_again() {
    let mut world = World::new(CursorKind::Sequence);
    world.subscribe("alice@example.net/1", "comments");
    world.put("a", "x");
    world.work();
    world.start_again(Vec::new(), None);
    world.connect();
    world.put("b", "x");
    let pushed = world.work();
    assert_eq!(ids(&pushed), ["b"]);
    let PushHeaders { previous, last, .. } = PushHeaders::read(&pushed[0]);
    assert!(previous.is_some());

    // With the place that was kept, what came before it was back is pushed too; after long it is left to be pulled.
    let places: Vec<(Topic, Place)> =
        world.component.take_unkept().into_iter().map(|(topic, place)| (topic, place.unwrap())).collect();
    assert_eq!((places.len(), world.component.has_unkept()), (1, false));
    world.put("c", "x");
    for (seen, pushed) in [(world.now, vec!["c"]), (time(1000), Vec::new())] {
        world.start_again(places.clone(), Some(seen));
        world.component.poll_connect(world.now);
        world.component.handle_connected(world.now);
        world.server = StreamReader::new(Limits::default());
        world.component.handle_bytes(world.now, SERVER.as_bytes());
        let messages = world.work();
        assert_eq!(ids(&messages), pushed);
        if let Some(message) = messages.first() {
            assert_eq!(PushHeaders::read(message).previous, last);
        }
    }
}

/// Only what was sent to everybody is kept as sent.
#[test]
fn a_place_is_kept_when_all_have_it() {
    let mut world = World::new(CursorKind::Sequence);
    for number in 0..400 {
        world.subscribe(&format!("u{number}@example.net/1"), "comments");
    }
    world.component.take_unkept();
    world.put("a", &"x".repeat(1000));
    world.answer_all();
    world.component.poll_output(world.now).unwrap();
    assert!(!world.component.has_unkept());
    while world.component.poll_output(world.now).is_some() {}
    assert!(world.component.has_unkept());
}

/// Whoever waits for an answer when the component is stopped is told that there will be none.
#[test]
fn a_component_that_is_stopped_says_so() {
    let mut world = World::new(CursorKind::Sequence);
    world.holds_answers = true;
    let iq = "<iq type='get' from='a@b.c' to='example.com' id='q'><pubsub \
              xmlns='http://jabber.org/protocol/pubsub'><items node='comments'/></pubsub></iq>";
    assert!(world.send(iq).is_empty());
    world.component.close();
    let last = world.component.poll_output(world.now).unwrap();
    world.server.push(last.as_bytes());
    let answer = world.server.poll().unwrap().and_then(Received::stanza).unwrap();
    assert_eq!(error_of(&answer).0, "recipient-unavailable");
    assert!(matches!(world.server.poll(), Ok(Some(Received::Closed))));
}

/// XEP-0060, 6.2: after that nothing comes; and nothing comes to an address that is gone.
#[test]
fn who_has_left_is_sent_nothing() {
    let mut world = World::new(CursorKind::Sequence);
    world.subscribe("alice@example.net/1", "comments");
    world.subscribe("gone@example.net/1", "comments");
    world.subscribe("here@example.net/1", "comments");
    world.pubsub("set", "<unsubscribe node='comments' jid='alice@example.net/1'/>");
    for (who, condition) in [("gone", "gone"), ("here", "service-unavailable")] {
        let bounce = format!(
            "<message type='error' from='{who}@example.net/1' to='example.com'><error type='cancel'><{condition} \
             xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error></message>"
        );
        assert!(world.send(&bounce).is_empty());
    }
    assert_eq!(world.kept.len(), 1);
    world.put("a", "x");
    let pushed = world.work();
    assert_eq!(pushed.len(), 1);
    assert_eq!(pushed[0].attribute("to"), Some("here@example.net/1"));
}

/// A push that is larger than a stanza goes in several, one after the other.
#[test]
fn large_updates_are_several_pushes() {
    let mut world = World::new(CursorKind::Toc);
    world.subscribe("alice@example.net/1", "comments");
    world.holds_answers = true;
    for number in 0..10 {
        world.put(&format!("i{number}"), &"x".repeat(20_000));
    }
    world.holds_answers = false;
    let pushed = world.work();
    assert!(pushed.len() > 3);
    assert_eq!(ids(&pushed), (0..10).map(|number| format!("i{number}")).collect::<Vec<_>>());
    let headers: Vec<PushHeaders> = pushed.iter().map(PushHeaders::read).collect();
    for pair in headers.windows(2) {
        assert_eq!(pair[0].last, pair[1].previous);
    }
}

/// While too much is under way nothing more is read, and then everything is.
#[test]
fn a_flood_of_requests_is_answered_in_its_time() {
    let mut world = World::new(CursorKind::Sequence);
    world.put("a", "x");
    world.holds_answers = true;
    let iq = |n: usize| {
        format!(
            "<iq type='get' from='a@b.c' to='example.com' id='{n}'><pubsub \
             xmlns='http://jabber.org/protocol/pubsub'><items node='comments'/></pubsub></iq>"
        )
    };
    let flood: String = (0..500).map(iq).collect();
    assert!(world.send(&flood).is_empty());
    assert!(!world.component.wants_bytes());
    world.holds_answers = false;
    let answers = world.work();
    assert_eq!(answers.len(), 500);
    assert!(world.component.wants_bytes());
}
