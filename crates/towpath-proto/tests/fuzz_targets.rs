//! The fuzz targets of `fuzz/`, over their seeds and over repeatable mutations of them. `cargo xtask fuzz` searches
//! with coverage; this is the short form, which needs no build of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::duplicate_mod,
    missing_docs,
    unreachable_pub,
    unused_attributes,
    dead_code
)]

// The targets import `libfuzzer_sys::fuzz_target`: here that is the macro below.
extern crate self as libfuzzer_sys;

use std::path::{Path, PathBuf};

use fastrand::Rng;

/// Mutated inputs for each target.
const MUTATIONS: usize = 2_000;

/// Longest input, in bytes, as in `cargo xtask fuzz`.
const MAX_LENGTH: usize = 65_536;

macro_rules! targets {
    ($($name:ident: $path:literal),* $(,)?) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            #[path = $path]
            mod $name;

            #[test]
            fn $name() {
                run_target(stringify!($name), $name::run);
            }
        )*
    };
}

targets! {
    diffdelta_follower: "../../../fuzz/fuzz_targets/diffdelta_follower.rs",
    feed_xml: "../../../fuzz/fuzz_targets/feed_xml.rs",
    history_follower: "../../../fuzz/fuzz_targets/history_follower.rs",
    html: "../../../fuzz/fuzz_targets/html.rs",
    http_date: "../../../fuzz/fuzz_targets/http_date.rs",
    hub: "../../../fuzz/fuzz_targets/hub.rs",
    jcs: "../../../fuzz/fuzz_targets/jcs.rs",
    json_feed: "../../../fuzz/fuzz_targets/json_feed.rs",
    json_pointers: "../../../fuzz/fuzz_targets/json_pointers.rs",
    line: "../../../fuzz/fuzz_targets/line.rs",
    link: "../../../fuzz/fuzz_targets/link.rs",
    multipart: "../../../fuzz/fuzz_targets/multipart.rs",
    replication_follower: "../../../fuzz/fuzz_targets/replication_follower.rs",
    risk: "../../../fuzz/fuzz_targets/risk.rs",
    smart_follower: "../../../fuzz/fuzz_targets/smart_follower.rs",
    smart_query: "../../../fuzz/fuzz_targets/smart_query.rs",
    sup: "../../../fuzz/fuzz_targets/sup.rs",
    xmpp_stream: "../../../fuzz/fuzz_targets/xmpp_stream.rs",
}

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// The files of a folder in the order of their names, so that every run has the same inputs.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    paths.sort();
    paths
}

fn run_target(name: &str, target: fn(&[u8])) {
    let seeds: Vec<Vec<u8>> = files(&fuzz_folder().join("seeds").join(name))
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    assert!(!seeds.is_empty(), "{name} has no seeds");
    for seed in &seeds {
        target(seed);
    }
    // The same inputs in every run, so that a failure stays until it is mended.
    let mut rng = Rng::with_seed(1);
    let mut input = Vec::new();
    for _ in 0..MUTATIONS {
        // A few steps away from a seed, then from what that gave: deeper than one mutation, never far from valid.
        if input.is_empty() || rng.u8(..4) == 0 {
            input.clone_from(&seeds[rng.usize(..seeds.len())]);
        }
        for _ in 0..rng.usize(1..4) {
            mutate(&mut rng, &mut input, &seeds);
        }
        input.truncate(MAX_LENGTH);
        target(&input);
    }
}

/// Changes one place of the input: a bit, a byte, a number, a piece taken out, repeated, or taken from a seed.
fn mutate(rng: &mut Rng, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let start = rng.usize(..=input.len());
    let end = (start + rng.usize(..32)).min(input.len());
    match rng.u8(..6) {
        0 if start < input.len() => input[start] ^= 1 << rng.u8(..8),
        1 if start < input.len() => {
            input[start] = *rng.choice(b"\0\n\r \"'<>&{}[]:;,-0192\x7f\xc3\xff").unwrap();
        }
        2 => drop(input.drain(start..end)),
        3 => {
            let piece = input[start..end].repeat(rng.usize(1..8));
            drop(input.splice(start..start, piece));
        }
        4 => {
            let seed = &seeds[rng.usize(..seeds.len())];
            let from = rng.usize(..=seed.len());
            let piece = seed[from..(from + rng.usize(..64)).min(seed.len())].to_vec();
            drop(input.splice(start..end, piece));
        }
        // Numbers of any size: lengths, counts and dates are where arithmetic overflows.
        _ => drop(input.splice(start..end, rng.i64(..).to_string().into_bytes())),
    }
}

#[test]
fn every_target_is_run_here() {
    let found = files(&fuzz_folder().join("fuzz_targets"));
    let found: Vec<_> = found.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    // A target missing here would run in `cargo xtask fuzz` only.
    assert_eq!(NAMES, found);
}

// Behind the targets, so that they reach it by their import.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:block) => {
        pub fn run($bytes: &[u8]) $body
    };
    (|$text:ident: &str| $body:block) => {
        pub fn run(bytes: &[u8]) {
            let Ok($text) = std::str::from_utf8(bytes) else { return };
            $body
        }
    };
}
