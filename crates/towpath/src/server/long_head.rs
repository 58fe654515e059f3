//! Requests whose head is too long, has too many fields, or is malformed: hyper refuses them without a body, and this
//! says what is wrong and what to do instead.
//!
//! hyper sends its refusal by itself, in the middle of a head. [`RefusalFilter`] keeps it from the socket. The rest of the
//! head is read and forgotten, because a browser that is still sending shows no answer, and because the address may have
//! pushed `Accept` out of the part that was kept. Then the client gets a page or a problem document.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, DATE, HOST, HeaderName};
use http::{HeaderValue, Method, Request, Uri};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::timeout;

use super::console;
use super::problem::Problem;
use super::service::MAX_HEAD;
use crate::document::prebuilt::Answer;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::Engine;

/// Most header fields of a request. hyper's default, which takes no memory of its own.
const MAX_COUNT: usize = 100;
/// Fewest bytes of a head that hyper refuses: one field more, each with a name of a letter and no value.
const MIN_REFUSED: usize = (MAX_COUNT + 1) * "a:\r\n".len();
/// Beginnings of hyper's own refusals.
const TOO_LONG: &[u8] = b"HTTP/1.1 431 ";
const MALFORMED: &[u8] = b"HTTP/1.1 400 ";
/// Field of a refusal. Our own answers with this status have a body.
const NO_BODY: &[u8] = b"\r\ncontent-length: 0\r\n";
/// Most bytes of a refusal.
const MAX_REFUSAL: usize = 256;
/// Longest time, and most bytes, that are spent on the rest of a head. Chromium's addresses have up to 2 MiB.
const REST_TIME: Duration = Duration::from_secs(2);
const MAX_REST: usize = 4 << 20;
/// Most bytes of header fields that are looked at.
const MAX_FIELDS: usize = 64 << 10;
/// Longest address whose page is named in the answer.
const MAX_PATH: usize = 1 << 10;
/// Longest time in which a client takes the answer.
const WRITE_TIME: Duration = Duration::from_secs(10);

/// Reason for which hyper refuses a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadFault {
    TooLong,
    Malformed,
}

/// A stream that keeps hyper's refusal of a head from the client.
#[derive(Debug)]
pub(super) struct RefusalFilter<S> {
    stream: S,
    /// Bytes that were read since the last write. An answer that only looks like a refusal has no long head before it.
    unanswered: usize,
    refused: Option<HeadFault>,
}

impl<S> RefusalFilter<S> {
    /// A stream of which `read` bytes were read before.
    pub(super) fn new(stream: S, read: usize) -> Self {
        Self { stream, unanswered: read, refused: None }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    /// Returns the reason if hyper has refused a head, and the client does not know it yet.
    pub(super) fn refused(&self) -> Option<HeadFault> {
        self.refused
    }

    /// Returns true if a write is kept back.
    fn keeps(&mut self, from: &[u8]) -> bool {
        let unanswered = std::mem::take(&mut self.unanswered);
        if self.refused.is_none() {
            self.refused = match from {
                _ if unanswered >= MIN_REFUSED && from.starts_with(TOO_LONG) => Some(HeadFault::TooLong),
                _ if unanswered > 0 && is_malformed(from) => Some(HeadFault::Malformed),
                _ => None,
            };
        }
        self.refused.is_some()
    }
}

/// Returns true for hyper's refusal of a malformed head: nothing but a head, which says that no body follows.
fn is_malformed(from: &[u8]) -> bool {
    from.starts_with(MALFORMED)
        && from.len() <= MAX_REFUSAL
        && from.ends_with(b"\r\n\r\n")
        && from.windows(NO_BODY.len()).any(|part| part == NO_BODY)
}

impl<S: AsyncRead + Unpin> AsyncRead for RefusalFilter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        self.unanswered = self.unanswered.saturating_add(into.filled().len() - before);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RefusalFilter<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.keeps(from) {
            return Poll::Ready(Ok(from.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The answer is still to be sent.
        if self.refused.is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = from.iter().find(|part| !part.is_empty());
        if first.is_some_and(|first| self.keeps(first)) {
            return Poll::Ready(Ok(from.iter().map(|part| part.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, from)
    }
}

/// Answers a request whose head hyper has refused with an error, of which `start` was read.
pub(super) async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    start: &[u8],
    (fault, error): (HeadFault, &hyper::Error),
    engine: &Arc<Engine>,
    peer: SocketAddr,
) {
    let mut head = LongHead::default();
    let is_whole = head.take(start);
    // What is malformed may have no end, and its client waits for the answer.
    if !is_whole && fault == HeadFault::TooLong {
        // What did not come in time is not waited for: the answer goes out all the same.
        let _ = timeout(REST_TIME, head.read_rest(&mut stream)).await;
    }
    let request = head.request();
    let is_head = request.method() == Method::HEAD;
    let answer = match fault {
        HeadFault::TooLong => respond_with_refusal(engine.clone(), peer, &request),
        HeadFault::Malformed => {
            let detail = format!("this is not a request of HTTP/1.1 (RFC 9112): {error}");
            respond_with(engine.clone(), peer, &request, RouteError::bad_request(detail))
        }
    };
    let sent = timeout(WRITE_TIME, stream.write_all(&encode(&answer, engine, is_head))).await;
    if let Ok(Ok(())) = sent {
        // It may have gone already.
        let _ = timeout(WRITE_TIME, stream.shutdown()).await;
    }
}

/// Makes the page or the problem document for a request whose head is too long.
pub(super) fn respond_with_refusal<B>(engine: Arc<Engine>, peer: SocketAddr, request: &Request<B>) -> Answer {
    let detail = format!(
        "the address and the header fields of this request are longer than {} KiB, or there are more than {MAX_COUNT} header \
         fields; shorten the search, or remove this site's cookies",
        MAX_HEAD >> 10
    );
    respond_with(engine, peer, request, RouteError::new(RouteErrorKind::HeadTooLarge, detail))
}

fn respond_with<B>(engine: Arc<Engine>, peer: SocketAddr, request: &Request<B>, error: RouteError) -> Answer {
    match console::Refused::of(peer, request) {
        Some(refused) => refused.page(engine, error),
        None => Problem::from(error).response(),
    }
}

/// Beginning of a request's address, and its header fields, of a head of any length.
#[derive(Debug, Default)]
struct LongHead {
    line: Vec<u8>,
    /// True behind the end of the request line.
    has_line: bool,
    fields: Vec<u8>,
}

impl LongHead {
    /// Takes a further part of the head; returns true if nothing more is wanted.
    fn take(&mut self, mut part: &[u8]) -> bool {
        if !self.has_line {
            let end = part.iter().position(|byte| *byte == b'\n');
            let line = &part[..end.unwrap_or(part.len())];
            self.line.extend_from_slice(&line[..line.len().min(MAX_PATH.saturating_sub(self.line.len()))]);
            let Some(end) = end else { return false };
            self.has_line = true;
            part = &part[end + 1..];
        }
        // The end may lie across two parts.
        let from = self.fields.len().saturating_sub(3);
        self.fields.extend_from_slice(part);
        let seen = &self.fields[from..];
        let is_whole = self.fields.starts_with(b"\r\n") || seen.windows(4).any(|bytes| bytes == b"\r\n\r\n");
        is_whole || self.fields.len() > MAX_FIELDS
    }

    async fn read_rest(&mut self, stream: &mut (impl AsyncRead + Unpin)) {
        let (mut buffer, mut count) = (vec![0; 16 << 10], 0);
        while count < MAX_REST {
            match stream.read(&mut buffer).await {
                Ok(read) if read > 0 => {
                    count += read;
                    if self.take(&buffer[..read]) {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    /// Makes a request of what is known: its method, the path of its address, and the fields that choose the answer.
    fn request(&self) -> Request<()> {
        let mut request = Request::new(());
        let line = String::from_utf8_lossy(&self.line);
        let (method, rest) = line.split_once(' ').unwrap_or(("GET", "/"));
        *request.method_mut() = method.parse().unwrap_or(Method::GET);
        // Without the query: its end may be missing. A path that was cut off leads nowhere.
        let end = rest.find(['?', ' ']);
        let path = end.map_or("/", |end| &rest[..end]);
        *request.uri_mut() = path.parse().unwrap_or(Uri::from_static("/"));
        for line in self.fields.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let name = HeaderName::from_bytes(&line[..colon]);
            let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value)
                && [ACCEPT, HOST].contains(&name)
            {
                request.headers_mut().insert(name, value);
            }
        }
        request
    }
}

/// Encodes an answer that ends its connection.
fn encode(answer: &Answer, engine: &Engine, is_head: bool) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {}\r\n", answer.status).into_bytes();
    let now = engine.now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let length = answer.body.len().to_string();
    let own = [(CONNECTION, "close"), (CONTENT_LENGTH, length.as_str()), (DATE, now.as_str())];
    let own = own.iter().map(|(name, value)| (name, value.as_bytes()));
    for (name, value) in answer.headers.iter().map(|(name, value)| (name, value.as_bytes())).chain(own) {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    if !is_head {
        bytes.extend_from_slice(&answer.body);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_behind_a_long_address_are_found() {
        let address = "x".repeat(100_000);
        let head = format!("GET /feeds/aa?q={address} HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\n\r\n");
        for size in [1, 7, 4096, head.len()] {
            let mut long = LongHead::default();
            let parts: Vec<bool> = head.as_bytes().chunks(size).map(|part| long.take(part)).collect();
            assert_eq!(parts.iter().position(|is_whole| *is_whole), Some(parts.len() - 1), "{size}");
            let request = long.request();
            assert_eq!(
                (request.uri().path(), &request.headers()[ACCEPT]),
                ("/feeds/aa", &"text/html".parse().unwrap())
            );
            assert!(long.line.len() <= MAX_PATH);
        }
        let mut cut = LongHead::default();
        assert!(!cut.take(format!("GET /{address}").as_bytes()));
        assert_eq!(cut.request().uri().path(), "/");
    }

    #[tokio::test]
    async fn only_a_refusal_after_a_long_head_is_kept_back() {
        let mut filter = RefusalFilter::new(tokio::io::join(tokio::io::repeat(b'x'), Vec::new()), 0);
        // The content of somebody's item.
        filter.write_all(b"HTTP/1.1 431 no refusal").await.unwrap();
        assert_eq!(filter.refused(), None);
        let mut head = vec![0; MAX_HEAD];
        filter.read_exact(&mut head).await.unwrap();
        filter.write_all(b"HTTP/1.1 200 OK").await.unwrap();
        filter.read_exact(&mut head).await.unwrap();
        filter.write_all(b"HTTP/1.1 431 Request Header Fields Too Large").await.unwrap();
        filter.write_all(b"more").await.unwrap();
        assert_eq!(filter.refused(), Some(HeadFault::TooLong));
        let sent = filter.into_inner().into_inner().1;
        assert_eq!(sent, b"HTTP/1.1 431 no refusalHTTP/1.1 200 OK");
    }

    #[tokio::test]
    async fn only_a_refusal_without_a_body_tells_of_a_malformed_head() {
        const OWN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let mut filter = RefusalFilter::new(tokio::io::join(tokio::io::repeat(b'x'), Vec::new()), 0);
        // The content of an item, after the head of its answer.
        filter.write_all(OWN).await.unwrap();
        let mut head = [0; 16];
        filter.read_exact(&mut head).await.unwrap();
        filter.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 9\r\n\r\n").await.unwrap();
        assert_eq!(filter.refused(), None);
        filter.read_exact(&mut head).await.unwrap();
        filter.write_all(OWN).await.unwrap();
        assert_eq!(filter.refused(), Some(HeadFault::Malformed));
    }
}
