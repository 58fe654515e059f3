//! Three nodes of one cluster on a real server of NATS, behind one address that leads to any of them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

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
        let door = Door::open(ports.clone());
        let server = format!(
            "[server]\nbase_url = \"{}\"\ncluster = \"{}\"\ncreate_feeds = true\nallow_private_callbacks = true\n",
            door.base,
            nats.server.url()
        );
        let places = (0..NODES).map(|_| Place::new(&format!("{server}{config}"))).collect();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut cluster = Self { nats, door, places, nodes: (0..NODES).map(|_| None).collect(), ports, args };
        (0..NODES).for_each(|node| cluster.serve(node));
        cluster
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

/// One address for all nodes, as a load balancer is: carries connections to one node after the other.
pub struct Door {
    pub base: String,
    target: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Door {
    fn open(ports: Vec<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (target, open) = (Arc::new(AtomicUsize::new(0)), Arc::<Mutex<Vec<TcpStream>>>::default());
        let (to, kept) = (target.clone(), open.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let port = ports[to.load(Ordering::SeqCst) % ports.len()];
                let Ok(node) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for stream in [&client, &node] {
                    stream.set_nodelay(true).unwrap();
                    kept.lock().unwrap().push(stream.try_clone().unwrap());
                }
                carry(client.try_clone().unwrap(), node.try_clone().unwrap());
                carry(node, client);
            }
        });
        Self { base, target, open }
    }

    /// Leads to another node from now on; what is open breaks off.
    pub fn lead_to(&self, node: usize) {
        self.target.store(node, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
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
