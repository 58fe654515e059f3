//! A server that answers with scripted bytes, right or wrong, and remembers what it was asked.

#![allow(dead_code, unreachable_pub, reason = "several tests share it, each with what it needs")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// One step of an answer.
#[derive(Clone)]
pub enum Step {
    /// Sends bytes.
    Send(Vec<u8>),
    /// Sends nothing for a while.
    Pause(Duration),
    /// Sends the bytes again and again until the peer goes away.
    Flood(Vec<u8>),
    /// Does something beside.
    Do(Arc<dyn Fn() + Send + Sync>),
    /// Closes the connection.
    Close,
}

/// What a server does with a request: its first line, its head, its body.
pub type Script = dyn Fn(&Asked) -> Vec<Step> + Send + Sync;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub path: String,
    /// The whole head, in lower case.
    pub head: String,
    pub body: Vec<u8>,
    /// Which connection brought it, counted from 0.
    pub connection: usize,
}

/// A scripted server on a free port of the loopback.
pub struct RawServer {
    pub base: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    accepting: JoinHandle<()>,
}

impl RawServer {
    pub async fn start(script: impl Fn(&Asked) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (script, log): (Arc<Script>, _) = (Arc::new(script), Arc::clone(&asked));
        let accepting = tokio::spawn(async move {
            for connection in 0.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                // Heads and bodies are sent apart; neither waits for the other's acknowledgement.
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(stream, connection, Arc::clone(&script), Arc::clone(&log)));
            }
        });
        Self { base, asked, accepting }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(mut stream: TcpStream, connection: usize, script: Arc<Script>, log: Arc<Mutex<Vec<Asked>>>) {
    while let Some(asked) = read_request(&mut stream, connection).await {
        log.lock().unwrap().push(asked.clone());
        for step in script(&asked) {
            if !play(&mut stream, step).await {
                return;
            }
        }
    }
}

/// Whether the connection goes on.
async fn play(stream: &mut TcpStream, step: Step) -> bool {
    match step {
        Step::Send(bytes) => stream.write_all(&bytes).await.is_ok(),
        Step::Pause(wait) => {
            tokio::time::sleep(wait).await;
            true
        }
        Step::Do(something) => {
            something();
            true
        }
        Step::Flood(bytes) => {
            while stream.write_all(&bytes).await.is_ok() {}
            false
        }
        Step::Close => false,
    }
}

async fn read_request(stream: &mut TcpStream, connection: usize) -> Option<Asked> {
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
    Some(Asked { method, path, head, body: bytes[end..].to_vec(), connection })
}

/// Bytes to send.
pub fn send(bytes: impl AsRef<[u8]>) -> Step {
    Step::Send(bytes.as_ref().to_vec())
}

/// A whole answer with its length.
pub fn answer(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<Step> {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    vec![send(head), send(body)]
}

/// A redirect.
pub fn redirect(status: u16, target: &str) -> Vec<Step> {
    answer(&format!("{status} Elsewhere"), &format!("Location: {target}\r\n"), "moved")
}
