//! Those who wait on a connection that hyper gave back: woken, answered, and waiting again.
//!
//! Ten thousand clients that wait for one feed are answered at once, and ask again at once. hyper would make its
//! buffers, parse the same request and make the same head for each of them. Here the answer is put into bytes once
//! and written to every socket as it is, and a request that is known by its bytes waits again ([`super::rearm`]): one
//! write and one read for each client. Whatever else comes is left to hyper, together with what was read of it.

use std::future::{Future, poll_fn};
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, DATE};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use towpath_proto::format::http_date;

use super::alarm::Alarm;
use super::connection::{Exchange, HEAD_TIMEOUT, Waiting};
use super::rearm::{MAX_REQUEST, Rearms};
use super::smart::Held;
use crate::engine::smart::Told;
use crate::stop::Stop;

/// What a connection has for all of its waiting, so that nothing is set up for each time.
pub(super) struct Patience<'a, S> {
    alarm: Alarm<'a>,
    /// Ready once the server stops, and ready again when it is asked again.
    pub(super) stopping: Pin<&'a mut S>,
    stop: &'a Stop,
    /// Whom the alarm and the end of the server wake.
    woken: Option<Waker>,
    rearms: &'a Mutex<Rearms>,
}

/// What ends the waiting for a feed to move.
enum End {
    Told(Arc<Told>),
    /// The deadline, or the server stops.
    Over,
    /// The client is gone.
    Gone,
}

/// What a client does after its answer.
enum Next {
    Waits(Held),
    Asks(Bytes),
}

impl<'a, S: Future<Output = ()>> Patience<'a, S> {
    pub(super) fn new(
        sleep: Pin<&'a mut Sleep>,
        stopping: Pin<&'a mut S>,
        stop: &'a Stop,
        rearms: &'a Mutex<Rearms>,
    ) -> Self {
        Self { alarm: Alarm::new(sleep), stopping, stop, woken: None, rearms }
    }

    /// Answers a client that waits, as often as it waits again. Returns what hyper is to go on with; `None` where the
    /// connection is over.
    pub(super) async fn wait(&mut self, waiting: Waiting) -> Option<Exchange> {
        let Waiting { mut stream, read, mut held, keep_alive } = waiting;
        loop {
            let told = match self.end(&mut stream, &held).await {
                End::Told(told) => told,
                End::Over => {
                    return Some(Exchange::answer(stream, held.own_answer().await, read, keep_alive));
                }
                End::Gone => return None,
            };
            drop(held);
            if !keep_alive || !read.is_empty() {
                return Some(Exchange::answer(stream, told.answer(), read, keep_alive));
            }
            stream.write_all(told.written()).await.ok()?;
            drop(told);
            match self.next(&mut stream).await? {
                Next::Waits(again) => held = again,
                Next::Asks(read) => return Some(Exchange::request(stream, read)),
            }
        }
    }

    /// One that has sent its next request already is not known to be gone, until it is answered.
    async fn end(&mut self, stream: &mut TcpStream, held: &Held) -> End {
        self.alarm.set(held.deadline());
        let mut has_more = false;
        poll_fn(|context| {
            if let Poll::Ready(told) = held.poll_told(context) {
                return Poll::Ready(End::Told(told));
            }
            if !has_more && let Poll::Ready(peeked) = stream.poll_peek(context, &mut ReadBuf::new(&mut [0])) {
                match peeked {
                    Ok(1..) => has_more = true,
                    Ok(0) | Err(_) => return Poll::Ready(End::Gone),
                }
            }
            self.poll_over(context).map(|()| End::Over)
        })
        .await
    }

    async fn next(&mut self, stream: &mut TcpStream) -> Option<Next> {
        self.alarm.set(Instant::now() + HEAD_TIMEOUT);
        poll_fn(|context| {
            let mut buffer = [const { MaybeUninit::uninit() }; MAX_REQUEST];
            let mut buffer = ReadBuf::uninit(&mut buffer);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    Poll::Ready(Some(self.known(buffer.filled())))
                }
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => self.poll_over(context).map(|()| None),
            }
        })
        .await
    }

    fn known(&self, request: &[u8]) -> Next {
        let held = self.rearms.lock().join(request);
        held.map_or_else(|| Next::Asks(Bytes::copy_from_slice(request)), Next::Waits)
    }

    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let is_known = self.woken.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        // Most of the times that a connection is polled neither has happened, and that is cheap to see.
        if is_known && self.alarm.is_silent() && matches!(self.stop.has_changed(), Ok(false)) {
            return Poll::Pending;
        }
        if self.alarm.poll(context).is_ready() || self.stopping.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        if !is_known {
            self.woken = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Told {
    /// As it is sent on a connection that is kept.
    fn written(&self) -> &Bytes {
        self.written.get_or_init(|| write(self, Timestamp::now()))
    }
}

/// A response of HTTP/1.1 (RFC 9112, section 4) with its date (RFC 9110, section 6.6.1).
fn write(told: &Told, now: Timestamp) -> Bytes {
    let mut out = Vec::with_capacity(512 + told.body.len());
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    for (name, value) in told.headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH && *name != DATE) {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    // Writing to memory cannot fail.
    let _ = write!(out, "content-length: {}\r\ndate: {}\r\n\r\n", told.body.len(), http_date::write(now));
    out.extend_from_slice(&told.body);
    out.into()
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::sync::OnceLock;
    use std::time::Duration;

    use futures_util::future::maybe_done;
    use http::{HeaderMap, HeaderValue};
    use tokio::sync::watch;
    use tokio::time::{sleep, timeout};

    use crate::stop::stopped;

    use super::*;

    #[test]
    fn rfc_9112_4_an_answer_in_bytes() {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>; rel=self"));
        headers.append("link", HeaderValue::from_static("<b>; rel=hub"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        let told = Told { headers, body: Bytes::from_static(b"{}"), cursor: None, written: OnceLock::new() };
        let expected = "HTTP/1.1 200 OK\r\nlink: <a>; rel=self\r\nlink: <b>; rel=hub\r\n\
            content-length: 2\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n{}";
        assert_eq!(write(&told, Timestamp::UNIX_EPOCH), expected);
    }

    /// A client, and what the server has of it.
    async fn connected() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    fn read(next: Option<Next>) -> Option<Bytes> {
        match next? {
            Next::Asks(read) => Some(read),
            Next::Waits(_) => panic!("nothing is known"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_nothing_more_is_cut_off_in_time() {
        let (_client, mut stream) = connected().await;
        let (sleep, stopping) = (pin!(sleep(Duration::ZERO)), pin!(pending::<()>()));
        let (rearms, (_stopper, stop)) = (Mutex::default(), watch::channel(false));
        let mut patience = Patience::new(sleep, stopping, &stop, &rearms);
        let begun = Instant::now();
        assert!(patience.next(&mut stream).await.is_none());
        assert!(begun.elapsed().abs_diff(HEAD_TIMEOUT) < Duration::from_millis(10), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn what_is_not_known_is_handed_on_as_it_came() {
        let (mut client, mut stream) = connected().await;
        let (sleep, stopping) = (pin!(sleep(Duration::ZERO)), pin!(maybe_done(pending::<()>())));
        let (rearms, (_stopper, stop)) = (Mutex::default(), watch::channel(false));
        let mut patience = Patience::new(sleep, stopping, &stop, &rearms);
        client.write_all(b"GE").await.unwrap();
        assert_eq!(read(patience.next(&mut stream).await).unwrap(), "GE");
        client.write_all(&[b'x'; MAX_REQUEST + 1]).await.unwrap();
        assert_eq!(read(patience.next(&mut stream).await).unwrap().len(), MAX_REQUEST);
        assert_eq!(read(patience.next(&mut stream).await).unwrap(), "x");
        drop(client);
        assert!(patience.next(&mut stream).await.is_none());
    }

    #[tokio::test]
    async fn a_server_that_stops_waits_for_nobody() {
        let (_client, mut stream) = connected().await;
        let (rearms, (stopper, stop)) = (Mutex::default(), watch::channel(false));
        let (sleep, stopping) = (pin!(sleep(Duration::ZERO)), pin!(maybe_done(stopped(&stop))));
        let mut patience = Patience::new(sleep, stopping, &stop, &rearms);
        let early = timeout(Duration::from_millis(50), patience.next(&mut stream)).await;
        assert!(early.is_err());
        let later = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            stopper.send(true).unwrap();
        };
        let (next, ()) = tokio::join!(patience.next(&mut stream), later);
        assert!(next.is_none());
        assert!(patience.next(&mut stream).await.is_none(), "and so for ever");
    }
}
