//! A server's stream to the component: the first byte says how the rest is cut, which must not matter. What is read
//! can be written and read again, and whatever is asked is answered or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::Timestamp;
use towpath_proto::push::xmpp::component::{Answer, Component, Question, Settings, Unanswered};
use towpath_proto::push::xmpp::fanout::Kept;
use towpath_proto::push::xmpp::stream::{Fault, Limits, Received, StreamReader, read_one};

const OPEN: &[u8] = b"<stream:stream xmlns:stream='http://etherx.jabber.org/streams' \
    xmlns='jabber:component:accept' id='1'><handshake/>";

fn read(body: &[u8], size: usize) -> Result<Vec<Received>, Fault> {
    let limits = Limits { stanza_bytes: 400, depth: 6, attributes: 6, nodes: 30 };
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
    let settings = Settings {
        jid: "feeds.example.com".into(),
        secret: "secret".into(),
        stanza_bytes: 64 << 10,
        subscriptions: 10,
        account_subscriptions: 3,
    };
    let now = Timestamp::UNIX_EPOCH;
    let mut component = Component::new(settings, Kept::default());
    assert!(component.poll_connect(now));
    component.handle_connected(now);
    component.handle_bytes(now, OPEN);
    component.handle_bytes(now, body);
    let mut output = String::new();
    loop {
        while let Some((id, question)) = component.poll_question() {
            let answer = match question {
                Question::Page(..) => Answer::Page(Err(Unanswered::NoFeed)),
                Question::Feeds(..) => Answer::Feeds(Vec::new(), 0),
                Question::Keep(..) | Question::Forget(_) => Answer::Written(Ok(())),
            };
            component.handle_answer(now, id, answer);
        }
        let Some(more) = component.poll_output(now) else { break };
        output.push_str(&more);
    }
    // What the component says is a stream as strict as the one that it reads.
    let mut server = StreamReader::new(Limits::default());
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
