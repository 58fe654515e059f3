//! Console blocks of documents: their commands, and what these are said to print.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{self, target};

/// Limit for a command of a page. The longest ones build crates.
const LIMIT_SECONDS: &str = "240";

/// A `$ …` line of a console block, with the lines that it is said to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsoleCommand {
    pub(crate) line: String,
    pub(crate) output: Vec<String>,
}

impl ConsoleCommand {
    /// Returns true if the command goes on in the next line: after a backslash, or inside of quotes.
    fn is_open(&self) -> bool {
        self.line.ends_with('\\') || !self.line.matches('\'').count().is_multiple_of(2)
    }

    /// Runs the command in a shell; an error unless it succeeds and prints what `page` says.
    pub(crate) fn check(&self, page: &str, shell: &mut Command) -> Result<(), String> {
        println!("+ {}", self.line);
        let output = shell.output().map_err(|e| format!("{}: {e}", self.line))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let failed = |why: &str| {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(format!("{page}: `{}` {why}\n{printed}{errors}", self.line))
        };
        if !output.status.success() {
            return failed(&format!("ended with {}", output.status));
        }
        let mut lines = printed.lines();
        for expected in &self.output {
            if !lines.any(|line| matches(expected, line)) {
                return failed(&format!("did not print {expected:?}"));
            }
        }
        Ok(())
    }
}

/// A shell for a documented line, in a folder, with the program of the folder `built` on its path.
pub(crate) fn shell(folder: &Path, built: &Path, line: &str) -> Command {
    prepared(Command::new("sh"), folder, built, line)
}

/// A shell as [`shell`], which fails when the line takes too long.
pub(crate) fn limited_shell(folder: &Path, built: &Path, line: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT_SECONDS, "sh"]);
    prepared(command, folder, built, line)
}

fn prepared(mut command: Command, folder: &Path, built: &Path, line: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(["-c", line]).current_dir(folder);
    run::forget_package(&mut command);
    command.env("CARGO_TARGET_DIR", target()).env("PATH", format!("{}:{path}", built.display()));
    // A documented command must not wait for input from a terminal.
    command.stdin(Stdio::null());
    command
}

/// The commands of a console block; a line that ends in a backslash, or inside of quotes, goes on in the next.
pub(crate) fn commands(lines: &[&str]) -> Vec<ConsoleCommand> {
    let mut commands: Vec<ConsoleCommand> = Vec::new();
    for line in lines {
        let last = commands.last_mut();
        match (line.strip_prefix("$ "), last) {
            (Some(line), _) => commands.push(ConsoleCommand { line: line.into(), output: Vec::new() }),
            (None, Some(last)) if last.is_open() => {
                last.line.push('\n');
                last.line.push_str(line);
            }
            (None, Some(last)) if !line.trim().is_empty() => last.output.push((*line).to_owned()),
            _ => {}
        }
    }
    commands
}

/// Compares a printed line with the documented one, in which `…` matches any text.
pub(crate) fn matches(expected: &str, line: &str) -> bool {
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
        let lines = ["$ one  # why", "out", "", "$ two \\", "    three", "$ four '", "  5' ", "out"];
        let command = |line: &str, output: &[&str]| ConsoleCommand {
            line: line.into(),
            output: output.iter().map(|&line| line.into()).collect(),
        };
        let expected = [
            command("one  # why", &["out"]),
            command("two \\\n    three", &[]),
            command("four '\n  5' ", &["out"]),
        ];
        assert_eq!(commands(&lines), expected);
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
