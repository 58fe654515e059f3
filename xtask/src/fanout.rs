//! Client of the long-poll benchmark: followers and publishers on one channel, as fast as the server allows.

use std::io::{Error, ErrorKind, Read, Result, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FOLLOWERS: usize = 100;
/// Time that followers rest when no answer is there, so that publishers have the core.
const REST: Duration = Duration::from_micros(200);
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
    DurableStreams,
}

/// FanoutChannel of the messages.
#[derive(Debug)]
struct FanoutChannel {
    kind: ServerKind,
    port: u16,
    /// Name of the feed, channel or stream.
    name: String,
    /// Time between two messages of a publisher; `None`: each follows the acknowledgement of the one before.
    interval: Option<Duration>,
    /// Start of the run, from which messages count their time.
    begun: Instant,
}

#[derive(Debug, Default)]
struct Totals {
    published: AtomicU64,
    delivered: AtomicU64,
    out_of_order: AtomicU64,
    /// Ends the publishers.
    stop: AtomicBool,
    /// Set when `published` changes no more: followers end once they have all of it.
    complete: AtomicBool,
}

/// Publishes to followers for so many seconds, and prints their totals and the latencies as JSON.
///
/// `more` has the number of followers [default: 100], and the messages per second of all publishers. Without a rate they
/// publish as fast as the server acknowledges.
pub(crate) fn run(
    kind: &str,
    port: &str,
    name: &str,
    seconds: &str,
    more: &[&str],
) -> std::result::Result<(), String> {
    let kind = match kind {
        "towpath" => ServerKind::Towpath,
        "nchan" => ServerKind::Nchan,
        "durable-streams-server" => ServerKind::DurableStreams,
        other => return Err(format!("{other}: towpath, nchan or durable-streams-server")),
    };
    let port: u16 = port.parse().map_err(|e| format!("{port}: {e}"))?;
    let seconds: u64 = seconds.parse().map_err(|e| format!("{seconds}: {e}"))?;
    let count =
        more.first().map_or(Ok(FOLLOWERS), |count| count.parse().map_err(|e| format!("{count}: {e}")))?;
    let rate = more.get(1).map(|rate| rate.parse::<f64>().map_err(|e| format!("{rate}: {e}"))).transpose()?;
    let interval = rate.map(|rate| Duration::from_secs_f64(PUBLISHERS as f64 / rate));
    let channel =
        Arc::new(FanoutChannel { kind, port, name: name.to_owned(), interval, begun: Instant::now() });
    let totals = Arc::new(Totals::default());
    let followers = {
        let (channel, totals) = (channel.clone(), totals.clone());
        std::thread::spawn(move || follow(&channel, count, &totals))
    };
    // All followers park first: a message before its reader would count as lost.
    std::thread::sleep(Duration::from_millis(500) + Duration::from_millis(2) * count as u32);
    let begun = Instant::now();
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|number| {
            let (channel, totals) = (channel.clone(), totals.clone());
            std::thread::spawn(move || publish(&channel, number, &totals))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(seconds));
    // Read before the rest is caught up, so the rate is that of the measured seconds.
    let delivered = totals.delivered.load(Ordering::Relaxed);
    let took = begun.elapsed().as_secs_f64();
    totals.stop.store(true, Ordering::Relaxed);
    for publisher in publishers {
        publisher.join().map_err(|_| "a publisher failed")?.map_err(|e| format!("publishing: {e}"))?;
    }
    totals.complete.store(true, Ordering::Relaxed);
    let latencies = followers.join().map_err(|_| "the followers failed")?;
    let latencies = latencies.map_err(|e| format!("following: {e}"))?;
    print_totals(&totals, delivered as f64 / took, latencies);
    Ok(())
}

fn print_totals(totals: &Totals, deliveries_per_second: f64, mut latencies: Vec<u32>) {
    latencies.sort_unstable();
    // The smallest latency that is not below this share of all.
    let percentile = |share: f64| {
        let at = (latencies.len() as f64 * share).ceil() as usize;
        latencies.get(at.saturating_sub(1)).copied().unwrap_or_default()
    };
    println!(
        "{{\"published\": {}, \"delivered\": {}, \"out_of_order\": {}, \"deliveries_per_second\": \
         {deliveries_per_second:.0}, \"p50_us\": {}, \"p99_us\": {}, \"p999_us\": {}}}",
        totals.published.load(Ordering::Relaxed),
        totals.delivered.load(Ordering::Relaxed),
        totals.out_of_order.load(Ordering::Relaxed),
        percentile(0.5),
        percentile(0.99),
        percentile(0.999),
    );
}

fn publish(channel: &FanoutChannel, number: usize, totals: &Totals) -> Result<()> {
    let FanoutChannel { kind, port, name, interval, begun } = channel;
    let mut connection = FanoutConnection::new(*port)?;
    let started = Instant::now();
    let mut count = 0u64;
    loop {
        // The time at which the message is due, also if the publisher is late: a slow server must not make its own
        // latencies smaller by slowing its publishers.
        let due = interval.map_or_else(Instant::now, |interval| {
            started + interval.mul_f64(count as f64 + number as f64 / PUBLISHERS as f64)
        });
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if totals.stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("p{number}-{count}-{}", due.saturating_duration_since(*begun).as_micros());
        let (path, kind, body) = match kind {
            ServerKind::Towpath => (
                format!("/feeds/{name}/items"),
                "application/x-ndjson",
                format!("{{\"id\":\"{id}\",\"item\":{{\"title\":\"{:x<BYTES$}\"}}}}", ""),
            ),
            ServerKind::Nchan => (
                format!("/fan/pub?channel={name}"),
                "application/json",
                format!("{{\"id\":\"{id}\",\"title\":\"{:x<BYTES$}\"}}", ""),
            ),
            ServerKind::DurableStreams => (
                format!("/v1/stream/{name}"),
                "text/plain",
                format!("{{\"id\":\"{id}\",\"title\":\"{:x<BYTES$}\"}}", ""),
            ),
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        connection.ask(&(head + &body))?;
        count += 1;
        totals.published.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Follows until all messages are there; returns the microseconds from each message's time to its arrival.
///
/// One thread serves all followers: a thread for each would spend more time on switching than a server on an answer.
fn follow(channel: &FanoutChannel, count: usize, totals: &Totals) -> Result<Vec<u32>> {
    let mut waiting = Vec::new();
    for _ in 0..count {
        let mut connection = FanoutConnection::new(channel.port)?;
        connection.send(&channel.poll(&channel.start()))?;
        connection.stream.set_nonblocking(true)?;
        waiting.push(Follower { connection, position: channel.start(), expected: [0; PUBLISHERS] });
    }
    let (mut latencies, mut completed) = (Vec::new(), None::<Instant>);
    while !waiting.is_empty() {
        let mut is_idle = true;
        let is_complete = totals.complete.load(Ordering::Relaxed);
        let is_late = is_complete && completed.get_or_insert_with(Instant::now).elapsed() > PATIENCE;
        let mut next = 0;
        while let Some(follower) = waiting.get_mut(next) {
            if follower.receive(channel, totals, &mut latencies)? {
                is_idle = false;
                if is_late || (is_complete && follower.has_all(totals)) {
                    waiting.swap_remove(next);
                    continue;
                }
                follower.connection.send(&channel.poll(&follower.position))?;
            }
            next += 1;
        }
        if is_idle {
            std::thread::sleep(REST);
        }
    }
    Ok(latencies)
}

impl FanoutChannel {
    /// Position before the first message.
    fn start(&self) -> String {
        match self.kind {
            ServerKind::Towpath | ServerKind::Nchan => String::new(),
            ServerKind::DurableStreams => "-1".to_owned(),
        }
    }

    /// Long poll from a position. Towpath's and Nchan's take one second, so that followers notice the end of the run
    /// soon; the other server's time is part of its configuration.
    fn poll(&self, position: &str) -> String {
        let name = &self.name;
        match self.kind {
            ServerKind::Towpath => format!(
                "GET /feeds/{name}/items?order=modified&max=1000&timeout=1{position} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            ),
            ServerKind::Nchan => {
                format!("GET /fan/sub?channel={name} HTTP/1.1\r\nHost: localhost\r\n{position}\r\n")
            }
            ServerKind::DurableStreams => format!(
                "GET /v1/stream/{name}?offset={position}&live=long-poll HTTP/1.1\r\nHost: localhost\r\n\r\n"
            ),
        }
    }
}

/// Position after a response, as the next request has it; `None` if the response has no new one.
fn after(kind: ServerKind, head: &str, body: &str) -> Option<String> {
    match kind {
        ServerKind::Towpath => {
            between(body, "\"last_cursor\":\"", "\"").map(|cursor| format!("&since=cursor:{cursor}"))
        }
        ServerKind::Nchan => {
            let (etag, modified) =
                (between(head, "\r\nEtag: ", "\r\n")?, between(head, "\r\nLast-Modified: ", "\r\n")?);
            Some(format!("If-None-Match: {etag}\r\nIf-Modified-Since: {modified}\r\n"))
        }
        ServerKind::DurableStreams => between(head, "\r\nstream-next-offset: ", "\r\n").map(str::to_owned),
    }
}

/// A follower, which waits for the answer to a long poll.
struct Follower {
    connection: FanoutConnection,
    position: String,
    /// Number of the next message of each publisher.
    expected: [u64; PUBLISHERS],
}

impl Follower {
    /// Takes an answer, if it is there, and counts its messages and those out of order.
    fn receive(
        &mut self,
        channel: &FanoutChannel,
        totals: &Totals,
        latencies: &mut Vec<u32>,
    ) -> Result<bool> {
        let Some((head, body)) = self.connection.receive()? else { return Ok(false) };
        let now = channel.begun.elapsed().as_micros() as u64;
        let (mut rest, mut count, mut wrong) = (body, 0, 0);
        while let Some(at) = rest.find("\"id\":\"p") {
            rest = &rest[at + 7..];
            let mut parts = rest.split('"').next().unwrap_or_default().split('-');
            let mut next = || parts.next()?.parse::<u64>().ok();
            let (Some(publisher), Some(number), Some(due)) = (next(), next(), next()) else { continue };
            let Some(expected) = self.expected.get_mut(publisher as usize) else { continue };
            wrong += u64::from(*expected != number);
            *expected = number + 1;
            latencies.push(now.saturating_sub(due).try_into().unwrap_or(u32::MAX));
            count += 1;
        }
        totals.delivered.fetch_add(count, Ordering::Relaxed);
        totals.out_of_order.fetch_add(wrong, Ordering::Relaxed);
        // A poll that timed out has no position: the one before stays.
        if let Some(next) = after(channel.kind, head, body) {
            self.position = next;
        }
        Ok(true)
    }

    fn has_all(&self, totals: &Totals) -> bool {
        self.expected.iter().sum::<u64>() >= totals.published.load(Ordering::Relaxed)
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let begin = text.find(before)? + before.len();
    text[begin..].split(after).next()
}

/// A keep-alive connection, and its last response.
struct FanoutConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Offsets at which head and body of the response end, once its head is there.
    end: Option<(usize, usize)>,
}

impl FanoutConnection {
    fn new(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new(), end: None })
    }

    fn send(&mut self, request: &str) -> Result<()> {
        self.buffer.clear();
        self.end = None;
        self.stream.write_all(request.as_bytes())
    }

    /// Returns the response's head and body, or `None` if they are not there yet.
    fn receive(&mut self) -> Result<Option<(&str, &str)>> {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.buffer.extend_from_slice(&piece[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            }
            if self.end.is_none() {
                self.end = whole(&self.buffer)?;
            }
            if let Some((head, all)) = self.end.filter(|(_, all)| self.buffer.len() >= *all) {
                let text =
                    |bytes| std::str::from_utf8(bytes).map_err(|e| Error::new(ErrorKind::InvalidData, e));
                return Ok(Some((text(&self.buffer[..head])?, text(&self.buffer[head..all])?)));
            }
        }
    }

    /// Sends a request, and waits for its response.
    fn ask(&mut self, request: &str) -> Result<()> {
        self.send(request)?;
        self.receive().map(drop)
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
