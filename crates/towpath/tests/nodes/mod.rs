//! Three nodes of one cluster on a real NATS server, behind a load balancer.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::load_balancer::LoadBalancer;
use crate::common::{PATIENCE, TestFolder, TestResponse, TestServer, free_port, nats};

/// Number of nodes.
pub const NODES: usize = 3;

pub struct TestCluster {
    pub nats: nats::SingleServer,
    pub balancer: LoadBalancer,
    pub dirs: Vec<TestFolder>,
    pub nodes: Vec<Option<TestServer>>,
    ports: Vec<u16>,
    args: Vec<String>,
}

impl TestCluster {
    /// Starts nodes with this configuration; `[server]` is added.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// Starts nodes with further arguments to `serve`.
    pub fn start_with(config: &str, args: &[&str]) -> Self {
        let nats = nats::single("");
        let ports: Vec<u16> = (0..NODES).map(|_| free_port()).collect();
        let balancer = LoadBalancer::open("127.0.0.1");
        let server = format!(
            "[server]\nbase_url = \"{}\"\ncluster = \"{}\"\ncreate_feeds = true\nallow_private_callbacks = true\n",
            balancer.base,
            nats.server.url()
        );
        let dirs = (0..NODES).map(|_| TestFolder::new(&format!("{server}{config}"))).collect();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut cluster =
            Self { nats, balancer, dirs, nodes: (0..NODES).map(|_| None).collect(), ports, args };
        (0..NODES).for_each(|node| cluster.serve(node));
        cluster.set_nodes(0);
        cluster
    }

    /// Sends all connections to one node from now on, and breaks open ones.
    pub fn set_nodes(&self, node: usize) {
        self.balancer.set_nodes(vec![([127, 0, 0, 1], self.ports[node]).into()]);
    }

    /// Starts a node.
    pub fn serve(&mut self, node: usize) {
        let listen = format!("127.0.0.1:{}", self.ports[node]);
        let mut command = self.dirs[node].command(&["serve", "--listen", &listen]);
        command.args(&self.args);
        let mut server = self.dirs[node].start(command);
        // The node prints its base URL, which is the balancer's.
        server.base = format!("http://127.0.0.1:{}", self.ports[node]);
        self.nodes[node] = Some(server);
    }

    pub fn node(&self, node: usize) -> &TestServer {
        self.nodes[node].as_ref().unwrap()
    }

    /// Running nodes.
    pub fn alive(&self) -> impl Iterator<Item = (usize, &TestServer)> {
        self.nodes.iter().enumerate().filter_map(|(number, node)| Some((number, node.as_ref()?)))
    }

    /// kill -9.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].take().unwrap().kill();
    }

    /// A counter of a node.
    pub fn metric(&self, node: usize, name: &str) -> u64 {
        let text = self.node(node).get("/metrics").text();
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Roles that each node reports as held.
    fn held(&self) -> Vec<(usize, String)> {
        let of = |(number, node): (usize, &TestServer)| -> Vec<(usize, String)> {
            let text = node.get("/metrics").text();
            let roles = text
                .lines()
                .filter_map(|line| line.strip_prefix("towpath_role_held{role=\"")?.strip_suffix("\"} 1"));
            roles.map(|role| (number, role.to_owned())).collect()
        };
        self.alive().flat_map(of).collect()
    }

    /// Holder of a role, once no role has moved for a while.
    pub fn settled_holder(&self, role: &str) -> usize {
        let (mut known, mut since) = (Vec::new(), Instant::now());
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.held();
            // Roles move for a while, because nodes that start later are given some.
            if now != known {
                (known, since) = (now, Instant::now());
            }
            let holders: Vec<_> = known.iter().filter(|(_, held)| held == role).collect();
            match holders.as_slice() {
                [(holder, _)] if since.elapsed() > Duration::from_secs(2) => return *holder,
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
            assert!(Instant::now() < end, "no node holds {role}: {known:?} {}", self.logs());
        }
    }

    /// Running nodes but one.
    pub fn others(&self, than: usize) -> Vec<usize> {
        self.alive().map(|(node, _)| node).filter(|node| *node != than).collect()
    }

    /// Waits until every role is held and each node has some.
    pub fn wait_for_roles(&self, count: u64) {
        let held =
            || -> Vec<u64> { self.alive().map(|(node, _)| self.metric(node, "towpath_roles")).collect() };
        wait_until(
            &format!("{count} roles are held"),
            || held().iter().sum::<u64>() == count,
            || format!("{:?}\n{}", held(), self.logs()),
        );
    }

    pub fn logs(&self) -> String {
        self.dirs.iter().map(|dir| format!("--- node\n{}", dir.log())).collect()
    }
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool, else_say: impl Fn() -> String) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "timeout while waiting: {what}: {}", else_say());
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Publishes one item; returns the position in the response's header.
pub fn publish(server: &TestServer, feed: &str, id: &str) -> String {
    let answer = try_publish(server, feed, id);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("towpath-position").unwrap().to_owned()
}

pub fn try_publish(server: &TestServer, feed: &str, id: &str) -> TestResponse {
    let line =
        json!({ "id": id, "item": { "title": format!("Title of {id}") }, "content": "text" }).to_string();
    server.ask("POST", &format!("/feeds/{feed}/items"), &[], line.as_bytes())
}

/// Ids on a page of Smart Feeds.
pub fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
    items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// Number of roles over which sources are spread.
const SHARDS: u32 = 16;

fn shard(feed: &str) -> u32 {
    // As the program computes it, or the test would kill the wrong node.
    crc32fast::hash(feed.as_bytes()) % SHARDS
}

/// The node that polls or mirrors a feed, once that role has stopped moving.
pub fn holder_of_source(cluster: &TestCluster, feed: &str) -> usize {
    cluster.settled_holder(&format!("sources/{}", shard(feed)))
}

/// Feed ids with these prefixes whose sources are on the same node.
pub fn same_shard<const N: usize>(beginnings: [&str; N]) -> [String; N] {
    beginnings.map(|beginning| {
        let mut names = (0..).map(|number| format!("{beginning}{number}"));
        names.find(|name| shard(name) == 5).unwrap()
    })
}
