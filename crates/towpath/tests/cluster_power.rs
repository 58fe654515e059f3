//! Loss of power: servers come back without the end of their data.
//!
//! If other servers have that end, it comes from them. If a majority has lost it, every node that had more reports it
//! and stops writing. No node continues silently on another log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::common::TestResponse;
use crate::faults::clients::ask;
use crate::faults::machines::{self, EACH, Machine};
use crate::faults::network::Network;

const TIMEOUT: Duration = Duration::from_secs(60);

struct PowerCluster {
    folder: TempDir,
    servers: Vec<Machine>,
    nodes: Vec<Machine>,
}

impl PowerCluster {
    fn start() -> Self {
        let (network, folder) = (Network::loopback(), tempfile::tempdir().unwrap());
        let mut servers = machines::servers(&network, folder.path());
        servers.iter_mut().for_each(Machine::start);
        let balancer = "http://127.0.0.1:1";
        let feeds = "[[feed]]\nid = \"news\"\n";
        let mut nodes = machines::nodes(&network, folder.path(), &servers, balancer, feeds);
        nodes.iter_mut().for_each(Machine::start);
        let cluster = Self { folder, servers, nodes };
        cluster.wait_until("all nodes are well", |cluster| {
            cluster.nodes.iter().all(|node| health(node) == "ok")
        });
        cluster
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !is_so(self) {
            let output = || self.nodes.iter().map(Machine::output).collect::<Vec<_>>().join("\n---\n");
            assert!(Instant::now() < end, "timeout while waiting: {what}: {}", output());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Publishes items through all nodes in turn, retrying until each is acknowledged.
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

    /// Copies the servers' disks at one moment, with all servers stopped.
    fn copy_disks(&self) {
        // A copy of a running server's files would mix several moments.
        self.servers.iter().for_each(|server| server.signal("STOP"));
        for (number, server) in self.servers.iter().enumerate() {
            copy(&server.folder.join("data"), &self.copy_of(number));
        }
        self.servers.iter().for_each(|server| server.signal("CONT"));
    }

    /// Kills all of these servers at once and restarts them with the disks that were copied.
    fn lose_power(&mut self, lost: &[usize]) {
        lost.iter().for_each(|server| self.servers[*server].kill());
        for server in lost {
            let data = self.servers[*server].folder.join("data");
            // Everything since the copy stands for data that was in memory or in the page cache.
            std::fs::remove_dir_all(&data).unwrap();
            copy(&self.copy_of(*server), &data);
            self.servers[*server].start();
        }
        self.servers.iter().for_each(Machine::wait);
    }

    /// Replaces a stopped node by one with an empty folder.
    fn replace(&mut self, node: usize) {
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

fn get(node: &Machine, path: &str) -> Option<TestResponse> {
    ask(node.address, "GET", path, &[], b"").ok()
}

fn health(node: &Machine) -> String {
    let answer = get(node, "/healthz.json").filter(|answer| answer.status == 200);
    answer.map_or_else(String::new, |answer| answer.json()["status"].as_str().unwrap().to_owned())
}

fn publish(node: &Machine, id: usize) -> Option<TestResponse> {
    let line = json!({ "id": id.to_string(), "item": { "title": id.to_string() } }).to_string();
    ask(node.address, "POST", "/feeds/news/items", &[], line.as_bytes()).ok()
}

/// Ids of a node's items, in log order.
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

/// Reason why a node stopped writing, if its log has lost entries.
fn loss(node: &Machine) -> Option<String> {
    let answer = publish(node, 999).filter(|answer| answer.status == 503)?;
    assert!(answer.header("retry-after").is_some());
    Some(answer.text()).filter(|text| text.contains("the cluster has lost what it acknowledged"))
}

/// Asserts that the node still serves its items, says that they may be outdated, and accepts no appends.
fn assert_stopped(cluster: &PowerCluster, node: usize, has: &[usize]) {
    cluster.wait_until("the loss is said", |cluster| loss(&cluster.nodes[node]).is_some());
    assert_eq!(items(&cluster.nodes[node]), has, "reading goes on");
    cluster.wait_until("health says so", |cluster| health(&cluster.nodes[node]) == "degraded");
    let read = get(&cluster.nodes[node], "/feeds/news/items?order=created&timeout=0").unwrap();
    assert!(read.header("towpath-replica-age").is_some());
}

#[test]
fn one_of_three_servers_loses_power_and_nothing_is_lost() {
    let mut cluster = PowerCluster::start();
    cluster.publish(0..10);
    cluster.copy_disks();
    cluster.publish(10..20);
    for server in 0..EACH {
        // Each server has everything before the next one loses power.
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
    cluster.replace(1);
    assert!(has_all(&cluster.nodes[1]), "a new node has it from the log");
    assert!(cluster.nodes.iter().all(|node| loss(node).is_none()));
}

#[test]
fn a_truncated_log_is_noticed_by_every_longer_replica() {
    let mut cluster = PowerCluster::start();
    cluster.publish(0..10);
    // One node does not see the entries that are lost later.
    cluster.nodes[2].stop();
    cluster.copy_disks();
    for id in 10..20 {
        cluster.wait_until("an append is taken", |cluster| {
            publish(&cluster.nodes[id % 2], id).is_some_and(|answer| answer.status == 200)
        });
    }
    let had: Vec<Vec<usize>> = (0..2).map(|node| items(&cluster.nodes[node])).collect();
    // One node that had everything sleeps until the new log is longer than its own.
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
    // A restarted node notices it, too.
    cluster.nodes[0].stop();
    cluster.nodes[0].start();
    cluster.nodes[0].wait();
    assert_stopped(&cluster, 0, &had[0]);
    // The nodes give up their entries, and continue with the others.
    cluster.replace(0);
    cluster.replace(1);
    let all = items(&cluster.nodes[2]);
    assert!((0..10).chain(20..60).all(|id| all.contains(&id)) && !all.contains(&15), "{all:?}");
    cluster.wait_until("all have the same", |cluster| cluster.nodes.iter().all(|node| items(node) == all));
}

#[test]
fn two_of_three_servers_lose_power_and_losses_are_reported() {
    let mut cluster = PowerCluster::start();
    cluster.publish(0..10);
    cluster.copy_disks();
    cluster.publish(10..20);
    cluster
        .wait_until("all nodes have all", |cluster| cluster.nodes.iter().all(|node| items(node).len() == 20));
    cluster.lose_power(&[0, 1]);
    // Either the third server restores the lost entries, or every node reports the loss.
    let is_settled = |cluster: &PowerCluster| {
        let well =
            cluster.nodes.iter().all(|node| publish(node, 30).is_some_and(|answer| answer.status == 200));
        well || cluster.nodes.iter().all(|node| loss(node).is_some())
    };
    cluster.wait_until("it is settled", is_settled);
    std::thread::sleep(Duration::from_secs(3));
    let lost = cluster.nodes.iter().filter(|node| loss(node).is_some()).count();
    crate::common::nats::say(&format!(
        "two of three servers have lost power: {lost} of {EACH} nodes say that something is lost"
    ));
    assert!(lost == 0 || lost == EACH, "the nodes disagree");
    for node in 0..EACH {
        let items = items(&cluster.nodes[node]);
        assert!((0..20).all(|id| items.contains(&id)), "what was acknowledged is still read: {items:?}");
    }
    cluster.replace(0);
    let has_all = |node: &Machine| {
        let items = items(node);
        (10..20).all(|id| items.contains(&id))
    };
    assert!(lost == EACH || has_all(&cluster.nodes[0]), "{:?}", items(&cluster.nodes[0]));
    // The server that has everything may restore it only now, or give it to a new node and be left behind by the
    // others. A node that has lost entries reports it, and no other node does.
    cluster.wait_until("they agree", |cluster| {
        let (with, without): (Vec<&Machine>, Vec<&Machine>) =
            cluster.nodes.iter().partition(|node| has_all(node));
        let says: Vec<bool> = with.iter().map(|node| loss(node).is_some()).collect();
        says.iter().all(|one| *one == says[0]) && without.iter().all(|node| loss(node).is_none())
    });
}
