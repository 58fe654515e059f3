//! Dates of header fields: one that was read can be written and is the same second.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::format::http_date;

fuzz_target!(|text: &str| {
    if let Ok(time) = http_date::parse(text) {
        assert_eq!(http_date::parse(&http_date::write(time)), Ok(time));
    }
});
