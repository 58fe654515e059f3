//! Those who wait for a feed to move: one answer for all who wait for the same, which is what each would get alone.

use std::collections::HashMap;

use proptest::prelude::*;

use super::cursor::CursorKind;
use super::filter::{Filter, FilterView};
use super::memory::MemoryLog;
use super::pull::{Page, Pull, Step};
use super::query::PullQuery;
use super::spec::{By, Order};
use super::tests::{log, settings, time};
use crate::change::{Change, NewChange, Seq};
use crate::item::Item;

/// A log, perhaps seen through a filter.
struct World {
    log: MemoryLog,
    view: Option<FilterView>,
    kind: CursorKind,
    clock: i64,
}

enum Got {
    Page(Page),
    /// Nothing yet: this is what is to be answered when the log has moved.
    Waits(PullQuery),
}

impl World {
    fn of(log: MemoryLog) -> Self {
        Self { log, view: None, kind: CursorKind::Sequence, clock: 100 }
    }

    fn ask(&mut self, query: PullQuery) -> Got {
        let mut pull = Pull::new(query, &settings(self.kind), time(self.clock));
        let mut step = pull.begin();
        loop {
            step = match step {
                Step::Read(read) => pull.handle_answer(self.log.answer(&read), self.view.as_ref()).unwrap(),
                Step::Wait { .. } => return Got::Waits(pull.waiting_query()),
                Step::Page(page) => return Got::Page(*page),
            };
        }
    }

    fn parse(&self, query: &str) -> PullQuery {
        PullQuery::parse(query, &settings(self.kind).limits).unwrap()
    }

    fn waits(&mut self, query: &str) -> PullQuery {
        match self.ask(self.parse(query)) {
            Got::Waits(query) => query,
            Got::Page(page) => panic!("{query}: {page:?}"),
        }
    }

    fn page(&mut self, query: PullQuery) -> Vec<String> {
        match self.ask(query) {
            Got::Page(page) => page.changes.into_iter().map(|change| change.item.id).collect(),
            Got::Waits(query) => panic!("{query:?} still waits"),
        }
    }

    fn append(&mut self, change: NewChange) {
        self.log.append(change, time(self.clock));
        if let Some(view) = &mut self.view {
            view.take_in(&self.log.changes);
        }
    }
}

/// "Hold the request open until data becomes available": who waits for a time to come keeps nobody else waiting, and
/// is not answered with what comes before it ("results MUST be inclusive", of that time and later ones only).
#[test]
fn a_time_to_come_is_waited_for_apart() {
    for order in ["modified", "created"] {
        let mut world = World::of(log(&[("a", 10)]));
        let cursor =
            settings(world.kind).tag.cursor(if order == "created" { By::Created } else { By::Modified }, 1);
        let behind = world.waits(&format!("order={order}&since=cursor:{cursor}"));
        for ahead in ["9999999999", "104"] {
            let late = world.waits(&format!("order={order}&since=time:{ahead}"));
            assert_ne!(late, behind);
            assert_eq!(late, world.waits(&format!("order={order}&since=cursor:{ahead}_0_1")), "as its time");
        }
        let (soon, late) = (
            world.waits(&format!("order={order}&since=time:104")),
            world.waits(&format!("order={order}&since=time:200")),
        );
        world.append(NewChange::put(Item::new("b")));
        assert_eq!(world.page(behind), ["b"]);
        assert!(matches!(world.ask(soon.clone()), Got::Waits(query) if query == soon));
        world.clock = 104;
        world.append(NewChange::put(Item::new("c")));
        assert_eq!(world.page(soon), ["c"]);
        assert!(matches!(world.ask(late.clone()), Got::Waits(query) if query == late));
    }
}

/// Whoever has seen everything waits for the same, however he said so, and for however long.
#[test]
fn those_at_the_end_share_one_answer() {
    let mut world = World::of(log(&[("a", 10), ("b", 10), ("a", 20)]));
    let cursor = settings(world.kind).tag.cursor(By::Created, 2);
    let first = world.waits(&format!("order=created&since=cursor:{cursor}"));
    let crc = crc32fast::hash(b"a_b");
    for same in ["since=id:b&timeout=7".to_owned(), format!("since=cursor:10_1_{crc}&timeout=300")] {
        assert_eq!(world.waits(&format!("order=created&{same}")), first, "{same}");
    }
    for other in ["since=id:b&max=3", "since=id:b&callback=f", "since=id:b&x=y"] {
        assert_ne!(world.waits(&format!("order=created&{other}")), first, "{other}");
    }
    // What a filter hides from everybody makes no difference.
    let mut world = World::of(log(&[("a", 10), ("b", 20)]));
    let mut view = FilterView::new(Filter { tags: vec!["x".into()], ..Filter::default() }, Box::new(|_| 0.0));
    view.take_in(&world.log.changes);
    world.view = Some(view);
    assert_eq!(world.waits("since=time:20"), world.waits(""));
}

/// Where somebody's range begins, whatever happens to the log.
#[derive(Debug, Clone, Copy)]
enum Start {
    After(Seq),
    From(i64),
}

/// Somebody who waits, and what there is for him.
#[derive(Debug)]
struct Waiter {
    order: Order,
    max: usize,
    start: Start,
}

impl Waiter {
    fn expects(&self, world: &World) -> Vec<Change> {
        let by = self.order.by;
        let within = |change: &Change| match self.start {
            Start::After(position) => by.position(change) > position,
            Start::From(seconds) => by.time(change) >= time(seconds),
        };
        let show = |change: Change| match &world.view {
            Some(view) => view.show(change),
            None => Some(change),
        };
        let items = world.log.items(by).into_iter().filter(within);
        items.filter_map(show).take(self.max).collect()
    }
}

#[derive(Debug, Clone)]
enum Deed {
    /// The item, what happens to it, and how many seconds after the last.
    Append(u8, &'static str, i64),
    /// By creation, how many, and from where.
    Join(bool, usize, From),
}

#[derive(Debug, Clone, Copy)]
enum From {
    Beginning,
    /// Behind what is there.
    Last,
    /// So many seconds from now.
    Time(i64),
    /// A cursor with a time that is to come.
    FutureCursor(i64),
}

fn deed() -> impl Strategy<Value = Deed> {
    let from = prop_oneof![
        Just(From::Beginning),
        Just(From::Last),
        Just(From::Last),
        (-4..8_i64).prop_map(From::Time),
        (1..8_i64).prop_map(From::FutureCursor),
    ];
    prop_oneof![
        (0..5_u8, prop_oneof![Just("x"), Just("y"), Just("-")], 0..3_i64)
            .prop_map(|(item, what, later)| Deed::Append(item, what, later)),
        (any::<bool>(), prop_oneof![Just(1_usize), Just(50)], from)
            .prop_map(|(created, max, from)| Deed::Join(created, max, from)),
    ]
}

/// What a waiter asks in words, and where that begins; `None` where there is no such place yet.
fn words(world: &mut World, order: Order, from: From) -> Option<(String, Start)> {
    Some(match from {
        From::Beginning => (String::new(), Start::After(0)),
        From::Last => {
            let query = world.parse(&format!("order={order}&timeout=0&max=1000"));
            let Got::Page(page) = world.ask(query) else { panic!("it is not to wait") };
            let position = order.by.position(page.changes.last()?);
            (format!("&since=cursor:{}", page.last_cursor?), Start::After(position))
        }
        From::Time(offset) => {
            let from = world.clock + offset;
            (format!("&since=time:{from}"), Start::From(from))
        }
        From::FutureCursor(offset) => {
            let from = world.clock + offset;
            (format!("&since=cursor:{from}_0_1"), Start::From(from))
        }
    })
}

proptest! {
    /// However many join in whatever order, and whoever asks for all: everybody gets what there is for him, as soon
    /// as it is there, and nothing else.
    #[test]
    fn every_answer_is_what_its_client_would_get_alone(
        deeds in prop::collection::vec(deed(), 1..50),
        toc: bool,
        filtered: bool,
    ) {
        let mut world = World::of(MemoryLog::default());
        world.kind = if toc { CursorKind::Toc } else { CursorKind::Sequence };
        let filter = Filter { tags: vec!["x".into()], ..Filter::default() };
        world.view = filtered.then(|| FilterView::new(filter, Box::new(|_| 0.0)));
        let mut groups: HashMap<PullQuery, Vec<Waiter>> = HashMap::new();
        for deed in deeds {
            match deed {
                Deed::Append(item, what, later) => {
                    world.clock += later;
                    let id = format!("i{item}");
                    let new = match what {
                        "-" if world.log.latest(&id).is_none() => continue,
                        "-" => NewChange::delete(id.as_str()),
                        tag => NewChange::put(Item { tags: vec![tag.into()], ..Item::new(id) }),
                    };
                    world.append(new);
                    for (query, waiters) in std::mem::take(&mut groups) {
                        let told = match world.ask(query.clone()) {
                            Got::Page(page) => page.changes,
                            Got::Waits(_) => Vec::new(),
                        };
                        for waiter in &waiters {
                            prop_assert_eq!(&waiter.expects(&world), &told, "{:?} by {:?}", waiter, query);
                        }
                        if told.is_empty() {
                            groups.insert(query, waiters);
                        }
                    }
                }
                Deed::Join(created, max, from) => {
                    let by = if created { By::Created } else { By::Modified };
                    let order = Order { by, descending: false };
                    let Some((since, start)) = words(&mut world, order, from) else { continue };
                    let waiter = Waiter { order, max, start };
                    let query = world.parse(&format!("order={order}&max={max}{since}"));
                    let expected = waiter.expects(&world);
                    match world.ask(query) {
                        Got::Page(page) => prop_assert_eq!(page.changes, expected, "{:?}", waiter),
                        Got::Waits(query) => {
                            prop_assert!(expected.is_empty(), "{waiter:?}");
                            groups.entry(query).or_default().push(waiter);
                        }
                    }
                }
            }
        }
    }
}
