//! `[feed.log]`: old versions and deletions go, and every protocol's followers end with the live items.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Output;

use serde_json::{Value, json};

use crate::common::waiting::PollClient;
use crate::common::{TestFolder, TestServer, clustered, free_port, lines, stderr, stdout};

/// Changes that are kept.
const KEPT: u64 = 12;
const PROTOCOLS: [(&str, &str); 3] = [
    ("smart", "/feeds/notes/items"),
    ("replication", "/feeds/notes/replication"),
    ("diffdelta", "/diff/notes"),
];

fn config(more: &str) -> String {
    format!(
        "{more}[[feed]]\nid = \"notes\"\npage_items = 4\n[feed.log]\nkeep_changes = {KEPT}\n\
         [feed.retention]\ngrace = \"0s\"\n"
    )
}

fn publish(server: &TestServer, changes: &[(String, Option<u32>)]) {
    let line = |(id, title): &(String, Option<u32>)| match title {
        Some(title) => format!("{}\n", json!({"op": "put", "id": id, "item": {"title": title.to_string()}})),
        None => format!("{}\n", json!({"op": "delete", "id": id})),
    };
    let body: String = changes.iter().map(line).collect();
    let type_ = [("content-type", "application/x-ndjson")];
    let answer = server.ask("POST", "/feeds/notes/items", &type_, body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Longest log of which nothing is due: a tenth of what is kept goes at once, and a page stays from its first change.
const UNDUE: u64 = KEPT + KEPT / 10 + 1 + 4;

/// Waits until the horizon stands near the last change that is not kept. Returns it; zero for a log that is whole.
fn wait_for_horizon(server: &TestServer) -> u64 {
    let horizon = |feed: &Value| match feed.get("horizon") {
        // A log that has everything tells none.
        None => 0,
        Some(horizon) => horizon.as_u64().filter(|horizon| *horizon > 0).unwrap(),
    };
    let seq = |feed: &Value| feed["seq"].as_u64().unwrap();
    let state = server.wait_for("/feeds/notes", |feed| horizon(feed) + UNDUE >= seq(feed));
    assert!(horizon(&state) + KEPT <= seq(&state) || horizon(&state) == 0, "{state}");
    assert!(horizon(&state) > 0 || seq(&state) <= UNDUE, "{state}");
    horizon(&state)
}

/// A copy of the feed that `towpath follow --once` keeps.
struct Copy {
    name: String,
    protocol: &'static str,
    path: &'static str,
    items: BTreeMap<String, Value>,
    resets: usize,
    /// True once the follower said that changes are missing.
    is_incomplete: bool,
}

impl Copy {
    fn new(name: &str, (protocol, path): (&'static str, &'static str)) -> Self {
        let name = format!("{name}-{protocol}.state");
        Self { name, protocol, path, items: BTreeMap::new(), resets: 0, is_incomplete: false }
    }

    /// Returns true if the copy has the live items, or if its follower said that it has not.
    fn is_whole(&self, live: &BTreeMap<String, Value>) -> bool {
        self.is_incomplete || self.items == *live
    }

    /// Follows to the end. Returns the changes.
    fn follow(&mut self, dir: &TestFolder, server: &TestServer) -> Vec<(String, Option<String>)> {
        let state = dir.path(&self.name);
        let url = format!("{}{}", server.base, self.path);
        let args =
            ["follow", &url, "--once", "--protocol", self.protocol, "--state", state.to_str().unwrap()];
        let output: Output = dir.run(&args);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{}: {}", self.name, stderr(&output));
        let (mut changes, resets) = (Vec::new(), self.resets);
        for line in lines(&output) {
            let title = line["item"]["title"].as_str().map(str::to_owned);
            match line["op"].as_str().unwrap() {
                "reset" => {
                    self.items.clear();
                    self.resets += 1;
                }
                "delete" => {
                    let id = line["id"].as_str().unwrap();
                    self.items.remove(id);
                    changes.push((id.to_owned(), None));
                }
                _ => {
                    let id = line["id"].as_str().unwrap();
                    self.items.insert(id.to_owned(), line["item"]["title"].clone());
                    changes.push((id.to_owned(), title));
                }
            }
        }
        // The exit code tells of a reset as well, after which the copy is whole.
        self.is_incomplete |= output.status.code() == Some(3) && self.resets == resets;
        changes
    }
}

/// Random appends, deletions, retention, restarts and kills.
#[test]
fn followers_get_every_version_once_or_a_reset_and_the_live_items() {
    if clustered::skips("a cluster keeps its log") {
        return;
    }
    let dir = TestFolder::new(&config(""));
    let mut random = fastrand::Rng::with_seed(7);
    // Followers' states belong to an address.
    let port = free_port();
    let mut server = dir.serve_at(port);
    let mut live: BTreeMap<String, Value> = BTreeMap::new();
    let mut current = PROTOCOLS.map(|protocol| Copy::new("current", protocol));
    let mut behind = PROTOCOLS.map(|protocol| Copy::new("behind", protocol));
    let mut moved = 0;
    for round in 0..5 {
        for _ in 0..3 {
            let mut batch: BTreeMap<String, Option<u32>> = BTreeMap::new();
            for _ in 0..random.usize(3..8) {
                let id = format!("n{}", random.u32(0..14));
                let is_deletion = live.contains_key(&id) && random.u8(0..3) == 0;
                batch.insert(id, (!is_deletion).then(|| random.u32(..)));
            }
            for (id, title) in &batch {
                match title {
                    Some(title) => drop(live.insert(id.clone(), json!(title.to_string()))),
                    None => drop(live.remove(id)),
                }
            }
            let batch: Vec<(String, Option<u32>)> = batch.into_iter().collect();
            publish(&server, &batch);
            let seq = server.json("/feeds/notes")["seq"].as_u64().unwrap();
            server.wait_for("/feeds/notes", |feed| feed["seq"].as_u64() == Some(seq));
            let expected: Vec<(String, Option<String>)> =
                batch.iter().map(|(id, title)| (id.clone(), title.map(|title| title.to_string()))).collect();
            for copy in &mut current[..2] {
                assert_eq!(copy.follow(&dir, &server), expected, "round {round}: {}", copy.name);
            }
        }
        if round < 3 {
            // It goes when its pages need what is due. Until then it holds the log back.
            assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &[], b"").status, 201);
        }
        let horizon = wait_for_horizon(&server);
        moved += usize::from(horizon > 0);
        if round % 2 == 0 {
            for copy in &mut behind[..2] {
                copy.follow(&dir, &server);
                // Data Replication has no reset: a follower whose page is gone says that changes are missing.
                assert!(
                    copy.is_whole(&live),
                    "round {round}: {}: {:?} is not {live:?}",
                    copy.name,
                    copy.items
                );
            }
        }
        if random.bool() {
            server.kill();
        } else {
            assert_eq!(server.stop(), Some(0));
        }
        let verified = dir.run(&["verify"]);
        assert_eq!(verified.status.code(), Some(0), "{}{}", stdout(&verified), stderr(&verified));
        server = dir.serve_at(port);
    }
    assert!(moved >= 3, "the horizon moved {moved} times");
    // DiffDelta's archives stay, so its followers miss nothing, however late. Mints may join versions.
    server.wait_for_first("notes");
    let seq = server.json("/feeds/notes")["seq"].as_u64().unwrap();
    assert!(seq > KEPT);
    for copy in current.iter_mut().chain(&mut behind) {
        let mut tries = 0;
        while {
            copy.follow(&dir, &server);
            !copy.is_whole(&live)
        } {
            tries += 1;
            assert!(tries < 40, "{}: {:?} is not {live:?}", copy.name, copy.items);
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
    assert!(
        current.iter().all(|copy| copy.resets == 0 && !copy.is_incomplete),
        "a current follower lost its place"
    );
    assert!(behind[0].resets > 0, "Smart Feeds told no reset");
    let [smart, replication, diffdelta] = &behind;
    let incomplete = [smart, replication, diffdelta].map(|copy| copy.is_incomplete);
    assert_eq!(incomplete, [false, true, false]);
    assert_eq!(diffdelta.resets, 0);
    // Pages are gone, so a new follower begins with a snapshot.
    assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &[], b"").status, 201);
    for protocol in PROTOCOLS {
        let mut new = Copy::new("new", protocol);
        new.follow(&dir, &server);
        assert_eq!((new.items, new.is_incomplete), (live.clone(), false), "{}", new.name);
    }
    assert!(server.get("/metrics").text().contains("towpath_feed_horizon{feed=\"notes\"}"));
}

/// Publishes an item, its deletion, and versions of ten others, until the first changes are let go.
fn move_horizon(server: &TestServer) -> u64 {
    publish(server, &[("gone".into(), None)]);
    for n in 0..40 {
        publish(server, &[(format!("n{}", n % 10), Some(n + 2))]);
    }
    wait_for_horizon(server)
}

/// Ids of the events of a stream, and their kinds with the ids of their items.
fn events(text: &str) -> Vec<(String, String)> {
    let (_, body) = text.split_once("\r\n\r\n").unwrap_or_default();
    // The last event may be on its way.
    let (whole, _) = body.rsplit_once("\n\n").unwrap_or_default();
    let events = whole.split("\n\n").filter(|event| event.contains("\nevent: "));
    let field = |event: &str, name: &str| {
        event
            .lines()
            .find_map(|line| line.strip_prefix(name).map(str::to_owned))
            .unwrap_or_else(|| panic!("no {name} in {event:?}"))
    };
    events
        .map(|event| {
            let data: Value = serde_json::from_str(&field(event, "data: ")).unwrap();
            let item = data["id"].as_str().unwrap_or_default();
            (field(event, "id: "), format!("{} {item}", field(event, "event: ")))
        })
        .collect()
}

/// A request from behind the horizon begins anew and says so, as do an event stream and its own resumption.
#[test]
fn a_client_behind_the_horizon_is_told() {
    if clustered::skips("a cluster keeps its log") {
        return;
    }
    let dir = TestFolder::new(&config(""));
    let server = dir.serve();
    publish(&server, &[("n0".into(), Some(1)), ("gone".into(), Some(1))]);
    let page = server.json("/feeds/notes/items?order=modified&timeout=0");
    let cursor = page["last_cursor"].as_str().unwrap().to_owned();
    let mut current = PollClient::new(&server);
    current.send(&format!("/feeds/notes/events?since=cursor:{cursor}"), "");
    current.read_until(|text| text.contains("retry: "));
    assert!(move_horizon(&server) > 2);

    // A stream that was open all the time got every change, and no reset.
    let all = current.read_until(|text| events(text).len() >= 41);
    let all = events(&all);
    assert_eq!((all.len(), all[0].1.as_str()), (41, "delete gone"));
    assert!(all.iter().all(|(_, event)| !event.starts_with("reset")), "{all:?}");

    let again = server.get(&format!("/feeds/notes/items?order=modified&since=cursor:{cursor}&timeout=20"));
    assert_eq!((again.status, again.header("towpath-reset")), (200, Some("position-unknown")));
    assert!(!again.text().contains("\"gone\""), "{}", again.text());
    let live: BTreeSet<String> = (0..10).map(|n| format!("put n{n}")).collect();
    let mut ids = Vec::new();
    for form in ["", "?format=lines"] {
        let mut late = PollClient::new(&server);
        late.send(&format!("/feeds/notes/events{form}"), &format!("Last-Event-ID: {cursor}\r\n"));
        let text = late.read_until(|text| text.matches("event: put").count() >= 10);
        let told = events(&text);
        assert!(told[0].1.starts_with("reset"), "{told:?}");
        let items: BTreeSet<String> = told[1..].iter().map(|(_, event)| event.clone()).collect();
        assert_eq!(items, live, "{form}");
        ids = told.into_iter().map(|(id, _)| id).collect();
    }
    // A stream that is cut off on the way goes on from each of its events without another reset.
    for (place, id) in ids.iter().enumerate().take(10) {
        let mut cut = PollClient::new(&server);
        cut.send("/feeds/notes/events", &format!("Last-Event-ID: {id}\r\n"));
        let told = events(&cut.read_until(|text| text.matches("event: put").count() >= 10 - place));
        assert_eq!(told.len(), 10 - place, "after event {place}: {told:?}");
    }
}

/// Addresses of single versions and of the past say what is no longer kept. A backup has the horizon.
#[test]
fn old_versions_are_gone_and_a_backup_has_the_horizon() {
    if clustered::skips("a cluster keeps its log") {
        return;
    }
    let dir = TestFolder::new(&config(""));
    let server = dir.serve();
    publish(&server, &[("n0".into(), Some(1)), ("gone".into(), Some(1))]);
    move_horizon(&server);
    // The first version of n0 went, and the request says so.
    let first = server.get("/feeds/notes/items/n0?version=1");
    assert_eq!(first.status, 410);
    assert!(first.text().contains("no longer kept"), "{}", first.text());
    let versions = server.json("/feeds/notes/items/n0/versions");
    assert_eq!(versions["older"], Value::Null, "{versions}");
    let diff = dir.run(&["diff", "notes", "n0", "1", "43", "--server", &server.base]);
    assert!(stderr(&diff).contains("no longer kept"), "{}", stderr(&diff));
    let html = [("accept", "text/html")];
    let past = "/feeds/notes?at=2001-01-01T00:00:00Z";
    for (path, status) in
        [("/feeds/notes/items/n0?version=1", 410), (past, 410), ("/feeds/notes?view=history", 200)]
    {
        let answer = server.ask("GET", path, &html, b"");
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
    }
    // A backup has the horizon, and what comes back is sound.
    let to = dir.path("backup");
    let saved = dir.run(&["backup", to.to_str().unwrap()]);
    assert_eq!(saved.status.code(), Some(0), "{}", stderr(&saved));
    let horizon = server.json("/feeds/notes")["horizon"].as_u64().unwrap();
    assert_eq!(server.stop(), Some(0));
    std::fs::rename(dir.path("data"), dir.path("old")).unwrap();
    let restored = dir.run(&["restore", to.to_str().unwrap()]);
    assert_eq!(restored.status.code(), Some(0), "{}", stderr(&restored));
    let verified = dir.run(&["verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", stdout(&verified));
    let server = dir.serve();
    assert_eq!(server.json("/feeds/notes")["horizon"], horizon);
}

/// The page of changes showed others under the positions that were let go, and its pages never ended.
#[test]
fn the_page_of_changes_has_what_is_kept() {
    if clustered::skips("a cluster keeps its log") {
        return;
    }
    let dir = TestFolder::new(&config(""));
    let server = dir.serve();
    let stays: Vec<(String, Option<u32>)> = (0..5).map(|n| (format!("stays{n}"), Some(n))).collect();
    publish(&server, &stays);
    let versions: Vec<(String, Option<u32>)> =
        (0..100).map(|n| (format!("n{}", n % 10), Some(n + 2))).collect();
    publish(&server, &versions);
    let horizon = wait_for_horizon(&server);
    assert!(horizon > 60, "{horizon}");
    let page = |query: &str| {
        let html = [("accept", "text/html")];
        let answer = server.ask("GET", &format!("/feeds/notes/changes{query}"), &html, b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    };
    let positions = |text: &str| -> Vec<u64> {
        let rows = text.split("id=\"change-").skip(1);
        rows.map(|row| row.split('"').next().unwrap().parse().unwrap()).collect()
    };
    let all = page("");
    let shown = positions(&all);
    assert!(shown.is_sorted_by(|one, next| one > next), "{shown:?}");
    assert_eq!((shown[0], &shown[shown.len() - 5..]), (105, &[5, 4, 3, 2, 1][..]));
    assert!(!all.contains(">Older<"), "nothing is older than the first change");
    assert_eq!(all.matches("first version").count(), 5, "{all}");
    assert!(all.contains("the version before it is no longer kept"), "{all}");
    for compared in all.split("&amp;with=").skip(1) {
        let seq: u64 = compared.split('"').next().unwrap().parse().unwrap();
        assert!(shown.contains(&seq), "version {seq} is not kept");
    }
    let early = page("?before=60");
    assert_eq!(positions(&early), [5, 4, 3, 2, 1]);
    assert!(early.contains("1 to 5 of 105") && !early.contains(">Older<"), "{early}");
    for before in ["?before=0", "?before=1"] {
        let none = page(before);
        assert!(none.contains("no changes before change 1") && none.contains(">Newest<"), "{none}");
    }
}

/// A sink that was away while the horizon passed it is copied anew.
#[test]
fn a_sink_behind_the_horizon_begins_anew() {
    if clustered::skips("a cluster keeps its log") {
        return;
    }
    let sink = "[[sink]]\nname = \"copy\"\nfeeds = [\"notes\"]\ninto = \"sqlite:copy.db\"\n";
    let dir = TestFolder::new(&config(sink));
    let rows = || -> BTreeMap<String, u32> {
        let database = rusqlite::Connection::open(dir.path("copy.db")).unwrap();
        let mut query = database.prepare("SELECT id, title FROM items").unwrap();
        let rows = query.query_map((), |row| Ok((row.get(0)?, row.get::<_, String>(1)?.parse().unwrap())));
        rows.unwrap().map(Result::unwrap).collect()
    };
    let has_table = || {
        let database = rusqlite::Connection::open(dir.path("copy.db")).unwrap();
        let query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'items'";
        database.query_row(query, (), |row| row.get::<_, u32>(0)).unwrap() == 1
    };
    let server = dir.serve();
    publish(&server, &[("n0".into(), Some(1)), ("gone".into(), Some(1))]);
    crate::common::wait_until("the sink made its table", || dir.path("copy.db").exists() && has_table());
    crate::common::wait_until("the sink has both", || rows().len() == 2);
    assert_eq!(server.stop(), Some(0));

    dir.write("towpath.toml", config("").as_bytes());
    let server = dir.serve();
    assert!(move_horizon(&server) > 2);
    assert_eq!(server.stop(), Some(0));

    dir.write("towpath.toml", config(sink).as_bytes());
    let server = dir.serve();
    let live: BTreeMap<String, u32> = (30..40).map(|n| (format!("n{}", n % 10), n + 2)).collect();
    crate::common::wait_until("the sink has what is live", || rows() == live);
    assert!(dir.log().contains("the feed is copied again from its beginning"), "{}", dir.log());
    assert_eq!(server.stop(), Some(0));
}

/// The nodes of a cluster apply the same log, so none of them lets go by itself: the configuration is refused.
#[test]
fn a_cluster_and_a_filter_have_no_log_to_bound() {
    let cluster = "[server]\ncluster = \"nats://127.0.0.1:1/x\"\n";
    let filter =
        "[[feed]]\nid = \"some\"\nfilter = { of = \"notes\", tags = [\"x\"] }\n[feed.log]\nkeep = \"1d\"\n";
    let dir = TestFolder::new(&config(""));
    for (text, message) in [
        (config(cluster), "the nodes of a cluster keep every version"),
        (format!("{}{filter}", config("")), "a feed with a filter has no log of its own"),
    ] {
        dir.write("towpath.toml", text.as_bytes());
        let checked = dir.run(&["config", "check"]);
        assert_eq!(checked.status.code(), Some(2));
        assert!(stderr(&checked).contains(message), "{}", stderr(&checked));
    }
}
