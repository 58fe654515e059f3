//! Socket of a client, cut when the client does not read what is written to it.
//!
//! A write that the socket takes at once costs nothing here: the timer is made when the first write has to wait. The
//! time that writes wait is paid from an allowance. Bytes that the client takes add to it, at the minimum rate.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::ServerConfig;
use crate::document::response_memory::ResponseMemory;

/// Interval of looking at a write that waits.
const TICK: Duration = Duration::from_secs(1);
/// Longest allowance that a fast reader saves up, in times of the grace: a minute by default.
const MAX_GRACES: u32 = 6;

/// Limits of slow clients.
pub(in crate::server) struct RateLimits {
    /// Settings with the least rate and the grace.
    pub(in crate::server) server: Arc<ArcSwap<ServerConfig>>,
    /// Memory of bodies that wait; while it is exceeded, clients that read nothing for a tick are cut.
    pub(in crate::server) memory: Arc<ResponseMemory>,
}

#[cfg(test)]
impl RateLimits {
    /// Returns the default limits: 1000 bytes per second, and a grace of 10 s.
    pub(in crate::server) fn with_memory(memory: Arc<ResponseMemory>) -> Arc<Self> {
        Arc::new(Self { server: Arc::default(), memory })
    }
}

/// A stream whose writes fail once the client is too slow.
pub(in crate::server) struct GuardedStream<S> {
    stream: S,
    limits: Arc<RateLimits>,
    /// `None` until a write had to wait.
    stall: Option<Box<Stall>>,
}

/// Account of the time that writes have waited for one client.
#[derive(Debug)]
pub(in crate::server) struct Stall {
    /// Start of the current wait.
    since: Option<Instant>,
    /// Time that writes may still wait, at `since`.
    allowance: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl<S> GuardedStream<S> {
    pub(in crate::server) fn new(stream: S, limits: Arc<RateLimits>) -> Self {
        Self { stream, limits, stall: None }
    }

    pub(in crate::server) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Accounts for a write's result; `count` returns the bytes that were taken.
    fn account<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        count: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(written) => {
                if let (Some(stall), Ok(bytes)) = (&mut self.stall, &written) {
                    // Over HTTP/1.1 a connection sends one response at a time, so nothing shares its rate.
                    stall.end(count(bytes), 1, &self.limits);
                }
                Poll::Ready(written)
            }
            Poll::Pending => {
                let stall = self.stall.get_or_insert_with(|| Box::new(Stall::new(&self.limits)));
                stall
                    .poll_exhausted(context, &self.limits)
                    .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")))
            }
        }
    }
}

impl Stall {
    pub(in crate::server) fn new(limits: &RateLimits) -> Self {
        Self { since: None, allowance: limits.server.load().rate_grace, sleep: Box::pin(sleep(TICK)) }
    }

    /// Ends the current wait, because the client has taken some bytes. `sharing` writes share the client's rate.
    pub(in crate::server) fn end(&mut self, bytes: usize, sharing: usize, limits: &RateLimits) {
        if let Some(since) = self.since.take() {
            self.allowance = self.allowance.saturating_sub(since.elapsed());
        }
        let server = limits.server.load();
        // At least 1: for a rate of 0 the time would be no number, for which `from_secs_f64` panics.
        let rate = f64::from(server.min_rate.max(1));
        let earned = Duration::from_secs_f64(bytes as f64 * sharing.max(1) as f64 / rate);
        // Capped: a client that read a large file fast must not hold the next response for hours.
        self.allowance = (self.allowance + earned).min(server.rate_grace * MAX_GRACES);
    }

    /// Waits on, and is ready once the allowance is used up.
    pub(in crate::server) fn poll_exhausted(
        &mut self,
        context: &mut Context<'_>,
        limits: &RateLimits,
    ) -> Poll<()> {
        loop {
            let now = Instant::now();
            let waited = match self.since {
                Some(since) => now - since,
                None => {
                    self.since = Some(now);
                    self.sleep.as_mut().reset(now + TICK.min(self.allowance));
                    Duration::ZERO
                }
            };
            // Short memory is a reason to cut early, but not at once: a client far away needs a moment for any answer.
            if waited >= self.allowance || waited >= TICK && limits.memory.is_exceeded() {
                return Poll::Ready(());
            }
            if self.sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.sleep.as_mut().reset(now + TICK.min(self.allowance - waited));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Not accounted for: clients that send slowly meet the timeouts of heads and bodies.
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, from);
        self.account(context, written, |bytes| *bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A flush ends a wait, but the client has taken no bytes that would earn time.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.account(context, flushed, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.account(context, shut, |()| 0)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, from);
        self.account(context, written, |bytes| *bytes)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    fn guarded(memory: usize) -> (GuardedStream<DuplexStream>, DuplexStream, Arc<ResponseMemory>) {
        let memory = ResponseMemory::new(memory);
        let limits = RateLimits::with_memory(memory.clone());
        let (server, client) = duplex(1000);
        (GuardedStream::new(server, limits), client, memory)
    }

    /// Writes to a client that takes `count` bytes every `pause`. Returns the seconds until the write ended.
    async fn write(length: usize, count: usize, pause: Duration) -> (bool, u64) {
        let (mut stream, mut client, _memory) = guarded(usize::MAX);
        let start = Instant::now();
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; count];
            loop {
                tokio::time::sleep(pause).await;
                if count > 0 && client.read_exact(&mut buffer).await.is_err() {
                    return;
                }
            }
        });
        let written = stream.write_all(&vec![b'x'; length]).await;
        reading.abort();
        (written.is_ok(), start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_cut_below_the_minimum_rate() {
        let second = Duration::from_secs(1);
        assert_eq!(write(100_000, 0, second).await, (false, 10));
        // 100 bytes a second: each second costs one, and earns a tenth.
        let (is_written, seconds) = write(100_000, 100, second).await;
        assert!(!is_written && (11..=13).contains(&seconds), "{seconds}");
        // Slow, but as fast as agreed, for more than 60 s in all.
        assert_eq!(write(150_000, 1000, second).await, (true, 149));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_cut_early_if_memory_is_short() {
        let (mut stream, client, memory) = guarded(20_000);
        let _held = memory.hold(Bytes::from(vec![1; 20_000]));
        let start = Instant::now();
        assert!(stream.write_all(&[b'x'; 2000]).await.is_err());
        assert_eq!(start.elapsed(), TICK);
        drop(client);
    }

    #[tokio::test(start_paused = true)]
    async fn limits_that_change_hold_from_the_next_wait_on() {
        let (mut stream, mut client, _memory) = guarded(usize::MAX);
        let server = stream.limits.server.clone();
        server
            .store(Arc::new(ServerConfig { rate_grace: Duration::from_secs(3), ..ServerConfig::default() }));
        let start = Instant::now();
        assert!(stream.write_all(&[b'x'; 2000]).await.is_err());
        assert_eq!(start.elapsed().as_secs(), 3);
        let mut buffer = [0; 1000];
        client.read_exact(&mut buffer).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_a_waiting_write_is_free() {
        let (mut stream, mut client, _memory) = guarded(usize::MAX);
        let mut buffer = [0; 2000];
        for _ in 0..5 {
            let reading = async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                client.read_exact(&mut buffer).await
            };
            let (written, read) = tokio::join!(stream.write_all(&[b'x'; 2000]), reading);
            assert!(written.is_ok() && read.is_ok());
            tokio::time::sleep(Duration::from_secs(300)).await;
        }
    }
}
