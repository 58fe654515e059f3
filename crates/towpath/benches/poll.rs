//! Cost of a poll of a catalogue of 1,400 items, by step: parse, diff, append, publish.
//!
//! Prints milliseconds (medians) and each step's share: for a byte-identical document, for one changed item, and for
//! the first document.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use towpath::config::Config;
use towpath::engine::Engine;
use towpath::protocols::diffdelta::{Run, publish};
use towpath_proto::diff::{DocumentOrder, Guard, Listing, diff};
use towpath_proto::format::{self, Format, ReadOptions, json_pointers::Mapping};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, Store};

const ITEMS: usize = 1400;
// Odd, so that the median is a measured value.
const ROUNDS: usize = 15;

const CONFIG: &str = "
[[feed]]
id = \"kev\"
[feed.source]
url = \"unused\"
complete = true
";

type PollBenchError = Box<dyn std::error::Error>;

fn main() -> Result<(), PollBenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(bench())
}

async fn bench() -> Result<(), PollBenchError> {
    let folder = tempfile::tempdir()?;
    let config = Config::parse(CONFIG, &folder.path().join("towpath.toml"))?;
    let store: Arc<dyn Store> =
        Arc::new(EmbeddedStore::open(folder.path().join("data"), EmbeddedOptions::default())?);
    let engine = towpath::protocols::start(config, store).await?;
    // The first poll appends every item, so it is no sample of the later ones.
    let first = poll(&engine, &catalogue(0)).await?;
    let mut steps = Vec::new();
    let mut same = Vec::new();
    for round in 1..=ROUNDS {
        let document = catalogue(round);
        steps.push(poll(&engine, &document).await?);
        same.push(unchanged(&engine, &document).await?);
    }
    println!("{ITEMS} items, {} kB, medians of {ROUNDS} rounds", catalogue(0).len() / 1000);
    first.print("first poll");
    Steps::median(&steps).print("one item changed");
    same.sort();
    println!("the same bytes: {:.2} ms (hash, carry)", ms(same[ROUNDS / 2]));
    Ok(())
}

/// Durations of one poll's steps.
#[derive(Debug, Clone, Copy)]
struct Steps {
    parse: Duration,
    diff: Duration,
    append: Duration,
    publish: Duration,
}

async fn poll(engine: &Arc<Engine>, document: &[u8]) -> Result<Steps, PollBenchError> {
    let feed = engine.feed("kev").ok_or("no feed")?;
    let mapping = Mapping {
        items: "/vulnerabilities".into(),
        id: "/cveID".into(),
        title: Some("/vulnerabilityName".into()),
        summary: Some("/shortDescription".into()),
        published: Some("/dateAdded".into()),
        ..Mapping::default()
    };
    let options =
        ReadOptions { format: Some(Format::Json), mapping: Some(&mapping), ..ReadOptions::default() };
    let begun = Instant::now();
    let parsed = format::read(document, &options)?;
    let parse = begun.elapsed();
    let begun = Instant::now();
    let known = engine.store.content_hashes(feed.id(), None).await?;
    let found = diff(&known, parsed.items, DocumentOrder::OldestFirst, Listing::Complete, Guard::default())?;
    let diff = begun.elapsed();
    let begun = Instant::now();
    // Without the poll's precondition: nothing else appends here.
    engine.store.append(feed.id(), Expected::Any, found.changes).await?;
    let append = begun.elapsed();
    let begun = Instant::now();
    publish(engine, &feed, Run::Polled).await?;
    Ok(Steps { parse, diff, append, publish: begun.elapsed() })
}

/// Polls the same bytes again: hashed, found unchanged, carried.
async fn unchanged(engine: &Arc<Engine>, document: &[u8]) -> Result<Duration, PollBenchError> {
    let feed = engine.feed("kev").ok_or("no feed")?;
    let begun = Instant::now();
    // A poll of unchanged bytes stops at their hash: they are not even parsed.
    std::hint::black_box(Sha256::digest(document));
    publish(engine, &feed, Run::Polled).await?;
    Ok(begun.elapsed())
}

/// Catalogue in which one item contains the round's number.
fn catalogue(round: usize) -> Vec<u8> {
    let text =
        "An unspecified component allows a remote, unauthenticated attacker to execute commands. ".repeat(3);
    let item = |n: usize| -> Value {
        let note = if n == 700 { round } else { 0 };
        json!({
            "cveID": format!("CVE-2025-{n:05}"), "vendorProject": "Example", "product": format!("Product {n}"),
            "vulnerabilityName": format!("Example Product {n} Vulnerability"), "dateAdded": "2025-01-24",
            "shortDescription": text, "requiredAction": "Apply mitigations per vendor instructions.",
            "dueDate": "2025-02-14", "notes": format!("https://example.com/{n}/{note}"), "cwes": ["CWE-502"],
        })
    };
    let items: Vec<Value> = (0..ITEMS).map(item).collect();
    json!({ "title": "Catalogue", "count": ITEMS, "vulnerabilities": items }).to_string().into_bytes()
}

impl Steps {
    fn all(&self) -> [(&'static str, Duration); 4] {
        [("parse", self.parse), ("diff", self.diff), ("append", self.append), ("publish", self.publish)]
    }

    fn median(all: &[Self]) -> Self {
        let median = |pick: fn(&Self) -> Duration| {
            let mut values: Vec<Duration> = all.iter().map(pick).collect();
            values.sort();
            values[values.len() / 2]
        };
        Self {
            parse: median(|s| s.parse),
            diff: median(|s| s.diff),
            append: median(|s| s.append),
            publish: median(|s| s.publish),
        }
    }

    fn print(&self, name: &str) {
        let total: Duration = self.all().iter().map(|(_, took)| *took).sum();
        let share = |took: Duration| 100.0 * took.as_secs_f64() / total.as_secs_f64();
        let shown: Vec<String> = self
            .all()
            .iter()
            .map(|(step, took)| format!("{step} {:.2} ms ({:.0}%)", ms(*took), share(*took)))
            .collect();
        let times = total.as_secs_f64() / self.parse.as_secs_f64();
        println!("{name}: {:.2} ms, {times:.1} times parsing: {}", ms(total), shown.join(", "));
    }
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}
