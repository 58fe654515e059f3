//! A client for the benchmark of those who wait: followers and publishers on one channel, as fast as the server is.

use std::io::{Error, ErrorKind, Read, Result, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FOLLOWERS: usize = 100;
const PUBLISHERS: usize = 4;
/// The size of a message, about.
const BYTES: usize = 200;
/// How long followers may take to catch up once publishing has ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a server is asked.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Towpath,
    Nchan,
}

/// Where messages go.
#[derive(Debug)]
struct Channel {
    kind: Kind,
    port: u16,
    /// Of the feed or channel.
    name: String,
}

#[derive(Debug, Default)]
struct Totals {
    published: AtomicU64,
    delivered: AtomicU64,
    out_of_order: AtomicU64,
    stop: AtomicBool,
}

/// Publishes for so many seconds to 100 followers and prints what they got as JSON.
pub(crate) fn run(kind: &str, port: &str, name: &str, seconds: &str) -> std::result::Result<(), String> {
    let kind = match kind {
        "towpath" => Kind::Towpath,
        "nchan" => Kind::Nchan,
        other => return Err(format!("{other}: towpath or nchan")),
    };
    let port: u16 = port.parse().map_err(|e| format!("{port}: {e}"))?;
    let seconds: u64 = seconds.parse().map_err(|e| format!("{seconds}: {e}"))?;
    let channel = Arc::new(Channel { kind, port, name: name.to_owned() });
    let totals = Arc::new(Totals::default());
    let spawn = |work: fn(&Channel, usize, &Totals) -> Result<()>, number| {
        let (channel, totals) = (channel.clone(), totals.clone());
        std::thread::spawn(move || work(&channel, number, &totals))
    };
    let followers: Vec<_> = (0..FOLLOWERS).map(|n| spawn(follow, n)).collect();
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    let publishers: Vec<_> = (0..PUBLISHERS).map(|n| spawn(publish, n)).collect();
    std::thread::sleep(Duration::from_secs(seconds));
    let delivered = totals.delivered.load(Ordering::Relaxed);
    let took = begun.elapsed().as_secs_f64();
    totals.stop.store(true, Ordering::Relaxed);
    for publisher in publishers {
        publisher.join().map_err(|_| "a publisher failed")?.map_err(|e| format!("publishing: {e}"))?;
    }
    for follower in followers {
        follower.join().map_err(|_| "a follower failed")?.map_err(|e| format!("following: {e}"))?;
    }
    let (published, all) =
        (totals.published.load(Ordering::Relaxed), totals.delivered.load(Ordering::Relaxed));
    println!(
        "{{\"published\": {published}, \"delivered\": {all}, \"out_of_order\": {}, \"deliveries_per_second\": {:.0}}}",
        totals.out_of_order.load(Ordering::Relaxed),
        delivered as f64 / took,
    );
    Ok(())
}

fn publish(channel: &Channel, number: usize, totals: &Totals) -> Result<()> {
    let Channel { kind, port, name: channel } = channel;
    let mut connection = Connection::new(*port)?;
    let mut count = 0u64;
    while !totals.stop.load(Ordering::Relaxed) {
        let (path, body) = match kind {
            Kind::Towpath => (
                format!("/feeds/{channel}/items"),
                format!("{{\"id\":\"p{number}-{count}\",\"item\":{{\"title\":\"{:x<BYTES$}\"}}}}", ""),
            ),
            Kind::Nchan => (
                format!("/fan/pub?channel={channel}"),
                format!("{{\"id\":\"p{number}-{count}\",\"title\":\"{:x<BYTES$}\"}}", ""),
            ),
        };
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        connection.ask(&(head + &body))?;
        count += 1;
        totals.published.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn follow(channel: &Channel, _: usize, totals: &Totals) -> Result<()> {
    let Channel { kind, port, name: channel } = channel;
    let mut connection = Connection::new(*port)?;
    let mut expected = [0u64; PUBLISHERS];
    let mut place = String::new();
    let mut stopped: Option<Instant> = None;
    loop {
        let request = match kind {
            Kind::Towpath => format!(
                "GET /feeds/{channel}/items?order=modified&max=1000&timeout=1{place} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            ),
            Kind::Nchan => {
                format!("GET /fan/sub?channel={channel} HTTP/1.1\r\nHost: localhost\r\n{place}\r\n")
            }
        };
        let (head, body) = connection.ask(&request)?;
        take(body, &mut expected, totals);
        if let Some(next) = after(*kind, head, body) {
            place = next;
        }
        if totals.stop.load(Ordering::Relaxed) {
            let all = expected.iter().sum::<u64>() >= totals.published.load(Ordering::Relaxed);
            if all || stopped.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Ok(());
            }
        }
    }
}

/// What the next question adds, to begin after an answer; nothing new where the answer was that there is none.
fn after(kind: Kind, head: &str, body: &str) -> Option<String> {
    if let Kind::Towpath = kind {
        return between(body, "\"last_cursor\":\"", "\"").map(|cursor| format!("&since=cursor:{cursor}"));
    }
    let (etag, modified) =
        (between(head, "\r\nEtag: ", "\r\n")?, between(head, "\r\nLast-Modified: ", "\r\n")?);
    Some(format!("If-None-Match: {etag}\r\nIf-Modified-Since: {modified}\r\n"))
}

/// Counts the messages of an answer, and those that do not follow their predecessor.
fn take(body: &str, expected: &mut [u64; PUBLISHERS], totals: &Totals) {
    let (mut rest, mut count, mut wrong) = (body, 0, 0);
    while let Some(at) = rest.find("\"id\":\"p") {
        rest = &rest[at + 7..];
        let name = rest.split('"').next().unwrap_or_default();
        let Some((publisher, number)) = name.split_once('-') else { continue };
        let (Ok(publisher), Ok(number)) = (publisher.parse::<usize>(), number.parse::<u64>()) else {
            continue;
        };
        wrong += u64::from(expected[publisher] != number);
        expected[publisher] = number + 1;
        count += 1;
    }
    totals.delivered.fetch_add(count, Ordering::Relaxed);
    totals.out_of_order.fetch_add(wrong, Ordering::Relaxed);
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let begin = text.find(before)? + before.len();
    text[begin..].split(after).next()
}

/// A kept connection, and the last answer.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn new(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Head and body of the answer.
    fn ask(&mut self, request: &str) -> Result<(&str, &str)> {
        self.stream.write_all(request.as_bytes())?;
        self.buffer.clear();
        let (mut end, mut piece) = (None, [0; 65536]);
        loop {
            let count = self.stream.read(&mut piece)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.buffer.extend_from_slice(&piece[..count]);
            if end.is_none() {
                end = whole(&self.buffer)?;
            }
            if let Some((head, all)) = end.filter(|(_, all)| self.buffer.len() >= *all) {
                let text =
                    |bytes| std::str::from_utf8(bytes).map_err(|e| Error::new(ErrorKind::InvalidData, e));
                return Ok((text(&self.buffer[..head])?, text(&self.buffer[head..all])?));
            }
        }
    }
}

/// Where the head and the body of an answer end, once its head is there.
fn whole(buffer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&buffer[..end + 4]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 20") && !head.starts_with("http/1.1 408") {
        return Err(Error::other(head));
    }
    let length = between(&head, "\r\ncontent-length: ", "\r\n").and_then(|n| n.trim().parse().ok());
    Ok(Some((end + 4, end + 4 + length.unwrap_or(0))))
}
