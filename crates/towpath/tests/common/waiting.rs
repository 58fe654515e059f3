//! Clients of long polls, and the server's metrics of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PATIENCE, TestServer};

pub fn publish(server: &TestServer, feed: &str, lines: &[Value]) {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// A put that changes its item, however often it was published before.
pub fn put(id: &str) -> Value {
    static PUTS: AtomicUsize = AtomicUsize::new(0);
    let number = PUTS.fetch_add(1, Ordering::Relaxed);
    json!({ "id": id, "item": { "title": format!("title of {id}"), "summary": format!("put {number}") } })
}

pub fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// Value of a server's metric.
pub fn metric(server: &TestServer, name: &str) -> u64 {
    let text = server.get("/metrics").text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

pub fn waiters(server: &TestServer) -> u64 {
    metric(server, "towpath_waiters")
}

pub fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Connection that sends requests, and reads the responses one by one.
pub struct PollClient(pub TcpStream, pub Vec<u8>);

impl PollClient {
    pub fn new(server: &TestServer) -> Self {
        let stream = TcpStream::connect(server.base.strip_prefix("http://").unwrap()).unwrap();
        // A missing response fails the test instead of blocking it for ever.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream, Vec::new())
    }

    pub fn send(&mut self, path: &str, headers: &str) {
        // In a single write.
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        self.0.write_all(request.as_bytes()).unwrap();
    }

    pub fn read_until(&mut self, done: impl Fn(&str) -> bool) -> String {
        loop {
            let text = String::from_utf8_lossy(&self.1).into_owned();
            if done(&text) {
                return text;
            }
            let mut chunk = [0; 4096];
            let count = self.0.read(&mut chunk).unwrap();
            assert!(count > 0, "cut off after {text:?}");
            self.1.extend_from_slice(&chunk[..count]);
        }
    }

    /// Reads the next response: its head in lower case, and its body.
    pub fn answer(&mut self) -> (String, Value) {
        let bytes = self.answer_bytes();
        let (head, body) = bytes.split_once("\r\n\r\n").unwrap();
        (head.to_ascii_lowercase(), serde_json::from_str(body).unwrap())
    }

    /// Reads the next response as text.
    pub fn answer_bytes(&mut self) -> String {
        let text = self.read_until(|text| text.contains("\r\n\r\n"));
        let (head, _) = text.split_once("\r\n\r\n").unwrap();
        let length: usize = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned))
            .unwrap_or_else(|| panic!("no length: {head}"))
            .parse()
            .unwrap();
        let end = head.len() + 4 + length;
        self.read_until(|text| text.len() >= end);
        String::from_utf8(self.1.drain(..end).collect()).unwrap()
    }
}
