//! One visit of one page.

use bytes::Bytes;
use http::HeaderMap;
use jiff::Timestamp;
use memchr::memmem;

use crate::format::http_date;
use crate::format::multipart::{Entity, EntityError, EntityReader};
use crate::replication::wire::{self, FeedPageHead, PageHead};
use crate::report::Report;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Feed,
    Snapshot,
}

/// What one reading of a page found.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) url: String,
    kind: Kind,
    /// The feed page's headers, once they were looked at.
    pub(super) head: Option<FeedPageHead>,
    page: Option<PageHead>,
    entities: Option<EntityReader>,
    /// A checksum of each entity.
    checksums: Vec<u32>,
    pub(super) content_ids: Vec<String>,
    /// The Last-Modified of the first and of the last entity.
    pub(super) first: Option<Timestamp>,
    pub(super) last: Option<Timestamp>,
    is_broken: bool,
}

const ENTITY: &str = "Required and optional entity headers";
const FEED_ENTITY: &str = "Additional headers for feed entities";

impl Visit {
    pub(super) fn begin(
        url: &str,
        kind: Kind,
        headers: &HeaderMap,
        max_entity: usize,
        report: &mut Report,
    ) -> Self {
        let mut visit = Self {
            url: url.to_owned(),
            kind,
            head: None,
            page: None,
            entities: None,
            checksums: Vec::new(),
            content_ids: Vec::new(),
            first: None,
            last: None,
            is_broken: false,
        };
        let rule = "A page has a multipart Content-Type with a boundary, and a Last-Modified";
        let head = PageHead::parse(headers);
        report.must("Page format", rule, head.as_ref().err().map(|e| format!("{url}: {e}")));
        visit.page = head.ok();
        let reader = visit.page.as_ref().map(|page| EntityReader::new(&page.content_type, max_entity));
        visit.entities = reader.and_then(Result::ok);
        visit
    }

    pub(super) fn read(&mut self, piece: Bytes, report: &mut Report) {
        if let Some(entities) = &mut self.entities {
            entities.push(piece);
        }
        self.read_entities(report);
    }

    /// The page has ended.
    pub(super) fn finish(&mut self, report: &mut Report) {
        if let Some(entities) = &mut self.entities {
            entities.finish();
        }
        self.read_entities(report);
        let Some(page) = &self.page else { return };
        if !self.is_broken {
            report.must("Page format", "A page is whole, well-formed multipart", None);
            let is_empty = self.checksums.is_empty();
            report.must("Page format", "A page has at least one entity", is_empty.then(|| self.url.clone()));
        }
        if let Some(last) = self.last.filter(|_| self.kind == Kind::Feed) {
            let differs = page.last_modified != last;
            let problem = differs.then(|| format!("{}: {} and not {last}", self.url, page.last_modified));
            report.should("Last-Modified", "A page's Last-Modified is its last entity's", problem);
        }
    }

    fn read_entities(&mut self, report: &mut Report) {
        while !self.is_broken {
            let Some(entities) = &mut self.entities else { return };
            let index = entities.index();
            match entities.poll_entity() {
                Ok(Some(entity)) => self.entity(index, &entity, report),
                Ok(None) => return,
                Err(error) => {
                    self.is_broken = true;
                    let problem = Some(format!("{}: {error}", self.url));
                    match error {
                        EntityError::Length { .. } => {
                            let rule = "A Content-Length is the size of the entity's content";
                            report.must("Content-Length", rule, problem);
                        }
                        _ => report.must("Page format", "A page is whole, well-formed multipart", problem),
                    }
                }
            }
        }
    }

    fn entity(&mut self, index: u64, entity: &Entity, report: &mut Report) {
        let place = format!("{} entity {index}", self.url);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(format!("{:?}", entity.headers).as_bytes());
        hasher.update(&entity.body);
        self.checksums.push(hasher.finalize());
        let boundary = self.page.as_ref().map_or("", |page| page.content_type.boundary.as_str());
        let is_inside = memmem::find(&entity.body, boundary.as_bytes()).is_some();
        let rule = "The boundary is not found in the content";
        report.must("Page format", rule, is_inside.then(|| place.clone()));
        let has = |name: &str| entity.headers.get(name).is_some();
        let missing = |name: &str| (!has(name)).then(|| place.clone());
        report.must(ENTITY, "Every entity has a Content-Type", missing("content-type"));
        report.must(ENTITY, "Every entity has a Last-Modified", missing("last-modified"));
        if has("content-length") {
            report.must("Content-Length", "A Content-Length is the size of the entity's content", None);
        }
        if let Some(text) = entity.headers.get("last-modified") {
            self.last_modified(text, &place, report);
        }
        if self.kind == Kind::Snapshot {
            return;
        }
        report.must(FEED_ENTITY, "Every entity of a feed has a Content-ID", missing(wire::CONTENT_ID));
        report.must(
            FEED_ENTITY,
            "Every entity of a feed has an Operation-Type",
            missing(wire::OPERATION_TYPE),
        );
        if let Some(op) = entity.headers.get(wire::OPERATION_TYPE) {
            let problem = wire::parse_operation_type(op).err().map(|op| format!("{place}: {op:?}"));
            report.must("Operation-Type", "An Operation-Type is PUT, PATCH or DELETE", problem);
            let is_bare = !op.starts_with("http-equiv=");
            let rule = "An Operation-Type is written as http-equiv=";
            report.should("Operation-Type", rule, is_bare.then(|| place.clone()));
        }
        self.content_ids.extend(entity.headers.get(wire::CONTENT_ID).map(str::to_owned));
    }

    fn last_modified(&mut self, text: &str, place: &str, report: &mut Report) {
        let time = http_date::parse(text);
        let problem = time.as_ref().err().map(|e| format!("{place}: {e}"));
        report.must("Last-Modified", "Timestamps have the form of HTTP", problem);
        let Ok(time) = time else { return };
        let is_exact = http_date::write(time) == text;
        let rule = "Timestamps are written as IMF-fixdate";
        report.should("Last-Modified", rule, (!is_exact).then(|| format!("{place}: {text}")));
        if self.kind == Kind::Feed {
            let before = self.last.filter(|last| *last > time);
            let problem = before.map(|before| format!("{place}: {time} after {before}"));
            report.must("Last-Modified", "Timestamps never decrease within a page", problem);
        }
        self.first = self.first.or(Some(time));
        self.last = Some(time);
    }

    /// What is different in a second visit of the same page, if anything. The newest page of a feed may have
    /// gained entities.
    pub(super) fn changed(&self, again: &Self) -> Option<String> {
        let may_grow = self.kind == Kind::Feed && self.head.as_ref().is_some_and(|h| h.next.is_none());
        let differs = self.checksums.iter().zip(&again.checksums).position(|(a, b)| a != b);
        if let Some(index) = differs {
            return Some(format!("{} entity {index} is another one in a second visit", self.url));
        }
        let (before, after) = (self.checksums.len(), again.checksums.len());
        let is_fine = if may_grow { after >= before } else { after == before };
        (!is_fine).then(|| format!("{} had {before} entities, and {after} in a second visit", self.url))
    }
}
