//! A run of one page.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Job;
use super::blocks::{Block, Document};
use crate::console::{self, ConsoleCommand};
use crate::postgresql::PageServer;
use crate::run::{root, status, target};
use crate::setup;

/// Limit for what a command in the background is said to print.
const PRINT_LIMIT: Duration = Duration::from_secs(30);

/// Step of a page.
#[derive(Debug, PartialEq, Eq)]
enum PageStep {
    /// A file that the page shows.
    File { name: String, text: String },
    /// A command.
    Command(ConsoleCommand),
}

/// Runs a page in an empty folder.
pub(super) fn run(job: &Job, built: &Path) -> Result<(), String> {
    let Job { name, text, package, wheel, .. } = job;
    println!("{name}:");
    let _server = job.needs(setup::POSTGRESQL).then(PageServer::start).transpose()?;
    let folder = folder(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    if let Some(package) = package {
        let text = format!(
            r#"{{"private":true,"type":"module","dependencies":{{"towpath":"file:{}"}}}}"#,
            package.display()
        );
        std::fs::write(folder.join("package.json"), text)
            .map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    // Beside the folder, so that a page that lists its files does not show it.
    let state = folder.with_extension("state");
    let _ = std::fs::remove_file(&state);
    if let Some(wheel) = wheel {
        python_environment(&folder.with_extension("venv"), wheel, &state)?;
    }
    if job.needs("cargo") {
        cargo_settings(&folder)?;
    }
    let mut running = Vec::new();
    for step in steps(text)? {
        match step {
            PageStep::File { name, text } => {
                let path = folder.join(&name);
                // Else cargo would take the page for a part of this workspace, in which the target folder is.
                let text = if name == "Cargo.toml" { text + "\n[workspace]\n" } else { text };
                std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
            }
            PageStep::Command(command) => match command.line.trim_end().strip_suffix('&') {
                Some(line) => {
                    running.push(Background::start(name, &folder, built, &state, line, &command.output)?);
                }
                None => {
                    let mut shell =
                        console::limited_shell(&folder, built, &with_state(&state, &command.line));
                    command.check(name, &mut shell)?;
                }
            },
        }
    }
    Ok(())
}

/// The folder of a page, named by it.
fn folder(name: &str) -> PathBuf {
    let name = name.trim_start_matches("docs/").trim_end_matches(".md").replace('/', "-");
    target().join("pages").join(name)
}

/// Makes an environment of Python without packages, whose `pip install` finds the wheel, and puts it on the path.
fn python_environment(folder: &Path, wheel: &Path, state: &Path) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(folder);
    status(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let wheels = wheel.parent().unwrap_or(wheel);
    let script = format!(
        "export PATH='{}':\"$PATH\" PIP_NO_INDEX=1 PIP_FIND_LINKS='{}' PIP_DISABLE_PIP_VERSION_CHECK=1\n",
        folder.join("bin").display(),
        wheels.display()
    );
    std::fs::write(state, script).map_err(|e| format!("{}: {e}", state.display()))
}

/// Lets the page's crate find the crates of this checkout, with the versions that its lock file names.
fn cargo_settings(folder: &Path) -> Result<(), String> {
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(folder.join(".cargo")).map_err(error)?;
    let crates = ["towpath-client", "towpath-proto", "towpath-sinks"];
    let paths = crates.map(|name| format!("{name} = {{ path = {:?} }}\n", root().join("crates").join(name)));
    // As the workspace's profile, so that what is built already is used.
    let settings = format!(
        "[net]\noffline = true\n\n[profile.dev]\ndebug = \"line-tables-only\"\n\n[profile.dev.package.\"*\"]\n\
         debug = false\n\n[patch.crates-io]\n{}",
        paths.concat()
    );
    std::fs::write(folder.join(".cargo/config.toml"), settings).map_err(error)?;
    std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).map(drop).map_err(error)
}

/// A script that goes on where the command before it ended: in its folder, with its variables.
fn with_state(state: &Path, line: &str) -> String {
    let state = state.display();
    // The variables of the shell itself are not for the next one.
    format!(
        "[ ! -f '{state}' ] || . '{state}'\n{line}\nended=$?\n{{ export -p; printf 'cd \"%s\"\\n' \"$PWD\"; }} > '{state}'\n\
         exit $ended"
    )
}

/// The files and commands of a page, in order.
fn steps(text: &str) -> Result<Vec<PageStep>, String> {
    let mut steps = Vec::new();
    for block in Document::parse(text).blocks {
        match block {
            Block { not_run: Some(_), .. } => {}
            Block { file: Some(name), .. } if name.contains(['/', ' ']) => {
                return Err(format!("a file of a page is named without folder, not {name:?}"));
            }
            Block { file: Some(name), .. } => {
                steps.push(PageStep::File { name: name.into(), text: block.text() });
            }
            Block { language: "console", .. } => {
                steps.extend(console::commands(&block.lines).into_iter().map(PageStep::Command));
            }
            _ => {}
        }
    }
    Ok(steps)
}

/// A command that runs until the page ends.
struct Background(Child);

impl Background {
    fn start(
        page: &str,
        folder: &Path,
        built: &Path,
        state: &Path,
        line: &str,
        expected: &[String],
    ) -> Result<Self, String> {
        println!("+ {line}&");
        let script = format!("[ ! -f '{0}' ] || . '{0}'\nexec {line}", state.display());
        let child = console::shell(folder, built, &script).stdout(Stdio::piped()).process_group(0).spawn();
        let mut background = Self(child.map_err(|e| format!("{line}: {e}"))?);
        let stdout = background.0.stdout.take().ok_or("no standard output")?;
        let (sender, receiver) = std::sync::mpsc::channel();
        // Reads to the end, so that the program never writes into a closed pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let until = Instant::now() + PRINT_LIMIT;
        for expected in expected {
            loop {
                let left = until.saturating_duration_since(Instant::now());
                match receiver.recv_timeout(left) {
                    Ok(printed) if console::matches(expected, &printed) => break,
                    Ok(_) => {}
                    Err(_) => return Err(format!("{page}: `{line}&` did not print {expected:?}")),
                }
            }
        }
        Ok(background)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The whole group: a pipeline has several programs.
        let group = format!("-{}", self.0.id());
        let _ = std::process::Command::new("kill").args(["-TERM", "--", &group]).status();
        let until = Instant::now() + PRINT_LIMIT;
        while Instant::now() < until {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_files_and_commands() {
        let text = "```toml a.toml\nx = 1\n```\n```console\n$ one &\nout\n```\n```toml\ny = 1\n```\n<!-- not run: why -->\n```console\n$ no\n```\n";
        let command = ConsoleCommand { line: "one &".into(), output: vec!["out".into()] };
        let file = PageStep::File { name: "a.toml".into(), text: "x = 1\n".into() };
        assert_eq!(steps(text).unwrap(), [file, PageStep::Command(command)]);
        assert!(steps("```sh /etc/x\n```\n").is_err());
    }

    #[test]
    fn variables_and_the_folder_last() {
        let folder = target().join("pages/test");
        std::fs::create_dir_all(&folder).unwrap();
        let (state, built) = (folder.with_extension("state"), PathBuf::from("/"));
        let _ = std::fs::remove_file(&state);
        let check = |line: &str, output: &[&str]| {
            let output = output.iter().map(|&line| line.to_owned()).collect();
            let command = ConsoleCommand { line: line.into(), output };
            command.check("test", &mut console::shell(&folder, &built, &with_state(&state, line)))
        };
        check("export A='x  y'; mkdir -p sub; cd sub  # why", &[]).unwrap();
        check("echo \"$A\"; pwd", &["x  y", "…/sub"]).unwrap();
        assert!(check("false", &[]).is_err());
        assert!(check("echo a", &["b"]).unwrap_err().contains("did not print"));
        let background = Background::start(
            "test",
            &folder,
            &built,
            &state,
            "sh -c 'echo \"$A\"; sleep 60'",
            &["x  y".into()],
        );
        drop(background.unwrap());
    }
}
