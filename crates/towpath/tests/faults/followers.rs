//! Followers of every protocol: the program itself, going on through everything, and what it told.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::clients::{FEEDS, deleted};
use crate::common::free_port;
use crate::common::prosody::{HOSTS, PASSWORD, Prosody, SERVICE};

/// What a protocol promises to who follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Every change, once, in the order of the log.
    Changes,
    /// Every item once, each as it is when the publisher comes to it: what changed twice meanwhile is told once.
    ItemsOnce,
    /// Every item; some perhaps more than once.
    Items,
}

/// What was told: a feed, an item, and what the change is known by in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    feed: usize,
    pub id: String,
    pub mark: String,
}

/// A `towpath follow`.
pub struct Follower {
    pub name: String,
    promise: Promise,
    feeds: Vec<usize>,
    told: Arc<Mutex<Vec<Told>>>,
    child: Child,
}

/// Protocol, address of a feed, promise.
pub type Way = (&'static str, fn(&str, &str) -> String, Promise);

/// How each protocol's feeds are asked for again and again, and when the publisher's SUP document names them.
pub const POLLED: [Way; 4] = [
    ("diffdelta", |base, feed| format!("{base}/diff/{feed}/head.json"), Promise::ItemsOnce),
    ("replication", |base, feed| format!("{base}/feeds/{feed}/replication"), Promise::Changes),
    ("history", |base, feed| format!("{base}/feeds/{feed}/atom"), Promise::Items),
    ("smart", smart, Promise::Items),
];

fn smart(base: &str, feed: &str) -> String {
    format!("{base}/feeds/{feed}/items?order=modified")
}

/// Followers of all feeds by every protocol at one address; of single feeds by requests that are held open there and at
/// a node; one that the hub calls; and one that the component pushes to.
pub fn start_all(folder: &Path, door: &str, node: &str, own_ip: &str, prosody: &Prosody) -> Vec<Follower> {
    let all: Vec<usize> = (0..FEEDS.len()).collect();
    let mut followers: Vec<Follower> = POLLED
        .iter()
        .map(|(protocol, url, promise)| {
            let mut arguments: Vec<String> = FEEDS.iter().map(|feed| url(door, feed)).collect();
            arguments.extend(["--protocol", protocol, "--every", "1s"].map(str::to_owned));
            start(folder, &format!("{protocol} polled"), *promise, all.clone(), &arguments)
        })
        .collect();
    let held = |protocol: &str, url: String| ["--protocol".to_owned(), protocol.to_owned(), url];
    let waiting = [("held", door, 0), ("held at a node", node, 1)];
    followers.extend(waiting.map(|(name, base, feed)| {
        let arguments = held("smart", smart(base, FEEDS[feed]));
        start(folder, &format!("smart {name}"), Promise::Items, vec![feed], &arguments)
    }));
    let callback = format!("http://{own_ip}:{}/called", free_port());
    let pushed = [smart(door, FEEDS[2]), "--push".into(), "--callback".into(), callback];
    followers.push(start(folder, "smart pushed", Promise::Items, vec![2], &pushed));
    let jid = format!("alice@{}", HOSTS[0]);
    let node = format!("xmpp:{SERVICE}?;node={}%3Forder%3Dmodified", FEEDS[3]);
    let server = format!("127.0.0.1:{}", prosody.client_port);
    let pushed = [node, "--jid".into(), jid, "--xmpp-server".into(), server];
    followers.push(start(folder, "xmpp", Promise::Items, vec![3], &pushed));
    followers
}

fn start(folder: &Path, name: &str, promise: Promise, feeds: Vec<usize>, arguments: &[String]) -> Follower {
    let file = name.replace(' ', "-");
    let log = File::create(folder.join(format!("{file}.log"))).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_towpath"), "follow"]).args(arguments);
    command.arg("--state").arg(folder.join(format!("{file}.state"))).env("TOWPATH_XMPP_PASSWORD", PASSWORD);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let told: Arc<Mutex<Vec<Told>>> = Arc::default();
    let (into, only) = (told.clone(), feeds[0]);
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            into.lock().unwrap().push(read(&line, only));
        }
    });
    Follower { name: name.to_owned(), promise, feeds, told, child }
}

/// Follows all feeds from their beginning to their end.
pub fn follow_once(way: &Way, base: &str, logs: &[Vec<Told>]) -> Vec<String> {
    let (protocol, url, promise) = way;
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.arg("follow").args(FEEDS.iter().map(|feed| url(base, feed))).args([
        "--once",
        "--protocol",
        protocol,
    ]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    if !output.status.success() {
        return vec![format!("{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr))];
    }
    let told: Vec<Told> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| read(line, 0)).collect();
    (0..FEEDS.len()).flat_map(|feed| compare(&told, &logs[feed], feed, *promise)).collect()
}

/// What the conformance checker finds wrong.
pub fn check(way: &Way, base: &str, feed: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    let output = command.args(["check", &way.1(base, feed), "--protocol", way.0]).output().unwrap();
    if output.status.success() {
        return Vec::new();
    }
    vec![format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))]
}

fn read(line: &str, only: usize) -> Told {
    let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let id = line["id"].as_str().unwrap().to_owned();
    let url = line["feed"].as_str().unwrap_or_default();
    let feed = FEEDS.iter().position(|feed| url.contains(&format!("/{feed}/"))).unwrap_or(only);
    let mark = match line["op"].as_str() {
        Some("delete") => deleted(&id),
        _ => line["item"]["title"].as_str().or(line["content"].as_str()).unwrap_or_default().to_owned(),
    };
    Told { feed, id, mark }
}

impl Told {
    pub fn new(feed: usize, id: String, mark: String) -> Self {
        Self { feed, id, mark }
    }
}

impl Follower {
    /// What it told otherwise than its protocol promises.
    pub fn faults(&mut self, logs: &[Vec<Told>]) -> Vec<String> {
        if let Some(status) = self.child.try_wait().unwrap() {
            return vec![format!("it has ended: {status}")];
        }
        let told = self.told.lock().unwrap();
        self.feeds.iter().flat_map(|feed| compare(&told, &logs[*feed], *feed, self.promise)).collect()
    }

    pub fn count(&self) -> usize {
        self.told.lock().unwrap().len()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many faults of one kind are told at most.
const SHOWN: usize = 5;

fn compare(told: &[Told], log: &[Told], feed: usize, promise: Promise) -> Vec<String> {
    let told: Vec<&Told> = told.iter().filter(|told| told.feed == feed).collect();
    let name = FEEDS[feed];
    let mut faults = Vec::new();
    if promise == Promise::Changes {
        if let Some(place) = (0..told.len().max(log.len())).find(|n| told.get(*n).copied() != log.get(*n)) {
            let (told_there, log_there) = (told.get(place), log.get(place));
            faults.push(format!(
                "{name}: of {} changes {} were told; the first other is number {place}: {log_there:?}, told {told_there:?}",
                log.len(),
                told.len()
            ));
        }
        return faults;
    }
    let places: HashMap<&str, usize> =
        log.iter().enumerate().map(|(place, told)| (&*told.mark, place)).collect();
    let mut last: HashMap<&str, usize> = HashMap::new();
    for Told { id, mark, .. } in &told {
        let Some(place) = places.get(&**mark).copied() else {
            faults.push(format!("{name}: {mark} was told and is not in the log"));
            continue;
        };
        let before = last.insert(id, place);
        if promise == Promise::ItemsOnce && before.is_some_and(|before| before >= place) {
            faults.push(format!("{name}: {mark} was told again"));
        }
    }
    faults.truncate(SHOWN);
    let due: HashMap<&str, usize> = log.iter().enumerate().map(|(place, told)| (&*told.id, place)).collect();
    let is_missing = |(id, place): &(&str, usize)| match last.get(id) {
        Some(known) => known != place,
        // What was never told need not be taken back.
        None => !log[*place].mark.starts_with('-'),
    };
    let mut missing: Vec<usize> = due.into_iter().filter(is_missing).map(|(_, place)| place).collect();
    missing.sort_unstable();
    if let Some(place) = missing.first() {
        let Told { id, mark, .. } = &log[*place];
        let known = last.get(&**id).map(|place| &log[*place].mark);
        faults.push(format!(
            "{name}: {} of {} changes are missing; the first is {mark} at {}, known as {known:?}",
            missing.len(),
            log.len(),
            place + 1
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<Told> {
        let told = |word: &str| {
            let (id, mark) = word.split_once(':').unwrap();
            Told::new(0, id.into(), mark.into())
        };
        text.split_whitespace().map(told).collect()
    }

    #[test]
    fn what_is_missing_doubled_or_invented_is_found() {
        use Promise::{Changes, Items, ItemsOnce};
        let log = list("a:1 b:2 a:3 c:4 c:-c");
        let count = |told: &str, promise| compare(&list(told), &log, 0, promise).len();
        assert_eq!(count("a:1 b:2 a:3 c:4 c:-c", Changes), 0);
        for wrong in ["a:1 b:2 a:3 c:4", "a:1 a:1 b:2 a:3 c:4 c:-c", "b:2 a:1 a:3 c:4 c:-c", ""] {
            assert_eq!(count(wrong, Changes), 1, "{wrong}");
        }
        for right in ["a:1 b:2 a:3 c:4 c:-c", "b:2 a:3"] {
            assert_eq!(count(right, ItemsOnce), 0, "{right}");
        }
        for wrong in ["a:1 b:2", "b:2 a:3 c:4", "b:2 b:2 a:3", "a:3", "b:2 a:3 d:9"] {
            assert_eq!(count(wrong, ItemsOnce), 1, "{wrong}");
        }
        assert_eq!(count("b:2 a:1 b:2 a:3 a:3", Items), 0);
        for wrong in ["a:1 b:2", "b:2 a:3 a:1", "a:3"] {
            assert_eq!(count(wrong, Items), 1, "{wrong}");
        }
    }
}
