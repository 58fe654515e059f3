//! `[[sink]]`: feeds are copied to destinations, whatever becomes of these and of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::callback::{CallbackReply, CallbackRequest, CallbackServer, good};
use crate::common::{PATIENCE, TestFolder, TestServer, wait_until, wait_within};
use crate::nodes::TestCluster;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Ids of the items that a receiver was sent, in order.
fn delivered(receiver: &CallbackServer) -> Vec<String> {
    let ids = |call: CallbackRequest| {
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        let changes = body["data"]["changes"].as_array().unwrap().clone();
        changes.into_iter().map(|line| line["id"].as_str().unwrap().to_owned())
    };
    receiver.calls().into_iter().flat_map(ids).collect()
}

fn wait_for_items(receiver: &CallbackServer, wanted: &[&str]) {
    wait_until(&format!("{wanted:?} is delivered"), || delivered(receiver) == wanted);
}

fn reply(status: u16) -> CallbackReply {
    (status, String::new(), Vec::new())
}

/// A receiver that answers with a status that may be changed.
fn answering(status: u16) -> (CallbackServer, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(status));
    let answers = status.clone();
    let server = CallbackServer::start(move |_| reply(answers.load(Ordering::Relaxed)));
    (server, status)
}

fn webhook(name: &str, url: &str) -> String {
    format!(
        "[[sink]]\nname = \"{name}\"\nfeeds = [\"news*\"]\ninto = \"webhook:{url}\"\nsecrets = [\"{SECRET}\"]\n\
         allow_private = true\n"
    )
}

fn publish(server: &TestServer, id: &str) {
    let line = json!({ "id": id, "item": { "title": id } }).to_string();
    let answer = server.ask("POST", "/feeds/news/items", &[], line.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn sink(server: &TestServer, name: &str) -> Value {
    server.json(&format!("/sinks/{name}"))
}

/// Waits until a sink's position is behind all that its receiver has: it is stored after the receiver's answer.
fn wait_until_stored(server: &TestServer, name: &str) {
    wait_until(&format!("{name} is at the end"), || sink(server, name)["lag"] == 0);
}

fn order(server: &TestServer, name: &str, order: &str) {
    let answer = server.ask("POST", &format!("/sinks/{name}/{order}"), &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

const FEED: &str = "[server]\nlisten = \"127.0.0.1:0\"\n[[feed]]\nid = \"news\"\n[[feed]]\nid = \"other\"\n";

#[test]
fn a_dead_receiver_slows_nobody_and_gets_everything_in_the_end() {
    let (alive, (dead, status)) = (CallbackServer::start(good), answering(503));
    let config =
        [FEED, &webhook("alive", &alive.url("/hook")), &webhook("dead", &dead.url("/hook"))].concat();
    let folder = TestFolder::new(&config);
    let server = folder.serve();
    for id in ["a", "b", "c"] {
        publish(&server, id);
    }
    wait_for_items(&alive, &["a", "b", "c"]);
    let call = &alive.calls()[0];
    assert!(call.header("webhook-signature").unwrap().starts_with("v1,"));
    assert!(call.header("webhook-id").unwrap().starts_with("msg_"));
    wait_until("the dead one is waited for", || {
        let state = sink(&server, "dead");
        state["state"] == "waiting" && state["lag"] == 3
    });
    wait_until("the other one is at the end", || sink(&server, "alive")["lag"] == 0);
    let state = sink(&server, "dead");
    assert!(state["error"]["message"].as_str().unwrap().contains("503"), "{state}");
    let metrics = server.get("/metrics").text();
    assert!(metrics.contains("towpath_sink_lag{sink=\"dead\"} 3"), "{metrics}");
    assert!(metrics.contains("towpath_sink_lag_seconds{sink=\"dead\"} "), "{metrics}");
    assert!(metrics.contains("towpath_sink_up{sink=\"alive\"} 1"), "{metrics}");
    assert!(metrics.contains("towpath_sink_up{sink=\"dead\"} 0"), "{metrics}");
    assert!(metrics.contains("towpath_sink_last_delivery_timestamp_seconds{sink=\"alive\"} "), "{metrics}");
    let listed = crate::common::stdout(&folder.run(&["sink", "list"]));
    assert!(listed.contains("alive") && listed.contains("503"), "{listed}");
    let shown = folder.run(&["status"]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(crate::common::stderr(&shown).contains("sink dead"), "{}", crate::common::stderr(&shown));
    assert!(crate::common::stdout(&shown).contains("waiting"), "{}", crate::common::stdout(&shown));
    let status_json: Value =
        serde_json::from_str(&crate::common::stdout(&folder.run(&["status", "--format", "json"]))).unwrap();
    assert_eq!(status_json["sinks"][1]["lag"], 3, "{status_json}");
    // A failing destination is no failure of what is served.
    let health = server.json("/healthz.json");
    assert_eq!((&health["status"], &health["sinks"]["failing"]), (&json!("degraded"), &json!(1)), "{health}");
    let ready = server.json("/readyz");
    assert_eq!((&ready["status"], &ready["parts"]["sinks"]["status"]), (&json!("ready"), &json!("degraded")));
    // Nor is it one of the container, whose health check this is.
    for (state, answer) in [("live", "\"live\""), ("ready", "\"ready\"")] {
        let probed = folder.run(&["status", "--probe", state]);
        let printed = crate::common::stdout(&probed);
        assert!(probed.status.success() && printed.contains(answer), "{printed}");
    }
    order(&server, "alive", "pause");
    wait_until("the pause shows in health and metrics", || {
        let metrics = server.get("/metrics").text();
        server.json("/readyz")["parts"]["sinks"]["paused"] == 1
            && metrics.contains("towpath_sink_paused{sink=\"alive\"} 1")
    });
    assert!(crate::common::stdout(&folder.run(&["status"])).contains("paused"));
    // What an operator has paused does not fail.
    order(&server, "dead", "pause");
    wait_until("nothing fails", || {
        let sinks = &server.json("/healthz.json")["sinks"];
        (&sinks["failing"], &sinks["paused"]) == (&json!(0), &json!(2))
    });
    assert_eq!(folder.run(&["status"]).status.code(), Some(0));
    // Resumed, it is tried at once, not only after the wait.
    status.store(204, Ordering::Relaxed);
    order(&server, "dead", "resume");
    wait_until("the dead one has caught up", || sink(&server, "dead")["lag"] == 0);
    // Only what was new: the first message was refused, so it came several times.
    let mut got = delivered(&dead);
    got.dedup();
    assert!(got.ends_with(&["a".into(), "b".into(), "c".into()]), "{got:?}");
}

#[test]
fn positions_and_pauses_outlast_a_restart() {
    let receiver = CallbackServer::start(good);
    let folder = TestFolder::new(&[FEED, &webhook("hook", &receiver.url("/hook"))].concat());
    let server = folder.serve();
    publish(&server, "a");
    wait_for_items(&receiver, &["a"]);
    wait_until_stored(&server, "hook");
    order(&server, "hook", "pause");
    wait_until("it is paused", || sink(&server, "hook")["state"] == "paused");
    publish(&server, "b");
    server.stop();
    let server = folder.serve();
    publish(&server, "c");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(delivered(&receiver), ["a"]);
    order(&server, "hook", "resume");
    wait_for_items(&receiver, &["a", "b", "c"]);
}

#[test]
fn refused_items_are_kept_aside_and_sent_again() {
    let picky = Arc::new(AtomicU16::new(422));
    let answers = picky.clone();
    let receiver = CallbackServer::start(move |call| {
        let is_bad = String::from_utf8_lossy(&call.body).contains("\"id\":\"bad\"");
        let status = if is_bad { answers.load(Ordering::Relaxed) } else { 204 };
        reply(status)
    });
    let folder = TestFolder::new(&[FEED, &webhook("hook", &receiver.url("/hook"))].concat());
    let server = folder.serve();
    for id in ["a", "bad", "b"] {
        publish(&server, id);
    }
    wait_until("the bad one is set aside", || sink(&server, "hook")["dead_letters"] == 1);
    wait_until("the others are delivered", || sink(&server, "hook")["lag"] == 0);
    let mistyped = folder.run(&["sink", "letters", "hok"]);
    let said = String::from_utf8_lossy(&mistyped.stderr).into_owned();
    assert!(said.contains("did you mean \"hook\"?"), "{said}");
    let letters = server.json("/sinks/hook/letters");
    assert_eq!(letters["letters"][0]["change"]["id"], "bad");
    assert!(letters["letters"][0]["reason"].as_str().unwrap().contains("422"), "{letters}");
    picky.store(204, Ordering::Relaxed);
    let before = receiver.calls().len();
    let resent = folder.run(&["sink", "resend", "hook"]);
    assert!(resent.status.success(), "{}", crate::common::stderr(&resent));
    wait_until("there are no letters", || sink(&server, "hook")["dead_letters"] == 0);
    assert_eq!(receiver.calls().len(), before + 1);
    assert_eq!(delivered(&receiver).last().map(String::as_str), Some("bad"));
}

#[test]
fn large_refused_items_make_a_sink_wait() {
    let (receiver, _) = answering(422);
    let folder = TestFolder::new(&[FEED, &webhook("hook", &receiver.url("/hook"))].concat());
    let server = folder.serve();
    // Together more than the 64 MiB that are kept.
    let large = vec![b'x'; 33 << 20];
    for id in ["a", "b"] {
        let answer =
            server.ask("PUT", &format!("/feeds/news/items/{id}"), &[("Content-Type", "text/plain")], &large);
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    publish(&server, "c");
    // Encoding them takes a development build most of half a minute.
    wait_within(4 * PATIENCE, "the third waits", || {
        let sink = sink(&server, "hook");
        sink["error"]["message"].as_str().is_some_and(|message| message.contains("2 items of 66 MiB"))
    });
    assert_eq!(sink(&server, "hook")["dead_letters"], 2);
    let dropped = folder.run(&["sink", "drop", "hook"]);
    assert!(dropped.status.success(), "{}", crate::common::stderr(&dropped));
    order(&server, "hook", "resume");
    wait_until("the third is kept", || {
        let sink = sink(&server, "hook");
        sink["lag"] == 0 && sink["dead_letters"] == 1
    });
}

#[test]
fn a_receiver_that_is_gone_stops_its_sink_until_it_is_resumed() {
    let (receiver, status) = answering(410);
    let folder = TestFolder::new(&[FEED, &webhook("hook", &receiver.url("/hook"))].concat());
    let server = folder.serve();
    publish(&server, "a");
    wait_until("it has stopped", || sink(&server, "hook")["paused"] == true);
    let message = sink(&server, "hook")["error"]["message"].clone();
    let said = |part: &str| message.as_str().unwrap().contains(part);
    assert!(said("410") && said("`towpath sink resume hook`"), "{message}");
    publish(&server, "b");
    status.store(204, Ordering::Relaxed);
    order(&server, "hook", "resume");
    wait_until("it has caught up", || sink(&server, "hook")["lag"] == 0);
    assert_eq!(delivered(&receiver).last().map(String::as_str), Some("b"));
}

/// A server that was killed before it had saved the sink's state does not take for a lag what the destination has.
#[test]
fn a_killed_server_knows_what_its_sinks_have() {
    let receiver = CallbackServer::start(good);
    let copy = "[[sink]]\nname = \"copy\"\nfeeds = [\"news\"]\ninto = \"dir:copy\"\n";
    let folder = TestFolder::new(&[FEED, copy, &webhook("hook", &receiver.url("/hook"))].concat());
    let server = folder.serve();
    publish(&server, "a");
    wait_until_stored(&server, "copy");
    wait_until_stored(&server, "hook");
    server.kill();
    let works = |server: &TestServer| {
        wait_until("the sinks work", || {
            ["copy", "hook"].iter().all(|name| {
                let sink = sink(server, name);
                sink["state"] == "running" && sink["lag"] == 0
            })
        });
    };
    let server = folder.serve();
    works(&server);
    assert_eq!(server.stop(), Some(0));
    works(&folder.serve());
    assert_eq!(delivered(&receiver), ["a"]);
}

/// A mistake of the configuration is tried again, so that mending it suffices.
#[test]
fn a_private_address_is_delivered_to_once_it_is_permitted() {
    let receiver = CallbackServer::start(good);
    let config = [FEED, &webhook("hook", &receiver.url("/hook"))].concat();
    let folder = TestFolder::new(&config.replace("allow_private = true", ""));
    let server = folder.serve();
    publish(&server, "a");
    wait_until("it fails", || sink(&server, "hook")["error"]["message"].is_string());
    let state = sink(&server, "hook");
    assert!(state["error"]["message"].as_str().unwrap().contains("set allow_private"), "{state}");
    assert_eq!((&state["state"], &state["paused"]), (&json!("waiting"), &json!(false)), "{state}");
    folder.write("towpath.toml", config.as_bytes());
    assert!(folder.run(&["reload"]).status.success());
    wait_for_items(&receiver, &["a"]);
}

#[test]
fn another_servers_feed_is_copied_and_strangers_see_no_sinks() {
    let receiver = CallbackServer::start(good);
    let origin = TestFolder::new(FEED);
    let publisher = origin.serve();
    publish(&publisher, "a");
    let sink_of_url = webhook("hook", &receiver.url("/hook"))
        .replace("feeds = [\"news*\"]", &format!("url = \"{}/feeds/news\"", publisher.base));
    let config = format!("[server]\nlisten = \"127.0.0.1:0\"\ntokens = [\"boss\"]\n{sink_of_url}");
    let folder = TestFolder::new(&config);
    let server = folder.serve();
    wait_for_items(&receiver, &["a"]);
    publish(&publisher, "b");
    wait_for_items(&receiver, &["a", "b"]);
    assert_eq!(server.get("/sinks").status, 401);
    let listed = server.ask("GET", "/sinks", &[("authorization", "Bearer boss")], b"").json();
    assert_eq!(listed["sinks"][0]["name"], "hook");
    assert_eq!(server.ask("GET", "/sinks/none", &[("authorization", "Bearer boss")], b"").status, 404);
}

/// As `towpath follow --into` does.
#[test]
fn another_servers_feed_is_followed_by_the_protocol_that_is_named() {
    let origin = TestFolder::new(FEED);
    let publisher = origin.serve();
    publish(&publisher, "a");
    let config = |protocol: &str| {
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[[sink]]\nname = \"copy\"\ninto = \"dir:copy\"\n\
             url = \"{}/feeds/news\"\nprotocol = \"{protocol}\"\n",
            publisher.base
        )
    };
    let folder = TestFolder::new(&config("smart"));
    let server = folder.serve();
    // The page of a feed is no Smart Feed: it names one.
    wait_until("the feed of the page is copied", || sink(&server, "copy")["delivered"] == 1);
    folder.write("towpath.toml", config("replication").as_bytes());
    assert!(folder.run(&["reload"]).status.success());
    wait_until("the position does not fit", || sink(&server, "copy")["error"]["message"].is_string());
    let state = sink(&server, "copy");
    let message = state["error"]["message"].as_str().unwrap();
    assert!(message.contains("by the protocol smart so far, not replication"), "{state}");
    folder.write("towpath.toml", config("smart").as_bytes());
    assert!(folder.run(&["reload"]).status.success());
    publish(&publisher, "b");
    wait_until("it goes on", || sink(&server, "copy")["delivered"] == 2);
}

#[test]
fn mistakes_are_told_before_anything_starts() {
    for (sink, needle) in [
        ("into = \"webhook:https://a.example/\"\nsecrets = [\"short\"]", "secret 1"),
        ("into = \"nowhere\"", "not a destination"),
    ] {
        let folder = TestFolder::new(&format!("{FEED}[[sink]]\nname = \"x\"\nfeeds = [\"*\"]\n{sink}\n"));
        for command in [&["serve"][..], &["config", "check"]] {
            let output = folder.run(command);
            let error = crate::common::stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(error.contains(needle) && error.contains("\"x\""), "{error}");
        }
    }
}

/// A single node of a cluster delivers; another takes over where the first one stopped.
#[test]
fn a_sink_is_taken_over() {
    let receiver = CallbackServer::start(good);
    let mut cluster = TestCluster::start(&webhook("hook", &receiver.url("/hook")));
    let holder = cluster.settled_holder("sink/hook");
    crate::nodes::publish(cluster.node(holder), "news", "a");
    wait_for_items(&receiver, &["a"]);
    cluster.kill(holder);
    let other = (holder + 1) % crate::nodes::NODES;
    crate::nodes::publish(cluster.node(other), "news", "b");
    wait_until("b is delivered by another node", || delivered(&receiver).last().is_some_and(|id| id == "b"));
    // Another node than the one that runs it gives orders and shows its state.
    order(cluster.node(other), "hook", "pause");
    wait_until("every node shows the pause", || {
        cluster.alive().all(|(_, node)| sink(node, "hook")["state"] == "paused")
    });
}

/// Nodes that began without a source and a sink run both once a reload brings them, each on one node.
#[test]
fn a_cluster_runs_what_a_reload_brings() {
    let receiver = CallbackServer::start(good);
    let cluster = TestCluster::start("");
    crate::nodes::publish(cluster.node(0), "news", "a");
    let source = "[[feed]]\nid = 'polled'\n[feed.source]\nurl = 'source.json'\n";
    for dir in &cluster.dirs {
        let before = std::fs::read_to_string(dir.path("towpath.toml")).unwrap();
        let config = [&before, source, &webhook("hook", &receiver.url("/hook"))].concat();
        dir.write("towpath.toml", config.as_bytes());
        let items = r#"{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1","title":"One"}]}"#;
        dir.write("source.json", items.as_bytes());
        let reloaded = dir.run(&["reload"]);
        assert!(crate::common::stdout(&reloaded).contains("1 added (hook)"), "{reloaded:?}");
    }
    wait_until("the source is polled", || cluster.node(1).get("/feeds/polled/items").text().contains("One"));
    wait_for_items(&receiver, &["a"]);
    cluster.settled_holder("sink/hook");
    assert_eq!(delivered(&receiver), ["a"]);
}

/// Sinks come, change and go at a reload. The others deliver on as if nothing had happened.
#[test]
fn sinks_change_at_a_reload() {
    let (kept, changed, added) =
        (CallbackServer::start(good), CallbackServer::start(good), CallbackServer::start(good));
    let [a, b, c] = [&kept, &changed, &added].map(|receiver| receiver.url("/hook"));
    let folder = TestFolder::new(&[FEED, &webhook("kept", &a), &webhook("changed", &b)].concat());
    let server = folder.serve();
    let reload = |sinks: &[String]| {
        folder.write("towpath.toml", [FEED, &sinks.concat()].concat().as_bytes());
        folder.run(&["reload"])
    };
    publish(&server, "a");
    wait_for_items(&kept, &["a"]);
    wait_for_items(&changed, &["a"]);
    ["kept", "changed"].iter().for_each(|name| wait_until_stored(&server, name));

    // One that cannot be made refuses the whole reload.
    let bad = reload(&[
        webhook("kept", &a),
        webhook("bad", "no/url"),
        "[[token]]\nname = 't'\ntoken = 't'\nrights = ['read']\n".into(),
    ]);
    let error = crate::common::stderr(&bad);
    let place = "towpath.toml: line 16, column 8: sink \"bad\": ";
    assert!(bad.status.code() == Some(2) && error.contains(place), "{error}");
    assert_eq!(server.json("/sinks")["sinks"].as_array().unwrap().len(), 2);

    // The changed one goes on where it was; the new one begins at the beginning.
    let message = reload(&[webhook("kept", &a), webhook("changed", &c), webhook("added", &c)]);
    let message = crate::common::stdout(&message);
    assert!(message.contains("sinks: 1 added (added), 1 changed (changed)"), "{message}");
    wait_for_items(&added, &["a"]);
    publish(&server, "b");
    wait_until("both deliver to the new address", || delivered(&added) == ["a", "b", "b"]);
    wait_for_items(&kept, &["a", "b"]);
    assert_eq!(delivered(&changed), ["a"]);
    ["kept", "changed", "added"].iter().for_each(|name| wait_until_stored(&server, name));
    assert_eq!(sink(&server, "kept")["delivered"], 2);

    // Removed ones deliver no more, and are in no list and no metric.
    let message = crate::common::stdout(&reload(&[webhook("kept", &a)]));
    assert!(message.contains("2 removed (changed, added)"), "{message}");
    assert!(crate::common::stdout(&reload(&[webhook("kept", &a)])).contains("in effect; no feed changed"));
    wait_until("their metrics are gone", || {
        let metrics = server.get("/metrics").text();
        metrics.contains("{sink=\"kept\"}")
            && !metrics.contains("sink=\"changed\"")
            && !metrics.contains("sink=\"added\"")
    });
    publish(&server, "c");
    wait_for_items(&kept, &["a", "b", "c"]);
    assert_eq!(
        (delivered(&added), server.get("/sinks/added").status),
        (vec!["a".into(), "b".into(), "b".into()], 404)
    );

    // Back again, it goes on behind what it has had.
    let message = crate::common::stdout(&reload(&[webhook("kept", &a), webhook("changed", &b)]));
    assert!(message.contains("1 added (changed)"), "{message}");
    wait_for_items(&changed, &["a", "c"]);
    assert_eq!(server.stop(), Some(0));
}

/// The first sink of a server, and a feed that a pattern of it names, both come with a reload.
#[test]
fn a_sink_copies_feeds_that_come_with_a_log() {
    let receiver = CallbackServer::start(good);
    let both = |sinks: &str| [FEED, sinks].concat();
    let folder = TestFolder::new(&both(""));
    let server = folder.serve();
    publish(&server, "a");
    let sink = webhook("hook", &receiver.url("/hook"));
    let without_news = FEED.replacen("news", "sports", 1);
    let reload = |text: &str| {
        folder.write("towpath.toml", text.as_bytes());
        crate::common::stdout(&folder.run(&["reload"]))
    };
    assert!(reload(&format!("{without_news}{sink}")).contains("sinks: 1 added (hook)"));
    wait_until("it runs", || self::sink(&server, "hook")["state"] == "running");
    assert!(reload(&both(&sink)).contains("1 added (news)"));
    // Nothing is published any more: the log that was there is copied.
    wait_for_items(&receiver, &["a"]);
    assert_eq!(server.stop(), Some(0));
}

/// Changes before the sink are left out, and none of feeds that are made after it.
#[test]
fn a_sink_from_now_on_has_all_of_later_feeds() {
    let (receiver, _) = answering(204);
    let sink = webhook("copy", &receiver.url("/hook")) + "from = \"now\"\n";
    let create = FEED.replace("[server]\n", "[server]\ncreate_feeds = true\n");
    let folder = TestFolder::new(&create);
    let server = folder.serve();
    publish(&server, "before");
    folder.write("towpath.toml", (create + &sink).as_bytes());
    assert!(folder.run(&["reload"]).status.success());
    wait_until("the sink runs", || self::sink(&server, "copy")["state"] == "running");
    let put = |feed: &str, id: &str| {
        assert_eq!(server.ask("PUT", &format!("/feeds/{feed}/items/{id}"), &[], b"x").status, 201);
    };
    put("news-made", "first");
    wait_for_items(&receiver, &["first"]);
    order(&server, "copy", "pause");
    wait_until("the sink is paused", || self::sink(&server, "copy")["state"] == "paused");
    put("news-later", "second");
    put("news", "third");
    order(&server, "copy", "resume");
    wait_until("both are delivered", || delivered(&receiver).len() == 3);
    let mut later = delivered(&receiver).split_off(1);
    later.sort_unstable();
    assert_eq!(later, ["second", "third"]);
}
