//! HTML: an excerpt is within its limit, and its white space is collapsed. Any page is read or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::format::{Format, HtmlMapping, ReadOptions, html, read};

fuzz_target!(|text: &str| {
    let whole = html::to_text(text, usize::MAX);
    assert!(!whole.contains(['\n', '\t']) && !whole.contains("  "), "{whole:?}");
    assert_eq!(whole.trim_matches(' '), whole);
    for max in [0, 1, 10, 100] {
        let excerpt = html::to_text(text, max);
        assert!(excerpt.chars().count() <= max, "{max}: {excerpt:?}");
    }
    html::content(text);
    let mapping = HtmlMapping { items: "a, li, :not(p) > *".into(), ..HtmlMapping::default() };
    let options = ReadOptions { format: Some(Format::Html), html: Some(&mapping), ..ReadOptions::default() };
    let _ = read(text.as_bytes(), &options);
});
