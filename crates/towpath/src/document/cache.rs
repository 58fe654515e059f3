//! Cache of prebuilt documents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::document::cors::CorsPolicy;
use crate::document::feed_path::{feed_in, segments};
use crate::document::prebuilt::Document;
use crate::document::sup_links::SupLinks;

/// All prebuilt documents, by path and query, as far as memory allows.
///
/// Answers to queries have memory of their own: queries that clients invent must not evict the documents.
/// Documents of private feeds are never cached. Cached documents carry their feed's SUP link.
pub struct Documents {
    /// Documents of up to [`LARGE`] bytes.
    small: DocumentCache,
    /// Larger documents.
    large: DocumentCache,
    answers: DocumentCache,
    sup_links: Arc<SupLinks>,
    has_warned: AtomicBool,
    cors: Arc<ArcSwap<CorsPolicy>>,
    is_removed: Option<IsRemoved>,
}

/// Returns true for the name of a feed that was removed.
pub type IsRemoved = Box<dyn Fn(&str) -> bool + Send + Sync>;

type DocumentCache = Cache<Box<str>, Arc<Document>, ByBytes>;

/// The longest address of an answer that is kept, in bytes.
// Keys take memory as well: long made-up queries would fill it with little effort.
const MAX_ANSWER_PATH: usize = 256;
/// The largest answer that is kept, in bytes.
const MAX_ANSWER: usize = 256 << 10;
/// The largest document that is kept with the small ones, in bytes.
const LARGE: usize = 256 << 10;

/// Number of parts of a cache, each with a lock of its own.
// Fixed: by default it grows with the cores, and a document that is larger than a part is never kept.
const PARTS: usize = 8;

#[derive(Clone)]
struct ByBytes;

impl Weighter<Box<str>, Arc<Document>> for ByBytes {
    fn weight(&self, key: &Box<str>, document: &Arc<Document>) -> u64 {
        document.weight() + key.len() as u64
    }
}

/// Creates a cache of so many bytes.
fn cache(bytes: u64, parts: usize) -> DocumentCache {
    // The number of items is only an estimate; the weight is what limits it.
    let items = (bytes / 4096).max(64) as usize;
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity(items).weight_capacity(bytes).shards(parts);
    match options.build() {
        Ok(options) => {
            Cache::with_options(options, ByBytes, DefaultHashBuilder::default(), Default::default())
        }
        // Only missing values are an error, and all are given.
        Err(_) => Cache::with_weighter(items, bytes, ByBytes),
    }
}

/// Divides bytes among small documents, large ones and answers.
fn shares(bytes: u64) -> [u64; 3] {
    // In separate caches: one document over all feeds would otherwise push out a thousand small ones.
    [bytes / 4, bytes / 2, bytes / 4]
}

impl Documents {
    /// A cache of so many bytes: half for large documents, a quarter for small ones, a quarter for answers to queries.
    pub fn new(bytes: u64, sup_links: Arc<SupLinks>) -> Self {
        let [small, large, answers] = shares(bytes);
        Self {
            small: cache(small, PARTS),
            // In one part, so that one document may take nearly all of it.
            large: cache(large, 1),
            answers: cache(answers, PARTS),
            sup_links,
            cors: Arc::default(),
            has_warned: AtomicBool::new(false),
            is_removed: None,
        }
    }

    /// Keeps no document of a removed feed. The feed must be marked as removed before [`clear`](Self::clear) is called.
    #[must_use]
    pub fn without_removed(self, is_removed: IsRemoved) -> Self {
        Self { is_removed: Some(is_removed), ..self }
    }

    /// Adds the headers of a CORS policy to all documents. It must be replaced before [`clear`](Self::clear) is called.
    #[must_use]
    pub fn with_cors(self, cors: Arc<ArcSwap<CorsPolicy>>) -> Self {
        Self { cors, ..self }
    }

    /// Replaces the number of bytes. Documents beyond it are forgotten.
    pub fn set_capacity(&self, bytes: u64) {
        let [small, large, answers] = shares(bytes);
        self.small.set_capacity(small);
        self.large.set_capacity(large);
        self.answers.set_capacity(answers);
        // The operator may have acted on the warning, and wants to know if it was enough.
        self.has_warned.store(false, Ordering::Relaxed);
    }

    /// The document at a path, if it is in memory and current.
    pub fn get(&self, path: &str) -> Option<Arc<Document>> {
        let known = self.small.get(path).or_else(|| self.large.get(path)).or_else(|| self.answers.get(path));
        // An outdated document stays in the cache until it is replaced, so no append has to remove any.
        known.filter(|document| document.is_current())
    }

    /// Keeps the answer to a query, if it is one that is worth it.
    pub fn put_answer(&self, path: &str, document: Document) -> Arc<Document> {
        let cors = self.cors.load_full();
        let document = Arc::new(document.with_sup_link(&self.sup_links, path).with_cors(&cors));
        // One large answer would evict many small ones that are requested more often.
        let is_small = path.len() <= MAX_ANSWER_PATH && document.body.len() <= MAX_ANSWER;
        if is_small && !self.sup_links.is_private(path) {
            // Inserted before the look: a removal marks first and clears then. So either this sees the mark, or the
            // clearing sees this.
            self.answers.insert(path.into(), document.clone());
            if self.is_of_removed(path) || self.has_changed(&cors) {
                self.answers.remove(path);
            }
        }
        document
    }

    /// Keeps a document, in place of whatever was there.
    pub fn put(&self, path: &str, document: Document) -> Arc<Document> {
        self.put_all(&[path], document)
    }

    /// Caches a document at several paths, which must belong to the same feed or to none.
    pub fn put_all(&self, paths: &[&str], document: Document) -> Arc<Document> {
        let cors = self.cors.load_full();
        let document = match paths.first() {
            Some(path) => document.with_sup_link(&self.sup_links, path).with_cors(&cors),
            None => document,
        };
        let document = Arc::new(document);
        let is_large = document.body.len() > LARGE;
        let (cache, other) = if is_large { (&self.large, &self.small) } else { (&self.small, &self.large) };
        for path in paths.iter().filter(|path| !self.sup_links.is_private(path)) {
            // The earlier document may have been of the other size.
            other.remove(*path);
            cache.insert((*path).into(), document.clone());
            if self.is_of_removed(path) || self.has_changed(&cors) {
                cache.remove(*path);
            }
        }
        if is_large {
            self.warn_if_too_large(paths, &document);
        }
        document
    }

    /// Returns true for a document that was made while its feed was being removed, and comes after all were forgotten.
    // Asked after the document is in the cache. A removal that this does not see yet has still to clear the cache.
    fn is_of_removed(&self, path: &str) -> bool {
        let Some(is_removed) = &self.is_removed else { return false };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        // DiffDelta, section 1.3: the archive of a removed feed stays.
        if path.starts_with("/archive/") {
            return false;
        }
        let Ok(segments) = segments(path) else { return true };
        let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
        feed_in(&segments).is_some_and(is_removed)
    }

    /// Returns true if the policy was replaced while a document with its headers was made.
    // As above: asked after the document is in the cache.
    fn has_changed(&self, cors: &Arc<CorsPolicy>) -> bool {
        !Arc::ptr_eq(cors, &self.cors.load())
    }

    /// Warns once of a document that is made anew for each request, since the cache has no room for it.
    fn warn_if_too_large(&self, paths: &[&str], document: &Document) {
        let capacity = self.large.capacity();
        let is_too_large = capacity > 0 && document.weight() > capacity / 100 * 97;
        if is_too_large && !self.has_warned.swap(true, Ordering::Relaxed) {
            let mib = document.weight() >> 20;
            tracing::warn!(
                path = paths.first().copied().unwrap_or_default(),
                mib,
                needed_mib = mib * 2,
                "a document does not fit into the cache, so every request makes it anew; set [server] cache_mib to more \
                 than needed_mib"
            );
        }
    }

    /// Forgets all documents.
    pub fn clear(&self) {
        [&self.small, &self.large, &self.answers].into_iter().for_each(Cache::clear);
    }

    /// Forgets the document at a path.
    pub fn forget(&self, path: &str) {
        // Not the answers: those have queries, and are outdated by the head of their log.
        self.small.remove(path);
        self.large.remove(path);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;
    use crate::document::prebuilt::Valid;

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
    fn large_documents_are_kept_whatever_the_number_of_cores() {
        let documents = Documents::new(64 << 20, Arc::default());
        let sizes = [10_700_000, 4_300_000, 540_000, LARGE + 1, LARGE];
        for (n, size) in sizes.iter().enumerate() {
            documents.put(&format!("/{n}"), plain(&vec![0; *size]));
        }
        assert!((0..sizes.len()).all(|n| documents.get(&format!("/{n}")).is_some()));
        // A document that shrinks or grows leaves nothing behind.
        documents.put("/0", plain(b"x"));
        documents.put("/4", plain(&vec![0; LARGE + 1]));
        assert_eq!(documents.get("/0").unwrap().body.len(), 1);
        assert_eq!(documents.get("/4").unwrap().body.len(), LARGE + 1);
        documents.forget("/0");
        documents.forget("/4");
        assert!(documents.get("/0").is_none() && documents.get("/4").is_none());
    }

    #[test]
    fn a_capacity_is_replaced_and_the_rest_forgotten() {
        let documents = Documents::new(64 << 20, Arc::default());
        documents.put("/small", plain(b"x"));
        documents.put("/large", plain(&vec![0; 10 << 20]));
        documents.set_capacity(8 << 20);
        assert!(documents.get("/small").is_some() && documents.get("/large").is_none());
        documents.set_capacity(64 << 20);
        documents.put("/large", plain(&vec![0; 10 << 20]));
        assert!(documents.get("/large").is_some());
    }

    /// A document that was made with the earlier headers, and comes after all were forgotten.
    #[test]
    fn no_document_has_the_headers_of_an_earlier_policy() {
        let cors: Arc<ArcSwap<CorsPolicy>> = Arc::default();
        let replaced = cors.clone();
        // Replaces the policy between the document's headers and its insertion.
        let replacing = move |_: &str| {
            replaced.store(Arc::new(CorsPolicy::AnyOrigin));
            false
        };
        let documents =
            Documents::new(1 << 20, Arc::default()).with_cors(cors).without_removed(Box::new(replacing));
        let path = "/diff/news/head.json";
        documents.put(path, plain(b"x"));
        assert!(documents.get(path).is_none());
        documents.put_answer("/feeds/news/items?max=1", plain(b"x"));
        assert!(documents.get("/feeds/news/items?max=1").is_none());
    }

    #[test]
    fn a_page_that_is_ready_after_its_feed_was_removed_is_not_kept() {
        let is_removed = Arc::new(AtomicBool::new(false));
        let removed = is_removed.clone();
        let documents = Documents::new(1 << 20, Arc::default())
            .without_removed(Box::new(move |feed| feed == "news" && removed.load(Ordering::Acquire)));
        let paths = ["/feeds/news/pages/1", "/diff/source/news/latest.json", "/diff/news/head.json"];
        let answers = ["/feeds/news/items?max=1", "/feeds/%6eews/items#atom"];
        let others = ["/feeds/other/pages/1", "/archive/news/index.json", "/sup.json"];
        for is_gone in [false, true] {
            is_removed.store(is_gone, Ordering::Release);
            documents.clear();
            // The requests for these began before.
            for path in paths.into_iter().chain(others) {
                documents.put(path, plain(b"x"));
            }
            for path in answers {
                documents.put_answer(path, plain(b"x"));
            }
            let is_kept = |path: &&str| documents.get(path).is_some();
            assert!(paths.iter().chain(&answers).all(|path| is_kept(path) != is_gone), "{is_gone}");
            assert!(others.iter().all(is_kept));
        }
    }

    #[test]
    fn nothing_of_a_private_feed_is_kept() {
        let private = [towpath_proto::FeedId::new("mine").unwrap()].into();
        let documents = Documents::new(1 << 20, Arc::new(SupLinks::new("", private, "")));
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
