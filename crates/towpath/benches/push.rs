//! Delivery of an append to all subscribers, beside a bare loop that posts the same bytes over as many connections.
//!
//! Prints the deliveries per second of both and their ratio, the effect of one dead host among a thousand on the
//! others, and the memory of an idle subscription. Subscribers are one server on a thread of its own.

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
use towpath::engine::roles::Lease;
use towpath::engine::{Engine, Feed};
use towpath::protocols::smart::{Access, settings};
use towpath::protocols::websub::{HubState, SubscribeRequest, Topic, run, subscribe};
use towpath_proto::push::websub::request::{SubscriptionRequest, VerifyMode};
use towpath_proto::push::websub::{Dialect, Mode};
use towpath_proto::{Content, Item, NewChange};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, Store};

const SUBSCRIBERS: usize = 10_000;
const HOSTS: usize = 1000;
const FEW: usize = 10;
const CONNECTIONS: usize = 64;
const ROUNDS: usize = 9;
/// Number of concurrent verifications.
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

/// Argument of the process that measures the memory of a folder's subscriptions.
const LOAD: &str = "--load";

type PushBenchError = Box<dyn std::error::Error + Send + Sync>;

/// Subscriber of all pushes: counts deliveries and records their times.
#[derive(Default)]
struct DeliveryCounter {
    times: Mutex<Vec<Instant>>,
    count: AtomicUsize,
    wanted: AtomicUsize,
    all: Notify,
    body: Mutex<Bytes>,
}

impl DeliveryCounter {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let query = request.uri().query().unwrap_or_default();
        if let Some(challenge) = query.split("hub.challenge=").nth(1) {
            let challenge = challenge.split('&').next().unwrap_or_default().to_owned();
            return Ok(Response::new(Full::from(challenge)));
        }
        if let Ok(body) = request.into_body().collect().await {
            let body = body.to_bytes();
            self.times.lock().push(Instant::now());
            // After the time was recorded: whoever `all` wakes finds the times complete.
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

/// Starts a server on all loopback addresses, on a thread of its own.
fn serve(counter: Arc<DeliveryCounter>) -> Result<u16, PushBenchError> {
    let listener = std::net::TcpListener::bind("0.0.0.0:0")?;
    let port = listener.local_addr()?.port();
    listener.set_nonblocking(true)?;
    // Subscribers must not take the hub's worker threads, or both would be measured.
    std::thread::spawn(move || -> Result<(), PushBenchError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let counter = counter.clone();
                let answer = service_fn(move |request| {
                    let counter = counter.clone();
                    async move { counter.answer(request).await }
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

fn main() -> Result<(), PushBenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // `cargo bench` puts arguments of its own first.
    let mut arguments = std::env::args().skip_while(|argument| argument != LOAD).skip(1);
    match arguments.next() {
        Some(folder) => {
            runtime.block_on(load(Path::new(&folder), arguments.next().unwrap_or_default().parse()?))
        }
        None => runtime.block_on(bench()),
    }
}

async fn engine(folder: &Path) -> Result<Arc<Engine>, PushBenchError> {
    let config = Config::parse(CONFIG, &folder.join("towpath.toml"))?;
    let store: Arc<dyn Store> =
        Arc::new(EmbeddedStore::open(folder.join("data"), EmbeddedOptions::default())?);
    Ok(towpath::protocols::start(config, store).await?)
}

async fn bench() -> Result<(), PushBenchError> {
    let folder = tempfile::tempdir()?;
    let engine = engine(folder.path()).await?;
    let (stop, stopped) = watch::channel(false);
    let delivering = tokio::spawn(run(engine.clone(), Lease::alone("hub"), stopped));
    let counter = Arc::new(DeliveryCounter::default());
    let port = serve(counter.clone())?;
    deliver_to_all(&engine, &counter, port).await?;
    dead_host(&engine, &counter, port).await?;
    stop.send(true)?;
    delivering.await?;
    engine.store.close().await;
    drop(engine);
    let few = few_subscriptions(port).await?;
    // The difference leaves out the memory that does not depend on subscriptions.
    let (few, many) = (
        subscription_memory(few.path(), FEW)?,
        subscription_memory(folder.path(), SUBSCRIBERS + 2 * HOSTS - 1)?,
    );
    let each = (many - few) / (SUBSCRIBERS + 2 * HOSTS - 1 - FEW) as f64;
    println!("an idle subscription takes {each:.0} bytes");
    Ok(())
}

/// Folder with few subscriptions, one of them with a pending delivery: the base that does not depend on their number.
async fn few_subscriptions(port: u16) -> Result<tempfile::TempDir, PushBenchError> {
    let folder = tempfile::tempdir()?;
    let engine = engine(folder.path()).await?;
    let callback = |index: usize| format!("http://127.0.0.1:{port}/push/{index:032}");
    subscribe_all(&engine, "crowd", &(0..FEW).map(callback).collect::<Vec<_>>()).await?;
    let feed = engine.feed("crowd").ok_or("no such feed")?;
    engine.store.append(feed.id(), Expected::Any, vec![NewChange::put(Item::new("one"))]).await?;
    engine.store.close().await;
    Ok(folder)
}

/// Memory of a folder's subscriptions, measured in a process of its own, in which nothing else has taken memory and
/// given it back.
fn subscription_memory(folder: &Path, count: usize) -> Result<f64, PushBenchError> {
    let output =
        Command::new(std::env::current_exe()?).arg(LOAD).arg(folder).arg(count.to_string()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().parse().map_err(|_| format!("the memory could not be measured: {output:?}").into())
}

/// Loads the persisted subscriptions and prints the memory that they take.
async fn load(folder: &Path, count: usize) -> Result<(), PushBenchError> {
    let engine = engine(folder).await?;
    let before = resident()?;
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(run(engine.clone(), Lease::alone("hub"), stopped));
    while HubState::of(&engine).len() < count {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!("{}", resident()? - before);
    Ok(())
}

async fn deliver_to_all(
    engine: &Arc<Engine>,
    counter: &DeliveryCounter,
    port: u16,
) -> Result<(), PushBenchError> {
    let callback = |index: usize| format!("http://127.0.0.1:{port}/push/{index:032}");
    subscribe_all(engine, "crowd", &(0..SUBSCRIBERS).map(callback).collect::<Vec<_>>()).await?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // In alternation, so that both see the same load of the machine.
        ours.push(append(engine, counter, "crowd", SUBSCRIBERS, round).await?);
        let body = counter.body.lock().clone();
        bare.push(bare_loop(counter, port, body).await?);
    }
    let rate = |times: &mut Vec<Duration>| SUBSCRIBERS as f64 / median(times).as_secs_f64();
    let (ours, bare) = (rate(&mut ours), rate(&mut bare));
    println!("{SUBSCRIBERS} subscribers, {CONNECTIONS} connections, medians of {ROUNDS} rounds");
    println!("  delivered {ours:.0}/s, bare loop {bare:.0}/s, ratio {:.2}", ours / bare);
    Ok(())
}

/// Effect of one dead host among a thousand on the others.
async fn dead_host(engine: &Arc<Engine>, counter: &DeliveryCounter, port: u16) -> Result<(), PushBenchError> {
    // The whole of 127.0.0.0/8 is loopback, so each subscriber can have a host of its own.
    let address = |index: usize| format!("127.1.{}.{}", index / 250, index % 250 + 1);
    let hosts: Vec<String> = (1..HOSTS).map(|index| format!("http://{}:{port}/", address(index))).collect();
    subscribe_all(engine, "hosts", &hosts).await?;
    subscribe_all(engine, "mixed", &hosts).await?;
    // It confirms once; after that it accepts connections and never responds.
    let dead = dying_host().await?;
    subscribe_all(engine, "mixed", &[format!("http://{dead}/")]).await?;
    let (mut well, mut beside) = (Vec::new(), Vec::new());
    for round in 0..2 * ROUNDS {
        append(engine, counter, "hosts", HOSTS - 1, round).await?;
        well.push(middle(counter));
        append(engine, counter, "mixed", HOSTS - 1, round).await?;
        beside.push(middle(counter));
    }
    let (well, beside) = (median(&mut well), median(&mut beside));
    let change = beside.as_secs_f64() / well.as_secs_f64() * 100.0 - 100.0;
    println!("{HOSTS} hosts: median delivery {well:.2?}, beside a dead one {beside:.2?} ({change:+.1} %)");
    Ok(())
}

async fn dying_host() -> Result<SocketAddr, PushBenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(async move {
        let mut kept = Vec::new();
        let mut is_alive = true;
        while let Ok((mut stream, _)) = listener.accept().await {
            // Only the verification is answered: an unverified callback would get no deliveries.
            if std::mem::take(&mut is_alive) {
                let mut bytes = vec![0; 4096];
                let count = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await.unwrap_or(0);
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                let challenge = text.split("hub.challenge=").nth(1).and_then(|rest| rest.get(..32));
                let answer =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n{}", challenge.unwrap_or_default());
                drop(tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes()).await);
            }
            // Kept open: a closed connection would fail at once, and cost the hub no timeout.
            kept.push(stream);
        }
    });
    Ok(addr)
}

async fn subscribe_all(engine: &Arc<Engine>, feed: &str, callbacks: &[String]) -> Result<(), PushBenchError> {
    let feed = engine.feed(feed).ok_or("no such feed")?;
    for some in callbacks.chunks(AT_ONCE) {
        for subscribed in join_all(some.iter().map(|callback| ask(engine, &feed, callback))).await {
            subscribed?;
        }
    }
    Ok(())
}

async fn ask(engine: &Arc<Engine>, feed: &Arc<Feed>, callback: &str) -> Result<(), PushBenchError> {
    let topic = format!("{}?order=modified", settings(engine, feed).base);
    let request = SubscriptionRequest {
        mode: Mode::Subscribe,
        dialect: Dialect::WebSub,
        topic: topic.clone(),
        callback: callback.to_owned(),
        lease_seconds: None,
        secret: None,
        verify: VerifyMode::Sync,
        verify_token: None,
    };
    let topic = Topic::of_url(engine, feed, &topic, Access::Whole)?;
    let request =
        SubscribeRequest { form: request, topic, access: Access::Whole, reader: None, requester: None };
    subscribe(engine, request).await?;
    Ok(())
}

/// Appends one item and waits for all deliveries.
async fn append(
    engine: &Arc<Engine>,
    counter: &DeliveryCounter,
    feed: &str,
    count: usize,
    round: usize,
) -> Result<Duration, PushBenchError> {
    // Positions of the previous round are still being persisted.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    counter.expect(count);
    let content = Content { media_type: "text/plain".into(), bytes: vec![b'x'; 1000].into() };
    let item = Item {
        title: Some(format!("Round {round}")),
        content: Some(content),
        ..Item::new(format!("item-{round}"))
    };
    let feed = engine.feed(feed).ok_or("no such feed")?;
    let start = Instant::now();
    engine.store.append(feed.id(), Expected::Any, vec![NewChange::put(item)]).await?;
    tokio::time::timeout(Duration::from_secs(120), counter.all.notified()).await?;
    Ok(start.elapsed())
}

/// Time from the first delivery to the middle one.
fn middle(counter: &DeliveryCounter) -> Duration {
    let mut times = counter.times.lock().clone();
    times.sort();
    match (times.first(), times.get(times.len() / 2)) {
        (Some(first), Some(middle)) => *middle - *first,
        _ => Duration::ZERO,
    }
}

/// Posts the same body as often, over as many connections, one request after the other on each.
async fn bare_loop(counter: &DeliveryCounter, port: u16, body: Bytes) -> Result<Duration, PushBenchError> {
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        senders.push(sender);
    }
    counter.expect(SUBSCRIBERS);
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    for mut sender in senders {
        let (next, body) = (next.clone(), body.clone());
        tokio::spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= SUBSCRIBERS {
                    return Ok::<_, PushBenchError>(());
                }
                let request = Request::post(format!("/push/{index:032}"))
                    // As many headers as the hub sends, else the bare loop had less to write and parse.
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
    tokio::time::timeout(Duration::from_secs(120), counter.all.notified()).await?;
    Ok(start.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Resident memory of this process, in bytes.
fn resident() -> Result<f64, PushBenchError> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kilobytes * 1024.0)
}
