use super::*;
use crate::format::{FeedDocument, ReadOptions, read};
use crate::history::wire::SUP;
use crate::item::Item;

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_737_700_000 + second).unwrap()
}

fn info() -> FeedInfo {
    let link = |rel: &str, href: &str| FeedLink { rel: rel.into(), href: href.into(), media_type: None };
    FeedInfo {
        url: "https://a.example/feeds/x".into(),
        name: "x".into(),
        title: "Things".into(),
        home: Some("https://a.example/".into()),
        lang: Some("en".into()),
        description: Some("Things & more".into()),
        image: Some("https://a.example/logo.png".into()),
        author: Some(Author { name: "Ann".into(), email: Some("ann@a.example".into()), url: None }),
        links: vec![link(SUP, "https://a.example/sup.json#0123456789")],
        hubs: vec!["https://a.example/feeds/x/hub".into()],
    }
}

fn change(seq: Seq, op: Op, id: &str, title: &str, previous: Option<Seq>) -> Change {
    let item = Item { title: Some(title.into()).filter(|_| op != Op::Delete), ..Item::new(id) };
    Change {
        seq,
        op,
        modified: time(seq as i64),
        created: time(seq as i64),
        first_seq: previous.unwrap_or(seq),
        previous,
        hash: item.content_hash(),
        item,
        patch: None,
        entry_id: None,
    }
}

fn log() -> Vec<Change> {
    vec![
        change(5, Op::Put, "urn:a", "one", None),
        change(6, Op::Put, "b 1", "two", None),
        change(7, Op::Patch, "urn:a", "three", Some(5)),
        change(8, Op::Delete, "b 1", "", Some(6)),
        change(9, Op::Put, "c", "four", None),
    ]
}

fn parse(text: &str) -> FeedDocument {
    let feed = read(text.as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!(feed.problems, Vec::<String>::new());
    feed
}

const WINDOW: LogWindow = LogWindow { first: 5, last: 9, prev: Some(EarlierDocument::Page(2)) };

/// -00, sections 3 and 4: the flag 1, `this` and `prev`; RFC 5005, section 4: `prev-archive`.
#[test]
fn the_newest_document() {
    for syntax in Syntax::ALL {
        let feed = parse(&info().document(syntax, &HistoryDocument::Newest(WINDOW), &log()));
        let base = format!("https://a.example/feeds/x/{}", syntax.name());
        assert_eq!(feed.link("self"), Some(base.as_str()));
        assert_eq!(feed.link(THIS), Some(format!("{base}/5-9").as_str()));
        for rel in [PREV, PREV_ARCHIVE] {
            assert_eq!(feed.link(rel), Some(format!("{base}/2").as_str()));
        }
        assert_eq!(feed.link("hub"), Some("https://a.example/feeds/x/hub"));
        assert_eq!(feed.link(SUP), Some("https://a.example/sup.json#0123456789"));
        assert_eq!((feed.stateful, feed.complete, feed.archive), (Some(true), false, false));
        assert_eq!(feed.updated, Some(time(9)));
        assert_eq!(feed.title.as_deref(), Some("Things"));
        assert_eq!(feed.description.as_deref(), Some("Things & more"));
        assert_eq!(feed.image.as_deref(), Some("https://a.example/logo.png"));
        assert_eq!(feed.authors, [info().author.unwrap()]);
        assert!(feed.items.iter().all(|item| item.authors.is_empty()), "the feed's author wrote no item");
        let titles: Vec<_> =
            feed.items.iter().map(|i| (i.id.as_str(), i.title.as_deref().unwrap())).collect();
        assert_eq!(titles, [("c", "four"), ("urn:a", "three")], "last versions, newest first");
        assert_eq!(feed.modified, [(0, time(9)), (1, time(7))]);
        assert_eq!(feed.deleted, [DeletedEntry { id: "b 1".into(), when: Some(time(8)) }]);
    }
}

/// RFC 5005, section 4: `fh:archive`, `current` and both neighbours; "the set of entries SHOULD NOT change".
#[test]
fn an_archive_document_depends_on_its_changes_alone() {
    for syntax in Syntax::ALL {
        let text = info().document(syntax, &HistoryDocument::Archive(3), &log());
        let feed = parse(&text);
        let base = format!("https://a.example/feeds/x/{}", syntax.name());
        assert!(feed.archive);
        for (rel, to) in [
            ("self", "/3"),
            (THIS, "/3"),
            (PREV, "/2"),
            (PREV_ARCHIVE, "/2"),
            (NEXT_ARCHIVE, "/4"),
            (CURRENT, ""),
        ] {
            assert_eq!(feed.link(rel), Some(format!("{base}{to}").as_str()), "{rel}");
        }
        let renamed = FeedInfo {
            title: "Other".into(),
            home: None,
            lang: None,
            description: None,
            author: None,
            ..info()
        };
        assert_eq!(renamed.document(syntax, &HistoryDocument::Archive(3), &log()), text);
        assert_eq!(
            renamed.document(syntax, &HistoryDocument::Window(WINDOW), &log()),
            info().document(syntax, &HistoryDocument::Window(WINDOW), &log())
        );
    }
}

/// RFC 5005, section 4: "unless there are no preceding archives available".
#[test]
fn the_first_documents_have_no_prev() {
    for place in [HistoryDocument::Archive(1), HistoryDocument::Newest(LogWindow { prev: None, ..WINDOW })] {
        let feed = parse(&info().document(Syntax::Atom, &place, &log()));
        assert_eq!((feed.link(PREV), feed.link(PREV_ARCHIVE)), (None, None));
    }
    let empty = LogWindow { first: 1, last: 0, prev: None };
    let feed = parse(&info().document(Syntax::Atom, &HistoryDocument::Newest(empty), &[]));
    assert_eq!((feed.link(THIS), feed.items.len()), (None, 0));
}

/// -00, section 4: the snapshot that `this` names has the entries of the document that names it.
#[test]
fn a_window_document_equals_the_newest_document() {
    for syntax in Syntax::ALL {
        let newest = parse(&info().document(syntax, &HistoryDocument::Newest(WINDOW), &log()));
        let kept = parse(&info().document(syntax, &HistoryDocument::Window(WINDOW), &log()));
        assert_eq!((newest.link(THIS), newest.link(PREV)), (kept.link(THIS), kept.link(PREV)));
        assert_eq!(kept.link("self"), kept.link(THIS));
        assert_eq!((&newest.items, &newest.deleted), (&kept.items, &kept.deleted));
        assert_eq!((newest.updated, newest.modified, newest.id), (kept.updated, kept.modified, kept.id));
    }
}

/// -00, section 3: flag 0; RFC 5005, section 2: `fh:complete`.
#[test]
fn a_complete_document_has_no_history() {
    for syntax in Syntax::ALL {
        let feed = parse(&info().document(syntax, &HistoryDocument::Complete, &log()));
        assert_eq!((feed.stateful, feed.complete, feed.is_complete()), (Some(false), true, true));
        assert_eq!((feed.link(THIS), feed.link(PREV), feed.link(PREV_ARCHIVE)), (None, None, None));
        assert_eq!(feed.items.len(), 2);
        assert_eq!(feed.deleted, []);
    }
}

#[test]
fn an_edit_without_a_later_date_has_its_modified_time() {
    let mut log = log();
    let old = time(-1000);
    for number in [0, 2] {
        log[number].item.updated = Some(old);
    }
    for syntax in Syntax::ALL {
        let edited = parse(&info().document(syntax, &HistoryDocument::Archive(1), &log[2..3]));
        assert_eq!((edited.items[0].updated, &edited.modified[..]), (Some(old), &[(0, time(7))][..]));
    }
    log[2].item.updated = Some(time(7));
    let dated = info().document(Syntax::Atom, &HistoryDocument::Archive(1), &log[2..3]);
    assert!(!dated.contains("tp:changed"), "{dated}");
}

#[test]
fn foreign_elements_are_published_with_their_namespaces() {
    let polled =
        br#"<feed xmlns="http://www.w3.org/2005/Atom" xmlns:g="urn:geo" xml:base="http://b.example/">
      <id>urn:f</id><title>f</title><updated>2025-01-24T09:00:00Z</updated>
      <entry><id>urn:e</id><title>t</title><updated>2025-01-24T09:00:00Z</updated>
      <link rel="related" href="r"/><g:point scale="1">1 <g:x>2</g:x></g:point></entry></feed>"#;
    let item = read(polled, &ReadOptions::default()).unwrap().items.remove(0);
    let change = Change { item: item.clone(), ..change(1, Op::Put, "urn:e", "t", None) };
    for syntax in Syntax::ALL {
        let text = info().document(syntax, &HistoryDocument::Archive(1), std::slice::from_ref(&change));
        assert_eq!(parse(&text).items, std::slice::from_ref(&item));
        assert!(!text.contains("xml:base"), "{text}");
        assert!(text.contains("http://b.example/r"), "{text}");
        if syntax != Syntax::JsonFeed {
            assert!(
                text.contains(r#"<g:point xmlns:g="urn:geo" scale="1">1 <g:x>2</g:x></g:point>"#),
                "{text}"
            );
        }
    }
}

#[test]
fn links_as_headers() {
    let lines = info().link_headers(Syntax::Atom, &HistoryDocument::Archive(3));
    let wanted = link::write("https://a.example/feeds/x/atom/2", PREV_ARCHIVE);
    assert!(lines.contains(&wanted), "{lines:?}");
}
