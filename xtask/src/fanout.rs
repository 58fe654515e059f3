//! Client of the long-poll benchmark: followers and publishers on one channel, as fast as the server allows.

use std::io::{Error, ErrorKind, Read, Result, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FOLLOWERS: usize = 100;
const PUBLISHERS: usize = 4;
/// Approximate size of a message.
const BYTES: usize = 200;
/// Longest time for followers to catch up after the last message.
const PATIENCE: Duration = Duration::from_secs(20);

/// Server under test, which determines the requests.
#[derive(Debug, Clone, Copy)]
enum ServerKind {
    Towpath,
    Nchan,
}

/// FanoutChannel of the messages.
#[derive(Debug)]
struct FanoutChannel {
    kind: ServerKind,
    port: u16,
    /// Name of the feed or channel.
    name: String,
}

#[derive(Debug, Default)]
struct Totals {
    published: AtomicU64,
    delivered: AtomicU64,
    out_of_order: AtomicU64,
    stop: AtomicBool,
}

/// Publishes to 100 followers for so many seconds, and prints their totals as JSON.
pub(crate) fn run(kind: &str, port: &str, name: &str, seconds: &str) -> std::result::Result<(), String> {
    let kind = match kind {
        "towpath" => ServerKind::Towpath,
        "nchan" => ServerKind::Nchan,
        other => return Err(format!("{other}: towpath or nchan")),
    };
    let port: u16 = port.parse().map_err(|e| format!("{port}: {e}"))?;
    let seconds: u64 = seconds.parse().map_err(|e| format!("{seconds}: {e}"))?;
    let channel = Arc::new(FanoutChannel { kind, port, name: name.to_owned() });
    let totals = Arc::new(Totals::default());
    let spawn = |work: fn(&FanoutChannel, usize, &Totals) -> Result<()>, number| {
        let (channel, totals) = (channel.clone(), totals.clone());
        std::thread::spawn(move || work(&channel, number, &totals))
    };
    let followers: Vec<_> = (0..FOLLOWERS).map(|n| spawn(follow, n)).collect();
    // All followers park first: a message before its reader would count as lost.
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    let publishers: Vec<_> = (0..PUBLISHERS).map(|n| spawn(publish, n)).collect();
    std::thread::sleep(Duration::from_secs(seconds));
    // Read before the rest is caught up, so the rate is that of the measured seconds.
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

fn publish(channel: &FanoutChannel, number: usize, totals: &Totals) -> Result<()> {
    let FanoutChannel { kind, port, name: channel } = channel;
    let mut connection = FanoutConnection::new(*port)?;
    let mut count = 0u64;
    while !totals.stop.load(Ordering::Relaxed) {
        let (path, body) = match kind {
            ServerKind::Towpath => (
                format!("/feeds/{channel}/items"),
                format!("{{\"id\":\"p{number}-{count}\",\"item\":{{\"title\":\"{:x<BYTES$}\"}}}}", ""),
            ),
            ServerKind::Nchan => (
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

fn follow(channel: &FanoutChannel, _: usize, totals: &Totals) -> Result<()> {
    let FanoutChannel { kind, port, name: channel } = channel;
    let mut connection = FanoutConnection::new(*port)?;
    let mut expected = [0u64; PUBLISHERS];
    let mut position = String::new();
    let mut stopped: Option<Instant> = None;
    loop {
        // Polls of one second, so that followers notice the end of the run soon.
        let request = match kind {
            ServerKind::Towpath => format!(
                "GET /feeds/{channel}/items?order=modified&max=1000&timeout=1{position} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            ),
            ServerKind::Nchan => {
                format!("GET /fan/sub?channel={channel} HTTP/1.1\r\nHost: localhost\r\n{position}\r\n")
            }
        };
        let (head, body) = connection.ask(&request)?;
        count_messages(body, &mut expected, totals);
        // A poll that timed out has no position: the one before stays.
        if let Some(next) = after(*kind, head, body) {
            position = next;
        }
        if totals.stop.load(Ordering::Relaxed) {
            let all = expected.iter().sum::<u64>() >= totals.published.load(Ordering::Relaxed);
            if all || stopped.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Ok(());
            }
        }
    }
}

/// Query of the next request, which continues after a response; `None` if the response has no new position.
fn after(kind: ServerKind, head: &str, body: &str) -> Option<String> {
    if let ServerKind::Towpath = kind {
        return between(body, "\"last_cursor\":\"", "\"").map(|cursor| format!("&since=cursor:{cursor}"));
    }
    let (etag, modified) =
        (between(head, "\r\nEtag: ", "\r\n")?, between(head, "\r\nLast-Modified: ", "\r\n")?);
    Some(format!("If-None-Match: {etag}\r\nIf-Modified-Since: {modified}\r\n"))
}

/// Counts the messages of a response, and those out of order.
fn count_messages(body: &str, expected: &mut [u64; PUBLISHERS], totals: &Totals) {
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

/// A keep-alive connection, and its last response.
struct FanoutConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl FanoutConnection {
    fn new(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Sends a request; returns the response's head and body.
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

/// Offsets at which head and body of a response end, once the head is complete.
fn whole(buffer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(end) = buffer.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&buffer[..end + 4]).to_ascii_lowercase();
    // Nchan ends a long poll without messages by 408.
    if !head.starts_with("http/1.1 20") && !head.starts_with("http/1.1 408") {
        return Err(Error::other(head));
    }
    let length = between(&head, "\r\ncontent-length: ", "\r\n").and_then(|n| n.trim().parse().ok());
    Ok(Some((end + 4, end + 4 + length.unwrap_or(0))))
}
