//! A publisher in memory: a log, divided into pages, some of them expired.

use std::collections::BTreeMap;

use http::Method;
use towpath_proto::follow::Request;
use towpath_proto::history::publish::{EarlierDocument, FeedInfo, HistoryDocument, LogWindow};
use towpath_proto::history::wire::Syntax;
use towpath_proto::{Change, Item, Op, Seq, Timestamp};

use crate::web::SiteResponse;

pub struct HistoryPublisher {
    pub info: FeedInfo,
    pub log: Vec<Change>,
    /// Changes per page.
    pub page: usize,
    /// The last change of each sealed page.
    sealed: Vec<Seq>,
    /// Pages below this number respond with 410.
    pub oldest: u64,
    /// True if the links are also in headers.
    pub header_links: bool,
}

impl HistoryPublisher {
    pub fn new(page: usize) -> Self {
        let info = FeedInfo {
            url: "https://a.example/feeds/x".into(),
            name: "x".into(),
            title: "Things".into(),
            home: None,
            lang: None,
            description: None,
            image: None,
            author: None,
            links: Vec::new(),
            hubs: Vec::new(),
        };
        Self { info, log: Vec::new(), page, sealed: Vec::new(), oldest: 1, header_links: false }
    }

    pub fn append(&mut self, op: Op, item: Item, modified: Timestamp) {
        let seq = self.log.len() as Seq + 1;
        let begun = self.sealed.last().copied().unwrap_or_default();
        if seq - 1 - begun >= self.page as Seq {
            self.sealed.push(seq - 1);
        }
        let previous =
            self.log.iter().rev().find(|change| change.item.id == item.id).map(|change| change.seq);
        // A deletion has no content: the item is gone.
        let item = if op == Op::Delete { Item::new(item.id) } else { item };
        let (created, first_seq) = (modified, previous.unwrap_or(seq));
        let hash = item.content_hash();
        let change = Change {
            seq,
            op,
            modified,
            created,
            first_seq,
            previous,
            item,
            patch: None,
            entry_id: None,
            hash,
        };
        self.log.push(change);
    }

    pub fn put(&mut self, item: Item, modified: Timestamp) {
        self.append(Op::Put, item, modified);
    }

    /// Returns the current items.
    pub fn items(&self) -> BTreeMap<String, Item> {
        let mut items = BTreeMap::new();
        for change in &self.log {
            match change.op {
                Op::Delete => drop(items.remove(&change.item.id)),
                _ => drop(items.insert(change.item.id.clone(), change.item.clone())),
            }
        }
        items
    }

    pub fn sealed(&self) -> u64 {
        self.sealed.len() as u64
    }

    pub fn first_of(&self, page: u64) -> Seq {
        match page {
            0 | 1 => 1,
            page => self.sealed[page as usize - 2] + 1,
        }
    }

    fn range(&self, first: Seq, last: Seq) -> &[Change] {
        &self.log[first as usize - 1..last as usize]
    }

    pub fn newest(&self) -> LogWindow {
        let page = self.sealed().max(1);
        let prev = (page > 1).then(|| EarlierDocument::Page(page - 1));
        LogWindow { first: self.first_of(page), last: self.log.len() as Seq, prev }
    }

    pub fn document(&self, syntax: Syntax, name: &str) -> Option<SiteResponse> {
        let (document, first, last) = if name.is_empty() {
            let window = self.newest();
            (HistoryDocument::Newest(window), window.first, window.last)
        } else if let Some((first, last)) = name.split_once('-') {
            let (first, last): (Seq, Seq) = (first.parse().ok()?, last.parse().ok()?);
            let prev = self
                .sealed
                .iter()
                .position(|end| end + 1 == first)
                .map(|index| EarlierDocument::Page(index as u64 + 1));
            (HistoryDocument::Window(LogWindow { first, last, prev }), first, last)
        } else {
            let number: u64 = name.parse().ok()?;
            if number < self.oldest {
                return Some(SiteResponse::status(410));
            }
            // An archive document names its successor (`next-archive`), so that must be sealed too.
            (number < self.sealed()).then_some(())?;
            (HistoryDocument::Archive(number), self.first_of(number), self.sealed[number as usize - 1])
        };
        let mut response = SiteResponse::ok(self.info.document(syntax, &document, self.range(first, last)));
        response = response.with("content-type", syntax.media_type());
        if self.header_links {
            for line in self.info.link_headers(syntax, &document) {
                response = response.with("link", &line);
            }
        }
        Some(response.with("etag", &self.etag(name)))
    }

    fn etag(&self, name: &str) -> String {
        // Only the newest document ever changes.
        let state = if name.is_empty() { self.log.len() } else { 0 };
        format!("\"{name}/{state}\"")
    }

    pub fn serve(&self, request: &Request) -> SiteResponse {
        assert!(matches!(request.method, Method::GET | Method::HEAD));
        let Some(path) = request.url.strip_prefix("https://a.example/feeds/x/") else {
            return SiteResponse::status(404);
        };
        let (syntax, name) = path.split_once('/').unwrap_or((path, ""));
        let syntax = Syntax::ALL.into_iter().find(|s| s.name() == syntax).unwrap();
        let known = request.headers.get("if-none-match");
        if known.is_some_and(|known| known.as_bytes() == self.etag(name).as_bytes()) {
            return SiteResponse::status(304);
        }
        self.document(syntax, name).unwrap_or_else(|| SiteResponse::status(404))
    }
}
