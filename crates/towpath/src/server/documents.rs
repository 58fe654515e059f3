//! Where prebuilt documents are looked up.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::announce::Announcer;
use super::document::Document;

/// All prebuilt documents, by path and query, as far as memory allows.
///
/// What clients make up by their queries has memory of its own, so that it never drives out the documents.
/// What not everybody may read is never kept. What is kept says where its feed's moves are told of.
pub struct Documents {
    cache: Cache<Box<str>, Arc<Document>, ByBytes>,
    answers: Cache<Box<str>, Arc<Document>, ByBytes>,
    announcer: Arc<Announcer>,
}

/// The longest address of an answer that is kept, in bytes.
const MAX_ANSWER_PATH: usize = 256;
/// The largest answer that is kept, in bytes.
const MAX_ANSWER: usize = 256 << 10;

#[derive(Clone)]
struct ByBytes;

impl Weighter<Box<str>, Arc<Document>> for ByBytes {
    fn weight(&self, key: &Box<str>, document: &Arc<Document>) -> u64 {
        document.weight() + key.len() as u64
    }
}

impl Documents {
    /// A cache of so many bytes.
    pub fn new(bytes: u64, announcer: Arc<Announcer>) -> Self {
        let cache = |bytes: u64| Cache::with_weighter((bytes / 4096).max(64) as usize, bytes, ByBytes);
        let answers = bytes / 4;
        Self { cache: cache(bytes - answers), answers: cache(answers), announcer }
    }

    /// The document at a path, if it is in memory and current.
    pub fn get(&self, path: &str) -> Option<Arc<Document>> {
        let known = self.cache.get(path).or_else(|| self.answers.get(path));
        known.filter(|document| document.is_current())
    }

    /// Keeps the answer to a query, if it is one that is worth it.
    pub fn put_answer(&self, path: &str, document: Document) -> Arc<Document> {
        let document = Arc::new(document.announced(&self.announcer, path));
        let is_small = path.len() <= MAX_ANSWER_PATH && document.body.len() <= MAX_ANSWER;
        if is_small && !self.announcer.is_private(path) {
            self.answers.insert(path.into(), document.clone());
        }
        document
    }

    /// Keeps a document, in place of whatever was there.
    pub fn put(&self, path: &str, document: Document) -> Arc<Document> {
        self.put_all(&[path], document)
    }

    /// The same at several paths, which are one feed's or no feed's.
    pub fn put_all(&self, paths: &[&str], document: Document) -> Arc<Document> {
        let document = match paths.first() {
            Some(path) => document.announced(&self.announcer, path),
            None => document,
        };
        let document = Arc::new(document);
        for path in paths.iter().filter(|path| !self.announcer.is_private(path)) {
            self.cache.insert((*path).into(), document.clone());
        }
        document
    }

    /// Forgets the document at a path.
    pub fn forget(&self, path: &str) {
        self.cache.remove(path);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;
    use http::HeaderMap;

    use super::super::document::Valid;
    use super::*;

    fn plain(body: &[u8]) -> Document {
        Document::new(Bytes::copy_from_slice(body), HeaderMap::new(), Valid::Immutable)
    }

    #[test]
    fn a_document_of_a_feed_that_moved_is_not_served() {
        let head = Arc::new(AtomicU64::new(7));
        let valid = Valid::At { head: head.clone(), seq: 7 };
        let documents = Documents::new(1 << 20, Arc::default());
        documents.put("/x", Document::new(Bytes::new(), HeaderMap::new(), valid));
        assert!(documents.get("/x").is_some());
        head.store(8, Ordering::Release);
        assert!(documents.get("/x").is_none());
    }

    #[test]
    fn what_clients_make_up_never_drives_out_the_documents() {
        let documents = Documents::new(1 << 20, Arc::default());
        documents.put("/x", plain(b"x"));
        documents.put_answer("/long", plain(&vec![0; MAX_ANSWER + 1]));
        documents.put_answer(&"/l".repeat(MAX_ANSWER_PATH), plain(b"l"));
        assert!(documents.get("/long").is_none() && documents.get(&"/l".repeat(MAX_ANSWER_PATH)).is_none());
        for n in 0..10_000 {
            documents.put_answer(&format!("/a?{n}"), plain(&[0; 1000]));
        }
        assert!(documents.get("/x").is_some());
        assert!(documents.answers.weight() <= 1 << 18);
    }

    #[test]
    fn nothing_of_a_private_feed_is_kept() {
        let private = [towpath_proto::FeedId::new("mine").unwrap()].into();
        let documents = Documents::new(1 << 20, Arc::new(Announcer::new("", private, "")));
        for path in ["/diff/mine/head.json", "/diff/source/mine/latest.json", "/archive/mine/index.json"] {
            documents.put(path, plain(b"x"));
            assert!(documents.get(path).is_none(), "{path}");
        }
        for path in ["/feeds/mine/items?max=1", "/feeds/mine/items#atom", "/feeds/%6dine/items?a"] {
            documents.put_answer(path, plain(b"x"));
            assert!(documents.get(path).is_none(), "{path}");
        }
        documents.put("/diff/other/head.json", plain(b"x"));
        assert!(documents.get("/diff/other/head.json").is_some());
    }
}
