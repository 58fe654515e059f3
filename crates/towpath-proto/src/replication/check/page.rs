//! A visit of a page: the findings of reading it once.

use bytes::Bytes;
use http::HeaderMap;
use jiff::Timestamp;
use memchr::memmem;

use super::rules;
use crate::format::http_date;
use crate::format::multipart::{Entity, EntityError, EntityReader};
use crate::replication::wire::{self, FeedPageHead, PageHead};
use crate::report::Report;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageKind {
    Feed,
    Snapshot,
}

/// The findings of reading a page once.
#[derive(Debug)]
pub(super) struct PageVisit {
    pub(super) url: String,
    kind: PageKind,
    /// Headers of a feed page, once they were checked.
    pub(super) head: Option<FeedPageHead>,
    page: Option<PageHead>,
    entities: Option<EntityReader>,
    /// Checksums of the entities, to compare with a second visit.
    checksums: Vec<u32>,
    pub(super) content_ids: Vec<String>,
    /// Last-Modified of the first and the last entity.
    pub(super) first: Option<Timestamp>,
    pub(super) last: Option<Timestamp>,
    is_broken: bool,
}

impl PageVisit {
    pub(super) fn begin(
        url: &str,
        kind: PageKind,
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
        let rule = rules::PAGE_HEADERS;
        let head = PageHead::parse(headers);
        report.judge(rule, head.as_ref().err().map(|e| format!("{url}: {e}")));
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

    /// Ends the page.
    pub(super) fn finish(&mut self, report: &mut Report) {
        if let Some(entities) = &mut self.entities {
            entities.finish();
        }
        self.read_entities(report);
        let Some(page) = &self.page else { return };
        if !self.is_broken {
            report.judge(rules::WHOLE, None);
            let is_empty = self.checksums.is_empty();
            report.judge(rules::NOT_EMPTY, is_empty.then(|| self.url.clone()));
        }
        if let Some(last) = self.last.filter(|_| self.kind == PageKind::Feed) {
            let differs = page.last_modified != last;
            let problem = differs.then(|| format!("{}: {} and not {last}", self.url, page.last_modified));
            report.judge(rules::PAGE_TIME, problem);
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
                    // Nothing after a syntax error can be trusted, so reading ends here. Without the reader the rest
                    // of the page is dropped: kept, each piece would be copied behind all pieces before it.
                    self.is_broken = true;
                    self.entities = None;
                    let problem = Some(format!("{}: {error}", self.url));
                    match error {
                        EntityError::Length { .. } => {
                            let rule = rules::LENGTH;
                            report.judge(rule, problem);
                        }
                        _ => report.judge(rules::WHOLE, problem),
                    }
                }
            }
        }
    }

    fn entity(&mut self, index: u64, entity: &Entity, report: &mut Report) {
        let place = format!("{} entity {index}", self.url);
        // A checksum is enough to notice a change, and a page may have gigabytes.
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(format!("{:?}", entity.headers).as_bytes());
        hasher.update(&entity.body);
        self.checksums.push(hasher.finalize());
        let boundary = self.page.as_ref().map_or("", |page| page.content_type.boundary.as_str());
        // Stricter than the parser, which looks for delimiters at line starts only.
        let is_inside = memmem::find(&entity.body, boundary.as_bytes()).is_some();
        let rule = rules::BOUNDARY;
        report.judge(rule, is_inside.then(|| place.clone()));
        let has = |name: &str| entity.headers.get(name).is_some();
        let missing = |name: &str| (!has(name)).then(|| place.clone());
        report.judge(rules::ENTITY_TYPE, missing("content-type"));
        report.judge(rules::ENTITY_TIME, missing("last-modified"));
        if has("content-length") {
            report.judge(rules::LENGTH, None);
        }
        if let Some(text) = entity.headers.get("last-modified") {
            self.last_modified(text, &place, report);
        }
        if self.kind == PageKind::Snapshot {
            return;
        }
        report.judge(rules::ENTITY_ID, missing(wire::CONTENT_ID));
        report.judge(rules::ENTITY_OPERATION, missing(wire::OPERATION_TYPE));
        if let Some(op) = entity.headers.get(wire::OPERATION_TYPE) {
            let problem = wire::parse_operation_type(op).err().map(|op| format!("{place}: {op:?}"));
            report.judge(rules::OPERATION, problem);
            // Accepted by our follower, but the text's own form has the prefix.
            let is_bare = !op.starts_with("http-equiv=");
            let rule = rules::OPERATION_FORM;
            report.judge(rule, is_bare.then(|| place.clone()));
        }
        self.content_ids.extend(entity.headers.get(wire::CONTENT_ID).map(str::to_owned));
    }

    fn last_modified(&mut self, text: &str, place: &str, report: &mut Report) {
        let time = http_date::parse(text);
        let problem = time.as_ref().err().map(|e| format!("{place}: {e}"));
        report.judge(rules::TIME_FORM, problem);
        let Ok(time) = time else { return };
        let is_exact = http_date::write(time) == text;
        let rule = rules::TIME_EXACT;
        report.judge(rule, (!is_exact).then(|| format!("{place}: {text}")));
        // Entities of a snapshot have no order.
        if self.kind == PageKind::Feed {
            let before = self.last.filter(|last| *last > time);
            let problem = before.map(|before| format!("{place}: {time} after {before}"));
            report.judge(rules::TIME_ORDER, problem);
        }
        self.first = self.first.or(Some(time));
        self.last = Some(time);
    }

    /// Compares with a second visit; returns the first difference. The newest page may have grown.
    pub(super) fn difference(&self, again: &Self) -> Option<String> {
        // A page without `next` is the newest one.
        let may_grow = self.kind == PageKind::Feed && self.head.as_ref().is_some_and(|h| h.next.is_none());
        let differs = self.checksums.iter().zip(&again.checksums).position(|(a, b)| a != b);
        if let Some(index) = differs {
            return Some(format!("{} entity {index} is another one in a second visit", self.url));
        }
        let (before, after) = (self.checksums.len(), again.checksums.len());
        let is_fine = if may_grow { after >= before } else { after == before };
        (!is_fine).then(|| format!("{} had {before} entities, and {after} in a second visit", self.url))
    }
}
