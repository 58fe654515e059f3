//! Memory of reading hostile documents: at most 4 times their size, or 32 MiB.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use towpath_proto::diff::{Guard, KnownItems, Listing, diff};
use towpath_proto::format::json_pointers::Mapping;
use towpath_proto::format::{DocumentLimits, FormatError, ReadOptions, read};
use towpath_proto::smart::wire::Collection;
use towpath_proto::sup::wire::SupDocument;

const ATOM: &str =
    "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:at='http://purl.org/atompub/tombstones/1.0'>";

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

fn repeated(before: &str, each: &str, after: &str, size: usize) -> String {
    let mut text = String::with_capacity(size + before.len() + after.len() + each.len());
    text.push_str(before);
    while text.len() < size {
        text.push_str(each);
    }
    text.push_str(after);
    text
}

/// Documents that hold many small parts.
fn documents(size: usize) -> Vec<(&'static str, String)> {
    let json =
        |each| repeated("{\"version\":\"https://jsonfeed.org/version/1\",\"items\":[", each, "1]}", size);
    let one = |each| repeated("{\"items\":[{\"id\":1,\"x\":[", each, "1]}]}", size);
    let entry = |each| repeated(&format!("{ATOM}<entry><id>a</id>"), each, "</entry></feed>", size);
    vec![
        ("items of a JSON list", repeated("[", "{\"id\":1},", "{\"id\":1}]", size)),
        ("items of a JSON object", repeated("{", "\"a\":{\"id\":1},", "\"a\":1}", size)),
        ("no items", repeated("[", "1,", "1]", size)),
        ("items of a JSON Feed", json("{\"id\":1},")),
        ("no objects in a JSON Feed", json("1,")),
        ("members of a JSON Feed", repeated("{\"items\":[],\"x\":[", "1,", "1]}", size)),
        ("values of one item", one("0,")),
        ("objects of one item", one("{},")),
        ("objects of one item with members", one("{\"a\":0},")),
        ("nested arrays of one item", one("[[[[0]]]],")),
        ("tags", repeated("{\"items\":[{\"id\":1,\"tags\":[", "\"\",", "\"\"]}]}", size)),
        ("Atom entries", repeated(ATOM, "<entry><id>a</id></entry>", "</feed>", size)),
        ("Atom elements", entry("<b/>")),
        ("Atom categories", entry("<category term='a'/>")),
        ("Atom authors", entry("<author><name>a</name></author>")),
        ("Atom links", repeated(ATOM, "<link href=''/>", "</feed>", size)),
        ("Atom tombstones", repeated(ATOM, "<at:deleted-entry ref='a'/>", "</feed>", size)),
        ("control characters", repeated(&format!("{ATOM}<title>"), "\u{1}", "</title></feed>", size)),
        ("RSS items", repeated("<rss><channel>", "<item><guid>a</guid></item>", "</channel></rss>", size)),
        (
            "RSS categories",
            repeated("<rss><channel><item>", "<category>a</category>", "</item></channel></rss>", size),
        ),
    ]
}

fn read_and_compare(text: &str, mapping: Option<&Mapping>) {
    let options = ReadOptions { mapping, ..ReadOptions::default() };
    if let Ok(feed) = read(text.as_bytes(), &options) {
        let _ = diff(&KnownItems::new(), feed.items, true, Listing::Window, Guard::default());
    }
}

#[test]
fn limits_hold_and_are_named() {
    reading_takes_at_most_four_times_the_document();
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
            (DocumentLimits { string: 2, ..default }, "(limit: string)"),
            (DocumentLimits { memory: 0, ..default }, "(limit: memory)"),
        ];
        for (limits, expected) in refused {
            let reason = name(limits, text);
            assert!(reason.contains(expected), "{expected} of {text}: {reason}");
        }
        let options = ReadOptions { mapping: Some(&mapping), ..ReadOptions::default() };
        assert_eq!(read(text.as_bytes(), &options).unwrap().items.len(), 2);
    }
}
