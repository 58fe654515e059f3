//! Three nodes of one cluster on a real server of NATS, behind one address that leads to any of them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::door::Door;
use crate::common::{Answer, PATIENCE, Place, Server, free_port, nats};

/// How many nodes there are.
pub const NODES: usize = 3;

pub struct Cluster {
    pub nats: nats::Single,
    pub door: Door,
    pub places: Vec<Place>,
    pub nodes: Vec<Option<Server>>,
    ports: Vec<u16>,
    args: Vec<String>,
}

impl Cluster {
    /// Nodes with this configuration; `[server]` is added.
    pub fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// The same with more arguments to `serve`.
    pub fn start_with(config: &str, args: &[&str]) -> Self {
        let nats = nats::single("");
        let ports: Vec<u16> = (0..NODES).map(|_| free_port()).collect();
        let door = Door::open("127.0.0.1");
        let server = format!(
            "[server]\nbase_url = \"{}\"\ncluster = \"{}\"\ncreate_feeds = true\nallow_private_callbacks = true\n",
            door.base,
            nats.server.url()
        );
        let places = (0..NODES).map(|_| Place::new(&format!("{server}{config}"))).collect();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut cluster = Self { nats, door, places, nodes: (0..NODES).map(|_| None).collect(), ports, args };
        (0..NODES).for_each(|node| cluster.serve(node));
        cluster.lead_to(0);
        cluster
    }

    /// The address of all nodes leads to one from now on; what is open breaks off.
    pub fn lead_to(&self, node: usize) {
        self.door.lead_to(vec![([127, 0, 0, 1], self.ports[node]).into()]);
    }

    /// Starts a node.
    pub fn serve(&mut self, node: usize) {
        let listen = format!("127.0.0.1:{}", self.ports[node]);
        let mut command = self.places[node].command(&["serve", "--listen", &listen]);
        command.args(&self.args);
        let mut server = self.places[node].start(command);
        server.base = format!("http://127.0.0.1:{}", self.ports[node]);
        self.nodes[node] = Some(server);
    }

    pub fn node(&self, node: usize) -> &Server {
        self.nodes[node].as_ref().unwrap()
    }

    /// Those that run.
    pub fn alive(&self) -> impl Iterator<Item = (usize, &Server)> {
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

    /// The roles that each node says that it holds.
    fn held(&self) -> Vec<(usize, String)> {
        let of = |(number, node): (usize, &Server)| -> Vec<(usize, String)> {
            let text = node.get("/metrics").text();
            let roles = text
                .lines()
                .filter_map(|line| line.strip_prefix("towpath_role_held{role=\"")?.strip_suffix("\"} 1"));
            roles.map(|role| (number, role.to_owned())).collect()
        };
        self.alive().flat_map(of).collect()
    }

    /// The node that holds a role, once no roles have changed hands for a while.
    pub fn settled_holder(&self, role: &str) -> usize {
        let (mut known, mut since) = (Vec::new(), Instant::now());
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.held();
            if now != known {
                (known, since) = (now, Instant::now());
            }
            let holders: Vec<_> = known.iter().filter(|(_, held)| held == role).collect();
            match holders.as_slice() {
                [(holder, _)] if since.elapsed() > Duration::from_secs(2) => return *holder,
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
            assert!(Instant::now() < end, "nobody holds {role}: {known:?} {}", self.logs());
        }
    }

    /// The nodes but one that run.
    pub fn others(&self, than: usize) -> Vec<usize> {
        self.alive().map(|(node, _)| node).filter(|node| *node != than).collect()
    }

    /// Waits until every role is held, each node having some.
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
        self.places.iter().map(|place| format!("--- node\n{}", place.log())).collect()
    }
}

/// Waits until something is so.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool, else_say: impl Fn() -> String) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}: {}", else_say());
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// Publishes one item; returns the place that the answer's header says.
pub fn publish(server: &Server, feed: &str, id: &str) -> String {
    let answer = try_publish(server, feed, id);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("towpath-position").unwrap().to_owned()
}

pub fn try_publish(server: &Server, feed: &str, id: &str) -> Answer {
    let line =
        json!({ "id": id, "item": { "title": format!("Title of {id}") }, "content": "text" }).to_string();
    server.ask("POST", &format!("/feeds/{feed}/items"), &[], line.as_bytes())
}

/// The ids of a page of Smart Feeds.
pub fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
    items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// Over how many roles sources are spread.
const SHARDS: u32 = 16;

fn shard(feed: &str) -> u32 {
    crc32fast::hash(feed.as_bytes()) % SHARDS
}

/// The node that polls or mirrors a feed, once that does not change hands any more.
pub fn holder_of_source(cluster: &Cluster, feed: &str) -> usize {
    cluster.settled_holder(&format!("sources/{}", shard(feed)))
}

/// Names that begin like these, of feeds whose sources are on one node.
pub fn same_shard<const N: usize>(beginnings: [&str; N]) -> [String; N] {
    beginnings.map(|beginning| {
        let mut names = (0..).map(|number| format!("{beginning}{number}"));
        names.find(|name| shard(name) == 5).unwrap()
    })
}
