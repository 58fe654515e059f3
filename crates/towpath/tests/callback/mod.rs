//! Callback server of a subscriber: answers verifications and accepts deliveries, as configured, and records them.

pub mod hub;
pub mod push_follow;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::PATIENCE;

/// A received request.
#[derive(Debug, Clone)]
pub struct CallbackRequest {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub at: Instant,
}

impl CallbackRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn argument(&self, name: &str) -> Option<String> {
        let mut pairs = url::form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Ids of the delivered items, in whichever format.
    pub fn ids(&self) -> Vec<String> {
        let items = self.json()["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    }

    pub fn is_delivery(&self) -> bool {
        self.method == "POST"
    }
}

/// Response: status, further header lines, body. Header lines may have a length of their own, which need not be true.
pub type CallbackReply = (u16, String, Vec<u8>);

/// Behaves as a subscriber should: echoes challenges and accepts deliveries.
pub fn good(call: &CallbackRequest) -> CallbackReply {
    match call.argument("hub.challenge") {
        Some(challenge) if call.method == "GET" => (200, String::new(), challenge.into_bytes()),
        _ => (200, String::new(), Vec::new()),
    }
}

/// Callback server on a free loopback port.
pub struct CallbackServer {
    pub base: String,
    calls: Arc<Mutex<Vec<CallbackRequest>>>,
    stop: Arc<AtomicBool>,
}

impl CallbackServer {
    pub fn start(answer: impl Fn(&CallbackRequest) -> CallbackReply + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1", answer)
    }

    /// Starts a server at another loopback address.
    pub fn start_at(
        address: &str,
        answer: impl Fn(&CallbackRequest) -> CallbackReply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (calls, stop, answer) = (Arc::default(), Arc::new(AtomicBool::new(false)), Arc::new(answer));
        let (kept, stopped) = (Arc::clone(&calls), Arc::clone(&stop));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (calls, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                std::thread::spawn(move || drop(serve(stream.unwrap(), &calls, &*answer)));
            }
        });
        Self { base, calls, stop }
    }

    pub fn good() -> Self {
        Self::start(good)
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn calls(&self) -> Vec<CallbackRequest> {
        self.calls.lock().unwrap().clone()
    }

    pub fn deliveries(&self) -> Vec<CallbackRequest> {
        self.calls().into_iter().filter(CallbackRequest::is_delivery).collect()
    }

    /// Waits until the requests are as `wanted`, and returns them.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&[CallbackRequest]) -> bool) -> Vec<CallbackRequest> {
        let end = Instant::now() + PATIENCE;
        loop {
            let calls = self.calls();
            if wanted(&calls) {
                return calls;
            }
            assert!(Instant::now() < end, "never {what}: {calls:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn wait_for_deliveries(&self, count: usize) -> Vec<CallbackRequest> {
        let is_enough =
            |calls: &[CallbackRequest]| calls.iter().filter(|call| call.is_delivery()).count() >= count;
        let calls = self.wait_for(&format!("{count} deliveries"), is_enough);
        calls.into_iter().filter(CallbackRequest::is_delivery).collect()
    }
}

impl Drop for CallbackServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The accepting thread sees `stop` only when a connection wakes it.
        let _ = TcpStream::connect(self.base.strip_prefix("http://").unwrap());
    }
}

fn serve(
    stream: TcpStream,
    calls: &Mutex<Vec<CallbackRequest>>,
    answer: &(impl Fn(&CallbackRequest) -> CallbackReply + ?Sized),
) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let Some(call) = read(&mut reader)? else { return Ok(()) };
        calls.lock().unwrap().push(call.clone());
        let (status, headers, body) = answer(&call);
        let length = if headers.contains("Content-Length") || headers.contains("Transfer-Encoding") {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        writer.write_all(format!("HTTP/1.1 {status} Said\r\n{headers}{length}\r\n").as_bytes())?;
        writer.write_all(&body)?;
        let is_last = call.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if is_last || headers.contains("Connection: close") {
            return Ok(());
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<CallbackRequest>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.parse().unwrap());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    Ok(Some(CallbackRequest { method, path, query, headers, body, at: Instant::now() }))
}
