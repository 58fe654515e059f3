//! What the loss of power does: servers come back without the end of what they had. Where the others still have it, it
//! comes from them; where a majority has lost it, every node that had more says so and stops writing, and none goes on
//! with another log as if nothing had been.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;
mod faults;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::Answer;
use faults::clients::ask;
use faults::machines::{self, EACH, Machine};
use faults::network::Network;
use serde_json::json;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

struct Cluster {
    folder: TempDir,
    servers: Vec<Machine>,
    nodes: Vec<Machine>,
}

impl Cluster {
    fn start() -> Self {
        let (network, folder) = (Network::loopback(), tempfile::tempdir().unwrap());
        let mut servers = machines::servers(&network, folder.path());
        servers.iter_mut().for_each(Machine::start);
        let door = "http://127.0.0.1:1";
        let feeds = "[[feed]]\nid = \"news\"\n";
        let mut nodes = machines::nodes(&network, folder.path(), &servers, door, feeds);
        nodes.iter_mut().for_each(Machine::start);
        let cluster = Self { folder, servers, nodes };
        cluster.wait_until("all nodes are well", |cluster| {
            cluster.nodes.iter().all(|node| health(node) == "ok")
        });
        cluster
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            let output = || self.nodes.iter().map(Machine::output).collect::<Vec<_>>().join("\n---\n");
            assert!(Instant::now() < end, "never: {what}: {}", output());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Publishes items through all nodes in turn, as long as it takes; each is there then.
    fn publish(&self, ids: impl Iterator<Item = usize>) {
        for id in ids {
            self.wait_until("an append is taken", |cluster| {
                let answer = publish(&cluster.nodes[id % EACH], id);
                answer.is_some_and(|answer| answer.status == 200)
            });
        }
    }

    fn copy_of(&self, server: usize) -> PathBuf {
        self.folder.path().join(format!("copy{server}"))
    }

    /// Keeps what the servers have on their disks now, as all of them stand still.
    fn keep_disks(&self) {
        self.servers.iter().for_each(|server| server.signal("STOP"));
        for (number, server) in self.servers.iter().enumerate() {
            copy(&server.folder.join("data"), &self.copy_of(number));
        }
        self.servers.iter().for_each(|server| server.signal("CONT"));
    }

    /// All of these servers are killed at once, and come back with the disks that were kept.
    fn lose_power(&mut self, lost: &[usize]) {
        lost.iter().for_each(|server| self.servers[*server].kill());
        for server in lost {
            let data = self.servers[*server].folder.join("data");
            std::fs::remove_dir_all(&data).unwrap();
            copy(&self.copy_of(*server), &data);
            self.servers[*server].start();
        }
        self.servers.iter().for_each(Machine::wait);
    }

    /// A node with an empty folder in the place of one that is stopped.
    fn made_anew(&mut self, node: usize) {
        self.nodes[node].kill();
        machines::wipe(&self.nodes[node]);
        self.nodes[node].start();
        self.wait_until("a new node has the log", |cluster| health(&cluster.nodes[node]) == "ok");
    }
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(status.success());
}

fn get(node: &Machine, path: &str) -> Option<Answer> {
    ask(node.address, "GET", path, &[], b"").ok()
}

fn health(node: &Machine) -> String {
    let answer = get(node, "/healthz.json").filter(|answer| answer.status == 200);
    answer.map_or_else(String::new, |answer| answer.json()["status"].as_str().unwrap().to_owned())
}

fn publish(node: &Machine, id: usize) -> Option<Answer> {
    let line = json!({ "id": id.to_string(), "item": { "title": id.to_string() } }).to_string();
    ask(node.address, "POST", "/feeds/news/items", &[], line.as_bytes()).ok()
}

/// The ids of a node's items, in their order.
fn items(node: &Machine) -> Vec<usize> {
    let page = get(node, "/feeds/news/items?order=created&max=1000&timeout=0").unwrap();
    assert_eq!(page.status, 200, "{}", page.text());
    let page = page.json();
    page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["id"].as_str().unwrap().parse().unwrap())
        .collect()
}

/// Why a node publishes nothing, where the log has lost what it had.
fn loss(node: &Machine) -> Option<String> {
    let answer = publish(node, 999).filter(|answer| answer.status == 503)?;
    assert!(answer.header("retry-after").is_some());
    Some(answer.text()).filter(|text| text.contains("the cluster has lost what it acknowledged"))
}

/// The node has what it had, says that this may be old, and publishes nothing.
fn assert_stopped(cluster: &Cluster, node: usize, has: &[usize]) {
    cluster.wait_until("the loss is said", |cluster| loss(&cluster.nodes[node]).is_some());
    assert_eq!(items(&cluster.nodes[node]), has, "reading goes on");
    cluster.wait_until("health says so", |cluster| health(&cluster.nodes[node]) == "degraded");
    let read = get(&cluster.nodes[node], "/feeds/news/items?order=created&timeout=0").unwrap();
    assert!(read.header("towpath-replica-age").is_some());
}

#[test]
fn one_of_three_servers_loses_power_and_nothing_is_lost() {
    let mut cluster = Cluster::start();
    cluster.publish(0..10);
    cluster.keep_disks();
    cluster.publish(10..20);
    for server in 0..EACH {
        // Each has all before the next one loses power.
        cluster.lose_power(&[server]);
        cluster.publish(20 + server * 5..25 + server * 5);
        std::thread::sleep(Duration::from_secs(5));
    }
    let all: Vec<usize> = (0..35).collect();
    let has_all = |node: &Machine| {
        let mut items = items(node);
        items.sort_unstable();
        items.dedup();
        items == all
    };
    cluster.wait_until("all nodes have all", |cluster| cluster.nodes.iter().all(has_all));
    cluster.made_anew(1);
    assert!(has_all(&cluster.nodes[1]), "a new node has it from the log");
    assert!(cluster.nodes.iter().all(|node| loss(node).is_none()));
}

#[test]
fn a_log_that_came_back_shorter_is_noticed_by_all_that_had_more() {
    let mut cluster = Cluster::start();
    cluster.publish(0..10);
    // One node does not see what is lost later.
    cluster.nodes[2].stop();
    cluster.keep_disks();
    for id in 10..20 {
        cluster.wait_until("an append is taken", |cluster| {
            publish(&cluster.nodes[id % 2], id).is_some_and(|answer| answer.status == 200)
        });
    }
    let had: Vec<Vec<usize>> = (0..2).map(|node| items(&cluster.nodes[node])).collect();
    // One that had all is asleep until the log is longer again than what it has.
    cluster.nodes[1].signal("STOP");
    cluster.lose_power(&[0, 1, 2]);
    assert_stopped(&cluster, 0, &had[0]);

    cluster.nodes[2].start();
    cluster.wait_until("one that had no more goes on", |cluster| {
        publish(&cluster.nodes[2], 20).is_some_and(|answer| answer.status == 200)
    });
    for id in 21..60 {
        assert_eq!(publish(&cluster.nodes[2], id).unwrap().status, 200);
    }
    cluster.nodes[1].signal("CONT");
    assert_stopped(&cluster, 1, &had[1]);
    assert_stopped(&cluster, 0, &had[0]);
    // The same after a start.
    cluster.nodes[0].stop();
    cluster.nodes[0].start();
    cluster.nodes[0].wait();
    assert_stopped(&cluster, 0, &had[0]);
    // What they had is given up, and they go on with the others.
    cluster.made_anew(0);
    cluster.made_anew(1);
    let all = items(&cluster.nodes[2]);
    assert!((0..10).chain(20..60).all(|id| all.contains(&id)) && !all.contains(&15), "{all:?}");
    cluster.wait_until("all have the same", |cluster| cluster.nodes.iter().all(|node| items(node) == all));
}

#[test]
fn two_of_three_servers_lose_power_and_it_is_said_where_something_is_lost() {
    let mut cluster = Cluster::start();
    cluster.publish(0..10);
    cluster.keep_disks();
    cluster.publish(10..20);
    cluster
        .wait_until("all nodes have all", |cluster| cluster.nodes.iter().all(|node| items(node).len() == 20));
    cluster.lose_power(&[0, 1]);
    // Either the third server brings back what the others have lost, or every node says that it is lost.
    let is_settled = |cluster: &Cluster| {
        let well =
            cluster.nodes.iter().all(|node| publish(node, 30).is_some_and(|answer| answer.status == 200));
        well || cluster.nodes.iter().all(|node| loss(node).is_some())
    };
    cluster.wait_until("it is settled", is_settled);
    std::thread::sleep(Duration::from_secs(3));
    let lost = cluster.nodes.iter().filter(|node| loss(node).is_some()).count();
    common::nats::say(&format!(
        "two of three servers have lost power: {lost} of {EACH} nodes say that something is lost"
    ));
    assert!(lost == 0 || lost == EACH, "the nodes disagree");
    for node in 0..EACH {
        let items = items(&cluster.nodes[node]);
        assert!((0..20).all(|id| items.contains(&id)), "what was acknowledged is still read: {items:?}");
    }
    cluster.made_anew(0);
    let has_all = |node: &Machine| {
        let items = items(node);
        (10..20).all(|id| items.contains(&id))
    };
    assert!(lost == EACH || has_all(&cluster.nodes[0]), "{:?}", items(&cluster.nodes[0]));
    // The server that has all may bring it back only now, or give it to a new node and be left behind by the others:
    // whoever has what the log has lost says so, and nobody else does.
    cluster.wait_until("they agree", |cluster| {
        let (with, without): (Vec<&Machine>, Vec<&Machine>) =
            cluster.nodes.iter().partition(|node| has_all(node));
        let says: Vec<bool> = with.iter().map(|node| loss(node).is_some()).collect();
        says.iter().all(|one| *one == says[0]) && without.iter().all(|node| loss(node).is_none())
    });
}
