//! A running towpath for tests, in its own folder and on its own port. It ends with the test.

pub mod chain;
pub mod clustered;
pub mod load_balancer;
#[path = "../../../towpath-cluster/tests/common/mod.rs"]
pub mod nats;
pub mod notes;
pub mod npm;
pub mod pages;
pub mod sink_kill;
pub mod sqlite_copy;
pub mod tree;
pub mod waiting;
pub mod web_session;
pub mod xmpp;

pub use nats::free_port;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest time that any step may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something holds, and fails the test if it never does.
pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_within(PATIENCE, what, holds);
}

/// Waits as [`wait_until`] for longer work.
pub fn wait_within(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Folder with a configuration, for commands and servers.
pub struct TestFolder {
    pub folder: tempfile::TempDir,
    /// The folder's log, if the tests run on the cluster backend.
    cluster: Option<String>,
}

/// A `towpath serve` that is killed when it goes out of scope.
pub struct TestServer {
    child: Child,
    /// Keeps standard output open.
    _stdout: BufReader<ChildStdout>,
    pub base: String,
}

impl TestFolder {
    /// Creates a folder with this configuration; `[server]` is added if it is missing.
    pub fn new(config: &str) -> Self {
        let dir = Self { folder: tempfile::tempdir().unwrap(), cluster: clustered::log() };
        dir.write("towpath.toml", config.as_bytes());
        dir
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        let with_log = match (&self.cluster, name) {
            (Some(log), "towpath.toml") => clustered::with_log(bytes, log),
            _ => None,
        };
        std::fs::write(self.path(name), with_log.as_deref().unwrap_or(bytes)).unwrap();
    }

    /// A command of the program, with the folder as its working directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        command.args(args).current_dir(self.folder.path());
        // The developer's own tokens must not change a result.
        command.env_remove("TOWPATH_TOKEN").env_remove("TOWPATH_READ_TOKEN");
        command
    }

    /// A server whose clock is off by what the file `clock` says, by Debian's libfaketime, which `cargo xtask setup` installs.
    pub fn command_with_clock(&self) -> Command {
        let libraries = std::fs::read_dir("/usr/lib").unwrap().flatten();
        let library = libraries
            .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
            .find(|path| path.exists());
        let Some(library) = library else { panic!("libfaketime is missing: run cargo xtask setup") };
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", self.path("clock"));
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command with this standard input.
    pub fn run_with(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        // On a thread of its own: two full pipes would block both programs.
        let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        output
    }

    /// Starts a server on a free port and waits until it answers.
    pub fn serve(&self) -> TestServer {
        self.serve_with(&[])
    }

    /// Starts a server with further arguments.
    pub fn serve_with(&self, args: &[&str]) -> TestServer {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        command.args(args);
        self.start(command)
    }

    /// Starts a server on a port that it keeps over restarts.
    pub fn serve_at(&self, port: u16) -> TestServer {
        self.start(self.command(&["serve", "--listen", &format!("127.0.0.1:{port}")]))
    }

    /// Starts a server with a base URL that leads elsewhere, as behind a proxy. `base` of the result reaches it.
    pub fn serve_as(&self, base_url: &str) -> TestServer {
        let address = format!("127.0.0.1:{}", free_port());
        let command = self.command(&["serve", "--listen", &address, "--base-url", base_url]);
        self.start_at(command, Some(format!("http://{address}")))
    }

    /// Starts a command that becomes a server, and waits until it answers.
    pub fn start(&self, command: Command) -> TestServer {
        self.start_at(command, None)
    }

    fn start_at(&self, mut command: Command, reached_at: Option<String>) -> TestServer {
        // Appended: the log of a killed server stays when its successor starts.
        let stderr = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        // The program prints its address once it listens.
        stdout.read_line(&mut line).unwrap();
        let Some(at) = line.find("http://").or_else(|| line.find("https://")) else {
            let _ = child.kill();
            panic!("no address in {line:?}; log: {}", self.log());
        };
        let base = reached_at.unwrap_or_else(|| line[at..].trim().trim_end_matches('/').to_owned());
        let server = TestServer { child, _stdout: stdout, base };
        if self.cluster.is_some() {
            clustered::wait_for_roles(&server);
        }
        server
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl TestServer {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL: no clean shutdown.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGKILL while other threads use the server.
    pub fn kill_now(&self) {
        self.signal("-KILL");
    }

    /// Sends SIGSTOP.
    pub fn suspend(&self) {
        self.signal("-STOP");
    }

    /// Sends SIGCONT after [`Self::suspend`].
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
    }

    /// Sends SIGTERM; returns the exit status.
    pub fn stop(mut self) -> Option<i32> {
        self.signal("-TERM");
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not stop");
    }

    pub fn get(&self, path: &str) -> TestResponse {
        self.ask("GET", path, &[], b"")
    }

    pub fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TestResponse {
        self.try_ask(method, path, headers, body).unwrap()
    }

    /// Sends a request on a connection of its own.
    pub fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<TestResponse> {
        ask_at(&self.base, method, path, headers, body)
    }

    /// Waits for a source's first success.
    pub fn wait_for_first(&self, source: &str) -> Value {
        let zero = towpath_proto::diffdelta::Cursor::ZERO.to_string();
        self.wait_for(&format!("/diff/{source}/head.json"), |head| head["cursor"] != zero.as_str())
    }

    /// Waits until `path` answers with a JSON value that `wanted` accepts.
    pub fn wait_for(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.get(path);
            let value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
            if answer.status == 200 && wanted(&value) {
                return value;
            }
            assert!(
                Instant::now() < end,
                "{path} stays {}",
                answer.text().chars().take(2000).collect::<String>()
            );
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request to any server, on a connection of its own.
pub fn ask_at(
    base: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<TestResponse> {
    let stream = std::net::TcpStream::connect(base.strip_prefix("http://").unwrap())?;
    // A missing response fails the test instead of blocking it for ever.
    stream.set_read_timeout(Some(PATIENCE))?;
    ask_on(stream, method, path, headers, body)
}

/// Sends a request on a new connection.
pub fn ask_on(
    mut stream: std::net::TcpStream,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<TestResponse> {
    let host = stream.peer_addr()?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    TestResponse::parse(&bytes)
}

/// Gets a path from any server.
pub fn get_from(base: &str, path: &str, headers: &[(&str, &str)]) -> TestResponse {
    ask_at(base, "GET", path, headers, b"").unwrap()
}

/// An HTTP response.
#[derive(Debug)]
pub struct TestResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl TestResponse {
    /// Bodies are never chunked: towpath sends documents with their length.
    pub fn parse(bytes: &[u8]) -> std::io::Result<Self> {
        let broken = || std::io::Error::other("not a whole response");
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(broken)?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(broken)?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Ok(Self { status, headers, body: bytes[end + 4..].to_vec() })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Values of all lines of a header.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A port that was free a moment ago, for servers that restart at the same address.
pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The lines that `follow` printed.
pub fn lines(output: &Output) -> Vec<Value> {
    let read = |text: &str| {
        let line: Value = serde_json::from_str(text).unwrap();
        // Whatever protocol it comes from, a change has one form: nothing in it is unknown to its reader.
        if let Some(op) = line.get("op").filter(|op| *op != "reset") {
            let read = towpath_proto::line::Line::parse(text.as_bytes());
            assert!(read.is_ok(), "{op}: {text}: {read:?}");
        }
        line
    };
    stdout(output).lines().map(read).collect()
}

/// A version of the catalogue, 1 to 22.
pub fn kev(version: usize) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/kev/{version:02}.json.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The catalogue's items by id.
pub fn catalogue(document: &[u8]) -> BTreeMap<String, Value> {
    let document: Value = serde_json::from_slice(document).unwrap();
    let items = document["vulnerabilities"].as_array().unwrap();
    items.iter().map(|item| (item["cveID"].as_str().unwrap().to_owned(), item.clone())).collect()
}

/// A source that polls `kev.json` as a complete listing.
pub const KEV: &str = r#"
[[feed]]
id = "kev"
title = "Known exploited vulnerabilities"
lang = "en"
[feed.source]
url = "kev.json"
format = "json"
every = "1s"
complete = true
[feed.source.json]
items = "/vulnerabilities"
id = "/cveID"
title = "/vulnerabilityName"
summary = "/shortDescription"
published = "/dateAdded"
url = "https://nvd.nist.gov/vuln/detail/{/cveID}"
"#;

/// Cargo's target folder.
fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap()
}

/// Python with the packages of `tests/requirements.txt`; set up on first use.
pub fn python() -> &'static Path {
    static PYTHON: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PYTHON.get_or_init(|| {
        let venv = target().join("venv");
        set_up("requirements.txt", &venv.join("requirements.txt"));
        venv.join("bin/python")
    })
}

/// Folder with the packages of `tests/feed-readers`; set up on first use.
pub fn npm_packages() -> &'static Path {
    static FOLDER: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = target().join("feed-readers");
        set_up("feed-readers/package-lock.json", &folder.join("installed.json"));
        folder
    })
}

/// Sets up the tests' programs and packages if those that a file below `tests` names are not the installed ones.
fn set_up(wanted: &str, installed: &Path) {
    let wanted = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(wanted);
    // Compared by content, so that changed requirements are installed and others not.
    if std::fs::read(installed).ok() != Some(std::fs::read(wanted).unwrap()) {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut setup = Command::new(cargo);
        let setup = setup.args(["xtask", "setup"]).env("CARGO_TARGET_DIR", target());
        assert!(setup.status().unwrap().success(), "`cargo xtask setup` installs what tests need");
    }
}
