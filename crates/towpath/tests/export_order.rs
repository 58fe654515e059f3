//! Write order of an export: at every moment every link of the tree resolves, also when an export is interrupted
//! anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use towpath::config::Config;
use towpath::document::cors::CorsPolicy;
use towpath::engine::Engine;
use towpath::engine::roles::Lease;
use towpath::export::target::{Target, TargetError};
use towpath::export::{ExportError, ExportedFeeds, Tree, TreeDocument, name_of};
use towpath::protocols::replication::snapshot;
use towpath::protocols::{diffdelta, pages};
use towpath_proto::{Content, FeedId, Item, NewChange};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, Store};

const BASE: &str = "https://tree.example/base";
const CONFIG: &str = "
[[feed]]
id = \"f0\"
page_items = 3
[[feed]]
id = \"f1\"
page_items = 2
snapshots = { keep = 1 }
[[feed]]
id = \"f2\"
page_items = 2
retention = { bytes = 2500, grace = \"1s\" }
[[feed]]
id = \"f3\"
complete = true
[[feed]]
id = \"f4\"
page_items = 20
recent_items = 8
";

/// A document's body, and the paths that it links to.
struct Put {
    document: TreeDocument,
    links: BTreeSet<String>,
}

/// Number at the end of a path.
fn number(path: &str) -> Option<u64> {
    path.rsplit('/').next()?.parse().ok()
}

/// Export target that checks all links after every write, and fails after a given number of writes.
#[derive(Default)]
struct Recorder {
    tree: Mutex<BTreeMap<String, Put>>,
    left: Mutex<Option<u64>>,
}

impl Recorder {
    fn step(&self) -> Result<(), TargetError> {
        let mut left = self.left.lock();
        match left.as_mut() {
            Some(0) => Err(TargetError::Storage { address: "here".into(), reason: "cut off".into() }),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Follows every link from the entry points.
    fn check(&self, after: &str) {
        let tree = self.tree.lock();
        // A feed that no list names yet cannot be found by a reader.
        let listed = tree
            .get("/feeds")
            .map(|list| String::from_utf8_lossy(&list.document.body).into_owned())
            .unwrap_or_default();
        let begins = |path: &&String| {
            let feed = path.split('/').find(|part| part.len() == 2 && part.starts_with('f'));
            let is_known = feed.is_none_or(|feed| listed.contains(&format!("/feeds/{feed}\"")));
            let ends = ["/head.json", "/replication", "/atom", "/rss", "/feed.json", "/snapshots/latest"];
            let around = ["/feeds", "/diff/sources.json", "/sup.json", "/.well-known/diffdelta.json"];
            is_known && ends.iter().any(|end| path.ends_with(end)) || around.contains(&path.as_str())
        };
        let mut open: Vec<&String> = tree.keys().filter(begins).collect();
        let mut seen: BTreeSet<&String> = open.iter().copied().collect();
        while let Some(path) = open.pop() {
            for link in &tree[path].links {
                // Immutable documents still link to pages that retention removed, as on a server.
                let is_let_go = path.starts_with("/feeds/f2/") && number(link) < number(path);
                if is_let_go && !path.contains("/replication") && !tree.contains_key(link) {
                    continue;
                }
                assert!(tree.contains_key(link), "after {after}: {path} leads to {link}, which is not there");
                if seen.insert(link) {
                    open.push(link);
                }
            }
        }
    }
}

/// Paths that a document and its headers link to.
fn links(document: &TreeDocument) -> BTreeSet<String> {
    let body = String::from_utf8_lossy(&document.body);
    let text = match document.header("content-type").unwrap_or_default().starts_with("multipart/") {
        true => document.links().unwrap_or_default(),
        false => format!("{body} {}", document.links().unwrap_or_default()),
    };
    let mut found = BTreeSet::new();
    for start in [BASE, "\"/base"] {
        for (at, _) in text.match_indices(start) {
            let rest = &text[at + start.len()..];
            let end = rest.find(['"', '\'', '<', '>', '#', ' ', '{']).unwrap_or(rest.len());
            let path = rest[..end].to_owned();
            // An item's own address is on the server; immutable documents contain it.
            if path.starts_with('/') && !path.contains("/items/") && path != "/diff/" && !path.ends_with("_")
            {
                found.insert(path);
            }
        }
    }
    found
}

#[async_trait]
impl Target for Recorder {
    async fn read(&self, path: &str) -> Result<Option<Bytes>, TargetError> {
        Ok(self.tree.lock().get(path).map(|put| put.document.body.clone()))
    }

    async fn put(&self, document: &TreeDocument) -> Result<u64, TargetError> {
        self.step()?;
        // Gives the export's other writes the chance to come first.
        tokio::task::yield_now().await;
        let put = Put { document: document.clone(), links: links(document) };
        self.tree.lock().insert(document.path.clone(), put);
        self.check(&format!("putting {}", document.path));
        Ok(document.body.len() as u64)
    }

    async fn create(&self, document: &TreeDocument) -> Result<bool, TargetError> {
        let is_new = !self.tree.lock().contains_key(&document.path);
        if is_new {
            self.put(document).await?;
        }
        Ok(is_new)
    }

    async fn take_over(&self) -> Result<(), TargetError> {
        Ok(())
    }

    async fn remove(&self, path: &str) -> Result<(), TargetError> {
        self.step()?;
        self.tree.lock().remove(path);
        self.check(&format!("removing {path}"));
        Ok(())
    }

    async fn sync(&self) -> Result<(), TargetError> {
        Ok(())
    }

    fn configuration(&self, _base_url: &str, _cors: &CorsPolicy) -> Vec<TreeDocument> {
        Vec::new()
    }
}

async fn open(engine: &Engine, recorder: &Arc<Recorder>) -> Result<Tree, ExportError> {
    let name = name_of(recorder.as_ref()).await?;
    Tree::open(engine, recorder.clone(), &name, BASE, Lease::alone("export")).await
}

async fn append(engine: &Engine, feed: &str, count: u32) {
    let item = |_| {
        let mut item = Item::new(format!("i{}", fastrand::u32(..20)));
        item.title = Some(format!("title {}", fastrand::u64(..)));
        item.content = Some(Content::new("text/plain", "x".repeat(fastrand::usize(..200)).into_bytes()));
        NewChange::put(item)
    };
    let feed = FeedId::new(feed).unwrap();
    engine.store.append(&feed, Expected::Any, (0..count).map(item).collect()).await.unwrap();
}

/// Documents without the parts that differ between two exports of the same feeds: creation times and earlier SUP
/// windows.
fn comparable(recorder: &Recorder) -> BTreeMap<String, (Bytes, Option<String>)> {
    let tree = recorder.tree.lock();
    let kept = tree.iter().filter(|(path, _)| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let is_window = name
            .split_once('-')
            .is_some_and(|(first, last)| (first.to_owned() + last).bytes().all(|b| b.is_ascii_digit()));
        let has_times = ["/sup", "/healthz", "/diff/sources.json", "/.well-known", "/.towpath"];
        !is_window
            && !has_times.iter().any(|start| path.starts_with(start))
            && !matches!(path.as_str(), "/diff/latest.json" | "/diff/head.json")
    });
    kept.map(|(path, put)| (path.clone(), (put.document.body.clone(), put.document.links()))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reader_ever_finds_a_broken_link() {
    let seed = std::env::var("TOWPATH_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    println!("TOWPATH_SEED={seed}");
    fastrand::seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let config = Config::parse(CONFIG, Path::new("towpath.toml")).unwrap();
    let store = EmbeddedStore::open(folder.path().join("data"), EmbeddedOptions::default()).unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let engine = towpath::protocols::start(config, store).await.unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let retention = tokio::spawn(pages::run(engine.clone(), Lease::alone("upkeep"), stopped));
    let recorder = Arc::new(Recorder::default());
    let (mut cut, mut through) = (0, 0);
    for round in 0..40 {
        for _ in 0..fastrand::u32(..4) {
            append(&engine, &format!("f{}", fastrand::u32(..5)), fastrand::u32(1..5)).await;
        }
        if fastrand::u32(..4) == 0 {
            let feed = engine.feed(["f0", "f1"][fastrand::usize(..2)]).unwrap();
            if engine.store.head(feed.id()).await.unwrap().seq > 0 {
                snapshot::make(&engine, &feed, Vec::new()).await.unwrap();
            }
        }
        diffdelta::publish_pending(&engine, diffdelta::HeldRole::Await).await.unwrap();
        // Two of three exports break off after a random number of writes.
        *recorder.left.lock() = (round % 3 != 2).then(|| fastrand::u64(1..80));
        let exported = async {
            let tree = open(&engine, &recorder).await?;
            tree.export(ExportedFeeds::All).await
        };
        match exported.await {
            Ok(summary) if summary.failed.is_empty() => through += 1,
            Ok(_) => {}
            Err(_) => cut += 1,
        }
    }
    assert!(cut > 5 && through > 5, "{cut} cut off, {through} not");
    stop.send(true).unwrap();
    retention.await.unwrap();
    *recorder.left.lock() = None;
    let last = open(&engine, &recorder).await.unwrap();
    assert_eq!(last.export(ExportedFeeds::All).await.unwrap().failed, [""; 0]);
    let written = last.export(ExportedFeeds::All).await.unwrap().written;
    assert_eq!(written, 0, "nothing is new");
    // One complete export gives the same tree as many interrupted ones.
    let fresh = Arc::new(Recorder::default());
    let once = open(&engine, &fresh).await.unwrap();
    once.export(ExportedFeeds::All).await.unwrap();
    let (many, one) = (comparable(&recorder), comparable(&fresh));
    assert_eq!(many.keys().collect::<Vec<_>>(), one.keys().collect::<Vec<_>>());
    for (path, document) in &many {
        assert_eq!(document, &one[path], "{path}");
    }
    engine.store.close().await;
}
