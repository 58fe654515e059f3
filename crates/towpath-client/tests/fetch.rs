//! The fetcher with servers that respond correctly, incorrectly, slowly or endlessly.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod raw_server;

use std::io::Write as _;
use std::time::{Duration, Instant};

use http::Method;
use http::header::{AUTHORIZATION, IF_NONE_MATCH};
use raw_server::{RawServer, ReceivedRequest, ScriptStep, answer, redirect, send};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use towpath_client::{
    DiscoverError, FetchOptions, Fetcher, FollowPace, FullResponse, PrivateFetches, Protocol,
    StreamingResponse, Validators, discover,
};
use towpath_proto::follow::{Request, RequestId, TransferError};

const SHORT: Duration = Duration::from_millis(150);

fn fetcher() -> Fetcher {
    // Short, so that tests of timeouts stay quick.
    let stall_timeout = SHORT;
    let private = PrivateFetches::All;
    Fetcher::new(FetchOptions::default().with_stall_timeout(stall_timeout).with_private(private)).unwrap()
}

fn get(url: &str) -> Request {
    Request::get(RequestId(1), url)
}

async fn whole(server: &RawServer, path: &str) -> Result<FullResponse, TransferError> {
    fetcher().fetch_whole(&get(&server.url(path))).await
}

/// Error of a body whose head has arrived.
async fn broken(server: &RawServer, path: &str) -> TransferError {
    let mut fetched = fetcher().fetch(&get(&server.url(path))).await.expect("the head arrives");
    fetched.body.collect().await.expect_err("the body does not")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    coder.write_all(bytes).unwrap();
    coder.finish().unwrap()
}

fn brotli(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut coder = brotli::CompressorWriter::new(&mut out, 4096, 5, 20);
    coder.write_all(bytes).unwrap();
    drop(coder);
    out
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// Text that compresses poorly, so that a truncation falls inside the encoded data.
fn prose() -> Vec<u8> {
    (0..2000_u32)
        .flat_map(|i| format!("line {i} {:x}\n", i.wrapping_mul(2_654_435_761)).into_bytes())
        .collect()
}

#[tokio::test]
async fn a_document_comes_with_its_head() {
    let server = RawServer::start(|_| answer("200 OK", "ETag: \"1\"\r\n", "hello")).await;
    let FullResponse { head, moved_to, body, .. } = whole(&server, "/a?b=c").await.unwrap();
    assert_eq!((head.status, head.header("etag"), &body[..]), (200, Some("\"1\""), &b"hello"[..]));
    assert_eq!(head.url, server.url("/a?b=c"));
    assert_eq!(moved_to, None);
    let asked = &server.asked()[0];
    assert_eq!(asked.path, "/a?b=c");
    assert!(
        asked.head.contains(concat!("user-agent: towpath/", env!("CARGO_PKG_VERSION"))),
        "{}",
        asked.head
    );
    for coding in ["gzip", "br", "zstd"] {
        assert!(asked.head.contains(coding), "{}", asked.head);
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = RawServer::start(|_| answer("200 OK", "", "x")).await;
    let fetcher = fetcher();
    for _ in 0..3 {
        fetcher.fetch_whole(&get(&server.url("/"))).await.unwrap();
    }
    assert!(server.asked().iter().all(|asked| asked.connection == 0));
}

#[tokio::test]
async fn a_connection_closed_between_two_requests_is_replaced() {
    let closing = |asked: &ReceivedRequest| {
        let mut steps = answer("200 OK", "", "x");
        if asked.connection == 0 {
            steps.push(ScriptStep::Close);
        }
        steps
    };
    let server = RawServer::start(closing).await;
    let fetcher = fetcher();
    for _ in 0..2 {
        fetcher.fetch_whole(&get(&server.url("/"))).await.unwrap();
        // Lets the client see the close before it takes the connection from its pool.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn content_codings_are_decoded() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/gzip" => answer("200 OK", "Content-Encoding: gzip\r\n", gzip(&prose())),
        "/br" => answer("200 OK", "Content-Encoding: br\r\n", brotli(&prose())),
        "/zstd" => answer("200 OK", "Content-Encoding: zstd\r\n", zstd(&prose())),
        // RFC 1952, section 2.2: a gzip stream may have several members.
        "/two" => answer("200 OK", "Content-Encoding: gzip\r\n", [gzip(b"one "), gzip(b"two")].concat()),
        "/identity" => answer("200 OK", "Content-Encoding: identity\r\n", "plain"),
        // A registered coding (RFC 9110, 8.4.1.1) that the client never offers.
        _ => answer("200 OK", "Content-Encoding: compress\r\n", "?"),
    })
    .await;
    for path in ["/gzip", "/br", "/zstd"] {
        assert_eq!(whole(&server, path).await.unwrap().body, prose(), "{path}");
    }
    assert_eq!(whole(&server, "/two").await.unwrap().body, "one two");
    assert_eq!(whole(&server, "/identity").await.unwrap().body, "plain");
    let error = broken(&server, "/compress").await;
    assert!(matches!(&error, TransferError::Coding { coding } if coding == "compress"), "{error}");
}

#[tokio::test]
async fn truncated_and_damaged_bodies_are_errors() {
    let cut = |coded: Vec<u8>| coded[..coded.len() / 2].to_vec();
    let server = RawServer::start(move |asked| {
        let mut steps = match asked.path.as_str() {
            "/length" => vec![send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")],
            "/chunked" => {
                vec![send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n10\r\nxx")]
            }
            "/unfinished" => {
                vec![send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n")]
            }
            "/nonsense" => vec![send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nshort\r\n")],
            "/gzip" => answer("200 OK", "Content-Encoding: gzip\r\n", cut(gzip(&prose()))),
            "/br" => answer("200 OK", "Content-Encoding: br\r\n", cut(brotli(&prose()))),
            "/zstd" => answer("200 OK", "Content-Encoding: zstd\r\n", cut(zstd(&prose()))),
            "/not-gzip" => answer("200 OK", "Content-Encoding: gzip\r\n", "this is no gzip at all"),
            "/not-br" => answer("200 OK", "Content-Encoding: br\r\n", [0xff; 64]),
            "/not-zstd" => answer("200 OK", "Content-Encoding: zstd\r\n", "this is no zstd at all"),
            "/crc" => {
                let mut coded = gzip(&prose());
                // The last eight bytes are CRC-32 and length (RFC 1952, 2.3.1): this flips a bit of the CRC.
                let end = coded.len() - 6;
                coded[end] ^= 1;
                answer("200 OK", "Content-Encoding: gzip\r\n", coded)
            }
            other => panic!("{other}"),
        };
        // Without the close the client would wait for the missing bytes and time out.
        steps.push(ScriptStep::Close);
        steps
    })
    .await;
    for path in ["/length", "/chunked", "/unfinished", "/nonsense"] {
        let error = broken(&server, path).await;
        assert!(
            matches!(&error, TransferError::Body(why) if !why.contains("compression")),
            "{path}: {error}"
        );
        // The caller adds the address (`FollowError::Transfer`), so the cause must not repeat it.
        assert!(!error.to_string().contains("http://"), "{path}: {error}");
    }
    for path in ["/gzip", "/br", "/zstd", "/not-gzip", "/not-br", "/not-zstd", "/crc"] {
        let error = broken(&server, path).await;
        assert!(matches!(&error, TransferError::Body(why) if why.contains("compression")), "{path}: {error}");
    }
}

#[tokio::test]
async fn bodies_beyond_the_limit_stop_early() {
    // A decompression bomb: 64 MiB in less than one, so the limit must count decoded bytes.
    let bomb = gzip(&vec![0; 64 << 20]);
    assert!(bomb.len() < 1 << 20);
    let server = RawServer::start(move |asked| match asked.path.as_str() {
        "/bomb" => answer("200 OK", "Content-Encoding: gzip\r\n", &bomb),
        "/announced" => {
            vec![
                send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"),
                ScriptStep::Flood(vec![b'x'; 4096]),
            ]
        }
        "/endless" => {
            vec![send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"), ScriptStep::Flood(vec![b'x'; 4096])]
        }
        _ => answer("200 OK", "", vec![b'x'; 1000]),
    })
    .await;
    let mut request = get("");
    request.max_body = 1000;
    for path in ["/bomb", "/announced", "/endless"] {
        request.url = server.url(path);
        let error = fetcher().fetch_whole(&request).await.unwrap_err();
        assert_eq!(error, TransferError::TooLarge { limit: 1000 }, "{path}");
    }
    request.url = server.url("/fits");
    assert_eq!(fetcher().fetch_whole(&request).await.unwrap().body.len(), 1000);
}

#[tokio::test]
async fn a_silent_server_is_a_timeout() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/silent" => vec![ScriptStep::Pause(Duration::from_secs(30))],
        // Every byte comes in time, the head as a whole does not: a limit per read would never fire.
        "/slow-head" => {
            let letters =
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n";
            let slowly = |letter: char| [send(letter.to_string()), ScriptStep::Pause(SHORT / 3)];
            letters.chars().flat_map(slowly).collect()
        }
        "/stalled" => {
            vec![
                send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
                ScriptStep::Pause(Duration::from_secs(30)),
            ]
        }
        // Each byte beats the stall timeout; only the limit on the whole body ends this.
        "/drip" => {
            let mut steps = vec![send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")];
            steps.extend((0..100).flat_map(|_| [send("x"), ScriptStep::Pause(SHORT / 3)]));
            steps
        }
        other => panic!("{other}"),
    })
    .await;
    let timed_out = |error: TransferError, what: &str| {
        assert!(matches!(&error, TransferError::Timeout(why) if why.contains(what)), "{error}");
    };
    for path in ["/silent", "/slow-head"] {
        let mut request = get(&server.url(path));
        request.patience = SHORT;
        let begun = Instant::now();
        timed_out(fetcher().fetch(&request).await.unwrap_err(), "no answer within 150ms");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    timed_out(broken(&server, "/stalled").await, "stopped for 150ms after 4 bytes");
    let options = FetchOptions::default().with_total_timeout(SHORT).with_private(PrivateFetches::All);
    let mut request = get(&server.url("/drip"));
    request.patience = SHORT;
    timed_out(
        Fetcher::new(options).unwrap().fetch_whole(&request).await.unwrap_err(),
        "not complete in time",
    );
}

/// A follow may work on one piece of a document for longer than the whole document may take.
#[tokio::test]
async fn time_in_which_nobody_reads_does_not_count() {
    let server = RawServer::start(|_| {
        let head = send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
        vec![head, ScriptStep::Pause(Duration::from_secs(3)), send("half")]
    })
    .await;
    let total_timeout = Duration::from_secs(2);
    let options = FetchOptions::default().with_total_timeout(total_timeout).with_private(PrivateFetches::All);
    let mut request = get(&server.url("/"));
    request.patience = SHORT;
    let mut response = Fetcher::new(options).unwrap().fetch(&request).await.unwrap();
    assert_eq!(response.body.chunk().await.unwrap().unwrap(), "half");
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(response.body.chunk().await.unwrap().unwrap(), "half");
    assert_eq!(response.body.chunk().await, Ok(None));
}

#[tokio::test]
async fn connection_errors_name_the_cause() {
    let told = |url: String| async move { fetcher().fetch(&get(&url)).await.unwrap_err() };
    // Bound and dropped at once: a port on which nothing listens.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = told(format!("http://{closed}/")).await;
    assert_eq!(error, TransferError::Connect("the connection was refused".into()));
    let error = told("http://-/".into()).await.to_string();
    assert!(error.contains("host name cannot be resolved"), "{error}");
    for bad in ["", "no address", "ftp://example.com/", "http://", "file:///etc/hostname"] {
        let error = told(bad.into()).await;
        assert!(matches!(error, TransferError::Url(_)), "{bad}: {error}");
    }
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/close" => vec![ScriptStep::Close],
        "/half" => vec![send("HTTP/1.1 200 OK\r\nContent-"), ScriptStep::Close],
        // Another protocol whose server speaks first: an address with the wrong port.
        _ => vec![send("SSH-2.0-OpenSSH_9.2\r\n"), ScriptStep::Close],
    })
    .await;
    for (path, what) in
        [("/close", "closed the connection"), ("/half", "closed the connection"), ("/ssh", "not HTTP")]
    {
        let error = told(server.url(path)).await;
        assert!(matches!(&error, TransferError::Connect(why) if why.contains(what)), "{path}: {error}");
    }
}

/// Error of a request to an https server that handles its first connection with `serve`.
async fn tls_error<F>(serve: impl FnOnce(tokio::net::TcpStream) -> F + Send + 'static) -> String
where
    F: Future<Output = ()> + Send,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { serve(listener.accept().await.unwrap().0).await });
    fetcher().fetch(&get(&url)).await.unwrap_err().to_string()
}

#[tokio::test]
async fn tls_errors_name_the_cause() {
    let plain = |mut stream: tokio::net::TcpStream| async move {
        // Web servers answer so when TLS arrives at their port for plain HTTP.
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    };
    let error = tls_error(plain).await;
    assert!(error.contains("does not speak TLS"), "{error}");

    let closing = |stream: tokio::net::TcpStream| async move { drop(stream) };
    let error = tls_error(closing).await;
    // Unread bytes of the hello turn the close into a reset, if they arrive first.
    assert!(error.contains("closed the connection") || error.contains("reset"), "{error}");

    const UNTRUSTED: Identity =
        (include_bytes!("data/tls/untrusted.der"), include_bytes!("data/tls/untrusted.key.der"));
    const SELF_SIGNED: Identity =
        (include_bytes!("data/tls/self-signed.der"), include_bytes!("data/tls/self-signed.key.der"));
    for (identity, what) in [
        (UNTRUSTED, "signed by an authority that this machine does not trust"),
        (SELF_SIGNED, "signed by itself"),
    ] {
        let handshake = move |stream: tokio::net::TcpStream| async move {
            let accepted = tls_acceptor(identity).accept(stream).await;
            assert!(accepted.is_err(), "the fetcher refuses");
        };
        let error = tls_error(handshake).await;
        assert!(error.contains(what), "{error}");
    }
}

/// Self-signed certificate for "localhost", with its key.
type Identity = (&'static [u8], &'static [u8]);

fn tls_acceptor((certificate, key): Identity) -> tokio_rustls::TlsAcceptor {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let certificate = CertificateDer::from(certificate);
    let key = PrivateKeyDer::try_from(key).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(vec![certificate], key));
    tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config.unwrap()))
}

#[tokio::test]
async fn redirects_are_followed_and_permanent_ones_reported() {
    let other = RawServer::start(|_| answer("200 OK", "", "other")).await;
    let away = other.url("/x");
    let server = RawServer::start(move |asked| match asked.path.as_str() {
        "/permanent" => redirect(301, "/new/place"),
        "/new/place" => redirect(308, "newer?q=1"),
        "/new/newer?q=1" => redirect(302, "/today"),
        "/temporary" => redirect(307, "/permanent"),
        "/away" => redirect(302, &away),
        _ => answer("200 OK", "", asked.method.as_bytes()),
    })
    .await;
    let got = whole(&server, "/permanent").await.unwrap();
    assert_eq!(got.head.url, server.url("/today"));
    // Permanent only up to the first temporary redirect, whose target may change tomorrow.
    assert_eq!(got.moved_to, Some(server.url("/new/newer?q=1")));
    // Behind a temporary redirect, a permanent one says nothing of the requested address.
    assert_eq!(whole(&server, "/temporary").await.unwrap().moved_to, None);

    let secret = get(&server.url("/away")).with(AUTHORIZATION, "Bearer s").with(IF_NONE_MATCH, "\"1\"");
    assert_eq!(fetcher().fetch_whole(&secret).await.unwrap().body, "other");
    assert!(server.asked().last().unwrap().head.contains("authorization: bearer s"));
    let told = &other.asked()[0].head;
    // Credentials stay with their origin; validators name a representation and are no secret.
    assert!(!told.contains("authorization") && told.contains("if-none-match"), "{told}");
}

/// RFC 9110, section 15.4: credentials for one origin are not sent to another, but again when a redirect leads back.
#[tokio::test]
async fn headers_of_an_origin_are_sent_there_only() {
    let home = RawServer::start(|_| answer("200 OK", "", "home")).await;
    let back = home.url("/home");
    let elsewhere = RawServer::start(move |_| redirect(302, &back)).await;
    let away = elsewhere.url("/");
    let server = RawServer::start(move |asked| match asked.path.as_str() {
        "/away" => redirect(302, &away),
        _ => answer("200 OK", "", "x"),
    })
    .await;
    let of = |address: &str| {
        let secret = [("x-api-key", "s3cret"), ("accept", "text/s3cret")];
        let headers = secret.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        fetcher().with_headers(&address.parse().unwrap(), headers.into_iter().collect())
    };
    let knows = |server: &RawServer| {
        let asked = server.asked();
        asked.last().unwrap().head.matches("s3cret").count()
    };
    let request = |url: &str| get(url).with(http::header::ACCEPT, "text/plain");
    of(&server.url("/any?x")).fetch_whole(&request(&server.url("/away"))).await.unwrap();
    assert_eq!([knows(&server), knows(&elsewhere), knows(&home)], [2, 0, 0]);
    of(&home.base).fetch_whole(&request(&server.url("/away"))).await.unwrap();
    assert_eq!([knows(&server), knows(&elsewhere), knows(&home)], [0, 0, 2]);
    // Another port and another scheme are other origins.
    for address in [&server.base.replace("http:", "https:"), "http://127.0.0.1/"] {
        of(address).fetch_whole(&request(&server.url("/"))).await.unwrap();
        assert_eq!(knows(&server), 0, "{address}");
    }
}

#[tokio::test]
async fn invalid_redirects_are_errors() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/self" => redirect(302, "/self"),
        "/a" => redirect(301, "/b"),
        "/b" => redirect(301, "/a"),
        "/mail" => redirect(301, "mailto:a@example.com"),
        "/file" => redirect(301, "file:///etc/passwd"),
        "/bad" => redirect(301, "http://[::1"),
        "/without" => answer("302 Found", "", ""),
        path => {
            let step: u32 = path.trim_start_matches('/').parse().unwrap();
            if step == 0 { answer("200 OK", "", "at last") } else { redirect(302, &format!("/{}", step - 1)) }
        }
    })
    .await;
    for (path, what) in [
        ("/self", "in a loop"),
        ("/a", "in a loop"),
        ("/mail", "neither http nor https"),
        ("/file", "neither http nor https"),
        ("/bad", "not a URL"),
        ("/without", "without a Location header"),
        // One redirect over the limit; "/10" below is exactly at it.
        ("/11", "more than 10 times"),
    ] {
        let error = fetcher().fetch(&get(&server.url(path))).await.unwrap_err();
        assert!(matches!(&error, TransferError::Redirect(why) if why.contains(what)), "{path}: {error}");
    }
    assert_eq!(whole(&server, "/10").await.unwrap().body, "at last");
}

#[tokio::test]
async fn a_redirected_post_keeps_its_body_for_307_only() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/302" => redirect(302, "/end"),
        "/303" => redirect(303, "/end"),
        "/307" => redirect(307, "/end"),
        _ => answer("200 OK", "", [asked.method.as_bytes(), b" ", &asked.body].concat()),
    })
    .await;
    // RFC 9110, 15.4.3 and 15.4.4: a POST becomes a GET at 302 and 303. 307 keeps it (15.4.8).
    for (path, seen) in [("/end", "POST x=1"), ("/302", "GET "), ("/303", "GET "), ("/307", "POST x=1")] {
        let mut request = get(&server.url(path));
        request.method = Method::POST;
        request.body = "x=1".into();
        assert_eq!(fetcher().fetch_whole(&request).await.unwrap().body, seen, "{path}");
    }
}

#[tokio::test]
async fn head_and_not_modified_have_no_body_whatever_they_announce() {
    // RFC 9112, 6.3: such responses end after the head. A client that waits for a body hangs.
    let headers = "Content-Encoding: gzip\r\nContent-Length: 1000000000\r\n";
    let server = RawServer::start(move |asked| match asked.path.as_str() {
        "/304" => {
            vec![send("HTTP/1.1 304 Not Modified\r\nContent-Encoding: gzip\r\nETag: \"1\"\r\n\r\n")]
        }
        _ => vec![send(format!("HTTP/1.1 200 OK\r\n{headers}\r\n"))],
    })
    .await;
    let mut request = get(&server.url("/"));
    request.method = Method::HEAD;
    let got = fetcher().fetch_whole(&request).await.unwrap();
    assert_eq!((got.head.status, got.body.len()), (200, 0));
    assert_eq!(server.asked()[0].method, "HEAD");
    let got = whole(&server, "/304").await.unwrap();
    assert_eq!((got.head.status, got.body.len()), (304, 0));
}

#[tokio::test]
async fn validators_make_the_next_request_conditional() {
    let server = RawServer::start(|asked| {
        let date = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        let known = asked.head.contains("if-none-match: w/\"1\"\r\n")
            && asked.head.contains("if-modified-since: sun, 06 nov 1994 08:49:37 gmt\r\n");
        if known {
            answer("304 Not Modified", "", "")
        } else {
            answer("200 OK", &format!("ETag: W/\"1\"\r\n{date}"), "x")
        }
    })
    .await;
    let first = whole(&server, "/").await.unwrap();
    let validators = Validators::from_head(&first.head);
    let again = fetcher().fetch_whole(&validators.condition(get(&server.url("/")))).await.unwrap();
    assert_eq!(again.head.status, 304);
    let kept: Validators = serde_json::from_str(&serde_json::to_string(&validators).unwrap()).unwrap();
    assert_eq!(kept, validators);
}

#[tokio::test]
async fn error_statuses_are_responses() {
    let server = RawServer::start(|_| answer("503 Busy", "Retry-After: 7\r\n", "later")).await;
    let got = whole(&server, "/").await.unwrap();
    assert_eq!((got.head.status, &got.body[..]), (503, &b"later"[..]));
    let wait = got.head.retry_after(jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(wait, Some(Duration::from_secs(7)));
}

#[tokio::test]
async fn malformed_headers_of_old_servers_are_accepted() {
    let server = RawServer::start(|_| {
        // obs-fold, a line without a colon, a space before one (RFC 9112, 5.1 and 5.2). Without a length
        // the body ends with the connection.
        vec![send("HTTP/1.0 200 OK\r\nServer: a\r\n  folded\r\nno colon here\r\nX-Space : 1\r\n\r\nuntil closed"), ScriptStep::Close]
    })
    .await;
    assert_eq!(whole(&server, "/").await.unwrap().body, "until closed");
}

#[tokio::test]
async fn nothing_is_read_ahead_of_the_reader() {
    let server = RawServer::start(|_| {
        vec![send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"), ScriptStep::Flood(vec![b'x'; 1 << 16])]
    })
    .await;
    let StreamingResponse { mut body, .. } = fetcher().fetch(&get(&server.url("/"))).await.unwrap();
    let mut seen = 0;
    while seen < 1 << 20 {
        let chunk = body.chunk().await.unwrap().unwrap();
        // A larger chunk would mean that the body was buffered ahead of its reader.
        assert!(chunk.len() <= 1 << 20);
        seen += chunk.len();
    }
}

#[tokio::test]
async fn discovery_finds_a_feed() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/.well-known/diffdelta.json" => {
            answer("200 OK", "", r#"{"endpoints":{"diff_latest":"/diff/latest.json"}}"#)
        }
        // No feed and no links; a site's root is judged by `/.well-known/diffdelta.json` as well.
        "/" => answer("200 OK", "Content-Type: text/html\r\n", "<html>"),
        "/page" => answer("200 OK", "Content-Type: text/html\r\n", "<html>"),
        "/endless" => {
            let start = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<rss version='2.0'>";
            vec![send(start), ScriptStep::Flood(vec![b' '; 4096])]
        }
        "/events" => {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: \n";
            // Longer than a reader waits for more.
            vec![send(head), ScriptStep::Pause(SHORT * 20)]
        }
        // Only the beginning is read, and a first item of many megabytes comes before the version.
        "/large" => answer("200 OK", "Content-Type: application/feed+json\r\n", r#"{"items":[{"id":"1""#),
        _ => answer("410 Gone", "", ""),
    })
    .await;
    let found = |path: &str| {
        let url = server.url(path);
        async move { discover(&fetcher(), &url, FollowPace::Held).await }
    };
    let offer = found("/").await.unwrap();
    assert_eq!((offer.protocol, offer.url), (Protocol::DiffDelta, server.url("/.well-known/diffdelta.json")));
    // The root element decides. Reading the document to its end would never finish.
    assert_eq!(found("/endless").await.unwrap().protocol, Protocol::Rss);
    assert_eq!(found("/large").await.unwrap().protocol, Protocol::Rss);
    let events = found("/events").await.unwrap_err().to_string();
    assert!(events.contains("a stream of events"), "{events}");
    assert!(found("/page").await.unwrap_err().to_string().contains("a page that links to no feed"));
    assert!(matches!(found("/gone").await, Err(DiscoverError::Status { status: 410, .. })));
}

/// A feed with credentials in its URL has absolute links without them, and redirects. No other origin gets them.
#[tokio::test]
async fn credentials_of_a_named_url_hold_for_its_origin() {
    let other = RawServer::start(|_| answer("200 OK", "", "theirs")).await;
    let away = other.url("/away");
    let server = RawServer::start(move |asked| match asked.path.as_str() {
        "/away" => redirect(302, &away),
        _ => answer("200 OK", "", "ours"),
    })
    .await;
    let named = server.url("/feed").replace("://", "://user:pass@");
    let fetcher = fetcher().with_named([named.as_str()]);
    for path in ["/feed", "/page", "/away"] {
        fetcher.fetch_whole(&get(&server.url(path))).await.unwrap();
        let asked = server.asked().pop().unwrap();
        // user:pass
        assert!(asked.head.contains(&"authorization: Basic dXNlcjpwYXNz".to_lowercase()), "{}", asked.head);
    }
    assert!(!other.asked()[0].head.contains("authorization"), "{}", other.asked()[0].head);
    let response = fetcher.fetch_whole(&get(&server.url("/page"))).await.unwrap();
    assert_eq!(response.head.url, server.url("/page"), "links are resolved without them");
    let own = get(&server.url("/page")).with(AUTHORIZATION, "Bearer s");
    fetcher.fetch_whole(&own).await.unwrap();
    assert!(server.asked().pop().unwrap().head.contains("authorization: bearer s"));
}
