//! The XMPP component beside Debian's Prosody and ejabberd, with slixmpp as client ("XMPP Pull/Push").

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::xmpp::{HOSTS, SECRET, SERVICE, Software, XmppServer, beside_xmpp_servers};
use crate::common::{PATIENCE, TestFolder, TestServer};

beside_xmpp_servers!(
    both: [
        pages_in_both_directions,
        pushes_to_accounts_of_two_servers,
        discovery_and_errors,
        restarts,
        a_server_that_refuses,
    ],
    prosody: [a_push_has_one_item, subscribers_of_a_removed_feed_are_told, large_items]
);

const FEEDS: &str = "
[[feed]]
id = \"comments\"
title = \"Comments\"
[[feed]]
id = \"toc\"
cursor = \"toc\"
[[feed]]
id = \"tagged\"
filter = { of = \"comments\", tags = [\"yes\"] }
[[feed]]
id = \"private\"
readers = [\"token\"]
";

fn dir(xmpp_server: &XmppServer) -> TestFolder {
    TestFolder::new(&format!("{}{FEEDS}", xmpp_server.component()))
}

fn publish(server: &TestServer, feed: &str, lines: &[Value]) {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn put(id: &str, content: &str) -> Value {
    json!({ "id": id, "content": content, "item": { "title": format!("Title of {id}") } })
}

fn publish_many(server: &TestServer, feed: &str, count: usize) -> Vec<String> {
    let ids: Vec<String> = (0..count).map(|number| format!("c{number:03}")).collect();
    publish(server, feed, &ids.iter().map(|id| put(id, "text")).collect::<Vec<_>>());
    ids
}

/// Waits until towpath has logged this text so many times.
fn wait_for_log(dir: &TestFolder, needle: &str, times: usize) {
    let end = Instant::now() + PATIENCE;
    while dir.log().matches(needle).count() < times {
        assert!(Instant::now() < end, "{needle:?} is not in {}", dir.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

const CONNECTED: &str = "is connected to";

fn ids(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
    items.iter().map(|item| item["id"].as_str().unwrap()).collect()
}

/// "XMPP Pull/Push", pull: pages in both directions by the client's own iterator, and every part of a page.
fn pages_in_both_directions(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let dir = dir(&xmpp_server);
    let server = dir.serve();
    wait_for_log(&dir, CONNECTED, 1);
    let mut client = xmpp_server.client("alice", HOSTS[0], "1");
    for feed in ["comments", "toc"] {
        let all = publish_many(&server, feed, 57);
        for order in ["created", "modified"] {
            let node = format!("{feed}?order={order}");
            for reverse in [false, true] {
                let walk = client.ask("walk", json!({ "node": node, "amount": 10, "reverse": reverse }));
                assert_eq!(walk["ids"], json!(all), "{node} {reverse}");
            }
            let page = client.ask("items", json!({ "node": node, "max": "5" }));
            assert_eq!(
                (&page["node"], ids(&page)),
                (&json!(node), all[..5].iter().map(String::as_str).collect())
            );
            assert_eq!((&page["index"], &page["count"]), (&json!("0"), &json!("57")));
            assert!(page["first"].as_str().unwrap().starts_with("cursor:"));
            let next = client.ask("items", json!({ "node": node, "max": "5", "after": page["last"] }));
            assert_eq!(ids(&next)[0], all[5]);
            let back = client.ask("items", json!({ "node": node, "max": "3", "before": next["first"] }));
            assert_eq!(ids(&back), ["c002", "c003", "c004"]);
            let last = client.ask("last", json!({ "node": node, "max_items": 2 }));
            assert_eq!(ids(&last), ["c055", "c056"]);
            // XEP-0059, 2.6: "the 'index' attribute … MUST be the same as the index specified in the request".
            for (index, ids_there) in
                [(1, &all[1..4]), (40, &all[40..43]), (55, &all[55..]), (57, &all[57..])]
            {
                let page =
                    client.ask("items", json!({ "node": node, "max": "3", "index": index.to_string() }));
                assert_eq!(ids(&page), ids_there.iter().map(String::as_str).collect::<Vec<_>>());
                let told = if ids_there.is_empty() { Value::Null } else { json!(index.to_string()) };
                assert_eq!((&page["index"], &page["count"]), (&told, &json!("57")));
            }
            let single = client.ask("single", json!({ "node": node, "ids": ["c040", "c002", "unknown"] }));
            assert_eq!(ids(&single), ["c040", "c002"]);
            let none = client.ask("single", json!({ "node": node, "ids": ["unknown"] }));
            assert_eq!(none["error"], "item-not-found");
            let count = client.ask("items", json!({ "node": node, "max": "0" }));
            assert_eq!((ids(&count).len(), &count["count"], &count["last"]), (0, &json!("57"), &json!("")));
        }
    }
    let item = &client.ask("items", json!({ "node": "comments", "max": "1" }))["items"][0];
    assert_eq!(
        (&item["fo"], &item["title"], &item["content"]),
        (&json!("c000"), &json!("Title of c000"), &json!("text"))
    );
    // "Items are never truly deleted, but stripped of content and marked as deleted."
    publish(&server, "comments", &[json!({ "op": "delete", "id": "c000" })]);
    let last = &client.ask("last", json!({ "node": "comments", "max_items": 1 }))["items"][0];
    assert_eq!(
        (&last["id"], &last["deleted"], &last["content"]),
        (&json!("c000"), &json!(true), &json!(null))
    );
}

/// "Once subscribed, the server can push message notifications", to accounts of several servers.
fn pushes_to_accounts_of_two_servers(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let dir = dir(&xmpp_server);
    let server = dir.serve();
    wait_for_log(&dir, CONNECTED, 1);
    let mut clients = HOSTS.map(|host| xmpp_server.client("alice", host, "1"));
    let node = "comments?order=modified";
    for client in &mut clients {
        let jid = client.jid.clone();
        let subscribed = client.ask("subscribe", json!({ "node": node }));
        assert_eq!(subscribed, json!({ "node": node, "jid": jid, "subscription": "subscribed" }));
        let all = client.ask("subscriptions", json!({}));
        assert_eq!(all["subscriptions"], json!([[node, jid, "subscribed"]]));
        client.ask("subscribe", json!({ "node": "tagged" }));
    }
    let mut previous = Value::Null;
    for (number, id) in ["a", "b", "a"].into_iter().enumerate() {
        publish(&server, "comments", &[put(id, &format!("version {number}"))]);
        let pushes = clients.each_mut().map(|client| client.pushed());
        let push = &pushes[0];
        assert_eq!(push, &pushes[1]);
        assert_eq!(
            (&push["from"], &push["type"], &push["node"]),
            (&json!(SERVICE), &json!("headline"), &json!(node))
        );
        assert_eq!(push["items"][0]["content"], format!("version {number}"));
        assert_eq!(push["headers"]["PreviousCursor"], previous);
        assert_eq!(push["headers"]["TotalItems"], [1, 2, 2][number].to_string());
        previous = push["headers"]["LastCursor"].clone();
        let last = clients[0].ask("last", json!({ "node": node, "max_items": 1 }));
        assert_eq!(last["last"], format!("cursor:{}", previous.as_str().unwrap()));
    }
    // The web page lists them.
    let shown = server.ask("GET", "/feeds/comments/subscribers", &[("accept", "text/html")], b"").text();
    assert!(shown.contains(node) && clients.iter().all(|client| shown.contains(&client.jid)), "{shown}");
    // A filter's node pushes the items that it shows.
    publish(&server, "comments", &[json!({ "id": "t", "content": "x", "item": { "tags": ["yes"] } })]);
    for client in &mut clients {
        let mut nodes =
            [client.pushed(), client.pushed()].map(|push| push["node"].as_str().unwrap().to_owned());
        nodes.sort();
        assert_eq!(nodes, ["comments?order=modified", "tagged"]);
        assert_eq!(client.ask("unsubscribe", json!({ "node": "tagged" })), json!({}));
        assert_eq!(client.ask("unsubscribe", json!({ "node": node })), json!({}));
        assert_eq!(client.ask("unsubscribe", json!({ "node": node }))["own"], json!(["not-subscribed"]));
    }
    publish(&server, "comments", &[put("b", "unseen")]);
    assert!(clients.iter_mut().all(|client| client.is_quiet()));
}

/// Several items that are published together are told one by one by the client's own event, and single items of a
/// filter are those that it shows.
fn a_push_has_one_item(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let dir = dir(&xmpp_server);
    let server = dir.serve();
    wait_for_log(&dir, CONNECTED, 1);
    let mut client = xmpp_server.client("alice", HOSTS[0], "1");
    client.ask("subscribe", json!({ "node": "comments" }));
    let ids_published = publish_many(&server, "comments", 5);
    let told = client.ask("published", json!({ "count": 5 }));
    assert_eq!(told["ids"], json!(ids_published));
    publish(&server, "comments", &[json!({ "id": "t", "content": "x", "item": { "tags": ["yes"] } })]);
    let single = client.ask("single", json!({ "node": "tagged", "ids": ["t", "c000"] }));
    assert_eq!(ids(&single), ["t"]);
}

/// XEP-0060, 8.4.2: subscribers are told when a node goes, and why. Other subscriptions stay.
fn subscribers_of_a_removed_feed_are_told(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let dir = dir(&xmpp_server);
    let server = dir.serve();
    wait_for_log(&dir, CONNECTED, 1);
    let mut client = xmpp_server.client("alice", HOSTS[0], "1");
    assert_eq!(server.ask("PUT", "/feeds/made", &[], b"").status, 201);
    for node in ["made", "toc"] {
        assert_eq!(client.ask("subscribe", json!({ "node": node }))["subscription"], "subscribed");
    }
    assert_eq!(server.ask("DELETE", "/feeds/made?reason=moved+to+toc", &[], b"").status, 200);
    let told = client.send_command(&json!({ "do": "deleted" }));
    let reason = "feed \"made\" was removed from this server: moved to toc";
    assert_eq!(told, json!({ "from": SERVICE, "node": "made", "reason": reason }));
    let left = client.ask("subscriptions", json!({}));
    assert_eq!(left["subscriptions"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(client.ask("items", json!({ "node": "made" }))["error"], "item-not-found");
    // A feed that is not public any more has no node either: its subscribers would wait for ever.
    assert_eq!(server.stop(), Some(0));
    let private = FEEDS.replace("cursor = \"toc\"", "cursor = \"toc\"\nreaders = [\"token\"]");
    dir.write("towpath.toml", format!("{}{private}", xmpp_server.component()).as_bytes());
    let _server = dir.serve();
    let told = client.send_command(&json!({ "do": "deleted" }));
    let reason = "this feed is not open to everybody";
    assert_eq!(told, json!({ "from": SERVICE, "node": "toc", "reason": reason }));
}

/// XEP-0030, XEP-0060, XEP-0131: discovery, and errors for bad input.
fn discovery_and_errors(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let dir = dir(&xmpp_server);
    let server = dir.serve();
    wait_for_log(&dir, CONNECTED, 1);
    publish_many(&server, "comments", 3);
    let mut client = xmpp_server.client("alice", HOSTS[0], "1");
    let info = client.ask("info", json!({}));
    for feature in ["pubsub", "rsm", "shim", "disco#items"] {
        let feature = json!(format!("http://jabber.org/protocol/{feature}"));
        assert!(info["features"].as_array().unwrap().contains(&feature), "{info}");
    }
    assert_eq!((&info["identities"][0][0], &info["identities"][0][1]), (&json!("pubsub"), &json!("service")));
    let headers = client.ask("info", json!({ "node": "http://jabber.org/protocol/shim" }));
    assert_eq!(headers["features"].as_array().unwrap().len(), 3);
    let nodes = client.ask("nodes", json!({}));
    let expected: Vec<String> = ["comments", "tagged", "toc"]
        .iter()
        .flat_map(|feed| ["created", "modified"].map(|order| format!("{feed}?order={order}")))
        .collect();
    assert_eq!(nodes["nodes"], json!(expected));

    let mut error =
        |what: &str, command: Value| client.ask(what, command)["error"].as_str().unwrap().to_owned();
    for (node, expected) in [
        ("unknown?order=created", "item-not-found"),
        ("../etc", "item-not-found"),
        ("private", "forbidden"),
        ("comments?order=sideways", "bad-request"),
    ] {
        assert_eq!(error("items", json!({ "node": node, "max": "1" })), expected, "{node}");
        assert_eq!(error("subscribe", json!({ "node": node })), expected, "{node}");
    }
    let pubsub = |inner: &str| format!("<pubsub xmlns='http://jabber.org/protocol/pubsub'>{inner}</pubsub>");
    for (kind, xml, expected) in [
        ("get", pubsub("<items/>"), "bad-request"),
        ("get", pubsub(""), "bad-request"),
        ("get", pubsub("<items node='comments'/><items node='toc'/>"), "bad-request"),
        ("set", pubsub("<publish node='comments'><item/></publish>"), "feature-not-implemented"),
        // An account may subscribe itself only.
        ("set", pubsub("<subscribe node='comments' jid='bob@one.localhost'/>"), "bad-request"),
        (
            "get",
            pubsub("<items node='comments'/><set xmlns='http://jabber.org/protocol/rsm'><max>-1</max></set>"),
            "bad-request",
        ),
        ("get", "<pubsub xmlns='http://jabber.org/protocol/pubsub#wrong'/>".into(), "service-unavailable"),
        ("get", "<query xmlns='jabber:iq:version'/>".into(), "service-unavailable"),
        // 100 kB, which the server accepts.
        ("get", pubsub(&format!("<items node='{}'/>", "n".repeat(100_000))), "bad-request"),
    ] {
        assert_eq!(error("raw", json!({ "type": kind, "xml": xml })), expected, "{xml:.200}");
    }
    // The connection still works.
    assert_eq!(client.ask("ping", json!({})), json!({}));
    assert_eq!(client.ask("flood", json!({ "node": "comments", "count": 300 }))["answers"], 300);
    let dropped = dir.log().lines().filter(|line| line.contains("panicked")).count();
    assert_eq!(dropped, 0, "{}", dir.log());
}

/// A page of large items stays below the server's limit, and a larger item is sent as a link.
fn large_items(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let dir = dir(&xmpp_server);
    let server = dir.serve();
    wait_for_log(&dir, CONNECTED, 1);
    let lines: Vec<Value> =
        // Escaping makes most of these characters several times as long.
        (0..12).map(|number| put(&format!("c{number:03}"), &"<&\"x".repeat(15_000))).collect();
    publish(&server, "comments", &lines);
    let mut client = xmpp_server.client("alice", HOSTS[0], "1");
    client.ask("subscribe", json!({ "node": "comments" }));
    let walk = client.ask("walk", json!({ "node": "comments", "amount": 50, "reverse": false }));
    assert_eq!(walk["ids"].as_array().unwrap().len(), 12, "{walk}");
    publish(&server, "comments", &[put("huge", &"x".repeat(1 << 20))]);
    let item = &client.pushed()["items"][0];
    assert_eq!((&item["id"], &item["content"]), (&json!("huge"), &json!(null)));
    let src = item["src"].as_str().unwrap();
    let whole = server.get(src.strip_prefix(&server.base).unwrap());
    assert_eq!((whole.status, whole.body.len()), (200, 1 << 20));
}

/// The component reconnects, and no client has to subscribe again: after restarts of the server, of towpath, of both.
fn restarts(software: Software) {
    let mut xmpp_server = XmppServer::start(software, &["alice"]);
    let dir = dir(&xmpp_server);
    let mut server = dir.serve();
    wait_for_log(&dir, CONNECTED, 1);
    let mut client = xmpp_server.client("alice", HOSTS[0], "1");
    client.ask("subscribe", json!({ "node": "comments" }));
    publish(&server, "comments", &[put("a", "1")]);
    let mut last = client.pushed()["headers"]["LastCursor"].clone();

    xmpp_server.stop();
    publish(&server, "comments", &[put("b", "2")]);
    xmpp_server.run();
    client.wait_until_ready(&xmpp_server);
    wait_for_log(&dir, CONNECTED, 2);
    publish(&server, "comments", &[put("c", "3")]);
    // Items published while the client was away may have been pushed before it was back.
    let mut push = client.pushed();
    if ids(&push) == ["b"] {
        assert_eq!(push["headers"]["PreviousCursor"], last);
        last = push["headers"]["LastCursor"].clone();
        push = client.pushed();
        assert_eq!(push["headers"]["PreviousCursor"], last);
    }
    assert_eq!(ids(&push).last(), Some(&"c"));
    last = push["headers"]["LastCursor"].clone();

    for is_killed in [false, true] {
        if is_killed {
            // Pushes of the last two seconds are not persisted, and would be repeated.
            std::thread::sleep(Duration::from_secs(4));
            server.kill();
        } else {
            assert_eq!(server.stop(), Some(0));
        }
        // Prosody may pass the request to the connection that was closed; slixmpp would wait two minutes.
        let missing = client.ask("items", json!({ "node": "comments", "max": "1", "timeout": 5 }));
        assert!(missing["error"].is_string(), "{missing}");
        // Items published before the component is back are pushed then.
        server = dir.serve();
        // Another content each time: an unchanged item is no change.
        publish(&server, "comments", &[put("d", if is_killed { "5" } else { "4" })]);
        let push = client.pushed();
        assert_eq!((ids(&push), &push["headers"]["PreviousCursor"]), (vec!["d"], &last));
        last = push["headers"]["LastCursor"].clone();
    }
    let listed = client.ask("subscriptions", json!({}))["subscriptions"].as_array().unwrap().len();
    assert_eq!(listed, 1);
}

/// XEP-0114, 3: a refused secret or name is reported once, and towpath serves all the same.
fn a_server_that_refuses(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    // ejabberd does not tell whether it knows the name.
    let unknown = match software {
        Software::Prosody => "host-unknown",
        Software::Ejabberd => "no component of this name",
    };
    for (jid, secret, needle) in [(SERVICE, "wrong", "not-authorized"), ("other.localhost", SECRET, unknown)]
    {
        let dir = TestFolder::new(&format!("{}{FEEDS}", xmpp_server.component_with(jid, secret)));
        let server = dir.serve();
        wait_for_log(&dir, needle, 1);
        // Time for several attempts, each of which is refused again.
        std::thread::sleep(Duration::from_millis(3500));
        assert_eq!(dir.log().matches(needle).count(), 1, "{}", dir.log());
        assert!(!dir.log().contains("wrong"));
        publish_many(&server, "comments", 1);
        assert_eq!(server.stop(), Some(0));
    }
    // towpath waits for a server that is down.
    let dir = dir(&xmpp_server);
    let mut xmpp_server = xmpp_server;
    xmpp_server.stop();
    let _server = dir.serve();
    wait_for_log(&dir, "is not connected to", 1);
    xmpp_server.run();
    wait_for_log(&dir, CONNECTED, 1);
}
