//! The page of `docs/live-updates.md` in a real browser, behind nginx as that page sets it up.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::json;

use crate::common::waiting::publish;
use crate::common::{PATIENCE, TestFolder, TestServer, free_port};

/// Returns the file that a fenced block of the page is named after.
fn file_of(page: &str, name: &str) -> String {
    let start = page.find(&format!(" {name}\n")).unwrap() + name.len() + 2;
    page[start..].split("```").next().unwrap().to_owned()
}

/// nginx in the foreground, ended with the test.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The browser: takes the name of a step, and tells when it is done.
struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Browser {
    fn start(base: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let mut node = Command::new("node");
        node.arg(root.join("tests/browser/live.mjs")).arg(base);
        node.env("TOWPATH_BROWSER_MODULES", target.join("browser"));
        let mut child = node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn step(&mut self, step: &str) {
        writeln!(self.input, "{step}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim_end(), format!("done {}", step.split(' ').next().unwrap()));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn title(server: &TestServer, id: &str, title: &str) {
    publish(server, "news", &[json!({ "id": id, "item": { "title": title } })]);
}

/// Starts the server, and reaches it beside nginx: publishing through a proxy needs a token.
fn serve(dir: &TestFolder, port: u16) -> TestServer {
    let mut server = dir.serve_at(port);
    server.base = format!("http://127.0.0.1:{port}");
    server
}

fn start_nginx(dir: &TestFolder, port: u16) -> Nginx {
    // As root, nginx's worker becomes "nobody", who cannot read this folder.
    let mut nginx = Command::new("nginx");
    nginx.arg("-p").arg(dir.path("")).args(["-c", "nginx.conf"]).stderr(Stdio::null());
    let nginx = Nginx(nginx.spawn().expect("nginx is installed by `cargo xtask setup`"));
    let begun = std::time::Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(begun.elapsed() < PATIENCE, "nginx does not listen");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    nginx
}

#[test]
fn the_page_lives_behind_nginx_through_restarts_of_the_server() {
    let page = include_str!("../../../../docs/live-updates.md");
    let (server_port, port) = (free_port(), free_port());
    let here = |text: String| {
        let text = text.replace("127.0.0.1:8080", &format!("127.0.0.1:{server_port}"));
        text.replace("127.0.0.1:8081", &format!("127.0.0.1:{port}"))
    };
    let dir = TestFolder::new(&here(file_of(page, "towpath.toml")));
    dir.write("live.html", file_of(page, "live.html").as_bytes());
    // Beside the rules of the page: the feed without the one for a server that is away.
    let bare =
        format!("location /bare/ {{ proxy_pass http://127.0.0.1:{server_port}/; }} location /feeds/ {{");
    let config = here(file_of(page, "nginx.conf")).replacen("location /feeds/ {", &bare, 1);
    dir.write("nginx.conf", config.as_bytes());
    let _nginx = start_nginx(&dir, port);
    let mut browser = Browser::start(&format!("http://127.0.0.1:{port}"));
    // The page is opened before the server is there.
    browser.step("open");
    browser.step("refused");
    browser.step("kept");
    let server = serve(&dir, server_port);
    title(&server, "1", "Ten boats");
    browser.step("first");
    title(&server, "2", "A sail");
    browser.step("second");
    server.kill();
    browser.step("refused");
    let server = serve(&dir, server_port);
    title(&server, "1", "Eleven boats");
    browser.step("changed");
    publish(&server, "news", &[json!({ "id": "2", "op": "delete" })]);
    browser.step("deleted");
    // A feed with readers: the link is for the browser, the token for the page's own server.
    let bearer = [("Authorization", "Bearer a-readers-token")];
    let link = |seconds: u32| {
        let path = format!("/feeds/members/read-links?seconds={seconds}");
        let made = server.ask("POST", &path, &bearer, b"").json();
        made["url"].as_str().unwrap().to_owned()
    };
    publish(&server, "members", &[json!({ "id": "secret-1" })]);
    browser.step(&format!("link {}", link(60)));
    let short = link(1);
    std::thread::sleep(std::time::Duration::from_secs(2));
    browser.step(&format!("expired {short}"));
}
