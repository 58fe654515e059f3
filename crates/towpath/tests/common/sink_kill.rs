//! Kills followers into sinks, their publisher and the destination, again and again: the copy must be the publisher's
//! state. The history of a transactional sink must have each position once; of others, each first delivery must be in
//! order. `TOWPATH_SINK_KILLS` sets the number of kills.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{PATIENCE, TestFolder, TestServer, free_port, lines, stderr};

/// Row of a history: operation, id and position.
pub type HistoryRow = (String, String, String);

/// Number of kills in the tests.
const KILLS: u32 = 30;
/// Number of kills after which the long form says how far it is.
const PROGRESS: u32 = 50;

/// A destination that the killed followers write to.
pub trait KilledCopy {
    /// `DEST` of the command line.
    fn destination(&self) -> String;

    /// Live items: id and content.
    fn items(&self) -> BTreeMap<String, String>;

    /// History in its order.
    fn history(&self) -> Vec<HistoryRow>;

    /// Kills the destination that all copies share and starts it again. Returns false if it is no server.
    fn kill_destination(&self) -> bool {
        false
    }

    /// Returns the state file, for a destination without a place for positions.
    fn state(&self) -> Option<PathBuf> {
        None
    }

    /// Returns true if each position is in the history once.
    fn is_exact(&self) -> bool {
        true
    }
}

const CONFIG: &str = "[[feed]]\nid = \"notes\"\nttl = 1\n";

/// A follow into a copy by one protocol, which is killed and started again.
struct KilledFollow<'a> {
    dir: &'a TestFolder,
    copy: &'a dyn KilledCopy,
    protocol: &'static str,
    url: String,
    child: Option<Child>,
}

impl KilledFollow<'_> {
    fn args<'b>(&'b self, destination: &'b str, state: Option<&'b Path>) -> Vec<&'b str> {
        let mut args =
            vec!["follow", &self.url, "--protocol", self.protocol, "--into", destination, "--every", "1s"];
        args.extend(state.and_then(Path::to_str).map(|state| ["--state", state]).into_iter().flatten());
        args
    }

    fn start(&mut self) {
        let (destination, state) = (self.copy.destination(), self.copy.state());
        let log =
            std::fs::File::options().create(true).append(true).open(self.dir.path("follow.log")).unwrap();
        let mut command = self.dir.command(&self.args(&destination, state.as_deref()));
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Follows to the end of the feed.
    fn catch_up(&mut self, expected: &PublishedLog) {
        self.kill();
        let (destination, state) = (self.copy.destination(), self.copy.state());
        let mut args = self.args(&destination, state.as_deref());
        args.push("--once");
        let end = Instant::now() + PATIENCE;
        loop {
            let output = self.dir.run(&args);
            assert_eq!(output.status.code(), Some(0), "{}: {}", self.protocol, stderr(&output));
            // After many changes DiffDelta shows the last ones a little later: a mint waits.
            let is_late = self.protocol == "diffdelta" && self.copy.items() != expected.items;
            if !is_late || Instant::now() > end {
                return;
            }
        }
    }
}

impl Drop for KilledFollow<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Part that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Follower,
    Publisher,
    Destination,
}

/// Runs the kills. There is one copy for each of the protocols.
pub fn run(name: &str, copies: &[(&'static str, &dyn KilledCopy)]) {
    let kills: u32 = std::env::var("TOWPATH_SINK_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let (dir, port, started) = (TestFolder::new(CONFIG), free_port(), Instant::now());
    let url = format!("http://127.0.0.1:{port}/feeds/notes");
    let mut follows: Vec<_> = copies
        .iter()
        .map(|(protocol, copy)| KilledFollow {
            dir: &dir,
            copy: *copy,
            protocol,
            url: url.clone(),
            child: None,
        })
        .collect();
    let mut server = Some(dir.serve_at(port));
    follows.iter_mut().for_each(KilledFollow::start);
    let count = AtomicU64::new(0);
    let mut killed: BTreeMap<Victim, u32> = BTreeMap::new();
    for kill in 1..=kills {
        let running = server.take().unwrap_or_else(|| dir.serve_at(port));
        let victim = while_writing(&running, &count, || kill_one(kill, &running, copies, &mut follows));
        *killed.entry(victim).or_default() += 1;
        server = (victim != Victim::Publisher).then_some(running);
        if kill % PROGRESS == 0 {
            let (spent, changes) = (started.elapsed().as_secs(), count.load(Ordering::Relaxed));
            println!("{name}: {kill} of {kills} kills, {changes} changes published, {spent} s");
        }
    }
    let server = server.unwrap_or_else(|| dir.serve_at(port));
    let expected = PublishedLog::read(&dir, &url);
    assert!(!expected.items.is_empty());
    let mut rows = 0;
    for follow in &mut follows {
        follow.catch_up(&expected);
        rows += check(follow, &expected);
    }
    let spent = started.elapsed().as_secs();
    println!(
        "{name}: {kills} kills {killed:?}: {} copies right, {rows} rows of history, {spent} s",
        copies.len()
    );
    server.kill();
}

/// Kills a follower, the publisher or the destination.
fn kill_one(
    kill: u32,
    publisher: &TestServer,
    copies: &[(&'static str, &dyn KilledCopy)],
    follows: &mut [KilledFollow<'_>],
) -> Victim {
    std::thread::sleep(Duration::from_millis(fastrand::u64(20..250)));
    // The publisher, in the middle of a response.
    if kill % 4 == 3 {
        publisher.kill_now();
        return Victim::Publisher;
    }
    if kill % 8 == 2 && copies.first().is_some_and(|(_, copy)| copy.kill_destination()) {
        return Victim::Destination;
    }
    let killed = fastrand::usize(..follows.len());
    follows[killed].kill();
    follows[killed].start();
    Victim::Follower
}

/// Publishes changes until `work` is done.
fn while_writing<T>(publisher: &TestServer, count: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (seed, is_over) = (fastrand::u64(..), &is_over);
        scope.spawn(move || {
            // Each thread has a generator of its own; unseeded, no run could be repeated.
            fastrand::seed(seed);
            write(publisher, is_over, count);
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        done
    })
}

/// Compares a copy with the publisher's log; returns the length of its history.
fn check(follow: &KilledFollow<'_>, expected: &PublishedLog) -> usize {
    assert_eq!(follow.copy.items(), expected.items, "{}", follow.protocol);
    let history = follow.copy.history();
    if !follow.copy.is_exact() {
        check_order(&history, &follow.copy.destination());
        return history.len();
    }
    if follow.protocol == "replication" {
        // The protocol that delivers every change.
        assert!(history == expected.changes, "{} rows for {} changes", history.len(), expected.changes.len());
    }
    let mut seen = BTreeMap::new();
    for (op, id, position) in &history {
        // DiffDelta has one position for all changes of a document.
        *seen.entry((op, id, position)).or_insert(0) += 1;
    }
    let repeated: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
    assert!(repeated.is_empty(), "{}: {repeated:?}", follow.protocol);
    history.len()
}

/// Checks that what was delivered for the first time came in the order of the log. Positions are Smart Feeds' cursors.
fn check_order(history: &[HistoryRow], name: &str) {
    let mut last = 0;
    let mut seen = std::collections::HashSet::new();
    for (_, id, position) in history {
        let seq = cursor_seq(position);
        if seen.insert(seq) {
            assert!(seq > last, "{name}: {id} at {position} came after {last}");
            last = seq;
        }
    }
    println!("{name}: {} deliveries of {} changes", history.len(), seen.len());
}

/// Returns the number in a cursor of ours, such as `m17-…`.
pub fn cursor_seq(position: &str) -> u64 {
    let digits = position.trim_start_matches('m').split('-').next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("{position:?} is no cursor"))
}

/// Publishes until the round is over or the server is killed.
fn write(server: &TestServer, is_over: &AtomicBool, count: &AtomicU64) {
    while !is_over.load(Ordering::Relaxed) {
        let mut body = String::new();
        for _ in 0..fastrand::u8(1..30) {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let id = format!("i{}", fastrand::u64(..200));
            let line = match fastrand::u8(..5) {
                0 => serde_json::json!({ "id": id, "op": "delete" }),
                _ => {
                    let content = format!("{number} {}", "x".repeat(fastrand::usize(..500)));
                    serde_json::json!({ "id": id, "content": content })
                }
            };
            body.push_str(&format!("{line}\n"));
        }
        if server.try_ask("POST", "/feeds/notes/items", &[], body.as_bytes()).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(fastrand::u64(..20)));
    }
}

/// The publisher's log, as a follow from the beginning has it.
#[derive(Default)]
struct PublishedLog {
    items: BTreeMap<String, String>,
    changes: Vec<HistoryRow>,
}

impl PublishedLog {
    fn read(dir: &TestFolder, url: &str) -> Self {
        let end = Instant::now() + PATIENCE;
        let output = loop {
            let output = dir.run(&["follow", url, "--once", "--protocol", "replication"]);
            if output.status.code() == Some(0) {
                break output;
            }
            assert!(Instant::now() < end, "{}", stderr(&output));
        };
        let mut log = Self::default();
        for line in lines(&output) {
            let text = |key: &str| line[key].as_str().unwrap().to_owned();
            let (op, id) = (text("op"), text("id"));
            if op == "delete" {
                log.items.remove(&id);
            } else {
                log.items.insert(id.clone(), text("content"));
            }
            log.changes.push((op, id, text("position")));
        }
        log
    }
}
