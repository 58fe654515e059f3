//! Time of reading hostile documents of four sizes, each twice the one before. Every reader must take linear time.
//!
//! `cargo bench -p towpath-proto --bench hostile -- [WORDS]` measures the pairs of document and reader whose names have
//! all the words, and fails if one of them is not linear. Each time is the least of several, taken in turns: what else the
//! machine does makes single times longer, never shorter.
//!
//! `… -- --once KIB WORDS` reads once, for a tool that counts instructions: `valgrind --tool=cachegrind`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may fail by panicking")]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use towpath_proto::follow::ReadLimits;
use towpath_proto::format::{ReadOptions, read};

#[path = "../tests/hostile_documents/mod.rs"]
mod hostile_documents;

/// Size of the smallest documents, in KiB.
const SMALLEST: usize = 128;
/// Number of sizes.
const SIZES: usize = 4;
/// Growth from the smallest size to the largest that still counts as linear: a quadratic step would give 64, and the
/// power 1.5 would give 23. Larger documents leave the caches, so 8 is not kept to exactly.
const MOST: f64 = 16.0;
/// Rounds of all pairs, and of those that seem not to be linear.
const ROUNDS: (usize, usize) = (3, 15);
/// Shortest time that is measured. Quicker readers are run again and again for so long.
const LEAST: Duration = Duration::from_millis(1);

/// A document's kind, and what reads it: a follower, a check, or the parser alone.
struct HostilePair {
    document: &'static str,
    reader: &'static str,
    work: Option<hostile_documents::Work>,
}

impl HostilePair {
    fn name(&self) -> String {
        format!("{} in {}", self.document, self.reader)
    }

    fn read(&self, body: &Bytes) {
        match self.work {
            Some(work) => work(black_box(body), ReadLimits::default()),
            None => drop(black_box(read(black_box(body), &ReadOptions::default()))),
        }
    }

    /// Returns the least time of a few runs.
    fn time(&self, body: &Bytes) -> Duration {
        let (start, mut runs) = (Instant::now(), 0);
        while runs == 0 || start.elapsed() < LEAST {
            self.read(body);
            runs += 1;
        }
        start.elapsed() / runs
    }
}

/// Returns the documents of a size.
fn documents(kib: usize) -> Vec<(&'static str, Bytes)> {
    let size = kib << 10;
    let mut documents = hostile_documents::documents(size);
    documents.push(("entities of Data Replication", hostile_documents::page(size)));
    documents.into_iter().map(|(name, text)| (name, Bytes::from(text))).collect()
}

fn pairs(words: &[String]) -> Vec<HostilePair> {
    let mut pairs = Vec::new();
    for (document, body) in documents(1) {
        let exchanges = hostile_documents::EXCHANGES.into_iter();
        let read = exchanges.filter(|(reader, _)| hostile_documents::reads(reader, &body));
        pairs.extend(read.map(|(reader, work)| HostilePair { document, reader, work: Some(work) }));
        if body.first() != Some(&b'-') {
            pairs.push(HostilePair { document, reader: "the parser", work: None });
        }
    }
    pairs.retain(|pair| words.iter().all(|word| pair.name().contains(word.as_str())));
    pairs
}

fn main() -> ExitCode {
    // Cargo adds this one.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [once, kib, words @ ..] = arguments.as_slice()
        && once == "--once"
    {
        read_once(kib.parse().unwrap(), words);
        return ExitCode::SUCCESS;
    }
    let bodies: Vec<_> = (0..SIZES).map(|step| documents(SMALLEST << step)).collect();
    let mut worst: Vec<(f64, String)> =
        pairs(&arguments).iter().map(|pair| (growth(pair, &bodies), pair.name())).collect();
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    let failed = worst.iter().filter(|(growth, _)| *growth > MOST).count();
    println!(
        "{} pairs; {} times the size takes, at most, so many times the time:",
        worst.len(),
        1 << (SIZES - 1)
    );
    for (growth, name) in worst.iter().take(failed.max(10)) {
        println!("{growth:6.1}  {name}");
    }
    if failed > 0 {
        println!("{failed} pairs are not linear");
    }
    ExitCode::from(u8::from(failed > 0))
}

fn read_once(kib: usize, words: &[String]) {
    let documents = documents(kib);
    for pair in pairs(words) {
        let (_, body) = documents.iter().find(|(name, _)| *name == pair.document).unwrap();
        pair.read(body);
    }
}

/// Returns by how much the time grows from the smallest document to the largest.
fn growth(pair: &HostilePair, bodies: &[Vec<(&'static str, Bytes)>]) -> f64 {
    let bodies: Vec<&Bytes> = bodies
        .iter()
        .map(|of_size| &of_size.iter().find(|(name, _)| *name == pair.document).unwrap().1)
        .collect();
    let mut least = vec![Duration::MAX; bodies.len()];
    for round in 0..ROUNDS.1 {
        for (least, body) in least.iter_mut().zip(&bodies) {
            *least = pair.time(body).min(*least);
        }
        if round >= ROUNDS.0 && ratio(&least) <= MOST {
            break;
        }
    }
    ratio(&least)
}

fn ratio(times: &[Duration]) -> f64 {
    times[times.len() - 1].as_secs_f64() / times[0].as_secs_f64().max(1e-9)
}
