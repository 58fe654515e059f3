//! A publisher in memory: a log, cut into pages, some of them expired.

use std::collections::BTreeMap;

use http::Method;
use towpath_proto::follow::Request;
use towpath_proto::history::publish::{FeedInfo, Place, Window};
use towpath_proto::history::wire::Syntax;
use towpath_proto::{Change, Item, Op, Seq, Timestamp};

use crate::web::Answer;

pub struct Publisher {
    pub info: FeedInfo,
    pub log: Vec<Change>,
    /// How many changes a page takes.
    pub page: usize,
    /// The last change of each sealed page.
    sealed: Vec<Seq>,
    /// Pages below this number are gone.
    pub oldest: u64,
    /// Whether headers have the links.
    pub header_links: bool,
}

impl Publisher {
    pub fn new(page: usize) -> Self {
        let info = FeedInfo {
            url: "https://a.example/feeds/x".into(),
            name: "x".into(),
            title: "Things".into(),
            home: None,
            lang: None,
            links: Vec::new(),
            hub: None,
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

    /// The items that there are.
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

    fn stretch(&self, first: Seq, last: Seq) -> &[Change] {
        &self.log[first as usize - 1..last as usize]
    }

    pub fn newest(&self) -> Window {
        let page = self.sealed().max(1);
        let prev = (page > 1).then(|| page - 1);
        Window { first: self.first_of(page), last: self.log.len() as Seq, prev }
    }

    pub fn document(&self, syntax: Syntax, name: &str) -> Option<Answer> {
        let (place, first, last) = if name.is_empty() {
            let window = self.newest();
            (Place::Newest(window), window.first, window.last)
        } else if let Some((first, last)) = name.split_once('-') {
            let (first, last): (Seq, Seq) = (first.parse().ok()?, last.parse().ok()?);
            let prev = self.sealed.iter().position(|end| end + 1 == first).map(|index| index as u64 + 1);
            (Place::Window(Window { first, last, prev }), first, last)
        } else {
            let number: u64 = name.parse().ok()?;
            if number < self.oldest {
                return Some(Answer::status(410));
            }
            (number < self.sealed()).then_some(())?;
            (Place::Archive(number), self.first_of(number), self.sealed[number as usize - 1])
        };
        let mut answer = Answer::ok(self.info.document(syntax, &place, self.stretch(first, last)));
        answer = answer.with("content-type", syntax.media_type());
        if self.header_links {
            for line in self.info.link_headers(syntax, &place) {
                answer = answer.with("link", &line);
            }
        }
        Some(answer.with("etag", &self.etag(name)))
    }

    fn etag(&self, name: &str) -> String {
        let state = if name.is_empty() { self.log.len() } else { 0 };
        format!("\"{name}/{state}\"")
    }

    pub fn serve(&self, request: &Request) -> Answer {
        assert!(matches!(request.method, Method::GET | Method::HEAD));
        let Some(path) = request.url.strip_prefix("https://a.example/feeds/x/") else {
            return Answer::status(404);
        };
        let (syntax, name) = path.split_once('/').unwrap_or((path, ""));
        let syntax = Syntax::ALL.into_iter().find(|s| s.name() == syntax).unwrap();
        let known = request.headers.get("if-none-match");
        if known.is_some_and(|known| known.as_bytes() == self.etag(name).as_bytes()) {
            return Answer::status(304);
        }
        self.document(syntax, name).unwrap_or_else(|| Answer::status(404))
    }
}
