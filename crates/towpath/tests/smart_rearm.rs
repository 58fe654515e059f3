//! Parked connections that send the next request: cached by its bytes, or any other.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::waiting::{PollClient, ids, metric, publish, put, until, waiters};
use crate::common::{TestFolder, TestServer};

/// Single worker, because each worker has a request cache of its own.
const ONE_WORKER: &str = "[server]\nthreads = 1\nwaiters = 400\n[[feed]]\nid = \"aa\"\n";

/// Clients that were answered together and have not sent their next request.
struct PollClients {
    server: TestServer,
    connections: Vec<PollClient>,
    cursor: String,
}

impl PollClients {
    fn new(dir: &TestFolder, count: usize) -> Self {
        let server = dir.serve();
        publish(&server, "aa", &[put("a")]);
        let cursor = server.json("/feeds/aa/items")["last_cursor"].as_str().unwrap().to_owned();
        let mut clients: Vec<PollClient> = (0..count).map(|_| PollClient::new(&server)).collect();
        for client in &mut clients {
            // Pieces of a request must leave as they are written.
            client.0.set_nodelay(true).unwrap();
            client.send(&format!("/feeds/aa/items?since=cursor:{cursor}"), "");
        }
        until("all wait", || waiters(&server) == count as u64);
        publish(&server, "aa", &[put("b")]);
        let answers =
            clients.iter_mut().map(|client| client.answer().1["last_cursor"].as_str().unwrap().to_owned());
        let cursor = answers.last().unwrap();
        Self { server, connections: clients, cursor }
    }

    fn path(&self, rest: &str) -> String {
        format!("/feeds/aa/items?since=cursor:{}{rest}", self.cursor)
    }

    fn request(&self, rest: &str) -> String {
        format!("GET {} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n", self.path(rest))
    }

    /// Sends a request on some of the connections.
    fn send(&mut self, clients: std::ops::Range<usize>, request: &str) {
        for client in &mut self.connections[clients] {
            client.0.write_all(request.as_bytes()).unwrap();
        }
    }

    /// Has the first client wait again through hyper, which caches its request.
    fn cache(&mut self, request: &str) {
        self.send(0..1, request);
        until("the first waits", || waiters(&self.server) == 1);
        assert_eq!(rearmed(&self.server), 0);
    }

    fn waiting(&self, count: u64) {
        until("they wait", || waiters(&self.server) == count);
    }
}

fn rearmed(server: &TestServer) -> u64 {
    metric(server, "towpath_requests_rearmed_total")
}

/// A response without its date.
fn undated(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    // The date is the only header that may differ between the responses to equal requests.
    let lines = head.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("date: "));
    let head: Vec<&str> = lines.collect();
    // RFC 9110, section 6.6.1: a server with a clock sends the date.
    assert!(head.len() < answer.split("\r\n").count() - 1, "{answer}");
    format!("{}\r\n\r\n{body}", head.join("\r\n"))
}

/// A request with a body stays in hyper, two others do not: all get the same bytes, with items and without.
#[test]
fn responses_equal_those_of_hyper() {
    let dir = TestFolder::new(ONE_WORKER);
    for (rest, moves) in [("", true), ("&timeout=1", false)] {
        let mut clients = PollClients::new(&dir, 2);
        let request = clients.request(rest);
        let mut hyper = PollClient::new(&clients.server);
        write!(hyper.0, "{}Content-Length: 2\r\n\r\nhi", request.strip_suffix("\r\n").unwrap()).unwrap();
        clients.waiting(1);
        clients.send(0..1, &request);
        clients.waiting(2);
        let routed = metric(&clients.server, "towpath_requests_routed_total");
        clients.send(1..2, &request);
        clients.waiting(3);
        assert_eq!(rearmed(&clients.server), 1);
        let after = metric(&clients.server, "towpath_requests_routed_total");
        assert!(after > routed, "counted as any other");
        if moves {
            publish(&clients.server, "aa", &[put("c")]);
        }
        let expected = undated(&hyper.answer_bytes());
        for client in &mut clients.connections {
            assert_eq!(undated(&client.answer_bytes()), expected);
        }
        assert_eq!(expected.contains("title of c"), moves);
        assert_eq!(waiters(&clients.server), 0);
    }
}

/// In each round hyper parses one request, and the cache serves the others.
#[test]
fn cached_requests_wait_in_every_round() {
    let dir = TestFolder::new(ONE_WORKER);
    let mut clients = PollClients::new(&dir, 20);
    for round in 1..=5 {
        let request = clients.request("");
        clients.send(0..1, &request);
        clients.waiting(1);
        clients.send(1..20, &request);
        clients.waiting(20);
        assert_eq!(rearmed(&clients.server), round * 19);
        publish(&clients.server, "aa", &[put(&format!("round {round}"))]);
        for client in &mut clients.connections {
            let (_, page) = client.answer();
            assert_eq!(ids(&page), [format!("round {round}")]);
            clients.cursor = page["last_cursor"].as_str().unwrap().to_owned();
        }
    }
}

#[test]
fn a_request_may_come_in_two_pieces_cut_anywhere() {
    let dir = TestFolder::new(ONE_WORKER);
    let mut clients = PollClients::new(&dir, 200);
    let request = clients.request("");
    clients.cache(&request);
    // A connection for each place at which the request can be cut.
    let cuts = 1..request.len();
    assert!(cuts.len() < 199);
    for cut in cuts.clone() {
        clients.send(cut..cut + 1, &request[..cut]);
    }
    // Time for the server to read the first pieces: no metric counts incomplete requests.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(waiters(&clients.server), 1, "none is whole");
    for cut in cuts.clone() {
        clients.send(cut..cut + 1, &request[cut..]);
    }
    clients.waiting(cuts.len() as u64 + 1);
    assert_eq!(rearmed(&clients.server), 0, "hyper puts them together");
    publish(&clients.server, "aa", &[put("c")]);
    for client in &mut clients.connections[..=cuts.len()] {
        assert_eq!(ids(&client.answer().1), ["c"]);
    }
}

/// RFC 9112, section 9.3.2: responses come in the order of the requests.
#[test]
fn pipelined_requests_are_answered_in_turn() {
    let dir = TestFolder::new(ONE_WORKER);
    let mut clients = PollClients::new(&dir, 5);
    let request = clients.request("");
    let newest = "GET /feeds/aa/items?order=-created&max=1 HTTP/1.1\r\nHost: x\r\n\r\n";
    clients.cache(&request);
    clients.send(1..2, &format!("{request}{request}"));
    clients.send(2..3, &format!("{request}{newest}"));
    clients.send(3..4, &format!("{request}{}", &newest[..20]));
    clients.waiting(4);
    assert_eq!(rearmed(&clients.server), 0);
    // One client waits already when its next request comes.
    clients.send(4..5, &request);
    clients.waiting(5);
    assert_eq!(rearmed(&clients.server), 1);
    clients.send(4..5, newest);
    // The pipelined request must be there before the append.
    std::thread::sleep(Duration::from_millis(100));
    publish(&clients.server, "aa", &[put("c"), put("d")]);
    clients.send(3..4, &newest[20..]);
    for (number, client) in clients.connections.iter_mut().enumerate() {
        assert_eq!(ids(&client.answer().1), ["c", "d"], "{number}");
        match number {
            0 => {}
            1 => assert_eq!(ids(&client.answer().1), ["c", "d"]),
            _ => assert_eq!(ids(&client.answer().1), ["d"], "{number}"),
        }
    }
}

/// A request that differs from the cached one gets the response that it would get on a new connection.
#[test]
fn any_other_request_is_answered_as_on_a_new_connection() {
    let dir = TestFolder::new(ONE_WORKER);
    let mut clients = PollClients::new(&dir, 20);
    let known = clients.request("&timeout=2");
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
        // Some parsers take a bare line feed for a line's end (RFC 9112, section 2.2).
        known.replacen("\r\n", "\n", 1),
        "nonsense\r\n\r\n".to_owned(),
    ];
    assert_eq!(others.len() + 2, clients.connections.len());
    clients.cache(&known);
    clients.send(1..2, &known);
    clients.waiting(2);
    let mut fresh: Vec<PollClient> = others.iter().map(|_| PollClient::new(&clients.server)).collect();
    for ((other, fresh), again) in others.iter().zip(&mut fresh).zip(&mut clients.connections[2..]) {
        // For a head that is too large, the server may close the connection while the test still writes.
        let _ = fresh.0.write_all(other.as_bytes());
        let _ = again.0.write_all(other.as_bytes());
    }
    for ((other, fresh), again) in others.iter().zip(&mut fresh).zip(&mut clients.connections[2..]) {
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
    assert_eq!(rearmed(&clients.server), 1, "only the same bytes are the same");
    assert_eq!(clients.connections[0].answer(), clients.connections[1].answer());
}

/// The token is part of the cached bytes; a request with another token is authorised anew.
#[test]
fn a_cached_request_authorises_no_other_token() {
    let dir = TestFolder::new(
        "[server]\nthreads = 1\ntokens = [\"publisher\"]\n[[feed]]\nid = \"mine\"\n\
         readers = [\"all\", { token = \"some\", filter = { tags = [\"open\"] } }]\n[[feed]]\nid = \"aa\"\n",
    );
    let server = dir.serve();
    let post = |id: &str, tags: &[&str]| {
        let line = json!({ "id": id, "item": { "title": id, "tags": tags } }).to_string();
        let authorization = [("Authorization", "Bearer publisher")];
        assert_eq!(server.ask("POST", "/feeds/mine/items", &authorization, line.as_bytes()).status, 200);
    };
    let mut clients: Vec<PollClient> = (0..6).map(|_| PollClient::new(&server)).collect();
    for client in &mut clients {
        client.send("/feeds/mine/items?timeout=55", "Authorization: Bearer all\r\n");
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
    // "b" is not open, so readers with the filter wait on.
    assert_eq!(waiters(&server), 2);
    post("c", &["open"]);
    for client in &mut clients[2..4] {
        assert_eq!(ids(&client.answer().1), ["c"]);
    }
}

#[test]
fn disconnected_clients_leave_and_the_limit_holds() {
    let dir = TestFolder::new(&ONE_WORKER.replace("400", "4"));
    let mut clients = PollClients::new(&dir, 4);
    let request = clients.request("");
    clients.cache(&request);
    clients.send(1..3, &request);
    clients.waiting(3);
    let mut other = PollClient::new(&clients.server);
    other.send("/feeds/aa/items?since=time:2100-01-01T00:00:00Z", "");
    clients.waiting(4);
    clients.send(3..4, &request);
    let (head, problem) = clients.connections[3].answer();
    assert!(head.starts_with("http/1.1 503") && head.contains("retry-after: "), "{head}");
    assert_eq!(problem["type"], "urn:towpath:problem:busy");
    let begun = Instant::now();
    drop(other);
    clients.waiting(3);
    clients.send(3..4, &request);
    clients.waiting(4);
    drop(clients.connections.remove(1));
    clients.connections[1].0.shutdown(Shutdown::Write).unwrap();
    clients.waiting(2);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    publish(&clients.server, "aa", &[put("c")]);
    for number in [0, 2] {
        assert_eq!(ids(&clients.connections[number].answer().1), ["c"]);
    }
    clients.connections.clear();
    clients.waiting(0);
}

/// An edit adds nothing in the order of creation: waiting requests wait on, and others join them.
#[test]
fn an_append_without_a_response_keeps_requests_waiting() {
    let dir = TestFolder::new(ONE_WORKER);
    let mut clients = PollClients::new(&dir, 4);
    clients.cursor =
        clients.server.json("/feeds/aa/items?order=created")["last_cursor"].as_str().unwrap().to_owned();
    let request = clients.request("&order=created");
    clients.cache(&request);
    clients.send(1..2, &request);
    clients.waiting(2);
    publish(&clients.server, "aa", &[put("a")]);
    clients.send(2..3, &request);
    clients.waiting(3);
    assert_eq!(rearmed(&clients.server), 1, "what was known of a log that has moved is asked anew");
    clients.send(3..4, &request);
    clients.waiting(4);
    assert_eq!(rearmed(&clients.server), 2);
    publish(&clients.server, "aa", &[put("c")]);
    for client in &mut clients.connections {
        assert_eq!(ids(&client.answer().1), ["c"]);
    }
}

/// A server that stops answers the waiting requests, and closes the idle connections.
#[test]
fn stopping_answers_waiting_requests() {
    let dir = TestFolder::new(ONE_WORKER);
    let mut clients = PollClients::new(&dir, 4);
    let request = clients.request("");
    clients.cache(&request);
    clients.send(1..3, &request);
    clients.waiting(3);
    assert_eq!(rearmed(&clients.server), 2);
    let PollClients { server, connections: mut clients, cursor } = clients;
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

/// A HEAD request never waits; its cached response does not keep a GET from waiting.
#[test]
fn a_get_waits_after_a_head() {
    let dir = TestFolder::new(ONE_WORKER);
    let clients = PollClients::new(&dir, 1);
    let head = clients.server.ask("HEAD", &clients.path(""), &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    let mut client = PollClient::new(&clients.server);
    client.send(&clients.path(""), "");
    clients.waiting(1);
    publish(&clients.server, "aa", &[put("c")]);
    assert_eq!(ids(&client.answer().1), ["c"]);
}
