//! Roles that only one node may hold move within 15 seconds when their node is killed, and a node that was suspended
//! repeats nothing.

use std::time::{Duration, Instant};

use serde_json::json;
use towpath_cluster::{ClusterAddress, ClusterStore};
use towpath_store::{Store, Table, TableWrite};

use crate::callback::{CallbackRequest, CallbackServer};
use crate::common::xmpp::{HOSTS, XmppServer};
use crate::common::{TestFolder, TestServer, free_port, lines, stderr};
use crate::nodes::{NODES, TestCluster, holder_of_source, publish, same_shard, wait_until};
use crate::raw_server::{RawServer, answer};

/// Longest time from the kill to the first effect of the node that takes over.
const LIMIT: Duration = Duration::from_secs(15);
/// Number of roles without `[xmpp]`: hub, diffdelta, schedule, upkeep. Shards of sources are counted apart.
const ROLES: u64 = 5;
const SHARDS: u64 = 16;

/// Waits until a role's work continues, and prints how long that took.
fn continues(role: &str, killed: Instant, is_so: impl Fn() -> bool, cluster: &TestCluster) {
    wait_until(&format!("{role} goes on"), is_so, || cluster.logs());
    let took = killed.elapsed();
    println!("{role}: taken over after {:.1} s", took.as_secs_f64());
    assert!(took < LIMIT, "{role}: {took:?}");
}

/// Each source is polled by one node, and by another when that is killed.
#[test]
fn a_source_is_polled_by_one_node_and_taken_over() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let begun = Instant::now();
    let origin = runtime.block_on(RawServer::start(move |_| {
        let version = begun.elapsed().as_secs();
        let item = format!("<item><guid>i{version}</guid><title>t</title></item>");
        answer("200 OK", "", format!("<rss version=\"2.0\"><channel><title>t</title>{item}</channel></rss>"))
    }));
    let source = |id: &str| {
        format!(
            "[[feed]]\nid = \"{id}\"\n[feed.source]\nurl = \"{}\"\nevery = \"1s\"\n",
            origin.url(&format!("/{id}"))
        )
    };
    let config: String = ["s1", "s2", "s3"].map(source).concat();
    let mut cluster = TestCluster::start(&config);
    cluster.wait_for_roles(ROLES + SHARDS);
    // Nodes that started later are given some shards.
    let has_some = |node: usize| cluster.metric(node, "towpath_roles") >= 1;
    wait_until("every node has a role", || (0..NODES).all(has_some), || cluster.logs());
    let polls_of = |path: &str| origin.asked().iter().filter(|asked| asked.path == path).count();
    std::thread::sleep(Duration::from_secs(3));
    let before = polls_of("/s1");
    let from = Instant::now();
    std::thread::sleep(Duration::from_secs(5));
    let polls = (polls_of("/s1") - before) as f64;
    // One node polls every 1 to 1.1 seconds; two would poll twice as often.
    assert!(polls <= from.elapsed().as_secs_f64() + 2.0 && polls >= 3.0, "{polls} polls");
    // Every node serves the items that one of them polled, and the source's health.
    let position = cluster.node(0).json("/feeds/s1")["seq"].as_u64().unwrap();
    assert!(position > 3);
    for (_, node) in cluster.alive() {
        node.wait_for("/diff/sources.json", |sources| {
            let sources = sources["sources"].as_array().unwrap();
            sources.len() == 3 && sources.iter().all(|source| source["status"] == "ok")
        });
    }
    // The polling node is killed.
    let victim = holder_of_source(&cluster, "s1");
    cluster.kill(victim);
    let killed = Instant::now();
    let counts: Vec<usize> = ["/s1", "/s2", "/s3"].map(&polls_of).into();
    std::thread::sleep(Duration::from_millis(300));
    // A poll of the killed node may have been on its way, so one further poll proves nothing.
    let polled = || ["/s1", "/s2", "/s3"].iter().zip(&counts).all(|(path, count)| polls_of(path) > count + 1);
    continues("sources", killed, polled, &cluster);
}

/// Subscribes to a topic at a node's hub, or unsubscribes.
fn ask_hub(cluster: &TestCluster, node: usize, mode: &str, callback: &str) {
    let topic = format!("{}/feeds/news/items?order=modified", cluster.balancer.base);
    let form = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("hub.mode", mode), ("hub.topic", &topic), ("hub.callback", callback)])
        .finish();
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    let answer = cluster.node(node).ask("POST", "/feeds/news/hub", &headers, form.as_bytes());
    assert_eq!(answer.status, 202, "{}", answer.text());
}

fn wait_for_questions(callback: &CallbackServer, count: usize) {
    callback.wait_for("questions", |calls| calls.iter().filter(|call| call.method == "GET").count() >= count);
    // The callback sees the question before the hub has stored the answer.
    std::thread::sleep(Duration::from_millis(300));
}

/// Ids delivered to a callback, in order.
fn delivered(callback: &CallbackServer, path: &str) -> Vec<String> {
    callback.deliveries().iter().filter(|call| call.path == path).flat_map(CallbackRequest::ids).collect()
}

/// Ids in the order of their first delivery.
fn first_delivered(received: &[String]) -> Vec<String> {
    let mut first: Vec<String> = Vec::new();
    received.iter().for_each(|id| {
        if !first.contains(id) {
            first.push(id.clone());
        }
    });
    first
}

/// A subscription made on one node gets an item published on another, delivered by a third. Nothing is lost when the
/// third is killed.
#[test]
fn deliveries_go_on_when_the_node_that_makes_them_is_killed() {
    let mut cluster = TestCluster::start("[[feed]]\nid = \"news\"\n");
    cluster.wait_for_roles(ROLES);
    let callback = CallbackServer::good();
    for node in 0..NODES {
        ask_hub(&cluster, node, "subscribe", &callback.url(&format!("/from{node}")));
    }
    ask_hub(&cluster, 0, "subscribe", &callback.url("/short"));
    wait_for_questions(&callback, NODES + 1);
    ask_hub(&cluster, 1, "unsubscribe", &callback.url("/short"));
    wait_for_questions(&callback, NODES + 2);
    let received = |path: &str| delivered(&callback, path);
    let has =
        |ids: &[String]| (0..NODES).all(|n| ids.iter().all(|id| received(&format!("/from{n}")).contains(id)));
    let mut all = Vec::new();
    for number in 0..6 {
        all.push(format!("a{number}"));
        publish(cluster.node(number % NODES), "news", &all[number]);
    }
    wait_until("all is delivered", || has(&all), || format!("{:?} {}", callback.calls(), cluster.logs()));
    let holder = cluster.settled_holder("hub");
    // A renewal on another node than the delivering one keeps the subscription's position.
    ask_hub(&cluster, (holder + 1) % NODES, "subscribe", &callback.url("/from0"));
    wait_for_questions(&callback, NODES + 3);
    cluster.kill(holder);
    let killed = Instant::now();
    let living = cluster.others(holder);
    for number in 0..4 {
        all.push(format!("b{number}"));
        publish(cluster.node(living[number % 2]), "news", all.last().unwrap());
    }
    continues("hub", killed, || has(&all), &cluster);
    for node in 0..NODES {
        // At least once: a crash repeats deliveries since positions were last written.
        assert_eq!(first_delivered(&received(&format!("/from{node}"))), all, "in the order of the log");
    }
    assert!(received("/short").is_empty());
}

/// A node that was suspended while another replaced it repeats none of that node's deliveries.
#[test]
fn a_suspended_node_delivers_nothing_twice() {
    let mut cluster = TestCluster::start("[[feed]]\nid = \"news\"\n");
    cluster.wait_for_roles(ROLES);
    let callback = CallbackServer::good();
    ask_hub(&cluster, 0, "subscribe", &callback.url("/s"));
    wait_for_questions(&callback, 1);
    let received = || delivered(&callback, "/s");
    let mut all = vec!["before".to_owned()];
    publish(cluster.node(0), "news", &all[0]);
    wait_until("it is delivered", || received() == all, || cluster.logs());
    let holder = cluster.settled_holder("hub");
    // Positions are persisted every second.
    std::thread::sleep(Duration::from_millis(1500));
    let stalled = cluster.nodes[holder].take().unwrap();
    stalled.suspend();
    let since = Instant::now();
    let living = cluster.others(holder);
    for number in 0..5 {
        all.push(format!("s{number}"));
        publish(cluster.node(living[number % 2]), "news", all.last().unwrap());
    }
    continues("hub of a node that stands still", since, || received() == all, &cluster);
    // It resumes in the belief that it holds the role, but its lease's term is over.
    stalled.resume();
    for number in 0..20 {
        all.push(format!("t{number}"));
        publish(cluster.node(living[number % 2]), "news", all.last().unwrap());
        std::thread::sleep(Duration::from_millis(50));
    }
    wait_until("all is delivered", || received().len() >= all.len(), || cluster.logs());
    cluster.nodes[holder] = Some(stalled);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(received(), all, "each once");
}

/// DiffDelta chains of published feeds, and the global one.
#[test]
fn chains_go_on_when_the_node_that_makes_them_is_killed() {
    let mut cluster = TestCluster::start("[[feed]]\nid = \"news\"\n");
    cluster.wait_for_roles(ROLES);
    let followers = TestFolder::new("");
    let mut received = Vec::new();
    let mut follow = |cluster: &TestCluster| {
        let (url, state) = (format!("{}/diff/head.json", cluster.balancer.base), "state.json");
        let output = followers.run(&["follow", &url, "--protocol", "diffdelta", "--state", state, "--once"]);
        assert!(output.status.success(), "{}\n{}", stderr(&output), cluster.logs());
        received.extend(lines(&output).into_iter().map(|line| line["id"].as_str().unwrap().to_owned()));
        received.clone()
    };
    let mut all = vec!["a".to_owned()];
    publish(cluster.node(0), "news", "a");
    cluster.node(0).wait_for("/diff/latest.json", |latest| latest.to_string().contains("Title of a"));
    let holder = cluster.settled_holder("diffdelta");
    follow(&cluster);
    cluster.kill(holder);
    let killed = Instant::now();
    let living = cluster.others(holder);
    cluster.set_nodes(living[0]);
    for number in 0..3 {
        all.push(format!("b{number}"));
        publish(cluster.node(living[number % 2]), "news", all.last().unwrap());
    }
    for path in ["/diff/news/latest.json", "/diff/latest.json"] {
        let shows = |node: &usize| cluster.node(*node).get(path).text().contains("Title of b2");
        continues(&format!("diffdelta, {path}"), killed, || living.iter().all(shows), &cluster);
    }
    let mut received = follow(&cluster);
    received.sort();
    assert_eq!(received.len(), all.len(), "{received:?}");
}

/// The XMPP component beside a real server pushes every item, in log order.
#[test]
fn pushes_over_xmpp_go_on_when_the_node_that_makes_them_is_killed() {
    let prosody = XmppServer::prosody(&["alice"]);
    let mut cluster = TestCluster::start(&format!("{}[[feed]]\nid = \"news\"\n", prosody.component()));
    // The component's role comes on top.
    cluster.wait_for_roles(ROLES + 1);
    let holder = cluster.settled_holder("xmpp");
    let connected = || cluster.dirs[holder].log().contains("is connected to");
    wait_until("the component is connected", connected, || cluster.logs());
    let mut client = prosody.client("alice", HOSTS[0], "1");
    let subscribed = client.ask("subscribe", json!({ "node": "news?order=modified" }));
    assert_eq!(subscribed["subscription"], "subscribed");
    let mut all: Vec<String> = (0..5).map(|number| format!("a{number}")).collect();
    all.iter().enumerate().for_each(|(number, id)| drop(publish(cluster.node(number % NODES), "news", id)));
    let mut received = Vec::new();
    while first_delivered(&received).len() < all.len() {
        let push = client.pushed();
        let items = push["items"].as_array().unwrap_or_else(|| panic!("{push}: {}", cluster.logs()));
        received.extend(items.iter().map(|item| item["fo"].as_str().unwrap().to_owned()));
    }
    cluster.kill(holder);
    let killed = Instant::now();
    let living = cluster.others(holder);
    for number in 0..5 {
        all.push(format!("b{number}"));
        publish(cluster.node(living[number % 2]), "news", all.last().unwrap());
    }
    while first_delivered(&received).len() < all.len() {
        let push = client.pushed();
        let items = push["items"].as_array().unwrap_or_else(|| panic!("{push}: {}", cluster.logs()));
        received.extend(items.iter().map(|item| item["fo"].as_str().unwrap().to_owned()));
    }
    continues("xmpp", killed, || true, &cluster);
    assert_eq!(first_delivered(&received), all, "{received:?}");
}

/// Mirrors of every protocol, all on one node, continue from their positions: no item is lost or duplicated.
#[test]
fn mirrors_go_on_when_their_node_is_killed() {
    let origin = TestFolder::new("[[feed]]\nid = \"news\"\nttl = \"1s\"\npage_items = 4\n");
    let server = origin.serve_at(free_port());
    // In one shard, so that one kill moves all four mirrors.
    let names = same_shard(["smart", "replication", "diffdelta", "history"]);
    let paths = [
        "feeds/news/items?order=modified",
        "feeds/news/replication",
        "diff/news/head.json",
        "feeds/news/atom",
    ];
    let mirror = |(name, path): (&String, &str)| {
        format!(
            "[[feed]]\nid = \"{name}\"\n[feed.source]\nfollow = \"{}/{path}\"\nevery = \"1s\"\n",
            server.base
        )
    };
    let mut cluster = TestCluster::start(&names.iter().zip(paths).map(mirror).collect::<String>());
    cluster.wait_for_roles(ROLES + SHARDS);
    let count = |cluster: &TestCluster, name: &str| {
        let (_, node) = cluster.alive().next().unwrap();
        node.json(&format!("/feeds/{name}"))["seq"].as_u64().unwrap() as usize
    };
    let mut all = Vec::new();
    let mut publish_some = |server: &TestServer, count: usize| {
        for _ in 0..count {
            all.push(format!("n{:03}", all.len()));
            let line =
                json!({ "id": all.last().unwrap(), "item": { "title": "t" }, "content": "c" }).to_string();
            assert_eq!(server.ask("POST", "/feeds/news/items", &[], line.as_bytes()).status, 200);
        }
        all.clone()
    };
    let all = publish_some(&server, 10);
    for name in &names {
        wait_until(&format!("{name} is there"), || count(&cluster, name) == all.len(), || cluster.logs());
    }
    let holder = holder_of_source(&cluster, &names[0]);
    publish_some(&server, 3);
    cluster.kill(holder);
    let killed = Instant::now();
    let all = publish_some(&server, 20);
    for (protocol, name) in ["smart", "replication", "diffdelta", "history"].iter().zip(&names) {
        let reached = || count(&cluster, name) >= all.len();
        continues(&format!("a mirror by {protocol}"), killed, reached, &cluster);
    }
    let all = publish_some(&server, 2);
    for name in &names {
        wait_until(&format!("{name} goes on"), || count(&cluster, name) >= all.len(), || cluster.logs());
        let (_, node) = cluster.alive().next().unwrap();
        let page = node.json(&format!("/feeds/{name}/items?order=created&max=100&timeout=0"));
        let mut ids = crate::nodes::ids(&page);
        ids.sort();
        // As many positions as items: nothing was appended twice.
        assert_eq!((ids.len(), count(&cluster, name)), (all.len(), all.len()), "{name}: {ids:?}");
    }
}

/// Retention and snapshots continue.
#[test]
fn upkeep_goes_on_when_its_node_is_killed() {
    let feed = "[[feed]]\nid = \"news\"\npage_items = 4\nsnapshots = { every = \"1s\", keep = 2 }\n\
                retention = { bytes = 20, grace = \"1s\" }\n";
    let mut cluster = TestCluster::start(feed);
    cluster.wait_for_roles(ROLES);
    let mut count = 0;
    let mut publish_some = |cluster: &TestCluster, nodes: &[usize]| {
        for number in 0..24 {
            count += 1;
            publish(cluster.node(nodes[number % nodes.len()]), "news", &format!("n{count}"));
        }
        count
    };
    publish_some(&cluster, &[0, 1, 2]);
    let is_gone = |node: usize, page: u64| {
        cluster.node(node).get(&format!("/feeds/news/replication/pages/{page}")).status == 410
    };
    let pages =
        || (1..8).map(|page| cluster.node(0).get(&format!("/feeds/news/replication/pages/{page}")).status);
    wait_until(
        "old pages go",
        || is_gone(0, 1),
        || format!("{:?} {}", pages().collect::<Vec<_>>(), cluster.logs()),
    );
    let snapshot = |cluster: &TestCluster, node: usize| {
        let latest = cluster.node(node).get("/feeds/news/snapshots/latest");
        if latest.status == 200 { latest.json()["id"].as_str().unwrap().to_owned() } else { String::new() }
    };
    wait_until("a snapshot is made", || !snapshot(&cluster, 0).is_empty(), || cluster.logs());
    let holder = cluster.settled_holder("upkeep");
    let before = snapshot(&cluster, holder);
    cluster.kill(holder);
    let killed = Instant::now();
    let living = cluster.others(holder);
    publish_some(&cluster, &living);
    let is_gone = |node: &usize| cluster.node(*node).get("/feeds/news/replication/pages/6").status == 410;
    continues("retention", killed, || living.iter().all(is_gone), &cluster);
    continues("snapshots", killed, || snapshot(&cluster, living[0]) > before, &cluster);
}

/// An incomplete snapshot of a killed node does not prevent a new one.
#[test]
fn an_incomplete_snapshot_is_replaced() {
    let cluster = TestCluster::start("[[feed]]\nid = \"news\"\nsnapshots = { every = \"1s\" }\n");
    let address = ClusterAddress::parse(&cluster.nats.server.url()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let now = jiff::Timestamp::now();
    // The state that a writer leaves when it is killed between two pages.
    let begun = TableWrite {
        table: Table::Chains,
        key: format!("replication/news/begun/{:020}", now.as_microsecond()).into_bytes(),
        value: Some(serde_json::to_vec(&now).unwrap().into()),
    };
    runtime.block_on(async {
        let node = ClusterStore::open(&address, folder.path(), towpath_cluster::ClusterOptions::default())
            .await
            .unwrap();
        node.write(vec![begun], Vec::new()).await.unwrap();
        node.close().await;
    });
    let begun = Instant::now();
    publish(cluster.node(0), "news", "a");
    // Its writer may be alive until its lease ends, so no other snapshot is started before.
    assert_eq!(cluster.node(1).ask("POST", "/feeds/news/snapshots", &[], b"").status, 503);
    let is_made = || cluster.node(2).get("/feeds/news/snapshots/latest").status == 200;
    continues("a snapshot that was half made", begun, is_made, &cluster);
}
