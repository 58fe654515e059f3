//! One question at a time: a request, what it is for, and its answer, taken as a whole.
//!
//! What is read piece by piece (pages of Data Replication) does without.

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;

use crate::follow::{Request, RequestId, ResponseHead, TransferError};

/// At most one request under way, and what it is for.
#[derive(Debug)]
pub(crate) struct Asking<P> {
    under_way: Option<UnderWay<P>>,
    requests: u64,
}

#[derive(Debug)]
struct UnderWay<P> {
    id: RequestId,
    limit: u64,
    answer: Answer<P>,
    body: BytesMut,
    is_too_large: bool,
}

/// What was asked.
#[derive(Debug)]
pub(crate) struct Asked<P> {
    /// What for.
    pub(crate) purpose: P,
    /// The address.
    pub(crate) url: String,
    pub(crate) sent: Timestamp,
}

/// What became of a question.
#[derive(Debug)]
pub(crate) struct Answer<P> {
    pub(crate) asked: Asked<P>,
    /// What came before the body, however it ended.
    pub(crate) head: Option<ResponseHead>,
    /// The body, or why it is not there as a whole. Where it is, so is the head.
    pub(crate) body: Result<Bytes, TransferError>,
}

impl<P> Default for Asking<P> {
    fn default() -> Self {
        Self { under_way: None, requests: 0 }
    }
}

impl<P> Asking<P> {
    /// Whether an answer is waited for.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// What the question under way is for.
    pub(crate) fn purpose(&self) -> Option<&P> {
        self.under_way.as_ref().map(|under_way| &under_way.answer.asked.purpose)
    }

    /// A GET with an id of its own, for [`Self::ask`].
    pub(crate) fn get(&mut self, url: impl Into<String>) -> Request {
        self.requests += 1;
        Request::get(RequestId(self.requests), url)
    }

    /// Begins with a request. One that was under way is forgotten.
    pub(crate) fn ask(&mut self, now: Timestamp, purpose: P, request: Request) -> Request {
        let asked = Asked { purpose, url: request.url.clone(), sent: now };
        self.under_way = Some(UnderWay {
            id: request.id,
            limit: request.max_body,
            answer: Answer { asked, head: None, body: Ok(Bytes::new()) },
            body: BytesMut::new(),
            is_too_large: false,
        });
        request
    }

    /// The head has come. What belongs to another request is left alone, here and below.
    pub(crate) fn handle_head(&mut self, id: RequestId, head: ResponseHead) {
        if let Some(under_way) = self.of(id) {
            under_way.answer.head = Some(head);
        }
    }

    /// A piece of the body. What is more than [`Request::max_body`] is not kept.
    pub(crate) fn handle_chunk(&mut self, id: RequestId, chunk: &[u8]) {
        let Some(UnderWay { limit, body, is_too_large, .. }) = self.of(id) else { return };
        *is_too_large |= (body.len() + chunk.len()) as u64 > *limit;
        if *is_too_large {
            *body = BytesMut::new();
        } else {
            body.extend_from_slice(chunk);
        }
    }

    /// The answer, now that it is over.
    pub(crate) fn handle_end(
        &mut self,
        id: RequestId,
        result: Result<(), TransferError>,
    ) -> Option<Answer<P>> {
        let UnderWay { limit, mut answer, body, is_too_large, .. } =
            self.under_way.take_if(|under_way| under_way.id == id)?;
        answer.body = match result {
            Ok(()) if is_too_large => Err(TransferError::TooLarge { limit }),
            Ok(()) if answer.head.is_none() => Err(no_answer()),
            Ok(()) => Ok(body.freeze()),
            Err(error) => Err(error),
        };
        Some(answer)
    }

    /// What was asked, where it was answered in another way.
    pub(crate) fn give_up(&mut self, id: RequestId) -> Option<Asked<P>> {
        self.under_way.take_if(|under_way| under_way.id == id).map(|under_way| under_way.answer.asked)
    }

    fn of(&mut self, id: RequestId) -> Option<&mut UnderWay<P>> {
        self.under_way.as_mut().filter(|under_way| under_way.id == id)
    }
}

impl<P> Answer<P> {
    /// What was asked; head and body of an answer that came whole, whatever its status.
    pub(crate) fn whole(self) -> (Asked<P>, Result<(ResponseHead, Bytes), TransferError>) {
        let head = self.head.ok_or_else(no_answer);
        (self.asked, self.body.and_then(|body| Ok((head?, body))))
    }
}

fn no_answer() -> TransferError {
    TransferError::Connect("it ended without an answer".into())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn head() -> ResponseHead {
        ResponseHead { status: 200, url: "http://a/".into(), headers: HeaderMap::new() }
    }

    fn asked(limit: u64) -> (Asking<&'static str>, RequestId) {
        let mut asking = Asking::default();
        let request = Request { max_body: limit, ..asking.get("http://a/") };
        let id = asking.ask(Timestamp::UNIX_EPOCH, "why", request).id;
        (asking, id)
    }

    #[test]
    fn an_answer_is_taken_whole() {
        let (mut asking, id) = asked(4);
        assert_eq!((asking.is_busy(), asking.purpose()), (true, Some(&"why")));
        asking.handle_head(id, head());
        asking.handle_chunk(id, b"ab");
        asking.handle_chunk(id, b"cd");
        let answer = asking.handle_end(id, Ok(())).unwrap();
        assert!(!asking.is_busy());
        let (asked, whole) = answer.whole();
        assert_eq!((asked.purpose, asked.url.as_str()), ("why", "http://a/"));
        assert_eq!(whole.unwrap().1, "abcd");
    }

    #[test]
    fn no_more_is_kept_than_was_asked_for() {
        let (mut asking, id) = asked(4);
        asking.handle_head(id, head());
        for _ in 0..3 {
            asking.handle_chunk(id, b"abc");
        }
        let answer = asking.handle_end(id, Ok(())).unwrap();
        assert_eq!(answer.body, Err(TransferError::TooLarge { limit: 4 }));
        assert!(answer.head.is_some());
    }

    #[test]
    fn what_belongs_to_another_request_is_left_alone() {
        let (mut asking, id) = asked(4);
        let other = RequestId(id.0 + 1);
        asking.handle_head(other, head());
        asking.handle_chunk(other, b"abc");
        assert!(asking.handle_end(other, Ok(())).is_none());
        assert!(asking.give_up(other).is_none());
        let answer = asking.handle_end(id, Ok(())).unwrap();
        assert!(matches!(answer.whole().1, Err(TransferError::Connect(_))));
    }
}
