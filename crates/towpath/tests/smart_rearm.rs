//! Those who wait again on a connection where they were answered: in words that are known, and in any others.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::waiting::{Client, ids, metric, publish, put, until, waiters};
use common::{Place, Server};
use serde_json::json;

/// One worker, so that what one connection taught is known to all.
const ONE_WORKER: &str = "[server]\nthreads = 1\nwaiters = 400\n[[feed]]\nid = \"aa\"\n";

/// Clients that were answered together and have not asked again.
struct Crowd {
    server: Server,
    clients: Vec<Client>,
    cursor: String,
}

impl Crowd {
    fn new(place: &Place, count: usize) -> Self {
        let server = place.serve();
        publish(&server, "aa", &[put("a")]);
        let cursor = server.json("/feeds/aa/items")["last_cursor"].as_str().unwrap().to_owned();
        let mut clients: Vec<Client> = (0..count).map(|_| Client::new(&server)).collect();
        for client in &mut clients {
            client.0.set_nodelay(true).unwrap();
            client.send(&format!("/feeds/aa/items?since=cursor:{cursor}"), "");
        }
        until("all wait", || waiters(&server) == count as u64);
        publish(&server, "aa", &[put("b")]);
        let answers =
            clients.iter_mut().map(|client| client.answer().1["last_cursor"].as_str().unwrap().to_owned());
        let cursor = answers.last().unwrap();
        Self { server, clients, cursor }
    }

    fn path(&self, rest: &str) -> String {
        format!("/feeds/aa/items?since=cursor:{}{rest}", self.cursor)
    }

    fn request(&self, rest: &str) -> String {
        format!("GET {} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", self.path(rest))
    }

    /// Sends a request on some of the connections.
    fn send(&mut self, clients: std::ops::Range<usize>, request: &str) {
        for client in &mut self.clients[clients] {
            client.0.write_all(request.as_bytes()).unwrap();
        }
    }

    /// Has the first client wait again, with a request that is known from then on.
    fn teach(&mut self, request: &str) {
        self.send(0..1, request);
        until("the first waits", || waiters(&self.server) == 1);
        assert_eq!(rearmed(&self.server), 0);
    }

    fn waiting(&self, count: u64) {
        until("they wait", || waiters(&self.server) == count);
    }
}

fn rearmed(server: &Server) -> u64 {
    metric(server, "towpath_requests_rearmed_total")
}

/// An answer but for its time.
fn undated(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let lines = head.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("date: "));
    let head: Vec<&str> = lines.collect();
    assert!(head.len() < answer.split("\r\n").count() - 1, "{answer}");
    format!("{}\r\n\r\n{body}", head.join("\r\n"))
}

/// A request with a body, which stays in hyper's hands, beside two that do not: the same bytes, with items and without.
#[test]
fn answers_are_those_of_hyper() {
    let place = Place::new(ONE_WORKER);
    for (rest, moves) in [("", true), ("&timeout=1", false)] {
        let mut crowd = Crowd::new(&place, 2);
        let request = crowd.request(rest);
        let mut hyper = Client::new(&crowd.server);
        write!(hyper.0, "{}Content-Length: 2\r\n\r\nhi", request.strip_suffix("\r\n").unwrap()).unwrap();
        crowd.waiting(1);
        crowd.send(0..1, &request);
        crowd.waiting(2);
        let routed = metric(&crowd.server, "towpath_requests_routed_total");
        crowd.send(1..2, &request);
        crowd.waiting(3);
        assert_eq!(rearmed(&crowd.server), 1);
        let after = metric(&crowd.server, "towpath_requests_routed_total");
        assert!(after > routed, "counted as any other");
        if moves {
            publish(&crowd.server, "aa", &[put("c")]);
        }
        let expected = undated(&hyper.answer_bytes());
        for client in &mut crowd.clients {
            assert_eq!(undated(&client.answer_bytes()), expected);
        }
        assert_eq!(expected.contains("title of c"), moves);
        assert_eq!(waiters(&crowd.server), 0);
    }
}

/// Round after round, one request is made by hyper and the others by their bytes.
#[test]
fn a_crowd_waits_again_and_again() {
    let place = Place::new(ONE_WORKER);
    let mut crowd = Crowd::new(&place, 20);
    for round in 1..=5 {
        let request = crowd.request("");
        crowd.send(0..1, &request);
        crowd.waiting(1);
        crowd.send(1..20, &request);
        crowd.waiting(20);
        assert_eq!(rearmed(&crowd.server), round * 19);
        publish(&crowd.server, "aa", &[put(&format!("round {round}"))]);
        for client in &mut crowd.clients {
            let (_, page) = client.answer();
            assert_eq!(ids(&page), [format!("round {round}")]);
            crowd.cursor = page["last_cursor"].as_str().unwrap().to_owned();
        }
    }
}

#[test]
fn a_request_may_come_in_two_pieces_cut_anywhere() {
    let place = Place::new(ONE_WORKER);
    let mut crowd = Crowd::new(&place, 200);
    let request = crowd.request("");
    crowd.teach(&request);
    let cuts = 1..request.len();
    assert!(cuts.len() < 199);
    for cut in cuts.clone() {
        crowd.send(cut..cut + 1, &request[..cut]);
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(waiters(&crowd.server), 1, "none is whole");
    for cut in cuts.clone() {
        crowd.send(cut..cut + 1, &request[cut..]);
    }
    crowd.waiting(cuts.len() as u64 + 1);
    assert_eq!(rearmed(&crowd.server), 0, "hyper puts them together");
    publish(&crowd.server, "aa", &[put("c")]);
    for client in &mut crowd.clients[..=cuts.len()] {
        assert_eq!(ids(&client.answer().1), ["c"]);
    }
}

/// RFC 9112, section 9.3.2: answers come in the order of the requests.
#[test]
fn pipelined_requests_are_answered_in_turn() {
    let place = Place::new(ONE_WORKER);
    let mut crowd = Crowd::new(&place, 5);
    let request = crowd.request("");
    let newest = "GET /feeds/aa/items?order=-created&max=1 HTTP/1.1\r\nHost: x\r\n\r\n";
    crowd.teach(&request);
    crowd.send(1..2, &format!("{request}{request}"));
    crowd.send(2..3, &format!("{request}{newest}"));
    crowd.send(3..4, &format!("{request}{}", &newest[..20]));
    crowd.waiting(4);
    assert_eq!(rearmed(&crowd.server), 0);
    // One that waits already when the next one comes.
    crowd.send(4..5, &request);
    crowd.waiting(5);
    assert_eq!(rearmed(&crowd.server), 1);
    crowd.send(4..5, newest);
    std::thread::sleep(Duration::from_millis(100));
    publish(&crowd.server, "aa", &[put("c"), put("d")]);
    crowd.send(3..4, &newest[20..]);
    for (number, client) in crowd.clients.iter_mut().enumerate() {
        assert_eq!(ids(&client.answer().1), ["c", "d"], "{number}");
        match number {
            0 => {}
            1 => assert_eq!(ids(&client.answer().1), ["c", "d"]),
            _ => assert_eq!(ids(&client.answer().1), ["d"], "{number}"),
        }
    }
}

/// Whatever differs from the request that is known gets what it would get on a connection of its own.
#[test]
fn any_other_request_is_answered_as_on_a_new_connection() {
    let place = Place::new(ONE_WORKER);
    let mut crowd = Crowd::new(&place, 20);
    let known = crowd.request("&timeout=2");
    let (line, _) = known.split_once("\r\n").unwrap();
    let get = |headers: &str| format!("{line}\r\n{headers}\r\n");
    let others = [
        get("Host: x\r\nAccept: application/atom+xml\r\n"),
        get("Host: x\r\nAccept: image/png\r\n"),
        get("Host: y\r\nAccept: */*\r\n"),
        get("Host: x\r\nAccept: */*\r\nAuthorization: Bearer x\r\n"),
        get("Host: x\r\nAccept: */*\r\nConnection: close\r\n"),
        get(&format!("Host: x\r\nAccept: */*\r\nX-Long: {}\r\n", "x".repeat(10_000))),
        get(&format!("Host: x\r\nAccept: */*\r\nX-Long: {}\r\n", "x".repeat(600_000))),
        get("Host: x\r\nAccept: */*\r\nContent-Length: x\r\n"),
        known.replace("HTTP/1.1", "HTTP/1.0"),
        known.replace("HTTP/1.1", "HTTP/9.9"),
        known.replace("GET", "DELETE"),
        known.replace("GET", "get"),
        known.replace("timeout=2", "timeout=x"),
        known.replace("since=cursor:", "since=cursor:m9"),
        known.replace("/aa/", "/none/"),
        known.replace("Host:", "Ho st:"),
        known.replacen("\r\n", "\n", 1),
        "nonsense\r\n\r\n".to_owned(),
    ];
    assert_eq!(others.len() + 2, crowd.clients.len());
    crowd.teach(&known);
    crowd.send(1..2, &known);
    crowd.waiting(2);
    let mut fresh: Vec<Client> = others.iter().map(|_| Client::new(&crowd.server)).collect();
    for ((other, fresh), again) in others.iter().zip(&mut fresh).zip(&mut crowd.clients[2..]) {
        // Where the head is too large, the connection may be cut while it is still being sent.
        let _ = fresh.0.write_all(other.as_bytes());
        let _ = again.0.write_all(other.as_bytes());
    }
    for ((other, fresh), again) in others.iter().zip(&mut fresh).zip(&mut crowd.clients[2..]) {
        if other.len() > 500_000 {
            for client in [fresh, again] {
                let mut answer = Vec::new();
                let _ = client.0.read_to_end(&mut answer);
                assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "), "refused, or cut off");
            }
            continue;
        }
        assert_eq!(undated(&again.answer_bytes()), undated(&fresh.answer_bytes()), "{other}");
    }
    assert_eq!(rearmed(&crowd.server), 1, "only the same bytes are the same");
    assert_eq!(crowd.clients[0].answer(), crowd.clients[1].answer());
}

/// A token is part of the bytes; another one is looked at as if it were the first.
#[test]
fn every_reader_is_asked_for_a_token() {
    let place = Place::new(
        "[server]\nthreads = 1\ntokens = [\"publisher\"]\n[[feed]]\nid = \"mine\"\n\
         readers = [\"all\", { token = \"some\", filter = { tags = [\"open\"] } }]\n[[feed]]\nid = \"aa\"\n",
    );
    let server = place.serve();
    let post = |id: &str, tags: &[&str]| {
        let line = json!({ "id": id, "item": { "title": id, "tags": tags } }).to_string();
        let authorization = [("Authorization", "Bearer publisher")];
        assert_eq!(server.ask("POST", "/feeds/mine/items", &authorization, line.as_bytes()).status, 200);
    };
    let mut clients: Vec<Client> = (0..6).map(|_| Client::new(&server)).collect();
    for client in &mut clients {
        client.send("/feeds/mine/items", "Authorization: Bearer all\r\n");
    }
    until("all wait", || waiters(&server) == 6);
    post("a", &[]);
    let cursors =
        clients.iter_mut().map(|client| client.answer().1["last_cursor"].as_str().unwrap().to_owned());
    let path = format!("/feeds/mine/items?since=cursor:{}", cursors.last().unwrap());
    for (client, token) in clients.iter_mut().zip(["all", "all", "some", "some", "wrong", ""]) {
        let before = waiters(&server);
        let header =
            if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        client.send(&path, &header);
        if ["all", "some"].contains(&token) {
            until("it waits", || waiters(&server) > before);
        } else {
            assert!(client.answer().0.starts_with("http/1.1 401"));
        }
    }
    assert_eq!(rearmed(&server), 2);
    post("b", &[]);
    for client in &mut clients[..2] {
        assert_eq!(ids(&client.answer().1), ["b"]);
    }
    assert_eq!(waiters(&server), 2);
    post("c", &["open"]);
    for client in &mut clients[2..4] {
        assert_eq!(ids(&client.answer().1), ["c"]);
    }
}

#[test]
fn who_goes_away_is_forgotten_and_the_cap_holds() {
    let place = Place::new(&ONE_WORKER.replace("400", "4"));
    let mut crowd = Crowd::new(&place, 4);
    let request = crowd.request("");
    crowd.teach(&request);
    crowd.send(1..3, &request);
    crowd.waiting(3);
    let mut other = Client::new(&crowd.server);
    other.send("/feeds/aa/items?since=time:2100-01-01T00:00:00Z", "");
    crowd.waiting(4);
    crowd.send(3..4, &request);
    let (head, problem) = crowd.clients[3].answer();
    assert!(head.starts_with("http/1.1 503") && head.contains("retry-after: "), "{head}");
    assert_eq!(problem["type"], "urn:towpath:problem:busy");
    let begun = Instant::now();
    drop(other);
    crowd.waiting(3);
    crowd.send(3..4, &request);
    crowd.waiting(4);
    drop(crowd.clients.remove(1));
    crowd.clients[1].0.shutdown(Shutdown::Write).unwrap();
    crowd.waiting(2);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    publish(&crowd.server, "aa", &[put("c")]);
    for number in [0, 2] {
        assert_eq!(ids(&crowd.clients[number].answer().1), ["c"]);
    }
    crowd.clients.clear();
    crowd.waiting(0);
}

/// An order by creation stays where it is when an item is edited: those who wait, wait on, and others join them.
#[test]
fn a_log_that_moves_without_an_answer() {
    let place = Place::new(ONE_WORKER);
    let mut crowd = Crowd::new(&place, 4);
    crowd.cursor =
        crowd.server.json("/feeds/aa/items?order=created")["last_cursor"].as_str().unwrap().to_owned();
    let request = crowd.request("&order=created");
    crowd.teach(&request);
    crowd.send(1..2, &request);
    crowd.waiting(2);
    publish(&crowd.server, "aa", &[put("a")]);
    crowd.send(2..3, &request);
    crowd.waiting(3);
    assert_eq!(rearmed(&crowd.server), 1, "what was known of a log that has moved is asked anew");
    crowd.send(3..4, &request);
    crowd.waiting(4);
    assert_eq!(rearmed(&crowd.server), 2);
    publish(&crowd.server, "aa", &[put("c")]);
    for client in &mut crowd.clients {
        assert_eq!(ids(&client.answer().1), ["c"]);
    }
}

/// A server that stops answers those who wait, and closes the connections of those who were answered.
#[test]
fn stopping_ends_it() {
    let place = Place::new(ONE_WORKER);
    let mut crowd = Crowd::new(&place, 4);
    let request = crowd.request("");
    crowd.teach(&request);
    crowd.send(1..3, &request);
    crowd.waiting(3);
    assert_eq!(rearmed(&crowd.server), 2);
    let Crowd { server, mut clients, cursor } = crowd;
    let begun = Instant::now();
    assert_eq!(server.stop(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for client in &mut clients[..3] {
        let (head, page) = client.answer();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert_eq!((ids(&page).len(), page["last_cursor"].as_str()), (0, Some(cursor.as_str())));
    }
    for client in &mut clients {
        assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0, "closed");
    }
}

/// A HEAD is not held; what it was told does not keep a GET from being held.
#[test]
fn a_get_is_held_after_a_head() {
    let place = Place::new(ONE_WORKER);
    let crowd = Crowd::new(&place, 1);
    let head = crowd.server.ask("HEAD", &crowd.path(""), &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    let mut client = Client::new(&crowd.server);
    client.send(&crowd.path(""), "");
    crowd.waiting(1);
    publish(&crowd.server, "aa", &[put("c")]);
    assert_eq!(ids(&client.answer().1), ["c"]);
}
