//! Accepting connections, and the worker threads that serve them.

use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::engine::Engine;
use crate::engine::health_parts::HealthParts;
use crate::server::admission::{Admission, AdmissionError};
use crate::server::connection::{self, Accepted};
use crate::server::descriptors::DescriptorBudget;
use crate::server::health;
use crate::server::listeners::{AcceptedStream, ServeError, StartedListeners};
use crate::server::tls::TlsIdentity;
use crate::stop::{Stop, stopped};

/// Serves until `stop` turns true, then finishes the running answers.
///
/// # Errors
///
/// A worker thread that cannot start.
pub async fn serve(
    mut listeners: StartedListeners,
    engine: Arc<Engine>,
    budget: DescriptorBudget,
    tls: Option<Arc<TlsIdentity>>,
    stop: Stop,
) -> Result<(), ServeError> {
    engine.extensions.get_or_insert_with(|| HealthParts(health::parts));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let count = engine.config.server.threads.unwrap_or(cores).max(1);
    if let Some(tls) = &tls {
        tokio::spawn(tls.clone().watch(stop.clone()));
    }
    let mut workers = Vec::with_capacity(count);
    for number in 0..count {
        // All start before the first accept: a connection must never wait for a thread.
        workers.push(Worker::start(number, engine.clone(), tls.clone(), stop.clone())?);
    }
    budget.check_connections(engine.server.load().max_connections);
    let total = engine.metrics.connections.clone();
    let admission = Admission::new(budget.connections, engine.server.clone(), total);
    let is_tls = tls.is_some();
    let acceptor = Acceptor { engine: &engine, admission, is_tls, workers: &workers, turn: 0 };
    acceptor.run(&mut listeners, stop).await;
    // Before the grace period, so that new connections are refused and load balancers move on.
    drop(listeners);
    finish(workers).await;
    Ok(())
}

/// Bytes of a response that the kernel buffers beyond those that the network takes.
const UNSENT: u32 = 128 << 10;

/// Answer to a connection beyond the limits, written without reading a request.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\nconnection: close\r\n\
    content-type: text/plain\r\ncontent-length: 39\r\n\r\ntoo many open connections; retry later\n";

/// Accepts connections and deals them out to the workers.
struct Acceptor<'a> {
    engine: &'a Engine,
    admission: Admission,
    is_tls: bool,
    workers: &'a [Worker],
    turn: usize,
}

impl Acceptor<'_> {
    async fn run(mut self, listeners: &mut StartedListeners, stop: Stop) {
        loop {
            let accepted = tokio::select! {
                accepted = listeners.accept() => accepted,
                () = stopped(&stop) => return,
            };
            let handed = match accepted {
                Ok(accepted) => self.hand_over(accepted),
                Err(e) => Err(e),
            };
            let Err(e) = handed else { continue };
            tracing::warn!(error = %e, "cannot accept a connection");
            // Too many open files, mostly: a retry without a pause would spin.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Gives a connection to the next worker, or refuses it.
    fn hand_over(&mut self, accepted: AcceptedStream) -> std::io::Result<()> {
        let AcceptedStream { stream, peer, is_unix } = accepted;
        let permit = match self.admission.admit(peer.ip()) {
            Ok(permit) => permit,
            Err(error) => {
                self.refuse(&stream, error);
                return Ok(());
            }
        };
        if !is_unix {
            // Nagle's algorithm would hold back the last segment of a response for a round trip.
            stream.set_nodelay(true)?;
            // Slow readers would fill a buffer of megabytes in the kernel, and progress would show once in many seconds.
            let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT);
        }
        let connection = Accepted { stream: stream.into_std()?, peer, permit };
        self.turn = (self.turn + 1) % self.workers.len();
        // The worker is gone only after a panic. Dropping the connection refuses it.
        let _ = self.workers[self.turn].connections.send(connection);
        Ok(())
    }

    fn refuse(&mut self, stream: &TcpStream, error: AdmissionError) {
        self.engine.metrics.connections_refused.inc();
        tracing::warn!(reason = %error, "refused a connection");
        // A client that expects TLS could not read it.
        if self.is_tls {
            return;
        }
        // One attempt each, which never blocks: a new socket has room for the few bytes.
        let _ = stream.try_write(REFUSAL);
        // Closing a socket with unread bytes resets it, and the client might lose the answer.
        let _ = stream.try_read(&mut [0; 4096]);
    }
}

struct Worker {
    connections: mpsc::UnboundedSender<Accepted>,
    thread: std::thread::JoinHandle<()>,
}

impl Worker {
    fn start(
        number: usize,
        engine: Arc<Engine>,
        tls: Option<Arc<TlsIdentity>>,
        stop: Stop,
    ) -> Result<Self, ServeError> {
        // Made here and not in the thread, so that its error reaches the caller.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ServeError::Worker)?;
        let (connections, accepted) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new()
            .name(format!("serve-{number}"))
            .spawn(move || runtime.block_on(connection::work(accepted, engine, tls, stop)))
            .map_err(ServeError::Worker)?;
        Ok(Self { connections, thread })
    }
}

/// Waits for all workers. Their grace periods run at the same time.
async fn finish(workers: Vec<Worker>) {
    let threads: Vec<_> = workers.into_iter().map(|Worker { thread, .. }| thread).collect();
    // Joining a thread blocks, which the runtime's threads must not.
    let joining = tokio::task::spawn_blocking(|| threads.into_iter().for_each(|thread| drop(thread.join())));
    let _ = joining.await;
}
