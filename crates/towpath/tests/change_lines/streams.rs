//! Event streams of lines: of one feed, of several, with what is there, and from a full server.

use serde_json::json;

use super::{events, ids};

use crate::common::TestFolder;
use crate::common::waiting::{PollClient, publish, put, until, waiters};

const FEEDS: &str = "[server]\nwaiters = 4\nheartbeat = \"1s\"\n[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"bb\"\n\
    [[feed]]\nid = \"events\"\n[[feed]]\nid = \"mine\"\nreaders = [\"reader\"]\n";

#[test]
fn events_are_lines_and_begin_with_the_last() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    publish(&server, "aa", &["a", "b", "c"].map(put));
    let mut client = PollClient::new(&server);
    client.send("/feeds/aa/events?as=line&last=2", "");
    let text = client.read_until(|text| text.contains("title of c"));
    let head = text.to_ascii_lowercase();
    assert!(head.contains("x-accel-buffering: no") && head.contains("no-transform"), "{head}");
    let seen = events(&text);
    assert_eq!(ids(seen.iter().map(|(_, line)| line)), ["b", "c"]);
    assert!(seen.iter().all(|(id, line)| line["position"] == json!(id) && line["feed"] == "aa"), "{text}");
    publish(&server, "aa", &[json!({"op": "delete", "id": "a"})]);
    let text = client.read_until(|text| text.contains("event: delete"));
    assert!(text.contains("\"op\":\"delete\",\"id\":\"a\""), "{text}");
    // A client that comes back goes on after its last event, whatever its address says.
    let mut again = PollClient::new(&server);
    again.send("/feeds/aa/events?as=line&last=2&padding", &format!("Last-Event-ID: {}\r\n", seen[1].0));
    let text = again.read_until(|text| text.contains("event: delete"));
    assert_eq!(ids(events(&text).iter().map(|(_, line)| line)), ["a"]);
    assert!(text.contains(&format!(":{}", " ".repeat(2048))), "padding");
}

#[test]
fn one_stream_resumes_many_feeds() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    publish(&server, "aa", &["a", "b"].map(put));
    publish(&server, "bb", &["c", "d"].map(put));
    let mut client = PollClient::new(&server);
    client.send("/feeds/events?feed=bb&feed=aa&feed=aa&last=1", "");
    let text = client.read_until(|text| events(text).len() == 2);
    assert_eq!(ids(events(&text).iter().map(|(_, line)| line)), ["b", "d"]);
    publish(&server, "bb", &[put("e"), put("f")]);
    publish(&server, "aa", &[put("g")]);
    let text = client.read_until(|text| events(text).len() == 5);
    let seen = events(&text);
    drop(client);
    publish(&server, "aa", &[put("h")]);
    // Cut off after any event, the client gets exactly the others.
    for (index, (id, _)) in seen.iter().enumerate() {
        let mut again = PollClient::new(&server);
        again.send("/feeds/events?feed=aa&feed=bb&last=9", &format!("Last-Event-ID: {id}\r\n"));
        let text = again.read_until(|text| events(text).len() == seen.len() - index);
        let mut rest: Vec<String> = events(&text).iter().map(|(_, line)| line["id"].to_string()).collect();
        let mut expected: Vec<String> =
            seen[index + 1..].iter().map(|(_, line)| line["id"].to_string()).collect();
        expected.push("\"h\"".into());
        rest.sort();
        expected.sort();
        assert_eq!(rest, expected, "after {id}");
    }
    // An id of other feeds degrades: everything comes again, after a reset.
    let mut lost = PollClient::new(&server);
    lost.send("/feeds/events?feed=bb", "Last-Event-ID: m7-0123456789\r\n");
    let text = lost.read_until(|text| events(text).len() == 5);
    assert_eq!(events(&text)[0].1, json!({"feed": "bb", "op": "reset"}));
}

#[test]
fn private_feeds_are_not_told_from_absent_ones() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let refused = |name: &str, token: &str| {
        let header = format!("Bearer {token}");
        let answer = server.ask(
            "GET",
            &format!("/feeds/events?feed=aa&feed={name}"),
            &[("Authorization", &header)],
            b"",
        );
        (answer.status, answer.text().replace(name, "NAME"))
    };
    assert_eq!(refused("mine", "wrong").0, 404);
    assert_eq!(refused("mine", "wrong"), refused("none", "wrong"));
    publish(&server, "mine", &[put("secret")]);
    let mut reader = PollClient::new(&server);
    reader.send("/feeds/events?feed=aa&feed=mine&last=1", "Authorization: Bearer reader\r\n");
    let text = reader.read_until(|text| text.contains("title of secret"));
    assert!(text.to_ascii_lowercase().contains("cache-control: private"), "{text}");
    let many: String = (0..65).map(|n| format!("feed=f{n}&")).collect();
    assert_eq!(server.get(&format!("/feeds/events?{many}")).status, 400);
    assert_eq!(server.get("/feeds/events?feed=aa&last=x").status, 400);
    // A feed may have the name of the address.
    assert_eq!(server.json("/feeds/events")["id"], "events");
}

/// `EventSource` gives up after any status but 200, so a full server says when to come back.
#[test]
fn a_full_server_has_streams_come_back() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let mut clients: Vec<PollClient> = (0..4).map(|_| PollClient::new(&server)).collect();
    for client in &mut clients {
        client.send("/feeds/aa/events", "");
    }
    until("they wait", || waiters(&server) == 4);
    for path in ["/feeds/aa/events", "/feeds/aa/events?as=line", "/feeds/events?feed=aa&feed=bb"] {
        let answer = server.get(path);
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("text/event-stream")),
            "{path}"
        );
        let retry: u32 =
            answer.text().lines().find_map(|line| line.strip_prefix("retry: ")?.parse().ok()).unwrap();
        assert!((5_000..15_000).contains(&retry));
    }
    drop(clients.pop());
    until("there is room", || waiters(&server) == 3);
    clients.push(PollClient::new(&server));
    clients[3].send("/feeds/aa/events?last=1", "");
    clients[3].read_until(|text| text.contains("title of a"));
}

#[test]
fn a_stream_of_no_feeds_names_the_parameter() {
    let dir = TestFolder::new("[[feed]]\nid = \"aa\"\n");
    let server = dir.serve();
    for query in ["", "?last=1"] {
        let unnamed = server.get(&format!("/feeds/events{query}"));
        let problem = unnamed.json();
        assert_eq!((unnamed.status, problem["parameter"].as_str()), (400, Some("feed")), "{problem}");
    }
}
