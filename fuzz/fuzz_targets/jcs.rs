//! Canonical JSON: canonical text is stable, and is valid JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use towpath_proto::diffdelta::{Cursor, prove};
use towpath_proto::format::jcs::{Style, canonical, canonical_without};

fuzz_target!(|bytes: &[u8]| {
    for style in [Style::Jcs, Style::Python] {
        let Ok(text) = canonical(bytes, style) else { continue };
        // Python writes numbers beyond a double as `Infinity`, which only Python parses.
        if style == Style::Python && text.windows(8).any(|window| window == b"Infinity") {
            continue;
        }
        // JCS writes 1e20 as an integer, and refuses to parse integers beyond 2^53.
        assert!(canonical(&text, style).map_or(style == Style::Jcs, |again| again == text));
        serde_json::from_slice::<IgnoredAny>(&text).expect("JSON");
        canonical_without(bytes, style, &["cursor"]).expect("it has a canonical form");
    }
    let _ = prove(bytes, &Cursor::of(bytes).hex());
});
