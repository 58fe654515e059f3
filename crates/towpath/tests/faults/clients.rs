//! Those who publish and read while machines fail, and what they were told.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::linear::{Attempt, Outcome};
use super::machines::{EACH, TOKEN};
use crate::common::Answer;

pub const FEEDS: [&str; 4] = ["fa", "fb", "fc", "fd"];
const WRITERS: usize = 10;
const READERS: usize = 2;
/// How long a client waits: longer than a node does for its cluster.
const PATIENCE: Duration = Duration::from_secs(8);

/// A change of an item and where it was acknowledged, for those who read it elsewhere.
type Fresh = Option<(String, String, u64)>;

/// What all clients share.
pub struct World {
    nodes: Vec<(SocketAddr, Arc<AtomicU64>)>,
    begun: Instant,
    done: AtomicBool,
    /// By feed.
    pub attempts: [Mutex<Vec<Attempt>>; FEEDS.len()],
    /// The highest place of each feed that was acknowledged.
    acknowledged: [AtomicU64; FEEDS.len()],
    /// What each writer published last: feed, id and place.
    fresh: [Mutex<Fresh>; WRITERS],
    pub reads: AtomicUsize,
    pub read_later: AtomicUsize,
    /// What a client was told that cannot be.
    pub faults: Mutex<Vec<String>>,
}

/// An item of a writer.
struct Own {
    feed: usize,
    id: String,
}

impl World {
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
    pub fn begin(self: &Arc<Self>, seed: u64) -> Vec<std::thread::JoinHandle<()>> {
        let spawn = |number: usize| {
            let (world, random) = (Arc::clone(self), fastrand::Rng::with_seed(seed + number as u64));
            std::thread::spawn(move || match number {
                0..WRITERS => world.write(number, random),
                _ => world.read(random),
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

    /// How many attempts had each outcome: acknowledged, in conflict, refused, unknown.
    pub fn counts(&self) -> [usize; 4] {
        let mut counts = [0; 4];
        for attempts in &self.attempts {
            for attempt in attempts.lock().unwrap().iter() {
                let which = match attempt.outcome {
                    Outcome::At(_) => 0,
                    Outcome::Conflict(_) => 1,
                    Outcome::Refused => 2,
                    Outcome::Unknown => 3,
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
        let mut own: Vec<Own> = Vec::new();
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

    /// New items, often on the condition that the feed ends where it was last seen.
    fn put_new(&self, writer: usize, random: &mut fastrand::Rng, mark: &str, own: &mut Vec<Own>) {
        let feed = random.usize(..FEEDS.len());
        let ids: Vec<String> = (0..random.usize(1..4)).map(|n| format!("{mark}.{n}")).collect();
        let lines: Vec<Value> = ids.iter().map(|id| put(id, id)).collect();
        let expected = random.bool().then(|| self.acknowledged(feed));
        let outcome = self.append(random, feed, expected, &lines, ids.clone());
        if outcome == Outcome::Refused {
            return;
        }
        if let Outcome::At(place) = outcome {
            let last = place + ids.len() as u64 - 1;
            *self.fresh[writer].lock().unwrap() =
                Some((FEEDS[feed].into(), ids[ids.len() - 1].clone(), last));
        }
        // Most are never touched again: these everybody must be told once.
        if random.u8(..4) == 0 {
            own.push(Own { feed, id: ids[0].clone() });
        }
    }

    fn edit(&self, random: &mut fastrand::Rng, mark: &str, own: &[Own]) {
        let Some(Own { feed, id }) = random.choice(own) else { return };
        self.append(random, *feed, None, &[put(id, mark)], vec![mark.to_owned()]);
    }

    fn delete(&self, random: &mut fastrand::Rng, own: &mut Vec<Own>) {
        if own.is_empty() {
            return;
        }
        let Own { feed, id } = own.swap_remove(random.usize(..own.len()));
        self.append(random, feed, None, &[json!({ "op": "delete", "id": id })], vec![deleted(&id)]);
    }

    fn append(
        &self,
        random: &mut fastrand::Rng,
        feed: usize,
        expected: Option<u64>,
        lines: &[Value],
        marks: Vec<String>,
    ) -> Outcome {
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let query = expected.map(|expected| format!("?expect={expected}")).unwrap_or_default();
        let path = format!("/feeds/{}/items{query}", FEEDS[feed]);
        let invoked = self.begun.elapsed();
        let answer = self.ask(random.usize(..EACH), "POST", &path, &[], body.as_bytes());
        let returned = self.begun.elapsed();
        let outcome = self.outcome(&path, answer);
        if let Outcome::At(place) = outcome {
            self.acknowledged[feed].fetch_max(place + marks.len() as u64 - 1, Ordering::SeqCst);
        }
        if let Outcome::Conflict(actual) = outcome {
            self.acknowledged[feed].fetch_max(actual, Ordering::SeqCst);
        }
        self.attempts[feed].lock().unwrap().push(Attempt { invoked, returned, expected, marks, outcome });
        outcome
    }

    fn outcome(&self, path: &str, answer: Result<Answer, Failure>) -> Outcome {
        let answer = match answer {
            Ok(answer) => answer,
            Err(Failure::NotSent) => return Outcome::Refused,
            Err(Failure::Unknown) => return Outcome::Unknown,
        };
        let text = answer.text();
        match answer.status {
            200 => match answer.json()["first"].as_u64() {
                Some(place) => Outcome::At(place),
                None => panic!("{text}"),
            },
            409 => {
                let actual = text.split("it ends at ").nth(1).unwrap_or_else(|| panic!("{text}"));
                let digits: String = actual.chars().take_while(char::is_ascii_digit).collect();
                Outcome::Conflict(digits.parse().unwrap())
            }
            // The item to delete is not there.
            400 => Outcome::Refused,
            503 => {
                if answer.header("retry-after").is_none() {
                    self.fault(format!("{path}: 503 without Retry-After: {text}"));
                }
                if text.contains("is not there") { Outcome::Refused } else { Outcome::Unknown }
            }
            status => {
                self.fault(format!("{path}: {status} {text}"));
                Outcome::Unknown
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
    ) -> Result<Answer, Failure> {
        ask(self.nodes[node].0, method, path, headers, body)
    }

    /// Reads on any node what was written on any other.
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

    /// What an acknowledged position covers is there on every node that answers for it.
    fn read_fresh(&self, random: &mut fastrand::Rng, node: usize) {
        let fresh = self.fresh[random.usize(..WRITERS)].lock().unwrap().clone();
        let Some((feed, id, place)) = fresh else { return };
        let path = format!("/feeds/{feed}/items/{id}?as=line");
        let position = [("Towpath-Position", &*place.to_string())];
        let Ok(answer) = self.ask(node, "GET", &path, &position, b"") else { return };
        self.count_read(answer.status);
        // The last item of a batch may have been edited or deleted where it is its only one.
        if !matches!(answer.status, 200 | 410 | 503) {
            self.fault(format!("node {node}: {path} at {place}: {} {}", answer.status, answer.text()));
        }
    }

    /// A feed never goes back on a node, and is never behind the position that the reader names.
    fn read_end(
        &self,
        random: &mut fastrand::Rng,
        node: usize,
        seen: &mut HashMap<(usize, usize, u64), u64>,
    ) {
        let feed = random.usize(..FEEDS.len());
        let wanted = if random.bool() { self.acknowledged(feed) } else { 0 };
        let life = self.nodes[node].1.load(Ordering::SeqCst);
        let position = [("Towpath-Position", &*wanted.to_string())];
        let path = format!("/feeds/{}", FEEDS[feed]);
        let Ok(answer) = self.ask(node, "GET", &path, &position, b"") else { return };
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

/// How a deletion is known in the log.
pub fn deleted(id: &str) -> String {
    format!("-{id}")
}

fn put(id: &str, title: &str) -> Value {
    json!({ "id": id, "item": { "title": title }, "content_type": "text/plain", "content": "text" })
}

/// Why there is no answer.
pub enum Failure {
    /// Nothing was sent.
    NotSent,
    /// Something may have been.
    Unknown,
}

/// One request on a connection of its own.
pub fn ask(
    node: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<Answer, Failure> {
    let stream = std::net::TcpStream::connect_timeout(&node, Duration::from_secs(1));
    let stream = stream.map_err(|_| Failure::NotSent)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|_| Failure::NotSent)?;
    let authorization = format!("Bearer {TOKEN}");
    let headers = [headers, &[("Authorization", &*authorization)]].concat();
    let answer = crate::common::ask_on(stream, method, path, &headers, body);
    answer.map_err(|_| Failure::Unknown)
}
