//! The examples of docs/deployment.md, as they stand: the proxies pass on what towpath needs, and hide no attacker.

use std::path::Path;
use std::process::Command;

use crate::common::{TestFolder, TestServer, free_port, stderr, stdout, tree};

const NAME: &str = "feeds.example.com";

/// First block of a section of docs/deployment.md.
fn example(heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deployment.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once(&format!("## {heading}\n")).unwrap();
    let mut lines = section.lines().skip_while(|line| !line.starts_with("```")).skip(1);
    lines
        .by_ref()
        .take_while(|line| !line.starts_with("```"))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// A server with the page's configuration.
fn serve(limits: &str) -> (TestFolder, TestServer) {
    let config = format!("{}{limits}", example("towpath's part"));
    let dir = TestFolder::new(&config);
    let server = dir.serve_as(&format!("https://{NAME}"));
    assert!(!dir.log().contains("WARN"), "{}", dir.log());
    (dir, server)
}

/// Client of a proxy, at an address of its own.
struct Client {
    scheme: &'static str,
    port: u16,
    /// Certificate of the proxy.
    certificate: Option<std::path::PathBuf>,
}

impl Client {
    /// Runs curl from an address; returns what it prints.
    fn curl(&self, from: &str, path: &str, more: &[&str]) -> String {
        let Self { scheme, port, certificate } = self;
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--interface", from]);
        curl.args(["--resolve", &format!("{NAME}:{port}:127.0.0.1")]).args(more);
        if let Some(certificate) = certificate {
            curl.arg("--cacert").arg(certificate);
        }
        let output = curl.arg(format!("{scheme}://{NAME}:{port}{path}")).output().unwrap();
        // An event stream has no end, so curl's time is up (28).
        assert!(matches!(output.status.code(), Some(0 | 28)), "{path}: {}", stderr(&output));
        stdout(&output)
    }

    /// Statuses of requests; a path with `[1-9]` is nine of them.
    fn statuses(&self, from: &str, path: &str, more: &[&str]) -> Vec<u16> {
        let text = self.curl(
            from,
            path,
            &[&["--output", "/dev/null", "--write-out", "%{http_code}\n"], more].concat(),
        );
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn reads_and_publishes(&self) {
        let put = |more: &[&str]| {
            let args = [&["--request", "PUT", "--data-binary", "x"], more].concat();
            self.statuses("127.0.0.1", "/feeds/notes/items/a", &args)
        };
        assert_eq!(put(&[]), [401]);
        assert_eq!(put(&["--header", "Authorization: Bearer a long random text"]), [201]);
        let page = self.curl("127.0.0.1", "/feeds/notes/items?timeout=0", &[]);
        assert!(page.contains(&format!("https://{NAME}/feeds/notes/")), "{page}");
        // Events come through while the stream is open.
        let events =
            self.curl("127.0.0.1", "/feeds/notes/events?since=time:0", &["--no-buffer", "--max-time", "1.5"]);
        assert!(events.contains("retry: 2000") && events.contains("data:"), "{events}");
    }

    /// A client that invents an address for each request is one client, and others are served.
    fn limits_by_address(&self) {
        for (forged, attacker, other) in
            [("X-Forwarded-For: ", "127.0.0.2", "127.0.0.3"), ("Forwarded: for=", "127.0.0.4", "127.0.0.5")]
        {
            // Other pages for each attacker: those in memory are free.
            let path = format!("/feeds/notes/items?timeout=0&since=time:{}", attacker.len() + forged.len());
            let mut statuses = Vec::new();
            for n in 1..=4 {
                let header = format!("{forged}192.0.2.{n}");
                statuses.extend(self.statuses(
                    attacker,
                    &format!("{path}{n}[00-49]"),
                    &["--header", &header],
                ));
            }
            let answered = statuses.iter().filter(|status| **status == 200).count();
            // 100 points, and one more for each second that the test takes.
            assert!((100..180).contains(&answered), "{forged}: {answered}");
            assert_eq!(statuses.last(), Some(&429), "{forged}");
            assert_eq!(self.statuses(other, &path, &[]), [200]);
        }
    }
}

const LIMITS: &str = "[server.rate_limit]\nper_second = 1\nburst = 100\n";

#[test]
fn nginx_with_tls() {
    let (dir, server) = serve(LIMITS);
    let own = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    dir.write("feeds.pem", own.cert.pem().as_bytes());
    dir.write("feeds.key", own.signing_key.serialize_pem().as_bytes());
    let port = free_port();
    let at = |name: &str| dir.path(name).display().to_string();
    let config = example("nginx, with TLS")
        .replace("listen 443", &format!("listen 127.0.0.1:{port}"))
        .replace("/etc/ssl/feeds.example.com.pem", &at("feeds.pem"))
        .replace("/etc/ssl/feeds.example.com.key", &at("feeds.key"))
        .replace("http://127.0.0.1:8080", &server.base);
    let _nginx = tree::nginx(free_port(), &config, "return 404;");
    let client = Client { scheme: "https", port, certificate: Some(dir.path("feeds.pem")) };
    client.reads_and_publishes();
    client.limits_by_address();
}

#[test]
fn caddy() {
    let (_dir, server) = serve(LIMITS);
    let port = free_port();
    // Without TLS: a certificate for a name comes from the network.
    let site = example("Caddy")
        .replace(&format!("{NAME} {{"), &format!("http://{NAME}:{port} {{"))
        .replace("127.0.0.1:8080", server.base.strip_prefix("http://").unwrap());
    let _caddy =
        tree::caddy(port, &format!("{{\nadmin off\ngrace_period 1s\ndefault_bind 127.0.0.1\n}}\n{site}"));
    let client = Client { scheme: "http", port, certificate: None };
    client.reads_and_publishes();
    client.limits_by_address();
}
