//! A real PostgreSQL server on loopback, with its own folder and port. It ends with the test.

#[allow(clippy::duplicate_mod, reason = "a test of the program has it for its other servers, too")]
#[path = "../../../towpath-cluster/tests/common/free_port.rs"]
mod free_port;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use free_port::free_port;

/// Superuser of every server, and its password.
pub const USER: &str = "owner";
pub const PASSWORD: &str = "hush-hush";

const PATIENCE: Duration = Duration::from_secs(30);

/// A server, running or not.
pub struct PostgresServer {
    folder: tempfile::TempDir,
    child: Option<Child>,
    pub port: u16,
}

/// Returns a program of PostgreSQL. Debian keeps them in a folder of the version.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.is_file()).collect();
    found.sort();
    found.pop().unwrap_or_else(|| name.into())
}

/// Returns the user that the server runs as, if this process is root, which the server refuses.
fn server_user() -> Option<&'static str> {
    let uid = Command::new("id").arg("-u").output().unwrap();
    if uid.stdout.trim_ascii() != b"0" {
        return None;
    }
    let exists = Command::new("id").arg("postgres").output().unwrap().status.success();
    Some(if exists { "postgres" } else { "nobody" })
}

/// Makes a command that runs as the server's user, and ends with this process.
fn command(name: &str) -> Command {
    let program = program(name);
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(user) = server_user() {
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
    }
    command.arg(program).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

fn give_to_server(path: &Path) {
    if let Some(user) = server_user() {
        assert!(Command::new("chown").args(["-R", user]).arg(path).status().unwrap().success());
    }
}

/// Returns true for a process that is there, and not only its exit status.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

impl PostgresServer {
    /// Starts a new server with an empty database `feeds`.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The server's user must be able to reach the folder.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        let password = folder.path().join("password");
        writeln!(fs::File::create(&password).unwrap(), "{PASSWORD}").unwrap();
        fs::create_dir(&data).unwrap();
        give_to_server(folder.path());
        let made = command("initdb")
            .args(["--no-sync", "--encoding=UTF8", "--locale=C", "--username", USER])
            .args(["--auth=scram-sha-256", "--pwfile"])
            .arg(&password)
            .arg("-D")
            .arg(&data)
            .output()
            .expect("PostgreSQL's initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut server = Self { folder, child: None, port: free_port() };
        // Processes are killed here, machines are not: the system's cache outlives them.
        for setting in
            ["fsync=off", "shared_buffers=32MB", "max_connections=30", "listen_addresses='127.0.0.1'"]
        {
            server.set(setting);
        }
        server.run();
        server.query_in("postgres", "CREATE DATABASE feeds");
        server
    }

    /// Folder of the server's data.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Adds a setting, for the next start.
    pub fn set(&self, setting: &str) {
        let mut config =
            fs::OpenOptions::new().append(true).open(self.data().join("postgresql.conf")).unwrap();
        writeln!(config, "{setting}").unwrap();
    }

    /// Gives a private key to the server alone, as it demands.
    pub fn own_key(&self, key: &Path) {
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
        give_to_server(key);
    }

    /// Starts the server again.
    pub fn run(&mut self) {
        let end = Instant::now() + PATIENCE;
        loop {
            let log = fs::File::create(self.folder.path().join("log")).unwrap();
            let child = command("postgres")
                .arg("-D")
                .arg(self.data())
                .args(["-p", &self.port.to_string(), "-c"])
                .arg(format!("unix_socket_directories={}", self.folder.path().display()))
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap();
            self.child = Some(child);
            if self.is_ready(end) {
                return;
            }
            // Processes of a killed server keep its memory for a moment.
            assert!(Instant::now() < end, "PostgreSQL does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_ready(&mut self, end: Instant) -> bool {
        loop {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                return false;
            }
            if self.psql("postgres", "SELECT 1").is_ok() {
                return true;
            }
            assert!(Instant::now() < end, "PostgreSQL does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// kill -9 of the server's first process. Returns once the others have noticed: until then they answer.
    pub fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let others = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let end = Instant::now() + PATIENCE;
        while others.split_whitespace().any(is_running) {
            assert!(Instant::now() < end, "processes of PostgreSQL that do not end: {others}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// URL of the database `feeds` for the superuser.
    pub fn url(&self) -> String {
        self.url_of(USER, PASSWORD)
    }

    /// URL of the database for another user.
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("postgres://{user}:{password}@127.0.0.1:{}/feeds", self.port)
    }

    /// Runs SQL in the database `feeds`; returns the rows, with `|` between columns.
    pub fn query(&self, sql: &str) -> String {
        self.query_in("feeds", sql)
    }

    /// Runs SQL in another database.
    pub fn query_in(&self, database: &str, sql: &str) -> String {
        self.psql(database, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs a file of SQL in the database `feeds`.
    pub fn run_file(&self, file: &Path) {
        let output = Command::new(program("psql"))
            .args(["-Xq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-U", USER, "-d", "feeds", "-f"])
            .arg(file)
            .env("PGPASSWORD", PASSWORD)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let output = Command::new(program("psql"))
            .args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-U", USER, "-d", database, "-c", sql])
            .env("PGPASSWORD", PASSWORD)
            .output()
            .unwrap();
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout).unwrap().trim_end().to_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // The folder is removed next, so nothing has to be written.
        if let Some(mut child) = self.child.take() {
            let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            let _ = child.wait();
        }
    }
}
