//! Kills followers into sinks, and their publisher, again and again: the copy must be the publisher's state. The history
//! of a transactional sink must have each position once; of others, each first delivery must be in order.
//! `TOWPATH_SINK_KILLS` sets the number of kills.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{PATIENCE, TestFolder, TestServer, free_port, lines, stderr};

/// A destination that the killed followers write to.
pub trait KilledCopy {
    /// `DEST` of the command line.
    fn destination(&self) -> String;

    /// Live items: id and content.
    fn items(&self) -> BTreeMap<String, String>;

    /// History in its order: operation, id and position.
    fn history(&self) -> Vec<(String, String, String)>;

    /// Kills the destination itself and starts it again, if it is a server.
    fn kill(&self) {}

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
    fn catch_up(&mut self) {
        self.kill();
        let (destination, state) = (self.copy.destination(), self.copy.state());
        let mut args = self.args(&destination, state.as_deref());
        args.push("--once");
        let output = self.dir.run(&args);
        assert_eq!(output.status.code(), Some(0), "{}: {}", self.protocol, stderr(&output));
    }
}

impl Drop for KilledFollow<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs the kills. There is one copy for each of the protocols.
pub fn run(copies: &[(&'static str, &dyn KilledCopy)]) {
    let kills: u32 = std::env::var("TOWPATH_SINK_KILLS").map_or(30, |kills| kills.parse().unwrap());
    let (dir, port) = (TestFolder::new(CONFIG), free_port());
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
    let count = std::sync::atomic::AtomicU64::new(0);
    for kill in 0..kills {
        let running = server.take().unwrap_or_else(|| dir.serve_at(port));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (seed, running, is_over, count) = (fastrand::u64(..), &running, &is_over, &count);
            scope.spawn(move || {
                // Each thread has a generator of its own; unseeded, no run could be repeated.
                fastrand::seed(seed);
                write(running, is_over, count);
            });
            std::thread::sleep(Duration::from_millis(fastrand::u64(30..400)));
            match kill % 4 {
                // The publisher, in the middle of a response.
                3 => running.kill_now(),
                2 if kill % 8 == 2 => copies.iter().for_each(|(_, copy)| copy.kill()),
                _ => {
                    let killed = fastrand::usize(..follows.len());
                    follows[killed].kill();
                    follows[killed].start();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        server = (kill % 4 != 3).then_some(running);
    }
    let server = server.unwrap_or_else(|| dir.serve_at(port));
    let expected = published(&dir, &url);
    for follow in &mut follows {
        follow.catch_up();
        assert_eq!(follow.copy.items(), expected, "{}", follow.protocol);
        let history = follow.copy.history();
        if !follow.copy.is_exact() {
            check_order(&history, &follow.copy.destination());
            continue;
        }
        let mut seen = BTreeMap::new();
        for (op, id, position) in &history {
            // DiffDelta has one position for all changes of a document.
            *seen.entry((op, id, position)).or_insert(0) += 1;
        }
        let repeated: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
        assert!(repeated.is_empty(), "{}: {repeated:?}", follow.protocol);
        println!(
            "{}: {} changes, {} items after {kills} kills",
            follow.protocol,
            history.len(),
            expected.len()
        );
    }
    assert!(!expected.is_empty());
    server.kill();
}

/// Checks that what was delivered for the first time came in the order of the log. Positions are Smart Feeds' cursors.
fn check_order(history: &[(String, String, String)], name: &str) {
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
fn write(server: &TestServer, is_over: &AtomicBool, count: &std::sync::atomic::AtomicU64) {
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

/// Returns the publisher's state, as a follow from the beginning has it.
fn published(dir: &TestFolder, url: &str) -> BTreeMap<String, String> {
    let end = std::time::Instant::now() + PATIENCE;
    let output = loop {
        let output = dir.run(&["follow", url, "--once", "--protocol", "replication"]);
        if output.status.code() == Some(0) {
            break output;
        }
        assert!(std::time::Instant::now() < end, "{}", stderr(&output));
    };
    let mut items = BTreeMap::new();
    for line in lines(&output) {
        let id = line["id"].as_str().unwrap().to_owned();
        match line["content"].as_str() {
            Some(content) if line["op"] != "delete" => {
                items.insert(id, content.to_owned());
            }
            _ => {
                items.remove(&id);
            }
        }
    }
    items
}
