//! The follower beside the component in a simulated world: a server between them loses, doubles, delays and reorders
//! pushes, loses answers, breaks streams; either side starts again. The output is always the log, in order, nothing
//! missing, nothing twice.

mod world;

use jiff::SignedDuration;
use proptest::prelude::*;

use self::world::{World, follower};
use super::session::OverXmpp as _;
use crate::follow::{Event, Exchange as _, FollowError, Follower as _};
use crate::smart::cursor::CursorKind;
use crate::smart::tests::time;

fn simulate(seed: u64, kind: CursorKind) -> World {
    let mut world = World::new(seed, kind);
    for _ in 0..30 {
        for _ in 0..world.random.u8(..4) {
            world.append();
        }
        let wait = SignedDuration::from_secs(world.random.i64(1..60));
        let end = world.now.saturating_add(wait).unwrap();
        world.run(end);
        world.trouble();
    }
    world.is_bad = false;
    world.pass(1200);
    world.append();
    world.pass(1200);
    world.check();
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_output_is_the_log_whatever_happens(seed in any::<u64>()) {
        simulate(seed, CursorKind::Sequence);
    }
}

/// With a server that does its work, everything comes by push, and pulls are few.
#[test]
fn a_good_server_needs_few_pulls() {
    let mut world = World::new(1, CursorKind::Sequence);
    world.is_bad = false;
    world.pass(1);
    assert!(world.follower.is_subscribed());
    let pulls = world.pulls;
    for _ in 0..50 {
        world.append();
        world.pass(1);
    }
    world.check();
    assert_eq!((world.told.len(), world.pushes), (50, 50));
    assert_eq!(world.pulls, pulls);
    // "If a long period of time passes and there has been no pushes, the client should perform a pull request".
    world.pass(360);
    assert_eq!(world.pulls, pulls + 1);
}

/// What is appended before the component is back is pushed when it is.
#[test]
fn a_service_that_starts_again_pushes_what_it_missed() {
    let mut world = World::new(1, CursorKind::Sequence);
    world.is_bad = false;
    world.pass(5);
    world.append();
    world.pass(5);
    world.keep_places();
    let pulls = world.pulls;
    for is_kept in [true, false] {
        world.start_service_again();
        world.append();
        world.pass(5);
        world.check();
        if is_kept {
            world.keep_places();
        }
    }
    // Of places that were not kept since, a push that was sent before is sent again, and known.
    world.start_service_again();
    world.pass(5);
    world.check();
    assert_eq!((world.pulls, world.pushes, world.told.len()), (pulls, 4, 3));
}

/// A service that ends takes the question with it: it is asked again.
#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut world = World::new(1, CursorKind::Sequence);
    world.is_bad = false;
    world.follower.session().poll_connect(world.now);
    world.follower.session().handle_connected(world.now, true);
    while !world.follower.session().is_ready() {
        world.act_alice();
    }
    world.follower.handle_received(world.now);
    world.act_alice();
    assert_eq!(world.network.len(), 2, "a subscription and a pull");
    world.network.clear();
    world.append();
    world.pass(30);
    assert!(world.follower.is_subscribed());
    world.check();
}

/// Headlines that somebody else sends are nobody's.
#[test]
fn only_the_service_is_believed() {
    let mut world = World::new(1, CursorKind::Sequence);
    world.is_bad = false;
    world.pass(5);
    let forged = include_str!("../../../tests/data/xmpp/push.xml");
    let forged = forged.replace("comments?order=created", "comments?order=modified");
    world.tell_alice(&forged);
    world.tell_alice(&forged.replace("article_1@example.com", "feeds.example.com.evil"));
    world.pass(5);
    assert!(world.told.is_empty());
}

#[test]
fn once_ends_at_the_end_or_with_a_failure() {
    let mut world = World::new(1, CursorKind::Toc);
    world.is_bad = false;
    world.follower = follower(None, true);
    world.append();
    world.append();
    world.pass(5);
    assert!(world.follower.is_finished());
    assert!(world.kept.subscriptions.is_empty());
    world.check();

    let mut follower = follower(None, true);
    assert!(follower.session().poll_connect(world.now));
    follower.session().handle_disconnected(world.now, "refused");
    follower.handle_received(world.now);
    assert!(matches!(follower.poll_event(), Some(Event::Failed(FollowError::Transfer { .. }))));
    assert!(follower.is_finished());
}

/// RFC 6120, 5 and 6: no password goes where somebody may listen, and a refused account is not tried again.
#[test]
fn what_a_session_refuses() {
    let header =
        "<stream:stream xmlns:stream='http://etherx.jabber.org/streams' xmlns='jabber:client' version='1.0'>";
    let plain =
        "<mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><mechanism>PLAIN</mechanism></mechanisms>";
    let tls = "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>";
    let begin = |is_safe: bool, features: &str| {
        let mut follower = follower(None, false);
        assert!(follower.session().poll_connect(time(0)));
        follower.session().handle_connected(time(0), is_safe);
        follower.session().poll_output();
        let greeting = format!("{header}<stream:features>{features}</stream:features>");
        follower.session().handle_bytes(time(0), greeting.as_bytes());
        follower.handle_received(time(0));
        let output = follower.session().poll_output().unwrap_or_default();
        (follower, output)
    };
    let (mut follower, output) = begin(false, plain);
    assert!(follower.session().is_down() && !output.contains("<auth"), "{output}");

    let (mut follower, output) = begin(false, &format!("{tls}{plain}"));
    assert!(output.contains("<starttls") && !output.contains("<auth"), "{output}");
    let early =
        "<proceed xmlns='urn:ietf:params:xml:ns:xmpp-tls'/><stream:features>injected</stream:features>";
    follower.session().handle_bytes(time(1), early.as_bytes());
    follower.handle_received(time(1));
    assert!(follower.session().poll_tls());
    follower.session().handle_tls(time(2));
    assert!(follower.session().poll_output().unwrap().contains("<stream:stream"));
    follower
        .session()
        .handle_bytes(time(2), format!("{header}<stream:features>{plain}</stream:features>").as_bytes());
    follower.handle_received(time(2));
    assert!(follower.session().poll_output().unwrap().contains("AGFsaWNlAHdvcmQ="));
    follower.session().handle_bytes(
        time(3),
        b"<failure xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><not-authorized/></failure>",
    );
    follower.handle_received(time(3));
    assert!(
        matches!(follower.poll_event(), Some(Event::Failed(FollowError::Usage(why))) if why.contains("not-authorized"))
    );
    assert!(follower.is_finished() && !follower.session().poll_connect(time(9999)));

    // Within this machine it is encrypted where the server demands that.
    let required = "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'><required/></starttls>";
    for (features, is_encrypted) in
        [(tls.to_owned(), true), (format!("{required}{plain}"), true), (format!("{tls}{plain}"), false)]
    {
        let (_, output) = begin(true, &features);
        assert_eq!((output.contains("<starttls"), output.contains("<auth")), (is_encrypted, !is_encrypted));
    }

    let (mut follower, _) = begin(true, "<mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>");
    assert!(matches!(follower.poll_event(), Some(Event::Failed(FollowError::Usage(_)))));
}
