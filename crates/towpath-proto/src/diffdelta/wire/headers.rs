//! Response headers and paths of every resource (sections 1 and 6).

use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::cursor::Cursor;

/// Content-Type of every body (sections 1 and 6.5).
pub const JSON: &str = "application/json; charset=utf-8";
/// Cache-Control of files that every run rewrites (section 6.4).
pub const MUTABLE: &str = "public, max-age=60, must-revalidate";
/// Seconds for which caches may keep such a file.
pub const MUTABLE_SEC: u64 = 60;
/// Cache-Control of files that are never rewritten (section 6.4).
pub const IMMUTABLE: &str = "public, max-age=31536000, immutable";
/// Header with the cache directives for CDNs (section 6.3).
pub const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

/// A kind of resource; it decides the response headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource {
    /// `head.json`.
    Head,
    /// `latest.json`.
    Latest,
    /// An archive snapshot.
    Snapshot,
    /// The archive's index.
    ArchiveIndex,
    /// A JSON Schema.
    Schema,
    /// `/.well-known/diffdelta.json`.
    Manifest,
    /// `/diff/sources.json`.
    Sources,
    /// `/diff/known_issues.json`.
    KnownIssues,
    /// `/healthz.json`.
    Health,
}

impl Resource {
    /// Returns the value of `Cache-Control` and `CDN-Cache-Control` (section 6.4).
    pub fn cache_control(self) -> &'static str {
        match self {
            // A schema is immutable too: its path holds the version (section 6.4).
            Self::Snapshot | Self::Schema => IMMUTABLE,
            Self::Head
            | Self::Latest
            | Self::ArchiveIndex
            | Self::Manifest
            | Self::Sources
            | Self::KnownIssues
            | Self::Health => MUTABLE,
        }
    }

    /// Returns the strong `ETag`, quotes included.
    ///
    /// Head and latest use the cursor (section 6.1), all others the SHA-256 of the body.
    pub fn etag(self, cursor: Cursor, body: &[u8]) -> String {
        match self {
            // A carried document has new times but the same cursor, so a poller still gets its 304.
            Self::Head | Self::Latest => format!("\"{cursor}\""),
            _ => format!("\"{}\"", Cursor::of(body)),
        }
    }

    /// Returns all headers of a document of this kind. `cursor` is used by head and latest only.
    pub fn headers(self, cursor: Cursor, body: &[u8]) -> HeaderMap {
        let cache = HeaderValue::from_static(self.cache_control());
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
        headers.insert(CACHE_CONTROL, cache.clone());
        // Section 6.3: both headers stand side by side, with equal directives.
        headers.insert(CDN_CACHE_CONTROL, cache);
        // Always valid: hex digits in quotes.
        if let Ok(etag) = HeaderValue::from_str(&self.etag(cursor, body)) {
            headers.insert(ETAG, etag);
        }
        headers
    }
}

/// Returns both paths of a source's `head.json` or `latest.json`, or the one path of the global feed.
pub fn paths(source: Option<&str>, file: &str) -> Vec<String> {
    match source {
        // The second path is that of existing clients, which ask for `/diff/source/…`. Both serve the same
        // bytes.
        Some(id) => vec![format!("/diff/{id}/{file}"), format!("/diff/source/{id}/{file}")],
        None => vec![format!("/diff/{file}")],
    }
}

/// Returns the path of a source's archive index, or of the global feed's for `None`.
pub fn archive_index_path(source: Option<&str>) -> String {
    format!("/archive/{}/index.json", source.unwrap_or(super::documents::GLOBAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 6.4's table, and sections 6.1, 6.3 and 6.5.
    #[test]
    fn headers_follow_the_table() {
        for (resource, cache) in [
            (Resource::Head, "public, max-age=60, must-revalidate"),
            (Resource::Latest, "public, max-age=60, must-revalidate"),
            (Resource::ArchiveIndex, "public, max-age=60, must-revalidate"),
            (Resource::Snapshot, "public, max-age=31536000, immutable"),
            (Resource::Schema, "public, max-age=31536000, immutable"),
        ] {
            let headers = resource.headers(Cursor::ZERO, b"{}");
            assert_eq!(headers["cache-control"], cache);
            assert_eq!(headers["cdn-cache-control"], cache);
            assert_eq!(headers["content-type"], "application/json; charset=utf-8");
        }
        let quoted = format!("\"{}\"", Cursor::ZERO);
        assert_eq!(Resource::Head.headers(Cursor::ZERO, b"{}")["etag"], quoted);
        assert_eq!(Resource::Latest.headers(Cursor::ZERO, b"{}")["etag"], quoted);
        let hash = format!("\"{}\"", Cursor::of(b"{}"));
        assert_eq!(Resource::Health.headers(Cursor::ZERO, b"{}")["etag"], hash);
    }
}
