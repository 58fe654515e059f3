//! A cluster of nodes of this version and of the one before.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{self, root, status, target};
use crate::setup;

/// File with the commit of the version before this one.
const PREVIOUS: &str = "crates/towpath/tests/data/previous-version";
/// Folder of the messages that the version before wrote, with what it made of them.
const RECORD: &str = "crates/towpath-cluster/tests/data";

/// Runs a cluster of both versions. With `is_recording`, writes what the version before does alone into the repository.
pub(crate) fn run(is_recording: bool) -> Result<(), String> {
    let server = setup::venv()?.with_file_name("nats-server");
    let previous = match std::env::var_os("TOWPATH_PREVIOUS") {
        Some(program) => PathBuf::from(program),
        None => build()?,
    };
    let mut variables = vec![("NATS_SERVER", text(&server)?), ("TOWPATH_PREVIOUS", text(&previous)?)];
    if is_recording {
        variables.push(("TOWPATH_RECORD", text(&root().join(RECORD))?));
    }
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    run::program_tests(&["cluster_versions::"], &variables)
}

fn text(path: &std::path::Path) -> Result<String, String> {
    path.to_str().map(str::to_owned).ok_or_else(|| format!("{}: not UTF-8", path.display()))
}

/// Builds the program of the version before, in a worktree of its commit.
fn build() -> Result<PathBuf, String> {
    let file = root().join(PREVIOUS);
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let commit = text.lines().find(|line| !line.starts_with('#') && !line.trim().is_empty());
    let commit = commit.ok_or_else(|| format!("{}: it names no commit", file.display()))?.trim();
    let folder = target().join("previous-version");
    if folder.exists() {
        status(Command::new("git").args(["checkout", "--quiet", "--detach", commit]).current_dir(&folder))?;
    } else {
        let add = ["worktree", "add", "--force", "--detach"];
        status(Command::new("git").args(add).arg(&folder).arg(commit).current_dir(root()))?;
    }
    let built = target().join("previous-build");
    let mut cargo = run::command();
    // A folder of its own: two versions of one package would build each other anew.
    status(
        cargo
            .args(["build", "--locked", "--package", "towpath"])
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", &built),
    )?;
    Ok(built.join("debug/towpath"))
}
