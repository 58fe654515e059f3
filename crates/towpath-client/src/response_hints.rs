//! Hints for the poll schedule in a publisher's responses: SUP links and `Retry-After`.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use towpath_proto::follow::{FollowError, RequestId, ResponseHead};
use towpath_proto::format::peek::peek;
use towpath_proto::sup::discovery::{Discovery, discover};
use url::Url;

use super::problem::response_problem;

/// Number of bytes of a document that are searched for links.
const SCANNED_BYTES: usize = 16 << 10;

/// Hints collected during one poll of a feed.
#[derive(Debug, Default)]
pub(super) struct ResponseHints {
    /// SUP links of the first response that has any, with warnings about malformed ones.
    pub sup: Discovery,
    /// The last `Retry-After` of a response with an error status.
    pub retry_after: Option<Duration>,
    /// Status and reason of the last response with a problem document.
    problem: Option<(u16, String)>,
    /// The response whose beginning is being scanned for links.
    scanning: Option<ScannedResponse>,
}

#[derive(Debug)]
struct ScannedResponse {
    id: RequestId,
    head: ResponseHead,
    start: Vec<u8>,
}

impl ResponseHints {
    pub(super) fn handle_head(&mut self, now: Timestamp, id: RequestId, head: &ResponseHead) {
        // On a success Retry-After has no meaning for the schedule.
        if head.status >= 400 {
            self.retry_after = head.retry_after(now).or(self.retry_after);
        }
        // Stops at the first response with links: later ones of a poll are pages of the same feed.
        if matches!(head.status, 200 | 304) && self.sup.links.is_empty() && self.scanning.is_none() {
            self.scanning = Some(ScannedResponse { id, head: head.clone(), start: Vec::new() });
        }
    }

    /// Takes the first piece of a response with an error status.
    pub(super) fn handle_problem(&mut self, head: &ResponseHead, start: &[u8]) {
        self.problem =
            response_problem(head, start).map(|detail| (head.status, detail)).or(self.problem.take());
    }

    /// Adds the server's reason to an error, if it sent one with this status.
    pub(super) fn explain(&self, error: &mut FollowError) {
        if let FollowError::Status { status, detail, .. } = error
            && let Some((_, reason)) = self.problem.as_ref().filter(|(of, _)| of == status)
        {
            *detail = Some(reason.clone());
        }
    }

    pub(super) fn handle_chunk(&mut self, id: RequestId, chunk: &Bytes) {
        let Some(scanning) = self.scanning.as_mut().filter(|scanning| scanning.id == id) else { return };
        let room = SCANNED_BYTES.saturating_sub(scanning.start.len());
        scanning.start.extend_from_slice(&chunk[..chunk.len().min(room)]);
        // Only XML documents carry links. JSON and multipart bodies need not be buffered any further.
        let is_not_xml =
            scanning.start.trim_ascii_start().first().is_some_and(|b| matches!(b, b'{' | b'[' | b'-'));
        if is_not_xml || scanning.start.len() == SCANNED_BYTES {
            self.finish_scan();
        }
    }

    pub(super) fn handle_end(&mut self, id: RequestId) {
        if self.scanning.as_ref().is_some_and(|scanning| scanning.id == id) {
            self.finish_scan();
        }
    }

    fn finish_scan(&mut self) {
        let Some(ScannedResponse { head, start, .. }) = self.scanning.take() else { return };
        self.record_links(&head, &start);
    }

    /// Records the SUP links of a response, given its head and the beginning of its body.
    fn record_links(&mut self, head: &ResponseHead, start: &[u8]) {
        let found = sup_links(head, start);
        // A response without links must not erase the warning about malformed ones.
        if !found.links.is_empty() || self.sup.warnings.is_empty() {
            self.sup = found;
        }
    }
}

/// Finds the SUP links in a response's headers and in the head of its document.
fn sup_links(head: &ResponseHead, start: &[u8]) -> Discovery {
    let links = peek(start, head.header("content-type"), Some(&head.url)).map(|feed| feed.links);
    discover(&head.headers, &links.unwrap_or_default(), Url::parse(&head.url).ok().as_ref())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    const ID: RequestId = RequestId(1);

    fn head(status: u16, name: &'static str, value: &str) -> ResponseHead {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        ResponseHead { status, url: "http://a.example/f".into(), headers }
    }

    fn ids(hints: &ResponseHints) -> Vec<&str> {
        hints.sup.links.iter().map(|link| link.id.as_str()).collect()
    }

    #[test]
    fn sup_links_are_found_in_headers_of_200_and_304_and_in_documents() {
        let atom = "<feed xmlns='http://www.w3.org/2005/Atom'><link \
            rel='http://api.friendfeed.com/2008/03#sup' href='/sup.json#b2'/></feed>";
        for (status, sup, body, expected) in [
            (200, "/sup.json#a1", "{}", vec!["a1"]),
            (304, "/sup.json#a1", "", vec!["a1"]),
            (200, "/sup.json#a1", atom, vec!["a1", "b2"]),
            (200, "/sup.json#b2", atom, vec!["b2"]),
            (200, "/sup.json", atom, vec!["b2"]),
            (500, "/sup.json#a1", atom, vec![]),
        ] {
            let mut hints = ResponseHints::default();
            hints.handle_head(Timestamp::UNIX_EPOCH, ID, &head(status, "x-sup-id", sup));
            hints.handle_chunk(RequestId(2), &Bytes::from_static(b"{"));
            body.as_bytes().chunks(7).for_each(|piece| hints.handle_chunk(ID, &Bytes::from(piece)));
            hints.handle_end(ID);
            assert_eq!(ids(&hints), expected, "{status} {sup}");
            assert_eq!(hints.sup.warnings.is_empty(), expected.len() != 2 && sup.contains('#'), "{sup}");
        }
    }

    #[test]
    fn the_first_links_and_the_last_retry_after_count() {
        let mut hints = ResponseHints::default();
        for (id, head) in [
            (1, head(200, "x-other", "1")),
            (2, head(200, "x-sup-id", "/sup.json#a1")),
            (3, head(200, "x-sup-id", "/sup.json#c3")),
            (4, head(503, "retry-after", "7")),
        ] {
            hints.handle_head(Timestamp::UNIX_EPOCH, RequestId(id), &head);
            hints.handle_end(RequestId(id));
        }
        assert_eq!((ids(&hints), hints.retry_after), (vec!["a1"], Some(Duration::from_secs(7))));
    }
}
