//! Mapped JSON: the bytes of the first line select the pointers, the rest is the document.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::format::json_pointers::Mapping;
use towpath_proto::format::{Format, ReadOptions, read};

fuzz_target!(|bytes: &[u8]| {
    let Some(end) = bytes.iter().position(|b| *b == b'\n') else { return };
    let (mapping, document) = bytes.split_at(end);
    // Each byte selects the pointer of a field from a small set.
    let pointers = ["", "/", "/a", "/a/0", "/id", "https://x/{/id}", "{", "{/a}}"];
    let pointer =
        |n: usize| pointers[usize::from(mapping.get(n).copied().unwrap_or(0)) % pointers.len()].to_owned();
    let mapping = Mapping {
        items: pointer(0),
        id: pointer(1),
        url: Some(pointer(2)),
        title: Some(pointer(3)),
        content: Some(pointer(4)),
        authors: Some(pointer(5)),
        tags: Some(pointer(6)),
        published: Some(pointer(7)),
        ..Mapping::default()
    };
    let options =
        ReadOptions { format: Some(Format::Json), mapping: Some(&mapping), ..ReadOptions::default() };
    let _ = read(document, &options);
});
