//! Different long polls side by side: none delays another, and each gets its own response.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::waiting::{PollClient, ids, publish, put, until, waiters};
use crate::common::{TestFolder, TestServer};

const CONFIG: &str = "[server]\nthreads = 1\n[[feed]]\nid = \"aa\"\n";
const FUTURE: &str = "since=time:9999999999";
/// Seconds that a client's clock is ahead.
const AHEAD: u64 = 5;

/// A server with one item, and the cursor at its feed's end.
fn server(dir: &TestFolder) -> (TestServer, String) {
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let cursor = server.json("/feeds/aa/items?timeout=0")["last_cursor"].as_str().unwrap().to_owned();
    (server, format!("since=cursor:{cursor}"))
}

/// "Hold the request open until data becomes available": a poll for a future time does not delay other polls, in any
/// order, whether or not the earlier ones have left.
#[test]
fn a_poll_for_a_future_time_delays_no_other() {
    let dir = TestFolder::new(CONFIG);
    let (server, last) = server(&dir);
    let join = |range: &str, rest: &str, accept: &str| {
        let (before, mut client) = (waiters(&server), PollClient::new(&server));
        let path = format!("/feeds/aa/items?{range}&timeout=60&{rest}");
        client.send(&path, &format!("Accept: {accept}\r\n"));
        until("it waits", || waiters(&server) == before + 1);
        client
    };
    let (mut behind, mut future) = (Vec::new(), Vec::new());
    for (number, accept) in ["application/json", "application/atom+xml"].into_iter().enumerate() {
        for case in 0..4 {
            // A parameter of the base URL keeps the cases apart.
            let rest = format!("case={number}{case}");
            let mut ranges = [FUTURE, last.as_str()];
            if case % 2 == 0 {
                // In both orders: the query of the first waiter runs for all that join it.
                ranges.reverse();
            }
            let [first, second] = ranges.map(|range| (range, join(range, &rest, accept)));
            for (range, leader) in [first, second] {
                let follower = join(range, &rest, accept);
                let clients = if range == FUTURE { &mut future } else { &mut behind };
                clients.push(follower);
                if case < 2 {
                    clients.push(leader);
                } else {
                    let before = waiters(&server);
                    // A shared poll outlives the waiter that created it.
                    drop(leader);
                    until("the first has left", || waiters(&server) == before - 1);
                }
            }
        }
    }
    let begun = Instant::now();
    publish(&server, "aa", &[put("b")]);
    assert_eq!((behind.len(), future.len()), (12, 12));
    for client in &mut behind {
        let answer = client.answer_bytes();
        assert!(answer.contains("title of b"), "{answer}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "not at their deadline: {:?}", begun.elapsed());
    // Time for a wrong response to arrive.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(waiters(&server), 12, "those for whom there is nothing wait on");
}

/// A poll with a clock that is a little ahead delays no other, and gets the items of its time when they come.
#[test]
fn a_clock_that_is_ahead() {
    let dir = TestFolder::new(CONFIG);
    let (server, last) = server(&dir);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let (mut ahead, mut behind) = (PollClient::new(&server), PollClient::new(&server));
    ahead.send(&format!("/feeds/aa/items?since=time:{}", now + AHEAD), "");
    until("one waits", || waiters(&server) == 1);
    behind.send(&format!("/feeds/aa/items?{last}"), "");
    until("both wait", || waiters(&server) == 2);
    publish(&server, "aa", &[put("b")]);
    assert_eq!(ids(&behind.answer().1), ["b"]);
    // That time passes without an append, which alone must not end the poll.
    std::thread::sleep(Duration::from_secs(AHEAD));
    assert_eq!(waiters(&server), 1);
    publish(&server, "aa", &[put("c")]);
    assert_eq!(ids(&ahead.answer().1), ["c"]);
}

/// Event streams beside a poll for a future time, also after that has left.
#[test]
fn event_streams_continue_beside_a_future_poll() {
    let dir = TestFolder::new(CONFIG);
    let (server, _) = server(&dir);
    let stream = |query: &str| {
        let (before, mut client) = (waiters(&server), PollClient::new(&server));
        client.send(&format!("/feeds/aa/events{query}"), "");
        until("it waits", || waiters(&server) == before + 1);
        client
    };
    let future = stream(&format!("?{FUTURE}"));
    let mut plain = stream("");
    publish(&server, "aa", &[put("b")]);
    plain.read_until(|text| text.contains("title of b"));
    until("they wait again", || waiters(&server) == 2);
    drop(future);
    until("it is gone", || waiters(&server) == 1);
    publish(&server, "aa", &[put("c")]);
    plain.read_until(|text| text.contains("title of c"));
}

/// A cached request for a future time joins its own shared poll, and no other.
#[test]
fn cached_requests_for_a_future_time_wait_apart() {
    let dir = TestFolder::new(CONFIG);
    let (server, last) = server(&dir);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let mut client = PollClient::new(&server);
    client.send(&format!("/feeds/aa/items?{last}"), "");
    until("it waits", || waiters(&server) == 1);
    publish(&server, "aa", &[put("b")]);
    assert_eq!(ids(&client.answer().1), ["b"]);
    let range = format!("since=time:{}", now + AHEAD);
    client.send(&format!("/feeds/aa/items?{range}"), "");
    let mut again = PollClient::new(&server);
    again.send(&format!("/feeds/aa/items?{range}"), "");
    until("both wait", || waiters(&server) == 2);
    publish(&server, "aa", &[put("c")]);
    std::thread::sleep(Duration::from_secs(AHEAD));
    assert_eq!(waiters(&server), 2);
    publish(&server, "aa", &[put("d")]);
    for client in [&mut client, &mut again] {
        assert_eq!(ids(&client.answer().1), ["d"]);
    }
}

/// An edit adds nothing in the order of creation: its long polls wait on.
#[test]
fn an_edit_does_not_answer_polls_for_new_items() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let cursor = server.json("/feeds/aa/items?order=created")["last_cursor"].as_str().unwrap().to_owned();
    let mut client = PollClient::new(&server);
    client.send(&format!("/feeds/aa/items?order=created&since=cursor:{cursor}"), "");
    until("it waits", || waiters(&server) == 1);
    publish(&server, "aa", &[put("a")]);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(waiters(&server), 1);
    publish(&server, "aa", &[put("b")]);
    assert_eq!(ids(&client.answer().1), ["b"]);
}

/// HTTP Pull: `timeout` is the longest wait; 0 returns at once. An empty page echoes the cursor.
#[test]
fn a_poll_ends_at_its_timeout() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let cursor = server.json("/feeds/aa/items")["last_cursor"].as_str().unwrap().to_owned();
    for (timeout, least, most) in [(0, 0, 900), (1, 900, 5000)] {
        let begun = Instant::now();
        let page = server.json(&format!("/feeds/aa/items?since=cursor:{cursor}&timeout={timeout}"));
        let took = u64::try_from(begun.elapsed().as_millis()).unwrap();
        assert!((least..most).contains(&took), "{timeout}: {took} ms");
        assert_eq!((ids(&page).len(), &page["last_cursor"]), (0, &json!(cursor)));
        assert_eq!(page["totalItems"], 1);
    }
    assert_eq!(waiters(&server), 0);
}
