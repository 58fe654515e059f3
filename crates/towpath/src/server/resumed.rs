//! A socket of which the first bytes have been read before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A socket, and what is to be read before it.
pub(super) struct Resumed {
    before: Bytes,
    /// Whether more was read than that.
    has_read_on: bool,
    io: TokioIo<TcpStream>,
}

/// Stands for a request that was read and understood before; its answer is known.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
/// The same from a client that does not want to go on.
const LAST_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";

impl Resumed {
    /// A socket of which `read` has been read: nothing, as it was accepted.
    pub(super) fn new(stream: TcpStream, read: Bytes) -> Self {
        Self { before: read, has_read_on: false, io: TokioIo::new(stream) }
    }

    /// A socket that a request was read from already, and `read` behind it.
    pub(super) fn after_request(stream: TcpStream, keep_alive: bool, read: &Bytes) -> Self {
        let request = if keep_alive { REQUEST } else { LAST_REQUEST };
        let before = if read.is_empty() {
            Bytes::from_static(request)
        } else {
            let mut before = BytesMut::from(request);
            before.extend_from_slice(read);
            before.freeze()
        };
        Self::new(stream, before)
    }

    /// Whether anything was read but the bytes that had been read before.
    pub(super) fn has_read_on(&self) -> bool {
        self.has_read_on
    }

    /// The socket, and what is still to be read before it.
    pub(super) fn into_parts(self) -> (TcpStream, Bytes) {
        (self.io.into_inner(), self.before)
    }
}

impl Read for Resumed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.before.is_empty() {
            let read = Pin::new(&mut self.io).poll_read(context, into);
            self.has_read_on |= read.is_ready();
            return read;
        }
        let count = self.before.len().min(into.remaining());
        into.put_slice(&self.before[..count]);
        self.before.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl Write for Resumed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, from)
    }
}
