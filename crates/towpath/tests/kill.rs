//! A server with writers and sources is killed again and again, at any moment: acknowledged changes stay, and no
//! chain breaks. `TOWPATH_KILL_ROUNDS` sets the number of rounds; `cargo xtask kill` runs a hundred.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::chain::ChainReader;
use crate::common::{PATIENCE, TestFolder, TestServer, free_port, lines, stderr};

const CONFIG: &str = r#"
[[feed]]
id = "notes"
ttl = 15
[[feed]]
id = "orders"
[[feed]]
id = "list"
[feed.source]
url = "list.json"
format = "json"
every = 1
complete = true
[feed.source.json]
items = "/items"
id = "/id"
"#;

const WRITERS: usize = 3;
const SOURCES: [&str; 3] = ["list", "notes", "orders"];

/// A writer's knowledge of its items: the acknowledged content (none: deleted or never created), and the alternatives
/// left open by an unanswered request.
#[derive(Default)]
struct ItemWriter {
    name: String,
    feed: &'static str,
    acknowledged: BTreeMap<String, Option<String>>,
    /// Changes of the one unanswered request: all of them happened, or none.
    open: Vec<(String, Option<String>)>,
    /// Ids to check after the next start.
    touched: BTreeSet<String>,
    count: u64,
    answered: u64,
}

impl ItemWriter {
    fn new(number: usize) -> Self {
        let feed = if number == 0 { "orders" } else { "notes" };
        Self { name: format!("w{number}"), feed, ..Self::default() }
    }

    /// Publishes until the server is killed.
    fn write(&mut self, server: &TestServer) {
        loop {
            let changes = self.next();
            let answer = match changes.as_slice() {
                [(id, Some(content))] => {
                    let path = format!("/feeds/{}/items/{id}", self.feed);
                    server.try_ask("PUT", &path, &[("content-type", "text/plain")], content.as_bytes())
                }
                _ => {
                    let path = format!("/feeds/{}/items", self.feed);
                    server.try_ask("POST", &path, &[], batch(&changes).as_bytes())
                }
            };
            self.touched.extend(changes.iter().map(|(id, _)| id.clone()));
            let Ok(answer) = answer else {
                // Killed before the response: the request was applied as a whole, or not at all.
                self.open = changes;
                return;
            };
            assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
            self.acknowledged.extend(changes);
            self.answered += 1;
        }
    }

    /// Returns the next request's changes: a new item, a batch of new items, or a batch that changes and deletes
    /// older ones.
    fn next(&mut self) -> Vec<(String, Option<String>)> {
        let text = |n: u64| Some(format!("{n} {}", "x".repeat(fastrand::usize(..2000))));
        let mut fresh = || {
            self.count += 1;
            (format!("{}-{}", self.name, self.count), text(self.count))
        };
        match fastrand::u8(..4) {
            0 | 1 => vec![fresh()],
            2 => (0..fastrand::u8(2..40)).map(|_| fresh()).collect(),
            _ => {
                // No id twice in a batch, so that its content afterwards is known.
                let mut changes = BTreeMap::from([fresh()]);
                for _ in 0..5 {
                    let old = format!("{}-{}", self.name, fastrand::u64(1..=self.count));
                    let live = self.acknowledged.get(&old).is_some_and(Option::is_some);
                    let delete = live && fastrand::u8(..4) == 0;
                    changes.insert(old, if delete { None } else { text(fastrand::u64(..)) });
                }
                changes.into_iter().collect()
            }
        }
    }

    /// Checks that every touched item is as acknowledged, or as the unanswered request left it.
    fn check(&mut self, server: &TestServer) {
        let get = |id: &str| {
            let answer = server.get(&format!("/feeds/{}/items/{id}", self.feed));
            (answer.status == 200).then(|| answer.text())
        };
        let open = std::mem::take(&mut self.open);
        let happened: Vec<bool> = open.iter().map(|(id, content)| get(id) == *content).collect();
        let before = |id: &str| self.acknowledged.get(id).cloned().flatten();
        if happened.iter().all(|happened| *happened) {
            self.acknowledged.extend(open);
        } else {
            // An item that is the same before and after the request proves nothing.
            let received = open.iter().zip(&happened).filter(|((id, content), _)| before(id) != *content);
            assert!(received.clone().all(|(_, happened)| !happened), "a batch was torn: {open:?}");
        }
        for id in std::mem::take(&mut self.touched) {
            let expected = self.acknowledged.get(&id).cloned().flatten();
            assert_eq!(get(&id), expected, "{id} of {}", self.feed);
        }
    }

    fn live(&self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let live = self.acknowledged.iter().filter_map(|(id, content)| Some((id, content.as_ref()?)));
        live.map(|(id, content)| (id.clone(), content.clone().into_bytes()))
    }
}

fn batch(changes: &[(String, Option<String>)]) -> String {
    let line = |(id, content): &(String, Option<String>)| match content {
        Some(content) => json!({"id": id, "content_type": "text/plain", "content": content}),
        None => json!({"id": id, "op": "delete"}),
    };
    changes.iter().map(|change| format!("{}\n", line(change))).collect()
}

/// A version of the polled list: item `n` appears in version `n`, changes sometimes, and is removed 40 versions
/// later.
fn list(version: u64) -> Vec<u8> {
    let first = version.saturating_sub(40);
    let items: Vec<Value> = (first..=version).map(|n| json!({"id": n, "v": version / (n % 7 + 2)})).collect();
    json!({ "items": items }).to_string().into_bytes()
}

/// A follower with a state file, restarted when it has finished or the server was down.
struct RestartedFollow<'a> {
    dir: &'a TestFolder,
    url: String,
    state: String,
    child: Option<Child>,
    items: BTreeMap<(String, String), Value>,
    /// Standard error of the last run.
    stderr_text: String,
}

impl<'a> RestartedFollow<'a> {
    fn new(dir: &'a TestFolder, base: &str, path: &str) -> Self {
        let state = format!("state{}", path.replace('/', "-"));
        Self {
            dir,
            url: format!("{base}{path}"),
            state,
            child: None,
            items: BTreeMap::new(),
            stderr_text: String::new(),
        }
    }

    fn start(&mut self) {
        let args = ["follow", &self.url, "--protocol", "diffdelta", "--state", &self.state, "--once"];
        let mut command = self.dir.command(&args);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.child = Some(command.spawn().unwrap());
    }

    /// Waits for its exit and applies its output. Every change must be printed exactly once.
    fn finish(&mut self) -> Option<i32> {
        let output = self.child.take()?.wait_with_output().unwrap();
        for line in lines(&output) {
            let key = |name: &str| line[name].as_str().unwrap().to_owned();
            let key = (key("feed"), key("id"));
            if line["op"] == "delete" {
                assert!(self.items.remove(&key).is_some(), "deleted once: {line}");
            } else {
                // Written compact and sorted, as the sources' content is.
                let json = || line["json"].to_string();
                let content = Value::from(line["content"].as_str().map_or_else(json, str::to_owned));
                let received = self.items.insert(key, content.clone());
                assert_ne!(received, Some(content), "received twice: {line}");
            }
        }
        let code = output.status.code();
        self.stderr_text = stderr(&output);
        // 1 if the server was killed meanwhile.
        assert!(matches!(code, Some(0 | 1)), "{code:?}: {}", self.stderr_text);
        code
    }
}

/// Chains read before a kill continue after it.
fn read_chains(chains: &mut [ChainReader], server: &TestServer) {
    for chain in chains {
        chain.read_new(server);
    }
}

#[test]
fn kill_9_at_any_moment_loses_nothing_that_was_acknowledged() {
    let rounds: u32 = std::env::var("TOWPATH_KILL_ROUNDS").map_or(12, |rounds| rounds.parse().unwrap());
    let seed = fastrand::u64(..);
    println!("{rounds} rounds, seed {seed}");
    fastrand::seed(seed);
    let dir = TestFolder::new(CONFIG);
    dir.write("list.json", &list(0));
    let port = free_port();
    let base = format!("http://127.0.0.1:{port}");
    let mut followers =
        ["/diff/notes/head.json", "/diff/latest.json"].map(|path| RestartedFollow::new(&dir, &base, path));
    let mut writers: Vec<ItemWriter> = (0..WRITERS).map(ItemWriter::new).collect();
    let mut chains: Vec<ChainReader> =
        SOURCES.iter().chain(&["_global"]).map(|name| ChainReader::new(name)).collect();
    let mut version = 0;
    for round in 0..rounds {
        // A kill during recovery must leave a folder that the next start can recover.
        if round % 4 == 3 {
            kill_while_starting(&dir, port);
        }
        let server = dir.serve_at(port);
        writers.iter_mut().for_each(|writer| writer.check(&server));
        read_chains(&mut chains, &server);
        followers.iter_mut().for_each(RestartedFollow::start);
        let (seeds, life) = (fastrand::u64(..), Duration::from_millis(fastrand::u64(20..900)));
        std::thread::scope(|scope| {
            for (number, writer) in writers.iter_mut().enumerate() {
                let server = &server;
                scope.spawn(move || {
                    // Each thread has a generator of its own; unseeded, no run could be repeated.
                    fastrand::seed(seeds.wrapping_add(number as u64));
                    writer.write(server);
                });
            }
            let end = Instant::now() + life;
            while Instant::now() < end {
                version += 1;
                // Not atomic: a poll in between reads a cut-off list.
                dir.write("list.json", &list(version));
                std::thread::sleep(Duration::from_millis(50));
            }
            server.kill_now();
        });
        for follower in &mut followers {
            follower.finish();
        }
    }
    let server = dir.serve_at(port);
    writers.iter_mut().for_each(|writer| {
        writer.touched = writer.acknowledged.keys().cloned().collect();
        writer.check(&server);
    });
    let expected = settled(&server, &dir, &writers, &mut chains, version);
    for name in SOURCES {
        let whole = ChainReader::whole(&server, name);
        assert_eq!(whole.contents(), expected[name], "{name} from the zero cursor on");
        whole.check_head(&server);
    }
    let global = ChainReader::whole(&server, "_global");
    followers_agree(&mut followers, &global);
    let answered: u64 = writers.iter().map(|writer| writer.answered).sum();
    let snapshots: usize = chains.iter().map(|chain| chain.listed.len()).sum();
    println!("{rounds} kills, {answered} acknowledged requests, {snapshots} snapshots: nothing lost");
}

/// Starts a server and kills it before it prints anything.
fn kill_while_starting(dir: &TestFolder, port: u16) {
    let mut command = dir.command(&["serve", "--listen", &format!("127.0.0.1:{port}")]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(fastrand::u64(..200)));
    child.kill().unwrap();
    child.wait().unwrap();
}

type Contents = BTreeMap<String, Vec<u8>>;

/// Waits until all acknowledged and polled changes are published; returns the contents of every source.
fn settled(
    server: &TestServer,
    dir: &TestFolder,
    writers: &[ItemWriter],
    chains: &mut [ChainReader],
    version: u64,
) -> BTreeMap<&'static str, Contents> {
    let document = list(version + 1);
    dir.write("list.new", &document);
    // Atomic this time: the final poll must read the whole list.
    std::fs::rename(dir.path("list.new"), dir.path("list.json")).unwrap();
    let items: Value = serde_json::from_slice(&document).unwrap();
    let items = items["items"].as_array().unwrap().iter();
    let listed: Contents = items.map(|i| (i["id"].to_string(), i.to_string().into_bytes())).collect();
    let mut expected =
        BTreeMap::from([("list", listed), ("notes", Contents::new()), ("orders", Contents::new())]);
    for writer in writers {
        expected.get_mut(writer.feed).unwrap().extend(writer.live());
    }
    let wanted: usize = expected.values().map(BTreeMap::len).sum();
    let end = Instant::now() + PATIENCE;
    loop {
        read_chains(chains, server);
        let sources = SOURCES.iter().zip(&*chains);
        let there = sources.fold(true, |there, (name, chain)| there && chain.contents() == expected[name]);
        if there && chains[SOURCES.len()].items.len() == wanted {
            return expected;
        }
        assert!(Instant::now() < end, "the feeds do not become what was published to them");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn followers_agree(followers: &mut [RestartedFollow<'_>], global: &ChainReader) {
    for follower in followers {
        follower.start();
        assert_eq!(follower.finish(), Some(0), "{}: {}", follower.url, follower.stderr_text);
        let is_global = follower.url.ends_with("/diff/latest.json");
        let followed = |(source, _): &&(String, String)| is_global || source == "notes";
        let ids: Vec<_> = global.items.keys().filter(followed).collect();
        assert_eq!(follower.items.keys().collect::<Vec<_>>(), ids, "{}", follower.url);
        for (key, content) in &follower.items {
            let expected = crate::common::chain::content(&global.items[key]);
            assert_eq!(content.as_str().unwrap().as_bytes(), expected, "{key:?}");
        }
    }
}
