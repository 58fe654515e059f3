//! A running `towpath follow --push`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{PATIENCE, TestFolder, free_port};

/// A running `towpath follow --push`, and the lines that it printed.
pub struct PushFollow {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    pub callback: String,
}

impl PushFollow {
    pub fn start(dir: &TestFolder, url: &str) -> Self {
        Self::start_with(dir, url, &[])
    }

    pub fn start_with(dir: &TestFolder, url: &str, more: &[&str]) -> Self {
        let callback = format!("http://127.0.0.1:{}/pushed", free_port());
        let stderr = std::fs::File::options().create(true).append(true).open(dir.path("follow.log")).unwrap();
        let mut child = dir
            .command(&["follow", url, "--push", "--callback", &callback, "--state", "state.json"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (out, kept) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in out.lines() {
                let Ok(line) = line else { return };
                kept.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, lines, callback }
    }

    pub fn lines(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }

    pub fn wait_for(&self, id: &str) {
        let end = Instant::now() + PATIENCE;
        while self.lines().last().is_none_or(|line| line["id"] != id) {
            assert!(Instant::now() < end, "never {id}: {:?}", self.lines());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for PushFollow {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
