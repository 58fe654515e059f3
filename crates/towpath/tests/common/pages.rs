//! Data Replication pages of a feed, read along their links.

use std::collections::HashSet;

use towpath_proto::format::multipart::{ContentType, Entity, EntityReader};

use super::{TestResponse, TestServer};

/// A page, and the targets of its links.
#[derive(Debug)]
pub struct FetchedPage {
    pub own: String,
    pub prev: Option<String>,
    pub next: Option<String>,
    pub answer: TestResponse,
    pub entities: Vec<Entity>,
}

impl FetchedPage {
    pub fn content_ids(&self) -> Vec<String> {
        self.entities.iter().map(|entity| entity.headers.get("content-id").unwrap().to_owned()).collect()
    }

    pub fn etag(&self) -> &str {
        self.answer.header("etag").unwrap()
    }
}

/// The path of a URL of the server.
pub fn path<'a>(server: &TestServer, url: &'a str) -> &'a str {
    url.strip_prefix(&server.base).unwrap_or_else(|| panic!("{url} is not absolute, or elsewhere"))
}

/// Gets a page by GET and HEAD, which must agree.
pub fn page(server: &TestServer, path: &str) -> FetchedPage {
    let before = server.ask("HEAD", path, &[], b"");
    let answer = server.get(path);
    let after = server.ask("HEAD", path, &[], b"");
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    let shown = |answer: &TestResponse| {
        let mut headers = answer.headers.clone();
        headers.retain(|(name, _)| name != "date");
        headers.sort();
        (answer.status, headers)
    };
    // A page that grew meanwhile has other headers; then they are the same before and after it.
    assert!(
        shown(&before) == shown(&answer) || shown(&answer) == shown(&after),
        "{path}: {before:?} {answer:?}"
    );
    assert!(before.body.is_empty() && after.body.is_empty());
    let length: usize = answer.header("content-length").unwrap().parse().unwrap();
    assert_eq!(length, answer.body.len());
    let entities = entities(&answer);
    let link = |rel: &str| {
        let lines = answer.headers.iter().filter(|(name, _)| name == "link");
        let end = format!(">; rel=\"{rel}\"");
        let mut found = lines.filter_map(|(_, line)| line.strip_suffix(&end)?.strip_prefix('<'));
        found.next().map(str::to_owned)
    };
    FetchedPage {
        own: link("self").unwrap_or_default(),
        prev: link("prev"),
        next: link("next"),
        entities,
        answer,
    }
}

pub fn entities(answer: &TestResponse) -> Vec<Entity> {
    let content_type = ContentType::parse(answer.header("content-type").unwrap()).unwrap();
    let mut reader = EntityReader::new(&content_type, 64 << 20).unwrap();
    reader.push(answer.body.clone().into());
    reader.finish();
    let mut entities = Vec::new();
    while let Some(entity) = reader.poll_entity().unwrap() {
        entities.push(entity);
    }
    assert!(!entities.is_empty() && reader.is_complete());
    entities
}

/// Every page of a feed, oldest first. "The prev and next links of adjacent pages must match and the feed must not
/// form a loop"; "Last-Modified … must be monotonically increasing across all pages".
pub fn walk(server: &TestServer, feed: &str) -> Vec<FetchedPage> {
    let mut pages = vec![page(server, &format!("/feeds/{feed}/replication"))];
    while let Some(prev) = pages.last().unwrap().prev.clone() {
        let page = page(server, path(server, &prev));
        assert_eq!(page.own, prev);
        assert_eq!(page.next.as_deref(), Some(pages.last().unwrap().own.as_str()));
        pages.push(page);
    }
    pages.reverse();
    let mut seen = HashSet::new();
    let mut last = None;
    for page in &pages {
        for entity in &page.entities {
            let modified = entity.headers.get("last-modified").unwrap();
            let modified = towpath_proto::format::http_date::parse(modified).unwrap();
            assert!(last.is_none_or(|last| last <= modified));
            last = Some(modified);
            // A Content-ID names a single change of the whole feed.
            assert!(seen.insert(entity.headers.get("content-id").unwrap().to_owned()));
        }
        let modified = page.answer.header("last-modified").unwrap();
        assert_eq!(towpath_proto::format::http_date::parse(modified).ok(), last);
    }
    pages
}
