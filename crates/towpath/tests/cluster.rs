//! Three nodes on a real NATS server: any node accepts any request, all nodes answer alike, and a role that only one
//! node may hold moves when that node is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::waiting::{until, waiters};
use crate::common::{PATIENCE, TestFolder, TestResponse, free_port, lines, stderr};
use crate::nodes::{NODES, TestCluster, ids, publish, try_publish, wait_until};

const FEEDS: &str = "[[feed]]\nid = \"news\"\npage_items = 4\n[[feed]]\nid = \"other\"\ncursor = \"toc\"\n";
/// Number of roles without `[xmpp]` and without sources: hub, diffdelta, schedule, log, upkeep.
const ROLES: u64 = 5;

/// Waits until all nodes serve the same status, validators and body: one that was about to publish still does. The
/// validators cover the body byte by byte.
fn assert_alike(cluster: &TestCluster, path: &str) {
    let shown = |node: usize| {
        let answer = cluster.node(node).get(path);
        let headers: BTreeMap<_, _> =
            answer.headers.iter().filter(|(name, _)| name != "date").cloned().collect();
        (answer.status, headers, answer.text())
    };
    let are_alike = || {
        let first = shown(0);
        first.0 == 200 && (1..NODES).all(|node| shown(node) == first)
    };
    let differences = || format!("{:?}", (0..NODES).map(shown).collect::<Vec<_>>());
    wait_until(&format!("{path} is the same on all nodes"), are_alike, differences);
}

#[test]
fn any_node_accepts_any_append_and_all_answer_alike() {
    let cluster = TestCluster::start(FEEDS);
    for number in 0..20 {
        let id = format!("n{number:02}");
        let position = publish(cluster.node(number % NODES), "news", &id);
        // A client that has written to one node reads its write from any other.
        let headers = [("Towpath-Position", position.as_str())];
        for further in 1..NODES {
            let path = "/feeds/news/items?order=-modified&max=1&timeout=0";
            let read = cluster.node((number + further) % NODES).ask("GET", path, &headers, b"");
            assert_eq!(read.status, 200, "{}", read.text());
            assert_eq!(ids(&read.json()), [id.as_str()]);
        }
    }
    // A feed that another node created a moment ago.
    let position = publish(cluster.node(1), "made", "one");
    let read = cluster.node(2).ask("GET", "/feeds/made/items/one", &[("Towpath-Position", &position)], b"");
    assert_eq!(read.status, 200, "{}", read.text());
    publish(cluster.node(2), "other", "o1");
    // A node waits for a position that it has not reached, but not for ever.
    let begun = Instant::now();
    let behind = cluster.node(0).ask("GET", "/feeds/news/items", &[("Towpath-Position", "1000")], b"");
    assert_eq!((behind.status, behind.header("retry-after")), (503, Some("1")));
    // Nodes wait 5 seconds for a position.
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    let wrong = cluster.node(0).ask("GET", "/feeds/news/items", &[("Towpath-Position", "x")], b"");
    assert_eq!(wrong.status, 400);

    let last = "/diff/latest.json";
    let tells = |node: usize| cluster.node(node).get(last).text().contains("o1");
    // Documents are comparable once no node has a run to publish any more.
    let is_settled = || {
        let heads: BTreeSet<String> =
            (0..NODES).map(|node| cluster.node(node).get("/diff/head.json").text()).collect();
        let made = (0..NODES).all(|node| {
            let archive = cluster.node(node).get("/archive/_global/index.json").text();
            let news = cluster.node(node).get("/diff/news/latest.json");
            archive.len() > 100 && news.text().contains("n19")
        });
        heads.len() == 1 && made
    };
    wait_until("the documents are made", is_settled, || format!("{} {}", tells(0), cluster.logs()));
    let snapshot = cluster.node(1).ask("POST", "/feeds/news/snapshots", &[], b"");
    assert_eq!(snapshot.status, 201, "{}", snapshot.text());
    let made = snapshot.json();
    wait_until(
        "the snapshot is everywhere",
        || (0..NODES).all(|node| cluster.node(node).get("/feeds/news/snapshots/latest").status == 200),
        String::new,
    );
    let local = |url: &str| url.strip_prefix(&cluster.balancer.base).unwrap_or(url).to_owned();
    let mut paths: Vec<String> = [
        "/diff/head.json",
        "/diff/latest.json",
        "/diff/news/head.json",
        "/diff/news/latest.json",
        "/diff/source/news/latest.json",
        "/diff/made/latest.json",
        "/diff/other/head.json",
        "/archive/_global/index.json",
        "/archive/news/index.json",
        "/feeds/news/replication",
        "/feeds/news/replication/pages/1",
        "/feeds/news/replication/pages/3",
        "/feeds/news/atom",
        "/feeds/news/rss",
        "/feeds/news/feed.json",
        "/feeds/news/items?order=created&max=7",
        "/feeds/news/items?order=-modified&max=5",
        "/feeds/other/items?order=modified",
        "/feeds/made/items?order=created",
        "/feeds/news/snapshots/latest",
    ]
    .map(str::to_owned)
    .into();
    for archive in ["news", "_global"] {
        let index = cluster.node(0).json(&format!("/archive/{archive}/index.json"));
        let snapshots = index["snapshots"].as_array().unwrap();
        paths.extend(snapshots.iter().map(|snapshot| local(snapshot["url"].as_str().unwrap())));
    }
    paths.extend(made["pages"].as_array().unwrap().iter().map(|page| local(page.as_str().unwrap())));
    let page = cluster.node(0).json("/feeds/news/items?order=created&max=7");
    paths.push(local(page["next"].as_str().unwrap()));
    for path in &paths {
        assert_alike(&cluster, path);
    }
    // A node that is behind may not answer 404: a follower would take the document for deleted.
    let archived =
        |time: &str| cluster.node(1).get(&format!("/archive/news/2026/01/01/{time}_0123456789ab.json"));
    // One is later than all that the node has, the other older than the chain.
    let (later, never) = (archived("20990101T000000Z"), archived("20000101T000000Z"));
    assert_eq!((later.status, later.header("retry-after")), (503, Some("1")));
    assert_eq!(never.status, 404);
    // Simple Update Protocol: all nodes have the same SUP-IDs and report the same updates.
    let printed = |node: usize| -> BTreeMap<String, String> {
        let document = cluster.node(node).json("/sup.json?seconds=120");
        let updates = document["updates"].as_array().unwrap().clone();
        updates
            .iter()
            .map(|u| (u[0].as_str().unwrap().to_owned(), u[1].as_str().unwrap().to_owned()))
            .collect()
    };
    wait_until(
        "SUP tells of all",
        || (0..NODES).all(|node| printed(node).len() == 3),
        || format!("{:?}", printed(0)),
    );
    assert!((1..NODES).all(|node| printed(node).keys().eq(printed(0).keys())));

    // An append on one node ends a long poll on another.
    let page = cluster.node(0).json("/feeds/other/items?order=created&timeout=0");
    let next =
        format!("/feeds/other/items?order=created&since=cursor:{}", page["last_cursor"].as_str().unwrap());
    let waited = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| (cluster.node(0).get(&format!("{next}&timeout=20")), Instant::now()));
        until("the poll waits", || waiters(cluster.node(0)) == 1);
        let published = Instant::now();
        publish(cluster.node(1), "other", "o2");
        let (answer, at) = waiting.join().unwrap();
        assert_eq!(ids(&answer.json()), ["o2"]);
        at.duration_since(published)
    });
    // A poll that is not woken ends after 20 seconds.
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    // A cluster in which nothing failed reports no loss.
    let logs = cluster.logs();
    assert!(!logs.contains("has lost what it acknowledged") && !logs.contains(" ERROR "), "{logs}");
}

/// A running `towpath follow`, and the ids that it has printed, in order.
struct ClusterFollow {
    child: Child,
    printed: Arc<Mutex<Vec<String>>>,
}

impl ClusterFollow {
    fn start(dir: &TestFolder, url: &str, protocol: &str) -> Self {
        let mut command =
            dir.command(&["follow", url, "--protocol", protocol, "--state", &format!("{protocol}.json")]);
        let stderr = std::fs::File::create(dir.path(&format!("{protocol}.log"))).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let printed: Arc<Mutex<Vec<String>>> = Arc::default();
        let into = printed.clone();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let line: Value = serde_json::from_str(&line).unwrap();
                into.lock().unwrap().push(line["id"].as_str().unwrap().to_owned());
            }
        });
        Self { child, printed }
    }

    fn printed(&self) -> Vec<String> {
        self.printed.lock().unwrap().clone()
    }
}

impl Drop for ClusterFollow {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Followers of every protocol continue on another node, with each item once. Those of Smart Feeds change nodes
/// during a long poll, the others between two polls.
#[test]
fn followers_change_nodes() {
    let mut cluster = TestCluster::start("[[feed]]\nid = \"news\"\npage_items = 4\n");
    let followers = TestFolder::new("");
    let address = |path: &str| format!("{}{path}", cluster.balancer.base);
    let polling = [
        ("diffdelta", address("/diff/news/head.json")),
        ("replication", address("/feeds/news/replication")),
        ("history", address("/feeds/news/atom")),
    ];
    let smart = address("/feeds/news/items?order=modified");
    let mut printed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut follow = |cluster: &TestCluster, all: &[String]| {
        let last = all.last().unwrap();
        let is_minted = |node: usize| cluster.node(node).get("/diff/news/latest.json").text().contains(last);
        wait_until(
            "the chain goes on",
            || cluster.alive().all(|(node, _)| is_minted(node)),
            || cluster.logs(),
        );
        for (protocol, url) in &polling {
            let state = format!("{protocol}.json");
            let output = followers.run(&["follow", url, "--protocol", protocol, "--state", &state, "--once"]);
            assert!(output.status.success(), "{protocol}: {}\n{}", stderr(&output), cluster.logs());
            let ids = lines(&output).into_iter().map(|line| line["id"].as_str().unwrap().to_owned());
            let printed = printed.entry(protocol).or_default();
            printed.extend(ids);
            let mut sorted = [printed.clone(), all.to_vec()];
            sorted.iter_mut().for_each(|ids| ids.sort());
            assert_eq!(sorted[0], sorted[1], "{protocol}");
        }
    };
    let mut all = Vec::new();
    let publish_some = |cluster: &TestCluster, all: &mut Vec<String>, round: usize| {
        for number in 0..5 {
            all.push(format!("{round}n{number}"));
            let living: Vec<usize> = cluster.alive().map(|(node, _)| node).collect();
            publish(cluster.node(living[(round + number) % living.len()]), "news", all.last().unwrap());
        }
    };
    publish_some(&cluster, &mut all, 0);
    let following = ClusterFollow::start(&followers, &smart, "smart");
    for round in 0..NODES {
        cluster.set_nodes(round);
        publish_some(&cluster, &mut all, round + 1);
        follow(&cluster, &all);
    }
    // The node that published DiffDelta's chains is gone, and the address leads to another one.
    let victim =
        (0..NODES).max_by_key(|node| cluster.metric(*node, "towpath_diffdelta_mints_total")).unwrap();
    let killed = Instant::now();
    cluster.kill(victim);
    cluster.set_nodes((victim + 1) % NODES);
    publish_some(&cluster, &mut all, 5);
    follow(&cluster, &all);
    // Within that time a role has moved from a killed node to another.
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    wait_until(
        "all is printed",
        || following.printed().len() >= all.len(),
        || format!("{:?}", following.printed()),
    );
    assert_eq!(following.printed(), all);
}

/// Without the log nothing can be published, everything can be read, and responses say how old they may be.
#[test]
fn without_the_log_reading_goes_on() {
    let mut cluster = TestCluster::start(FEEDS);
    publish(cluster.node(0), "news", "one");
    let read = cluster.node(1).get("/feeds/news/items?order=created&timeout=0");
    assert_eq!(read.header("towpath-replica-age"), None);
    cluster.nats.server.kill();
    let refused = try_publish(cluster.node(1), "news", "two");
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    let page = "/feeds/news/items?order=created&max=9&timeout=0";
    let is_said = |node: usize| cluster.node(node).get(page).header("towpath-replica-age").is_some();
    wait_until("its age is said", || (0..NODES).all(is_said), || cluster.logs());
    let subscription = format!(
        "hub.mode=subscribe&hub.callback=http%3A%2F%2F127.0.0.1%3A1%2F&hub.topic={}%2Ffeeds%2Fnews%2Fitems",
        cluster.balancer.base
    );
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let refused = cluster.node(0).ask("POST", "/feeds/news/hub", &form, subscription.as_bytes());
    assert_eq!(refused.status, 503, "a yes that cannot be kept is not asked for: {}", refused.text());
    for node in 0..NODES {
        let read = cluster.node(node).get(page);
        assert_eq!((read.status, ids(&read.json())), (200, vec!["one".to_owned()]));
        let prebuilt = cluster.node(node).get("/diff/head.json");
        assert!(prebuilt.header("towpath-replica-age").unwrap().parse::<u64>().unwrap() >= 4);
        let health = cluster.node(node).json("/healthz.json");
        assert_eq!(health["status"], "degraded");
        assert!(health["replica_age"].as_u64().unwrap() >= 4);
        assert!(cluster.metric(node, "towpath_replica_age_seconds") >= 4);
    }
    let problems = || cluster.node(0).json("/feeds?status")["problems"].to_string();
    wait_until(
        "`towpath status` says so",
        || problems().contains("behind its cluster: "),
        || format!("{} {}", problems(), cluster.logs()),
    );
    // A refused append stays refused: it does not appear once the log is back.
    cluster.nats.server.start();
    let end = Instant::now() + PATIENCE;
    while try_publish(cluster.node(2), "news", "three").status != 200 {
        assert!(Instant::now() < end, "{}", cluster.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_until(
        "all are current again",
        || (0..NODES).all(|node| cluster.node(node).get(page).header("towpath-replica-age").is_none()),
        || cluster.logs(),
    );
    let printed = ids(&cluster.node(0).json(page));
    assert!(printed.starts_with(&["one".to_owned()]) && printed.contains(&"three".to_owned()), "{printed:?}");
    cluster.wait_for_roles(ROLES);
}

/// A supervisor must not take a node for dead that waits for its log.
#[test]
fn a_node_says_that_it_starts_while_it_waits_for_its_log() {
    let (port, nats) = (free_port(), free_port());
    let dir = TestFolder::new(&format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\ncluster = \"nats://127.0.0.1:{nats}\"\n"
    ));
    let mut node = dir.command(&["serve"]).spawn().unwrap();
    let mut connect = || loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => assert!(node.try_wait().unwrap().is_none(), "{}", dir.log()),
        }
    };
    let mut ask = |path: &str| {
        let mut stream = connect();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        TestResponse::parse(&answer).unwrap()
    };
    assert_eq!(ask("/livez").status, 200);
    let ready = ask("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &"starting".into()));
    let other = ask("/feeds");
    assert_eq!((other.status, other.header("content-type")), (503, Some("application/problem+json")));
    node.kill().unwrap();
    node.wait().unwrap();
}

/// Error messages for a user whose cluster is down, or who may not use it.
/// Its last writes fail, and its roles are not released: neither may keep the process. It ends by itself with a status
/// of 1 where something does.
#[test]
fn a_node_stops_although_nats_does_not_answer() {
    let origin = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let publisher = origin.serve();
    let nats = crate::common::nats::single("");
    let dir = TestFolder::new(&format!(
        "[server]\ncluster = \"{}\"\n[[feed]]\nid = \"news\"\n[[feed]]\nid = \"copy\"\n[feed.source]\n\
         follow = \"{}/feeds/notes\"\n[export]\nto = \"tree\"\nbase_url = \"https://x.example\"\n",
        nats.server.url(),
        publisher.base
    ));
    let node = dir.serve();
    publish(&publisher, "notes", "first");
    node.wait_for("/feeds/copy", |feed| feed["seq"] == 1);
    publish(&node, "news", "first");
    nats.server.signal("STOP");
    publish(&publisher, "notes", "second");
    let append = std::thread::spawn({
        let base = node.base.clone();
        move || crate::common::ask_at(&base, "PUT", "/feeds/news/items/second", &[], b"text")
    });
    let stopped = node.stop();
    nats.server.signal("CONT");
    assert_eq!(stopped, Some(0), "{}", dir.log());
    // One that came after the signal has no answer.
    if let Ok(answer) = append.join().unwrap() {
        assert_eq!(answer.status, 503, "{}", answer.text());
    }
}

#[test]
fn errors_say_what_to_do() {
    let dir = |cluster: &str| {
        TestFolder::new(&format!("[server]\ncluster = \"{cluster}\"\n[[feed]]\nid = \"news\"\n"))
    };
    let nowhere = dir(&format!("nats://somebody:secret@127.0.0.1:{}", free_port()));
    let output = nowhere.run(&["status"]);
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("cannot use the cluster at nats://127.0.0.1:"),
        "{said}"
    );
    // Messages end up in logs and bug reports, so passwords are left out.
    assert!(!said.contains("secret"));
    let wrong = dir("http://127.0.0.1:4222").run(&["status"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("use nats or tls"), "{}", stderr(&wrong));
    let closed = crate::common::nats::single("authorization { user: u, password: p }");
    let output = dir(&format!("nats://u:wrong@127.0.0.1:{}", closed.server.port)).run(&["status"]);
    let said = stderr(&output);
    assert!(!output.status.success() && said.to_lowercase().contains("authorization"), "{said}");
    // Commands write to the same log.
    let right = dir(&format!("nats://u:p@127.0.0.1:{}", closed.server.port));
    let put = right.run_with(&["import", "news", "-"], b"{\"id\":\"a\",\"item\":{\"title\":\"A\"}}\n");
    assert!(put.status.success(), "{}", stderr(&put));
    let other = dir(&format!("nats://u:p@127.0.0.1:{}", closed.server.port));
    let status = crate::common::stdout(&other.run(&["status"]));
    assert!(status.lines().any(|line| line.starts_with("news") && line.contains(" 1 ")), "{status}");
}
