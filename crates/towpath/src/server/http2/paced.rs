//! Body of a response over HTTP/2, which hyper takes in pieces as the client gives it windows.
//!
//! hyper asks for a further piece only when it could give the one before to the stream. So each request for a piece is
//! progress, and a piece that stays is a client that does not read. The last byte of what is there is a piece of its
//! own: hyper waits for a window for it, and that window comes only after the windows for all bytes before.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::account::{self, StreamAccount};
use crate::server::admission::StreamPermit;
use crate::server::response::ResponseBody;

/// Longest piece: a frame of the usual size.
const PIECE: usize = 16 << 10;

/// Body whose pieces are accounted for.
pub(super) struct PacedBody {
    inner: ResponseBody,
    /// Part of the last frame that hyper has not got yet.
    rest: Bytes,
    account: Option<Arc<StreamAccount>>,
    _permit: Option<StreamPermit>,
}

impl PacedBody {
    /// A body for the stream whose task runs.
    pub(super) fn new(inner: ResponseBody, permit: Option<StreamPermit>) -> Self {
        Self::accounted(inner, permit, account::current())
    }

    fn accounted(
        inner: ResponseBody,
        permit: Option<StreamPermit>,
        account: Option<Arc<StreamAccount>>,
    ) -> Self {
        let body = Self { inner, rest: Bytes::new(), account, _permit: permit };
        body.check_end();
        body
    }

    fn check_end(&self) {
        if let Some(account) = self.account.as_ref().filter(|_| self.is_end_stream()) {
            account.complete();
        }
    }

    fn set_piece(&self, piece: Option<usize>) {
        if let Some(account) = &self.account {
            account.set_piece(piece);
        }
    }
}

impl Body for PacedBody {
    type Data = Bytes;
    type Error = <ResponseBody as Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.set_piece(None);
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    // Trailers: flow control applies to DATA frames only (RFC 9113, section 5.2.1).
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                ended => {
                    self.check_end();
                    return Poll::Ready(ended);
                }
            }
        }
        let length = match self.rest.len() {
            0 | 1 => self.rest.len(),
            rest => (rest - 1).min(PIECE),
        };
        let piece = self.rest.split_to(length);
        self.set_piece((length > 0).then_some(length));
        self.check_end();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // hyper takes an exact hint as the Content-Length, so bytes that are held back here must count.
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for PacedBody {
    fn drop(&mut self) {
        // A stream that was reset must not count as waiting: the others would earn time for it.
        self.set_piece(None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::task::Waker;

    use tokio::sync::mpsc;

    use super::*;

    fn account() -> Arc<StreamAccount> {
        Arc::new(StreamAccount::new(Arc::default()))
    }

    fn next(body: &mut PacedBody) -> Poll<Option<Bytes>> {
        let frame = Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
        frame.map(|frame| frame.map(|frame| frame.unwrap().into_data().unwrap()))
    }

    #[test]
    fn the_last_byte_waits_for_the_windows_of_all() {
        let account = account();
        let content = Bytes::from(vec![7; PIECE + 100]);
        let mut body = PacedBody::accounted(content.into(), None, Some(account.clone()));
        assert_eq!(body.size_hint().exact(), Some(PIECE as u64 + 100));
        let mut lengths = Vec::new();
        while !body.is_end_stream() {
            let Poll::Ready(Some(piece)) = next(&mut body) else { panic!("no piece") };
            lengths.push(piece.len());
            assert_eq!(account.waiting.load(Ordering::Relaxed), 1);
        }
        assert_eq!(lengths, [PIECE, 99, 1]);
        // hyper holds the last byte until the client gives a window for it.
        assert_eq!(account.take_progress(), (PIECE + 99, true));
        assert!(account.is_complete());
        drop(body);
        assert_eq!((account.take_progress(), account.waiting.load(Ordering::Relaxed)), ((1, false), 0));
    }

    #[test]
    fn a_stream_without_news_waits_for_nobody() {
        let account = account();
        let (sender, chunks) = mpsc::channel(1);
        let mut body = PacedBody::accounted(ResponseBody::channel(chunks), None, Some(account.clone()));
        assert!(next(&mut body).is_pending());
        sender.try_send(Bytes::from_static(b"ab")).unwrap();
        assert_eq!(next(&mut body), Poll::Ready(Some(Bytes::from_static(b"a"))));
        assert!(account.take_progress().1);
        assert_eq!(next(&mut body), Poll::Ready(Some(Bytes::from_static(b"b"))));
        assert!(next(&mut body).is_pending());
        assert_eq!(account.take_progress(), (2, false));
        assert!(!account.is_complete());
        drop(sender);
        assert_eq!(next(&mut body), Poll::Ready(None));
    }

    #[test]
    fn an_empty_body_is_complete_from_the_start() {
        let account = account();
        let body = PacedBody::accounted(Bytes::new().into(), None, Some(account.clone()));
        assert!(body.is_end_stream() && account.is_complete());
    }
}
