//! A PostgreSQL server for the pages below `docs/`, on the usual port of loopback. It ends with the page.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{have, is_root, status};
use crate::setup;

/// Time that the server has to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Access of the users: `postgres` as on the server's own machine, others by their passwords.
const ACCESS: &str = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// A running server, with a folder of its own.
pub(crate) struct PageServer {
    folder: PathBuf,
    child: Option<Child>,
}

impl PageServer {
    /// Starts a server without databases of its own.
    pub(crate) fn start() -> Result<Self, String> {
        setup::postgresql()?;
        // Not below the target folder: the server's user may not be allowed to go there.
        let folder = std::env::temp_dir().join(format!("towpath-pages-{}", std::process::id()));
        let error = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir_all(&folder).map_err(error)?;
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).map_err(error)?;
        let data = folder.join("data");
        std::fs::create_dir_all(&data).map_err(error)?;
        if is_root() {
            status(Command::new("chown").args(["-R", "postgres"]).arg(&folder))?;
        }
        let mut server = Self { folder, child: None };
        let init = ["--no-sync", "--encoding=UTF8", "--locale=C", "--username=postgres", "--auth=trust"];
        status(command("initdb").args(init).arg("-D").arg(&data).stdout(Stdio::null()))?;
        std::fs::write(data.join("pg_hba.conf"), ACCESS).map_err(|e| format!("pg_hba.conf: {e}"))?;
        let log = server.folder.join("log");
        let log = std::fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let mut postgres = command("postgres");
        postgres.arg("-D").arg(&data).args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c"]);
        postgres.arg(format!("unix_socket_directories={}", server.folder.display()));
        let child = postgres.stdout(Stdio::null()).stderr(log).spawn();
        server.child = Some(child.map_err(|e| format!("postgres: {e}"))?);
        server.wait()?;
        Ok(server)
    }

    fn wait(&mut self) -> Result<(), String> {
        let end = Instant::now() + START_LIMIT;
        while Instant::now() < end {
            let has_ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if has_ended {
                break;
            }
            let ready = Command::new("psql")
                .args(["-h", "127.0.0.1", "-U", "postgres", "-c", "SELECT 1"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if ready.is_ok_and(|status| status.success()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        Err(format!("PostgreSQL does not start on port 5432: {log}"))
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // At once, without a last checkpoint: its data is removed.
            let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Makes a command of a program of the server, which refuses to run as root.
fn command(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if is_root() {
        command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
    }
    command.arg(program(name)).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Returns the path of a program. Debian keeps them in a folder of the version.
fn program(name: &str) -> PathBuf {
    if have(name) {
        return name.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let programs = versions.map(|version| version.path().join("bin").join(name));
    programs.filter(|path| path.is_file()).max().unwrap_or_else(|| Path::new(name).to_owned())
}
