//! Servers for exported trees: nginx with the generated configuration, and a plain file server.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use super::{PATIENCE, free_port};

/// Child process, ended with the test.
pub struct Process {
    child: Child,
    pub base: String,
    _folder: tempfile::TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        // nginx stops its workers on SIGTERM only.
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

/// nginx on a port, with this text inside of `http { … }` and of `server { … }`.
pub fn nginx(port: u16, http: &str, server: &str) -> Process {
    install("nginx", "-v");
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    // As root, nginx's workers become "nobody", who cannot read this folder.
    let user = if nix_is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} pid {at}/pid; error_log {at}/error.log; worker_processes 1; daemon off;
        events {{ worker_connections 64; }}
        http {{
            access_log off; client_body_temp_path {at}/1; proxy_temp_path {at}/2; fastcgi_temp_path {at}/3;
            uwsgi_temp_path {at}/4; scgi_temp_path {at}/5;
            {http}
            server {{ listen 127.0.0.1:{port}; {server} }}
        }}"
    );
    std::fs::write(folder.path().join("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-c").arg(folder.path().join("nginx.conf")).arg("-p").arg(folder.path());
    start(command, port, folder)
}

/// Caddy with this configuration, which listens on a port.
pub fn caddy(port: u16, config: &str) -> Process {
    install("caddy", "version");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("Caddyfile"), config).unwrap();
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(folder.path().join("Caddyfile"));
    // Its own state stays in the folder too.
    command.env("XDG_CONFIG_HOME", folder.path()).env("XDG_DATA_HOME", folder.path()).stderr(Stdio::null());
    start(command, port, folder)
}

/// Installs a program if this command of it does not run.
fn install(program: &str, try_it: &str) {
    let mut command = Command::new(program);
    let tried = command.arg(try_it).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let setup = Command::new(cargo).args(["xtask", "setup"]).status();
        assert!(setup.unwrap().success(), "`cargo xtask setup` installs {program}");
    }
}

fn nix_is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout.starts_with(b"0")
}

/// nginx with the configuration files of a tree.
pub fn nginx_of(port: u16, tree: &Path) -> Process {
    let include = |name: &str| format!("include {}/.towpath/{name};", tree.display());
    nginx(port, &include("towpath-http.conf"), &include("towpath.conf"))
}

/// Plain file server, with `index` as a folder's own document.
pub fn files(port: u16, tree: &Path) -> Process {
    let script = format!(
        "import http.server, os\n\
         class Files(http.server.SimpleHTTPRequestHandler):\n\
         \x20   def translate_path(self, path):\n\
         \x20       found = super().translate_path(path)\n\
         \x20       return os.path.join(found, 'index') if os.path.isdir(found) else found\n\
         \x20   def log_message(self, *_): pass\n\
         os.chdir({:?})\n\
         http.server.ThreadingHTTPServer(('127.0.0.1', {port}), Files).serve_forever()\n",
        tree.display().to_string()
    );
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("python3");
    command.arg("-c").arg(script);
    start(command, port, folder)
}

fn start(mut command: Command, port: u16, folder: tempfile::TempDir) -> Process {
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "{command:?} does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    Process { child, base: format!("http://127.0.0.1:{port}"), _folder: folder }
}

/// A port for a tree, and the address that goes with it.
pub fn address() -> (u16, String) {
    let port = free_port();
    (port, format!("http://127.0.0.1:{port}"))
}

/// Every file of a tree, with inode and time, which tell if it was rewritten.
pub fn listing(tree: &Path) -> BTreeMap<String, (u64, SystemTime)> {
    use std::os::unix::fs::MetadataExt as _;
    let mut files = BTreeMap::new();
    let mut open = vec![tree.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let known = path.symlink_metadata().unwrap();
            match known.is_dir() {
                true => open.push(path),
                false => {
                    let name = path.strip_prefix(tree).unwrap().display().to_string();
                    files.insert(name, (known.ino(), known.modified().unwrap()));
                }
            }
        }
    }
    files
}

/// Paths of the documents in a tree.
pub fn paths(tree: &Path) -> Vec<String> {
    let own = |name: &String| {
        !name.starts_with(".towpath/")
            && !name.ends_with(".gz")
            && !matches!(name.as_str(), "_headers" | "_redirects")
    };
    let path = |name: String| format!("/{}", name.strip_suffix("/index").unwrap_or(&name));
    listing(tree).into_keys().filter(own).map(path).collect()
}
