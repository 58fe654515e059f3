//! Tests of opening, refusing and keeping a stream.

use jiff::Timestamp;

use super::*;
use crate::follow::Now;

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn opening() -> ComponentStream {
    let mut connection = ComponentStream::new("plays.shakespeare.lit", "secret", StreamLimits::default());
    assert!(
        connection.poll_connect(Now::simulated(time(0))) && !connection.poll_connect(Now::simulated(time(0)))
    );
    connection.handle_connected(Now::simulated(time(0)));
    connection
}

const HEADER: &str = "<?xml version='1.0'?><stream:stream xmlns:stream='http://etherx.jabber.org/streams' \
    xmlns='jabber:component:accept' from='plays.shakespeare.lit' id='3BF96D32'>";

fn ready() -> ComponentStream {
    let mut connection = opening();
    connection.handle_bytes(Now::simulated(time(0)), HEADER.as_bytes());
    connection.handle_bytes(Now::simulated(time(0)), b"<handshake/>");
    assert_eq!(connection.poll_received(Now::simulated(time(0))), Some(Incoming::Ready));
    connection.poll_output();
    connection
}

/// Examples of XEP-0114, 3.
#[test]
fn the_stream_is_opened_as_in_the_text() {
    let mut connection = opening();
    assert_eq!(
        connection.poll_output().unwrap(),
        "<?xml version='1.0'?><stream:stream xmlns=\"jabber:component:accept\" \
         xmlns:stream=\"http://etherx.jabber.org/streams\" to=\"plays.shakespeare.lit\">"
    );
    connection.handle_bytes(Now::simulated(time(1)), HEADER.as_bytes());
    assert_eq!(connection.poll_received(Now::simulated(time(1))), None);
    // The SHA-1 of "3BF96D32secret".
    let expected = hex::encode(Sha1::digest("3BF96D32secret"));
    assert_eq!(connection.poll_output().unwrap(), format!("<handshake>{expected}</handshake>"));
    assert!(!connection.is_ready());
    connection.handle_bytes(Now::simulated(time(2)), b"<handshake/><message/>");
    assert_eq!(connection.poll_received(Now::simulated(time(2))), Some(Incoming::Ready));
    assert!(matches!(connection.poll_received(Now::simulated(time(2))), Some(Incoming::Stanza(_))));
    assert!(connection.is_ready());
}

#[test]
fn a_refused_stream_is_told_once_and_tried_again_later_and_later() {
    let mut connection = ComponentStream::new("a.example", "wrong", StreamLimits::default());
    let (mut now, mut told, mut pauses) = (time(0), Vec::new(), Vec::new());
    for _ in 0..9 {
        assert!(connection.poll_connect(Now::simulated(now)));
        connection.handle_connected(Now::simulated(now));
        let refused = "<stream:error><not-authorized xmlns='urn:ietf:params:xml:ns:xmpp-streams'/>\
            <text xmlns='urn:ietf:params:xml:ns:xmpp-streams'>Given token does not match</text></stream:error>";
        connection.handle_bytes(Now::simulated(now), format!("{HEADER}{refused}</stream:stream>").as_bytes());
        assert_eq!(connection.poll_received(Now::simulated(now)), None);
        assert!(connection.is_down());
        told.extend(connection.take_problem());
        pauses.push(connection.poll_timeout().simulated_wall().duration_since(now).as_secs());
        assert!(!connection.poll_connect(Now::simulated(now)));
        now = connection.poll_timeout().simulated_wall();
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(told.len(), 1);
    // Some servers refuse an unknown name in the same way.
    let causes = ["not-authorized", "the secret", "no component of this name"];
    assert!(causes.iter().all(|cause| told[0].contains(cause)), "{told:?}");
}

/// XEP-0114, 3: host-unknown and conflict follow a start tag with or without an id.
#[test]
fn other_refusals_are_named() {
    for condition in ["host-unknown", "conflict", "invalid-namespace"] {
        let mut connection = opening();
        let header = HEADER.replace(" id='3BF96D32'", "");
        let error = format!(
            "{header}<stream:error><{condition} xmlns='urn:ietf:params:xml:ns:xmpp-streams'/></stream:error>"
        );
        connection.handle_bytes(Now::simulated(time(0)), error.as_bytes());
        assert_eq!(connection.poll_received(Now::simulated(time(0))), None);
        assert!(connection.take_problem().unwrap().contains(condition));
    }
    let mut connection = opening();
    connection.handle_bytes(Now::simulated(time(0)), b"HTTP/1.1 400 Bad Request\r\n\r\n<html></html>");
    assert_eq!(connection.poll_received(Now::simulated(time(0))), None);
    assert!(connection.is_down());
}

#[test]
fn silence_is_asked_about_and_then_given_up() {
    let mut connection = ready();
    connection.handle_timeout(Now::simulated(time(59)));
    assert_eq!(connection.poll_output(), None);
    connection.handle_timeout(Now::simulated(time(60)));
    assert!(connection.poll_output().unwrap().contains("urn:xmpp:ping"));
    connection.handle_bytes(Now::simulated(time(61)), b" ");
    assert_eq!(connection.poll_timeout().simulated_wall(), time(121));
    connection.handle_timeout(Now::simulated(time(121)));
    connection.handle_timeout(Now::simulated(time(151)));
    assert!(connection.is_down());
    assert!(connection.take_problem().unwrap().contains("ping"));
    // After a long steady stream the pause is short again.
    assert_eq!(connection.poll_timeout().simulated_wall(), time(152));
}

#[test]
fn broken_xml_ends_the_stream_with_an_error() {
    let mut connection = ready();
    connection.handle_bytes(Now::simulated(time(5)), b"<message><!-- x --></message>");
    assert_eq!(connection.poll_received(Now::simulated(time(5))), None);
    assert!(connection.is_down());
    let output = connection.poll_output().unwrap();
    assert!(output.contains("<restricted-xml ") && output.ends_with("</stream:stream>"), "{output}");
}
