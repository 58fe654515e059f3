//! Consumers in Rust that are killed at any moment: nothing is missing, and nothing comes twice where the store is
//! transactional.
//!
//! `cargo xtask client-kills [N]` runs the long form, in every language.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use towpath_client::{ChangesError, Follow};

use crate::common::{PATIENCE, TestFolder, TestServer, wait_until};

/// Number of kills in the tests.
const KILLS: usize = 20;
/// Changes that are published in each round.
const CHANGES: usize = 20;

/// The first consumer, in a process of its own: the program of docs/rust.md.
#[tokio::main]
async fn copy() -> Result<(), Box<dyn std::error::Error>> {
    let copy = towpath_sinks::open(&"sqlite:copy.db".parse()?);
    towpath_client::Follow::new(std::env::var("FEED")?).into_sink(copy).await?;
    Ok(())
}

#[test]
#[ignore = "kills_leave_an_exact_copy starts it"]
fn copies() {
    copy().unwrap();
}

/// The second consumer, whose lines and state are two files.
#[test]
#[ignore = "kills_lose_no_line starts it"]
fn prints() {
    let print = async {
        let mut lines = std::fs::File::options().append(true).create(true).open("lines").unwrap();
        let mut changes = Follow::new(std::env::var("FEED").unwrap()).state("state").changes();
        while let Some(change) = changes.try_next().await? {
            // In one write: a kill leaves no half of a line.
            lines.write_all(format!("{}\n", change.id()).as_bytes()).unwrap();
            changes.acknowledge(&change);
        }
        Ok::<(), ChangesError>(())
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(print).unwrap();
}

/// A consumer of this file as a process, in the folder of its copy.
struct Consumer(Child);

impl Consumer {
    fn start(name: &str, folder: &Path, url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = format!("rust_client::{name}");
        command.args(["--exact", "--ignored", name.as_str()]).env("FEED", url).current_dir(folder);
        Self(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap())
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn publish(server: &TestServer, ids: &[String]) {
    for ids in ids.chunks(4) {
        let lines: String = ids.iter().map(|id| format!("{}\n", serde_json::json!({ "id": id }))).collect();
        assert_eq!(server.ask("POST", "/feeds/notes/items", &[], lines.as_bytes()).status, 200);
    }
}

/// Kills a consumer while it is published to; returns what was published, and what the consumer has in the end.
fn kill(consumer: &str, seen: impl Fn(&Path) -> Vec<String>) -> (Vec<String>, Vec<String>) {
    let kills = std::env::var("TOWPATH_KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let (folder, copy) = (TestFolder::new("[[feed]]\nid = \"notes\"\n"), tempfile::tempdir().unwrap());
    let server = folder.serve();
    let url = format!("{}/feeds/notes", server.base);
    let (mut published, mut moved) = (Vec::new(), 0);
    for round in 0..kills {
        let ids: Vec<String> = (0..CHANGES).map(|n| format!("{round}-{n}")).collect();
        let before = seen(copy.path()).len();
        let running = Consumer::start(consumer, copy.path(), &url);
        std::thread::scope(|scope| {
            scope.spawn(|| publish(&server, &ids));
            // While it applies and saves in every other round, while it loads or asks in the others.
            if round % 2 == 1 {
                let end = std::time::Instant::now() + PATIENCE;
                while seen(copy.path()).len() == before && std::time::Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(4));
                }
                std::thread::sleep(Duration::from_millis(fastrand::u64(..20)));
            } else {
                std::thread::sleep(Duration::from_millis(fastrand::u64(..200)));
            }
            drop(running);
        });
        published.extend(ids);
        moved += usize::from(seen(copy.path()).len() > before);
    }
    assert!(moved >= kills / 4, "only {moved} of {kills} rounds saved something before the kill");
    let mut last = Consumer::start(consumer, copy.path(), &url);
    wait_until("the consumer has everything", || {
        assert!(!last.has_ended(), "the consumer ended by itself");
        seen(copy.path()).last() == published.last()
    });
    println!("{consumer}: {kills} kills, {moved} of them after progress, {} changes", published.len());
    (published, seen(copy.path()))
}

#[test]
fn a_sink_of_ones_own_is_thirty_lines() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../towpath-client/examples/sink.rs");
    let example = std::fs::read_to_string(example).unwrap();
    let sink = example.split("#[async_trait::async_trait]\n").nth(1).unwrap().split("\n}\n").next().unwrap();
    assert!(sink.starts_with("impl Sink for") && sink.lines().count() < 30, "{sink}");
}

#[test]
fn kills_leave_an_exact_copy() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/rust.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let program = guide.split("```rust copy.rs\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(program.lines().count() <= 6, "{program}");
    let (published, copied) = kill("copies", |folder| {
        // Before the first start there is neither file nor table.
        let existing = Connection::open_with_flags(folder.join("copy.db"), OpenFlags::SQLITE_OPEN_READ_WRITE);
        let Ok(copy) = existing else { return Vec::new() };
        copy.busy_timeout(PATIENCE).unwrap();
        let Ok(mut rows) = copy.prepare("SELECT id FROM changes ORDER BY n") else { return Vec::new() };
        rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    });
    assert_eq!(copied, published);
}

#[test]
fn kills_lose_no_line() {
    let (published, lines) = kill("prints", |folder| {
        let text = std::fs::read_to_string(folder.join("lines")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    });
    let mut seen = std::collections::HashSet::new();
    let first: Vec<String> = lines.into_iter().filter(|id| seen.insert(id.clone())).collect();
    assert_eq!(first, published);
}
