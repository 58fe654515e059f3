//! The check that `towpath-proto` stays pure: no runtime, no sockets, no files, no clock.

use std::path::Path;
use std::process::Command;

use crate::layers::imports::{leaves, split_uses, without_comments, without_tests};
use crate::run::root;

/// Crates that reach outside; none of them may be below `towpath-proto`.
const IMPURE: [&str; 9] =
    ["tokio", "mio", "socket2", "hyper", "reqwest", "async-std", "smol", "fjall", "tempfile"];

/// Modules of `std` and `core` that the sources may name, with their names where a module also reaches outside. An empty
/// list of names stands for all of them.
const ALLOWED: &[(&str, &[&str])] = &[
    ("borrow", &[]),
    ("cell", &[]),
    ("cmp", &[]),
    ("collections", &[]),
    ("convert", &[]),
    ("error", &[]),
    ("fmt", &[]),
    ("hash", &[]),
    // Traits over memory. Standard streams are not among them.
    ("io", &["BufRead", "Error", "ErrorKind", "Read", "Result", "Write"]),
    ("iter", &[]),
    ("mem", &[]),
    // Addresses are values; sockets are not.
    ("net", &["IpAddr", "Ipv4Addr", "Ipv6Addr"]),
    ("num", &[]),
    ("ops", &[]),
    ("pin", &[]),
    ("slice", &[]),
    ("str", &[]),
    ("string", &[]),
    ("sync", &["Arc", "LazyLock", "OnceLock"]),
    // As a value that formats convert from and to.
    ("time", &["Duration", "SystemTime"]),
    ("vec", &[]),
];

/// Calls that read the clock.
const CLOCKS: [&str; 3] = ["SystemTime::now", "Timestamp::now", "Zoned::now"];

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
            // Tests may use tempfile; only what the library links counts.
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
            let outside = outside(&text);
            found.extend(outside.iter().map(|name| format!("{}: {name}", path.display())));
        }
    }
    Ok(())
}

/// Returns the names in a source that reach outside.
fn outside(text: &str) -> Vec<String> {
    let code = without_tests(&without_comments(text));
    let (uses, rest) = split_uses(&code);
    let used = uses.iter().flat_map(|tree| leaves(tree)).map(|(path, _)| path);
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let named = rest.split(|c| !is_part(c)).filter(|word| word.contains("::")).map(str::to_owned);
    let mut outside: Vec<String> = used.chain(named).filter(|path| !is_allowed(path)).collect();
    outside.dedup();
    outside
}

fn is_allowed(path: &str) -> bool {
    let path = path.trim_start_matches("::");
    let mut segments = path.split("::");
    // Before the list: it allows `SystemTime` as a value, and `now` would pass with it.
    if CLOCKS.iter().any(|clock| path.ends_with(clock)) {
        return false;
    }
    if !matches!(segments.next(), Some("std" | "core" | "alloc")) {
        return true;
    }
    // The crate itself, or all of it, could bring anything.
    let Some(module) = segments.next() else { return false };
    let Some((_, names)) = ALLOWED.iter().find(|(allowed, _)| *allowed == module) else { return false };
    names.is_empty() || segments.next().is_some_and(|name| names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_outside_is_found_in_every_form() {
        for text in [
            "use std::{fs};",
            "use std::{collections::HashMap, net::{TcpStream}};",
            "use std::fs::File;",
            "use ::std::env;",
            "use std as s;",
            "use std::*;",
            "use std::time::{Duration, Instant};",
            "use std::time;",
            "use std::io::{Read, stdin};",
            "fn f() { std::thread::sleep(d) }",
            "fn f() -> core::net::SocketAddr { g() }",
            "fn f() { jiff::Timestamp::now() }",
            "use std::time::SystemTime;\nfn f() { SystemTime::now() }",
        ] {
            assert_eq!(outside(text).len(), 1, "{text}: {:?}", outside(text));
        }
    }

    #[test]
    fn values_and_tests_do_not_reach_outside() {
        let text = "use std::collections::{BTreeMap, HashMap};\nuse std::io::Write as _;\nuse core::net::IpAddr;\n\
                    use crate::std_like::fs;\n// std::fs\nfn f() -> std::fmt::Result { std::mem::take(x); \"std::fs\" }\n\
                    #[cfg(test)]\nmod tests { use std::fs; }\n";
        assert_eq!(outside(text), [""; 0]);
    }
}
