//! Canonical JSON: what is canonical stays as it is, and is still JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use towpath_proto::diffdelta::{Cursor, prove};
use towpath_proto::format::jcs::{Style, canonical, canonical_without};

fuzz_target!(|bytes: &[u8]| {
    for style in [Style::Jcs, Style::Python] {
        let Ok(text) = canonical(bytes, style) else { continue };
        // Python writes what is beyond a double as `Infinity`, which it alone reads again.
        if style == Style::Python && text.windows(8).any(|window| window == b"Infinity") {
            continue;
        }
        // JCS writes 1e20 as an integer, and an integer beyond 2^53 is none that JCS reads.
        assert!(canonical(&text, style).map_or(style == Style::Jcs, |again| again == text));
        serde_json::from_slice::<IgnoredAny>(&text).expect("JSON");
        canonical_without(bytes, style, &["cursor"]).expect("it has a canonical form");
    }
    let _ = prove(bytes, &Cursor::of(bytes).hex());
});
