//! Runs the commands of `README.md` as a newcomer would: in a clone, exactly as they are written.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{self, root, status, target};

/// Limit for the first command to build and print its address.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Limit for a served page, and for the program to stop.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A `$ …` line of a console block, with the lines that it is said to print.
#[derive(Debug, PartialEq, Eq)]
struct DocumentedCommand {
    line: String,
    output: Vec<String>,
}

/// Runs README.md's first command in a clone, opens the page at the printed address, waits for an item of the
/// quickstart's feeds, runs the other commands meanwhile, and stops the program with Ctrl-C.
pub(crate) fn check() -> Result<(), String> {
    let clone = clone()?;
    let path = clone.join("README.md");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut commands = console_commands(&text).into_iter();
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
    check_configurations(&clone, &text)
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
    let built = target().join("release");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(clone);
    run::forget_package(&mut command);
    command.env("CARGO_TARGET_DIR", target()).env("PATH", format!("{}:{path}", built.display()));
    // A documented command must not wait for input from a terminal.
    command.stdin(Stdio::null());
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

fn run_documented(clone: &Path, command: &DocumentedCommand) -> Result<(), String> {
    println!("+ {}", command.line);
    let output = shell(clone, &command.line).output().map_err(|e| format!("{}: {e}", command.line))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let failed = |why: &str| {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("README.md: `{}` {why}\n{printed}{errors}", command.line))
    };
    if !output.status.success() {
        return failed(&format!("ended with {}", output.status));
    }
    let mut lines = printed.lines();
    for expected in &command.output {
        if !lines.any(|line| matches(expected, line)) {
            return failed(&format!("did not print {expected:?}"));
        }
    }
    Ok(())
}

/// Starts every configuration that README.md shows, far enough to read it.
fn check_configurations(clone: &Path, readme: &str) -> Result<(), String> {
    for (number, block) in fenced(readme, "toml").into_iter().enumerate() {
        let name = format!("readme-{number}.toml");
        let path = target().join("readme").join(&name);
        std::fs::write(&path, block.join("\n")).map_err(|e| format!("{}: {e}", path.display()))?;
        let line = format!("towpath status --data '{}.data' --config '{}'", path.display(), path.display());
        run_documented(clone, &DocumentedCommand { line, output: Vec::new() })?;
    }
    Ok(())
}

/// The lines of every fenced block in this language.
fn fenced<'a>(text: &'a str, language: &str) -> Vec<Vec<&'a str>> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, Vec<&str>)> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(named)) => open = Some((named.trim() == language, Vec::new())),
            (Some(_), Some(_)) => {
                blocks.extend(open.take().filter(|(wanted, _)| *wanted).map(|(_, lines)| lines));
            }
            (Some((_, lines)), None) => lines.push(line),
            (None, None) => {}
        }
    }
    blocks
}

/// The commands of all console blocks; a line that ends in a backslash goes on in the next.
fn console_commands(text: &str) -> Vec<DocumentedCommand> {
    let mut commands: Vec<DocumentedCommand> = Vec::new();
    for line in fenced(text, "console").into_iter().flatten() {
        let last = commands.last_mut();
        match (line.strip_prefix("$ "), last) {
            (Some(line), _) => commands.push(DocumentedCommand { line: line.into(), output: Vec::new() }),
            (None, Some(last)) if last.line.ends_with('\\') => {
                last.line.push('\n');
                last.line.push_str(line);
            }
            (None, Some(last)) if !line.trim().is_empty() => last.output.push(line.to_owned()),
            _ => {}
        }
    }
    commands
}

/// Compares a printed line with the documented one, in which `…` matches any text.
fn matches(expected: &str, line: &str) -> bool {
    let mut parts = expected.trim_end().split('…');
    let Some(mut rest) = parts.next().and_then(|start| line.trim_end().strip_prefix(start)) else {
        return false;
    };
    let mut is_open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        // Only an ellipsis at the end leaves the rest of the line open.
        is_open = part.is_empty();
    }
    is_open || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_output_are_read() {
        let text =
            "a\n```console\n$ one  # why\nout\n\n$ two \\\n    three\n```\n```toml\nx = 1\n```\n$ no\n";
        let command = |line: &str, output: &[&str]| DocumentedCommand {
            line: line.into(),
            output: output.iter().map(|&line| line.into()).collect(),
        };
        let expected = [command("one  # why", &["out"]), command("two \\\n    three", &[])];
        assert_eq!(console_commands(text), expected);
        assert_eq!(fenced(text, "toml"), [["x = 1"]]);
    }

    #[test]
    fn an_ellipsis_stands_for_anything() {
        for (expected, line, is_same) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a…", "abc", true),
            ("a…c", "abc", true),
            ("a…c", "abcd", false),
            ("…c…", "abcd", true),
            ("b…", "abc", false),
        ] {
            assert_eq!(matches(expected, line), is_same, "{expected} {line}");
        }
    }
}
