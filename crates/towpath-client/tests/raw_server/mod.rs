//! A server that responds with scripted bytes, valid or not, and records its requests.

#![allow(dead_code, unreachable_pub, reason = "several tests share it, each with what it needs")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A step of a scripted response.
#[derive(Clone)]
pub enum ScriptStep {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Pauses.
    Pause(Duration),
    /// Repeats the bytes until the peer disconnects.
    Flood(Vec<u8>),
    /// Runs a side effect.
    Do(Arc<dyn Fn() + Send + Sync>),
    /// Closes the connection.
    Close,
}

/// Maps a request to the steps of its response.
pub type Script = dyn Fn(&ReceivedRequest) -> Vec<ScriptStep> + Send + Sync;

/// A request as received.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    /// The whole head, in lower case.
    pub head: String,
    pub body: Vec<u8>,
    /// Number of its connection, counted from 0.
    pub connection: usize,
}

/// A scripted server on a free port of the loopback.
pub struct RawServer {
    pub base: String,
    asked: Arc<Mutex<Vec<ReceivedRequest>>>,
    accepting: JoinHandle<()>,
}

impl RawServer {
    pub async fn start(script: impl Fn(&ReceivedRequest) -> Vec<ScriptStep> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (script, log): (Arc<Script>, _) = (Arc::new(script), Arc::clone(&asked));
        let accepting = tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                // Heads and bodies are separate writes: with Nagle's algorithm the second waits for the first one's ACK.
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(stream, connection, Arc::clone(&script), Arc::clone(&log)));
            }
        });
        Self { base, asked, accepting }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn asked(&self) -> Vec<ReceivedRequest> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    script: Arc<Script>,
    log: Arc<Mutex<Vec<ReceivedRequest>>>,
) {
    while let Some(asked) = read_request(&mut stream, connection).await {
        log.lock().unwrap().push(asked.clone());
        for step in script(&asked) {
            // The rest of the script is dropped with the connection.
            if !play(&mut stream, step).await {
                return;
            }
        }
    }
}

/// Performs a step; returns false if the connection is closed.
async fn play(stream: &mut TcpStream, step: ScriptStep) -> bool {
    match step {
        ScriptStep::Send(bytes) => stream.write_all(&bytes).await.is_ok(),
        ScriptStep::Pause(wait) => {
            tokio::time::sleep(wait).await;
            true
        }
        ScriptStep::Do(something) => {
            something();
            true
        }
        ScriptStep::Flood(bytes) => {
            while stream.write_all(&bytes).await.is_ok() {}
            false
        }
        ScriptStep::Close => false,
    }
}

async fn read_request(stream: &mut TcpStream, connection: usize) -> Option<ReceivedRequest> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let head = text.to_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    let length: usize = length.map_or(0, |n| n.parse().unwrap());
    while bytes.len() < end + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let mut words = text.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(ReceivedRequest { method, path, head, body: bytes[end..].to_vec(), connection })
}

/// Bytes to send.
pub fn send(bytes: impl AsRef<[u8]>) -> ScriptStep {
    ScriptStep::Send(bytes.as_ref().to_vec())
}

/// A complete response with its Content-Length.
pub fn answer(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<ScriptStep> {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    vec![send(head), send(body)]
}

/// A redirect.
pub fn redirect(status: u16, target: &str) -> Vec<ScriptStep> {
    answer(&format!("{status} Elsewhere"), &format!("Location: {target}\r\n"), "moved")
}
