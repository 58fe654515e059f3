//! Three nodes on three NATS servers. All of them are killed, stopped and cut off at random while clients publish,
//! edit, delete and read, and followers of all protocols follow. At the end the log is linearizable, all nodes have
//! the same log, and every follower got the changes that its protocol guarantees.
//!
//! `cargo xtask faults 1000` injects so many faults; `TOWPATH_FAULTS_SEED` repeats the same random choices.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use towpath_proto::{FeedId, Op};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{ReadLimit, Store};

use crate::common::load_balancer::LoadBalancer;
use crate::common::nats::say;
use crate::common::xmpp::XmppServer;
use crate::faults::clients::{self, FEEDS, Workload, deleted};
use crate::faults::followers::{self, DeliveredChange, FollowProcess, POLLED};
use crate::faults::injector::FaultInjector;
use crate::faults::linearizability;
use crate::faults::machines::{self, EACH, Machine};
use crate::faults::network::Network;

/// Small pages, so that there are many of them; cursors of both kinds.
const CONFIG: &str = r#"
[[feed]]
id = "fa"
page_items = 20
[[feed]]
id = "fb"
cursor = "toc"
page_items = 50
[[feed]]
id = "fc"
[[feed]]
id = "fd"
page_items = 7
"#;

/// Longest time for all machines to recover after the last fault.
const RECOVERY: Duration = Duration::from_secs(60);
/// Longest time for followers to recover: their backoff grows with each failure.
const CATCHING_UP: Duration = Duration::from_secs(180);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

#[test]
fn the_log_is_linearizable_and_followers_miss_nothing() {
    let Some(network) = Network::enter("cluster_faults::the_log_is_linearizable_and_followers_miss_nothing")
    else {
        return;
    };
    let faults = setting("TOWPATH_FAULTS").unwrap_or(20);
    let seed = setting("TOWPATH_FAULTS_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    say(&format!("{faults} faults with TOWPATH_FAULTS_SEED={seed}"));
    let folder = tempfile::tempdir().unwrap();
    let balancer = LoadBalancer::open(network.own_ip());
    let base = balancer.base.clone();
    let mut servers = machines::servers(&network, folder.path());
    servers.iter_mut().for_each(Machine::start);
    servers.iter().for_each(Machine::wait);
    let prosody = XmppServer::prosody_apart(&["alice"], network.own_ip());
    let config = format!("{}{CONFIG}", prosody.component());
    let mut nodes = machines::nodes(&network, folder.path(), &servers, &base, &config);
    nodes.iter_mut().for_each(Machine::start);
    recover(&mut nodes);
    balancer.set_nodes(nodes.iter().map(|node| node.address).collect());
    let workload = Workload::new(nodes.iter().map(|node| (node.address, node.lives.clone())).collect());
    let node = format!("http://{}", nodes[1].address);
    let mut followers = followers::start_all(folder.path(), &base, &node, network.own_ip(), &prosody);
    let clients = workload.start(seed);
    wait_for_begin(&followers);
    let mut injector = FaultInjector::new(servers, nodes, balancer, network.is_apart(), seed);
    let begun = Instant::now();
    for n in 1..=faults {
        let what = injector.inject();
        let printed: Vec<usize> = followers.iter().map(FollowProcess::count).collect();
        say(&format!(
            "{:?} fault {n}: {what}; {:?} {printed:?}",
            begun.elapsed().as_secs(),
            workload.counts()
        ));
        // After each fault, so that the last one printed is the one to look at.
        assert!(workload.faults.lock().unwrap().is_empty(), "{:?}", workload.faults.lock().unwrap());
    }
    injector.repair_all();
    recover(&mut injector.nodes);
    workload.end();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let took = begun.elapsed();
    assert!(workload.faults.lock().unwrap().is_empty(), "{:?}", workload.faults.lock().unwrap());

    let logs = check_log(&mut injector.nodes[2], &workload);
    check_followers(&mut followers, &logs, folder.path());
    check_documents(&injector.nodes, &base, &logs);
    // Stopped first: only one process at a time can open a replica's folder.
    for node in 0..EACH {
        injector.nodes[node].stop();
        assert!(read_logs(&injector.nodes[node]) == logs, "node {node} has another log");
    }
    let [acknowledged, conflicts, refused, unknown] = workload.counts();
    let changes: usize = logs.iter().map(Vec::len).sum();
    say(&format!(
        "seed {seed}, {faults} faults in {} s: {changes} changes; appends: {acknowledged} acknowledged, {conflicts} in \
         conflict, {refused} refused, {unknown} unknown; reads: {:?} and {:?} put off; followers printed {:?}; {:?}",
        took.as_secs(),
        workload.reads,
        workload.read_later,
        followers.iter().map(|f| (&*f.name, f.count())).collect::<Vec<_>>(),
        injector.counts,
    ));
    say(&format!("errors that the nodes logged: {:#?}", errors(&injector.nodes)));
    // A run in which hardly anything was written would pass every check above.
    assert!(acknowledged > 50 && conflicts > 0, "too little happened");
    let was_cut = injector.counts.iter().any(|(what, _)| what.contains("cut off"));
    assert!(was_cut || !network.is_apart() || faults < 10, "nothing was cut off");
}

/// Waits until every follower has printed a change: one whose first request is cut off ends, as it should.
fn wait_for_begin(followers: &[FollowProcess]) {
    let begun = Instant::now();
    let idle = || followers.iter().filter(|one| one.count() == 0).map(|one| &*one.name).collect::<Vec<_>>();
    while !idle().is_empty() {
        assert!(begun.elapsed() < CATCHING_UP, "followers that printed nothing: {:?}", idle());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Errors that the nodes logged, without numbers, and their counts.
fn errors(nodes: &[Machine]) -> BTreeMap<String, usize> {
    let mut errors = BTreeMap::new();
    for output in nodes.iter().map(Machine::output) {
        for line in output.lines() {
            if let Some((_, error)) = line.split_once(" ERROR ").or(line.split_once("panicked")) {
                // Without digits, so that errors which differ in a port or a time count as one.
                let text = error.chars().filter(|c| !c.is_ascii_digit()).collect();
                *errors.entry(text).or_default() += 1;
            }
        }
    }
    errors
}

/// Waits until all nodes accept appends and are current.
fn recover(nodes: &mut [Machine]) {
    let healed = Instant::now();
    let is_well = |node: &Machine| {
        let answer = clients::ask(node.address, "GET", "/healthz.json", &[], b"");
        answer.is_ok_and(|answer| answer.status == 200 && answer.json()["status"] == "ok")
    };
    while !nodes.iter().all(is_well) {
        nodes.iter_mut().for_each(Machine::keep_running);
        let health = |node: &Machine| match clients::ask(node.address, "GET", "/healthz.json", &[], b"") {
            Ok(answer) => answer.text(),
            Err(_) => "no answer".to_owned(),
        };
        let why = |node: &Machine| format!("{}\n{}", health(node), node.output());
        let say_why = || nodes.iter().map(why).collect::<Vec<_>>().join("\n---\n");
        assert!(healed.elapsed() < RECOVERY, "the nodes do not recover: {}", say_why());
        std::thread::sleep(Duration::from_millis(200));
    }
    say(&format!("well again after {:?}", healed.elapsed()));
    std::thread::sleep(Duration::from_secs(1));
}

/// Checks the responses that clients got against a node's log, and that node's indexes. Returns the log of each feed.
fn check_log(node: &mut Machine, workload: &Workload) -> Vec<Vec<DeliveredChange>> {
    let acknowledged: Vec<u64> = (0..FEEDS.len()).map(|feed| workload.acknowledged(feed)).collect();
    let end = Instant::now() + RECOVERY;
    for (feed, wanted) in FEEDS.iter().zip(&acknowledged) {
        // With its position named, the node answers only once it has that change.
        let position = [("Towpath-Position", &*wanted.to_string())];
        while clients::ask(node.address, "GET", &format!("/feeds/{feed}"), &position, b"")
            .is_ok_and(|answer| answer.status != 200)
        {
            assert!(Instant::now() < end, "{feed} does not come to {wanted}: {}", node.output());
        }
    }
    node.stop();
    let logs = read_logs(node);
    for (feed, log) in logs.iter().enumerate() {
        let marks: Vec<String> = log.iter().map(|printed| printed.mark.clone()).collect();
        let attempts = workload.attempts[feed].lock().unwrap();
        let faults = linearizability::check(&marks, &attempts);
        assert!(faults.is_empty(), "{}: {faults:#?}", FEEDS[feed]);
    }
    node.start();
    node.wait();
    logs
}

/// Reads the whole log of each feed from a node's replica.
fn read_logs(node: &Machine) -> Vec<Vec<DeliveredChange>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The reserve is for writing, and this only reads.
    let options = EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() };
    let (store, writer) = EmbeddedStore::open_replica(node.folder.join("data"), &options).unwrap();
    runtime.block_on(async move {
        let found = store.verify().await.unwrap();
        assert!(found.is_sound(), "{}: {:#?}", node.site.name, found.problems);
        let mut logs = Vec::new();
        for (number, feed) in FEEDS.iter().enumerate() {
            let all = ReadLimit { items: usize::MAX, bytes: usize::MAX };
            let changes = store.read(&FeedId::new(feed).unwrap(), 0, all).await.unwrap();
            let printed = changes.into_iter().zip(1..).map(|(change, dir)| {
                assert_eq!(change.seq, dir);
                let mark = match change.op {
                    Op::Delete => deleted(&change.item.id),
                    _ => change.item.title.unwrap(),
                };
                DeliveredChange::new(number, change.item.id, mark)
            });
            logs.push(printed.collect());
        }
        drop(writer);
        store.close().await;
        logs
    })
}

/// Waits for the followers to reach the head, and checks that they got the changes that their protocols guarantee.
fn check_followers(followers: &mut [FollowProcess], logs: &[Vec<DeliveredChange>], folder: &Path) {
    let begun = Instant::now();
    let faults = |followers: &mut [FollowProcess]| -> Vec<String> {
        let of = |follower: &mut FollowProcess| {
            let name = follower.name.clone();
            follower.faults(logs).into_iter().map(move |fault| format!("{name}: {fault}"))
        };
        followers.iter_mut().flat_map(of).collect()
    };
    loop {
        let found = faults(followers);
        if found.is_empty() {
            break;
        }
        if begun.elapsed() > CATCHING_UP {
            let output = |file: std::io::Result<std::fs::DirEntry>| {
                let path = file.unwrap().path();
                let log = path
                    .extension()
                    .is_some_and(|e| e == "log")
                    .then(|| std::fs::read_to_string(&path).unwrap());
                log.map(|log| {
                    format!("--- {path:?}\n{}", log.lines().rev().take(20).collect::<Vec<_>>().join("\n"))
                })
            };
            let logs: Vec<String> = std::fs::read_dir(folder).unwrap().filter_map(output).collect();
            panic!("followers: {found:#?}\n{}", logs.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    say(&format!("all followers have all after {:?}", begun.elapsed()));
    // A duplicate would be delivered within this time.
    std::thread::sleep(Duration::from_secs(3));
    let found = faults(followers);
    assert!(found.is_empty(), "followers: {found:#?}");
}

/// Checks that a new follower gets the same changes from any node, and that all documents conform.
fn check_documents(nodes: &[Machine], balancer: &str, logs: &[Vec<DeliveredChange>]) {
    let begun = Instant::now();
    for node in nodes {
        let base = format!("http://{}", node.address);
        for way in &POLLED {
            let found = followers::follow_once(way, &base, logs);
            assert!(found.is_empty(), "{} from the beginning at {base}: {found:#?}", way.0);
        }
    }
    for (way, feed) in POLLED.iter().zip(FEEDS.iter().cycle()) {
        let found = followers::check(way, balancer, feed);
        assert!(found.is_empty(), "{} of {feed}: {}", way.0, found.join("\n"));
    }
    say(&format!("documents checked in {:?}", begun.elapsed()));
}
