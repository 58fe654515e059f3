//! Work that reaches any node and belongs to one: an exported tree that all nodes are configured to update, callbacks
//! of hubs, and SUP followers that change nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::tree::{address, files};
use crate::common::{PATIENCE, TestFolder, TestServer, free_port, get_from, lines, stderr};
use crate::nodes::{NODES, TestCluster, holder_of_source, ids, publish, wait_until};

const LIMIT: Duration = Duration::from_secs(15);

/// File of a URL path in a tree.
fn file_of(tree: &Path, path: &str) -> PathBuf {
    let file = tree.join(path.trim_start_matches('/'));
    if file.is_dir() { file.join("index") } else { file }
}

/// Follows every link from the entry points. Returns the broken links, and the number of documents.
fn broken(tree: &Path, base: &str) -> (Vec<String>, usize) {
    let begin = ["/diff/head.json", "/diff/news/head.json", "/archive/news/index.json", "/feeds/news/atom"];
    let mut open: Vec<(String, String)> = begin.map(|path| (path.to_owned(), String::new())).into();
    let (mut seen, mut broken) = (BTreeSet::new(), Vec::new());
    while let Some((path, from)) = open.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(file_of(tree, &path)) else {
            if !from.is_empty() {
                broken.push(format!("{path} from {from}"));
            }
            continue;
        };
        for start in [base, "\"latest_url\":\""] {
            for (at, _) in text.match_indices(start) {
                let rest = &text[at + start.len()..];
                let link = &rest[..rest.find(['"', '\'', '<', '#', ' ', '?']).unwrap_or(rest.len())];
                let is_document =
                    ["/diff/", "/archive/", "/feeds/news/atom"].iter().any(|own| link.starts_with(own));
                if is_document && !link.ends_with('/') {
                    open.push((link.to_owned(), path.clone()));
                }
            }
        }
    }
    (broken, seen.len())
}

/// All nodes are configured to export one tree. One does, another takes over, and no reader ever finds a broken link.
#[test]
fn a_tree_is_exported_by_one_node_and_taken_over() {
    let shared = tempfile::tempdir().unwrap();
    let tree = shared.path().join("tree");
    let (port, base) = address();
    let args = ["--export", tree.to_str().unwrap(), "--export-base-url", &base, "--export-every", "1s"];
    let mut cluster = TestCluster::start_with("[[feed]]\nid = \"news\"\npage_items = 4\n", &args);
    let name =
        serde_json::from_slice::<Value>(&std::fs::read(tree.join(".towpath/tree.json")).unwrap()).unwrap();
    let role = format!("export/{}", name["tree"].as_str().unwrap());
    let shows = |id: &str| {
        let latest = std::fs::read_to_string(tree.join("feeds/news/atom/index")).unwrap_or_default();
        latest.contains(&format!("Title of {id}<"))
    };
    let mut all: Vec<String> = (0..10).map(|number| format!("a{number}")).collect();
    all.iter().enumerate().for_each(|(number, id)| drop(publish(cluster.node(number % NODES), "news", id)));
    wait_until("the tree is there", || shows("a9"), || cluster.logs());
    let holder = cluster.settled_holder(&role);
    let exports = |cluster: &TestCluster| -> Vec<u64> {
        let others = cluster.others(holder).into_iter();
        others.map(|node| cluster.metric(node, "towpath_exports_ok_total")).collect()
    };
    let idle = exports(&cluster);
    let over = AtomicBool::new(false);
    let (served, reads) = (files(port, &tree), AtomicBool::new(false));
    let follower = TestFolder::new("");
    let (killed, walked) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut walked = 0;
            while !over.load(Ordering::SeqCst) {
                let (broken, documents) = broken(&tree, &base);
                assert!(broken.is_empty(), "{broken:?}");
                walked += documents;
                reads.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(20));
            }
            walked
        });
        // Readers must be at work before the tree changes, or the test shows nothing.
        wait_until("readers read", || reads.load(Ordering::SeqCst) || reading.is_finished(), String::new);
        for number in 0..30 {
            all.push(format!("b{number}"));
            publish(cluster.node(number % NODES), "news", all.last().unwrap());
            std::thread::sleep(Duration::from_millis(60));
        }
        // Counters of the nodes without the role: they must not have exported anything.
        assert_eq!(exports(&cluster), idle, "one exports");
        cluster.kill(holder);
        let killed = Instant::now();
        let living = cluster.others(holder);
        for number in 0..30 {
            all.push(format!("c{number}"));
            publish(cluster.node(living[number % 2]), "news", all.last().unwrap());
        }
        let end = Instant::now() + PATIENCE;
        while !shows("c29") && Instant::now() < end && !reading.is_finished() {
            std::thread::sleep(Duration::from_millis(30));
        }
        let killed = killed.elapsed();
        // More items, so that the node that took over seals pages.
        std::thread::sleep(Duration::from_secs(3));
        over.store(true, Ordering::SeqCst);
        (killed, reading.join().unwrap())
    });
    assert!(shows("c29"), "{}", cluster.logs());
    println!("export: taken over after {:.1} s; {walked} documents read meanwhile", killed.as_secs_f64());
    assert!(killed < LIMIT, "{killed:?}");
    for (path, protocol) in [("/diff/news/head.json", "diffdelta"), ("/feeds/news/atom", "history")] {
        let url = format!("{}{path}", served.base);
        let output = follower.run(&["follow", &url, "--protocol", protocol, "--once"]);
        assert!(output.status.success(), "{protocol}: {}", stderr(&output));
        let received: Vec<String> =
            lines(&output).into_iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(received, all, "{protocol}");
    }
    // A command takes the role while it exports, or reports that another process has it. The tree is current again
    // after that.
    let output = cluster.dirs[holder].run(&["export", tree.to_str().unwrap(), "--base-url", &base]);
    match output.status.code() {
        Some(0) => {}
        code => {
            assert_eq!(code, Some(1));
            assert!(
                stderr(&output).contains("another node of the cluster maintains this tree"),
                "{}",
                stderr(&output)
            );
        }
    }
    let (_, node) = cluster.alive().next().unwrap();
    publish(node, "news", "last");
    wait_until("the tree is kept", || shows("last"), || cluster.logs());
}

fn metric(server: &TestServer, name: &str) -> u64 {
    let text = server.get("/metrics").text();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap().parse().unwrap()
}

/// Verifications and deliveries of a hub reach any node; the mirror's node answers them.
#[test]
fn a_hub_may_call_any_node() {
    let origin = TestFolder::new("[server]\nallow_private_callbacks = true\n[[feed]]\nid = \"news\"\n");
    let server = origin.serve_at(free_port());
    let publish_there = |id: &str| {
        let line = json!({ "id": id, "item": { "title": "t" }, "content": "c" }).to_string();
        assert_eq!(server.ask("POST", "/feeds/news/items", &[], line.as_bytes()).status, 200);
    };
    let config = format!(
        "[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{}/feeds/news/items\"\npush = true\n",
        server.base
    );
    let mut cluster = TestCluster::start(&config);
    let holder = holder_of_source(&cluster, "copy");
    // The hub's first verification may have reached a node that did not know the key yet. If the mirror moved to
    // another node at the start, the hub still retries the subscription that was left behind. So its count of
    // failures says nothing here.
    let ok = "towpath_pushes_ok_total";
    let mut all = Vec::new();
    let end = Instant::now() + PATIENCE * 2;
    while metric(&server, ok) == 0 {
        assert!(Instant::now() < end, "nothing is pushed: {} {}", cluster.logs(), origin.log());
        all.push(format!("before{}", all.len()));
        publish_there(all.last().unwrap());
        std::thread::sleep(Duration::from_millis(500));
    }
    let asked = || metric(&server, "towpath_requests_routed_total");
    for node in 0..NODES {
        cluster.set_nodes(node);
        for number in 0..3 {
            let (before, questions) = (metric(&server, ok), asked());
            all.push(format!("by{node}-{number}"));
            publish_there(all.last().unwrap());
            wait_until("it is pushed", || metric(&server, ok) > before, || cluster.logs());
            let received =
                || ids(&cluster.node(holder).json("/feeds/copy/items?order=created&max=1000&timeout=0"));
            wait_until(
                "it is there",
                || received() == all,
                || format!("{:?} {}", received(), cluster.logs()),
            );
            // Requests of the publication and of this test only: the mirror polled nothing.
            assert!(asked() - questions <= 40, "{}", asked() - questions);
        }
        // A client without the key is refused by every node, for good: the key may be that of an earlier start.
        let stranger = cluster.node(node).ask("POST", "/feeds/copy/callback?towpath-key=0", &[], b"{}");
        assert_eq!(stranger.status, 410);
    }
    // Its node is killed: another node follows, subscribes with another callback, and nothing is missing.
    cluster.kill(holder);
    let killed = Instant::now();
    let living = cluster.others(holder);
    cluster.set_nodes(living[0]);
    all.push("after".into());
    publish_there("after");
    let received =
        || ids(&cluster.node(living[1]).json("/feeds/copy/items?order=created&max=1000&timeout=0"));
    wait_until("it goes on", || received() == all, || format!("{:?} {}", received(), cluster.logs()));
    println!("a mirror that is pushed to: taken over after {:.1} s", killed.elapsed().as_secs_f64());
    assert!(killed.elapsed() < LIMIT, "{:?}", killed.elapsed());
}

/// A follower polls SUP every two seconds, each time on another node, and reads the updated feeds from yet another.
/// It sees every item, whichever node accepted it and whichever is killed.
#[test]
fn a_follower_of_sup_that_changes_nodes_misses_nothing() {
    let feeds = ["aa", "bb", "cc"];
    let config: String = feeds.iter().map(|feed| format!("[[feed]]\nid = \"{feed}\"\n")).collect();
    let mut cluster = TestCluster::start(&config);
    let base = cluster.balancer.base.clone();
    let get = |path: &str| get_from(&base, path, &[]);
    let sup_id = |feed: &str| {
        let answer = get(&format!("/feeds/{feed}/atom"));
        answer.header("x-sup-id").unwrap().rsplit_once('#').unwrap().1.to_owned()
    };
    let mut known: BTreeMap<String, (String, String)> =
        feeds.iter().map(|feed| (sup_id(feed), ((*feed).to_owned(), String::new()))).collect();
    let mut cursors: BTreeMap<String, String> = BTreeMap::new();
    let (mut received, mut all) = (BTreeSet::new(), BTreeSet::new());
    let mut turn = 0;
    let mut living: Vec<usize> = (0..NODES).collect();
    let mut poll = |cluster: &TestCluster, living: &[usize], received: &mut BTreeSet<String>| {
        turn += 1;
        cluster.set_nodes(living[turn % living.len()]);
        // Windows are twice the period, so each covers several polls and a node's delay.
        let document = get("/sup.json?seconds=10");
        assert_eq!(document.status, 200, "{}", document.text());
        // The feed is read from another node, which may be behind the one that reported it.
        cluster.set_nodes(living[(turn + 1) % living.len()]);
        for update in document.json()["updates"].as_array().unwrap() {
            let (id, news) = (update[0].as_str().unwrap(), update[1].as_str().unwrap());
            let Some((feed, last)) = known.get_mut(id).filter(|(_, last)| last != news) else { continue };
            *last = news.to_owned();
            let since = cursors.get(feed).map(|cursor| format!("&since=cursor:{cursor}")).unwrap_or_default();
            let page = get(&format!("/feeds/{feed}/items?order=created&max=1000&timeout=0{since}")).json();
            received.extend(ids(&page));
            if let Some(cursor) = page["last_cursor"].as_str() {
                cursors.insert(feed.clone(), cursor.to_owned());
            }
        }
    };
    for round in 0..10 {
        for number in 0..4 {
            let feed = feeds[(round + number) % 3];
            let id = format!("{feed}-{round}-{number}");
            publish(cluster.node(living[(round * number) % living.len()]), feed, &id);
            all.insert(id);
        }
        poll(&cluster, &living, &mut received);
        std::thread::sleep(Duration::from_secs(2));
        if round == 5 {
            cluster.kill(1);
            living = vec![0, 2];
        }
        if round == 7 {
            cluster.serve(1);
            living = vec![0, 1, 2];
        }
    }
    // The last updates may reach a node only after its last poll.
    for _ in 0..2 {
        poll(&cluster, &living, &mut received);
        std::thread::sleep(Duration::from_secs(2));
    }
    poll(&cluster, &living, &mut received);
    assert_eq!(received, all);
}

/// An item that one node has scheduled is published by another, at its time and once.
#[test]
fn scheduled_changes_are_published_by_the_node_that_takes_over() {
    let mut cluster = TestCluster::start("[[feed]]\nid = \"news\"\n");
    let holder = cluster.settled_holder("schedule");
    let [teller, watcher] = cluster.others(holder)[..] else { panic!("three nodes") };
    let due = jiff::Timestamp::now() + Duration::from_secs(4);
    let line = |id: &str, at: jiff::Timestamp| {
        json!({ "id": id, "publish_at": at.to_string(), "item": { "title": id } }).to_string()
    };
    let body = [line("soon", due), line("never", due + Duration::from_secs(3600))].join("\n");
    let answer = cluster.node(teller).ask("POST", "/feeds/news/items", &[], body.as_bytes());
    assert_eq!((answer.status, &answer.json()["scheduled"]), (200, &json!(2)), "{}", answer.text());
    cluster.kill(holder);
    let killed = Instant::now();
    assert_eq!(cluster.node(watcher).get("/feeds/news/items/soon").status, 404, "it is not due yet");
    let shown = |node: usize| cluster.node(node).get("/feeds/news/items/soon").status == 200;
    wait_until("it is published", || shown(teller) && shown(watcher), || cluster.logs());
    assert!(jiff::Timestamp::now() >= due);
    println!("published {:.1} s after the kill", killed.elapsed().as_secs_f64());
    assert!(killed.elapsed() < LIMIT + Duration::from_secs(4), "{:?}", killed.elapsed());
    // Once, and nothing else.
    let feed = cluster.node(watcher).json("/feeds/news");
    assert_eq!((&feed["seq"], &feed["live"]), (&json!(1), &json!(1)), "{feed}");
}
