//! Descriptors, idle connections, slow senders and slow readers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::abuse::size;
use crate::common::clustered;
use crate::common::{PATIENCE, TestFolder, TestServer, wait_until};

const NOTES: &str = "[[feed]]\nid = \"notes\"\n";

/// Starts a server by a shell command, which sets limits before.
fn serve_limited(dir: &TestFolder, limits: &str) -> TestServer {
    let mut command = Command::new("bash");
    let script = format!("{limits} exec \"$0\" serve --listen 127.0.0.1:0");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_towpath")]).current_dir(dir.folder.path());
    dir.start(command)
}

fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.base.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Client that keeps its connection.
struct KeptConnection(BufReader<TcpStream>);

impl KeptConnection {
    fn new(server: &TestServer) -> Self {
        Self(BufReader::new(connect(server)))
    }

    fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let host = self.0.get_ref().peer_addr().unwrap();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n", body.len());
        self.0.get_mut().write_all(&[head.as_bytes(), body].concat()).unwrap();
        self.response()
    }

    fn response(&mut self) -> (u16, String) {
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(rest) = line.strip_prefix("content-length: ") {
                length = rest.parse().unwrap();
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut noise = fastrand::Rng::with_seed(length as u64);
    std::iter::repeat_with(|| noise.u8(..)).take(length).collect()
}

#[test]
fn idle_connections_leave_descriptors_to_the_store() {
    let dir = TestFolder::new(NOTES);
    // More connections than descriptors.
    let limit = size(256, 1024);
    let server = serve_limited(&dir, &format!("ulimit -n {limit};"));
    let mut publisher = KeptConnection::new(&server);
    assert_eq!(publisher.ask("PUT", "/feeds/notes/items/first", b"x").0, 201);
    let idle: Vec<TcpStream> = (0..limit + 64).map(|_| connect(&server)).collect();
    // More than a memtable: the store has to write tables, which takes descriptors.
    let content = noise(1 << 20);
    for n in 0..size(40, 200) {
        let (status, text) = publisher.ask("PUT", &format!("/feeds/notes/items/{n}"), &content);
        assert_eq!(status, 201, "item {n}: {text}; log: {}", dir.log());
    }
    let (status, health) = publisher.ask("GET", "/healthz.json", b"");
    assert_eq!(status, 200, "{health}");
    // A connection beyond the limit is told so before it asks.
    let mut refused = String::new();
    (&mut idle.last().unwrap()).read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\r\nretry-after: "), "{refused:?}");
    let warnings = dir.log().lines().filter(|line| line.contains("refused a connection")).count();
    assert!((1..=5).contains(&warnings), "repeats are left out: {}", dir.log());
    drop(idle);
    wait_until("a new connection is served", || {
        server.try_ask("GET", "/feeds/notes/items/first", &[], b"").is_ok_and(|answer| answer.status == 200)
    });
}

#[test]
fn the_soft_limit_of_descriptors_is_raised() {
    let dir = TestFolder::new(NOTES);
    let server = serve_limited(&dir, "ulimit -Sn 128; ulimit -Hn 2048;");
    assert!(dir.log().contains("open files are divided limit=2048 limit_at_start=128"), "{}", dir.log());
    let idle: Vec<TcpStream> = (0..300).map(|_| connect(&server)).collect();
    assert_eq!(server.get("/healthz.json").status, 200);
    drop(idle);
}

#[test]
fn a_store_whose_write_failed_recovers() {
    if clustered::skips("the log is the cluster's; a replica whose write failed is started again") {
        return;
    }
    let dir = TestFolder::new(NOTES);
    // Without the trap, SIGXFSZ would end the process instead of failing the write.
    let server = serve_limited(&dir, "trap '' XFSZ;");
    let content = noise(1 << 20);
    let put = |n: usize| server.ask("PUT", &format!("/feeds/notes/items/{n}"), &[], &content).status;
    for n in 0..8 {
        assert_eq!(put(n), 201);
    }
    let limit_files = |bytes: &str| {
        let pid = server.pid().to_string();
        let set =
            Command::new("prlimit").args(["--pid", &pid, &format!("--fsize={bytes}:unlimited")]).status();
        assert!(set.unwrap().success());
    };
    limit_files("4096");
    assert_eq!(put(8), 503, "log: {}", dir.log());
    wait_until("health says so", || server.get("/healthz.json").status == 503);
    assert!(server.get("/metrics").text().contains("towpath_store_failed 1"));
    limit_files("unlimited");
    wait_until("the store takes writes again", || put(9) == 201);
    wait_until("health says so", || server.get("/healthz.json").status == 200);
    for n in (0..8).chain([9]) {
        let answer = server.get(&format!("/feeds/notes/items/{n}"));
        assert_eq!((answer.status, answer.body.len()), (200, 1 << 20), "item {n}");
    }
    // The refused item is there whole or not at all.
    let total = server.json("/feeds/notes/items?max=1")["totalItems"].as_u64();
    assert!(matches!(total, Some(9 | 10)), "{total:?}");
}

/// A flush that finds no descriptor, as a process with many open files would have it.
#[test]
fn a_store_whose_flush_failed_recovers() {
    if clustered::skips("the log is the cluster's; a replica whose write failed is started again") {
        return;
    }
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let mut publisher = KeptConnection::new(&server);
    let content = noise(1 << 20);
    let mut put = |n: usize| publisher.ask("PUT", &format!("/feeds/notes/items/{n}"), &content).0;
    let limit_descriptors = |limit: &str| {
        let pid = server.pid().to_string();
        let set = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={limit}:")]).status();
        assert!(set.unwrap().success());
    };
    assert_eq!(put(0), 201);
    limit_descriptors("8");
    let end = Instant::now() + PATIENCE;
    let mut acknowledged = vec![0];
    for n in 1.. {
        match put(n) {
            201 => acknowledged.push(n),
            status => {
                assert_eq!(status, 503);
                break;
            }
        }
        assert!(Instant::now() < end && n < 400, "no flush fails");
    }
    limit_descriptors("1024");
    wait_until("the store takes writes again", || put(1000) == 201);
    for n in acknowledged {
        let answer = server.get(&format!("/feeds/notes/items/{n}"));
        assert_eq!((answer.status, answer.body.len()), (200, 1 << 20), "item {n}; log: {}", dir.log());
    }
}

/// Configuration of a server that is impatient with slow clients, so that the tests are quick.
const IMPATIENT: &str = "[server]\nrate_grace = \"1s\"\n[[feed]]\nid = \"notes\"\n";

/// Sends a request and does not read the response.
fn ask_without_reading(server: &TestServer, path: &str) -> TcpStream {
    let mut stream = connect(server);
    let host = stream.peer_addr().unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    stream
}

/// Returns a value of the metrics.
fn metric(server: &TestServer, name: &str) -> u64 {
    let text = server.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until the server has closed all connections but the one that asks for the metrics.
fn wait_until_alone(server: &TestServer) {
    wait_until("slow clients are cut", || metric(server, "towpath_connections") <= 1);
}

#[test]
fn clients_that_do_not_read_are_cut() {
    let dir = TestFolder::new(IMPATIENT);
    let server = dir.serve();
    let put = |id: &str, length| {
        let answer = server.ask("PUT", &format!("/feeds/notes/items/{id}"), &[], &noise(length));
        assert_eq!(answer.status, 201, "{}", answer.text());
    };
    put("large", 3 << 20);
    let count = size(40, 500);
    let mut unread: Vec<TcpStream> =
        (0..count).map(|_| ask_without_reading(&server, "/feeds/notes/items/large")).collect();
    // Long polls and event streams are answered by a shared page.
    let head = server.json("/feeds/notes/items?max=1")["last_cursor"].as_str().unwrap().to_owned();
    let path = format!("/feeds/notes/items?since=cursor:{head}&timeout=60");
    unread.extend((0..count).map(|_| ask_without_reading(&server, &path)));
    unread.extend((0..count).map(|_| ask_without_reading(&server, "/feeds/notes/events")));
    wait_until("all wait", || metric(&server, "towpath_waiters") >= 2 * count as u64);
    put("larger", 4 << 20);
    // A client that reads slowly, but as fast as agreed.
    let mut honest = ask_without_reading(&server, "/feeds/notes/items/large");
    let (mut received, mut chunk) = (0, vec![0; 64 << 10]);
    while received < 3 << 20 {
        let length = honest.read(&mut chunk).unwrap();
        assert!(length > 0, "cut after {received} bytes");
        received += length;
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(honest);
    wait_until_alone(&server);
    drop(unread);
    assert_eq!(server.get("/feeds/notes/items/large").body.len(), 3 << 20);
}

#[test]
fn clients_that_send_slowly_are_cut() {
    let dir = TestFolder::new(IMPATIENT);
    let server = dir.serve();
    let slow: Vec<KeptConnection> = (0..size(20, 500))
        .map(|n| {
            let mut stream = connect(&server);
            let host = stream.peer_addr().unwrap();
            let head = format!("PUT /feeds/notes/items/{n} HTTP/1.1\r\nHost: {host}\r\n");
            write!(stream, "{head}Content-Length: 1000000\r\n\r\nonly this").unwrap();
            KeptConnection(BufReader::new(stream))
        })
        .collect();
    // An honest slow upload takes longer than the grace.
    let mut stream = connect(&server);
    let host = stream.peer_addr().unwrap();
    write!(stream, "PUT /feeds/notes/items/honest HTTP/1.1\r\nHost: {host}\r\nContent-Length: 90000\r\n\r\n")
        .unwrap();
    for _ in 0..30 {
        stream.write_all(&[b'x'; 3000]).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(KeptConnection(BufReader::new(stream)).response().0, 201);
    for mut slow in slow {
        let (status, text) = slow.response();
        assert!(status == 408 && text.contains("min_rate"), "{status} {text}");
    }
}

/// Begins a PUT of `length` bytes, and sends the first of them.
fn begin_put(server: &TestServer, id: &str, length: usize, first: &[u8]) -> KeptConnection {
    let mut stream = connect(server);
    let host = stream.peer_addr().unwrap();
    write!(
        stream,
        "PUT /feeds/notes/items/{id} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"
    )
    .unwrap();
    stream.write_all(first).unwrap();
    KeptConnection(BufReader::new(stream))
}

/// Bytes that came fast earn no pause of hours, in which the body's memory would be held.
#[test]
fn clients_that_fall_silent_are_cut() {
    let dir = TestFolder::new(IMPATIENT);
    let server = dir.serve();
    let (status, text) = begin_put(&server, "silent", 2 << 20, &noise(1 << 20)).response();
    assert!(status == 408 && text.contains("min_rate"), "{status} {text}");
}

#[test]
fn a_long_head_is_refused() {
    let dir = TestFolder::new(IMPATIENT);
    let server = dir.serve();
    let mut stream = connect(&server);
    let host = stream.peer_addr().unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nX-Filler: {}", "x".repeat(40_000)).unwrap();
    assert_eq!(KeptConnection(BufReader::new(stream)).response().0, 431);
}

#[test]
fn a_head_with_many_fields_is_refused_with_a_reason() {
    let dir = TestFolder::new(IMPATIENT);
    let server = dir.serve();
    for (count, status) in [(99, 200), (100, 431), (2000, 431)] {
        let mut stream = connect(&server);
        let host = stream.peer_addr().unwrap();
        let fields: String = (0..count).map(|n| format!("a{n}: x\r\n")).collect();
        write!(stream, "GET /healthz.json HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n").unwrap();
        let (told, text) = KeptConnection(BufReader::new(stream)).response();
        assert_eq!(told, status, "{count}: {text}");
        assert!(status == 200 || text.contains("100 header fields"), "{text}");
    }
}

/// hyper refuses what is no HTTP without a word.
#[test]
fn a_malformed_request_is_refused_with_a_reason() {
    let dir = TestFolder::new(IMPATIENT);
    let server = dir.serve();
    for head in [
        "G\u{1}T / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/3.0\r\n\r\n",
        "\u{16}\u{3}\u{1}",
    ] {
        let mut stream = connect(&server);
        stream.write_all(head.as_bytes()).unwrap();
        let (status, text) = KeptConnection(BufReader::new(stream)).response();
        let problem: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        assert_eq!((status, &problem["status"]), (400, &400.into()), "{head:?}: {text}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("RFC 9112")), "{text}");
    }
    // Behind a request that was answered, too.
    let mut stream = connect(&server);
    let host = stream.peer_addr().unwrap();
    write!(stream, "GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut kept = KeptConnection(BufReader::new(stream));
    assert_eq!(kept.response().0, 200);
    kept.0.get_mut().write_all(b"nonsense\r\n\r\n").unwrap();
    let (status, text) = kept.response();
    assert!(status == 400 && text.contains("RFC 9112"), "{status} {text}");
}

/// Peak memory of a process, in MiB.
fn peak_memory(server: &TestServer) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
fn unread_pages_have_a_limit_in_all() {
    let limit = size(4, 32);
    // A grace of a minute: the limit, not time, has to keep memory down.
    let dir = TestFolder::new(&format!(
        "[server]\nrate_grace = \"1m\"\ncache_mib = 1\nresponse_mib = {limit}\n[[feed]]\nid = \"notes\"\n"
    ));
    let server = dir.serve();
    for n in 0..8 {
        let answer = server.ask("PUT", &format!("/feeds/notes/items/{n}"), &[], &noise(100 << 10));
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    let before = peak_memory(&server);
    // Each page differs in a few bytes, so no two can be shared.
    let page = |n: usize| format!("/feeds/notes/items?max=100&callback=f{n}");
    let unread: Vec<TcpStream> = (0..size(24, 400)).map(|n| ask_without_reading(&server, &page(n))).collect();
    let (mut sent, mut refused) = (0, 0);
    for stream in &unread {
        let mut status = [0; 12];
        match (&mut &*stream).read_exact(&mut status) {
            Ok(()) if status.ends_with(b"503") => refused += 1,
            Ok(()) => sent += 1,
            // Cut before the first byte was read.
            Err(_) => {}
        }
    }
    assert!(sent > 0 && refused > 0, "{sent} sent, {refused} refused");
    let grown = peak_memory(&server) - before;
    assert!(grown < 3 * limit as u64 + 64, "memory grew by {grown} MiB");
    // Clients that read nothing are cut, so an honest one is served soon.
    wait_until("an honest client is served", || server.get(&page(1_000_000)).status == 200);
}

#[test]
fn bodies_that_are_held_whole_have_a_limit_in_all() {
    // A grace of a minute: the limit, not time, has to keep memory down.
    let dir = TestFolder::new("[server]\nrate_grace = \"1m\"\nbody_mib = 64\n[[feed]]\nid = \"notes\"\n");
    let server = dir.serve();
    let before = peak_memory(&server);
    let (length, sent) = (31 << 20, noise(30 << 20));
    let mut held: Vec<KeptConnection> = std::thread::scope(|scope| {
        let begin = |n: usize| begin_put(&server, &format!("large{n}"), length, &sent);
        let begun: Vec<_> = (0..size(6, 20)).map(|n| scope.spawn(move || begin(n))).collect();
        begun.into_iter().map(|one| one.join().unwrap()).collect()
    });
    // Small bodies wait for nobody.
    assert_eq!(server.ask("PUT", "/feeds/notes/items/small", &[], &noise(100 << 10)).status, 201);
    let grown = peak_memory(&server) - before;
    assert!(grown < 2 * 64 + 32, "memory grew by {grown} MiB");
    let statuses: Vec<u16> = held
        .iter_mut()
        .map(|one| {
            one.0.get_mut().write_all(&sent[..1 << 20]).unwrap();
            let (status, text) = one.response();
            assert!(status == 201 || text.contains("[server] body_mib"), "{status} {text}");
            status
        })
        .collect();
    assert!(statuses.contains(&503), "{statuses:?}");
    drop(held);
    assert_eq!(server.ask("PUT", "/feeds/notes/items/large", &[], &sent).status, 201);
}
