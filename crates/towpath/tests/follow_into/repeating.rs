//! Destinations that get changes at least once, under kills: nothing is missing, and order is kept.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::callback::{CallbackServer, good};
use crate::common::sink_kill::{self, KilledCopy, cursor_seq};

/// Items after lines that may come several times: the highest position of each item counts.
fn items_of(lines: &[Value]) -> BTreeMap<String, String> {
    let mut items: BTreeMap<String, (u64, Option<String>)> = BTreeMap::new();
    for line in lines {
        let (id, seq) = (line["id"].as_str().unwrap(), cursor_seq(line["position"].as_str().unwrap()));
        let content = line["content"].as_str().filter(|_| line["op"] != "delete").map(str::to_owned);
        let held = items.entry(id.to_owned()).or_default();
        if seq >= held.0 {
            *held = (seq, content);
        }
    }
    items.into_iter().filter_map(|(id, (_, content))| Some((id, content?))).collect()
}

fn history_of(lines: &[Value]) -> Vec<(String, String, String)> {
    let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
    lines.iter().map(|line| (text(line, "op"), text(line, "id"), text(line, "position"))).collect()
}

/// Webhook whose receiver is this process.
struct WebhookCopy {
    receiver: CallbackServer,
    state: PathBuf,
}

impl WebhookCopy {
    fn lines(&self) -> Vec<Value> {
        let changes = |body: &[u8]| {
            let body: Value = serde_json::from_slice(body).unwrap();
            body["data"]["changes"].as_array().unwrap().clone()
        };
        self.receiver.calls().iter().flat_map(|call| changes(&call.body)).collect()
    }
}

impl KilledCopy for WebhookCopy {
    fn destination(&self) -> String {
        format!("webhook:{}", self.receiver.url("/hook"))
    }

    fn items(&self) -> BTreeMap<String, String> {
        items_of(&self.lines())
    }

    fn history(&self) -> Vec<(String, String, String)> {
        history_of(&self.lines())
    }

    fn state(&self) -> Option<PathBuf> {
        Some(self.state.clone())
    }

    fn is_exact(&self) -> bool {
        false
    }
}

/// Program that keeps each line, and acknowledges it by writing it back.
struct ProgramCopy {
    kept: PathBuf,
    state: PathBuf,
}

impl ProgramCopy {
    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.kept).unwrap();
        // A kill may cut a line off; it comes again.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl KilledCopy for ProgramCopy {
    fn destination(&self) -> String {
        format!("exec:tee -a '{}'", self.kept.display())
    }

    fn items(&self) -> BTreeMap<String, String> {
        items_of(&self.lines())
    }

    fn history(&self) -> Vec<(String, String, String)> {
        history_of(&self.lines())
    }

    fn state(&self) -> Option<PathBuf> {
        Some(self.state.clone())
    }

    fn is_exact(&self) -> bool {
        false
    }
}

/// Folder with a file per item.
struct FolderCopy(PathBuf);

impl FolderCopy {
    fn lines(&self) -> Vec<Value> {
        let files = std::fs::read_dir(self.0.join("notes")).unwrap().map(|entry| entry.unwrap().path());
        let items = files.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
        items.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
    }
}

impl KilledCopy for FolderCopy {
    fn destination(&self) -> String {
        format!("dir:{}", self.0.display())
    }

    fn items(&self) -> BTreeMap<String, String> {
        items_of(&self.lines())
    }

    fn history(&self) -> Vec<(String, String, String)> {
        // A folder has no history: its files in the order of their positions.
        let mut history = history_of(&self.lines());
        history.sort_by_key(|(_, _, position)| cursor_seq(position));
        history
    }

    fn is_exact(&self) -> bool {
        false
    }
}

#[test]
fn kills_lose_nothing_in_a_folder_a_webhook_and_a_program() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let webhook = WebhookCopy { receiver: CallbackServer::start(good), state: at("webhook.state") };
    let program = ProgramCopy { kept: at("kept"), state: at("program.state") };
    let copy = FolderCopy(at("copy"));
    sink_kill::run("sinks that repeat", &[("smart", &webhook), ("smart", &program), ("smart", &copy)]);
}
