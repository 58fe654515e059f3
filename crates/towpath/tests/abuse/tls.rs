//! TLS that the server serves itself, with curl and a browser as clients.

use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::PublicKeyData as _;
use sha2::{Digest as _, Sha256};

use crate::common::{TestFolder, TestServer, stderr, stdout, wait_until};

const CONFIG: &str = "[server]\nrate_grace = \"1s\"\n[server.tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\n\
    [[feed]]\nid = \"notes\"\n";

/// Writes a new certificate with its key. Returns the digest of its public key, as browsers are told it.
pub(crate) fn write_certificate(dir: &TestFolder) -> String {
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    dir.write("cert.pem", pair.cert.pem().as_bytes());
    dir.write("key.pem", pair.signing_key.serialize_pem().as_bytes());
    dir.write("trusted.pem", pair.cert.pem().as_bytes());
    BASE64_STANDARD.encode(Sha256::digest(pair.signing_key.subject_public_key_info()))
}

/// A curl that trusts the certificate that was written last.
pub(crate) fn curl(dir: &TestFolder, server: &TestServer, path: &str, args: &[&str]) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "60", "--cacert"]).arg(dir.path("trusted.pem"));
    curl.args(args).arg(format!("{}{path}", server.base)).stdin(Stdio::null());
    curl
}

fn run(dir: &TestFolder, server: &TestServer, path: &str, args: &[&str]) -> Output {
    curl(dir, server, path, args).output().unwrap()
}

fn status(dir: &TestFolder, server: &TestServer, path: &str, args: &[&str]) -> String {
    let args = [args, &["--output", "/dev/null", "--write-out", "%{http_code}"]].concat();
    let output = run(dir, server, path, &args);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn a_feed_is_served_over_tls() {
    let dir = TestFolder::new(CONFIG);
    write_certificate(&dir);
    let server = dir.serve();
    assert!(server.base.starts_with("https://"), "{}", server.base);
    let item = |id: &str| format!("/feeds/notes/items/{id}");
    assert_eq!(status(&dir, &server, &item("a"), &["--request", "PUT", "--data", "x"]), "201");
    assert_eq!(stdout(&run(&dir, &server, &item("a"), &[])), "x");
    let page = stdout(&run(&dir, &server, "/feeds/notes/items", &[]));
    assert!(page.contains(&format!("{}/feeds/notes", server.base)), "{page}");
    let document = "/diff/notes/head.json";
    let etag =
        stdout(&run(&dir, &server, document, &["--output", "/dev/null", "--write-out", "%header{etag}"]));
    assert_eq!(status(&dir, &server, document, &["--header", &format!("If-None-Match: {etag}")]), "304");
    // A long poll waits, and is answered by an append.
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    let cursor = page["last_cursor"].as_str().unwrap();
    let path = format!("/feeds/notes/items?since=cursor:{cursor}&timeout=50");
    let mut waiting = curl(&dir, &server, &path, &[]);
    let waiting = waiting.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the poll waits", || {
        stdout(&run(&dir, &server, "/metrics", &[])).contains("towpath_waiters 1")
    });
    assert_eq!(status(&dir, &server, &item("b"), &["--request", "PUT", "--data", "y"]), "201");
    let answer = stdout(&waiting.wait_with_output().unwrap());
    assert!(answer.contains("\"b\""), "{answer}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn http2_is_for_clients_that_choose_it() {
    let dir = TestFolder::new(CONFIG);
    write_certificate(&dir);
    let server = dir.serve();
    let large: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
    dir.write("large", &large);
    let file = format!("@{}", dir.path("large").display());
    let version = |server: &TestServer, path: &str, args: &[&str]| {
        let args = [args, &["--output", "/dev/null", "--write-out", "%{http_code} %{http_version}"]].concat();
        stdout(&run(&dir, server, path, &args))
    };
    let item = "/feeds/notes/items/large";
    let put = ["--http2", "--request", "PUT", "--header", "Content-Type: text/plain", "--data-binary", &file];
    assert_eq!(version(&server, item, &put), "201 2");
    let got = dir.path("got");
    let read = run(&dir, &server, item, &["--http2", "--output", got.to_str().unwrap()]);
    assert!(read.status.success() && std::fs::read(&got).unwrap() == large, "{}", stderr(&read));
    // The fast path, with and without its document's tag.
    let document = "/diff/notes/head.json";
    assert_eq!(version(&server, document, &["--http2"]), "200 2");
    let tag = ["--http2", "--output", "/dev/null", "--write-out", "%header{etag}"];
    let tag = format!("If-None-Match: {}", stdout(&run(&dir, &server, document, &tag)));
    assert_eq!(version(&server, document, &["--http2", "--header", &tag]), "304 2");
    assert_eq!(version(&server, document, &["--http1.1", "--header", &tag]), "304 1.1");
    assert_eq!(version(&server, "/feeds/other", &["--http2"]), "404 2");
    drop(server);
    dir.write("towpath.toml", CONFIG.replace("[[feed]]", "http2 = false\n[[feed]]").as_bytes());
    assert_eq!(version(&dir.serve(), document, &["--http2"]), "200 1.1");
}

#[test]
fn a_changed_certificate_is_used_without_a_restart() {
    let dir = TestFolder::new(CONFIG);
    write_certificate(&dir);
    let server = dir.serve();
    let works = || run(&dir, &server, "/healthz.json", &[]).status.success();
    assert!(works());
    // A broken file keeps the certificate in use, with one warning.
    dir.write("cert.pem", b"broken");
    wait_until("a warning", || dir.log().contains("the earlier certificate stays in use"));
    assert!(works());
    write_certificate(&dir);
    wait_until("the new certificate is used", works);
    let warnings = dir.log().lines().filter(|line| line.contains("stays in use")).count();
    assert!((1..=2).contains(&warnings), "{}", dir.log());
}

/// A browser that prints the page, and trusts the key with this digest beside its own authorities.
fn in_browser(dir: &TestFolder, url: &str, trusted: &str) -> Output {
    let mut browser = Command::new("chromium");
    // The sandbox needs namespaces, which the user of the tests may not have.
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]);
    browser.arg(format!("--user-data-dir={}", dir.path("browser").display()));
    browser.arg(format!("--log-net-log={}", dir.path("net-log").display()));
    browser.arg(format!("--ignore-certificate-errors-spki-list={trusted}")).arg(url);
    browser.stdin(Stdio::null()).output().expect("chromium is installed by `cargo xtask setup`")
}

#[test]
fn a_browser_shows_a_page_over_tls() {
    let dir = TestFolder::new(CONFIG);
    let trusted = write_certificate(&dir);
    let server = dir.serve();
    assert_eq!(status(&dir, &server, "/feeds/notes/items/a", &["--request", "PUT", "--data", "x"]), "201");
    let url = format!("{}/", server.base);
    let shown = in_browser(&dir, &url, &trusted);
    assert!(stdout(&shown).contains("/feeds/notes"), "{}", stderr(&shown));
    // Current browsers take HTTP/2 where it is offered, and its rules must see their requests as of this server.
    let net_log = String::from_utf8_lossy(&std::fs::read(dir.path("net-log")).unwrap()).into_owned();
    assert!(net_log.contains(":authority: 127.0.0.1"), "no HTTP/2 request");
    // A certificate that it has no reason to trust is refused, so the page above came over TLS.
    let stranger = BASE64_STANDARD.encode([0; 32]);
    let shown = in_browser(&dir, &url, &stranger);
    assert!(!stdout(&shown).contains("/feeds/notes"), "{}", stdout(&shown));
    // Its error page or its log says so, by its version.
    let said = stdout(&shown) + &stderr(&shown);
    assert!(said.contains("ERR_CERT_AUTHORITY_INVALID"), "{}", stderr(&shown));
}

#[test]
fn a_reload_takes_another_certificate_and_other_limits() {
    let dir = TestFolder::new(CONFIG);
    write_certificate(&dir);
    let server = dir.serve();
    assert_eq!(status(&dir, &server, "/feeds", &[]), "200");
    let config = |cert: &str, key: &str| {
        let limit = "[server.rate_limit]\nper_second = 3\n[[feed]]\nid = \"new\"\n";
        format!("{}{limit}", CONFIG.replace("cert.pem", cert).replace("key.pem", key))
    };
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    dir.write("other.pem", pair.cert.pem().as_bytes());
    dir.write("other.key", pair.signing_key.serialize_pem().as_bytes());

    // A certificate that does not fit its key changes nothing, not even the feeds.
    dir.write("towpath.toml", config("other.pem", "key.pem").as_bytes());
    let refused = dir.run(&["reload"]);
    let message = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{message}");
    for part in ["nothing changes", "other.pem", "key.pem"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(status(&dir, &server, "/feeds/new", &[]), "404");

    dir.write("towpath.toml", config("other.pem", "other.key").as_bytes());
    let message = stdout(&dir.run(&["reload"]));
    let changed = "1 added (new); changed: server.rate_limit.per_second, server.tls.cert, server.tls.key";
    assert!(message.contains(changed), "{message}");
    assert!(!message.contains("restart"), "{message}");
    let distrusted = run(&dir, &server, "/feeds", &[]);
    assert_eq!(distrusted.status.code(), Some(60), "the earlier certificate: {distrusted:?}");
    std::fs::copy(dir.path("other.pem"), dir.path("trusted.pem")).unwrap();
    assert_eq!(status(&dir, &server, "/feeds/new", &[]), "200");
    assert!(stdout(&dir.run(&["reload"])).contains("no feed changed"));

    // Files that were replaced under their names are read, too.
    std::fs::copy(dir.path("key.pem"), dir.path("other.key")).unwrap();
    for part in ["other.key", "cannot use [server.tls] cert"] {
        let refused = dir.run(&["reload"]);
        let message = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{message}");
        assert!(message.contains("nothing changes") && message.contains(part), "{part}: {message}");
        dir.write("other.pem", b"");
    }
    assert_eq!(status(&dir, &server, "/feeds/new", &[]), "200");
}

#[test]
fn a_missing_certificate_is_named() {
    let dir = TestFolder::new(CONFIG);
    let output = dir.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("[server.tls] cert") && message.contains("cert.pem"), "{message}");
    assert!(!dir.path("data").exists(), "nothing is created before");
}

#[test]
fn a_certificate_that_does_not_fit_its_key_is_refused_at_the_start() {
    let dir = TestFolder::new(CONFIG);
    write_certificate(&dir);
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    dir.write("key.pem", other.signing_key.serialize_pem().as_bytes());
    let output = dir.run(&["serve", "--listen", "127.0.0.1:0"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("cert.pem") && message.contains("key.pem"), "{message}");
    assert!(!dir.path("data").exists(), "nothing is created before");
}

#[test]
fn a_tls_client_that_does_not_read_is_cut() {
    let dir = TestFolder::new(CONFIG);
    write_certificate(&dir);
    let server = dir.serve();
    dir.write("large", &vec![b'x'; 8 << 20]);
    let file = format!("@{}", dir.path("large").display());
    let put = ["--request", "PUT", "--header", "Content-Type: text/plain", "--data-binary", &file];
    assert_eq!(status(&dir, &server, "/feeds/notes/items/large", &put), "201");
    let slow = ["--limit-rate", "10", "--output", "/dev/null"];
    let mut slow = curl(&dir, &server, "/feeds/notes/items/large", &slow).spawn().unwrap();
    // The metrics' own connection is one.
    let has_connections = |count: usize| {
        let line = format!("towpath_connections {count}\n");
        stdout(&run(&dir, &server, "/metrics", &[])).contains(&line)
    };
    wait_until("the client is connected", || has_connections(2));
    wait_until("the client is cut", || has_connections(1));
    slow.kill().unwrap();
    slow.wait().unwrap();
}
