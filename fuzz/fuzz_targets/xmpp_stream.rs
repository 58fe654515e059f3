//! A server's stream to the component: the first byte selects how the input is cut, which must not matter.
//! Parsed stanzas survive a round trip, and every request gets a response.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::Timestamp;
use towpath_proto::push::xmpp::component::{StoreResponse, Component, StoreRequest, ComponentSettings, StoreRequestError};
use towpath_proto::push::xmpp::fanout::PersistedFanout;
use towpath_proto::push::xmpp::stream::{StreamErrorReason, StreamLimits, Received, StreamReader, read_one};
use towpath_proto::follow::Now;

const OPEN: &[u8] = b"<stream:stream xmlns:stream='http://etherx.jabber.org/streams' \
    xmlns='jabber:component:accept' id='1'><handshake/>";

fn read(body: &[u8], size: usize) -> Result<Vec<Received>, StreamErrorReason> {
    let limits = StreamLimits { stanza_bytes: 400, depth: 6, attributes: 6, nodes: 30 };
    let mut reader = StreamReader::new(limits);
    let mut all = Vec::new();
    for piece in OPEN.chunks(OPEN.len()).chain(body.chunks(size)) {
        reader.push(piece);
        while let Some(received) = reader.poll().map_err(|fault| fault.reason)? {
            all.push(received);
        }
    }
    Ok(all)
}

fn ask(body: &[u8]) {
    let settings = ComponentSettings {
        jid: "feeds.example.com".into(),
        secret: "secret".into(),
        stanza_bytes: 64 << 10,
        subscriptions: 10,
        account_subscriptions: 3,
    };
    let now = Timestamp::UNIX_EPOCH;
    let mut component = Component::new(settings, PersistedFanout::default());
    assert!(component.poll_connect(Now::simulated(now)));
    component.handle_connected(Now::simulated(now));
    component.handle_bytes(Now::simulated(now), OPEN);
    component.handle_bytes(Now::simulated(now), body);
    let mut output = String::new();
    loop {
        while let Some((id, question)) = component.poll_store_request() {
            let answer = match question {
                StoreRequest::Page(..) | StoreRequest::Items(..) => {
                    StoreResponse::Page(Err(StoreRequestError::NoFeed))
                }
                StoreRequest::Feeds(..) => StoreResponse::Feeds(Vec::new(), 0),
                StoreRequest::Keep(..) | StoreRequest::Forget(_) => StoreResponse::Written(Ok(())),
            };
            component.handle_store_response(Now::simulated(now), id, answer);
        }
        let Some(more) = component.poll_output(Now::simulated(now)) else { break };
        output.push_str(&more);
    }
    // The component's output must parse by the strict rules of its own parser.
    let mut server = StreamReader::new(StreamLimits::default());
    server.push(output.as_bytes());
    while let Some(received) = server.poll().expect("a stream") {
        if received == Received::Closed {
            break;
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((size, body)) = bytes.split_first() else { return };
    let whole = read(body, body.len().max(1));
    assert_eq!(whole, read(body, usize::from(*size).max(1)));
    for stanza in whole.into_iter().flatten().filter_map(Received::stanza) {
        assert_eq!(read_one(&stanza.to_xml()), Ok(stanza));
    }
    ask(body);
});
