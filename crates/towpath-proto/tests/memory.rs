//! Memory of reading hostile documents: at most 4 times their size, or 32 MiB.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile_documents;

use bytes::Bytes;
use hostile_documents::{ATOM, EXCHANGES, documents, page, reads};
use towpath_proto::diff::{DocumentOrder, Guard, KnownItems, Listing, diff};
use towpath_proto::follow::ReadLimits;
use towpath_proto::format::json_pointers::Mapping;
use towpath_proto::format::{DocumentLimits, FormatError, ReadOptions, read};
use towpath_proto::smart::wire::Collection;
use towpath_proto::sup::wire::SupDocument;

/// Returns a field of the process's memory status, in bytes.
fn status(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Runs `work` and returns the memory that it takes at its peak.
fn peak_of(work: impl FnOnce()) -> usize {
    // Resets the peak to what is in use now.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    work();
    status("VmHWM").saturating_sub(before)
}

fn read_and_compare(text: &str, mapping: Option<&Mapping>) {
    let options = ReadOptions { mapping, ..ReadOptions::default() };
    if let Ok(feed) = read(text.as_bytes(), &options) {
        let _ = diff(
            &KnownItems::new(),
            feed.items,
            DocumentOrder::NewestFirst,
            Listing::Window,
            Guard::default(),
        );
    }
}

#[test]
fn limits_hold_and_are_named() {
    reading_takes_at_most_four_times_the_document();
    following_and_checking_take_no_more();
    each_limit_is_named_in_its_error();
}

fn reading_takes_at_most_four_times_the_document() {
    let mapping = Mapping { id: "/id".into(), ..Mapping::default() };
    let mut failures = Vec::new();
    let allowed = DocumentLimits::default().memory;
    for (name, text) in documents(2 << 20) {
        let ways: [(&str, &dyn Fn()); 4] = [
            ("a feed", &|| read_and_compare(&text, None)),
            ("mapped JSON", &|| read_and_compare(&text, Some(&mapping))),
            ("a collection", &|| drop(Collection::from_json(text.as_bytes()))),
            ("a SUP document", &|| drop(SupDocument::parse(text.as_bytes()))),
        ];
        let applicable = if text.starts_with('<') { 1 } else { ways.len() };
        for (way, work) in &ways[..applicable] {
            // The document itself is part of the memory. The allocator rounds up.
            let peak = peak_of(work) + text.len();
            if peak > allowed + (4 << 20) {
                failures.push(format!("{name} as {way}: {} MiB", peak >> 20));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Every request of a follower or a check gets the document, so some hold two of them at once.
fn following_and_checking_take_no_more() {
    let mut failures = Vec::new();
    // Less than the default, so that the documents can be smaller and the test quicker.
    let (size, allowed) = (768 << 10, 8 << 20);
    let document = DocumentLimits { memory: allowed, ..DocumentLimits::default() };
    let limits = ReadLimits { document, ..ReadLimits::default() };
    let mut documents = documents(size);
    documents.push(("entities of Data Replication", page(size)));
    for (name, text) in documents {
        let body = Bytes::from(text);
        for (way, work) in EXCHANGES.into_iter().filter(|(way, _)| reads(way, &body)) {
            let peak = peak_of(|| work(&body, limits)) + body.len();
            if peak > allowed + (4 << 20) {
                failures.push(format!("{name} in {way}: {} MiB", peak >> 20));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// In one test with the other: the peak is the whole process's.
fn each_limit_is_named_in_its_error() {
    let default = DocumentLimits::default();
    let mapping = Mapping { id: "/id".into(), ..Mapping::default() };
    let json = "[{\"id\":1,\"a\":[[\"four\"]]},{\"id\":2}]";
    let atom =
        format!("{ATOM}<entry><id>abc</id><x><y z='1' w='2'/></x></entry><entry><id>b</id></entry></feed>");
    let name = |limits: DocumentLimits, text: &str| {
        let options = ReadOptions { mapping: Some(&mapping), limits, ..ReadOptions::default() };
        match read(text.as_bytes(), &options) {
            Err(FormatError::Limit(reason)) => reason,
            other => format!("{other:?}"),
        }
    };
    for text in [json, &atom] {
        let refused = [
            (DocumentLimits { items: 1, ..default }, "(limit: items)"),
            (DocumentLimits { depth: 2, ..default }, "(limit: depth)"),
            (DocumentLimits { members: 1, ..default }, "(limit: members)"),
            (DocumentLimits { string: 2, ..default }, "(limit: string_mib)"),
            (DocumentLimits { memory: 0, ..default }, "(limit: memory_mib)"),
        ];
        for (limits, expected) in refused {
            let reason = name(limits, text);
            assert!(reason.contains(expected), "{expected} of {text}: {reason}");
        }
        let options = ReadOptions { mapping: Some(&mapping), ..ReadOptions::default() };
        assert_eq!(read(text.as_bytes(), &options).unwrap().items.len(), 2);
    }
}
