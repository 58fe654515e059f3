//! Runs the commands of `README.md` as a newcomer would: in a clone, exactly as they are written.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::console::{self, ConsoleCommand};
use crate::pages;
use crate::pages::blocks::Document;
use crate::run::{root, status, target};

/// Limit for the first command to build and print its address.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Limit for a served page, and for the program to stop.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Runs README.md's first command in a clone, opens the page at the printed address, waits for an item of the
/// quickstart's feeds, runs the other commands meanwhile, and stops the program with Ctrl-C.
pub(crate) fn check() -> Result<(), String> {
    let clone = clone()?;
    let path = clone.join("README.md");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let document = Document::parse(&text);
    let mut commands = document.in_language("console").flat_map(|block| console::commands(&block.lines));
    let first = commands.next().ok_or("README.md has no console block")?;
    println!("+ {}", first.line);
    let started = Instant::now();
    let mut server = RunningServer::start(&clone, &first.line)?;
    let page = get(&server.address, "/")?;
    if !page.contains("<html") {
        return Err(format!("README.md: {} is not a page: {page}", server.address));
    }
    println!("first page after {:.1} s", started.elapsed().as_secs_f64());
    wait_for_item(&server.address)?;
    // The second command runs this check itself.
    for command in commands.filter(|command| !command.line.starts_with("cargo ")) {
        run_documented(&clone, &command)?;
    }
    server.interrupt()?;
    check_configurations(&clone, &text)?;
    // After the server: pages start their own, at the same address.
    pages::check(&programs(), &[])
}

/// The folder that the commands build into: of its own, or cargo would take what it built of the clone for the checkout's.
fn builds() -> PathBuf {
    target().join("readme/target")
}

/// The folder of the program that the first command builds.
fn programs() -> PathBuf {
    builds().join("debug")
}

/// Brings a clone of the checkout below the target folder up to date, uncommitted changes included. It is kept
/// between runs, so that unchanged files keep their times and nothing is built twice.
fn clone() -> Result<PathBuf, String> {
    let clone = target().join("readme/clone");
    let git = |folder: &Path, args: &[&str]| status(Command::new("git").arg("-C").arg(folder).args(args));
    if !clone.join(".git").exists() {
        std::fs::create_dir_all(&clone).map_err(|e| format!("{}: {e}", clone.display()))?;
        git(&clone, &["init", "--quiet"])?;
    }
    let origin = root().display().to_string();
    git(&clone, &["fetch", "--quiet", "--depth", "1", &format!("file://{origin}"), "HEAD"])?;
    git(&clone, &["reset", "--quiet", "--hard", "FETCH_HEAD"])?;
    // The second `f` also removes repositories inside the clone.
    git(&clone, &["clean", "--quiet", "-ffdx"])?;
    copy_uncommitted(&clone)?;
    Ok(clone)
}

fn copy_uncommitted(clone: &Path) -> Result<(), String> {
    let args = ["ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard"];
    let listed = Command::new("git").arg("-C").arg(root()).args(args).output();
    let listed = listed.map_err(|e| format!("git ls-files: {e}"))?;
    let names = String::from_utf8_lossy(&listed.stdout);
    for name in names.split_terminator('\0') {
        let (from, to) = (root().join(name), clone.join(name));
        let copied = if from.exists() {
            to.parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::copy(&from, &to).map(drop))
        } else if to.exists() {
            std::fs::remove_file(&to)
        } else {
            Ok(())
        };
        copied.map_err(|e| format!("{}: {e}", to.display()))?;
    }
    Ok(())
}

/// A shell for a documented line, in the clone, with the program that the first command built on its path.
fn shell(clone: &Path, line: &str) -> Command {
    let mut command = console::shell(clone, &programs(), line);
    command.env("CARGO_TARGET_DIR", builds());
    command
}

/// The program as README.md's first command started it, in a process group of its own.
struct RunningServer {
    child: Child,
    /// `127.0.0.1:8080`, as the program printed it.
    address: String,
}

impl RunningServer {
    fn start(clone: &Path, line: &str) -> Result<Self, String> {
        // `exec`, or the shell would take the interrupt and its exit status would count. `nice`, because tests run
        // beside the build.
        let mut command = shell(clone, &format!("exec nice -n 10 {line}"));
        let child = command.stdout(Stdio::piped()).process_group(0).spawn();
        let mut server = Self { child: child.map_err(|e| format!("{line}: {e}"))?, address: String::new() };
        let stdout = server.child.stdout.take().ok_or("no standard output")?;
        let (sender, receiver) = std::sync::mpsc::channel();
        // Reads to the end, so that the program never writes into a closed pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let until = Instant::now() + BUILD_LIMIT;
        while let Ok(printed) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if let Some((_, rest)) = printed.split_once("http://") {
                rest.split('/').next().unwrap_or(rest).trim().clone_into(&mut server.address);
                return Ok(server);
            }
        }
        Err(format!("README.md: `{line}` printed no address; what it said is above"))
    }

    /// Sends what a terminal sends on Ctrl-C, and expects a clean end.
    fn interrupt(&mut self) -> Result<(), String> {
        let group = format!("-{}", self.child.id());
        // The whole group, as a terminal does.
        status(Command::new("kill").args(["-INT", "--", &group]))?;
        let until = Instant::now() + ANSWER_LIMIT;
        while Instant::now() < until {
            match self.child.try_wait().map_err(|e| e.to_string())? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(format!("README.md: after Ctrl-C the program ended with {status}"));
                }
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
        Err(format!("README.md: the program goes on {} s after Ctrl-C", ANSWER_LIMIT.as_secs()))
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The response to a GET as a browser sends it, headers and all.
fn get(address: &str, path: &str) -> Result<String, String> {
    let error = |e: std::io::Error| format!("http://{address}{path}: {e}");
    let mut stream = TcpStream::connect(address).map_err(error)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(error)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/html, */*;q=0.5\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).map_err(error)?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).map_err(error)?;
    let response = String::from_utf8_lossy(&response).into_owned();
    if response.starts_with("HTTP/1.1 200 ") { Ok(response) } else { Err(format!("{path}: {response}")) }
}

fn wait_for_item(address: &str) -> Result<(), String> {
    let until = Instant::now() + ANSWER_LIMIT;
    while Instant::now() < until {
        if get(address, "/feeds/kev/items?max=1")?.contains("CVE-") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err("README.md: the quickstart's feed kev has no item".into())
}

fn run_documented(clone: &Path, command: &ConsoleCommand) -> Result<(), String> {
    command.check("README.md", &mut shell(clone, &command.line))
}

/// Starts every configuration that README.md shows, far enough to read it.
fn check_configurations(clone: &Path, readme: &str) -> Result<(), String> {
    for (number, block) in Document::parse(readme).in_language("toml").enumerate() {
        let name = format!("readme-{number}.toml");
        let path = target().join("readme").join(&name);
        std::fs::write(&path, block.text()).map_err(|e| format!("{}: {e}", path.display()))?;
        let line = format!("towpath status --data '{}.data' --config '{}'", path.display(), path.display());
        run_documented(clone, &ConsoleCommand { line, output: Vec::new() })?;
    }
    Ok(())
}
