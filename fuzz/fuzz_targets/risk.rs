//! Risk score of an item with a text in each line.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use towpath_proto::risk::{MAX_REASONS, Scorer};
use towpath_proto::{Content, Item};

static SCORER: LazyLock<Scorer> = LazyLock::new(Scorer::default);

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(4, '\n').map(str::to_owned);
    let (title, url, summary) = (lines.next(), lines.next(), lines.next());
    let content = lines.next().map(|content| Content::new("text/html", content));
    let risk = SCORER.score(&Item { title, url, summary, content, ..Item::new("a") });
    assert!((0.0..=1.0).contains(&risk.score), "{risk:?}");
    assert!(risk.reasons.len() <= MAX_REASONS && risk.reasons.is_sorted(), "{risk:?}");
    // A score without a reason could not be explained to a reader.
    assert_eq!(risk.score == 0.0, risk.reasons.is_empty(), "{risk:?}");
});
