//! Shared long polls: equal waiting queries share one response, and it is the one that each would get alone.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::change::{Change, NewChange, Seq};
use crate::item::Item;
use crate::smart::publish::cursor::CursorKind;
use crate::smart::publish::filter::{Filter, FilterView};
use crate::smart::publish::pull::{Pull, PullPage, PullStep};
use crate::smart::publish::query::PullQuery;
use crate::smart::publish::testing::{MemoryLog, log, settings, time};
use crate::smart::wire::spec::{FeedOrder, OrderBy};

/// A log, with or without a filter.
struct WaitingPublisher {
    log: MemoryLog,
    view: Option<FilterView>,
    kind: CursorKind,
    clock: i64,
}

enum PullOutcome {
    Page(PullPage),
    /// A long poll: the query to run after an append.
    Waits(PullQuery),
}

impl WaitingPublisher {
    fn new(log: MemoryLog) -> Self {
        Self { log, view: None, kind: CursorKind::Sequence, clock: 100 }
    }

    fn request(&mut self, query: PullQuery) -> PullOutcome {
        let mut pull = Pull::new(query, &settings(self.kind), time(self.clock));
        let mut step = pull.begin();
        loop {
            step = match step {
                PullStep::Read(read) => pull.handle_read(self.log.answer(&read), self.view.as_ref()).unwrap(),
                PullStep::Wait { .. } => return PullOutcome::Waits(pull.waiting_query()),
                PullStep::Page(page) => return PullOutcome::Page(*page),
            };
        }
    }

    fn parse(&self, query: &str) -> PullQuery {
        PullQuery::parse(query, &settings(self.kind).limits).unwrap()
    }

    fn waits(&mut self, query: &str) -> PullQuery {
        match self.request(self.parse(query)) {
            PullOutcome::Waits(query) => query,
            PullOutcome::Page(page) => panic!("{query}: {page:?}"),
        }
    }

    fn page(&mut self, query: PullQuery) -> Vec<String> {
        match self.request(query) {
            PullOutcome::Page(page) => page.changes.into_iter().map(|change| change.item.id).collect(),
            PullOutcome::Waits(query) => panic!("{query:?} still waits"),
        }
    }

    fn append(&mut self, change: NewChange) {
        self.log.append(change, time(self.clock));
        if let Some(view) = &mut self.view {
            view.apply(&self.log.changes);
        }
    }
}

/// "Hold the request open until data becomes available": a long poll for a future time does not delay others. It gets no
/// changes before that time ("results MUST be inclusive", of that time and later ones only).
#[test]
fn future_times_wait_separately() {
    for order in ["modified", "created"] {
        let mut publisher = WaitingPublisher::new(log(&[("a", 10)]));
        let cursor = settings(publisher.kind)
            .tag
            .cursor(if order == "created" { OrderBy::Created } else { OrderBy::Modified }, 1);
        let at_end = publisher.waits(&format!("order={order}&since=cursor:{cursor}"));
        for ahead in ["9999999999", "104"] {
            let late = publisher.waits(&format!("order={order}&since=time:{ahead}"));
            assert_ne!(late, at_end);
            assert_eq!(
                late,
                publisher.waits(&format!("order={order}&since=cursor:{ahead}_0_1")),
                "as its time"
            );
        }
        let (soon, late) = (
            publisher.waits(&format!("order={order}&since=time:104")),
            publisher.waits(&format!("order={order}&since=time:200")),
        );
        publisher.append(NewChange::put(Item::new("b")));
        assert_eq!(publisher.page(at_end), ["b"]);
        assert!(matches!(publisher.request(soon.clone()), PullOutcome::Waits(query) if query == soon));
        publisher.clock = 104;
        publisher.append(NewChange::put(Item::new("c")));
        assert_eq!(publisher.page(soon), ["c"]);
        assert!(matches!(publisher.request(late.clone()), PullOutcome::Waits(query) if query == late));
    }
}

/// All requests at the end of the log share one waiting query, independent of position type and timeout.
#[test]
fn long_polls_at_the_end_share_one_query() {
    let mut publisher = WaitingPublisher::new(log(&[("a", 10), ("b", 10), ("a", 20)]));
    let cursor = settings(publisher.kind).tag.cursor(OrderBy::Created, 2);
    let first = publisher.waits(&format!("order=created&since=cursor:{cursor}"));
    // The position of `b` in three forms: id, sequence cursor and T+O+C cursor.
    let crc = crc32fast::hash(b"a_b");
    for same in ["since=id:b&timeout=7".to_owned(), format!("since=cursor:10_1_{crc}&timeout=300")] {
        assert_eq!(publisher.waits(&format!("order=created&{same}")), first, "{same}");
    }
    for other in ["since=id:b&max=3", "since=id:b&callback=f", "since=id:b&x=y"] {
        assert_ne!(publisher.waits(&format!("order=created&{other}")), first, "{other}");
    }
    // Hidden items before the end make no difference.
    let mut publisher = WaitingPublisher::new(log(&[("a", 10), ("b", 20)]));
    let mut view = FilterView::new(Filter { tags: vec!["x".into()], ..Filter::default() }, Box::new(|_| 0.0));
    view.apply(&publisher.log.changes);
    publisher.view = Some(view);
    assert_eq!(publisher.waits("since=time:20"), publisher.waits(""));
}

/// Begin of a client's range, independent of later appends.
#[derive(Debug, Clone, Copy)]
enum RangeStart {
    After(Seq),
    From(i64),
}

/// A client with a long poll.
#[derive(Debug)]
struct LongPollClient {
    order: FeedOrder,
    max: usize,
    start: RangeStart,
}

impl LongPollClient {
    fn expects(&self, publisher: &WaitingPublisher) -> Vec<Change> {
        let by = self.order.by;
        let within = |change: &Change| match self.start {
            RangeStart::After(position) => by.position(change) > position,
            RangeStart::From(seconds) => by.time(change) >= time(seconds),
        };
        let show = |change: Change| match &publisher.view {
            Some(view) => view.show(change),
            None => Some(change),
        };
        let items = publisher.log.items(by).into_iter().filter(within);
        items.filter_map(show).take(self.max).collect()
    }
}

#[derive(Debug, Clone)]
enum LogEvent {
    /// The item, its tag or `-` for a deletion, and seconds since the last event.
    Append(u8, &'static str, i64),
    /// A client joins: true for the order by creation, its `max`, and its position.
    Join(bool, usize, ClientPosition),
}

#[derive(Debug, Clone, Copy)]
enum ClientPosition {
    Beginning,
    /// After the last item.
    Last,
    /// A time, in seconds from now.
    Time(i64),
    /// A cursor with a future time.
    FutureCursor(i64),
}

fn log_event() -> impl Strategy<Value = LogEvent> {
    let from = prop_oneof![
        Just(ClientPosition::Beginning),
        Just(ClientPosition::Last),
        // Twice, because most clients wait at the end.
        Just(ClientPosition::Last),
        (-4..8_i64).prop_map(ClientPosition::Time),
        (1..8_i64).prop_map(ClientPosition::FutureCursor),
    ];
    prop_oneof![
        (0..5_u8, prop_oneof![Just("x"), Just("y"), Just("-")], 0..3_i64)
            .prop_map(|(item, what, later)| LogEvent::Append(item, what, later)),
        (any::<bool>(), prop_oneof![Just(1_usize), Just(50)], from)
            .prop_map(|(created, max, from)| LogEvent::Join(created, max, from)),
    ]
}

/// Returns a client's `since` parameter and the begin of its range; `None` if the position does not exist yet.
fn since_parameter(
    publisher: &mut WaitingPublisher,
    order: FeedOrder,
    from: ClientPosition,
) -> Option<(String, RangeStart)> {
    Some(match from {
        ClientPosition::Beginning => (String::new(), RangeStart::After(0)),
        ClientPosition::Last => {
            let query = publisher.parse(&format!("order={order}&timeout=0&max=1000"));
            let PullOutcome::Page(page) = publisher.request(query) else {
                panic!("a request with timeout=0 waits")
            };
            let position = order.by.position(page.changes.last()?);
            (format!("&since=cursor:{}", page.last_cursor?), RangeStart::After(position))
        }
        ClientPosition::Time(offset) => {
            let from = publisher.clock + offset;
            (format!("&since=time:{from}"), RangeStart::From(from))
        }
        ClientPosition::FutureCursor(offset) => {
            let from = publisher.clock + offset;
            (format!("&since=cursor:{from}_0_1"), RangeStart::From(from))
        }
    })
}

proptest! {
    /// Every client gets exactly the items of its range, as soon as they exist.
    #[test]
    fn shared_responses_equal_individual_ones(
        events in prop::collection::vec(log_event(), 1..50),
        toc: bool,
        filtered: bool,
    ) {
        let mut publisher = WaitingPublisher::new(MemoryLog::default());
        publisher.kind = if toc { CursorKind::Toc } else { CursorKind::Sequence };
        let filter = Filter { tags: vec!["x".into()], ..Filter::default() };
        publisher.view = filtered.then(|| FilterView::new(filter, Box::new(|_| 0.0)));
        let mut groups: HashMap<PullQuery, Vec<LongPollClient>> = HashMap::new();
        for event in events {
            match event {
                LogEvent::Append(item, what, later) => {
                    publisher.clock += later;
                    let id = format!("i{item}");
                    let new = match what {
                        "-" if publisher.log.latest(&id).is_none() => continue,
                        "-" => NewChange::delete(id.as_str()),
                        tag => NewChange::put(Item { tags: vec![tag.into()], ..Item::new(id) }),
                    };
                    publisher.append(new);
                    for (query, clients) in std::mem::take(&mut groups) {
                        let changes = match publisher.request(query.clone()) {
                            PullOutcome::Page(page) => page.changes,
                            PullOutcome::Waits(_) => Vec::new(),
                        };
                        for client in &clients {
                            prop_assert_eq!(&client.expects(&publisher), &changes, "{:?} by {:?}", client, query);
                        }
                        // Without changes the group keeps waiting, as in a server.
                        if changes.is_empty() {
                            groups.insert(query, clients);
                        }
                    }
                }
                LogEvent::Join(created, max, from) => {
                    let by = if created { OrderBy::Created } else { OrderBy::Modified };
                    let order = FeedOrder { by, descending: false };
                    let Some((since, start)) = since_parameter(&mut publisher, order, from) else { continue };
                    let client = LongPollClient { order, max, start };
                    let query = publisher.parse(&format!("order={order}&max={max}{since}"));
                    let expected = client.expects(&publisher);
                    match publisher.request(query) {
                        PullOutcome::Page(page) => prop_assert_eq!(page.changes, expected, "{:?}", client),
                        PullOutcome::Waits(query) => {
                            prop_assert!(expected.is_empty(), "{client:?}");
                            groups.entry(query).or_default().push(client);
                        }
                    }
                }
            }
        }
    }
}
