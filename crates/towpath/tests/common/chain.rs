//! Reader of a feed's DiffDelta archive, which checks every link of the chain on the way.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::Value;
use sha2::{Digest, Sha256};
use towpath_proto::diffdelta::cursor::{Cursor, Proof, prove};

use super::{TestResponse, TestServer};

/// Contents of an archive: of a source's, or of `_global`'s.
pub struct ChainReader {
    name: String,
    /// The index's entries so far.
    pub listed: Vec<Value>,
    /// Live items by source and id, from their last deltas.
    pub items: BTreeMap<(String, String), Value>,
    pub cursor: String,
}

/// Numbers of items that documents report as new, updated and removed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub new: u64,
    pub updated: u64,
    pub removed: u64,
}

impl ChainReader {
    pub fn new(name: &str) -> Self {
        let cursor = Cursor::ZERO.to_string();
        Self { name: name.to_owned(), listed: Vec::new(), items: BTreeMap::new(), cursor }
    }

    /// Reads a chain from its beginning to the head.
    pub fn whole(server: &TestServer, name: &str) -> Self {
        let mut chain = Self::new(name);
        chain.read_new(server);
        chain
    }

    /// Applies the snapshots that were minted since the last call, and returns them.
    pub fn read_new(&mut self, server: &TestServer) -> Vec<Value> {
        let index = server.json(&format!("/archive/{}/index.json", self.name));
        assert_eq!(index["source_id"], self.name.as_str());
        let listed = index["snapshots"].as_array().unwrap().clone();
        let known = self.listed.len();
        assert_eq!(listed[..known], self.listed[..], "an index only grows");
        let snapshots = listed[known..].iter().map(|entry| self.step(server, entry)).collect();
        self.listed = listed;
        snapshots
    }

    fn step(&mut self, server: &TestServer, entry: &Value) -> Value {
        let url = entry["url"].as_str().unwrap();
        let path = &url[url.find("/archive/").unwrap()..];
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "a listed snapshot is there: {path}");
        assert_eq!(entry["sha256"], hex::encode(Sha256::digest(&answer.body)), "{path}");
        let snapshot = answer.json();
        for field in ["cursor", "prev_cursor", "generated_at"] {
            assert_eq!(entry[field], snapshot[field], "{path}");
        }
        assert_eq!(snapshot["prev_cursor"], self.cursor.as_str(), "the chain is unbroken at {path}");
        assert_eq!(snapshot["changed"], true, "{path}");
        let cursor = snapshot["cursor"].as_str().unwrap();
        // A follower recomputes the cursor from the served bytes and rejects any other.
        assert_eq!(prove(&answer.body, cursor), Ok(Proof::Jcs), "{path}");
        // Section 1.3.
        assert!(path.ends_with(&format!("_{}.json", &cursor["sha256:".len()..][..12])), "{path}");
        self.cursor = cursor.to_owned();
        self.apply(&snapshot);
        snapshot
    }

    fn apply(&mut self, snapshot: &Value) {
        for (bucket, items) in snapshot["buckets"].as_object().unwrap() {
            // Repeated items are those of an earlier snapshot.
            for item in items.as_array().unwrap().iter().filter(|item| item["changed_in"].is_null()) {
                let key = (item["source"].as_str().unwrap().to_owned(), id(item));
                let kind = item["change"].as_str().unwrap();
                // Flagged items have a bucket of their own, whatever their change is.
                assert!(bucket == kind || bucket == "flagged", "{kind} in {bucket}");
                let known = match kind {
                    "removed" => self.items.remove(&key),
                    _ => self.items.insert(key.clone(), item.clone()),
                };
                assert_eq!(known.is_some(), kind != "new", "{kind}: {key:?}");
            }
        }
    }

    /// Checks that `head.json` and `latest.json` agree with the end of the archive.
    pub fn check_head(&self, server: &TestServer) {
        let (head, latest) = self.pair(server);
        let head = head.json();
        assert_eq!(head["hash"], format!("sha256:{}", hex::encode(Sha256::digest(&latest.body))));
        assert_eq!(latest.header("etag"), Some(format!("\"{}\"", self.cursor).as_str()));
        let latest = latest.json();
        for document in [&head, &latest] {
            assert_eq!(document["cursor"], self.cursor.as_str(), "the head is where the archive ends");
            // Section 2.3.
            assert_eq!(document["changed"] == true, document["cursor"] != document["prev_cursor"]);
        }
        assert_eq!(head["generated_at"], latest["generated_at"]);
    }

    /// Gets the head and latest documents of the same run: a run between the two requests is waited out.
    fn pair(&self, server: &TestServer) -> (TestResponse, TestResponse) {
        let folder = if self.name == "_global" { "/diff".to_owned() } else { format!("/diff/{}", self.name) };
        for _ in 0..20 {
            let before = server.get(&format!("{folder}/head.json"));
            let latest = server.get(&format!("{folder}/latest.json"));
            let after = server.get(&format!("{folder}/head.json"));
            if before.body == after.body {
                return (before, latest);
            }
        }
        panic!("{folder} never stands still");
    }

    /// Contents of a source's live items, by id.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        self.items.iter().map(|((_, id), item)| (id.clone(), content(item))).collect()
    }
}

/// Sums of a source's counts over all snapshots.
pub fn counts(snapshots: &[Value], source: &str) -> Counts {
    let count = |name: &str| {
        let each = snapshots.iter().map(|s| s["sources"][source]["delta_counts"][name].as_u64().unwrap());
        each.sum()
    };
    Counts { new: count("new"), updated: count("updated"), removed: count("removed") }
}

/// The item's own id, which a document may shorten.
pub fn id(item: &Value) -> String {
    let own = &item["source_payload"]["id"];
    own.as_str().or(item["id"].as_str()).unwrap().to_owned()
}

/// The item's content; empty if it has none.
pub fn content(item: &Value) -> Vec<u8> {
    let payload = &item["source_payload"];
    match (payload["content_text"].as_str(), payload["content_base64"].as_str()) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, Some(text)) => base64::engine::general_purpose::STANDARD.decode(text).unwrap(),
        (None, None) => Vec::new(),
    }
}
