//! Real servers on loopback.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

mod free_port;

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use free_port::free_port;

/// Path of the server's program: `NATS_SERVER`, or the one that `cargo xtask setup` installs.
pub fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("NATS_SERVER") {
        return program.into();
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    let program = target.join("venv/bin/nats-server");
    assert!(program.exists(), "{} is missing: run `cargo xtask setup`", program.display());
    program
}

/// NATS server that ends with this process, even if it is killed.
pub struct NatsServer {
    pub port: u16,
    folder: PathBuf,
    options: String,
    watchdog: Option<Child>,
}

impl NatsServer {
    /// Creates a server with its data in a folder and more lines of configuration, without starting it.
    pub fn new(folder: &Path, port: u16, name: &str, options: &str) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let store = folder.join("data");
        let options = format!(
            "listen: \"127.0.0.1:{port}\"\nserver_name: {name}\njetstream {{ store_dir: {store:?}, max_file: 20GB }}\n{options}\n"
        );
        Self { port, folder: folder.to_owned(), options, watchdog: None }
    }

    pub fn start(&mut self) {
        let (config, pid) = (self.folder.join("server.conf"), self.folder.join("pid"));
        std::fs::write(&config, &self.options).unwrap();
        // The pid of an earlier run could be that of another process by now.
        drop(std::fs::remove_file(&pid));
        // The watchdog waits for the end of its input, which comes when this process has ended.
        let keep = "\"$0\" -c \"$1\" -P \"$2\" >\"$3\" 2>&1 & server=$!; cat >/dev/null; kill -9 $server 2>/dev/null; wait";
        let mut watchdog = Command::new("sh");
        // A shell, because the test process may be killed without running any destructor.
        watchdog.args(["-c", keep]).arg(program()).args([&config, &pid, &self.folder.join("output")]);
        self.watchdog = Some(watchdog.stdin(Stdio::piped()).spawn().unwrap());
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{}", self.output());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Replaces the configuration, from the next start or [`NatsServer::reload`] on.
    pub fn configure(&mut self, from: &str, to: &str) {
        assert!(self.options.contains(from), "{}", self.options);
        self.options = self.options.replace(from, to);
        std::fs::write(self.folder.join("server.conf"), &self.options).unwrap();
    }

    pub fn reload(&self) {
        self.signal("HUP");
    }

    pub fn output(&self) -> String {
        std::fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    /// Sends a signal to the server alone.
    pub fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.folder.join("pid")).unwrap();
        let status = Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status().unwrap();
        assert!(status.success());
    }

    /// CPU time that the server has used, in seconds.
    pub fn cpu(&self) -> f64 {
        let pid = std::fs::read_to_string(self.folder.join("pid")).unwrap();
        cpu(pid.trim())
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            // The end of its input makes it kill the server.
            drop(watchdog.stdin.take());
            watchdog.wait().unwrap();
        }
    }

    pub fn is_running(&self) -> bool {
        self.watchdog.is_some()
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// CPU time of a process in seconds; zero where the system does not report it.
pub fn cpu(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Single server with its folder.
pub struct SingleServer {
    pub server: NatsServer,
    pub folder: TempDir,
}

pub fn single(options: &str) -> SingleServer {
    let folder = tempfile::tempdir().unwrap();
    let mut server = NatsServer::new(&folder.path().join("one"), free_port(), "one", options);
    server.start();
    SingleServer { server, folder }
}

/// Cluster of three servers.
pub struct ServerTrio {
    pub servers: Vec<NatsServer>,
    pub folder: TempDir,
}

pub fn trio(options: &str) -> ServerTrio {
    let folder = tempfile::tempdir().unwrap();
    let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let list: Vec<_> = routes.iter().map(|port| format!("\"nats-route://127.0.0.1:{port}\"")).collect();
    let server = |n: usize| {
        let cluster = format!(
            "cluster {{ name: test, listen: \"127.0.0.1:{}\", routes: [{}], no_advertise: true }}\n{options}",
            routes[n],
            list.join(", ")
        );
        let name = format!("s{n}");
        NatsServer::new(&folder.path().join(&name), free_port(), &name, &cluster)
    };
    let mut servers: Vec<_> = (0..3).map(server).collect();
    servers.iter_mut().for_each(NatsServer::start);
    ServerTrio { servers, folder }
}

impl ServerTrio {
    /// Returns the address of the cluster, starting with the server of one node.
    pub fn address(&self, node: usize, query: &str) -> String {
        let hosts: Vec<_> =
            (0..3).map(|n| format!("127.0.0.1:{}", self.servers[(node + n) % 3].port)).collect();
        format!("nats://{}{query}", hosts.join(","))
    }
}

/// Returns the address of a new stream, on a server that all tests of a process share.
pub fn fresh_stream() -> String {
    static SERVER: OnceLock<u16> = OnceLock::new();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let port = *SERVER.get_or_init(|| {
        let SingleServer { server, folder } = single("");
        let port = server.port;
        // Both live until the process ends; then the watchdog stops the server, and a helper removes the folder.
        let script = "cat >/dev/null; sleep 1; rm -rf \"$0\"";
        let mut helper = Command::new("sh");
        let helper = helper.args(["-c", script]).arg(folder.path()).stdin(Stdio::piped()).spawn().unwrap();
        std::mem::forget((server, folder, helper));
        port
    });
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("nats://127.0.0.1:{port}?name=test-{}-{count}", std::process::id())
}

/// Prints past the capture of the test runner.
pub fn say(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}
