//! A publisher in memory, made of the pure half, with faults to order.

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use jiff::Timestamp;
use towpath_proto::change::{Change, Op};
use towpath_proto::feed_id::FeedId;
use towpath_proto::follow::Request;
use towpath_proto::item::{Content, ContentHash, Item};
use towpath_proto::replication::pages::{Cleanup, LetGo, PageLimits, PageSpan, PageState, Pager, Retention};
use towpath_proto::replication::publish::{self, PageLinks};
use towpath_proto::replication::snapshot::{GoesOn, SnapshotIndex, SnapshotWriter};

pub(crate) const BASE: &str = "https://pub.example/feeds/news/replication";
pub(crate) const SNAPSHOT: &str = "https://pub.example/feeds/news/snapshots/latest";

pub(crate) struct Publisher {
    pub(crate) feed: FeedId,
    pub(crate) log: Vec<Change>,
    pub(crate) sealed: Vec<PageSpan>,
    pub(crate) cleanup: Cleanup,
    pub(crate) limits: PageLimits,
    pub(crate) snapshot: Vec<(String, Response)>,
    pending: Vec<LetGo>,
}

#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Response {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

pub(crate) fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// A raw item whose content tells the items apart.
pub(crate) fn item(id: &str, content: &str) -> Item {
    Item { content: Some(Content::new("text/plain", content.to_owned())), ..Item::new(id) }
}

impl Publisher {
    pub(crate) fn new(limits: PageLimits) -> Self {
        Self {
            feed: FeedId::new("news").unwrap(),
            log: Vec::new(),
            sealed: Vec::new(),
            cleanup: Cleanup::default(),
            limits,
            snapshot: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Pages of `entities` entities.
    pub(crate) fn of(entities: u64) -> Self {
        Self::new(PageLimits { bytes: 1 << 20, entities })
    }

    pub(crate) fn append(&mut self, op: Op, item: Item, now: Timestamp) -> &mut Change {
        let modified = self.log.last().map_or(now, |last| last.modified.max(now));
        let seq = self.log.len() as u64 + 1;
        self.log.push(Change {
            seq,
            op,
            modified,
            created: modified,
            first_seq: seq,
            previous: None,
            item,
            patch: None,
            entry_id: None,
            hash: ContentHash::default(),
        });
        self.log.last_mut().unwrap()
    }

    /// Appends a raw item named after its place.
    pub(crate) fn put(&mut self, second: i64) {
        let id = format!("item {}", self.log.len() + 1);
        let content = format!("content of {id}\r\n--");
        self.append(Op::Put, item(&id, &content), time(second));
    }

    /// Stores the spans of the pages that are full.
    pub(crate) fn seal(&mut self) {
        let (full, _) = self.paged();
        self.sealed.extend(full);
    }

    pub(crate) fn clean_up(&mut self, retention: &Retention, now: Timestamp) {
        self.cleanup = retention.decide(now, &self.sealed, self.cleanup, &mut self.pending);
    }

    /// What is full after the sealed pages, and the newest page.
    fn paged(&self) -> (Vec<PageSpan>, Option<PageSpan>) {
        let mut pager = Pager::after(self.sealed.last(), self.limits);
        let rest = self.sealed.last().map_or(0, |page| page.last as usize);
        let full = self.log[rest..].iter().filter_map(|change| pager.push(change)).collect();
        (full, pager.open())
    }

    /// The pages that readers see: the sealed ones and the first one after them.
    fn visible(&self) -> Vec<(PageSpan, bool)> {
        let (full, open) = self.paged();
        let newest = full.first().copied().or(open);
        self.sealed.iter().map(|page| (*page, true)).chain(newest.map(|page| (page, false))).collect()
    }

    pub(crate) fn answer(&self, request: &Request) -> Response {
        let mut response = self.find(&request.url);
        let etag = response.headers.get(header::ETAG);
        if etag.is_some() && request.headers.get(header::IF_NONE_MATCH) == etag {
            response.status = 304;
            response.body = Bytes::new();
        }
        if request.method == Method::HEAD {
            response.body = Bytes::new();
        }
        response
    }

    fn find(&self, url: &str) -> Response {
        if let Some((_, response)) = self.snapshot.iter().find(|(at, _)| at == url) {
            return response.clone();
        }
        let visible = self.visible();
        if url == BASE {
            return match visible.last() {
                Some((page, sealed)) => self.page(page, *sealed),
                None => {
                    let body = publish::empty_feed().to_string().into();
                    Response { body, ..Response::status(404) }
                }
            };
        }
        let number = url.strip_prefix(&format!("{BASE}/pages/")).and_then(|n| n.parse::<u64>().ok());
        match visible.iter().find(|(page, _)| Some(page.number) == number) {
            None => Response::status(404),
            Some((page, _)) if self.cleanup.state(page.number) == PageState::Gone => Response::status(410),
            Some((page, sealed)) => self.page(page, *sealed),
        }
    }

    fn page(&self, span: &PageSpan, sealed: bool) -> Response {
        let changes = &self.log[span.first as usize - 1..span.last as usize];
        let page = publish::page(&self.feed, span.number, changes).unwrap();
        assert_eq!(page.last_modified, span.modified);
        let headers = page.feed_headers(&PageLinks::new(BASE, span, sealed, self.cleanup));
        Response { status: 200, headers, body: page.body }
    }

    /// Makes a snapshot of what the items are now.
    pub(crate) fn make_snapshot(&mut self, id: &str, now: Timestamp, limits: PageLimits) {
        let mut latest = std::collections::BTreeMap::new();
        for change in &self.log {
            latest.insert(change.item.id.clone(), change.clone());
        }
        let mut writer = SnapshotWriter::new(id, limits);
        let mut pages: Vec<_> = latest.values().filter_map(|change| writer.push(change)).collect();
        pages.extend(writer.finish());
        let url = |number: usize| format!("https://pub.example/feeds/news/snapshots/{id}/pages/{number}");
        let urls: Vec<String> = (0..pages.len()).map(url).collect();
        let newest = self.visible().last().map_or(1, |(page, _)| page.number);
        let index = SnapshotIndex {
            id: id.into(),
            created_at: now,
            pages: urls.clone(),
            feed: Some(BASE.into()),
            goes_on: Some(GoesOn { page: publish::page_url(BASE, newest), after: self.content_ids().pop() }),
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        let index = Response { status: 200, headers, body: index.to_json().into() };
        self.snapshot = vec![(SNAPSHOT.into(), index)];
        for (url, page) in urls.into_iter().zip(pages) {
            let response = Response { status: 200, headers: page.headers(), body: page.body };
            self.snapshot.push((url, response));
        }
    }

    pub(crate) fn content_ids(&self) -> Vec<String> {
        self.log.iter().map(|c| format!("<{}@news>", c.seq)).collect()
    }
}
