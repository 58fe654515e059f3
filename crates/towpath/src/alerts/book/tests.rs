use super::super::notice::MAX_LISTED;
use super::*;

const TIMING: AlertTiming = AlertTiming {
    wait: Duration::from_secs(15),
    pause: Duration::from_secs(300),
    repeat: Duration::from_secs(86_400),
};
const HOUR: i64 = 3600;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn failing(subject: &str, since: i64) -> Condition {
    Condition {
        kind: AlertKind::SourceFailing,
        subject: subject.into(),
        since: Some(at(since)),
        hold: Duration::from_secs(3600),
        message: "TIMEOUT".into(),
    }
}

/// A book with one destination, whose messages are taken at once.
#[derive(Default)]
struct Told {
    book: AlertBook,
}

impl Told {
    fn at(&mut self, seconds: i64, conditions: Vec<Condition>) -> Vec<String> {
        self.book.observe(at(seconds), conditions, TIMING, &[AlertDestination::Webhook]);
        let due = self.book.due(at(seconds));
        for waiting in &due {
            self.book.handle_sent(waiting, DeliveryAttempt::Delivered, at(seconds));
        }
        due.iter().map(|waiting| waiting.notice.title()).collect()
    }

    /// Goes on with what a restart finds in the store.
    fn restart(&mut self) {
        let saved = serde_json::to_string(&self.book).unwrap();
        self.book = serde_json::from_str(&saved).unwrap();
    }
}

#[test]
fn a_source_that_fails_for_an_hour_is_told_once_and_its_recovery_once() {
    let mut told = Told::default();
    assert!(told.at(HOUR - 1, vec![failing("news", 0)]).is_empty());
    assert!(told.at(HOUR, vec![failing("news", 0)]).is_empty(), "others may follow");
    assert_eq!(told.at(HOUR + 15, vec![failing("news", 0)]), ["the source of feed news fails"]);
    told.restart();
    assert!(told.at(HOUR + 400, vec![failing("news", 0)]).is_empty(), "a restart tells nothing again");
    assert!(told.at(2 * HOUR, vec![]).is_empty());
    assert_eq!(told.at(2 * HOUR + 15, vec![]), ["the source of feed news works again"]);
    assert!(told.at(9 * HOUR, vec![]).is_empty());
}

#[test]
fn what_ends_before_it_is_told_is_never_told() {
    let mut told = Told::default();
    told.at(HOUR, vec![failing("news", 0)]);
    for seconds in [HOUR + 5, HOUR + 20, HOUR + 900] {
        assert!(told.at(seconds, vec![]).is_empty());
    }
}

#[test]
fn a_thousand_failures_are_one_message_and_late_ones_another() {
    let all = |count: usize| {
        (0..count).map(|n| failing(&format!("feed-{n:04}"), n as i64 / 100)).collect::<Vec<_>>()
    };
    let mut told = Told::default();
    let mut messages = Vec::new();
    for seconds in HOUR..HOUR + 900 {
        messages.extend(told.at(seconds, all(1000)));
    }
    // Ten became due within the wait of the first; the pause collects nothing more.
    assert_eq!(messages, ["1000 sources fail"]);
    let notice = {
        told.book.observe(at(HOUR + 1000), vec![], TIMING, &[AlertDestination::Webhook]);
        told.book.observe(at(HOUR + 1015), vec![], TIMING, &[AlertDestination::Webhook]);
        told.book.due(at(HOUR + 1015)).remove(0).notice
    };
    assert_eq!(notice.title(), "1000 sources work again");
    assert_eq!((notice.content.recovered.count, notice.content.recovered.events.len()), (1000, MAX_LISTED));
    assert!(notice.text("http://a").contains("and 980 more"));
}

#[test]
fn an_event_that_flaps_between_messages_goes_on() {
    let mut told = Told::default();
    told.at(HOUR, vec![failing("news", 0)]);
    assert_eq!(told.at(HOUR + 15, vec![failing("news", 0)]).len(), 1);
    told.at(HOUR + 60, vec![]);
    told.at(HOUR + 70, vec![failing("news", HOUR + 65)]);
    for seconds in [HOUR + 400, 3 * HOUR] {
        assert!(told.at(seconds, vec![failing("news", HOUR + 65)]).is_empty());
    }
}

#[test]
fn an_event_that_goes_on_is_told_again_after_a_day() {
    let mut told = Told::default();
    told.at(HOUR, vec![failing("news", 0)]);
    told.at(HOUR + 15, vec![failing("news", 0)]);
    assert!(told.at(24 * HOUR, vec![failing("news", 0)]).is_empty());
    assert_eq!(told.at(26 * HOUR, vec![failing("news", 0)]), ["still: the source of feed news fails"]);
}

#[test]
fn a_message_is_tried_again_with_growing_waits_and_outlasts_a_restart() {
    let mut told = Told::default();
    told.book.observe(at(HOUR), vec![failing("news", 0)], TIMING, &[AlertDestination::Email]);
    told.book.observe(at(HOUR + 15), vec![failing("news", 0)], TIMING, &[AlertDestination::Email]);
    let (mut now, mut waits) = (HOUR + 15, Vec::new());
    for _ in 0..MAX_ATTEMPTS {
        told.restart();
        let due = told.book.due(at(now));
        assert_eq!(due.len(), 1);
        let is_given_up = told.book.handle_sent(&due[0], DeliveryAttempt::Failed, at(now));
        let next = (now..).find(|second| is_given_up || !told.book.due(at(*second)).is_empty()).unwrap();
        waits.push(next - now);
        now = next;
    }
    assert_eq!(waits[..4], [10, 20, 40, 80]);
    assert_eq!(waits[20], 1800);
    assert!(told.book.outbox.is_empty(), "given up after a day");
}

#[test]
fn the_queue_of_a_destination_is_bounded() {
    let mut book = AlertBook::default();
    let timing = AlertTiming { wait: Duration::ZERO, pause: Duration::ZERO, ..TIMING };
    for n in 0..2 * MAX_WAITING as i64 {
        let conditions = if n % 2 == 0 { vec![failing("news", 0)] } else { vec![] };
        book.observe(at(HOUR + n), conditions, timing, &[AlertDestination::Email, AlertDestination::Feed]);
    }
    assert_eq!(book.outbox.len(), 2 * MAX_WAITING);
    let newest = book.outbox.last().unwrap().notice.at;
    assert_eq!(newest, at(HOUR + 2 * MAX_WAITING as i64 - 1));
}

#[test]
fn the_json_form_is_that_of_standard_webhooks() {
    let notice = AlertNotice::test(at(0));
    let json = notice.json("http://a");
    assert_eq!(json["type"], "alert.test");
    assert_eq!((&json["data"]["server"], &json["data"]["began"]["count"]), (&"http://a".into(), &1.into()));
}

/// Each node counts its messages for itself: their ids must differ, for receivers that drop repetitions.
#[test]
fn messages_of_two_nodes_differ() {
    let notice = |node: &str| {
        let mut book = AlertBook { node: Some(node.into()), ..AlertBook::default() };
        let timing = AlertTiming { wait: Duration::ZERO, ..TIMING };
        book.observe(at(HOUR), vec![failing("news", 0)], timing, &[AlertDestination::Webhook]);
        book.outbox[0].notice.clone()
    };
    let (one, other) = (notice("a.example:1"), notice("b.example:1"));
    assert!(one.id != other.id && !one.id.contains('.'), "{}", one.id);
    assert_eq!(one.json("http://x")["data"]["node"], "a.example:1");
    assert!(one.text("http://x").contains("(http://x, node a.example:1)"));
}

#[test]
fn a_clock_that_jumps_neither_ripens_nor_delays() {
    // An event is an hour old, on the wall clock only: it was there for a minute when the clock jumped.
    let mut told = Told::default();
    told.at(60, vec![failing("news", 0)]);
    told.book.shift(SignedDuration::from_hours(1));
    for seconds in [HOUR + 61, 2 * HOUR - 1] {
        assert!(told.at(seconds, vec![failing("news", 0)]).is_empty());
    }
    told.at(2 * HOUR, vec![failing("news", 0)]);
    assert_eq!(told.at(2 * HOUR + 15, vec![failing("news", 0)]).len(), 1);
    // An hour back: the pause after the last message is as long as it was.
    told.book.shift(SignedDuration::from_hours(-1));
    told.at(HOUR + 20, vec![failing("news", 0), failing("other", 0)]);
    assert!(told.at(HOUR + 300, vec![failing("news", 0), failing("other", 0)]).is_empty());
    assert_eq!(told.at(HOUR + 316, vec![failing("news", 0), failing("other", 0)]).len(), 1);
}

#[test]
fn a_book_of_next_year_keeps_nothing_back() {
    const YEAR: i64 = 365 * 24 * HOUR;
    let mut told = Told::default();
    told.at(YEAR + HOUR, vec![failing("news", YEAR)]);
    assert_eq!(told.at(YEAR + HOUR + 15, vec![failing("news", YEAR)]).len(), 1);
    told.restart();
    // The clock was set right meanwhile.
    told.at(0, vec![failing("news", 0)]);
    told.at(1, vec![]);
    assert_eq!(told.at(301, vec![]), ["the source of feed news works again"]);
}
