//! The cases.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(missing_docs, reason = "the names of the cases say it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use towpath_client::sink::{SinkNotice, SinkObserver, SinkOptions, SinkWriter};
use towpath_client::{Sink, SinkBatch, SinkEvent};
use towpath_proto::{Content, Op};

use super::SinkFixture;
use super::model::{Model, batch};
use super::samples::{HOSTILE_IDS, delete, followed, item, patch, put, reset};

/// Notices of a writer.
#[derive(Default)]
struct Notices(Mutex<Vec<SinkNotice>>);

impl SinkObserver for Notices {
    fn notice(&self, _: &str, notice: SinkNotice) {
        self.0.lock().unwrap().push(notice);
    }
}

/// Opens the sink for its sources, and returns its writer.
async fn writer(fixture: &mut impl SinkFixture, sources: &[&str]) -> (SinkWriter, Arc<Notices>) {
    let sink: Box<dyn Sink> = fixture.sink().await;
    let notices = Arc::new(Notices::default());
    // A receiver whose sender is gone never stops.
    let stop = watch::channel(false).1;
    let mut writer = SinkWriter::new(sink, SinkOptions::default(), notices.clone(), stop);
    for source in sources {
        writer.open(source).await.unwrap();
    }
    (writer, notices)
}

/// Applies batches of one source, and compares the destination with the model.
async fn apply(fixture: &mut impl SinkFixture, model: &mut Model, batches: Vec<SinkBatch>) {
    let source = batches[0].source.clone();
    let (mut writer, _) = writer(fixture, &[&source]).await;
    for batch in batches {
        model.apply(&batch.events);
        writer.write(batch).await.unwrap();
    }
    writer.close().await.unwrap();
    drop(writer);
    compare(fixture, model).await;
}

async fn compare(fixture: &mut impl SinkFixture, model: &Model) {
    let items = fixture.items().await;
    let ids = |items: &super::LiveItems| items.keys().cloned().collect::<Vec<_>>();
    assert_eq!(ids(&items), ids(&model.items));
    for (key, item) in &model.items {
        assert_eq!(&items[key], item, "{key:?}");
    }
    if let Some(history) = fixture.history().await {
        assert_eq!(history, model.history);
    }
}

pub async fn changes_become_the_current_state(fixture: &mut impl SinkFixture) {
    let mut bare = item("bare", "");
    bare = towpath_proto::Item::new(bare.id);
    let mut bytes = item("bytes", "");
    bytes.content = Some(Content::new("image/png", vec![0x89, 0xff, 0x00, 0x01]));
    let mut nul = item("nul", "");
    nul.title = Some("a\0b".into());
    nul.content = Some(Content::new("text/plain", "a\0b"));
    let change = |item, position| SinkEvent::Change(Box::new(followed("f", Op::Put, item, position)));
    let mut batches = vec![
        batch("s", vec![put("f", "a", "1", 1), put("f", "b", "1", 2), change(bare, 3)], Some(3)),
        batch("s", vec![put("f", "a", "2", 4), delete("f", "b", 5), delete("f", "never", 6)], Some(6)),
        batch("s", vec![change(bytes, 7), put("f", "c", "1", 8), delete("f", "c", 9)], Some(9)),
        batch("s", vec![put("f", "c", "again", 10), put("f", "c", "and again", 11)], None),
        batch("s", vec![], Some(11)),
    ];
    if fixture.takes_nul() {
        batches.push(batch("s", vec![change(nul, 12)], Some(12)));
    }
    apply(fixture, &mut Model::default(), batches).await;
}

pub async fn a_patch_applies_to_the_held_item(fixture: &mut impl SinkFixture) {
    let batches = vec![
        batch("s", vec![put("f", "a", "1", 1)], Some(1)),
        batch("s", vec![patch("f", "a", r#"{"text":"2","new":[1]}"#, 2)], Some(2)),
        batch("s", vec![put("f", "b", "1", 3), patch("f", "b", r#"{"text":null}"#, 4)], Some(4)),
    ];
    apply(fixture, &mut Model::default(), batches).await;
}

pub async fn a_reset_removes_the_items_of_its_feed(fixture: &mut impl SinkFixture) {
    let mut model = Model::default();
    apply(fixture, &mut model, vec![batch("t", vec![put("other", "a", "1", 1)], Some(1))]).await;
    let batches = vec![
        batch("s", vec![put("f", "a", "1", 1), put("f", "b", "1", 2)], Some(2)),
        batch("s", vec![put("f", "c", "1", 3), reset("f"), put("f", "d", "1", 1)], Some(1)),
        batch("s", vec![reset("f"), reset("f")], Some(0)),
        batch("s", vec![put("f", "a", "anew", 1)], Some(1)),
    ];
    apply(fixture, &mut model, batches).await;
}

pub async fn several_sources_share_the_destination(fixture: &mut impl SinkFixture) {
    let (mut writer, _) = writer(fixture, &["s", "t"]).await;
    let mut model = Model::default();
    for number in 1..=4 {
        for (source, feed) in [("s", "f"), ("t", "g"), ("t", "h")] {
            let text = format!("{feed}{number}");
            let events = vec![put(feed, "same", &text, number), put(feed, &text, &text, number)];
            let batch = batch(source, events, Some(number));
            model.apply(&batch.events);
            writer.write(batch).await.unwrap();
        }
    }
    writer.close().await.unwrap();
    drop(writer);
    compare(fixture, &model).await;
    let mut sink = fixture.sink().await;
    if sink.keeps_checkpoint() {
        assert_eq!(sink.open("s").await.unwrap().as_deref(), Some(&b"4"[..]));
        assert_eq!(sink.open("nobody").await.unwrap(), None);
    }
}

pub async fn a_new_process_resumes_at_the_checkpoint(fixture: &mut impl SinkFixture) {
    let mut model = Model::default();
    for number in 1..=3 {
        let mut sink = fixture.sink().await;
        let held = sink.open("s").await.unwrap();
        if sink.keeps_checkpoint() {
            let expected = (number > 1).then(|| (number - 1).to_string().into_bytes());
            assert_eq!(held, expected);
        }
        drop(sink);
        let batches = vec![batch("s", vec![put("f", &number.to_string(), "x", number)], Some(number))];
        apply(fixture, &mut model, batches).await;
    }
}

pub async fn a_repeated_unit_takes_effect_once(fixture: &mut impl SinkFixture) {
    let mut model = Model::default();
    apply(fixture, &mut model, vec![batch("s", vec![put("f", "a", "1", 1)], Some(1))]).await;
    let first = vec![put("f", "b", "1", 2), delete("f", "a", 3), put("f", "c", "1", 4)];
    // Two processes are killed in the unit, the first of them without any batch applied.
    for parts in 0..=2 {
        let (mut writer, _) = writer(fixture, &["s"]).await;
        for event in first.iter().take(parts) {
            writer.write(batch("s", vec![event.clone()], None)).await.unwrap();
        }
    }
    let held = fixture.sink().await.open("s").await.unwrap();
    if let Some(held) = held {
        assert_eq!(held, b"1", "an unfinished unit has moved the position");
    }
    apply(
        fixture,
        &mut model,
        vec![batch("s", first, Some(4)), batch("s", vec![delete("f", "a", 3)], Some(5))],
    )
    .await;
}

/// The position of an entry of Atom or RSS is that of its document, which may have changed until a unit comes again.
pub async fn a_newer_version_at_one_position_is_kept(fixture: &mut impl SinkFixture) {
    let (older, newer) = (put("f", "a", "older", 1), put("f", "a", "a newer version", 1));
    let mut model = Model::default();
    let (mut writer, _) = writer(fixture, &["s"]).await;
    // Killed within the unit.
    writer.write(batch("s", vec![older.clone()], None)).await.unwrap();
    drop(writer);
    model.apply(&[older]);
    apply(fixture, &mut model, vec![batch("s", vec![newer], Some(1))]).await;
}

pub async fn refused_items_are_set_aside(fixture: &mut impl SinkFixture) {
    let Some(poison) = fixture.poison() else { return };
    let (mut writer, notices) = writer(fixture, &["s"]).await;
    let mut model = Model::default();
    let rest = [put("f", "a", "1", 1), put("f", "b", "1", 3)];
    let [before, after] = rest.clone();
    let events = vec![before, SinkEvent::Change(Box::new(poison.clone())), after];
    writer.write(batch("s", events, Some(3))).await.unwrap();
    model.apply(&rest);
    writer.close().await.unwrap();
    drop(writer);
    compare(fixture, &model).await;
    let named =
        |notice: &SinkNotice| matches!(notice, SinkNotice::SetAside { id, .. } if *id == poison.item.id);
    assert!(notices.0.lock().unwrap().iter().any(named), "{:?}", notices.0.lock().unwrap());
    assert_eq!(fixture.refused().await, 1);
}

pub async fn an_unavailable_destination_loses_nothing(fixture: &mut impl SinkFixture) {
    let mut model = Model::default();
    let (mut writer, notices) = writer(fixture, &["s"]).await;
    let first = batch("s", vec![put("f", "a", "1", 1)], Some(1));
    model.apply(&first.events);
    writer.write(first).await.unwrap();
    if !fixture.set_available(false).await {
        return;
    }
    let second = batch("s", vec![put("f", "b", "1", 2), delete("f", "a", 3)], Some(3));
    model.apply(&second.events);
    let writing = tokio::spawn(async move {
        writer.write(second).await.unwrap();
        writer.close().await.unwrap();
    });
    let seen = async {
        while notices.0.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), seen).await.expect("the operator is told");
    assert!(!writing.is_finished());
    assert!(fixture.set_available(true).await);
    tokio::time::timeout(Duration::from_secs(60), writing).await.expect("it goes on by itself").unwrap();
    compare(fixture, &model).await;
}

pub async fn huge_items_are_kept(fixture: &mut impl SinkFixture) {
    let mut huge = item("huge", "");
    huge.content = Some(Content::new("text/plain", "x".repeat(20 << 20)));
    let change = SinkEvent::Change(Box::new(followed("f", Op::Put, huge, 2)));
    let events = vec![put("f", "a", "1", 1), change, put("f", "b", "1", 3)];
    apply(fixture, &mut Model::default(), vec![batch("s", events, Some(3))]).await;
}

pub async fn hostile_ids_are_kept_apart(fixture: &mut impl SinkFixture) {
    let (long, longer) = ("x".repeat(2048), format!("{}y", "x".repeat(2047)));
    let ids = HOSTILE_IDS.into_iter().chain([long.as_str(), &longer]);
    let ids: Vec<&str> = ids.filter(|id| fixture.takes_nul() || !id.contains('\0')).collect();
    let feeds = ["../f", "F", "f", "con", "http://example.com/feeds/x?y=1"];
    let mut events = Vec::new();
    for feed in feeds {
        let first = events.len() as u64;
        events.extend(ids.iter().zip(first..).map(|(id, position)| put(feed, id, "1", position)));
    }
    let count = events.len() as u64;
    let removed = ids.iter().step_by(2).map(|id| delete("F", id, count)).collect();
    let batches = vec![batch("s", events, Some(count)), batch("s", removed, Some(count + 1))];
    apply(fixture, &mut Model::default(), batches).await;
}

/// A small generator of numbers, so that a failure can be repeated.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        // Numbers of Knuth's MMIX; the low bits are poor.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

pub async fn random_histories_with_kills_end_in_the_model(fixture: &mut impl SinkFixture) {
    let mut numbers = Numbers(7);
    let mut model = Model::default();
    let (mut position, mut unit): (u64, Vec<SinkEvent>) = (0, Vec::new());
    for _ in 0..25 {
        // Half of the units come a second time, after a kill within them.
        if unit.is_empty() {
            for _ in 0..numbers.below(40) {
                position += 1;
                let (feed, id) = (["f", "g"][numbers.below(2) as usize], numbers.below(15).to_string());
                unit.push(match numbers.below(20) {
                    0 => reset(feed),
                    1..=5 => delete(feed, &id, position),
                    _ => put(feed, &id, &position.to_string(), position),
                });
            }
        }
        let (mut writer, _) = writer(fixture, &["s"]).await;
        let is_killed = numbers.below(2) == 0;
        let part = if is_killed { numbers.below(unit.len() as u64 + 1) as usize } else { unit.len() };
        // A batch that was applied and not covered by a checkpoint.
        if part > 0 {
            writer.write(batch("s", unit[..part].to_vec(), None)).await.unwrap();
        }
        if !is_killed {
            writer.write(batch("s", Vec::new(), Some(position))).await.unwrap();
            model.apply(&unit);
            unit.clear();
            writer.close().await.unwrap();
        }
    }
    apply(fixture, &mut model, vec![batch("s", unit, Some(position + 1))]).await;
    let count = model.history.iter().fold(BTreeMap::new(), |mut count: BTreeMap<_, usize>, entry| {
        *count.entry((&entry.1, &entry.3)).or_default() += 1;
        count
    });
    // The model itself has each position once; resets have none.
    assert!(count.iter().all(|((op, _), count)| *count == 1 || op.as_str() == "reset"));
}
