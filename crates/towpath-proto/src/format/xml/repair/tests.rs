//! Tests of repairs, beside the corpus of awkward documents.

use proptest::prelude::*;

use super::*;
use crate::format::{DocumentLimits, FeedDocument, ReadOptions, read};

fn repaired(text: &str) -> (String, Vec<String>) {
    let mut budget = Budget::new(text.len(), DocumentLimits::default());
    let (text, problems) = repair(text, &mut budget).unwrap();
    (text, problems.into_parts().0)
}

fn lenient(text: &str) -> Result<FeedDocument, FormatError> {
    read(text.as_bytes(), &ReadOptions { repair: true, ..ReadOptions::default() })
}

#[test]
fn each_repair_is_told_with_its_place() {
    for (text, expected, warning) in [
        ("<a>1 & 2</a>", "<a>1 &amp; 2</a>", "column 6: a bare &"),
        ("<a>AT&T;</a>", "<a>AT&amp;T;</a>", "column 6: unknown entity &T;"),
        ("<a b='x?y=1&z=2'/>", "<a b=\"x?y=1&amp;z=2\"/>", "column 12: a bare &"),
        ("<a>&#65 x</a>", "<a>&#65; x</a>", "column 4: &#65 has no semicolon"),
        ("<a>&#xZZ;</a>", "<a>&amp;#xZZ;</a>", "column 4: unknown entity"),
        ("<a>&#1;</a>", "<a>&amp;#1;</a>", "column 4: unknown entity"),
        ("<a>1 < 2</a>", "<a>1 &lt; 2</a>", "column 6: a < that begins no tag"),
        ("<a><b>x</a>", "<a><b>x</b></a>", "column 8: <b> of line 1, column 4 is not closed"),
        ("<a>x</b></a>", "<a>x</a>", "column 5: </b> without its start"),
        ("<a>x</A>", "<a>x</a>", "column 5: </A> ends <a>"),
        ("<a><b>1<i>2</b>3</i></a>", "<a><b>1<i>2</i></b>3</a>", "column 12: <i>"),
        ("<a b=c d>x</a>", "<a b=\"c\" d=\"\">x</a>", "column 1: the tag <a> is ill-formed"),
        ("<a b='1' b='2'/>", "<a b=\"1\"/>", "column 1: the tag <a>"),
        ("<a><b <c/></b></a>", "<a><b><c/></b></a>", "column 4: the tag <b>"),
        ("<a><dc:x/></a>", "<a><dc:x xmlns:dc=\"http://purl.org/dc/elements/1.1/\"/></a>", "the prefix dc:"),
        (
            "<a xmlns:b=''><b:x/></a>",
            "<a><b:x xmlns:b=\"urn:x-towpath:undeclared\"/></a>",
            "column 1: a declaration",
        ),
        (
            "<r><item><x y=\"1>2</x><z y=\"3\"/></item></r>",
            "<r><item><x y=\"1\">2</x><z y=\"3\"/></item></r>",
            "column 10: the tag <x> is ill-formed",
        ),
        (
            "<r><item><dc:x>1</x><y/></item></r>",
            "<r><item><dc:x xmlns:dc=\"http://purl.org/dc/elements/1.1/\">1</dc:x><y/></item></r>",
            "the prefix dc:",
        ),
        (
            "<r><item><x><y/></item></r>",
            "<r><item><x></x><y/></item></r>",
            "column 13: <x> of line 1, column 10",
        ),
        ("<channel><x><item/></channel>", "<channel><x></x><item/></channel>", "column 13: <x>"),
        ("<channel><x><y/><item/></x></channel>", "<channel><x></x><y/><item/></channel>", "column 13: <x>"),
        (
            "<feed><entry/>&</feed>",
            "<feed xmlns=\"http://www.w3.org/2005/Atom\"><entry/>&amp;</feed>",
            "column 1: the namespace of <feed>",
        ),
        ("<rss xmlns='u'>&</rss>", "<rss>&amp;</rss>", "column 1: the namespace of <rss>"),
        ("<a>x]]>y</a>", "<a>x]]&gt;y</a>", ""),
        ("<a/>more\n<b/>", "<a/>\n", "column 5: text behind the end"),
        ("<a><br>x</a>", "<a><br/>x</a>", ""),
        (
            "<r><description>1<br>2<b>3</description></r>",
            "<r><description>1&lt;br&gt;2&lt;b&gt;3</description></r>",
            "column 18: HTML within <description>",
        ),
        (
            "<r><item><title>1<link>2</link><item/></r>",
            "<r><item><title>1</title><link>2</link></item><item/></r>",
            "column 18: <title>",
        ),
        ("<!DOCTYPE a [<!ENTITY x 'y<'>]><a>&x;</a>", "<a>y&lt;</a>", ""),
        (
            "<!DOCTYPE a [<!ENTITY x '&y;&y;'><!ENTITY y 'z'>]><a>&x;&y;</a>",
            "<a>&amp;x;z</a>",
            "unknown entity &x;",
        ),
    ] {
        let (found, problems) = repaired(text);
        assert_eq!(found, expected, "{text}");
        match warning {
            "" => {}
            _ => assert!(problems[0].contains(warning), "{text}: {problems:?}"),
        }
    }
}

/// Memory: short declarations and references to long texts.
#[test]
fn entities_cannot_fill_the_memory() {
    let text = format!(
        "<!DOCTYPE rss [<!ENTITY x '{}'>]><rss><channel><title>{}</title></channel></rss>",
        "y".repeat(9_000),
        "&x;".repeat(100_000)
    );
    assert!(matches!(lenient(&text), Err(FormatError::Limit(_))));
}

#[test]
fn a_document_that_is_cut_off_stays_an_error() {
    let whole = "<?xml version=\"1.0\"?>\n<rss version=\"2.0\"><channel><title>A & B</title>\n\
        <item><guid>1</guid><description>x <b>y</description></item><item><guid>2</guid></item></channel></rss>";
    assert_eq!(lenient(whole).unwrap().items.len(), 2);
    for end in 1..whole.len() {
        assert!(lenient(&whole[..end]).is_err(), "{}", &whole[..end]);
    }
}

#[test]
fn later_problems_keep_their_lines() {
    let text = "<rss><channel>\n<item><guid>1</guid><title>A & B</title>\n<pubDate>soon</pubDate></item></channel></rss>";
    let feed = lenient(text).unwrap();
    assert!(feed.problems[0].starts_with("line 2, column 30: a bare &"), "{:?}", feed.problems);
    assert!(feed.problems[1].starts_with("line 3, column 1: <pubDate> is not a date"), "{:?}", feed.problems);
}

#[test]
fn a_comment_does_not_end_within_its_beginning() {
    assert_eq!(repaired("<rss><!--><b>--></rss>").0, "<rss><!--><b>--></rss>");
}

proptest! {
    /// Whatever is repaired is well-formed XML, or ends too early.
    #[test]
    fn any_document_is_well_formed_then(pieces in prop::collection::vec(prop::sample::select(vec![
        "<item>", "</item>", "<title>", "</title>", "<description>", "</description>", "<b>", "</b>", "<br>", "<x:y ",
        "z='1'", "z=\"", ">", "/>", "<", "&", "&amp;", "&x;", "&#0;", "]]>", "<![CDATA[", "<!--", "-->", "<?p", "?>",
        "<!DOCTYPE", "é", "\n", " ", "text", "</rss>", "xmlns='u'", "=",
    ]), 0..30)) {
        let text = format!("<rss>{}</rss>", pieces.concat());
        let (fixed, _) = repaired(&text);
        match read(fixed.as_bytes(), &ReadOptions::default()) {
            Ok(_) | Err(FormatError::Truncated { .. }) => {}
            Err(error) => prop_assert!(false, "{text:?} became {fixed:?}: {error}"),
        }
    }
}
