//! Followers of every protocol: `towpath follow` processes that run through all faults, and the changes that they
//! printed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::clients::{FEEDS, deleted};
use super::events;
use crate::common::free_port;
use crate::common::xmpp::{HOSTS, PASSWORD, SERVICE, XmppServer};

/// Delivery guarantee of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryGuarantee {
    /// Every change, once, in log order.
    Changes,
    /// Every item once, in its version at the time of the publisher's document: two changes in between are delivered
    /// as one.
    ItemsOnce,
    /// As `ItemsOnce` where cursors are positions in the log. A T+O+C cursor is read as a time once an item of its second
    /// has changed: such feeds tell every item, some perhaps more than once.
    ItemsOnceByPosition,
    /// Every item, some perhaps more than once.
    Items,
}

impl DeliveryGuarantee {
    fn of_feed(self, feed: usize) -> Self {
        match self {
            Self::ItemsOnceByPosition if feed == TOC => Self::Items,
            Self::ItemsOnceByPosition => Self::ItemsOnce,
            other => other,
        }
    }
}

/// The feed with T+O+C cursors.
const TOC: usize = 1;

/// A delivered change: feed, item, and the change's mark in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveredChange {
    feed: usize,
    pub id: String,
    pub mark: String,
}

/// A `towpath follow` process, or a reader of an event stream.
pub struct FollowProcess {
    pub name: String,
    promise: DeliveryGuarantee,
    feeds: Vec<usize>,
    received: Arc<Mutex<Vec<DeliveredChange>>>,
    child: Option<Child>,
}

/// Protocol, address of a feed, guarantee.
pub type FollowedProtocol = (&'static str, fn(&str, &str) -> String, DeliveryGuarantee);

/// Polling protocols: by interval, and when the publisher's SUP document names the feed.
pub const POLLED: [FollowedProtocol; 4] = [
    ("diffdelta", |base, feed| format!("{base}/diff/{feed}/head.json"), DeliveryGuarantee::ItemsOnce),
    ("replication", |base, feed| format!("{base}/feeds/{feed}/replication"), DeliveryGuarantee::Changes),
    ("history", |base, feed| format!("{base}/feeds/{feed}/atom"), DeliveryGuarantee::Items),
    ("smart", smart, DeliveryGuarantee::ItemsOnceByPosition),
];

fn smart(base: &str, feed: &str) -> String {
    format!("{base}/feeds/{feed}/items?order=modified")
}

/// Starts followers of all feeds by every protocol at one address. Single feeds are followed by long polls there and
/// at a node, by WebSub and by XMPP.
pub fn start_all(
    folder: &Path,
    balancer: &str,
    node: &str,
    own_ip: &str,
    prosody: &XmppServer,
) -> Vec<FollowProcess> {
    let all: Vec<usize> = (0..FEEDS.len()).collect();
    let mut followers: Vec<FollowProcess> = POLLED
        .iter()
        .map(|(protocol, url, promise)| {
            let mut arguments: Vec<String> = FEEDS.iter().map(|feed| url(balancer, feed)).collect();
            arguments.extend(["--protocol", protocol, "--every", "1s"].map(str::to_owned));
            start(folder, &format!("{protocol} polled"), *promise, all.clone(), &arguments)
        })
        .collect();
    let held = |protocol: &str, url: String| ["--protocol".to_owned(), protocol.to_owned(), url];
    let waiting = [("held", balancer, 0), ("held at a node", node, 1)];
    followers.extend(waiting.map(|(name, base, feed)| {
        let arguments = held("smart", smart(base, FEEDS[feed]));
        start(
            folder,
            &format!("smart {name}"),
            DeliveryGuarantee::ItemsOnceByPosition,
            vec![feed],
            &arguments,
        )
    }));
    let callback = format!("http://{own_ip}:{}/called", free_port());
    let pushed = [smart(balancer, FEEDS[2]), "--push".into(), "--callback".into(), callback];
    followers.push(start(folder, "smart pushed", DeliveryGuarantee::ItemsOnceByPosition, vec![2], &pushed));
    followers.extend([0, 2, 3].map(|feed| start_events(balancer, feed)));
    let jid = format!("alice@{}", HOSTS[0]);
    let node = format!("xmpp:{SERVICE}?;node={}%3Forder%3Dmodified", FEEDS[3]);
    let server = format!("127.0.0.1:{}", prosody.client_port);
    let pushed = [node, "--jid".into(), jid, "--xmpp-server".into(), server];
    followers.push(start(folder, "xmpp", DeliveryGuarantee::Items, vec![3], &pushed));
    followers
}

fn start(
    folder: &Path,
    name: &str,
    promise: DeliveryGuarantee,
    feeds: Vec<usize>,
    arguments: &[String],
) -> FollowProcess {
    let file = name.replace(' ', "-");
    let log = File::create(folder.join(format!("{file}.log"))).unwrap();
    // A follower ends with the test, even if that is killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_towpath"), "follow"]).args(arguments);
    command.arg("--state").arg(folder.join(format!("{file}.state"))).env("TOWPATH_XMPP_PASSWORD", PASSWORD);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let received: Arc<Mutex<Vec<DeliveredChange>>> = Arc::default();
    let (into, only) = (received.clone(), feeds[0]);
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            into.lock().unwrap().push(read(&line, only));
        }
    });
    FollowProcess { name: name.to_owned(), promise, feeds, received, child: Some(child) }
}

/// Starts a reader of a feed's event stream. It ends with the test.
fn start_events(base: &str, feed: usize) -> FollowProcess {
    let received: Arc<Mutex<Vec<DeliveredChange>>> = Arc::default();
    let (into, base) = (received.clone(), base.to_owned());
    std::thread::spawn(move || {
        events::follow(&base, FEEDS[feed], |line| into.lock().unwrap().push(read(line, feed)));
    });
    let name = format!("events of {}", FEEDS[feed]);
    FollowProcess { name, promise: DeliveryGuarantee::ItemsOnce, feeds: vec![feed], received, child: None }
}

/// Follows all feeds from their beginning to their end.
pub fn follow_once(way: &FollowedProtocol, base: &str, logs: &[Vec<DeliveredChange>]) -> Vec<String> {
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
    let received: Vec<DeliveredChange> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| read(line, 0)).collect();
    (0..FEEDS.len()).flat_map(|feed| compare(&received, &logs[feed], feed, promise.of_feed(feed))).collect()
}

/// Failures that the conformance checker reports.
pub fn check(way: &FollowedProtocol, base: &str, feed: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    let output = command.args(["check", &way.1(base, feed), "--protocol", way.0]).output().unwrap();
    if output.status.success() {
        return Vec::new();
    }
    vec![format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))]
}

fn read(line: &str, only: usize) -> DeliveredChange {
    let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let id = line["id"].as_str().unwrap().to_owned();
    let url = line["feed"].as_str().unwrap_or_default();
    let feed = FEEDS.iter().position(|feed| url.contains(&format!("/{feed}/"))).unwrap_or(only);
    let mark = match line["op"].as_str() {
        Some("delete") => deleted(&id),
        _ => line["item"]["title"].as_str().or(line["content"].as_str()).unwrap_or_default().to_owned(),
    };
    DeliveredChange { feed, id, mark }
}

impl DeliveredChange {
    pub fn new(feed: usize, id: String, mark: String) -> Self {
        Self { feed, id, mark }
    }
}

impl FollowProcess {
    /// Violations of its protocol's guarantee.
    pub fn faults(&mut self, logs: &[Vec<DeliveredChange>]) -> Vec<String> {
        if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
            return vec![format!("it has ended: {status}")];
        }
        let received = self.received.lock().unwrap();
        self.feeds
            .iter()
            .flat_map(|feed| compare(&received, &logs[*feed], *feed, self.promise.of_feed(*feed)))
            .collect()
    }

    pub fn count(&self) -> usize {
        self.received.lock().unwrap().len()
    }
}

impl Drop for FollowProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Most faults of a kind that are reported.
const MAX_REPORTED: usize = 5;

fn compare(
    received: &[DeliveredChange],
    log: &[DeliveredChange],
    feed: usize,
    promise: DeliveryGuarantee,
) -> Vec<String> {
    let received: Vec<&DeliveredChange> = received.iter().filter(|received| received.feed == feed).collect();
    let name = FEEDS[feed];
    let mut faults = Vec::new();
    if promise == DeliveryGuarantee::Changes {
        if let Some(position) =
            (0..received.len().max(log.len())).find(|n| received.get(*n).copied() != log.get(*n))
        {
            let (received_there, log_there) = (received.get(position), log.get(position));
            faults.push(format!(
                "{name}: of {} changes {} were received; the first other is number {position}: {log_there:?}, received {received_there:?}",
                log.len(),
                received.len()
            ));
        }
        return faults;
    }
    let positions: HashMap<&str, usize> =
        log.iter().enumerate().map(|(position, received)| (&*received.mark, position)).collect();
    let mut last: HashMap<&str, usize> = HashMap::new();
    for DeliveredChange { id, mark, .. } in &received {
        let Some(position) = positions.get(&**mark).copied() else {
            faults.push(format!("{name}: {mark} was received and is not in the log"));
            continue;
        };
        let before = last.insert(id, position);
        if promise == DeliveryGuarantee::ItemsOnce && before.is_some_and(|before| before >= position) {
            faults.push(format!("{name}: {mark} was received again"));
        }
    }
    faults.truncate(MAX_REPORTED);
    let due: HashMap<&str, usize> =
        log.iter().enumerate().map(|(position, received)| (&*received.id, position)).collect();
    let is_missing = |(id, position): &(&str, usize)| match last.get(id) {
        Some(known) => known != position,
        // The deletion of an item that was never delivered may be missing.
        None => !log[*position].mark.starts_with('-'),
    };
    let mut missing: Vec<usize> = due.into_iter().filter(is_missing).map(|(_, position)| position).collect();
    missing.sort_unstable();
    if let Some(position) = missing.first() {
        let DeliveredChange { id, mark, .. } = &log[*position];
        let known = last.get(&**id).map(|position| &log[*position].mark);
        faults.push(format!(
            "{name}: {} of {} changes are missing; the first is {mark} at {}, known as {known:?}",
            missing.len(),
            log.len(),
            position + 1
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<DeliveredChange> {
        let received = |word: &str| {
            let (id, mark) = word.split_once(':').unwrap();
            DeliveredChange::new(0, id.into(), mark.into())
        };
        text.split_whitespace().map(received).collect()
    }

    #[test]
    fn missing_duplicate_and_invented_changes_are_found() {
        use DeliveryGuarantee::{Changes, Items, ItemsOnce};
        let log = list("a:1 b:2 a:3 c:4 c:-c");
        let count = |received: &str, promise| compare(&list(received), &log, 0, promise).len();
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
