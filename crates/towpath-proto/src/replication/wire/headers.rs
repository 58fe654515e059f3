//! Headers of pages and of their entities.

use http::HeaderMap;
use http::header;
use jiff::Timestamp;
use url::Url;

use super::error::ReplicationError;
use crate::change::Op;
use crate::format::multipart::{ContentType, Headers};
use crate::format::{http_date, link};

/// "Additional headers for feed entities": names the entity.
pub const CONTENT_ID: &str = "Content-ID";
/// "Additional headers for feed entities": the operation of the entity.
pub const OPERATION_TYPE: &str = "Operation-Type";
/// Our own header with the rest of the item as JSON: id, title, URL and so on.
///
/// Omitted if a reader restores the identical item without it.
pub const ITEM: &str = "Towpath-Item";
/// Value of [`ITEM`] if the JSON is too long for a header.
///
/// The JSON is then the first line of the body, and the content follows it.
pub const IN_BODY: &str = "body";
/// Content-Type of an entity with [`IN_BODY`]. The content's own type is in the JSON.
pub const IN_BODY_TYPE: &str = "application/vnd.towpath.item";

/// Returns `http-equiv=PUT`, `http-equiv=PATCH` or `http-equiv=DELETE` ("Operation-Type").
pub fn operation_type(op: Op) -> &'static str {
    match op {
        Op::Put => "http-equiv=PUT",
        Op::Patch => "http-equiv=PATCH",
        Op::Delete => "http-equiv=DELETE",
    }
}

/// Parses an Operation-Type; the bare verb is accepted too. Fails with the unknown verb.
pub fn parse_operation_type(value: &str) -> Result<Op, String> {
    // The text's own examples have both forms.
    let verb = value.strip_prefix("http-equiv=").unwrap_or(value).trim();
    match verb {
        "PUT" => Ok(Op::Put),
        "PATCH" => Ok(Op::Patch),
        "DELETE" => Ok(Op::Delete),
        // The value comes from another publisher: an error quotes only its start.
        other => Err(other.chars().take(80).collect()),
    }
}

/// The headers of a page of a snapshot ("Snapshot Overview", "Required headers").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageHead {
    /// The Content-Type, with the boundary.
    pub content_type: ContentType,
    /// The Last-Modified.
    pub last_modified: Timestamp,
}

impl PageHead {
    /// Parses the headers that every page must have.
    pub fn parse(headers: &HeaderMap) -> Result<Self, ReplicationError> {
        let content_type = headers.get(header::CONTENT_TYPE).ok_or(ReplicationError::MissingContentType)?;
        let content_type = ContentType::parse(&String::from_utf8_lossy(content_type.as_bytes()))?;
        let last_modified =
            headers.get(header::LAST_MODIFIED).ok_or(ReplicationError::MissingLastModified)?;
        let last_modified = http_date::parse(&String::from_utf8_lossy(last_modified.as_bytes()))
            .map_err(ReplicationError::InvalidLastModified)?;
        Ok(Self { content_type, last_modified })
    }
}

/// The headers of a page of a feed ("Feed", "Required headers").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPageHead {
    /// The headers that every page has.
    pub page: PageHead,
    /// URL of this page (`rel=self`).
    pub own: String,
    /// URL of the previous page.
    pub prev: Option<String>,
    /// URL of the next page; a page with a next link no longer changes.
    pub next: Option<String>,
    /// URL of a snapshot, on a page before which others were removed (`rel=snapshot`). Our own addition.
    pub snapshot: Option<String>,
    /// The ETag, which covers body and links, if there is one.
    pub etag: Option<String>,
}

impl FeedPageHead {
    /// Parses the headers of the page at `url`.
    pub fn parse(url: &str, headers: &HeaderMap) -> Result<Self, ReplicationError> {
        let page = PageHead::parse(headers)?;
        // Publishers send relative targets, unquoted rels and several links in a line; all are resolved here.
        let links = link::from_headers(headers, Url::parse(url).ok().as_ref());
        let target = |rel| link::target(&links, rel).map(str::to_owned);
        // The entry URL serves the newest page, so only the self link names the page itself.
        let own = target("self").ok_or(ReplicationError::MissingSelfLink)?;
        let etag = headers.get(header::ETAG).and_then(|e| e.to_str().ok()).map(str::to_owned);
        let snapshot = target("snapshot");
        Ok(Self { page, own, prev: target("prev"), next: target("next"), snapshot, etag })
    }
}

/// The headers of an entity of a snapshot ("Required and optional entity headers").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityHead<'a> {
    /// The body's media type.
    pub content_type: &'a str,
    /// Time of the last change.
    pub last_modified: Timestamp,
}

impl<'a> EntityHead<'a> {
    /// Parses the headers that every entity must have, for entity `index` of its page.
    pub fn parse(headers: &'a Headers, index: u64) -> Result<Self, ReplicationError> {
        let missing = |header| ReplicationError::MissingInEntity { index, header };
        let content_type = headers.get("content-type").ok_or(missing("Content-Type"))?;
        let last_modified = headers.get("last-modified").ok_or(missing("Last-Modified"))?;
        let last_modified = http_date::parse(last_modified)
            .map_err(|source| ReplicationError::InvalidLastModifiedInEntity { index, source })?;
        Ok(Self { content_type, last_modified })
    }
}

/// The headers of an entity of a feed ("Additional headers for feed entities").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedEntityHead<'a> {
    /// The headers that every entity has.
    pub entity: EntityHead<'a>,
    /// The Content-ID: opaque, brackets included, compared exactly.
    pub content_id: &'a str,
    /// The operation.
    pub op: Op,
}

impl<'a> FeedEntityHead<'a> {
    /// Parses the headers of entity `index` of its page.
    pub fn parse(headers: &'a Headers, index: u64) -> Result<Self, ReplicationError> {
        let entity = EntityHead::parse(headers, index)?;
        let missing = |header| ReplicationError::MissingInEntity { index, header };
        let content_id = headers.get(CONTENT_ID).ok_or(missing(CONTENT_ID))?;
        let op = headers.get(OPERATION_TYPE).ok_or(missing(OPERATION_TYPE))?;
        let op =
            parse_operation_type(op).map_err(|value| ReplicationError::UnknownOperation { index, value })?;
        Ok(Self { entity, content_id, op })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(pairs: &[(&'static str, &str)]) -> Result<FeedPageHead, ReplicationError> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        FeedPageHead::parse("https://example.com/feed", &headers)
    }

    const TYPE: (&str, &str) = ("content-type", "multipart/mixed; boundary=\"rdm-bny\"");
    const MODIFIED: (&str, &str) = ("last-modified", "Thu, 5 Oct 2023 03:00:14 GMT");
    const SELF: (&str, &str) = ("link", "<https://example.com/2>; rel=self");

    #[test]
    fn case_f_page_headers() {
        let prev = ("link", "<https://example.com/1>; rel=prev");
        let next = ("link", "<https://example.com/3>; rel=next");
        let page = head(&[TYPE, MODIFIED, SELF, prev, next]).unwrap();
        assert_eq!(page.own, "https://example.com/2");
        assert_eq!(page.prev.as_deref(), Some("https://example.com/1"));
        assert_eq!(page.next.as_deref(), Some("https://example.com/3"));
        assert_eq!(page.page.last_modified, "2023-10-05T03:00:14Z".parse().unwrap());
        let page = head(&[TYPE, MODIFIED, SELF]).unwrap();
        assert_eq!((page.prev, page.next), (None, None));
    }

    #[test]
    fn feed_required_headers_are_required() {
        assert_eq!(head(&[TYPE, MODIFIED]), Err(ReplicationError::MissingSelfLink));
        let next = ("link", "<https://example.com/3>; rel=next");
        assert_eq!(head(&[TYPE, MODIFIED, next]), Err(ReplicationError::MissingSelfLink));
        assert_eq!(head(&[TYPE, MODIFIED, ("link", "; rel=self")]), Err(ReplicationError::MissingSelfLink));
        assert_eq!(head(&[TYPE, SELF]), Err(ReplicationError::MissingLastModified));
        assert_eq!(head(&[MODIFIED, SELF]), Err(ReplicationError::MissingContentType));
        let bad = head(&[TYPE, SELF, ("last-modified", "not a valid date")]);
        assert!(matches!(bad, Err(ReplicationError::InvalidLastModified(_))));
        let html = head(&[("content-type", "text/html"), MODIFIED, SELF]);
        assert!(matches!(html, Err(ReplicationError::ContentType(_))));
    }

    fn entity<'a>(headers: &'a Headers) -> Result<FeedEntityHead<'a>, ReplicationError> {
        FeedEntityHead::parse(headers, 7)
    }

    const ENTITY: [(&str, &str); 4] = [
        ("content-type", "text/plain"),
        ("Last-Modified", "Mon, 27 Nov 2023 03:10:00 GMT"),
        ("Content-ID", "<1-A@random>"),
        ("operation-type", "http-equiv=PUT"),
    ];

    #[test]
    fn case_f_entity_headers() {
        let headers: Headers = ENTITY.into_iter().collect();
        let read = entity(&headers).unwrap();
        assert_eq!((read.content_id, read.op), ("<1-A@random>", Op::Put));
        for (left_out, (name, _)) in ENTITY.iter().enumerate() {
            let kept = ENTITY.iter().enumerate().filter(|(n, _)| *n != left_out).map(|(_, pair)| *pair);
            let headers: Headers = kept.collect();
            let error = entity(&headers).unwrap_err();
            let ReplicationError::MissingInEntity { index: 7, header } = error else { panic!("{error}") };
            assert!(header.eq_ignore_ascii_case(name));
        }
    }

    #[test]
    fn operation_type_values() {
        for op in [Op::Put, Op::Patch, Op::Delete] {
            assert_eq!(parse_operation_type(operation_type(op)), Ok(op));
        }
        assert_eq!(parse_operation_type("DELETE"), Ok(Op::Delete));
        assert_eq!(parse_operation_type("http-equiv=CUT"), Err("CUT".to_owned()));
        assert_eq!(parse_operation_type(""), Err(String::new()));
    }
}
