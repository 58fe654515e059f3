//! HTTP/2 clients that give no windows, open many streams, cancel them, or name another host.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::Request;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;

use crate::abuse::size;
use crate::abuse::tls::{curl, write_certificate};
use crate::common::{PATIENCE, TestFolder, TestServer, wait_until};

const CONFIG: &str = "[server]\nrate_grace = \"1s\"\n[server.tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n\
    [[feed]]\nid = \"notes\"\n";

/// A client with one connection.
struct Client {
    requests: SendRequest<Bytes>,
    base: String,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    /// Connects with windows of so many bytes for each response.
    async fn connect(dir: &TestFolder, server: &TestServer, window: u32) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(dir.path("trusted.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut tls = tls.unwrap().with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let address = server.base.strip_prefix("https://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(64 << 20);
        let (requests, connection) = builder.handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        Self { requests, base: server.base.clone(), connection }
    }

    async fn send(&self, request: Request<()>) -> ResponseFuture {
        let mut requests = self.requests.clone().ready().await.unwrap();
        requests.send_request(request, true).unwrap().0
    }

    async fn get(&self, path: &str) -> ResponseFuture {
        self.send(Request::get(format!("{}{path}", self.base)).body(()).unwrap()).await
    }

    async fn status(&self, request: Request<()>) -> u16 {
        self.send(request).await.await.unwrap().status().as_u16()
    }
}

/// Reads a body, and gives the windows back.
async fn read(mut body: RecvStream) -> Result<usize, h2::Error> {
    let mut length = 0;
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        length += chunk.len();
        body.flow_control().release_capacity(chunk.len())?;
    }
    Ok(length)
}

fn start(dir: &TestFolder) -> TestServer {
    write_certificate(dir);
    dir.serve()
}

fn put(dir: &TestFolder, server: &TestServer, id: &str, length: usize) {
    let content: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(length).collect();
    dir.write("content", &content);
    let file = format!("@{}", dir.path("content").display());
    let args = ["--request", "PUT", "--fail", "--data-binary", &file, "--output", "/dev/null"];
    let status = curl(dir, server, &format!("/feeds/notes/items/{id}"), &args).status().unwrap();
    assert!(status.success());
}

fn metric(dir: &TestFolder, server: &TestServer, name: &str) -> u64 {
    let output = curl(dir, server, "/metrics", &["--http1.1"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime
        .unwrap()
        .block_on(async { tokio::time::timeout(PATIENCE * 2, test).await.expect("took too long") });
}

#[test]
fn an_http2_client_that_gives_no_window_is_cut() {
    let dir = TestFolder::new(CONFIG);
    let server = start(&dir);
    put(&dir, &server, "large", 3 << 20);
    put(&dir, &server, "small", 100);
    run(async {
        // The second gives a window for all bytes of the small one but the last.
        for window in [0, 99] {
            let client = Client::connect(&dir, &server, window).await;
            let mut unread = Vec::new();
            for n in 0..size(20, 90) {
                let item = if n % 2 == 0 { "small" } else { "large" };
                let response = client.get(&format!("/feeds/notes/items/{item}")).await.await.unwrap();
                assert_eq!(response.status(), 200);
                unread.push(response.into_body());
            }
            // On the same connection, a client that reads is served meanwhile.
            let honest = client.get("/feeds/notes/items/large").await.await;
            if window > 0 {
                assert_eq!(read(honest.unwrap().into_body()).await.unwrap(), 3 << 20);
            }
            for mut body in unread {
                let ended = loop {
                    match body.data().await {
                        Some(Ok(_)) => {}
                        ended => break ended,
                    }
                };
                let error = ended.expect("the body did not end").unwrap_err();
                assert_eq!(error.reason(), Some(Reason::CANCEL), "{error}");
            }
            // The connection goes on.
            let request = Request::get(format!("{}/healthz.json", server.base)).body(()).unwrap();
            assert_eq!(client.status(request).await, 200);
        }
    });
}

#[test]
fn unread_http2_streams_have_a_limit_in_all() {
    // A grace of a minute: the limit, not time, has to keep memory down.
    let config = "[server]\nrate_grace = \"1m\"\ncache_mib = 1\nresponse_mib = 4\n[server.tls]\n\
        cert = \"cert.pem\"\nkey = \"key.pem\"\n[[feed]]\nid = \"notes\"\n";
    let dir = TestFolder::new(config);
    let server = start(&dir);
    (0..8).for_each(|n| put(&dir, &server, &n.to_string(), 100 << 10));
    run(async {
        let client = Client::connect(&dir, &server, 0).await;
        let (mut sent, mut refused, mut unread) = (0, 0, Vec::new());
        for n in 0..40 {
            // Each page differs in a few bytes, so no two can be shared.
            let page = client.get(&format!("/feeds/notes/items?max=100&callback=f{n}")).await;
            match page.await.map(|response| (response.status().as_u16(), response.into_body())) {
                Ok((503, _)) => refused += 1,
                Ok((_, body)) => {
                    sent += 1;
                    unread.push(body);
                }
                // Cut meanwhile.
                Err(_) => {}
            }
        }
        assert!(sent > 0 && refused > 0, "{sent} sent, {refused} refused");
        // Streams without any progress are cut, so an honest client is served soon.
        let path = "/feeds/notes/items?max=100&callback=honest";
        let serves = || {
            let args = ["--http2", "--fail", "--output", "/dev/null"];
            curl(&dir, &server, path, &args).status().unwrap().success()
        };
        tokio::task::block_in_place(|| wait_until("an honest client is served", serves));
    });
}

#[test]
fn one_http2_connection_has_a_limited_number_of_streams() {
    let dir = TestFolder::new(CONFIG);
    let server = start(&dir);
    put(&dir, &server, "a", 10);
    run(async {
        let client = Client::connect(&dir, &server, 65_535).await;
        let page = client.get("/feeds/notes/items?max=1").await.await.unwrap();
        assert_eq!(page.status(), 200);
        assert_eq!(client.requests.current_max_send_streams(), 100);
        let body = read_all(page.into_body()).await;
        let page: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let path =
            format!("/feeds/notes/items?timeout=60&since=cursor:{}", page["last_cursor"].as_str().unwrap());
        let mut polls = Vec::new();
        for _ in 0..99 {
            polls.push(client.get(&path).await);
        }
        let waiters = || metric(&dir, &server, "towpath_waiters");
        tokio::task::block_in_place(|| wait_until("all wait", || waiters() == 99));
        // One append answers all.
        tokio::task::block_in_place(|| put(&dir, &server, "b", 10));
        let mut last = serde_json::Value::Null;
        for poll in polls {
            let response = poll.await.unwrap();
            assert_eq!(response.status(), 200);
            last = serde_json::from_slice(&read_all(response.into_body()).await).unwrap();
            assert!(last.to_string().contains("\"b\""), "{last}");
        }
        // Those that wait end with their connection.
        let cursor = last["last_cursor"].as_str().unwrap();
        let path = format!("/feeds/notes/items?timeout=60&since=cursor:{cursor}");
        let _polls = [client.get(&path).await, client.get(&path).await];
        tokio::task::block_in_place(|| wait_until("both wait", || waiters() == 2));
        client.connection.abort();
        tokio::task::block_in_place(|| wait_until("nobody waits", || waiters() == 0));
    });
}

async fn read_all(mut body: RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        all.extend_from_slice(&chunk);
    }
    all
}

#[test]
fn requests_that_are_cancelled_at_once_end_the_connection() {
    let dir = TestFolder::new(CONFIG);
    let server = start(&dir);
    put(&dir, &server, "a", 10);
    run(async {
        let client = Client::connect(&dir, &server, 65_535).await;
        let mut requests = client.requests.clone();
        for _ in 0..20_000 {
            let Ok(ready) = requests.clone().ready().await else { break };
            requests = ready;
            let request = Request::get(format!("{}/feeds/notes/items?max=1", server.base)).body(()).unwrap();
            let Ok((response, mut stream)) = requests.send_request(request, true) else { break };
            stream.send_reset(Reason::CANCEL);
            drop(response);
        }
        drop((requests, client.requests));
        let ended = tokio::time::timeout(Duration::from_secs(30), client.connection).await;
        ended.expect("the connection is open").unwrap().ok();
    });
    assert!(dir.log().is_empty() || !dir.log().contains("panicked"), "{}", dir.log());
    assert_eq!(metric(&dir, &server, "towpath_connections"), 1);
}

#[test]
fn http2_requests_are_checked_as_those_of_http1() {
    let dir = TestFolder::new(CONFIG);
    let server = start(&dir);
    put(&dir, &server, "a", 10);
    run(async {
        let client = Client::connect(&dir, &server, 65_535).await;
        let get = |uri: String| Request::get(uri);
        let own = format!("{}/feeds/notes/items/a", server.base);
        let host = server.base.strip_prefix("https://").unwrap();
        assert_eq!(client.status(get(own.clone()).body(()).unwrap()).await, 200);
        // DNS rebinding, in the two places where a host can be named.
        let rebound = "https://evil.example/feeds/notes/items/a";
        assert_eq!(client.status(get(rebound.into()).body(()).unwrap()).await, 403);
        assert_eq!(client.status(get(rebound.into()).header("host", host).body(()).unwrap()).await, 400);
        let request = get(own.clone()).header("host", "evil.example");
        assert_eq!(client.status(request.body(()).unwrap()).await, 400);
        for (name, value) in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
            assert_eq!(client.status(get(own.clone()).header(name, value).body(()).unwrap()).await, 403);
        }
        // A page of this server itself.
        let request = get(own.clone()).header("origin", server.base.clone());
        assert_eq!(client.status(request.body(()).unwrap()).await, 200);
        let long = get(own).header("x-filler", "x".repeat(40_000)).body(()).unwrap();
        assert_eq!(client.status(long).await, 431);
    });
}
