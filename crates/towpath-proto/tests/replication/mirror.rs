//! Publish, follow, publish again: the same items, and in a mirror the same entities.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Map, Value};
use towpath_proto::change::{Change, Op};
use towpath_proto::follow::{Followed, StartFrom};
use towpath_proto::format::multipart::{
    ContentType, Entity, EntityReader, HeaderLimits, MultipartToken, Parser,
};
use towpath_proto::item::{Author, Content, Item};
use towpath_proto::replication::entity::{feed_entity, same_headers};
use towpath_proto::replication::pages::PageLimits;
use towpath_proto::replication::{publish, wire};

use crate::consumer::{RecordingConsumer, ResponseDelivery, follow_once, once};
use crate::publisher::{BASE, MemoryPublisher, StoredResponse, item, time};

fn any_text() -> impl Strategy<Value = String> {
    // What ends a line or a page for a careless parser.
    prop_oneof!["[ -~]{0,12}", "\\PC{0,6}", Just("\r\n--B\u{7f}\u{2028}é😀".to_owned())]
}

/// Texts of which some are too long for headers.
fn long_text() -> impl Strategy<Value = String> {
    // Some exceed the 64 KiB at which an item's fields move into the body.
    prop_oneof![9 => any_text(), 1 => ("[ -~é\n]{1,3}", 1..90_000usize).prop_map(|(text, n)| text.repeat(n))]
}

fn any_item() -> impl Strategy<Value = Item> {
    let media_type = prop_oneof![
        4 => Just("text/plain".to_owned()),
        4 => Just("text/html; charset=\"x\"".to_owned()),
        1 => Just(String::new()),
        1 => Just(" a\nb".to_owned()),
        // The media type of our own form, which the item must not be taken for.
        1 => Just(wire::IN_BODY_TYPE.to_owned()),
        // Publishing limits media types; those of sources and mirrors are kept at any length.
        1 => (1..80_000usize).prop_map(|n| format!("a/{}", "b".repeat(n))),
    ];
    let content = prop::option::of((media_type, prop::collection::vec(any::<u8>(), 0..40)));
    let optional = || prop::option::of(long_text());
    let times = (prop::option::of(0..2_000_000_000_000i64), any::<bool>());
    let tags = prop::collection::vec(long_text(), 0..3);
    let more = (optional(), tags, times, any::<bool>());
    ((any_text(), optional(), optional(), optional()), content, more).prop_map(
        |((id, url, title, summary), content, (author, tags, (published, updated), with_extra))| {
            let published = published.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
            let mut extra = Map::new();
            if with_extra {
                extra.insert("xml".into(), Value::from(vec!["<a:b xmlns:a=\"é\"/>"]));
            }
            Item {
                id: format!("i{id}"),
                url,
                title,
                summary,
                content: content.map(|(media_type, bytes)| Content::new(media_type, bytes)),
                authors: author.into_iter().map(Author::named).collect(),
                tags,
                published,
                updated: published.filter(|_| updated),
                extra,
            }
        },
    )
}

/// Appends followed changes to a new publisher, as a mirror does.
fn mirror(told: &[Followed]) -> MemoryPublisher {
    // Other pages than the publisher's: entities must not depend on them.
    let mut mirror = MemoryPublisher::new(PageLimits { bytes: 300, entities: 5 });
    for followed in told {
        let change = mirror.append(followed.op, followed.item.clone(), followed.modified.unwrap());
        change.patch.clone_from(&followed.patch);
        change.entry_id.clone_from(&followed.entry_id);
    }
    mirror.seal();
    mirror
}

fn entities(publisher: &MemoryPublisher) -> Vec<Entity> {
    publisher.log.iter().map(|change| feed_entity(&publisher.feed, change)).collect()
}

fn assert_same_entities(one: &[Entity], other: &[Entity]) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        assert!(same_headers(&one.headers, &other.headers), "{one:?}\n{other:?}");
        assert_eq!(one.body, other.body);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn publish_follow_publish(items in prop::collection::vec((any_item(), 0..4u8), 1..12)) {
        let mut publisher = MemoryPublisher::new(PageLimits { bytes: 60, entities: 3 });
        for (second, (item, op)) in items.into_iter().enumerate() {
            // Two changes share each second.
            let now = time(second as i64 / 2);
            match op {
                0 => publisher.append(Op::Delete, Item::new(item.id), now),
                1 => {
                    let change = publisher.append(Op::Patch, item, now);
                    change.patch = Some(Content::new("application/merge-patch+json", "{\"a\":null}"));
                    change
                }
                _ => publisher.append(Op::Put, item, now),
            };
        }
        publisher.seal();
        let consumer = follow_once(&publisher, StartFrom::Beginning, None);
        consumer.assert_calm();
        prop_assert_eq!(consumer.told.len(), publisher.log.len());
        for (told, change) in consumer.told.iter().zip(&publisher.log) {
            prop_assert_eq!(told.op, change.op);
            prop_assert_eq!(&told.item.id, &change.item.id);
            // Deletions and patches do not carry the item.
            if change.op == Op::Put {
                prop_assert_eq!(&told.item, &change.item);
            }
            prop_assert_eq!(&told.patch, &change.patch);
            // Entities of our own form need no stored headers.
            let entry_id = Some(format!("<{}@news>", change.seq));
            prop_assert_eq!(&told.entry_id, &entry_id);
        }
        let second = mirror(&consumer.told);
        assert_same_entities(&entities(&publisher), &entities(&second));
        let third = mirror(&follow_once(&second, StartFrom::Beginning, None).told);
        assert_same_entities(&entities(&publisher), &entities(&third));
    }
}

/// The text's own example of a feed page, and entities in other forms than ours.
#[test]
fn page_format_entities_of_other_publishers_pass_through_a_mirror_unchanged() {
    for page in [
        include_str!("../data/replication/feed-page.txt"),
        include_str!("../data/replication/foreign-page.txt"),
    ] {
        let page = page.strip_suffix('\n').unwrap();
        let content_type = ContentType { boundary: "<random-boundary>".into() };
        let mut reader = EntityReader::new(&content_type, 1000).unwrap();
        reader.push(Bytes::from(page.to_owned()));
        let mut originals = Vec::new();
        while let Some(entity) = reader.poll_entity().unwrap() {
            originals.push(entity);
        }
        let mut headers = http::HeaderMap::new();
        let lines = [
            ("content-type", "multipart/mixed; boundary=<random-boundary>"),
            ("last-modified", "Mon, 27 Nov 2023 03:10:00 GMT"),
            ("link", "https://pub.example/feeds/news/replication;rel=self"),
        ];
        for (name, value) in lines {
            headers.append(name, value.parse().unwrap());
        }
        let mut consumer = RecordingConsumer::default();
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, once());
        consumer.drive(&mut follower, time(0), |_| {
            let body = Bytes::from(page.to_owned());
            // A few bytes at a time, so that every delimiter is cut.
            (StoredResponse { status: 200, headers: headers.clone(), body }, ResponseDelivery::Pieces(7))
        });
        consumer.assert_calm();
        assert_same_entities(&originals, &entities(&mirror(&consumer.told)));
        let again = follow_once(&mirror(&consumer.told), StartFrom::Beginning, None);
        assert_same_entities(&originals, &entities(&mirror(&again.told)));
    }
}

fn header_len(entity: &Entity) -> usize {
    entity.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum()
}

/// Returns a publisher of a single item with a title of this length.
fn titled(bytes: usize) -> MemoryPublisher {
    let mut publisher = MemoryPublisher::of(1);
    let title = Some("t".repeat(bytes));
    publisher.append(Op::Put, Item { title, ..item("a", "the\ncontent") }, time(0));
    publisher
}

#[test]
fn page_format_an_item_too_long_for_headers_is_in_the_body() {
    let limits = HeaderLimits { bytes: 64 << 10, count: 128 };
    let is_in_body = |bytes| {
        let publisher = titled(bytes);
        let page = publish::page(&publisher.feed, 1, &publisher.log).unwrap();
        let boundary = ContentType::parse(&page.content_type).unwrap().boundary;
        let mut parser = Parser::with_limits(&boundary, limits).unwrap();
        parser.push(page.body);
        while parser.poll_token().unwrap() != Some(MultipartToken::End) {}
        let consumer = follow_once(&publisher, StartFrom::Beginning, None);
        consumer.assert_calm();
        assert_eq!(consumer.told[0].item, publisher.log[0].item);
        entities(&publisher)[0].headers.get(wire::ITEM) == Some(wire::IN_BODY)
    };
    // Up to the limit the form is unchanged, so that sealed pages keep their bytes.
    let longest = (64 << 10) - (header_len(&entities(&titled(0))[0]) + 2);
    assert!(!is_in_body(longest));
    assert!(is_in_body(longest + 1));
    let whole = &entities(&titled(longest + 1))[0];
    assert_eq!(whole.headers.get("content-type"), Some(wire::IN_BODY_TYPE));
    assert!(whole.body.starts_with(b"{\"id\":\"a\",") && whole.body.ends_with(b"}\nthe\ncontent"));
}

/// Earlier versions wrote headers of up to half a megabyte.
#[test]
fn page_format_an_item_in_a_long_header_passes_through_a_mirror_unchanged() {
    let mut publisher = titled(300_000);
    let form = format!("{{\"id\":\"a\",\"title\":\"{}\"}}", "t".repeat(300_000));
    let headers = "<1@old>\nOperation-Type: http-equiv=PUT\nContent-Type: text/plain\nContent-ID: <1@old>";
    let headers = format!("{headers}\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\nTowpath-Item: {form}");
    publisher.log[0].entry_id = Some(headers);
    assert_eq!(entities(&publisher)[0].body, "the\ncontent");
    let consumer = follow_once(&publisher, StartFrom::Beginning, None);
    consumer.assert_calm();
    assert_eq!(consumer.told[0].item, publisher.log[0].item);
    assert_same_entities(&entities(&publisher), &entities(&mirror(&consumer.told)));
}

#[test]
fn last_modified_a_mirror_never_lets_time_go_backwards() {
    let mut change: Change = MemoryPublisher::of(1).append(Op::Put, Item::new("a"), time(5)).clone();
    change.entry_id =
        Some("<1>\nContent-Type: a/b\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\nX: y".into());
    let entity = feed_entity(&MemoryPublisher::of(1).feed, &change);
    // The log's time, because the header's would go back.
    assert_eq!(entity.headers.get("last-modified"), Some("Tue, 14 Nov 2023 22:13:25 GMT"));
    assert_eq!(entity.headers.get("x"), Some("y"));
    assert_eq!(wire::parse_operation_type("PUT"), Ok(Op::Put));
}
