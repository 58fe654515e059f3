//! Publish, follow, publish again: the same items, and in a mirror the same entities.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::{Map, Value};
use towpath_proto::change::{Change, Op};
use towpath_proto::follow::{Followed, StartFrom};
use towpath_proto::format::multipart::{ContentType, Entity, EntityReader};
use towpath_proto::item::{Author, Content, Item};
use towpath_proto::replication::entity::{feed_entity, same_headers};
use towpath_proto::replication::pages::PageLimits;
use towpath_proto::replication::wire;

use crate::consumer::{Consumer, Way, follow_once, once};
use crate::publisher::{BASE, Publisher, Response, time};

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{0,12}", "\\PC{0,6}", Just("\r\n--B\u{7f}\u{2028}é😀".to_owned())]
}

fn any_item() -> impl Strategy<Value = Item> {
    let media_type =
        prop_oneof![Just("text/plain"), Just("text/html; charset=\"x\""), Just(""), Just(" a\nb")];
    let content = prop::option::of((media_type, prop::collection::vec(any::<u8>(), 0..40)));
    let optional = || prop::option::of(any_text());
    let times = (prop::option::of(0..2_000_000_000_000i64), any::<bool>());
    ((any_text(), optional(), optional(), optional()), content, (optional(), times, any::<bool>())).prop_map(
        |((id, url, title, summary), content, (author, (published, updated), with_extra))| {
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
                tags: vec![],
                published,
                updated: published.filter(|_| updated),
                extra,
            }
        },
    )
}

/// Appends what was followed, as a mirror's store does.
fn mirror(told: &[Followed]) -> Publisher {
    let mut mirror = Publisher::new(PageLimits { bytes: 300, entities: 5 });
    for followed in told {
        let change = mirror.append(followed.op, followed.item.clone(), followed.modified.unwrap());
        change.patch.clone_from(&followed.patch);
        change.entry_id.clone_from(&followed.entry_id);
    }
    mirror.seal();
    mirror
}

fn entities(publisher: &Publisher) -> Vec<Entity> {
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
        let mut publisher = Publisher::new(PageLimits { bytes: 60, entities: 3 });
        for (second, (item, op)) in items.into_iter().enumerate() {
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
            if change.op == Op::Put {
                prop_assert_eq!(&told.item, &change.item);
            }
            prop_assert_eq!(&told.patch, &change.patch);
            // Our own entities need no headers to be kept.
            let entry_id = Some(format!("<{}@news>", change.seq));
            prop_assert_eq!(&told.entry_id, &entry_id);
        }
        let second = mirror(&consumer.told);
        assert_same_entities(&entities(&publisher), &entities(&second));
        let third = mirror(&follow_once(&second, StartFrom::Beginning, None).told);
        assert_same_entities(&entities(&publisher), &entities(&third));
    }
}

/// The text's own example of a feed page, and entities that we would write otherwise.
#[test]
fn page_format_entities_of_other_publishers_go_through_a_mirror_as_they_are() {
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
        let mut consumer = Consumer::default();
        let mut follower = consumer.follower(BASE, StartFrom::Beginning, once());
        consumer.drive(&mut follower, time(0), |_| {
            let body = Bytes::from(page.to_owned());
            (Response { status: 200, headers: headers.clone(), body }, Way::Pieces(7))
        });
        consumer.assert_calm();
        assert_same_entities(&originals, &entities(&mirror(&consumer.told)));
        let again = follow_once(&mirror(&consumer.told), StartFrom::Beginning, None);
        assert_same_entities(&originals, &entities(&mirror(&again.told)));
    }
}

#[test]
fn last_modified_a_mirror_never_lets_time_go_backwards() {
    let mut change: Change = Publisher::of(1).append(Op::Put, Item::new("a"), time(5)).clone();
    change.entry_id =
        Some("<1>\nContent-Type: a/b\nLast-Modified: Tue, 14 Nov 2023 22:13:20 GMT\nX: y".into());
    let entity = feed_entity(&Publisher::of(1).feed, &change);
    assert_eq!(entity.headers.get("last-modified"), Some("Tue, 14 Nov 2023 22:13:25 GMT"));
    assert_eq!(entity.headers.get("x"), Some("y"));
    assert_eq!(wire::parse_operation_type("PUT"), Ok(Op::Put));
}
