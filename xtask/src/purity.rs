//! The check that `towpath-proto` stays pure: no runtime, no sockets, no files, no clock.

use std::path::Path;
use std::process::Command;

use crate::run::root;

/// Crates that reach outside; none of them may be below `towpath-proto`.
const IMPURE: [&str; 9] =
    ["tokio", "mio", "socket2", "hyper", "reqwest", "async-std", "smol", "fjall", "tempfile"];

/// What the sources may not name.
const OUTSIDE: [&str; 11] = [
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "std::env",
    "std::time::SystemTime",
    "std::time::Instant",
    "SystemTime::now",
    "Instant::now",
    "Timestamp::now",
    "Zoned::now",
];

pub(crate) fn check() -> Result<(), String> {
    dependencies()?;
    let mut found = Vec::new();
    sources(&root().join("crates/towpath-proto/src"), &mut found)?;
    if found.is_empty() {
        println!("towpath-proto is pure");
        return Ok(());
    }
    Err(format!("towpath-proto reaches outside:\n{}", found.join("\n")))
}

fn dependencies() -> Result<(), String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "tree",
            "--package",
            "towpath-proto",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo tree: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    let mut impure: Vec<&str> = names.filter(|name| IMPURE.contains(name)).collect();
    impure.dedup();
    if impure.is_empty() { Ok(()) } else { Err(format!("towpath-proto depends on {}", impure.join(", "))) }
}

fn sources(folder: &Path, found: &mut Vec<String>) -> Result<(), String> {
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).map_err(error)?;
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
            let outside = lines.filter(|(_, line)| OUTSIDE.iter().any(|name| line.contains(name)));
            found.extend(outside.map(|(n, line)| format!("{}:{}: {}", path.display(), n + 1, line.trim())));
        }
    }
    Ok(())
}
