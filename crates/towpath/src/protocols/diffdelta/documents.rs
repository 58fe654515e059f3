//! The cached documents of a chain: `head.json`, `latest.json` and the archive's index.

use std::sync::Arc;

use bytes::Bytes;
use http::header::ETAG;
use towpath_proto::diffdelta::cursor::Cursor;
use towpath_proto::diffdelta::headers::{self, Resource, archive_index_path};
use towpath_proto::diffdelta::publish::DocumentChain;
use towpath_proto::diffdelta::wire::GLOBAL;

use crate::document::prebuilt::{Document, Valid};
use crate::engine::Engine;

/// Current documents of a chain.
pub(super) struct CurrentDocuments {
    head: Arc<Document>,
    latest: Arc<Document>,
}

impl CurrentDocuments {
    /// Returns the document of a file name.
    pub(super) fn named(self, file: &str) -> Arc<Document> {
        if file == "head.json" { self.head } else { self.latest }
    }
}

/// Caches a chain's current documents at all of their addresses.
pub(super) fn put(
    engine: &Engine,
    name: &str,
    chain: &DocumentChain,
    head: Bytes,
    latest: Bytes,
) -> CurrentDocuments {
    let source = (name != GLOBAL).then_some(name);
    let put = |file, resource, body| {
        let paths = headers::paths(source, file);
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        engine.documents.put_all(&paths, make(resource, chain.cursor, body, Valid::UntilReplaced))
    };
    // A mint adds to the index. It is long and seldom read, so it is made on request.
    engine.documents.forget(&archive_index_path(source));
    CurrentDocuments {
        head: put("head.json", Resource::Head, head),
        latest: put("latest.json", Resource::Latest, latest),
    }
}

/// Makes a document with the headers of its resource. Its ETag is the cursor in every coding (section 6.1).
pub(super) fn make(resource: Resource, cursor: Cursor, body: Bytes, valid: Valid) -> Document {
    let headers = resource.headers(cursor, &body);
    let document = Document::new(body, headers, valid).with_one_tag();
    match resource {
        // Carried: with other times, and the same cursor.
        Resource::Head | Resource::Latest => document.without_parts(),
        _ => document,
    }
}

/// Drops a chain's documents from the cache. The next request makes them from the stored chain.
pub(crate) fn forget(engine: &Engine, name: &str) {
    let source = (name != GLOBAL).then_some(name);
    for path in ["head.json", "latest.json"].into_iter().flat_map(|file| headers::paths(source, file)) {
        engine.documents.forget(&path);
    }
    engine.documents.forget(&archive_index_path(source));
}

/// Drops a chain's documents from the cache, unless they have its cursor.
pub(super) fn forget_others(engine: &Engine, name: &str, cursor: Cursor) {
    let source = (name != GLOBAL).then_some(name);
    let tag = Resource::Head.etag(cursor, &[]);
    let is_current = |path: &String| {
        let document = engine.documents.get(path);
        document.is_some_and(|document| document.headers().get(ETAG).is_some_and(|known| *known == tag))
    };
    if !headers::paths(source, "head.json").iter().all(is_current) {
        forget(engine, name);
    }
}

/// Returns a snapshot's path without the site's base URL.
pub(crate) fn archive_path(url: &str) -> &str {
    url.find("/archive/").map_or(url, |at| &url[at..])
}
