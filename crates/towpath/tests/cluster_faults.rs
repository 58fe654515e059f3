//! Three nodes on three servers of NATS, all of which are killed, stopped and cut off at random while clients publish,
//! edit, delete and read, and followers of all protocols follow. At the end the log is linearizable, all nodes have the
//! same, and every follower was told what its protocol promises.
//!
//! `TOWPATH_FAULTS=1000 cargo test -p towpath --test cluster_faults` (or `cargo xtask faults 1000`) for longer;
//! `TOWPATH_FAULTS_SEED` for the same choices again.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;
mod faults;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use common::door::Door;
use common::nats::say;
use common::prosody::Prosody;
use faults::clients::{self, FEEDS, World, deleted};
use faults::followers::{self, Follower, POLLED, Told};
use faults::harm::Harms;
use faults::linear;
use faults::machines::{self, EACH, Machine};
use faults::network::Network;
use towpath_proto::{FeedId, Op};
use towpath_store::embedded::{EmbeddedStore, Options};
use towpath_store::{Limit, Store};

/// Small pages, so that there are many; both kinds of cursors.
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

/// How long all may take to be well again once nothing fails any more.
const RECOVERY: Duration = Duration::from_secs(60);
/// The same for followers, which wait longer the more often they failed.
const CATCHING_UP: Duration = Duration::from_secs(180);

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

#[test]
fn the_log_is_linearizable_and_followers_are_told_everything() {
    let Some(network) = Network::enter("the_log_is_linearizable_and_followers_are_told_everything") else {
        return;
    };
    let faults = setting("TOWPATH_FAULTS").unwrap_or(20);
    let seed = setting("TOWPATH_FAULTS_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    say(&format!("{faults} faults with TOWPATH_FAULTS_SEED={seed}"));
    let folder = tempfile::tempdir().unwrap();
    let door = Door::open(network.own_ip());
    let base = door.base.clone();
    let mut servers = machines::servers(&network, folder.path());
    servers.iter_mut().for_each(Machine::start);
    servers.iter().for_each(Machine::wait);
    let prosody = Prosody::start_apart(&["alice"], network.own_ip());
    let config = format!("{}{CONFIG}", prosody.component());
    let mut nodes = machines::nodes(&network, folder.path(), &servers, &base, &config);
    nodes.iter_mut().for_each(Machine::start);
    recover(&mut nodes);
    door.lead_to(nodes.iter().map(|node| node.address).collect());
    let world = World::new(nodes.iter().map(|node| (node.address, node.lives.clone())).collect());
    let node = format!("http://{}", nodes[1].address);
    let mut followers = followers::start_all(folder.path(), &base, &node, network.own_ip(), &prosody);
    let clients = world.begin(seed);
    let mut harms = Harms::new(servers, nodes, door, network.is_apart(), seed);
    let begun = Instant::now();
    for n in 1..=faults {
        let what = harms.harm();
        let told: Vec<usize> = followers.iter().map(Follower::count).collect();
        say(&format!("{:?} fault {n}: {what}; {:?} {told:?}", begun.elapsed().as_secs(), world.counts()));
        assert!(world.faults.lock().unwrap().is_empty(), "{:?}", world.faults.lock().unwrap());
    }
    harms.heal();
    recover(&mut harms.nodes);
    world.end();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let took = begun.elapsed();
    assert!(world.faults.lock().unwrap().is_empty(), "{:?}", world.faults.lock().unwrap());

    let logs = check_log(&mut harms.nodes[2], &world);
    check_followers(&mut followers, &logs, folder.path());
    check_documents(&harms.nodes, &base, &logs);
    for node in 0..EACH {
        harms.nodes[node].stop();
        assert!(read_logs(&harms.nodes[node]) == logs, "node {node} has another log");
    }
    let [acknowledged, conflicts, refused, unknown] = world.counts();
    let changes: usize = logs.iter().map(Vec::len).sum();
    say(&format!(
        "seed {seed}, {faults} faults in {} s: {changes} changes; appends: {acknowledged} acknowledged, {conflicts} in \
         conflict, {refused} refused, {unknown} unknown; reads: {:?} and {:?} put off; followers told {:?}; {:?}",
        took.as_secs(),
        world.reads,
        world.read_later,
        followers.iter().map(|f| (&*f.name, f.count())).collect::<Vec<_>>(),
        harms.counts,
    ));
    say(&format!("errors that the nodes logged: {:#?}", errors(&harms.nodes)));
    assert!(acknowledged > 50 && conflicts > 0, "too little happened");
    let was_cut = harms.counts.iter().any(|(what, _)| what.contains("cut off"));
    assert!(was_cut || !network.is_apart() || faults < 10, "nothing was cut off");
}

/// What the nodes logged as errors, without numbers, and how often.
fn errors(nodes: &[Machine]) -> BTreeMap<String, usize> {
    let mut errors = BTreeMap::new();
    for output in nodes.iter().map(Machine::output) {
        for line in output.lines() {
            if let Some((_, error)) = line.split_once(" ERROR ").or(line.split_once("panicked")) {
                let text = error.chars().filter(|c| !c.is_ascii_digit()).collect();
                *errors.entry(text).or_default() += 1;
            }
        }
    }
    errors
}

/// All nodes take appends, and are current.
fn recover(nodes: &mut [Machine]) {
    let healed = Instant::now();
    let is_well = |node: &Machine| {
        let answer = clients::ask(node.address, "GET", "/healthz.json", &[], b"");
        answer.is_ok_and(|answer| answer.status == 200 && answer.json()["status"] == "ok")
    };
    while !nodes.iter().all(is_well) {
        nodes.iter_mut().for_each(Machine::keep_running);
        let say_why = || nodes.iter().map(Machine::output).collect::<Vec<_>>().join("\n---\n");
        assert!(healed.elapsed() < RECOVERY, "the nodes do not recover: {}", say_why());
        std::thread::sleep(Duration::from_millis(200));
    }
    say(&format!("well again after {:?}", healed.elapsed()));
    std::thread::sleep(Duration::from_secs(1));
}

/// Whether what clients were told fits to the log of a node, whose indexes are sound; returns the log of each feed.
fn check_log(node: &mut Machine, world: &World) -> Vec<Vec<Told>> {
    let acknowledged: Vec<u64> = (0..FEEDS.len()).map(|feed| world.acknowledged(feed)).collect();
    let end = Instant::now() + RECOVERY;
    for (feed, wanted) in FEEDS.iter().zip(&acknowledged) {
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
        let marks: Vec<String> = log.iter().map(|told| told.mark.clone()).collect();
        let attempts = world.attempts[feed].lock().unwrap();
        let faults = linear::check(&marks, &attempts);
        assert!(faults.is_empty(), "{}: {faults:#?}", FEEDS[feed]);
    }
    node.start();
    node.wait();
    logs
}

/// The whole log of each feed in a node's replica.
fn read_logs(node: &Machine) -> Vec<Vec<Told>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options = Options { reserve: 0, ..Options::default() };
    let (store, writer) = EmbeddedStore::open_replica(node.folder.join("data"), &options).unwrap();
    runtime.block_on(async move {
        let found = store.verify().await.unwrap();
        assert!(found.is_sound(), "{}: {:#?}", node.site.name, found.problems);
        let mut logs = Vec::new();
        for (number, feed) in FEEDS.iter().enumerate() {
            let all = Limit { items: usize::MAX, bytes: usize::MAX };
            let changes = store.read(&FeedId::new(feed).unwrap(), 0, all).await.unwrap();
            let told = changes.into_iter().zip(1..).map(|(change, place)| {
                assert_eq!(change.seq, place);
                let mark = match change.op {
                    Op::Delete => deleted(&change.item.id),
                    _ => change.item.title.unwrap(),
                };
                Told::new(number, change.item.id, mark)
            });
            logs.push(told.collect());
        }
        drop(writer);
        store.close().await;
        logs
    })
}

/// Followers come to the end, and were told what their protocols promise.
fn check_followers(followers: &mut [Follower], logs: &[Vec<Told>], folder: &Path) {
    let begun = Instant::now();
    let faults = |followers: &mut [Follower]| -> Vec<String> {
        let of = |follower: &mut Follower| {
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
    // Something that is told once more would come now.
    std::thread::sleep(Duration::from_secs(3));
    let found = faults(followers);
    assert!(found.is_empty(), "followers: {found:#?}");
}

/// Who begins now, at any node, is told the same; and all documents conform.
fn check_documents(nodes: &[Machine], door: &str, logs: &[Vec<Told>]) {
    let begun = Instant::now();
    for node in nodes {
        let base = format!("http://{}", node.address);
        for way in &POLLED {
            let found = followers::follow_once(way, &base, logs);
            assert!(found.is_empty(), "{} from the beginning at {base}: {found:#?}", way.0);
        }
    }
    for (way, feed) in POLLED.iter().zip(FEEDS.iter().cycle()) {
        let found = followers::check(way, door, feed);
        assert!(found.is_empty(), "{} of {feed}: {}", way.0, found.join("\n"));
    }
    say(&format!("documents checked in {:?}", begun.elapsed()));
}
