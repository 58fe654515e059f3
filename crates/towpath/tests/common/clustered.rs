//! Runs any test on the cluster backend. With `TOWPATH_TEST_CLUSTER` set, each folder is a node of its own cluster,
//! on a NATS server that the tests of a process share. `cargo xtask cluster-tests` runs all tests this way.

use std::time::{Duration, Instant};

use super::{PATIENCE, TestServer};

/// Returns true if the tests run on the cluster backend.
pub fn is_on() -> bool {
    std::env::var_os("TOWPATH_TEST_CLUSTER").is_some_and(|value| !value.is_empty())
}

/// Prints the reason why a test is skipped on the cluster backend; returns true there.
pub fn skips(because: &str) -> bool {
    if is_on() {
        println!("not on the cluster backend: {because}");
    }
    is_on()
}

/// Creates a new log, if the tests run on the cluster backend.
pub fn log() -> Option<String> {
    is_on().then(super::nats::fresh_stream)
}

/// Waits until a single node holds its roles, which a server without a cluster holds from the start.
pub fn wait_for_roles(server: &TestServer) {
    let end = Instant::now() + PATIENCE;
    // A server that listens elsewhere than its base URL cannot be asked.
    while let Ok(answer) = server.try_ask("GET", "/metrics", &[], b"") {
        if answer.status != 200 || answer.text().contains("towpath_role_held{role=\"diffdelta\"} 1") {
            return;
        }
        assert!(Instant::now() < end, "no node has the role of the chains");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Adds the log to a configuration. Returns `None` if it names one itself, or is not a configuration.
pub fn with_log(config: &[u8], log: &str) -> Option<Vec<u8>> {
    let config = std::str::from_utf8(config).ok()?;
    if config.lines().any(|line| line.trim_start().starts_with("cluster")) {
        return None;
    }
    let line = format!("cluster = \"{log}\"");
    let mut lines: Vec<&str> = config.lines().collect();
    // Appended at the end of the section, so that errors name the same lines.
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
