//! Performance tests with hostile texts: all parsers must take linear time.

use std::time::{Duration, Instant};

use towpath_proto::Item;
use towpath_proto::format::html;
use towpath_proto::risk::Scorer;

/// Time limit of each test. A quadratic step on this input takes minutes; the limit allows for slow machines
/// and debug builds.
const BOUND: Duration = Duration::from_secs(20);

const MARKUP: [&str; 22] = [
    "<",
    "<<a",
    "<a ",
    "</",
    "<!--",
    "<!",
    "&",
    "&#",
    "&amp",
    "<div>",
    "<template>",
    "<a href='",
    "<a a=1 b=2 c=3>",
    "<script>",
    "<p hidden>",
    "<a x",
    "]]>",
    "<![CDATA[",
    "\0",
    "<!doctype ",
    "<b style=display:none>x",
    "<a href=http://a.b/>c.d",
];

/// Beginnings of the patterns, with the text that they allow in between.
const NEARLY: [&str; 16] = [
    "ignore all previous ",
    "you are now a a a ",
    "send your a ",
    "a ",
    "a",
    "ä ",
    "http://",
    "http://a@",
    "curl ",
    "powershell -",
    "xn--",
    "http://xn--a.b/",
    "QUJD",
    "\u{200b}a",
    "\u{202e}\u{e0041}",
    "verify your a your ",
];

/// Repeats the piece up to a quarter of a megabyte.
fn much(piece: &str) -> String {
    piece.repeat((1 << 18) / piece.len())
}

fn within_bound(text: &str, work: impl FnOnce(&str)) {
    let begun = Instant::now();
    work(text);
    let start: String = text.chars().take(30).collect();
    println!("{:?} for {start:?}", begun.elapsed());
    assert!(begun.elapsed() < BOUND, "{:?} for {start:?}", begun.elapsed());
}

#[test]
fn html_excerpts_and_surveys() {
    for piece in MARKUP {
        within_bound(&much(piece), |text| {
            html::to_text(text, 500);
            let all = html::to_text(text, usize::MAX);
            assert!(all.len() <= text.len() * 3);
            html::content(text);
        });
    }
}

#[test]
fn risk_scores() {
    let scorer = Scorer::default();
    for piece in MARKUP.into_iter().chain(NEARLY) {
        let item = Item { summary: Some(much(piece)), ..Item::new("a") };
        within_bound(piece, |_| drop(scorer.score(&item)));
    }
}
