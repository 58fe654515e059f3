//! End-to-end simulation of follower and component. The server between them loses, duplicates, delays and
//! reorders pushes, loses responses and breaks streams; either side restarts. The output must equal the log:
//! in order, complete, without duplicates.

mod check;
mod limits;
mod replies;
mod simulation;

use jiff::SignedDuration;
use proptest::prelude::*;

use self::simulation::{XmppSimulation, follower};
use crate::follow::{Event, Exchange as _, FollowError, FollowMode, Follower as _, Now};
use crate::push::xmpp::wire::session::{ConnectionPrivacy, OverXmpp as _};
use crate::smart::cursor::CursorKind;
use crate::smart::tests::time;

fn simulate(seed: u64, kind: CursorKind) -> XmppSimulation {
    let mut simulation = XmppSimulation::new(seed, kind);
    for _ in 0..30 {
        for _ in 0..simulation.random.u8(..4) {
            simulation.append();
        }
        let wait = SignedDuration::from_secs(simulation.random.i64(1..60));
        let end = simulation.now.saturating_add(wait).unwrap();
        simulation.run(end);
        simulation.inject_fault();
    }
    simulation.is_unreliable = false;
    simulation.pass(1200);
    simulation.append();
    simulation.pass(1200);
    simulation.check();
    simulation
}

proptest! {
    #![proptest_config(crate::histories::cases(48))]

    #[test]
    fn the_output_is_the_log_whatever_happens(seed in any::<u64>()) {
        simulate(seed, CursorKind::Sequence);
    }
}

/// With a reliable server everything is pushed, and pulls are rare.
#[test]
fn a_good_server_needs_few_pulls() {
    let mut simulation = XmppSimulation::new(1, CursorKind::Sequence);
    simulation.is_unreliable = false;
    simulation.pass(1);
    assert!(simulation.follower.is_subscribed());
    let pulls = simulation.pulls;
    for _ in 0..50 {
        simulation.append();
        simulation.pass(1);
    }
    simulation.check();
    assert_eq!((simulation.output.len(), simulation.pushes), (50, 50));
    assert_eq!(simulation.pulls, pulls);
    // "If a long period of time passes and there has been no pushes, the client should perform a pull request".
    simulation.pass(360);
    assert_eq!(simulation.pulls, pulls + 1);
}

/// Items appended while the component is down are pushed after its restart.
#[test]
fn a_service_that_starts_again_pushes_what_it_missed() {
    let mut simulation = XmppSimulation::new(1, CursorKind::Sequence);
    simulation.is_unreliable = false;
    simulation.pass(5);
    simulation.append();
    simulation.pass(5);
    simulation.persist_positions();
    let pulls = simulation.pulls;
    for is_kept in [true, false] {
        simulation.restart_service();
        simulation.append();
        simulation.pass(5);
        simulation.check();
        if is_kept {
            simulation.persist_positions();
        }
    }
    // A position that was not persisted leads to a repeated push, which the follower detects.
    simulation.restart_service();
    simulation.pass(5);
    simulation.check();
    assert_eq!((simulation.pulls, simulation.pushes, simulation.output.len()), (pulls, 4, 3));
}

/// A response that is lost with the component is requested again.
#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut simulation = XmppSimulation::new(1, CursorKind::Sequence);
    simulation.is_unreliable = false;
    simulation.log_in();
    assert_eq!(simulation.network.len(), 2, "a subscription and a pull");
    simulation.network.clear();
    simulation.append();
    simulation.pass(30);
    assert!(simulation.follower.is_subscribed());
    simulation.check();
}

/// A follower that starts again within the clock's resolution ignores responses to the requests before. They answer
/// for another position.
#[test]
fn an_answer_to_an_earlier_stream_is_ignored() {
    let mut simulation = XmppSimulation::new(1, CursorKind::Sequence);
    simulation.is_unreliable = false;
    simulation.append();
    simulation.log_in();
    let earlier = std::mem::take(&mut simulation.network);
    simulation.follower = follower(None, FollowMode::Continuous);
    simulation.log_in();
    let own = std::mem::replace(&mut simulation.network, earlier);
    simulation.pass(0);
    assert!(simulation.output.is_empty() && !simulation.follower.is_subscribed());
    simulation.network = own;
    simulation.pass(0);
    assert!(simulation.follower.is_subscribed());
    simulation.check();
}

/// A follower of a node that is deleted says why, and has everything once the node is back.
#[test]
fn a_deleted_node_is_told_and_found_again() {
    let mut simulation = XmppSimulation::new(1, CursorKind::Sequence);
    simulation.is_unreliable = false;
    simulation.pass(5);
    assert!(simulation.follower.is_subscribed());
    simulation.remove_feed("moved to likes");
    assert!(!simulation.follower.is_subscribed() && simulation.kept.subscriptions.is_empty());
    assert!(simulation.warnings.iter().any(|text| text.contains("deleted the node: moved to likes")));
    assert!(
        simulation.warnings.iter().any(|text| text.contains("item-not-found: there is no such node")),
        "{:?}",
        simulation.warnings
    );
    simulation.is_removed = false;
    simulation.append();
    simulation.pass(900);
    assert!(simulation.follower.is_subscribed());
    simulation.check();
}

/// The service lost its data: the follower is told once, before the items of the new log, also if that is empty.
#[test]
fn a_service_that_began_anew_is_told_once() {
    for appended in [0, 3] {
        let mut simulation = XmppSimulation::new(1, CursorKind::Sequence);
        simulation.is_unreliable = false;
        (0..3).for_each(|_| simulation.append());
        simulation.pass(5);
        simulation.check();
        simulation.replace_log("another");
        (0..appended).for_each(|_| simulation.append());
        simulation.pass(2000);
        assert_eq!(simulation.resets, 1);
        simulation.check();
        simulation.append();
        simulation.pass(2000);
        simulation.check();
        assert_eq!(simulation.resets, 1);
    }
}

/// Headlines from other senders are ignored.
#[test]
fn only_the_service_is_believed() {
    let mut simulation = XmppSimulation::new(1, CursorKind::Sequence);
    simulation.is_unreliable = false;
    simulation.pass(5);
    let forged = include_str!("../../../../tests/data/xmpp/push.xml");
    let forged = forged.replace("comments?order=created", "comments?order=modified");
    simulation.send_to_alice(&forged);
    simulation.send_to_alice(&forged.replace("article_1@example.com", "feeds.example.com.evil"));
    simulation.pass(5);
    assert!(simulation.output.is_empty());
}

#[test]
fn once_ends_at_the_end_or_with_a_failure() {
    let mut simulation = XmppSimulation::new(1, CursorKind::Toc);
    simulation.is_unreliable = false;
    simulation.follower = follower(None, FollowMode::CatchUp);
    simulation.append();
    simulation.append();
    simulation.pass(5);
    assert!(simulation.follower.is_finished());
    assert!(simulation.kept.subscriptions.is_empty());
    simulation.check();

    let mut follower = follower(None, FollowMode::CatchUp);
    assert!(follower.session().poll_connect(Now::simulated(simulation.now)));
    follower.session().handle_disconnected(Now::simulated(simulation.now), "refused");
    follower.handle_received(Now::simulated(simulation.now));
    assert!(matches!(follower.poll_event(), Some(Event::Failed(FollowError::Transfer { .. }))));
    assert!(follower.is_finished());
}

/// RFC 6120, 5 and 6: passwords are sent over encrypted connections only, and a refused account is not tried
/// again.
#[test]
fn what_a_session_refuses() {
    let header =
        "<stream:stream xmlns:stream='http://etherx.jabber.org/streams' xmlns='jabber:client' version='1.0'>";
    let plain =
        "<mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><mechanism>PLAIN</mechanism></mechanisms>";
    let tls = "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'/>";
    let begin = |privacy: ConnectionPrivacy, features: &str| {
        let mut follower = follower(None, FollowMode::Continuous);
        assert!(follower.session().poll_connect(Now::simulated(time(0))));
        follower.session().handle_connected(Now::simulated(time(0)), privacy);
        follower.session().poll_output();
        let greeting = format!("{header}<stream:features>{features}</stream:features>");
        follower.session().handle_bytes(Now::simulated(time(0)), greeting.as_bytes());
        follower.handle_received(Now::simulated(time(0)));
        let output = follower.session().poll_output().unwrap_or_default();
        (follower, output)
    };
    let (mut follower, output) = begin(ConnectionPrivacy::Exposed, plain);
    assert!(follower.session().is_down() && !output.contains("<auth"), "{output}");

    let (mut follower, output) = begin(ConnectionPrivacy::Exposed, &format!("{tls}{plain}"));
    assert!(output.contains("<starttls") && !output.contains("<auth"), "{output}");
    let early =
        "<proceed xmlns='urn:ietf:params:xml:ns:xmpp-tls'/><stream:features>injected</stream:features>";
    follower.session().handle_bytes(Now::simulated(time(1)), early.as_bytes());
    follower.handle_received(Now::simulated(time(1)));
    assert!(follower.session().poll_tls());
    follower.session().handle_tls(Now::simulated(time(2)));
    assert!(follower.session().poll_output().unwrap().contains("<stream:stream"));
    follower.session().handle_bytes(
        Now::simulated(time(2)),
        format!("{header}<stream:features>{plain}</stream:features>").as_bytes(),
    );
    follower.handle_received(Now::simulated(time(2)));
    assert!(follower.session().poll_output().unwrap().contains("AGFsaWNlAHdvcmQ="));
    follower.session().handle_bytes(
        Now::simulated(time(3)),
        b"<failure xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><not-authorized/></failure>",
    );
    follower.handle_received(Now::simulated(time(3)));
    assert!(
        matches!(follower.poll_event(), Some(Event::Failed(FollowError::Usage(why))) if why.contains("not-authorized"))
    );
    assert!(follower.is_finished() && !follower.session().poll_connect(Now::simulated(time(9999))));

    // RFC 6120, 5.4.2.2: a server without a usable certificate fails the negotiation.
    let (mut follower, _) = begin(ConnectionPrivacy::Exposed, tls);
    let failure = b"<failure xmlns='urn:ietf:params:xml:ns:xmpp-tls'/></stream:stream>";
    follower.session().handle_bytes(Now::simulated(time(1)), failure);
    follower.handle_received(Now::simulated(time(1)));
    assert!(follower.session().is_down());
    assert!(matches!(follower.poll_event(), Some(Event::Warning(text)) if text.contains("STARTTLS")));

    // Over loopback the stream is encrypted if the server requires it.
    let required = "<starttls xmlns='urn:ietf:params:xml:ns:xmpp-tls'><required/></starttls>";
    for (features, is_encrypted) in
        [(tls.to_owned(), true), (format!("{required}{plain}"), true), (format!("{tls}{plain}"), false)]
    {
        let (_, output) = begin(ConnectionPrivacy::Private, &features);
        assert_eq!((output.contains("<starttls"), output.contains("<auth")), (is_encrypted, !is_encrypted));
    }

    let (mut follower, _) =
        begin(ConnectionPrivacy::Private, "<mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>");
    assert!(matches!(follower.poll_event(), Some(Event::Failed(FollowError::Usage(_)))));
}
