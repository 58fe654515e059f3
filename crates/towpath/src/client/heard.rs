//! What a publisher's answers say beside the feed: where its SUP document is, and when to come back.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use towpath_proto::follow::{RequestId, ResponseHead};
use towpath_proto::format::skim::skim;
use towpath_proto::sup::discovery::{Discovery, discover};
use url::Url;

/// How much of a document is searched for links.
const START_BYTES: usize = 16 << 10;

/// What was heard while a feed was asked once.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The SUP links of the first answer that has some, and what is wrong with it.
    pub sup: Discovery,
    /// The last `Retry-After` of an answer with an error status.
    pub retry_after: Option<Duration>,
    /// The answer that is being listened to.
    listening: Option<Listening>,
}

#[derive(Debug)]
struct Listening {
    id: RequestId,
    head: ResponseHead,
    start: Vec<u8>,
}

impl Heard {
    pub(super) fn head(&mut self, now: Timestamp, id: RequestId, head: &ResponseHead) {
        if head.status >= 400 {
            self.retry_after = head.retry_after(now).or(self.retry_after);
        }
        if matches!(head.status, 200 | 304) && self.sup.links.is_empty() && self.listening.is_none() {
            self.listening = Some(Listening { id, head: head.clone(), start: Vec::new() });
        }
    }

    pub(super) fn chunk(&mut self, id: RequestId, chunk: &Bytes) {
        let Some(listening) = self.listening.as_mut().filter(|listening| listening.id == id) else { return };
        let room = START_BYTES.saturating_sub(listening.start.len());
        listening.start.extend_from_slice(&chunk[..chunk.len().min(room)]);
        // Links are looked for in XML only.
        let is_other =
            listening.start.trim_ascii_start().first().is_some_and(|b| matches!(b, b'{' | b'[' | b'-'));
        if is_other || listening.start.len() == START_BYTES {
            self.conclude();
        }
    }

    pub(super) fn end(&mut self, id: RequestId) {
        if self.listening.as_ref().is_some_and(|listening| listening.id == id) {
            self.conclude();
        }
    }

    fn conclude(&mut self) {
        let Some(Listening { head, start, .. }) = self.listening.take() else { return };
        self.note(&head, &start);
    }

    /// Takes the links of a whole answer, or of its beginning.
    pub(super) fn note(&mut self, head: &ResponseHead, start: &[u8]) {
        let found = sup_links(head, start);
        if !found.links.is_empty() || self.sup.warnings.is_empty() {
            self.sup = found;
        }
    }
}

/// The SUP links of an answer, in its headers and in the head of its document.
pub(super) fn sup_links(head: &ResponseHead, start: &[u8]) -> Discovery {
    let links = skim(start, head.header("content-type"), Some(&head.url)).map(|feed| feed.links);
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

    fn ids(heard: &Heard) -> Vec<&str> {
        heard.sup.links.iter().map(|link| link.id.as_str()).collect()
    }

    #[test]
    fn links_come_from_headers_of_documents_and_of_304_and_from_documents() {
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
            let mut heard = Heard::default();
            heard.head(Timestamp::UNIX_EPOCH, ID, &head(status, "x-sup-id", sup));
            heard.chunk(RequestId(2), &Bytes::from_static(b"{"));
            body.as_bytes().chunks(7).for_each(|piece| heard.chunk(ID, &Bytes::from(piece)));
            heard.end(ID);
            assert_eq!(ids(&heard), expected, "{status} {sup}");
            assert_eq!(heard.sup.warnings.is_empty(), expected.len() != 2 && sup.contains('#'), "{sup}");
        }
    }

    #[test]
    fn the_first_answer_with_links_counts_and_the_last_retry_after() {
        let mut heard = Heard::default();
        for (id, head) in [
            (1, head(200, "x-other", "1")),
            (2, head(200, "x-sup-id", "/sup.json#a1")),
            (3, head(200, "x-sup-id", "/sup.json#c3")),
            (4, head(503, "retry-after", "7")),
        ] {
            heard.head(Timestamp::UNIX_EPOCH, RequestId(id), &head);
            heard.end(RequestId(id));
        }
        assert_eq!((ids(&heard), heard.retry_after), (vec!["a1"], Some(Duration::from_secs(7))));
    }
}
