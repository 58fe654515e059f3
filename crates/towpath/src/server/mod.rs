//! The HTTP server.
//!
//! Each worker thread runs its own single-threaded runtime with the connections that the acceptor hands to it in
//! turn: a request is read, answered and written without crossing to another core. What is prebuilt is
//! answered right where the request is parsed ([`document`]); everything else takes [`route`].

pub mod announce;
pub mod document;
pub mod documents;
pub mod encoding;
pub mod problem;

mod alarm;
mod auth;
mod body;
mod connection;
mod crowd;
mod events;
mod history;
mod hub;
mod items;
pub(crate) mod pages;
mod rearm;
mod replica;
pub(crate) mod replication;
mod resumed;
mod route;
mod smart;
mod sup;

pub(crate) use auth::{access_of, is_local};
pub(crate) use items::item_url;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::mpsc;

use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// Why the server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {addr}: {reason}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why not, and what to do.
        reason: String,
    },
    /// A thread or its runtime cannot be started.
    #[error("cannot start a worker: {0}")]
    Worker(std::io::Error),
}

/// Opens the listening socket.
pub fn listen(addr: SocketAddr) -> Result<TcpListener, ServeError> {
    let error = |e: std::io::Error| {
        let reason = match e.kind() {
            std::io::ErrorKind::AddrInUse => {
                "the port is in use; another [server] listen or --listen helps".into()
            }
            std::io::ErrorKind::PermissionDenied => "not allowed; ports below 1024 need privileges".into(),
            std::io::ErrorKind::AddrNotAvailable => "this machine does not have that address".into(),
            _ => e.to_string(),
        };
        ServeError::Listen { addr, reason }
    };
    let open = || {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
        // Only over connections that are being closed: a living listener still holds the port.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&addr.into())?;
        socket.listen(4096)?;
        Ok(TcpListener::from(socket))
    };
    open().map_err(error)
}

/// How long connections may finish what they are doing when the server stops.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until `stop` turns true; then finishes the answers under way.
pub async fn serve(listener: TcpListener, engine: Arc<Engine>, stop: Stop) -> Result<(), ServeError> {
    let listener = tokio::net::TcpListener::from_std(listener).map_err(ServeError::Worker)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let count = engine.config.server.threads.unwrap_or(cores).max(1);
    let mut workers = Vec::with_capacity(count);
    for number in 0..count {
        workers.push(Worker::start(number, engine.clone(), stop.clone())?);
    }
    accept(&listener, &workers, stop).await;
    drop(listener);
    finish(workers).await;
    Ok(())
}

async fn accept(listener: &tokio::net::TcpListener, workers: &[Worker], stop: Stop) {
    let mut turn = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&stop) => return,
        };
        let handed = accepted.and_then(|(stream, peer)| {
            stream.set_nodelay(true)?;
            Ok((stream.into_std()?, peer))
        });
        match handed {
            Ok(connection) => {
                turn = (turn + 1) % workers.len();
                // A worker that is gone has panicked; its connections are refused by being dropped.
                let _ = workers[turn].connections.send(connection);
            }
            // Too many open files, or a peer that gave up: wait for better times instead of spinning.
            Err(e) => {
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

type Accepted = (std::net::TcpStream, SocketAddr);

struct Worker {
    connections: mpsc::UnboundedSender<Accepted>,
    thread: std::thread::JoinHandle<()>,
}

impl Worker {
    fn start(number: usize, engine: Arc<Engine>, stop: Stop) -> Result<Self, ServeError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ServeError::Worker)?;
        let (connections, accepted) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new()
            .name(format!("serve-{number}"))
            .spawn(move || runtime.block_on(connection::work(accepted, engine, stop)))
            .map_err(ServeError::Worker)?;
        Ok(Self { connections, thread })
    }
}

/// Ends all workers in one grace period.
async fn finish(workers: Vec<Worker>) {
    let threads: Vec<_> = workers.into_iter().map(|Worker { thread, .. }| thread).collect();
    // Joining blocks.
    let joining = tokio::task::spawn_blocking(|| threads.into_iter().for_each(|thread| drop(thread.join())));
    let _ = joining.await;
}
