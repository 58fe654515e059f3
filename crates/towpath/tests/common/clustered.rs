//! Any test on the cluster backend: with `TOWPATH_TEST_CLUSTER` set, each place is a node of a cluster of its own, on a
//! server of NATS that the tests of a process share. `cargo xtask cluster-tests` runs all of them so.

use std::time::{Duration, Instant};

use super::{PATIENCE, Server};

/// Whether the tests run on the cluster backend.
pub fn is_on() -> bool {
    std::env::var_os("TOWPATH_TEST_CLUSTER").is_some_and(|value| !value.is_empty())
}

/// Says why a test has nothing to test on the cluster backend, where it is run on that.
pub fn skips(because: &str) -> bool {
    if is_on() {
        println!("not on the cluster backend: {because}");
    }
    is_on()
}

/// A new log, where the tests run on the cluster backend.
pub fn log() -> Option<String> {
    is_on().then(super::nats::fresh_stream)
}

/// Waits until a node that is alone has what only one node may do, as a server of its own has from the start.
pub fn wait_for_roles(server: &Server) {
    let end = Instant::now() + PATIENCE;
    // One at another address than it says cannot be asked.
    while let Ok(answer) = server.try_ask("GET", "/metrics", &[], b"") {
        if answer.status != 200 || answer.text().contains("towpath_role_held{role=\"diffdelta\"} 1") {
            return;
        }
        assert!(Instant::now() < end, "nobody makes the chains");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A configuration with the log in it; `None` where it says so itself, or is none.
pub fn with_log(config: &[u8], log: &str) -> Option<Vec<u8>> {
    let config = std::str::from_utf8(config).ok()?;
    if config.lines().any(|line| line.trim_start().starts_with("cluster")) {
        return None;
    }
    let line = format!("cluster = \"{log}\"");
    let mut lines: Vec<&str> = config.lines().collect();
    // Behind what the configuration says, so that errors name the same lines.
    match lines.iter().position(|line| line.trim() == "[server]") {
        Some(server) => {
            let next = lines.iter().skip(server + 1).position(|line| line.starts_with('['));
            lines.insert(next.map_or(lines.len(), |next| server + 1 + next), &line);
        }
        None => lines.extend(["[server]", &line]),
    }
    let mut config = lines.join("\n");
    config.push('\n');
    Some(config.into_bytes())
}
