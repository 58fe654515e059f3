//! Model of the network: streams in memory that carry HTTP, with delays, cuts, partitions and slow readers.
//!
//! The client's side is the program's fetcher, whose transport this is, and hyper's client. The server's side is the
//! program's service behind hyper's server. As over TCP, bytes arrive in order or not at all. A request that is sent
//! twice stands for a duplicate of a proxy or of an impatient client.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{self, StreamExt as _};
use http::header::{ETAG, HOST, IF_NONE_MATCH};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use towpath::server::StreamServer;
use towpath_client::{Transport, TransportBody};

use crate::bug::Bug;
use crate::receiver::{self, Receiver};
use crate::subscriber;
use crate::world::World;
use crate::{trace as traced, trace::count};

/// Bytes that a stream holds on their way.
const WINDOW: usize = 16 << 10;
/// Time after which a connection gives up in a partition.
const UNREACHABLE: Duration = Duration::from_secs(90);

/// Server behind an address.
#[derive(Clone)]
pub enum Server {
    /// A node's.
    Node(StreamServer),
    /// The receiver of what nodes send by themselves.
    Receiver(Arc<Receiver>),
}

/// A host that answers.
#[derive(Clone)]
pub struct Address {
    /// Its server.
    pub server: Server,
    /// True once the node is off: its connections are cut.
    pub is_off: watch::Receiver<bool>,
}

/// Network as one host sees it.
pub struct SimulatedNetwork {
    world: Arc<World>,
    host: String,
    /// True once the host's process is gone, with all that it had under way.
    is_off: Option<watch::Receiver<bool>>,
    /// Order of what a planted bug sends behind the answers.
    behind: Arc<tokio::sync::Mutex<()>>,
}

impl std::fmt::Debug for SimulatedNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedNetwork").field("host", &self.host).finish_non_exhaustive()
    }
}

impl SimulatedNetwork {
    /// Network of a host; of a node, until it is off.
    pub fn new(world: Arc<World>, host: &str, is_off: Option<watch::Receiver<bool>>) -> Arc<Self> {
        Arc::new(Self { world, host: host.to_owned(), is_off, behind: Arc::default() })
    }

    /// Acknowledges a message of the webhook before it is delivered, as a planted bug.
    fn acknowledge_first(&self, request: &Request<Bytes>) -> Option<Response<TransportBody>> {
        if !self.world.has(Bug::PositionFirst) || request.uri().path() != receiver::HOOK {
            return None;
        }
        let (world, host, request) = (self.world.clone(), self.host.clone(), request.clone());
        let (behind, is_off) = (self.behind.clone(), self.is_off.clone());
        tokio::spawn(async move {
            let _turn = behind.lock().await;
            let delivering = async {
                while !exchange(&world, &host, request.clone()).await.is_ok_and(|a| a.status().is_success()) {
                    sleep(Duration::from_secs(1)).await;
                }
            };
            tokio::select! {
                () = off(is_off) => {}
                () = delivering => {}
            }
        });
        Response::builder().status(StatusCode::NO_CONTENT).body(stream::empty().boxed()).ok()
    }

    /// Answer of a planted bug in place of the server's.
    fn planted(&self, request: &Request<Bytes>) -> Option<Response<TransportBody>> {
        let world = &self.world;
        let url = request.uri().to_string();
        if world.has(Bug::FalseNotModified) && crc32fast::hash(url.as_bytes()).is_multiple_of(3) {
            let etag = request.headers().get(IF_NONE_MATCH)?.clone();
            let answer = Response::builder().status(StatusCode::NOT_MODIFIED).header(ETAG, etag);
            return answer.body(stream::empty().boxed()).ok();
        }
        if world.has(Bug::StaleCache) && crc32fast::hash(url.as_bytes()).is_multiple_of(3) {
            let (head, body) = CACHE.lock().get(&url).cloned()?;
            return Some(head.map(|()| stream::iter([Ok(body)]).boxed()));
        }
        None
    }
}

/// Answers by URL, of the planted cache.
static CACHE: Mutex<BTreeMap<String, (Response<()>, Bytes)>> = Mutex::new(BTreeMap::new());

/// Reads an answer whole, and keeps it.
async fn keep(url: String, answer: Response<TransportBody>) -> Response<TransportBody> {
    let (parts, mut body) = answer.into_parts();
    let mut whole = Vec::new();
    while let Some(Ok(piece)) = body.next().await {
        whole.extend_from_slice(&piece);
    }
    let (body, head) = (Bytes::from(whole), Response::from_parts(parts, ()));
    if head.status() == StatusCode::OK {
        CACHE.lock().insert(url, (head.clone(), body.clone()));
    }
    head.map(|()| stream::iter([Ok(body)]).boxed())
}

impl Transport for SimulatedNetwork {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, io::Result<Response<TransportBody>>> {
        let (world, host) = (self.world.clone(), self.host.clone());
        let is_read = request.method() == Method::GET;
        if is_read && let Some(answer) = self.planted(&request) {
            return async move { Ok(answer) }.boxed();
        }
        if let Some(answer) = self.acknowledge_first(&request) {
            return std::future::ready(Ok(answer)).boxed();
        }
        let hides_failures =
            world.has(Bug::FailedIsDelivered) && request.uri().path().starts_with(subscriber::CALLBACKS);
        let is_off = self.is_off.clone();
        let twice = world.faults.borrow().twice;
        let kept = (is_read && world.has(Bug::StaleCache)).then(|| request.uri().to_string());
        async move {
            if world.percent(twice) {
                count("requests sent twice");
                let (world, host, request) = (world.clone(), host.clone(), request.clone());
                tokio::spawn(async move {
                    if let Ok(answer) = exchange(&world, &host, request).await {
                        answer.into_body().for_each(|_| std::future::ready(())).await;
                    }
                });
            }
            let answer = tokio::select! {
                biased;
                () = off(is_off) => Err(io::ErrorKind::ConnectionAborted.into()),
                answer = exchange(&world, &host, request) => answer,
            };
            if hides_failures && !answer.as_ref().is_ok_and(|answer| answer.status().is_success()) {
                return Ok(Response::new(stream::empty().boxed()));
            }
            let answer = answer?;
            Ok(match kept {
                Some(url) => keep(url, answer).await,
                None => answer,
            })
        }
        .boxed()
    }
}

/// Returns once a node is off.
async fn off(is_off: Option<watch::Receiver<bool>>) {
    match is_off {
        Some(mut is_off) => drop(is_off.wait_for(|is_off| *is_off).await),
        None => std::future::pending().await,
    }
}

/// Sends a request over a connection of its own.
async fn exchange(
    world: &Arc<World>,
    host: &str,
    request: Request<Bytes>,
) -> io::Result<Response<TransportBody>> {
    let uri = request.uri().clone();
    let server = uri.host().unwrap_or_default().to_owned();
    let (method, path) = (request.method().clone(), uri.path_and_query().map_or("/", |path| path.as_str()));
    traced!("{host} -> {server} {method} {path}");
    count("requests");
    let stream = connect(world, host, &server).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(async move { drop(connection.await) });
    let mut request = request.map(Full::new);
    *request.uri_mut() = path.parse::<Uri>().map_err(io::Error::other)?;
    request.headers_mut().insert(HOST, server.parse().map_err(io::Error::other)?);
    let answer = sender.send_request(request).await.map_err(io::Error::other);
    let answer = answer.inspect_err(|e| traced!("{host} <- {server} {method} {path}: {e}"))?;
    let (head, body) = answer.into_parts();
    traced!("{host} <- {server} {method} {path}: {}", head.status.as_u16());
    let is_truncating = world.has(Bug::TruncateAnswer);
    let place = format!("{host} <- {server} {path}");
    // The sender lives as long as the body: hyper's connection ends with it.
    let state = (body.into_data_stream(), sender, 0_u32, place, false);
    let pieces = stream::unfold(state, move |(mut body, sender, mut sum, place, ended)| async move {
        if ended {
            return None;
        }
        match body.next().await {
            Some(Ok(piece)) => {
                sum = crc32fast::hash(&[&sum.to_be_bytes()[..], &piece].concat());
                Some((Ok(piece), (body, sender, sum, place, false)))
            }
            Some(Err(e)) if is_truncating => {
                traced!("{place}: cut without a word, {e}");
                None
            }
            Some(Err(e)) => {
                traced!("{place}: cut, {e}");
                Some((Err(io::Error::other(e)), (body, sender, sum, place, true)))
            }
            None => {
                traced!("{place}: whole, {sum:08x}");
                None
            }
        }
    });
    Ok(Response::from_parts(head, pieces.boxed()))
}

/// Opens a connection to a server.
async fn connect(world: &Arc<World>, host: &str, server: &str) -> io::Result<DuplexStream> {
    let faults = world.faults.borrow().clone();
    sleep(world.time(Duration::from_millis(faults.delay.max(2)))).await;
    reachable(world, host, server).await?;
    let Some(node) = world.nodes.lock().get(server).cloned() else {
        return Err(io::ErrorKind::ConnectionRefused.into());
    };
    let (client, near) = tokio::io::duplex(WINDOW);
    let (far, served) = tokio::io::duplex(WINDOW);
    let number = host.bytes().fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let peer = SocketAddr::from(([192, 0, 2, number], 40_000));
    match node.server.clone() {
        Server::Node(serving) => drop(tokio::spawn(async move { serving.serve(served, peer).await })),
        Server::Receiver(receiver) => drop(tokio::spawn(receiver.serve(served))),
    }
    let is_slow = world.percent(faults.slow);
    let cut = world.percent(faults.cut).then(|| world.below(6000));
    if is_slow {
        count("slow connections");
    }
    let link = Arc::new(Link {
        world: world.clone(),
        host: host.to_owned(),
        server: server.to_owned(),
        is_slow,
        left: Mutex::new(cut),
        is_cut: watch::Sender::new(false),
        is_off: node.is_off,
    });
    let ((near_read, near_write), (far_read, far_write)) = (tokio::io::split(near), tokio::io::split(far));
    tokio::spawn(carry(link.clone(), near_read, far_write));
    tokio::spawn(carry(link, far_read, near_write));
    Ok(client)
}

/// Waits for the end of a partition, as long as a connection does.
async fn reachable(world: &World, host: &str, server: &str) -> io::Result<()> {
    if !world.is_parted(host, server) {
        return Ok(());
    }
    let mut faults = world.faults.subscribe();
    let healed = faults.wait_for(|_| !world.is_parted(host, server));
    match timeout(UNREACHABLE, healed).await {
        Ok(_) => Ok(()),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// A connection's two directions.
struct Link {
    world: Arc<World>,
    host: String,
    server: String,
    is_slow: bool,
    /// Bytes after which it is cut.
    left: Mutex<Option<u64>>,
    is_cut: watch::Sender<bool>,
    is_off: watch::Receiver<bool>,
}

/// Carries the bytes of one direction, until one end closes or the connection is cut.
async fn carry(link: Arc<Link>, mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>) {
    let (mut is_cut, mut is_off) = (link.is_cut.subscribe(), link.is_off.clone());
    let carrying = async {
        let mut piece = vec![0; if link.is_slow { 700 } else { 8 << 10 }];
        loop {
            let read = from.read(&mut piece).await.unwrap_or(0);
            if read == 0 {
                // Half-closed: the other direction may go on.
                let _ = to.shutdown().await;
                return false;
            }
            let delay = link.world.faults.borrow().delay;
            let delay = if link.is_slow { 200 + delay } else { delay };
            sleep(link.world.time(Duration::from_millis(delay.max(1)))).await;
            if reachable(&link.world, &link.host, &link.server).await.is_err() {
                return true;
            }
            let cut = {
                let mut left = link.left.lock();
                let cut = left.filter(|left| *left <= read as u64);
                *left = left.map(|left| left.saturating_sub(read as u64));
                cut
            };
            let kept = cut.map_or(read, |cut| cut as usize);
            if to.write_all(&piece[..kept]).await.is_err() {
                return true;
            }
            if cut.is_some() {
                count("connections cut");
                return true;
            }
        }
    };
    let cuts = tokio::select! {
        biased;
        _ = is_off.wait_for(|is_off| *is_off) => true,
        _ = is_cut.wait_for(|is_cut| *is_cut) => true,
        cuts = carrying => cuts,
    };
    if cuts {
        link.is_cut.send_replace(true);
    }
}
