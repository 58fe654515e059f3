//! Clients that publish and read while machines fail, and the responses that they got.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::linearizability::{Attempt, AttemptOutcome};
use super::machines::{EACH, TOKEN};
use crate::common::TestResponse;

pub const FEEDS: [&str; 4] = ["fa", "fb", "fc", "fd"];
const WRITERS: usize = 10;
const READERS: usize = 2;
/// Timeout of a client: longer than a node's timeout for its cluster.
const PATIENCE: Duration = Duration::from_secs(8);

/// An acknowledged change, for the clients that read it elsewhere: feed, id and position.
type LastChange = Option<(String, String, u64)>;

/// State shared by all clients.
pub struct Workload {
    nodes: Vec<(SocketAddr, Arc<AtomicU64>)>,
    begun: Instant,
    done: AtomicBool,
    /// Attempts by feed.
    pub attempts: [Mutex<Vec<Attempt>>; FEEDS.len()],
    /// Highest acknowledged position of each feed.
    acknowledged: [AtomicU64; FEEDS.len()],
    /// Last change of each writer.
    fresh: [Mutex<LastChange>; WRITERS],
    pub reads: AtomicUsize,
    pub read_later: AtomicUsize,
    /// Responses that contradict the guarantees.
    pub faults: Mutex<Vec<String>>,
}

/// An item of a writer.
struct OwnItem {
    feed: usize,
    id: String,
}

impl Workload {
    pub fn new(nodes: Vec<(SocketAddr, Arc<AtomicU64>)>) -> Arc<Self> {
        Arc::new(Self {
            nodes,
            begun: Instant::now(),
            done: AtomicBool::new(false),
            attempts: Default::default(),
            acknowledged: Default::default(),
            fresh: Default::default(),
            reads: AtomicUsize::new(0),
            read_later: AtomicUsize::new(0),
            faults: Mutex::default(),
        })
    }

    /// Starts all clients.
    pub fn start(self: &Arc<Self>, seed: u64) -> Vec<std::thread::JoinHandle<()>> {
        let spawn = |number: usize| {
            // A sequence per client: with a shared one, timing would change every choice.
            let (workload, random) = (Arc::clone(self), fastrand::Rng::with_seed(seed + number as u64));
            std::thread::spawn(move || match number {
                0..WRITERS => workload.write(number, random),
                _ => workload.read(random),
            })
        };
        (0..WRITERS + READERS).map(spawn).collect()
    }

    pub fn end(&self) {
        self.done.store(true, Ordering::SeqCst);
    }

    pub fn acknowledged(&self, feed: usize) -> u64 {
        self.acknowledged[feed].load(Ordering::SeqCst)
    }

    /// Number of attempts by outcome: acknowledged, conflict, refused, unknown.
    pub fn counts(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for attempts in &self.attempts {
            for attempt in attempts.lock().unwrap().iter() {
                let which = match attempt.outcome {
                    AttemptOutcome::At(_) => 0,
                    AttemptOutcome::Conflict(_) => 1,
                    AttemptOutcome::Refused => 2,
                    AttemptOutcome::Unknown => 3,
                };
                counts[which] += 1;
            }
        }
        counts
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    fn fault(&self, text: String) {
        crate::common::nats::say(&format!("FAULT {text}"));
        self.faults.lock().unwrap().push(text);
    }

    fn write(&self, writer: usize, mut random: fastrand::Rng) {
        let mut own: Vec<OwnItem> = Vec::new();
        let mut count = 0;
        while !self.is_done() {
            count += 1;
            let mark = format!("w{writer}-{count}");
            match random.u8(..10) {
                0..7 => self.put_new(writer, &mut random, &mark, &mut own),
                7..9 => self.edit(&mut random, &mark, &own),
                _ => self.delete(&mut random, &mut own),
            }
            std::thread::sleep(Duration::from_millis(random.u64(10..300)));
        }
    }

    /// Publishes new items, often on the condition that the feed's head is where it was last seen.
    fn put_new(&self, writer: usize, random: &mut fastrand::Rng, mark: &str, own: &mut Vec<OwnItem>) {
        let feed = random.usize(..FEEDS.len());
        // Ids are never used twice, so every change has its own mark in the log.
        let ids: Vec<String> = (0..random.usize(1..4)).map(|n| format!("{mark}.{n}")).collect();
        let lines: Vec<Value> = ids.iter().map(|id| put(id, id)).collect();
        // Other writers may have passed this position: some conflicts are wanted.
        let expected = random.bool().then(|| self.acknowledged(feed));
        let outcome = self.append(random, feed, expected, &lines, ids.clone());
        if outcome == AttemptOutcome::Refused {
            return;
        }
        if let AttemptOutcome::At(position) = outcome {
            let last = position + ids.len() as u64 - 1;
            *self.fresh[writer].lock().unwrap() =
                Some((FEEDS[feed].into(), ids[ids.len() - 1].clone(), last));
        }
        // Most items are never changed again: every follower must deliver them exactly once.
        if random.u8(..4) == 0 {
            own.push(OwnItem { feed, id: ids[0].clone() });
        }
    }

    fn edit(&self, random: &mut fastrand::Rng, mark: &str, own: &[OwnItem]) {
        let Some(OwnItem { feed, id }) = random.choice(own) else { return };
        self.append(random, *feed, None, &[put(id, mark)], vec![mark.to_owned()]);
    }

    fn delete(&self, random: &mut fastrand::Rng, own: &mut Vec<OwnItem>) {
        if own.is_empty() {
            return;
        }
        // Not edited again: its deletion is its last change.
        let OwnItem { feed, id } = own.swap_remove(random.usize(..own.len()));
        self.append(random, feed, None, &[json!({ "op": "delete", "id": id })], vec![deleted(&id)]);
    }

    fn append(
        &self,
        random: &mut fastrand::Rng,
        feed: usize,
        expected: Option<u64>,
        lines: &[Value],
        marks: Vec<String>,
    ) -> AttemptOutcome {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let query = expected.map(|expected| format!("?expect={expected}")).unwrap_or_default();
        let path = format!("/feeds/{}/items{query}", FEEDS[feed]);
        // Times around the request: it took effect, if at all, between them.
        let invoked = self.begun.elapsed();
        let answer = self.ask(random.usize(..EACH), "POST", &path, &[], body.as_bytes());
        let returned = self.begun.elapsed();
        let outcome = self.outcome(&path, answer);
        if let AttemptOutcome::At(position) = outcome {
            self.acknowledged[feed].fetch_max(position + marks.len() as u64 - 1, Ordering::SeqCst);
        }
        if let AttemptOutcome::Conflict(actual) = outcome {
            self.acknowledged[feed].fetch_max(actual, Ordering::SeqCst);
        }
        self.attempts[feed].lock().unwrap().push(Attempt { invoked, returned, expected, marks, outcome });
        outcome
    }

    fn outcome(&self, path: &str, answer: Result<TestResponse, RequestFailure>) -> AttemptOutcome {
        let answer = match answer {
            Ok(answer) => answer,
            Err(RequestFailure::NotSent) => return AttemptOutcome::Refused,
            Err(RequestFailure::Unknown) => return AttemptOutcome::Unknown,
        };
        let text = answer.text();
        match answer.status {
            200 => match answer.json()["first"].as_u64() {
                Some(position) => AttemptOutcome::At(position),
                None => panic!("{text}"),
            },
            409 => {
                let actual = text.split("it ends at ").nth(1).unwrap_or_else(|| panic!("{text}"));
                let digits: String = actual.chars().take_while(char::is_ascii_digit).collect();
                AttemptOutcome::Conflict(digits.parse().unwrap())
            }
            // The item to delete does not exist.
            400 => AttemptOutcome::Refused,
            503 => {
                if answer.header("retry-after").is_none() {
                    self.fault(format!("{path}: 503 without Retry-After: {text}"));
                }
                // Only these words promise that the change will never appear.
                if text.contains("nothing was written") {
                    AttemptOutcome::Refused
                } else {
                    AttemptOutcome::Unknown
                }
            }
            status => {
                self.fault(format!("{path}: {status} {text}"));
                AttemptOutcome::Unknown
            }
        }
    }

    fn ask(
        &self,
        node: usize,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<TestResponse, RequestFailure> {
        ask(self.nodes[node].0, method, path, headers, body)
    }

    /// Reads writes of any node on any other node.
    fn read(&self, mut random: fastrand::Rng) {
        let mut seen: HashMap<(usize, usize, u64), u64> = HashMap::new();
        while !self.is_done() {
            let node = random.usize(..EACH);
            match random.bool() {
                true => self.read_fresh(&mut random, node),
                false => self.read_end(&mut random, node, &mut seen),
            }
            std::thread::sleep(Duration::from_millis(random.u64(20..120)));
        }
    }

    /// Checks that an acknowledged change is visible on every node that answers for its position.
    fn read_fresh(&self, random: &mut fastrand::Rng, node: usize) {
        let fresh = self.fresh[random.usize(..WRITERS)].lock().unwrap().clone();
        let Some((feed, id, position)) = fresh else { return };
        let path = format!("/feeds/{feed}/items/{id}?as=line");
        let headers = [("Towpath-Position", &*position.to_string())];
        let Ok(answer) = self.ask(node, "GET", &path, &headers, b"") else { return };
        self.count_read(answer.status);
        // The last item of a batch may have been edited or deleted if it is the only one.
        if !matches!(answer.status, 200 | 410 | 503) {
            self.fault(format!("node {node}: {path} at {position}: {} {}", answer.status, answer.text()));
        }
    }

    /// Checks that a feed's head never goes back on a node, and is never behind the position that the client names.
    fn read_end(
        &self,
        random: &mut fastrand::Rng,
        node: usize,
        seen: &mut HashMap<(usize, usize, u64), u64>,
    ) {
        let feed = random.usize(..FEEDS.len());
        let wanted = if random.bool() { self.acknowledged(feed) } else { 0 };
        // A node that lost its replica may begin further back, so heads are compared within a life.
        let life = self.nodes[node].1.load(Ordering::SeqCst);
        let headers = [("Towpath-Position", &*wanted.to_string())];
        let path = format!("/feeds/{}", FEEDS[feed]);
        let Ok(answer) = self.ask(node, "GET", &path, &headers, b"") else { return };
        self.count_read(answer.status);
        match answer.status {
            200 => {
                let end = answer.json()["seq"].as_u64().unwrap();
                if end < wanted {
                    self.fault(format!("node {node}: {path} ends at {end}, and {wanted} was demanded"));
                }
                if life == self.nodes[node].1.load(Ordering::SeqCst) {
                    let before = seen.entry((node, feed, life)).or_default();
                    if end < *before {
                        self.fault(format!("node {node}: {path} went back from {before} to {end}"));
                    }
                    *before = end.max(*before);
                }
            }
            503 => {}
            status => self.fault(format!("node {node}: {path}: {status} {}", answer.text())),
        }
    }

    fn count_read(&self, status: u16) {
        let counter = if status == 503 { &self.read_later } else { &self.reads };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Mark of a deletion in the log.
pub fn deleted(id: &str) -> String {
    format!("-{id}")
}

fn put(id: &str, title: &str) -> Value {
    json!({ "id": id, "item": { "title": title }, "content_type": "text/plain", "content": "text" })
}

/// Reason for a missing response.
pub enum RequestFailure {
    /// Nothing was sent.
    NotSent,
    /// The request may have been received.
    Unknown,
}

/// Sends a request on a connection of its own.
pub fn ask(
    node: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<TestResponse, RequestFailure> {
    let stream = std::net::TcpStream::connect_timeout(&node, Duration::from_secs(1));
    let stream = stream.map_err(|_| RequestFailure::NotSent)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|_| RequestFailure::NotSent)?;
    let authorization = format!("Bearer {TOKEN}");
    let headers = [headers, &[("Authorization", &*authorization)]].concat();
    let answer = crate::common::ask_on(stream, method, path, &headers, body);
    answer.map_err(|_| RequestFailure::Unknown)
}
