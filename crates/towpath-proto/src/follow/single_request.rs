//! A single request in flight and its response, collected as a whole. The next one may be sent ahead.
//!
//! Responses that are read piece by piece (pages of Data Replication) do without.

use bytes::{Bytes, BytesMut};

use super::{Exchange, Monotonic, Now, Request, RequestId, ResponseHead, TransferError};

/// At most one request in flight, with its purpose, and the one sent ahead of its end.
#[derive(Debug)]
pub(crate) struct SingleRequest<P> {
    in_flight: Option<InFlight<P>>,
    /// Becomes the one in flight when that ends.
    ahead: Option<InFlight<P>>,
    /// Number of requests so far, from which ids are made.
    count: u64,
}

#[derive(Debug)]
struct InFlight<P> {
    id: RequestId,
    max_body: u64,
    response: CollectedResponse<P>,
    body: BytesMut,
    is_too_large: bool,
}

/// A request that was sent.
#[derive(Debug)]
pub(crate) struct SentRequest<P> {
    /// The sender's reason to send it.
    pub(crate) purpose: P,
    /// Its URL.
    pub(crate) url: String,
    /// Time of sending.
    pub(crate) sent: Monotonic,
}

/// A request and its response, complete or not.
#[derive(Debug)]
pub(crate) struct CollectedResponse<P> {
    /// The request.
    pub(crate) request: SentRequest<P>,
    /// Status and headers, if they came, however the body ended.
    pub(crate) head: Option<ResponseHead>,
    /// The complete body, or the error that cut it off. Where this is `Ok`, `head` is there too.
    pub(crate) body: Result<Bytes, TransferError>,
}

impl<P> Default for SingleRequest<P> {
    fn default() -> Self {
        Self { in_flight: None, ahead: None, count: 0 }
    }
}

impl<P> SingleRequest<P> {
    /// Returns whether a response is awaited.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Purpose of the request in flight.
    pub(crate) fn purpose(&self) -> Option<&P> {
        self.in_flight.as_ref().map(|in_flight| &in_flight.response.request.purpose)
    }

    /// A GET with an id of its own, for [`Self::send`].
    pub(crate) fn get(&mut self, url: impl Into<String>) -> Request {
        // Counts up from 1. WebSub's subscriber shares an exchange with a follower and counts down from the end.
        self.count += 1;
        Request::get(RequestId(self.count), url)
    }

    /// Puts a request in flight. Earlier ones are dropped: their responses will be ignored.
    pub(crate) fn send(&mut self, now: Now, purpose: P, request: Request) -> Request {
        (self.in_flight, self.ahead) = (Some(InFlight::new(now, purpose, &request)), None);
        request
    }

    /// Returns the request in flight and the head of its response, once that is there and while none was sent ahead.
    pub(crate) fn before_ahead(&self) -> Option<(&SentRequest<P>, &ResponseHead)> {
        let response = &self.in_flight.as_ref().filter(|_| self.ahead.is_none())?.response;
        Some((&response.request, response.head.as_ref()?))
    }

    /// Sends a request before the one in flight has ended, so that the publisher prepares its response meanwhile.
    pub(crate) fn send_ahead(&mut self, now: Now, purpose: P, mut request: Request) -> Request {
        request.after = self.in_flight.as_ref().map(|in_flight| in_flight.id);
        self.ahead = Some(InFlight::new(now, purpose, &request));
        request
    }

    /// Drops the request in flight unless it is the wanted one. Used when the one before it has ended.
    pub(crate) fn keep_if(&mut self, is_wanted: impl FnOnce(&SentRequest<P>) -> bool) {
        self.in_flight.take_if(|in_flight| !is_wanted(&in_flight.response.request));
    }

    /// Takes the head of the response. Parts of any other request's response are ignored, here and below.
    pub(crate) fn handle_head(&mut self, id: RequestId, head: ResponseHead) {
        if let Some(in_flight) = self.with_id(id) {
            in_flight.response.head = Some(head);
        }
    }

    /// Takes a piece of the body. A body larger than [`Request::max_body`] is dropped.
    pub(crate) fn handle_chunk(&mut self, id: RequestId, chunk: &[u8]) {
        let Some(InFlight { max_body, body, is_too_large, .. }) = self.with_id(id) else { return };
        // The driver checks the limit too. A second check costs nothing and holds for any driver.
        *is_too_large |= (body.len() + chunk.len()) as u64 > *max_body;
        if *is_too_large {
            // Not `clear`, which would keep the memory until the response ends.
            *body = BytesMut::new();
        } else {
            body.extend_from_slice(chunk);
        }
    }

    /// Ends the request and returns its response.
    pub(crate) fn handle_end(
        &mut self,
        id: RequestId,
        result: Result<(), TransferError>,
    ) -> Option<CollectedResponse<P>> {
        // One sent ahead that ends first has failed in a driver of another kind. It is sent again in its turn.
        self.ahead.take_if(|ahead| ahead.id == id);
        let InFlight { max_body, mut response, body, is_too_large, .. } =
            // The end of a dropped request must not end the one that replaced it.
            self.in_flight.take_if(|in_flight| in_flight.id == id)?;
        self.in_flight = self.ahead.take();
        response.body = match result {
            Ok(()) if is_too_large => Err(TransferError::TooLarge { limit: max_body }),
            Ok(()) if response.head.is_none() => Err(no_response()),
            Ok(()) => Ok(body.freeze()),
            Err(error) => Err(error),
        };
        Some(response)
    }

    /// Ends the request without a response, for one that was answered in another way.
    pub(crate) fn cancel(&mut self, id: RequestId) -> Option<SentRequest<P>> {
        let cancelled = self.in_flight.take_if(|in_flight| in_flight.id == id)?;
        self.in_flight = self.ahead.take();
        Some(cancelled.response.request)
    }

    // A late part of a dropped request must not become part of the one in flight.
    fn with_id(&mut self, id: RequestId) -> Option<&mut InFlight<P>> {
        [&mut self.in_flight, &mut self.ahead].into_iter().flatten().find(|in_flight| in_flight.id == id)
    }
}

impl<P> InFlight<P> {
    fn new(now: Now, purpose: P, request: &Request) -> Self {
        let sent = SentRequest { purpose, url: request.url.clone(), sent: now.monotonic };
        Self {
            id: request.id,
            max_body: request.max_body,
            response: CollectedResponse { request: sent, head: None, body: Ok(Bytes::new()) },
            body: BytesMut::new(),
            is_too_large: false,
        }
    }
}

impl<P> CollectedResponse<P> {
    /// Splits into the request, and head and body of a complete response of any status.
    pub(crate) fn whole(self) -> (SentRequest<P>, Result<(ResponseHead, Bytes), TransferError>) {
        let head = self.head.ok_or_else(no_response);
        (self.request, self.body.and_then(|body| Ok((head?, body))))
    }
}

/// A state machine with at most one request in flight. It is an [`Exchange`] by its [`SingleRequest`].
pub(crate) trait SingleRequestExchange: Send {
    /// The reason for a request.
    type Purpose;

    /// The request in flight.
    fn single_request(&self) -> &SingleRequest<Self::Purpose>;

    /// The request in flight.
    fn single_request_mut(&mut self) -> &mut SingleRequest<Self::Purpose>;

    /// See [`Exchange::poll_request`]. Called with or without a request in flight.
    fn next_request(&mut self, now: Now) -> Option<Request>;

    /// Takes the response to the request that was in flight.
    fn handle_response(&mut self, now: Now, response: CollectedResponse<Self::Purpose>);

    /// See [`Exchange::poll_timeout`].
    fn next_timeout(&self) -> Option<Monotonic>;

    /// See [`Exchange::is_finished`].
    fn is_over(&self) -> bool;
}

// A blanket implementation rather than a wrapper type: constructors and accessors stay methods of the state machine.
impl<T: SingleRequestExchange> Exchange for T {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        self.next_request(now)
    }

    fn handle_head(&mut self, _now: Now, id: RequestId, head: ResponseHead) {
        self.single_request_mut().handle_head(id, head);
    }

    fn handle_chunk(&mut self, _now: Now, id: RequestId, chunk: Bytes) {
        self.single_request_mut().handle_chunk(id, &chunk);
    }

    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) {
        if let Some(response) = self.single_request_mut().handle_end(id, result) {
            self.handle_response(now, response);
        }
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        self.next_timeout()
    }

    fn is_finished(&self) -> bool {
        self.is_over()
    }
}

fn no_response() -> TransferError {
    TransferError::Connect("it ended without an answer".into())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use jiff::Timestamp;

    use super::*;

    fn head() -> ResponseHead {
        ResponseHead { status: 200, url: "http://a/".into(), headers: HeaderMap::new() }
    }

    fn sent(limit: u64) -> (SingleRequest<&'static str>, RequestId) {
        let mut single = SingleRequest::default();
        let request = Request { max_body: limit, ..single.get("http://a/") };
        let id = single.send(Now::simulated(Timestamp::UNIX_EPOCH), "why", request).id;
        (single, id)
    }

    #[test]
    fn a_response_is_collected_whole() {
        let (mut single, id) = sent(4);
        assert_eq!((single.is_in_flight(), single.purpose()), (true, Some(&"why")));
        single.handle_head(id, head());
        single.handle_chunk(id, b"ab");
        single.handle_chunk(id, b"cd");
        let response = single.handle_end(id, Ok(())).unwrap();
        assert!(!single.is_in_flight());
        let (request, whole) = response.whole();
        assert_eq!((request.purpose, request.url.as_str()), ("why", "http://a/"));
        assert_eq!(whole.unwrap().1, "abcd");
    }

    #[test]
    fn a_body_beyond_the_limit_is_dropped() {
        let (mut single, id) = sent(4);
        single.handle_head(id, head());
        for _ in 0..3 {
            single.handle_chunk(id, b"abc");
        }
        let response = single.handle_end(id, Ok(())).unwrap();
        assert_eq!(response.body, Err(TransferError::TooLarge { limit: 4 }));
        assert!(response.head.is_some());
    }

    #[test]
    fn a_request_sent_ahead_takes_the_place_of_the_one_before() {
        let now = Now::simulated(Timestamp::UNIX_EPOCH);
        for is_wanted in [true, false] {
            let (mut single, first) = sent(9);
            assert!(single.before_ahead().is_none(), "its head is not there");
            single.handle_head(first, head());
            assert_eq!(single.before_ahead().map(|(sent, _)| sent.url.as_str()), Some("http://a/"));
            let next = single.get("http://a/2");
            let next = single.send_ahead(now, "more", next);
            assert_eq!(next.after, Some(first));
            assert!(single.before_ahead().is_none(), "one at a time");
            assert_eq!(single.handle_end(first, Ok(())).unwrap().request.purpose, "why");
            single.keep_if(|sent| is_wanted && sent.url == "http://a/2");
            assert_eq!(single.is_in_flight(), is_wanted);
            single.handle_head(next.id, head());
            single.handle_chunk(next.id, b"two");
            let response = single.handle_end(next.id, Ok(()));
            assert_eq!(response.map(|response| response.body), is_wanted.then(|| Ok("two".into())));
        }
    }

    #[test]
    fn a_request_sent_ahead_that_ends_first_is_dropped() {
        let (mut single, first) = sent(9);
        single.handle_head(first, head());
        let next = single.get("http://a/2");
        let next = single.send_ahead(Now::simulated(Timestamp::UNIX_EPOCH), "more", next);
        assert!(single.handle_end(next.id, Err(no_response())).is_none());
        assert!(single.handle_end(first, Ok(())).is_some());
        assert!(!single.is_in_flight());
    }

    #[test]
    fn parts_of_another_response_are_ignored() {
        let (mut single, id) = sent(4);
        let other = RequestId(id.0 + 1);
        single.handle_head(other, head());
        single.handle_chunk(other, b"abc");
        assert!(single.handle_end(other, Ok(())).is_none());
        assert!(single.cancel(other).is_none());
        let response = single.handle_end(id, Ok(())).unwrap();
        assert!(matches!(response.whole().1, Err(TransferError::Connect(_))));
    }
}
