//! Socket whose first bytes have been read before hyper gets it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::server::guarded_stream::GuardedStream;
use crate::server::long_head::{HeadFault, RefusalFilter};

/// A socket, and the bytes that hyper reads before those of the socket.
pub(in crate::server) struct Rewind {
    prefix: Bytes,
    has_read_socket: bool,
    io: TokioIo<RefusalFilter<GuardedStream<TcpStream>>>,
}

/// Stand-in for a request that was parsed before and whose response is ready. hyper sends a response only to a request
/// that it has read.
// Without Host, which `HttpService` would refuse, but it has the answer ready before it checks.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
/// Stand-in for a request whose client closes the connection after the response.
const LAST_REQUEST: &[u8] = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";

impl Rewind {
    /// A socket from which `read` has been read; nothing if it was just accepted.
    pub(in crate::server) fn new(stream: GuardedStream<TcpStream>, read: Bytes) -> Self {
        let filter = RefusalFilter::new(stream, read.len());
        Self { prefix: read, has_read_socket: false, io: TokioIo::new(filter) }
    }

    /// A socket from which a request has been read, and `read` after it.
    pub(in crate::server) fn after_request(
        stream: GuardedStream<TcpStream>,
        keep_alive: bool,
        read: &Bytes,
    ) -> Self {
        let request = if keep_alive { REQUEST } else { LAST_REQUEST };
        // Mostly nothing was read after the request; then nothing is allocated.
        let prefix = if read.is_empty() {
            Bytes::from_static(request)
        } else {
            let mut prefix = BytesMut::from(request);
            prefix.extend_from_slice(read);
            prefix.freeze()
        };
        Self::new(stream, prefix)
    }

    /// Returns true if hyper has read the socket itself, beyond the prefix.
    pub(in crate::server) fn has_read_socket(&self) -> bool {
        self.has_read_socket
    }

    /// Returns the socket, and the part of the prefix that hyper has not read.
    pub(in crate::server) fn into_parts(self) -> (GuardedStream<TcpStream>, Bytes) {
        (self.io.into_inner().into_inner(), self.prefix)
    }

    /// Returns the reason if hyper has refused a head, and the client does not know it yet.
    pub(in crate::server) fn refused(&self) -> Option<HeadFault> {
        self.io.inner().refused()
    }
}

impl Read for Rewind {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            let read = Pin::new(&mut self.io).poll_read(context, into);
            // A pending read has taken nothing from the socket.
            self.has_read_socket |= read.is_ready();
            return read;
        }
        // The prefix alone, even with room left: a read of the socket could be pending.
        let count = self.prefix.len().min(into.remaining());
        into.put_slice(&self.prefix[..count]);
        self.prefix.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl Write for Rewind {
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

    // Passed on, or hyper would copy head and body into one buffer before each write.
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
