//! Prebuilt documents: what is served again and again is made once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use crate::document::cors::CorsPolicy;
use crate::document::encoding;
use crate::document::encoding::Coding;
use crate::document::etag::etag_matches;
use crate::document::last_modified;
use crate::document::sup_links::SupLinks;
use crate::wall_clock;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, ETAG, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, LAST_MODIFIED, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// Validity of a document in memory.
#[derive(Debug, Clone)]
pub enum Valid {
    /// For ever: it never changes.
    Immutable,
    /// As long as the feed's log ends where it ended when the document was built.
    At {
        /// The feed's last place, as it moves.
        head: Arc<AtomicU64>,
        /// The last place when the document was built.
        seq: u64,
    },
    /// Until another document is put at its path.
    UntilReplaced,
    /// Until a time.
    Until(Instant),
    /// As [`Valid::At`], and until a time.
    AtUntil {
        /// The feed's last place, as it moves.
        head: Arc<AtomicU64>,
        /// The last place when the document was built.
        seq: u64,
        /// The time.
        end: Instant,
    },
}

/// Returns true if a document fits an `Accept` header.
pub type Negotiated = fn(Option<&str>) -> bool;

/// A document as it is served: body, headers, and the body in compressed forms once somebody wanted them.
#[derive(Debug)]
pub struct Document {
    /// The body as it is.
    pub body: Bytes,
    headers: HeaderMap,
    not_modified: HeaderMap,
    valid: Valid,
    /// Number of times that the clock had been set back when its `Last-Modified` was written; `None` without one.
    dated_after: Option<u64>,
    negotiated: Option<Negotiated>,
    is_dated: bool,
    compressible: bool,
    /// The tag of its compressed forms.
    coded_tag: Option<HeaderValue>,
    compressed: [OnceLock<Option<Bytes>>; Coding::COUNT],
}

/// Headers that a 304 repeats (RFC 9110, section 15.4.5), and those that a cache in between needs.
const NOT_MODIFIED: [&str; 9] = [
    "etag",
    "cache-control",
    "cdn-cache-control",
    "expires",
    "vary",
    "last-modified",
    "link",
    "x-sup-id",
    // A browser checks it in a 304 too, when a page asked with a tag of its own. The list of exposed headers is longer
    // than the rest, and the page has it from the 200.
    "access-control-allow-origin",
];

fn not_modified(headers: &HeaderMap) -> HeaderMap {
    let repeated = NOT_MODIFIED.into_iter().map(HeaderName::from_static);
    let lines =
        repeated.flat_map(|name| headers.get_all(&name).iter().map(move |value| (name.clone(), value)));
    lines.map(|(name, value)| (name, value.clone())).collect()
}

/// Content codings of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Codings {
    /// Compressed for clients that accept it.
    Negotiated,
    Identity,
}

/// Bodies below this many bytes are not worth compressing.
// Such a body fits into one packet with its head, so fewer bytes arrive no sooner.
const WORTH_COMPRESSING: usize = 1024;

impl Document {
    /// A document with its headers (content type, ETag, cache rules).
    pub fn new(body: Bytes, headers: HeaderMap, valid: Valid) -> Self {
        let is_worth_it = body.len() >= WORTH_COMPRESSING && encoding::is_text(&headers);
        let codings = if is_worth_it { Codings::Negotiated } else { Codings::Identity };
        Self::with_codings(codings, body, headers, valid)
    }

    /// A document that is sent as it is, whatever codings the client knows.
    pub fn uncoded(body: Bytes, headers: HeaderMap, valid: Valid) -> Self {
        Self::with_codings(Codings::Identity, body, headers, valid)
    }

    fn with_codings(codings: Codings, body: Bytes, mut headers: HeaderMap, valid: Valid) -> Self {
        let compressible = codings == Codings::Negotiated;
        if compressible {
            let vary = match headers.contains_key(VARY) {
                true => "accept, accept-encoding",
                false => "accept-encoding",
            };
            headers.insert(VARY, HeaderValue::from_static(vary));
        }
        // A date that was limited is that of the building, which another document may share.
        let is_dated = !last_modified::limit(&mut headers, wall_clock::now());
        let dated_after = headers.contains_key(LAST_MODIFIED).then(wall_clock::set_backs);
        let not_modified = not_modified(&headers);
        let coded_tag = headers.get(ETAG).and_then(weak);
        let (negotiated, compressed) = Default::default();
        Self {
            body,
            headers,
            not_modified,
            valid,
            dated_after,
            negotiated,
            is_dated,
            compressible,
            coded_tag,
            compressed,
        }
    }

    /// Keeps one ETag for all codings: it identifies the content, not the bytes.
    #[must_use]
    pub fn with_one_tag(mut self) -> Self {
        self.coded_tag = self.headers.get(ETAG).cloned();
        self
    }

    /// Serves it whole only: its bytes change under the same ETag, and parts of two versions must not be put together
    /// (RFC 9110, section 15.3.7.3).
    #[must_use]
    pub fn without_parts(mut self) -> Self {
        self.headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
        self
    }

    /// Marks `Last-Modified` as the time of the last change, which another change may share within the second.
    ///
    /// Such a date is no strong validator (RFC 9110, section 8.8.2.2), so `If-Modified-Since` is answered with the whole
    /// document.
    #[must_use]
    pub fn dated_by_its_changes(mut self) -> Self {
        self.is_dated = false;
        self
    }

    /// Limits the document to clients whose `Accept` header fits.
    #[must_use]
    pub fn negotiated_by(mut self, accept: Negotiated) -> Self {
        self.negotiated = Some(accept);
        self
    }

    /// Its headers, without what depends on the request.
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Adds the SUP link of its feed to the headers.
    pub(super) fn with_sup_link(mut self, sup_links: &SupLinks, path: &str) -> Self {
        sup_links.add_by_path(path, &mut self.headers);
        // A 304 must carry the SUP link too: followers at rest see nothing else.
        self.not_modified = not_modified(&self.headers);
        self
    }

    /// Adds the headers that let other origins' pages read the document.
    pub(super) fn with_cors(mut self, cors: &CorsPolicy) -> Self {
        cors.add_to(&mut self.headers);
        self.not_modified = not_modified(&self.headers);
        self
    }

    /// Returns true if the document fits the client's `Accept` header.
    pub fn is_acceptable(&self, request: &HeaderMap) -> bool {
        let Some(negotiated) = self.negotiated else { return true };
        let mut accept = request.get_all(ACCEPT).iter();
        match (accept.next(), accept.next()) {
            (None, _) => negotiated(None),
            (Some(only), None) => only.to_str().is_ok_and(|accept| negotiated(Some(accept))),
            // Two lines mean their joined list (RFC 9110, section 5.3), which routing makes.
            (Some(_), Some(_)) => false,
        }
    }

    /// Returns true if the document may still be served.
    pub fn is_current(&self) -> bool {
        let is_dated_right = self.dated_after.is_none_or(|set_backs| set_backs == wall_clock::set_backs());
        // A date that was limited to the present may be in the future of a clock that was set back since.
        if !is_dated_right && !matches!(self.valid, Valid::UntilReplaced) {
            return false;
        }
        match &self.valid {
            Valid::Immutable | Valid::UntilReplaced => true,
            Valid::At { head, seq } => head.load(Ordering::Acquire) == *seq,
            Valid::Until(end) => Instant::now() < *end,
            Valid::AtUntil { head, seq, end } => {
                head.load(Ordering::Acquire) == *seq && Instant::now() < *end
            }
        }
    }

    /// Answers a GET or HEAD request, if that takes no compressing.
    pub fn respond(&self, request: &HeaderMap) -> Option<Answer> {
        if self.matches(request) {
            return Some(self.unchanged(request));
        }
        if !self.compressible {
            return Some(self.whole());
        }
        match encoding::choose(request.get(ACCEPT_ENCODING)) {
            None => Some(self.whole()),
            Some(coding) => {
                self.compressed[coding as usize].get().map(|body| self.coded(coding, body.as_ref()))
            }
        }
    }

    /// Answers a GET or HEAD request, compressing the body if nobody asked for that before. Takes time in
    /// the order of the body's length.
    pub fn respond_compressing(&self, request: &HeaderMap) -> Answer {
        if let Some(answer) = self.respond(request) {
            return answer;
        }
        let Some(coding) = encoding::choose(request.get(ACCEPT_ENCODING)) else { return self.whole() };
        // Once for all clients: others that ask meanwhile wait for it instead of compressing as well.
        let body = self.compressed[coding as usize].get_or_init(|| encoding::compress(&self.body, coding));
        self.coded(coding, body.as_ref())
    }

    /// Returns the 304, with the tag that the 200 would have (RFC 9110, section 15.4.5).
    fn unchanged(&self, request: &HeaderMap) -> Answer {
        let mut headers = self.not_modified.clone();
        // Not for the small documents that pollers ask for: they have one form only.
        if self.compressible
            && let Some(tag) = &self.coded_tag
            && let Some(coding) = encoding::choose(request.get(ACCEPT_ENCODING))
            // A body that compressing made no shorter is sent as it is.
            && !matches!(self.compressed[coding as usize].get(), Some(None))
        {
            headers.insert(ETAG, tag.clone());
        }
        Answer { status: StatusCode::NOT_MODIFIED, headers, body: Bytes::new() }
    }

    fn whole(&self) -> Answer {
        Answer { status: StatusCode::OK, headers: self.headers.clone(), body: self.body.clone() }
    }

    fn coded(&self, coding: Coding, body: Option<&Bytes>) -> Answer {
        // Compressing made it no shorter, so it is sent as it is.
        let Some(body) = body else { return self.whole() };
        let mut headers = self.headers.clone();
        insert_coding(&mut headers, coding, self.coded_tag.as_ref());
        Answer { status: StatusCode::OK, headers, body: body.clone() }
    }

    /// RFC 9110, section 13.2.2: `If-None-Match` decides; `If-Modified-Since` only where that is absent.
    fn matches(&self, request: &HeaderMap) -> bool {
        if request.contains_key(IF_NONE_MATCH) {
            // Without a tag nothing matches; the date must not be consulted either.
            let Some(etag) = self.headers.get(ETAG) else { return false };
            return request.get_all(IF_NONE_MATCH).iter().any(|list| etag_matches(list, etag));
        }
        let (Some(since), Some(modified)) = (request.get(IF_MODIFIED_SINCE), self.headers.get(LAST_MODIFIED))
        else {
            return false;
        };
        // Equality, not "not later": a client's clock and a restored backup can put a date ahead.
        self.is_dated && since == modified
    }

    /// Weight in the cache. It is constant, because the cache adds and subtracts it: it includes room for compressed
    /// forms from the start.
    pub(super) fn weight(&self) -> u64 {
        (self.body.len() + self.body.len() / 4 * 3 + 1024) as u64
    }
}

/// Answers a HEAD request for a page of `length` bytes without its body, with the headers of its GET.
///
/// The length of a compressed body is unknown before it is made, so it is left out (RFC 9110, section 9.3.2).
pub(crate) fn answer_head(mut headers: HeaderMap, length: u64, request: &HeaderMap) -> Answer {
    let compressible = length >= WORTH_COMPRESSING as u64 && encoding::is_text(&headers);
    if compressible {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    let document = Document::new(Bytes::new(), headers, Valid::UntilReplaced).dated_by_its_changes();
    let mut answer = document.respond_compressing(request);
    let coded_tag = document.coded_tag.as_ref();
    let coding = encoding::choose(request.get(ACCEPT_ENCODING)).filter(|_| compressible);
    match (coding, answer.status) {
        (Some(coding), StatusCode::OK) => insert_coding(&mut answer.headers, coding, coded_tag),
        (Some(_), _) => insert_tag(&mut answer.headers, coded_tag),
        // hyper cannot know the length: the body at hand is empty.
        (None, StatusCode::OK) => drop(answer.headers.insert(CONTENT_LENGTH, HeaderValue::from(length))),
        (None, _) => {}
    }
    answer
}

/// Names the coding of a body.
fn insert_coding(headers: &mut HeaderMap, coding: Coding, tag: Option<&HeaderValue>) {
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    insert_tag(headers, tag);
}

fn insert_tag(headers: &mut HeaderMap, tag: Option<&HeaderValue>) {
    if let Some(tag) = tag {
        headers.insert(ETAG, tag.clone());
    }
}

/// Returns the weak tag of a compressed body: other bytes with the same meaning (RFC 9110, section 8.8.3.3).
fn weak(tag: &HeaderValue) -> Option<HeaderValue> {
    match tag.as_bytes() {
        [b'W', b'/', ..] => Some(tag.clone()),
        strong => HeaderValue::from_bytes(&[b"W/", strong].concat()).ok(),
    }
}

/// A status, headers and a body, ready to be sent.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; empty for a 304.
    pub body: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(body: &str, etag: &str) -> Document {
        let mut headers = HeaderMap::new();
        headers.insert(ETAG, HeaderValue::from_str(etag).unwrap());
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        Document::new(Bytes::copy_from_slice(body.as_bytes()), headers, Valid::Immutable)
    }

    fn asked(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    /// DiffDelta §6.2 and decision 14: lists, `*` and `W/`.
    #[test]
    fn if_none_match() {
        let document = document("{}", "\"a,b\"");
        let status = |value: &str| document.respond(&asked(IF_NONE_MATCH, value)).unwrap().status.as_u16();
        for hit in
            ["\"a,b\"", "W/\"a,b\"", "*", "\"x\", \"a,b\"", "\"x\",, ,\"a,b\",", "W/\"x\",W/\"a,b\",\"y\""]
        {
            assert_eq!(status(hit), 304, "{hit}");
        }
        // An unquoted tag, an unclosed quote and a part of the tag must not count as equal.
        for miss in ["\"a\"", "a,b", "", "\"x\", \"y\"", "\"a,b", "\"\""] {
            assert_eq!(status(miss), 200, "{miss}");
        }
        let answer = document.respond(&asked(IF_NONE_MATCH, "*")).unwrap();
        assert!(answer.body.is_empty() && answer.headers.contains_key(ETAG));
    }

    #[test]
    fn rfc_9110_8_8_2_2_a_time_that_another_change_may_have_tells_nothing() {
        let time = "Thu, 01 Jan 1970 00:00:00 GMT";
        let made = || {
            let headers = HeaderMap::from_iter([(LAST_MODIFIED, HeaderValue::from_static(time))]);
            Document::new(Bytes::from_static(b"x"), headers, Valid::Immutable)
        };
        let status = |document: Document| document.respond(&asked(IF_MODIFIED_SINCE, time)).unwrap().status;
        assert_eq!(status(made()), StatusCode::NOT_MODIFIED);
        assert_eq!(status(made().dated_by_its_changes()), StatusCode::OK);
    }

    #[test]
    fn compressed_forms_are_made_once() {
        let text = "a long text that compresses well ".repeat(100);
        let document = document(&text, "\"e\"");
        let gzip = asked(ACCEPT_ENCODING, "gzip");
        assert!(document.respond(&gzip).is_none());
        let answer = document.respond_compressing(&gzip);
        assert_eq!(answer.headers[CONTENT_ENCODING], "gzip");
        assert_eq!(answer.headers[ETAG], "W/\"e\"");
        assert!(answer.body.len() < text.len() / 5);
        assert_eq!(document.respond(&gzip).unwrap().body, answer.body);
        assert_eq!(document.respond(&HeaderMap::new()).unwrap().body, text);
    }

    #[test]
    fn rfc_9110_15_4_5_a_304_has_the_tag_of_its_200() {
        let random: String = (0..1200u32).map(|n| char::from(b'0' + (n * n % 77) as u8)).collect();
        for body in [&*"a long text ".repeat(100), &random, "short"] {
            for coding in ["gzip", "br;q=0.5, zstd", "identity", "gzip;q=0", ""] {
                let document = document(body, "\"e\"");
                let asked_for = |name: &str| {
                    let mut request = asked(ACCEPT_ENCODING, coding);
                    request.insert(IF_NONE_MATCH, HeaderValue::from_str(name).unwrap());
                    document.respond_compressing(&request)
                };
                let unchanged = [asked_for("\"e\""), asked_for("W/\"e\"")];
                let whole = asked_for("\"other\"");
                for answer in unchanged {
                    assert_eq!(answer.status, StatusCode::NOT_MODIFIED);
                    assert_eq!(answer.headers[ETAG], whole.headers[ETAG], "{coding:?} {}", body.len());
                }
            }
        }
    }

    #[test]
    fn rfc_9110_15_4_5_a_304_to_head_has_the_tag_of_its_200() {
        for (coding, length) in [("gzip", 5000), ("gzip", 10), ("identity", 5000)] {
            let tag = |known: &str| {
                let headers = HeaderMap::from_iter([
                    (ETAG, HeaderValue::from_static("\"e\"")),
                    (http::header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
                ]);
                let mut request = asked(ACCEPT_ENCODING, coding);
                request.insert(IF_NONE_MATCH, HeaderValue::from_str(known).unwrap());
                let answer = answer_head(headers, length, &request);
                (answer.status.as_u16(), answer.headers[ETAG].clone())
            };
            assert_eq!(tag("\"e\""), (304, tag("\"other\"").1), "{coding} {length}");
        }
    }

    #[test]
    fn a_tag_of_what_a_document_says_stays_in_every_coding() {
        let document = document(&"a long text ".repeat(100), "\"e\"").with_one_tag();
        assert_eq!(document.respond_compressing(&asked(ACCEPT_ENCODING, "gzip")).headers[ETAG], "\"e\"");
    }

    #[test]
    fn a_document_weighs_the_same_after_it_was_compressed() {
        let document = document(&"a long text that compresses well ".repeat(100), "\"e\"");
        let before = document.weight();
        document.respond_compressing(&asked(ACCEPT_ENCODING, "gzip"));
        document.respond_compressing(&asked(ACCEPT_ENCODING, "br"));
        assert_eq!(document.weight(), before);
    }

    fn plain(body: &[u8]) -> Document {
        Document::new(Bytes::copy_from_slice(body), HeaderMap::new(), Valid::Immutable)
    }

    #[test]
    fn accept_decides_whether_a_document_is_the_answer() {
        let document = plain(b"x").negotiated_by(|accept| accept != Some("text/html"));
        assert!(document.is_acceptable(&HeaderMap::new()));
        assert!(!document.is_acceptable(&asked(ACCEPT, "text/html")));
        let mut two = asked(ACCEPT, "a/b");
        two.append(ACCEPT, HeaderValue::from_static("c/d"));
        assert!(!document.is_acceptable(&two), "left to who reads both");
    }
}
