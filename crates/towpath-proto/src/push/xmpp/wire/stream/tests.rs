//! Tests of streams: in pieces of any size, too large, malformed, hostile.

use proptest::prelude::*;

use crate::push::xmpp::wire::ns;
use crate::push::xmpp::wire::stanza::{Attribute, Element, ElementNode};
use crate::push::xmpp::wire::stream::{Received, StreamErrorReason, StreamLimits, StreamReader, read_one};

const OPEN: &str = "<?xml version='1.0'?><stream:stream xmlns:stream='http://etherx.jabber.org/streams' \
    xmlns='jabber:component:accept' id='1'>";

fn small() -> StreamLimits {
    StreamLimits { stanza_bytes: 200, depth: 4, attributes: 4, nodes: 10 }
}

/// Parses a stream in pieces of a given size.
fn read(bytes: &[u8], pieces: usize, limits: StreamLimits) -> Result<Vec<Received>, StreamErrorReason> {
    let mut reader = StreamReader::new(limits);
    let mut all = Vec::new();
    for piece in bytes.chunks(pieces.max(1)) {
        reader.push(piece);
        while let Some(received) = reader.poll().map_err(|fault| fault.reason)? {
            all.push(received);
        }
    }
    Ok(all)
}

fn stanzas(body: &str, limits: StreamLimits) -> Result<Vec<Received>, StreamErrorReason> {
    let whole = format!("{OPEN}{body}");
    let read_in = |pieces| read(whole.as_bytes(), pieces, limits).map(|mut all| all.split_off(1));
    let all = read_in(usize::MAX);
    for pieces in [1, 2, 3, 7, 64] {
        assert_eq!(read_in(pieces), all, "in pieces of {pieces}: {body:.200}");
    }
    all
}

#[test]
fn namespaces_entities_and_line_ends() {
    let body = "\n<iq type='get' xml:lang='en'><q xmlns='u:q' xmlns:p='u:p' p:a='1' a='&lt;&#x41;\t&quot;'>\
        <p:r/>a\r\nb&amp;<![CDATA[<&]]></q></iq> ";
    let received = stanzas(body, StreamLimits::default()).unwrap();
    let [Received::Stanza(iq)] = received.as_slice() else { panic!("{received:?}") };
    assert!(iq.is("iq", ns::COMPONENT));
    let query = iq.child("q", "u:q").unwrap();
    assert_eq!(query.attribute("a"), Some("<A \""));
    assert_eq!(query.attributes[0].ns.as_deref(), Some("u:p"));
    assert!(query.child("r", "u:p").is_some());
    assert_eq!(query.text(), "a\nb&<&");
}

/// RFC 6120, 11.1: restricted XML must be answered with restricted-xml.
#[test]
fn restricted_xml_is_refused() {
    for body in [
        "<!-- a -->",
        "<iq><!-- a --></iq>",
        "<?pi?>",
        "<iq><?xml version='1.0'?></iq>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]>",
        "<iq>&nbsp;</iq>",
        "<iq a='&b;'/>",
    ] {
        let fault = stanzas(body, StreamLimits::default()).unwrap_err();
        assert_eq!(fault.condition(), "restricted-xml", "{body}");
    }
}

/// RFC 6120, 11.3.
#[test]
fn what_is_not_well_formed_is_refused() {
    for body in [
        "text<iq/>",
        "<iq></message>",
        "<iq><a></iq></a>",
        "<a:iq/>",
        "<iq b:c='d'/>",
        "<iq a='1' a='2'/>",
        "<iq xmlns:p='u:a' xmlns:q='u:a' p:a='1' q:a='2'/>",
        "<iq xmlns:p='u:a' xmlns:p='u:b'/>",
        "<iq a=1/>",
        "<iq a='<'/>",
        "<iq>& </iq>",
        "<iq>&#0;</iq>",
        "<iq>\u{1}</iq>",
        "< iq/>",
        "<1/>",
        "<iq xmlns:xml='u:a'/>",
    ] {
        let fault = stanzas(body, StreamLimits::default()).unwrap_err();
        assert_eq!(fault.condition(), "not-well-formed", "{body}: {fault}");
    }
    let fault = read(&[OPEN.as_bytes(), b"<iq>\xff</iq>"].concat(), 5, StreamLimits::default()).unwrap_err();
    assert_eq!(fault.condition(), "unsupported-encoding");
}

/// A single sender's stanza is refused; all other stanzas still arrive.
#[test]
fn what_exceeds_a_limit_is_passed_over() {
    let nested = format!("{}{}", "<b>".repeat(9), "</b>".repeat(9));
    for large in [
        format!("<iq id='1'><a>{}</a><b><c/></b></iq>", "x".repeat(300)),
        format!("<iq id='1'><a><![CDATA[{}]]></a><b/></iq>", "x]]".repeat(300)),
        format!("<iq id='1'><a b='{}'/><b>c</b></iq>", "/>".repeat(300)),
        format!("<iq id='1'><a b='{}'><c/></a></iq>", "\"".repeat(300)),
        format!("<iq id='1'>{nested}</iq>"),
        format!("<iq id='1'>{}</iq>", "<a/>".repeat(11)),
        "<iq id='1'><a b='1' c='2' d='3' e='4' f='5'/></iq>".into(),
        format!("<iq id='1'>{}</iq>", "<a>bcd</a>".repeat(30)),
    ] {
        let received = stanzas(&format!("{large}<message/>"), small()).unwrap();
        let [Received::TooLarge(head), Received::Stanza(next)] = received.as_slice() else {
            panic!("{received:?} of {large:.60}")
        };
        assert_eq!((head.name.as_str(), head.attribute("id"), head.nodes.len()), ("iq", Some("1"), 0));
        assert!(next.is("message", ns::COMPONENT));
    }
    // Without a start tag there is no sender to respond to.
    let silent = format!("<iq a='{}'><b/></iq><iq a='{}'/><message/>", "x".repeat(300), "x".repeat(300));
    assert_eq!(stanzas(&silent, small()).unwrap().len(), 1);
}

#[test]
fn memory_stays_bounded_while_something_endless_comes() {
    for start in ["<iq><a>", "<iq><a b='", "<iq><![CDATA[", "<iq b='"] {
        let mut reader = StreamReader::new(small());
        reader.push(OPEN.as_bytes());
        reader.push(start.as_bytes());
        for _ in 0..1000 {
            reader.push(&[b'x'; 1000]);
            while let Ok(Some(_)) = reader.poll() {}
        }
        assert!(reader.buffered() < 3000, "{start}: {}", reader.buffered());
    }
}

#[test]
fn the_stream_ends_with_its_end_tag() {
    let whole = format!("{OPEN}<message/></stream:stream><message/>");
    let received = read(whole.as_bytes(), 10, StreamLimits::default()).unwrap();
    assert_eq!((received.len(), received.last()), (3, Some(&Received::Closed)));
    let header = format!("<stream a='{}'>", "x".repeat(300));
    assert_eq!(read(header.as_bytes(), 10, small()).unwrap_err().condition(), "policy-violation");
}

fn names() -> impl Strategy<Value = String> {
    "[a-c_é][a-c0-9.-]{0,3}"
}

fn texts() -> impl Strategy<Value = String> {
    "[ -~\u{9}\u{a}\u{d}é😀]{1,12}"
}

fn elements() -> impl Strategy<Value = Element> {
    let namespaces = prop_oneof![Just(""), Just("u:a"), Just("u:b&\""), Just(ns::CLIENT)];
    let attribute = (proptest::option::of(prop_oneof![Just("u:a"), Just(ns::XML)]), names(), texts());
    let attributes = proptest::collection::vec(attribute, 0..4);
    let leaf = (names(), namespaces, attributes).prop_map(|(name, ns, attributes)| {
        let mut element = Element::new(&name, ns);
        for (ns, name, value) in attributes {
            let attribute = Attribute { ns: ns.map(Into::into), name, value };
            if !element.attributes.iter().any(|a| a.name == attribute.name && a.ns == attribute.ns) {
                element.attributes.push(attribute);
            }
        }
        element
    });
    leaf.prop_recursive(4, 20, 4, |inner| {
        let node =
            prop_oneof![inner.clone().prop_map(ElementNode::Element), texts().prop_map(ElementNode::Text)];
        (inner, proptest::collection::vec(node, 0..4)).prop_map(|(mut element, nodes)| {
            for node in nodes {
                // Adjacent texts merge.
                match (element.nodes.last_mut(), node) {
                    (Some(ElementNode::Text(before)), ElementNode::Text(text)) => before.push_str(&text),
                    (_, node) => element.nodes.push(node),
                }
            }
            element
        })
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(element in elements(), pieces in 1_usize..50) {
        let whole = format!("{OPEN}{}", element.to_xml());
        // Elements without a namespace inherit the stream's.
        let read_alone = read_one(&element.to_xml()).unwrap();
        prop_assert_eq!(&read_alone, &element);
        let received = read(whole.as_bytes(), pieces, StreamLimits::default()).unwrap();
        prop_assert_eq!(received.len(), 2);
    }

    #[test]
    fn any_bytes_are_read_or_refused_alike_in_any_pieces(
        body in proptest::collection::vec(prop_oneof![
            Just("<iq>"), Just("</iq>"), Just("<a b='"), Just("'>"), Just("</a>"), Just("<![CDATA["), Just("]]>"),
            Just("<!--"), Just("&lt;"), Just("&"), Just("\""), Just("<message/>"), Just("x"), Just(">"), Just("/"),
            Just("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"), Just("</stream:stream>"), Just(" "),
        ], 0..40),
        pieces in 1_usize..9,
    ) {
        let whole = format!("{OPEN}{}", body.concat());
        let at_once = read(whole.as_bytes(), usize::MAX, small());
        prop_assert_eq!(read(whole.as_bytes(), pieces, small()), at_once);
    }

    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes, 3, small());
        let _ = read(&[OPEN.as_bytes(), &bytes].concat(), 3, small());
    }
}
