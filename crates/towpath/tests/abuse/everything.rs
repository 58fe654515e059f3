//! All attacks at once, while one legitimate publisher publishes and one legitimate follower waits for each change.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::abuse::size;
use crate::common::{TestFolder, TestServer, ask_on, free_port};

/// Pause between two published changes.
const PUBLISH_EVERY: Duration = Duration::from_millis(250);
/// Pause between two bytes of a slow sender or reader.
const SLOW_EVERY: Duration = Duration::from_secs(2);

/// An attack of the whole run, and its size.
struct Attack {
    /// Connections that send nothing.
    idle: usize,
    /// Connections that send a request one byte at a time.
    slow_senders: usize,
    /// Connections that ask for a large document and hardly read it.
    slow_readers: usize,
    /// Sources that answer with hostile documents.
    sources: usize,
    duration: Duration,
}

impl Attack {
    fn of_this_run() -> Self {
        // Each end needs a descriptor, and both may be limited to as many as this process.
        let descriptors = descriptors().saturating_sub(4_500);
        let seconds = std::env::var("TOWPATH_ABUSE_SECONDS").ok().and_then(|text| text.parse().ok());
        Self {
            idle: size(300, 20_000.min(descriptors)),
            slow_senders: size(60, 2_000),
            slow_readers: size(30, 500),
            sources: size(20, 1_000),
            duration: Duration::from_secs(seconds.unwrap_or(size(4, 60) as u64)),
        }
    }

    /// Starts the attack. It goes on until `over` is true.
    fn start(&self, server: &TestServer, over: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<()>> {
        let address: SocketAddr = server.base.trim_start_matches("http://").parse().unwrap();
        let held = |count, request: &'static [u8], step: fn(&mut TcpStream) -> bool| {
            let over = Arc::clone(over);
            std::thread::spawn(move || hold(address, count, request, step, &over))
        };
        let hub = {
            let (over, base) = (Arc::clone(over), server.base.clone());
            std::thread::spawn(move || attack_hub(&base, &over))
        };
        vec![
            held(self.idle, b"", |_| true),
            held(self.slow_senders, b"POST /feeds/news/items HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", |stream| {
                stream.write_all(b"x").is_ok()
            }),
            held(
                self.slow_readers,
                b"GET /feeds/news/items/large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
                |stream| !matches!(stream.read(&mut [0]), Ok(0)),
            ),
            hub,
        ]
    }
}

/// Returns the number of files that this process may open.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    line.split_whitespace().nth(3).and_then(|soft| soft.parse().ok()).unwrap_or(1024)
}

/// Keeps so many connections open that have sent `request`, and makes a step of each from time to time. Connections that
/// the server closes are opened again.
fn hold(
    address: SocketAddr,
    count: usize,
    request: &[u8],
    step: fn(&mut TcpStream) -> bool,
    over: &AtomicBool,
) {
    let connect = || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
        stream.set_nonblocking(true).ok()?;
        stream.write_all(request).ok().map(|()| stream)
    };
    let mut streams: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        for stream in &mut streams {
            if over.load(Ordering::Relaxed) {
                return;
            }
            if stream.as_mut().is_none_or(|stream| !step(stream)) {
                *stream = connect();
            }
        }
        std::thread::sleep(SLOW_EVERY.saturating_sub(begun.elapsed()).max(Duration::from_millis(10)));
    }
}

/// Asks for subscriptions whose callbacks nobody serves.
fn attack_hub(base: &str, over: &AtomicBool) {
    let address = base.trim_start_matches("http://");
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let callback = format!("http://127.0.0.{}:{}/{number}", 2 + number % 200, 1 + number % 1000);
        let body = format!("hub.mode=subscribe&hub.topic={base}/feeds/news/items&hub.callback={callback}");
        if let Ok(stream) = TcpStream::connect(address) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let form = [("content-type", "application/x-www-form-urlencoded")];
            let _ = ask_on(stream, "POST", "/feeds/news/hub", &form, body.as_bytes());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Serves hostile documents: compressed bombs, endless bodies, and bodies that never end.
fn hostile_sources(over: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(b"{\"items\":[").unwrap();
    for _ in 0..4_000 {
        gzip.write_all("{\"id\":1},".repeat(1_000).as_bytes()).unwrap();
    }
    let bomb = Arc::new(gzip.finish().unwrap());
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let (Ok(mut stream), bomb, over) = (stream, Arc::clone(&bomb), Arc::clone(&over)) else {
                continue;
            };
            std::thread::spawn(move || {
                let _ = stream.set_write_timeout(Some(Duration::from_secs(5)));
                let _ = stream.read(&mut [0; 4096]);
                let json =
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n".as_slice();
                let _ = match number % 4 {
                    0 => stream
                        .write_all(&[json, b"Content-Encoding: gzip\r\n\r\n"].concat())
                        .and_then(|()| stream.write_all(&bomb)),
                    1 => stream.write_all(&[json, b"\r\n["].concat()).and_then(|()| {
                        (0..50_000).try_for_each(|_| stream.write_all(&b"{\"id\":1},".repeat(100)))
                    }),
                    2 => stream.write_all(&[json, b"\r\n["].concat()).map(|()| {
                        while !over.load(Ordering::Relaxed) && stream.write_all(b" ").is_ok() {
                            std::thread::sleep(Duration::from_secs(1));
                        }
                    }),
                    _ => stream.write_all(&[json, b"\r\n", "[".repeat(1 << 20).as_bytes()].concat()),
                };
            });
        }
    });
    port
}

/// Publishes, and follows by long poll. Returns the delays from each acknowledgement to the follower's answer.
fn publish_and_follow(server: &TestServer, duration: Duration) -> Vec<Duration> {
    let published = AtomicUsize::new(0);
    let acknowledged = parking_lot::Mutex::new(Vec::new());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let follower = scope.spawn(|| {
            let mut answered = Vec::new();
            let mut path = "/feeds/news/items?max=1&order=-modified&timeout=0".to_owned();
            while !over.load(Ordering::Acquire) || answered.len() < published.load(Ordering::Acquire) {
                let page = server.json(&path);
                let items = page["items"].as_array().unwrap();
                let at = Instant::now();
                answered.extend(items.iter().filter_map(|item| {
                    let number = item["id"].as_str()?.strip_prefix('n')?.parse::<usize>().ok()?;
                    Some((number, at))
                }));
                let cursor = page["last_cursor"].as_str().unwrap();
                path = format!("/feeds/news/items?since=cursor:{cursor}&timeout=5");
            }
            answered
        });
        let end = Instant::now() + duration;
        let mut number = 0;
        while Instant::now() < end {
            std::thread::sleep(PUBLISH_EVERY);
            let put = server.ask("PUT", &format!("/feeds/news/items/n{number}"), &[], b"x");
            assert_eq!(put.status, 201, "publishing goes on: {}", put.text());
            acknowledged.lock().push(Instant::now());
            number += 1;
            published.store(number, Ordering::Release);
        }
        over.store(true, Ordering::Release);
        let answered = follower.join().unwrap();
        let acknowledged = acknowledged.lock();
        let mut delays: Vec<Duration> = answered
            .iter()
            .filter_map(|(n, at)| Some(at.saturating_duration_since(*acknowledged.get(*n)?)))
            .collect();
        delays.sort_unstable();
        delays
    })
}

/// Peak of a process's memory, in MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
fn a_follower_is_served_under_all_attacks_at_once() {
    let attack = Attack::of_this_run();
    let over = Arc::new(AtomicBool::new(false));
    let sources = hostile_sources(Arc::clone(&over));
    let source = |n: usize| {
        format!(
            "[[feed]]\nid = \"s{n}\"\n[feed.source]\nurl = \"http://127.0.0.1:{sources}/{n}\"\nevery = \"1m\"\n"
        )
    };
    let config: String = (0..attack.sources).map(source).collect();
    let dir = TestFolder::new(&format!(
        "[server]\nallow_private_callbacks = true\n[[feed]]\nid = \"news\"\n{config}"
    ));
    let server = dir.serve_at(free_port());
    assert_eq!(server.ask("PUT", "/feeds/news/items/large", &[], &vec![b'x'; 3 << 20]).status, 201);
    let threads = attack.start(&server, &over);
    // Until the connections are open.
    std::thread::sleep(Duration::from_secs(size(1, 15) as u64));
    let delays = publish_and_follow(&server, attack.duration);
    over.store(true, Ordering::Release);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(!delays.is_empty());
    let at = |share: usize| delays[(delays.len() - 1) * share / 100].as_secs_f64() * 1e3;
    let peak = peak_mib(server.pid());
    println!(
        "{} idle, {} slow senders, {} slow readers, {} hostile sources and a hub under attack for {:?}: {} changes, \
         answered after {:.1} ms in the median, {:.1} ms at the 99th percentile; {peak} MiB at most",
        attack.idle,
        attack.slow_senders,
        attack.slow_readers,
        attack.sources,
        attack.duration,
        delays.len(),
        at(50),
        at(99)
    );
    assert!(peak < 512, "{peak} MiB");
}
