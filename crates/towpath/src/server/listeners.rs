//! Listening sockets: TCP, Unix, and those that the service manager passes.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;

use crate::config::{ListenAddress, ListenConfig};

/// Connections that wait to be accepted. Thousands of clients may reconnect at once after a restart; the usual backlog
/// is 128.
const BACKLOG: i32 = 4096;
/// Permissions of a Unix socket: a proxy in the group of the socket may connect.
const SOCKET_MODE: u32 = 0o660;
/// Address that stands for a peer on a Unix socket, which is always a program on this machine.
const LOCAL_PEER: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// Reason why the server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is in use, or does not belong to this machine.
    #[error("cannot listen on {addr}: {reason}")]
    Listen {
        /// The address.
        addr: ListenAddress,
        /// Cause, and what to do.
        reason: String,
    },
    /// A thread or its runtime cannot be started.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
}

/// Open sockets. Connections queue in their backlogs until the server accepts them.
pub struct Listeners {
    sockets: Vec<ListeningSocket>,
}

enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Path of a Unix socket, removed at the end. `None` if the service manager owns it.
struct SocketFile(Option<PathBuf>);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // What stays behind is found to be unused at the next start.
            drop(std::fs::remove_file(path));
        }
    }
}

impl Listeners {
    /// Opens a socket for each address.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound.
    pub fn open(config: &ListenConfig) -> Result<Self, ServeError> {
        let mut sockets = Vec::new();
        for address in config.addresses() {
            let opened = match address {
                ListenAddress::Tcp(host, port) => open_tcp(host, *port),
                ListenAddress::Unix(path) => open_unix(path).map(|socket| vec![socket]),
                ListenAddress::Systemd => passed(),
            };
            let error =
                |e: io::Error| ServeError::Listen { addr: address.clone(), reason: reason(address, &e) };
            sockets.extend(opened.map_err(error)?);
        }
        Ok(Self { sockets })
    }

    /// Returns the addresses with the ports that the system chose.
    pub fn addresses(&self) -> Vec<ListenAddress> {
        let address = |socket: &ListeningSocket| match socket {
            ListeningSocket::Tcp(listener) => {
                let address = listener.local_addr().ok()?;
                Some(ListenAddress::Tcp(address.ip().to_string(), address.port()))
            }
            ListeningSocket::Unix(_, SocketFile(Some(path))) => Some(ListenAddress::Unix(path.clone())),
            ListeningSocket::Unix(_, SocketFile(None)) => Some(ListenAddress::Systemd),
        };
        self.sockets.iter().filter_map(address).collect()
    }

    /// Registers the sockets with the runtime.
    ///
    /// # Errors
    ///
    /// A socket that the runtime cannot watch.
    pub fn start(self) -> Result<StartedListeners, ServeError> {
        let start = |socket| {
            Ok(match socket {
                ListeningSocket::Tcp(listener) => {
                    StartedSocket::Tcp(tokio::net::TcpListener::from_std(listener)?)
                }
                ListeningSocket::Unix(listener, file) => {
                    StartedSocket::Unix(tokio::net::UnixListener::from_std(listener)?, file)
                }
            })
        };
        let sockets = self.sockets.into_iter().map(start).collect::<io::Result<_>>();
        let sockets = sockets.map_err(ServeError::Worker)?;
        Ok(StartedListeners { sockets, turn: 0 })
    }
}

/// Opens a socket at each address of a host. A name such as `localhost` may have one of IPv4 and one of IPv6.
fn open_tcp(host: &str, port: u16) -> io::Result<Vec<ListeningSocket>> {
    let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    addresses.dedup();
    let mut opened: Vec<ListeningSocket> = Vec::new();
    let mut failure = None;
    for mut address in addresses {
        // The second address of a name has the port that the system chose for the first.
        if let (0, Some(ListeningSocket::Tcp(first))) = (port, opened.first()) {
            address.set_port(first.local_addr()?.port());
        }
        match bind(address) {
            Ok(listener) => opened.push(ListeningSocket::Tcp(listener)),
            // A machine without IPv6 has names with such an address all the same.
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => failure = Some(e),
            Err(e) => return Err(e),
        }
    }
    match failure {
        Some(e) if opened.is_empty() => Err(e),
        _ => Ok(opened),
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Allows binding over closing connections only: a live listener still holds the port.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from(socket))
}

fn open_unix(path: &Path) -> io::Result<ListeningSocket> {
    // A server that was killed leaves its socket behind, and nobody answers there.
    if let Err(e) = UnixStream::connect(path) {
        if e.kind() == io::ErrorKind::ConnectionRefused {
            std::fs::remove_file(path)?;
        }
    } else {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(ListeningSocket::Unix(listener, SocketFile(Some(path.to_owned()))))
}

/// Takes the sockets that the service manager passes.
fn passed() -> io::Result<Vec<ListeningSocket>> {
    let mut passed = listenfd::ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..passed.len() {
        // Each take checks the kind of socket, and leaves one of another kind.
        if let Ok(Some(listener)) = passed.take_tcp_listener(index) {
            listener.set_nonblocking(true)?;
            sockets.push(ListeningSocket::Tcp(listener));
        } else if let Some(listener) = passed.take_unix_listener(index)? {
            listener.set_nonblocking(true)?;
            sockets.push(ListeningSocket::Unix(listener, SocketFile(None)));
        }
    }
    if sockets.is_empty() {
        let why = "the service manager passed no socket (LISTEN_FDS); start it by its .socket unit";
        return Err(io::Error::other(why));
    }
    Ok(sockets)
}

fn reason(address: &ListenAddress, error: &io::Error) -> String {
    let is_file = matches!(address, ListenAddress::Unix(_));
    match error.kind() {
        io::ErrorKind::AddrInUse if is_file => "another program listens there; stop it".into(),
        io::ErrorKind::PermissionDenied if is_file => "not allowed to make the socket there".into(),
        io::ErrorKind::AddrInUse => {
            "the port is in use, perhaps by another towpath; stop that program, or choose another port with \
             --listen or [server] listen"
                .into()
        }
        io::ErrorKind::PermissionDenied => "not allowed; ports below 1024 need privileges".into(),
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address".into(),
        _ => error.to_string(),
    }
}

/// Sockets that connections are accepted from.
pub struct StartedListeners {
    sockets: Vec<StartedSocket>,
    /// Socket that is asked first, so that a busy one does not keep the others waiting.
    turn: usize,
}

enum StartedSocket {
    Tcp(tokio::net::TcpListener),
    Unix(
        tokio::net::UnixListener,
        #[expect(dead_code, reason = "removes the file when it is dropped")] SocketFile,
    ),
}

/// An accepted connection.
pub(super) struct AcceptedStream {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) is_unix: bool,
}

impl StartedListeners {
    /// Accepts the next connection of any socket.
    pub(super) async fn accept(&mut self) -> io::Result<AcceptedStream> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<AcceptedStream>> {
        let count = self.sockets.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            let accepted = match &self.sockets[index] {
                StartedSocket::Tcp(listener) => listener
                    .poll_accept(context)
                    .map_ok(|(stream, peer)| AcceptedStream { stream, peer, is_unix: false }),
                StartedSocket::Unix(listener, _) => match listener.poll_accept(context) {
                    Poll::Ready(accepted) => {
                        Poll::Ready(accepted.and_then(|(stream, _)| local_stream(stream)))
                    }
                    Poll::Pending => Poll::Pending,
                },
            };
            if accepted.is_ready() {
                self.turn = (index + 1) % count;
                return accepted;
            }
        }
        Poll::Pending
    }
}

/// Makes the connection of a Unix socket one that the rest of the server serves.
///
/// Reading, writing and shutting down are the same system calls for stream sockets of both families.
fn local_stream(stream: tokio::net::UnixStream) -> io::Result<AcceptedStream> {
    let stream = std::net::TcpStream::from(OwnedFd::from(stream.into_std()?));
    let stream = TcpStream::from_std(stream)?;
    Ok(AcceptedStream { stream, peer: SocketAddr::from(LOCAL_PEER), is_unix: true })
}
