//! HTTP dates: a parsed date formats to an equal second.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::format::http_date;

fuzz_target!(|text: &str| {
    if let Ok(time) = http_date::parse(text) {
        // RFC 9110, 5.6.7: three forms are read and one is written, so the texts may differ.
        assert_eq!(http_date::parse(&http_date::write(time)), Ok(time));
    }
});
