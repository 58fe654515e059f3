//! Queries, position specs and cursors of Smart Feeds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::smart::cursor::{self, Cursor, LogTag};
use towpath_proto::smart::query::{Limits, PullQuery};
use towpath_proto::smart::spec::By;
use towpath_proto::smart::spec::Spec;

fuzz_target!(|text: &str| {
    let limits = Limits::default();
    if let Ok(query) = PullQuery::parse(text, &limits) {
        assert!(query.max <= limits.max_items && query.timeout <= limits.max_timeout, "{query:?}");
    }
    if let Ok(spec) = Spec::parse(text) {
        let again = Spec::parse(&spec.to_string());
        assert!(again.is_ok(), "{spec:?}: {again:?}");
    }
    let tag = LogTag::new("a");
    for by in [By::Created, By::Modified] {
        // A cursor that this log gave out reads as what it is; no other text does.
        if let Some(Cursor::Sequence(seq)) = cursor::read(text, &tag, by) {
            assert_eq!(tag.cursor(by, seq), text);
        }
        let seq = text.len() as u64;
        assert_eq!(cursor::read(&tag.cursor(by, seq), &tag, by), Some(Cursor::Sequence(seq)));
    }
});
