//! Queries, position specs and cursors of Smart Feeds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::smart::cursor::{self, ParsedCursor, LogTag};
use towpath_proto::smart::query::{PullLimits, PullQuery};
use towpath_proto::smart::spec::OrderBy;
use towpath_proto::smart::spec::PositionSpec;

fuzz_target!(|text: &str| {
    let limits = PullLimits::default();
    if let Ok(query) = PullQuery::parse(text, &limits) {
        assert!(query.max <= limits.max_items && query.timeout <= limits.max_timeout, "{query:?}");
    }
    if let Ok(spec) = PositionSpec::parse(text) {
        let again = PositionSpec::parse(&spec.to_string());
        assert!(again.is_ok(), "{spec:?}: {again:?}");
    }
    let tag = LogTag::new("a");
    for by in [OrderBy::Created, OrderBy::Modified] {
        // A cursor that this log gave out reads as what it is; no other text does.
        if let Some(ParsedCursor::Sequence(seq)) = cursor::read(text, &tag, by) {
            assert_eq!(tag.cursor(by, seq), text);
        }
        let seq = text.len() as u64;
        assert_eq!(cursor::read(&tag.cursor(by, seq), &tag, by), Some(ParsedCursor::Sequence(seq)));
    }
});
