//! Multipart pages of feeds and snapshots, as they are served.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use memchr::memmem;
use sha2::{Digest, Sha256};

use super::pages::{Cleanup, PageSpan};
use crate::change::Change;
use crate::feed_id::FeedId;
use crate::format::multipart::{Boundary, Entity, close_len, entity_len, write_close, write_entity};
use crate::format::{http_date, link};
use crate::replication::wire::entity;

/// Version of the page format, part of every digest. Increment it if equal changes give different bytes.
const FORM: &[u8] = b"towpath page 1";

/// Kind of a feed page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// The newest page, which may grow.
    Newest,
    /// A full page, whose span is stored: it never changes, and a page follows it.
    Sealed,
}

/// The links of a feed page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPageLinks {
    /// URL of the page.
    pub own: String,
    /// URL of the previous page, if it is still listed.
    pub prev: Option<String>,
    /// URL of the next page; only a sealed page has one.
    pub next: Option<String>,
    /// URL of the latest snapshot, if pages before this one were removed.
    pub snapshot: Option<String>,
}

impl FeedPageLinks {
    /// Returns the links of a page.
    ///
    /// `base` is the absolute URL of the feed's newest page, without a final slash; pages are below it.
    pub fn new(base: &str, page: &PageSpan, kind: PageKind, cleanup: Cleanup) -> Self {
        let number = page.number;
        Self {
            own: page_url(base, number),
            prev: cleanup.has_prev(number).then(|| page_url(base, number - 1)),
            next: (kind == PageKind::Sealed).then(|| page_url(base, number + 1)),
            snapshot: None,
        }
    }

    /// Adds the URL of the latest snapshot to the oldest and the newest page of a feed that has lost its first pages.
    ///
    /// Without it, a reader who finds no `prev` takes the oldest page for the beginning of the feed.
    #[must_use]
    pub fn with_snapshot(self, cleanup: Cleanup, url: impl FnOnce() -> String) -> Self {
        let is_end = self.prev.is_none() || self.next.is_none();
        let snapshot = (cleanup.first_page > 1 && is_end).then(url);
        Self { snapshot, ..self }
    }
}

/// Returns the URL of a page: `{base}/pages/{number}`.
pub fn page_url(base: &str, number: u64) -> String {
    format!("{base}/pages/{number}")
}

/// A multipart page as it is served. HEAD has the same headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultipartPage {
    /// The multipart body.
    pub body: Bytes,
    /// `multipart/mixed; boundary="…"`.
    pub content_type: String,
    /// Time of the last entity.
    pub last_modified: Timestamp,
    /// Digest of the body, for a strong ETag.
    pub digest: [u8; 32],
}

impl MultipartPage {
    /// Returns the headers of a snapshot page ("Snapshot Overview", "Required headers"), and its ETag.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        insert(&mut headers, header::CONTENT_TYPE, &self.content_type);
        insert(&mut headers, header::LAST_MODIFIED, &http_date::write(self.last_modified));
        // 16 bytes of SHA-256 are enough for a validator.
        insert(&mut headers, header::ETAG, &format!("\"{}\"", hex::encode(&self.digest[..16])));
        headers
    }

    /// Returns the headers of a feed page ("Feed", "Required headers"): Link lines for self, prev and next.
    ///
    /// The ETag covers body and links, so a follower that revalidates the newest page sees it become sealed.
    pub fn feed_headers(&self, links: &FeedPageLinks) -> HeaderMap {
        let mut headers = self.headers();
        let mut digest = Sha256::new().chain_update(self.digest);
        let targets = [
            ("self", Some(&links.own)),
            ("prev", links.prev.as_ref()),
            ("next", links.next.as_ref()),
            ("snapshot", links.snapshot.as_ref()),
        ];
        for (rel, target) in targets {
            let Some(target) = target else { continue };
            let line = link::write(target, rel);
            digest.update(&line);
            if let Ok(value) = HeaderValue::from_str(&line) {
                // One line for each link: some consumers do not split comma-joined links.
                headers.append(header::LINK, value);
            }
        }
        insert(&mut headers, header::ETAG, &format!("\"{}\"", hex::encode(&digest.finalize()[..16])));
        headers
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Collects entities and writes them as a page. Bodies are not copied before [`finish`](Self::finish).
///
/// The boundary is derived from a digest of the content, and checked to be absent from it. Equal changes
/// therefore give equal bytes at any time. The boundary of the newest page changes as it grows.
#[derive(Debug)]
pub struct PageBuilder {
    entities: Vec<Entity>,
    digest: Sha256,
    /// Digest input of one entity's headers.
    scratch: Vec<u8>,
    last_modified: Option<Timestamp>,
}

impl PageBuilder {
    /// Creates an empty page. `name` distinguishes pages of equal content.
    pub fn new(name: &str) -> Self {
        let digest = Sha256::new().chain_update(FORM).chain_update(name);
        Self { entities: Vec::new(), digest, scratch: Vec::new(), last_modified: None }
    }

    /// Appends an entity.
    pub fn push(&mut self, entity: Entity, modified: Timestamp) {
        // Joined, because a hasher is slow with pieces of a few bytes.
        self.scratch.clear();
        for (name, value) in entity.headers.iter() {
            for text in [name, value] {
                // Lengths keep different headers from giving the same digest input.
                self.scratch.extend_from_slice(&(text.len() as u64).to_be_bytes());
                self.scratch.extend_from_slice(text.as_bytes());
            }
        }
        // No header has this length, so it separates the headers from the body.
        self.scratch.extend_from_slice(&u64::MAX.to_be_bytes());
        self.scratch.extend_from_slice(&(entity.body.len() as u64).to_be_bytes());
        self.digest.update(&self.scratch);
        self.digest.update(&entity.body);
        self.last_modified = self.last_modified.max(Some(modified));
        self.entities.push(entity);
    }

    /// Returns the number of entities.
    pub fn len(&self) -> usize {
        self.entities.len()
    }

    /// Returns true if the page has no entities.
    pub fn is_empty(&self) -> bool {
        self.entities.is_empty()
    }

    /// Writes the page. Returns `None` without entities: "empty pages are not possible".
    pub fn finish(self) -> Option<MultipartPage> {
        let last_modified = self.last_modified?;
        let digest: [u8; 32] = self.digest.finalize().into();
        // A boundary inside a body would end the entity early. The search makes that impossible instead of
        // unlikely.
        let boundary = Boundary::choose(&digest, |delimiter| is_absent(&self.entities, delimiter));
        let lengths =
            self.entities.iter().map(|e| entity_len(&boundary, e.headers.iter(), e.body.len() as u64));
        // The exact size is known, so that a page of many megabytes is not copied while it grows.
        let mut body = Vec::with_capacity((lengths.sum::<u64>() + close_len(&boundary)) as usize);
        for entity in &self.entities {
            write_entity(&mut body, &boundary, entity.headers.iter(), &entity.body);
        }
        write_close(&mut body, &boundary);
        Some(MultipartPage {
            body: body.into(),
            content_type: boundary.content_type(),
            last_modified,
            digest,
        })
    }
}

fn is_absent(entities: &[Entity], delimiter: &[u8]) -> bool {
    let finder = memmem::Finder::new(delimiter);
    let absent = |text: &[u8]| finder.find(text).is_none();
    entities.iter().all(|entity| {
        absent(&entity.body)
            && entity.headers.iter().all(|(n, v)| absent(n.as_bytes()) && absent(v.as_bytes()))
    })
}

/// Writes a feed page from its changes, which are those of its [`PageSpan`] in order.
pub fn page<'a>(
    feed: &FeedId,
    number: u64,
    changes: impl IntoIterator<Item = &'a Change>,
) -> Option<MultipartPage> {
    let mut builder = PageBuilder::new(&format!("{feed}/{number}"));
    for change in changes {
        builder.push(entity::feed_entity(feed, change), change.modified);
    }
    builder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Op;
    use crate::format::multipart::{ContentType, EntityReader};
    use crate::item::{Content, ContentHash, Item};

    fn feed() -> FeedId {
        FeedId::new("news").unwrap()
    }

    pub(crate) fn change(seq: u64, op: Op, item: Item) -> Change {
        let modified = Timestamp::from_second(1_700_000_000 + seq as i64).unwrap();
        Change {
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
        }
    }

    fn changes() -> Vec<Change> {
        let raw = Item { content: Some(Content::new("text/plain", "hello")), ..Item::new("a") };
        let titled = Item { title: Some("Grüße 😀\u{7f}".into()), ..Item::new("b\n") };
        let mut patch = change(4, Op::Patch, raw.clone());
        patch.patch = Some(Content::new("application/merge-patch+json", "{\"x\":1}"));
        vec![
            change(1, Op::Put, raw),
            change(2, Op::Put, titled),
            change(3, Op::Delete, Item::new("a")),
            patch,
        ]
    }

    fn entities(page: &MultipartPage) -> Vec<Entity> {
        let mut reader =
            EntityReader::new(&ContentType::parse(&page.content_type).unwrap(), 1 << 20).unwrap();
        reader.push(page.body.clone());
        let mut entities = Vec::new();
        while let Some(entity) = reader.poll_entity().unwrap() {
            entities.push(entity);
        }
        assert!(reader.is_complete());
        entities
    }

    #[test]
    fn required_headers_of_pages_and_entities() {
        let page = page(&feed(), 1, &changes()).unwrap();
        let links = FeedPageLinks {
            own: "https://e.com/pages/2".into(),
            prev: Some("https://e.com/pages/1".into()),
            next: Some("https://e.com/pages/3".into()),
            snapshot: None,
        };
        let headers = page.feed_headers(&links);
        let lines: Vec<_> = headers.get_all(header::LINK).iter().map(|l| l.to_str().unwrap()).collect();
        let expected = [
            "<https://e.com/pages/2>; rel=\"self\"",
            "<https://e.com/pages/1>; rel=\"prev\"",
            "<https://e.com/pages/3>; rel=\"next\"",
        ];
        assert_eq!(lines, expected);
        assert_eq!(headers[header::LAST_MODIFIED], http_date::write(changes()[3].modified));
        let found = entities(&page);
        let first: Vec<_> = found[0].headers.iter().collect();
        let expected = [
            ("Operation-Type", "http-equiv=PUT"),
            ("Content-Type", "text/plain"),
            ("Content-ID", "<1@news>"),
            ("Last-Modified", "Tue, 14 Nov 2023 22:13:21 GMT"),
            ("Content-Length", "5"),
            ("Towpath-Item", "{\"id\":\"a\"}"),
        ];
        assert_eq!(first, expected);
        assert_eq!(found[1].headers.get("content-type"), Some("application/octet-stream"));
        let item =
            "{\"id\":\"b\\n\",\"title\":\"Gr\\u00fc\\u00dfe \\ud83d\\ude00\\u007f\",\"content\":false}";
        assert_eq!(found[1].headers.get("towpath-item"), Some(item));
        assert_eq!((found[2].body.len(), found[2].headers.get("content-type").is_some()), (0, true));
        assert_eq!(found[3].headers.get("operation-type"), Some("http-equiv=PATCH"));
        assert_eq!(found[3].body, "{\"x\":1}");
    }

    #[test]
    fn immutability_equal_changes_give_equal_bytes_and_the_etag_covers_links() {
        let one = page(&feed(), 1, &changes()).unwrap();
        assert_eq!(one, page(&feed(), 1, &changes()).unwrap());
        assert_ne!(one.content_type, page(&feed(), 2, &changes()).unwrap().content_type);
        let mut links =
            FeedPageLinks { own: "https://e.com/1".into(), prev: None, next: None, snapshot: None };
        let growing = one.feed_headers(&links)[header::ETAG].clone();
        links.next = Some("https://e.com/2".into());
        assert_ne!(growing, one.feed_headers(&links)[header::ETAG]);
    }

    #[test]
    fn page_format_an_empty_page_is_impossible() {
        assert_eq!(page(&feed(), 1, &[]), None);
    }

    #[test]
    fn links_of_a_page() {
        let time = Timestamp::UNIX_EPOCH;
        let span = |number| PageSpan { number, first: 1, last: 1, bytes: 0, oldest: time, modified: time };
        let links = FeedPageLinks::new("https://e.com/f", &span(1), PageKind::Newest, Cleanup::default());
        let own = "https://e.com/f/pages/1".to_owned();
        assert_eq!(links, FeedPageLinks { own, prev: None, next: None, snapshot: None });
        let cleanup = Cleanup { first_page: 4, gone_below: 2 };
        assert_eq!(FeedPageLinks::new("b", &span(4), PageKind::Sealed, cleanup).prev, None);
        let links = FeedPageLinks::new("b", &span(5), PageKind::Sealed, cleanup);
        assert_eq!((links.prev.as_deref(), links.next.as_deref()), (Some("b/pages/4"), Some("b/pages/6")));
        // The ends of a feed that lost its first pages lead to its snapshot.
        for (number, kind, cleanup, expected) in [
            (4, PageKind::Sealed, cleanup, true),
            (5, PageKind::Sealed, cleanup, false),
            (6, PageKind::Newest, cleanup, true),
            (1, PageKind::Sealed, Cleanup::default(), false),
        ] {
            let links = FeedPageLinks::new("b", &span(number), kind, cleanup);
            assert_eq!(links.with_snapshot(cleanup, || "s".into()).snapshot.is_some(), expected, "{number}");
        }
    }
}
