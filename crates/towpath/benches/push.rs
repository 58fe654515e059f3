//! One append delivered to everybody, beside a bare loop that posts the same bytes over as many connections.
//!
//! Prints deliveries per second of both and their ratio, what one dead host among a thousand does to the others, and
//! the memory of an idle subscription. Subscribers are one server on a thread of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use towpath::config::Config;
use towpath::engine::push::{Asking, Topic, run, subscribe};
use towpath::engine::roles::Lease;
use towpath::engine::smart::Access;
use towpath::engine::{Engine, Feed};
use towpath_proto::push::websub::request::{SubscriptionRequest, Verify};
use towpath_proto::push::websub::{Dialect, Mode};
use towpath_proto::{Content, Item, NewChange};
use towpath_store::embedded::{EmbeddedStore, Options};
use towpath_store::{Expected, Store};

const SUBSCRIBERS: usize = 10_000;
const HOSTS: usize = 1000;
const FEW: usize = 10;
const CONNECTIONS: usize = 64;
const ROUNDS: usize = 9;
/// Subscriptions that are verified at the same time.
const AT_ONCE: usize = 100;

const CONFIG: &str = "
[server]
allow_private_callbacks = true
[hub]
connections = 64
host_connections = 64
[[feed]]
id = \"crowd\"
[[feed]]
id = \"hosts\"
[[feed]]
id = \"mixed\"
";

/// Measures what a folder's subscriptions take.
const LOAD: &str = "--load";

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Who is pushed to: counts deliveries and remembers when they came.
#[derive(Default)]
struct Sink {
    times: Mutex<Vec<Instant>>,
    count: AtomicUsize,
    wanted: AtomicUsize,
    all: Notify,
    body: Mutex<Bytes>,
}

impl Sink {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let query = request.uri().query().unwrap_or_default();
        if let Some(challenge) = query.split("hub.challenge=").nth(1) {
            let challenge = challenge.split('&').next().unwrap_or_default().to_owned();
            return Ok(Response::new(Full::from(challenge)));
        }
        if let Ok(body) = request.into_body().collect().await {
            let body = body.to_bytes();
            self.times.lock().push(Instant::now());
            if self.count.fetch_add(1, Ordering::SeqCst) + 1 == self.wanted.load(Ordering::SeqCst) {
                *self.body.lock() = body;
                self.all.notify_one();
            }
        }
        Ok(Response::new(Full::default()))
    }

    fn expect(&self, count: usize) {
        self.count.store(0, Ordering::SeqCst);
        self.times.lock().clear();
        self.wanted.store(count, Ordering::SeqCst);
    }
}

/// A server on all of this machine's loopback addresses, on a thread of its own.
fn serve(sink: Arc<Sink>) -> Result<u16, Failure> {
    let listener = std::net::TcpListener::bind("0.0.0.0:0")?;
    let port = listener.local_addr()?.port();
    listener.set_nonblocking(true)?;
    std::thread::spawn(move || -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let sink = sink.clone();
                let answer = service_fn(move |request| {
                    let sink = sink.clone();
                    async move { sink.answer(request).await }
                });
                tokio::spawn(async move {
                    let served = hyper::server::conn::http1::Builder::new();
                    drop(served.serve_connection(TokioIo::new(stream), answer).await);
                });
            }
        })
    });
    Ok(port)
}

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut arguments = std::env::args().skip_while(|argument| argument != LOAD).skip(1);
    match arguments.next() {
        Some(folder) => {
            runtime.block_on(load(Path::new(&folder), arguments.next().unwrap_or_default().parse()?))
        }
        None => runtime.block_on(bench()),
    }
}

async fn engine(folder: &Path) -> Result<Arc<Engine>, Failure> {
    let config = Config::parse(CONFIG, &folder.join("towpath.toml"))?;
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(folder.join("data"), Options::default())?);
    Ok(Engine::new(config, store).await?)
}

async fn bench() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let engine = engine(folder.path()).await?;
    let (stop, stopped) = watch::channel(false);
    let delivering = tokio::spawn(run(engine.clone(), Lease::alone("hub"), stopped));
    let sink = Arc::new(Sink::default());
    let port = serve(sink.clone())?;
    crowd(&engine, &sink, port).await?;
    dead_host(&engine, &sink, port).await?;
    stop.send(true)?;
    delivering.await?;
    engine.store.close().await;
    drop(engine);
    let few = few(port).await?;
    let (few, many) = (taken(few.path(), FEW)?, taken(folder.path(), SUBSCRIBERS + 2 * HOSTS - 1)?);
    let each = (many - few) / (SUBSCRIBERS + 2 * HOSTS - 1 - FEW) as f64;
    println!("an idle subscription takes {each:.0} bytes");
    Ok(())
}

/// A folder with few subscriptions, one of them to be sent something: what does not depend on their number.
async fn few(port: u16) -> Result<tempfile::TempDir, Failure> {
    let folder = tempfile::tempdir()?;
    let engine = engine(folder.path()).await?;
    let callback = |index: usize| format!("http://127.0.0.1:{port}/push/{index:032}");
    subscribe_all(&engine, "crowd", &(0..FEW).map(callback).collect::<Vec<_>>()).await?;
    let feed = engine.feed("crowd").ok_or("no such feed")?;
    engine.store.append(feed.id(), Expected::Any, vec![NewChange::put(Item::new("one"))]).await?;
    engine.store.close().await;
    Ok(folder)
}

/// The memory that a folder's subscriptions take, in a process of its own: there nothing else has taken memory and
/// given it back.
fn taken(folder: &Path, count: usize) -> Result<f64, Failure> {
    let output =
        Command::new(std::env::current_exe()?).arg(LOAD).arg(folder).arg(count.to_string()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().parse().map_err(|_| format!("the memory could not be measured: {output:?}").into())
}

/// Starts with what is kept and says how much memory that takes.
async fn load(folder: &Path, count: usize) -> Result<(), Failure> {
    let engine = engine(folder).await?;
    let before = resident()?;
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(run(engine.clone(), Lease::alone("hub"), stopped));
    while engine.push.len() < count {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!("{}", resident()? - before);
    Ok(())
}

async fn crowd(engine: &Arc<Engine>, sink: &Sink, port: u16) -> Result<(), Failure> {
    let callback = |index: usize| format!("http://127.0.0.1:{port}/push/{index:032}");
    subscribe_all(engine, "crowd", &(0..SUBSCRIBERS).map(callback).collect::<Vec<_>>()).await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        ours.push(append(engine, sink, "crowd", SUBSCRIBERS, round).await?);
        let body = sink.body.lock().clone();
        bare.push(bare_loop(sink, port, body).await?);
    }
    let rate = |times: &mut Vec<Duration>| SUBSCRIBERS as f64 / median(times).as_secs_f64();
    let (ours, bare) = (rate(&mut ours), rate(&mut bare));
    println!("{SUBSCRIBERS} subscribers, {CONNECTIONS} connections, medians of {ROUNDS} rounds");
    println!("  delivered {ours:.0}/s, bare loop {bare:.0}/s, ratio {:.2}", ours / bare);
    Ok(())
}

/// What one dead host among a thousand changes for the others.
async fn dead_host(engine: &Arc<Engine>, sink: &Sink, port: u16) -> Result<(), Failure> {
    let address = |index: usize| format!("127.1.{}.{}", index / 250, index % 250 + 1);
    let hosts: Vec<String> = (1..HOSTS).map(|index| format!("http://{}:{port}/", address(index))).collect();
    subscribe_all(engine, "hosts", &hosts).await?;
    subscribe_all(engine, "mixed", &hosts).await?;
    // It confirms once, and then takes connections and never answers.
    let dead = dying_host().await?;
    subscribe_all(engine, "mixed", &[format!("http://{dead}/")]).await?;
    let (mut well, mut beside) = (Vec::new(), Vec::new());
    for round in 0..2 * ROUNDS {
        append(engine, sink, "hosts", HOSTS - 1, round).await?;
        well.push(middle(sink));
        append(engine, sink, "mixed", HOSTS - 1, round).await?;
        beside.push(middle(sink));
    }
    let (well, beside) = (median(&mut well), median(&mut beside));
    let change = beside.as_secs_f64() / well.as_secs_f64() * 100.0 - 100.0;
    println!("{HOSTS} hosts: median delivery {well:.2?}, beside a dead one {beside:.2?} ({change:+.1} %)");
    Ok(())
}

async fn dying_host() -> Result<SocketAddr, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(async move {
        let mut kept = Vec::new();
        let mut is_alive = true;
        while let Ok((mut stream, _)) = listener.accept().await {
            if std::mem::take(&mut is_alive) {
                let mut bytes = vec![0; 4096];
                let count = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                let challenge = text.split("hub.challenge=").nth(1).and_then(|rest| rest.get(..32));
                let answer =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n{}", challenge.unwrap_or_default());
                drop(tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await);
            }
            kept.push(stream);
        }
    });
    Ok(addr)
}

async fn subscribe_all(engine: &Arc<Engine>, feed: &str, callbacks: &[String]) -> Result<(), Failure> {
    let feed = engine.feed(feed).ok_or("no such feed")?;
    for some in callbacks.chunks(AT_ONCE) {
        for subscribed in join_all(some.iter().map(|callback| ask(engine, &feed, callback))).await {
            subscribed?;
        }
    }
    Ok(())
}

async fn ask(engine: &Arc<Engine>, feed: &Arc<Feed>, callback: &str) -> Result<(), Failure> {
    let topic = format!("{}?order=modified", feed.settings(engine).base);
    let request = SubscriptionRequest {
        mode: Mode::Subscribe,
        dialect: Dialect::WebSub,
        topic: topic.clone(),
        callback: callback.to_owned(),
        lease_seconds: None,
        secret: None,
        verify: Verify::Sync,
        verify_token: None,
    };
    let topic = Topic::of_url(engine, feed, &topic, Access::Whole)?;
    subscribe(engine, Asking { request, topic, access: Access::Whole, reader: None }).await?;
    Ok(())
}

/// Appends one item and waits until everybody has it.
async fn append(
    engine: &Arc<Engine>,
    sink: &Sink,
    feed: &str,
    count: usize,
    round: usize,
) -> Result<Duration, Failure> {
    // Positions of the round before are being kept.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    sink.expect(count);
    let content = Content { media_type: "text/plain".into(), bytes: vec![b'x'; 1000].into() };
    let item = Item {
        title: Some(format!("Round {round}")),
        content: Some(content),
        ..Item::new(format!("item-{round}"))
    };
    let feed = engine.feed(feed).ok_or("no such feed")?;
    let start = Instant::now();
    engine.store.append(feed.id(), Expected::Any, vec![NewChange::put(item)]).await?;
    tokio::time::timeout(Duration::from_secs(120), sink.all.notified()).await?;
    Ok(start.elapsed())
}

/// When half of the deliveries had come, since the first.
fn middle(sink: &Sink) -> Duration {
    let mut times = sink.times.lock().clone();
    times.sort();
    match (times.first(), times.get(times.len() / 2)) {
        (Some(first), Some(middle)) => *middle - *first,
        _ => Duration::ZERO,
    }
}

/// Posts the same body as often, over as many connections, one request after the other on each.
async fn bare_loop(sink: &Sink, port: u16, body: Bytes) -> Result<Duration, Failure> {
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        senders.push(sender);
    }
    sink.expect(SUBSCRIBERS);
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    for mut sender in senders {
        let (next, body) = (next.clone(), body.clone());
        tokio::spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= SUBSCRIBERS {
                    return Ok::<_, Failure>(());
                }
                let request = Request::post(format!("/push/{index:032}"))
                    .header("host", format!("127.0.0.1:{port}"))
                    .header("content-type", "application/json; charset=utf-8")
                    .header("link", "<http://127.0.0.1:8080/feeds/crowd/hub>; rel=\"hub\"")
                    .header("user-agent", "bare")
                    .body(Full::new(body.clone()))?;
                sender.ready().await?;
                sender.send_request(request).await?.into_body().collect().await?;
            }
        });
    }
    tokio::time::timeout(Duration::from_secs(120), sink.all.notified()).await?;
    Ok(start.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// This process's memory, in bytes.
fn resident() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kilobytes * 1024.0)
}
