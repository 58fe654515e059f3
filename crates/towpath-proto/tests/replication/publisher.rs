//! A publisher in memory, built from the pure crate.

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use jiff::Timestamp;
use towpath_proto::change::{Change, Op};
use towpath_proto::feed_id::FeedId;
use towpath_proto::follow::Request;
use towpath_proto::item::{Content, ContentHash, Item};
use towpath_proto::replication::pages::{
    Cleanup, PageLimits, PageSpan, PageState, Pager, Retention, UnlinkedPages,
};
use towpath_proto::replication::publish::{self, FeedPageLinks, PageKind};
use towpath_proto::replication::snapshot::{Continuation, SnapshotIndex, SnapshotWriter};

pub(crate) const BASE: &str = "https://pub.example/feeds/news/replication";
pub(crate) const SNAPSHOT: &str = "https://pub.example/feeds/news/snapshots/latest";

pub(crate) struct MemoryPublisher {
    pub(crate) feed: FeedId,
    pub(crate) log: Vec<Change>,
    pub(crate) sealed: Vec<PageSpan>,
    pub(crate) cleanup: Cleanup,
    pub(crate) limits: PageLimits,
    pub(crate) snapshot: Vec<(String, StoredResponse)>,
    pending: Vec<UnlinkedPages>,
}

#[derive(Debug, Clone)]
pub(crate) struct StoredResponse {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl StoredResponse {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

pub(crate) fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// A raw item with this content.
pub(crate) fn item(id: &str, content: &str) -> Item {
    Item { content: Some(Content::new("text/plain", content.to_owned())), ..Item::new(id) }
}

impl MemoryPublisher {
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

    /// Creates a publisher with pages of `entities` entities.
    pub(crate) fn of(entities: u64) -> Self {
        Self::new(PageLimits { bytes: 1 << 20, entities })
    }

    pub(crate) fn append(&mut self, op: Op, item: Item, now: Timestamp) -> &mut Change {
        // Times never decrease along a log, as the store ensures.
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

    /// Appends a raw item with its sequence number in its name.
    pub(crate) fn put(&mut self, second: i64) {
        let id = format!("item {}", self.log.len() + 1);
        // Content that begins like a delimiter.
        let content = format!("content of {id}\r\n--");
        self.append(Op::Put, item(&id, &content), time(second));
    }

    /// Stores the spans of full pages, as the program does after an append.
    pub(crate) fn seal(&mut self) {
        let (full, _) = self.paged();
        self.sealed.extend(full);
    }

    pub(crate) fn clean_up(&mut self, retention: &Retention, now: Timestamp) {
        self.cleanup = retention.decide(now, &self.sealed, self.cleanup, &mut self.pending);
    }

    /// Returns the full pages after the sealed ones, and the newest page.
    fn paged(&self) -> (Vec<PageSpan>, Option<PageSpan>) {
        let mut pager = Pager::after(self.sealed.last(), self.limits);
        let rest = self.sealed.last().map_or(0, |page| page.last as usize);
        let full = self.log[rest..].iter().filter_map(|change| pager.push(change)).collect();
        (full, pager.open())
    }

    /// Returns the pages that readers see: the sealed ones and the next one.
    fn visible(&self) -> Vec<(PageSpan, bool)> {
        let (full, open) = self.paged();
        // A full page is served without `next` until its span is stored, as after a crash.
        let newest = full.first().copied().or(open);
        self.sealed.iter().map(|page| (*page, true)).chain(newest.map(|page| (page, false))).collect()
    }

    pub(crate) fn answer(&self, request: &Request) -> StoredResponse {
        let mut response = self.find(&request.url);
        let etag = response.headers.get(header::ETAG);
        if etag.is_some() && request.headers.get(header::IF_NONE_MATCH) == etag {
            response.status = 304;
            response.body = Bytes::new();
        }
        // HEAD and GET must agree on headers, so both are answered from the same response.
        if request.method == Method::HEAD {
            response.body = Bytes::new();
        }
        response
    }

    fn find(&self, url: &str) -> StoredResponse {
        if let Some((_, response)) = self.snapshot.iter().find(|(at, _)| at == url) {
            return response.clone();
        }
        let visible = self.visible();
        if url == BASE {
            return match visible.last() {
                Some((page, sealed)) => self.page(page, *sealed),
                None => {
                    let body = publish::empty_feed().to_string().into();
                    StoredResponse { body, ..StoredResponse::status(404) }
                }
            };
        }
        let number = url.strip_prefix(&format!("{BASE}/pages/")).and_then(|n| n.parse::<u64>().ok());
        match visible.iter().find(|(page, _)| Some(page.number) == number) {
            None => StoredResponse::status(404),
            Some((page, _)) if self.cleanup.state(page.number) == PageState::Gone => {
                StoredResponse::status(410)
            }
            Some((page, sealed)) => self.page(page, *sealed),
        }
    }

    fn page(&self, span: &PageSpan, sealed: bool) -> StoredResponse {
        let changes = &self.log[span.first as usize - 1..span.last as usize];
        let page = publish::page(&self.feed, span.number, changes).unwrap();
        assert_eq!(page.last_modified, span.modified);
        let kind = if sealed { PageKind::Sealed } else { PageKind::Newest };
        let links = FeedPageLinks::new(BASE, span, kind, self.cleanup);
        let headers = page.feed_headers(&links.with_snapshot(self.cleanup, || SNAPSHOT.into()));
        StoredResponse { status: 200, headers, body: page.body }
    }

    /// Creates a snapshot of the current items.
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
            continuation: Some(Continuation {
                page: publish::page_url(BASE, newest),
                after: self.content_ids().pop(),
            }),
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        let index = StoredResponse { status: 200, headers, body: index.to_json().into() };
        self.snapshot = vec![(SNAPSHOT.into(), index)];
        for (url, page) in urls.into_iter().zip(pages) {
            let response = StoredResponse { status: 200, headers: page.headers(), body: page.body };
            self.snapshot.push((url, response));
        }
    }

    pub(crate) fn content_ids(&self) -> Vec<String> {
        self.log.iter().map(|c| format!("<{}@news>", c.seq)).collect()
    }
}
