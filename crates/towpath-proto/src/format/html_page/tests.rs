//! Tests of pages as feeds.

use proptest::prelude::*;

use super::selector::Selector;
use super::tree::Tree;
use super::*;
use crate::format::DocumentLimits;

const PAGE: &str = r#"<!doctype html><html lang="en"><head><title>Notices &amp; news</title>
<base href="/notices/"></head><body><nav><ul><li><a href="/">Home</a></ul></nav>
<main id="list"><ul class="items big">
<li class="item new" data-id="n-7"><h3><a href="7.html">Lock <b>closed</b></a></h3>
<p class="text">From Monday<br>on. <img src="7.png"> <script>var x = "<p>"</script></p>
<time datetime="2026-03-01T08:00:00Z">yesterday</time><span class="tag">locks</span> <span class="tag">works</span>
<li class="item" data-id="n-6"><h3><a href="6.html">Ten boats</a></h3><p class="text">Seen.</p>
<ul><li class="item">nested</li></ul><time>2 weeks ago</time>
<li class="item"><h3>no link</h3>
</ul></main></body></html>"#;

fn mapping() -> HtmlMapping {
    HtmlMapping {
        items: "#list .item".into(),
        id: Some("@data-id".into()),
        title: Some("h3".into()),
        summary: Some("p.text".into()),
        tags: Some(".tag".into()),
        published: Some("time".into()),
        ..HtmlMapping::default()
    }
}

fn budget(html: &str) -> Budget {
    Budget::new(html.len(), DocumentLimits::default())
}

fn page(html: &str, mapping: &HtmlMapping) -> Result<FeedDocument, FormatError> {
    read(html, mapping, Some("https://canal.example/news/index.html"), budget(html))
}

#[test]
fn a_page_is_read_by_its_selectors() {
    let feed = page(PAGE, &mapping()).unwrap();
    assert_eq!((feed.title.as_deref(), feed.lang.as_deref()), (Some("Notices & news"), Some("en")));
    assert_eq!(feed.items.len(), 2, "{:#?}", feed.items);
    let first = &feed.items[0];
    assert_eq!((first.id.as_str(), first.title.as_deref()), ("n-7", Some("Lock closed")));
    assert_eq!(first.url.as_deref(), Some("https://canal.example/notices/7.html"));
    assert_eq!(first.summary.as_deref(), Some("From Monday on."));
    assert_eq!(first.tags, ["locks", "works"]);
    assert_eq!(first.published, "2026-03-01T08:00:00Z".parse().ok());
    let content = first.content.as_ref().unwrap();
    assert_eq!(content.media_type, "text/html");
    let html = content.text().unwrap();
    assert!(html.contains("<img src=\"https://canal.example/notices/7.png\">"), "{html}");
    assert!(html.contains("<script>var x = \"<p>\"</script>"), "{html}");
    assert!(html.starts_with("<h3>") && html.ends_with("</span>"), "{html}");
    // What is below an item is part of it.
    assert!(feed.items[1].content.as_ref().unwrap().text().unwrap().contains("nested"));
    assert_eq!((feed.counts.left_out, feed.counts.warnings), (1, 1), "{:?}", feed.problems);
}

#[test]
fn ids_are_links_by_default_and_content_is_what_is_selected() {
    let mapping = HtmlMapping {
        items: ".item".into(),
        content: Some(".text".into()),
        title: Some("h3 > a".into()),
        ..HtmlMapping::default()
    };
    let feed = page(PAGE, &mapping).unwrap();
    assert_eq!(feed.items[1].id, "https://canal.example/notices/6.html");
    assert_eq!(feed.items[1].content.as_ref().unwrap().text(), Some("Seen."));
}

#[test]
fn a_page_without_items_is_an_error() {
    let error = |change: fn(&mut HtmlMapping)| {
        let mut mapping = mapping();
        change(&mut mapping);
        page(PAGE, &mapping).unwrap_err().to_string()
    };
    assert_eq!(error(|m| m.items = ".row".into()), "\".row\": no element of the page matches");
    assert_eq!(error(|m| m.id = Some("@id".into())), "\"@id\": nothing is there in any of the 3 items");
    assert!(error(|m| m.items = "li:hover".into()).contains(":hover is not supported"));
    assert!(error(|m| m.title = Some("h3 >".into())).contains("title: "));
    assert!(error(|m| m.title = Some("h3@".into())).contains("after @"));
    assert!(error(|m| m.tags = Some(String::new())).contains("tags: "));
}

fn ids(html: &str, selector: &str) -> String {
    let tree = build::build(html, &mut budget(html)).unwrap();
    let found = Selector::parse(selector).unwrap().all(&tree, 0..tree.nodes.len());
    found.iter().filter_map(|node| tree.attribute(*node, "id")).collect::<Vec<_>>().join(" ")
}

#[test]
fn selectors_match_as_in_browsers() {
    let html = "<div id=a class='x y'><p id=b lang=en-GB>1</p><p id=c title='Ab cd'>2<i id=d></i></p></div>\
                <div id=e><p id=f>3</p><h2 id=g>4</h2><p id=h>5</p><p id=i data-k='a@b'>6</p></div>";
    for (selector, expected) in [
        ("p", "b c f h i"),
        ("div p", "b c f h i"),
        ("div#a > p", "b c"),
        ("#a i, #e h2", "d g"),
        (".y.x > *", "b c"),
        (".y.z", ""),
        ("h2 + p", "h"),
        ("h2 ~ p", "h i"),
        ("p:first-child", "b f"),
        ("p:last-child", "c i"),
        ("div > :nth-child(2)", "c g"),
        ("#e :nth-child(odd)", "f h"),
        ("#e :nth-child(n+3)", "h i"),
        ("#e :nth-child(-n+2)", "f g"),
        ("#e :nth-last-child(1)", "i"),
        ("p:not(.x):not(:first-child)", "c h i"),
        ("p:is(#b, #i)", "b i"),
        (":empty", "d"),
        ("[lang]", "b"),
        ("[lang|=en]", "b"),
        ("[title~=cd]", "c"),
        ("[title^='ab' i]", "c"),
        ("[title$=\"cd\"]", "c"),
        ("[title*='b c']", "c"),
        ("[data-k='a@b']", "i"),
        ("BODY DIV", "a e"),
        ("html > body > div:nth-child(2) > p:nth-child(3)", "h"),
    ] {
        assert_eq!(ids(html, selector), expected, "{selector}");
    }
    for wrong in ["", ">", "p,", "p:nth-child(x)", "[a", "[a='b]", "p:not(", "p:is(a b)", "p)", "::before"] {
        assert!(Selector::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn missing_tags_are_implied() {
    assert_eq!(
        ids("<table><tr id=a><td id=b>1<td id=c>2<tr id=d><td>3</table>", "table > tbody > tr"),
        "a d"
    );
    assert_eq!(ids("<ul><li id=a>1<ul><li id=b>2</ul><li id=c>3</ul>", "ul > li"), "a b c");
    assert_eq!(ids("<ul id=u><li id=a>1<ul><li id=b>2</ul><li id=c>3</ul>", "#u > li"), "a c");
    assert_eq!(ids("<p id=a>1<p id=b>2<div id=c>3</div>", "body > *"), "a b c");
    assert_eq!(ids("<dl><dt id=a>1<dd id=b>2<dt id=c>3</dl>", "dl > dt"), "a c");
    assert_eq!(ids("<div id=a><b>1</div><div id=b>2</div>", "body > div"), "a b");
    assert_eq!(ids("text</p></div><br><img id=a><p id=b>", "body > img + p"), "b");
    assert_eq!(ids("<title>t</title><meta><p id=a>", "body > p"), "a");
    assert_eq!(ids("<head></head><p id=a></body></html><p id=b>", "body > p"), "a b");
}

/// The standard's tree of this page has as many nodes as the product of both counts: 400 million.
#[test]
fn a_hostile_page_takes_linear_memory() {
    let formatting: String = (0..20_000).map(|n| format!("<b id={n}>")).collect();
    let page = format!("<p>{formatting}</p>{}", "<p>x</p>".repeat(20_000));
    let built = build::build(&page, &mut budget(&page));
    assert!(matches!(built, Err(FormatError::Limit(reason)) if reason.contains("depth")));
    let page = format!("<p>{}</p>{}", "<b id=1>".repeat(200), "<p>x</p>".repeat(20_000));
    assert!(build::build(&page, &mut budget(&page)).unwrap().nodes.len() < 50_000);
}

fn is_consistent(tree: &Tree) -> bool {
    (0..tree.nodes.len()).all(|node| {
        let within =
            tree.parent(node).is_none_or(|parent| parent < node && tree.end(node) <= tree.end(parent));
        within && tree.end(node) > node && tree.end(node) <= tree.nodes.len()
    })
}

proptest! {
    #[test]
    fn any_markup_gives_a_tree(pieces in proptest::collection::vec(
        proptest::sample::select(vec![
            "<a href=x>", "</a>", "<p>", "</p>", "<ul>", "<li>", "</ul>", "<table>", "<tr>", "<td>", "</table>",
            "<script>", "</script>", "text", "<!--", "-->", "<body>", "</body>", "<html>", "<br>", "</br>", ">",
            "<b>", "</b>", "<head>", "<title>", "</title>", "<select>", "<option>", "&lt", "<div id='",
        ]), 0..40))
    {
        let html = pieces.concat();
        let tree = build::build(&html, &mut budget(&html)).unwrap();
        prop_assert!(is_consistent(&tree), "{tree:?}");
        let all = Selector::parse("* > *, li ~ li").unwrap().all(&tree, 0..tree.nodes.len());
        prop_assert!(all.len() < tree.nodes.len());
        tree.text(0);
        let inner = tree.inner_html(0, |url| Ok::<_, FormatError>(url.to_owned())).unwrap();
        build::build(&inner, &mut budget(&inner)).unwrap();
    }
}
