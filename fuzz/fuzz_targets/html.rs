//! HTML: an excerpt is within its limit, and its white space is collapsed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::format::html;

fuzz_target!(|text: &str| {
    let whole = html::to_text(text, usize::MAX);
    assert!(!whole.contains(['\n', '\t']) && !whole.contains("  "), "{whole:?}");
    assert_eq!(whole.trim_matches(' '), whole);
    for max in [0, 1, 10, 100] {
        let excerpt = html::to_text(text, max);
        assert!(excerpt.chars().count() <= max, "{max}: {excerpt:?}");
    }
    html::content(text);
});
