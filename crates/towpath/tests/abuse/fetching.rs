//! Addresses that a publisher names: redirects, links and hosts that lead into the private network.
//!
//! A proxy plays the public Internet. It answers for `publisher.example`, and the program connects to every other
//! host itself. The victim listens on the loopback and must never be asked.

use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::common::{PATIENCE, TestFolder};
use crate::raw_server::{RawServer, ReceivedRequest, ScriptStep, answer, redirect};

const FEED: &str =
    "<rss version=\"2.0\"><channel><title>t</title><item><guid>secret</guid></item></channel></rss>";

/// A hostile publisher on the public Internet, and the private server that it aims at.
struct Attack {
    _runtime: Runtime,
    publisher: RawServer,
    victim: RawServer,
}

impl Attack {
    /// Starts both. `script` answers for the publisher, given the path and the victim's URL.
    fn new(script: impl Fn(&str, &ReceivedRequest, &str) -> Vec<ScriptStep> + Send + Sync + 'static) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let victim = runtime.block_on(RawServer::start(|_| answer("200 OK", "", FEED)));
        let private = victim.url("/private");
        let publisher = runtime.block_on(RawServer::start(move |asked| {
            // A proxy is sent the whole URL.
            let path = asked.path.strip_prefix("http://publisher.example").unwrap_or("/no-proxy");
            script(path, asked, &private)
        }));
        Self { _runtime: runtime, publisher, victim }
    }

    /// A command for which the publisher is on the public Internet and everything else is directly reachable.
    fn command(&self, folder: &TestFolder, args: &[&str]) -> Command {
        let mut command = folder.command(args);
        for name in ["HTTP_PROXY", "ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "NO_PROXY"] {
            command.env_remove(name);
        }
        command.env("http_proxy", &self.publisher.base);
        command.env("no_proxy", "127.0.0.1,0.0.0.0,localhost,::1,::ffff:127.0.0.1,169.254.169.254,10.0.0.1");
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let folder = TestFolder::new("");
        self.command(&folder, args).output().unwrap()
    }

    fn victim_port(&self) -> &str {
        self.victim.base.rsplit(':').next().unwrap()
    }

    /// Asserts that the publisher was asked, and the victim was not.
    fn assert_refused(&self, what: &str) {
        assert!(!self.publisher.asked().is_empty(), "{what}: the attack was not made");
        let asked = self.victim.asked();
        assert!(asked.is_empty(), "{what} led to {:?}", asked[0].path);
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sources that redirect to every spelling of a private address.
#[test]
fn a_source_cannot_redirect_into_the_private_network() {
    let port = Arc::new(OnceLock::new());
    let known = port.clone();
    let attack = Attack::new(move |path, _, _| {
        let port: &String = known.get().unwrap();
        let host = path.trim_start_matches('/').replace("PORT", port);
        redirect(302, &format!("http://{host}/private"))
    });
    port.set(attack.victim_port().to_owned()).unwrap();
    let hosts = [
        "127.0.0.1:PORT",
        "localhost:PORT",
        "2130706433:PORT",
        "0x7f.1:PORT",
        "0.0.0.0:PORT",
        "[::1]:PORT",
        "[::ffff:127.0.0.1]:PORT",
        "[::127.0.0.1]:PORT",
        "[64:ff9b::7f00:1]:PORT",
        "[2002:7f00:1::]:PORT",
        "169.254.169.254",
        "10.0.0.1",
        "100.64.0.1",
        "[fe80::1]",
        "[fd00::1]",
    ];
    let feed = |(index, host): (usize, &&str)| {
        format!("[[feed]]\nid = \"f{index:02}\"\n[feed.source]\nurl = \"http://publisher.example/{host}\"\n")
    };
    let folder = TestFolder::new(&hosts.iter().enumerate().map(feed).collect::<String>());
    let output = attack.command(&folder, &["run"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    attack.assert_refused("a redirect");
    for (line, host) in printed.lines().skip(1).zip(hosts) {
        assert!(line.contains("ADDRESS_REFUSED"), "{host}: {line}");
    }
    assert_eq!(printed.lines().count(), 1 + hosts.len(), "{printed}\n{}", stderr(&output));
}

/// A source on this machine may lead to this machine, and to no other private address.
#[test]
fn a_private_source_opens_its_own_network_only() {
    let attack = Attack::new(|_, _, _| answer("404 Not Found", "", ""));
    let runtime = &attack._runtime;
    let victim = attack.victim.url("/private");
    let local = runtime.block_on(RawServer::start(move |asked| match asked.path.as_str() {
        "/near" => redirect(302, &victim),
        "/metadata" => redirect(302, "http://169.254.169.254/latest/meta-data"),
        _ => redirect(302, "http://10.0.0.1/"),
    }));
    let feed = |path: &str| {
        let url = local.url(path);
        format!("[[feed]]\nid = \"{}\"\n[feed.source]\nurl = \"{url}\"\ntimeout = 5\n", &path[1..])
    };
    let config: String = ["/far", "/metadata", "/near"].map(feed).concat();
    let folder = TestFolder::new(&config);
    let states = || {
        let output = attack.command(&folder, &["run"]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = states();
    assert!(lines[0].contains("ADDRESS_REFUSED") && lines[1].contains("ADDRESS_REFUSED"), "{lines:?}");
    assert!(lines[2].ends_with(" ok"), "{lines:?}");
    // The operator may refuse even the addresses that the configuration names.
    folder.write("towpath.toml", format!("[server]\nprivate_fetches = \"none\"\n{config}").as_bytes());
    assert!(states().iter().all(|line| line.contains("ADDRESS_REFUSED")));
}

/// Links of every protocol, followed and checked at the command line.
#[test]
fn a_publishers_links_do_not_lead_into_the_private_network() {
    const ATOM: &str = "<feed xmlns='http://www.w3.org/2005/Atom'><id>i</id><title>t</title>";
    let attack = Attack::new(|path, _, private| match path {
        "/page" => answer(
            "200 OK",
            "Content-Type: text/html\r\n",
            format!("<!doctype html><link rel=alternate type='application/rss+xml' href='{private}'>"),
        ),
        "/archive" => {
            answer("200 OK", "", format!("{ATOM}<link rel='prev-archive' href='{private}'/></feed>"))
        }
        "/next" => answer("200 OK", "", format!("{ATOM}<link rel='next' href='{private}'/></feed>")),
        "/json-next" => answer(
            "200 OK",
            "",
            format!(
                "{{\"version\":\"https://jsonfeed.org/version/1.1\",\"items\":[],\"next_url\":\"{private}\"}}"
            ),
        ),
        "/pages" => answer(
            "200 OK",
            &format!(
                "Content-Type: multipart/mixed; boundary=b\r\nLast-Modified: Mon, 27 Nov 2023 03:10:00 GMT\r\n\
                 Link: </pages>; rel=self\r\nLink: <{private}>; rel=prev\r\n"
            ),
            "--b--",
        ),
        "/manifest" => answer(
            "200 OK",
            "",
            format!(
                "{{\"endpoints\":{{\"diff_latest\":\"{private}\",\"head\":\"{private}\"}},\"diff_latest\":\"{private}\"}}"
            ),
        ),
        "/hub" => answer(
            "200 OK",
            &format!("Link: <{private}>; rel=hub\r\nLink: <http://publisher.example/hub>; rel=self\r\n"),
            "{\"items\":[],\"count\":0,\"totalItems\":0,\"url\":\"http://publisher.example/hub\"}",
        ),
        _ => redirect(302, private),
    });
    let url = |path: &str| format!("http://publisher.example{path}");
    for path in ["/page", "/archive", "/next", "/json-next", "/pages", "/manifest", "/redirect"] {
        attack.run(&["follow", &url(path), "--once"]);
        attack.assert_refused(&format!("follow {path}"));
        attack.run(&["check", &url(path)]);
        attack.assert_refused(&format!("check {path}"));
    }
    attack.run(&[
        "check",
        &url("/hub"),
        "--callback",
        "http://127.0.0.1:9/",
        "--callback-listen",
        "127.0.0.1:0",
    ]);
    attack.assert_refused("a hub");
    // The user may name the address: then it is fetched.
    let output = attack.run(&["follow", &attack.victim.url("/private"), "--once"]);
    assert!(output.status.success() && !output.stdout.is_empty(), "{}", stderr(&output));
}

/// SUP documents that feeds of a fleet link to.
#[test]
fn a_sup_link_does_not_lead_into_the_private_network() {
    let attack = Attack::new(|_, _, private| answer("200 OK", &format!("X-SUP-ID: {private}#a1\r\n"), FEED));
    let folder = TestFolder::new("");
    let urls = ["a", "b"].map(|name| format!("http://publisher.example/{name}"));
    let log = std::fs::File::create(folder.path("log")).unwrap();
    let mut follow = attack.command(&folder, &["follow", &urls[0], &urls[1]]);
    let mut follow = follow.stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while attack.victim.asked().is_empty() && !folder.log().contains("address refused") {
        assert!(Instant::now() < end, "no request and no warning: {}", folder.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    follow.kill().unwrap();
    follow.wait().unwrap();
    attack.assert_refused("a SUP link");
}

/// A mirror's discovery, and what strangers read about the failure.
#[test]
fn the_details_of_a_failure_are_for_holders_of_a_token() {
    let attack = Attack::new(|path, _, private| match path {
        "/page" => answer(
            "200 OK",
            "Content-Type: text/html\r\n",
            format!("<!doctype html><link rel=alternate type='application/rss+xml' href='{private}'>"),
        ),
        _ => redirect(302, private),
    });
    let folder = TestFolder::new(
        "[server]\ntokens = [\"t0ken\"]\n[[feed]]\nid = \"polled\"\n[feed.source]\nurl = \
         \"http://publisher.example/x\"\n[[feed]]\nid = \"mirror\"\n[feed.source]\nfollow = \
         \"http://publisher.example/page\"\n",
    );
    let mut command = attack.command(&folder, &["serve", "--listen", "127.0.0.1:0"]);
    command.env("RUST_LOG", "info");
    let server = folder.start(command);
    let bearer = [("authorization", "Bearer t0ken")];
    for feed in ["polled", "mirror"] {
        let path = format!("/feeds/{feed}");
        server.wait_for(&path, |view| view["source"]["error"].is_object());
        let page = server.ask("GET", &path, &[("accept", "text/html")], b"");
        let listed = server.ask("GET", "/feeds?status", &[], b"");
        for text in [server.get(&path).text(), page.text(), listed.text()] {
            assert!(text.contains("the source could not be read"), "{text}");
            for detail in ["ADDRESS_REFUSED", "loopback", "NOT_FOLLOWABLE", "127.0.0.1:9"] {
                assert!(!text.contains(detail), "{feed} {detail}: {text}");
            }
        }
        let known = server.ask("GET", &path, &bearer, b"").text();
        assert!(!known.contains("the source could not be read"), "{known}");
    }
    let known = server.ask("GET", "/feeds/polled", &bearer, b"").text();
    assert!(known.contains("ADDRESS_REFUSED"), "{known}");
    attack.assert_refused("a server's source");
    server.stop();
}
