//! A subscriber that shares nothing with towpath: flask-websub.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::*;
use crate::common::python;

#[test]
fn flask_websub_subscribes_gets_deliveries_and_unsubscribes() {
    let server = hub_folder().serve();
    let folder = tempfile::tempdir().unwrap();
    let topic = topic(&server, "");
    let mut subscriber = Command::new(python())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/websub.py"))
        .arg(&topic)
        .arg(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = subscriber.stdin.take();
    let mut output = BufReader::new(subscriber.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    };
    assert_eq!(next(), json!({ "mode": "subscribe", "topic": topic }));
    // The subscription starts once the hub has the response, of which nobody here learns: items come all the time.
    let is_enough = AtomicBool::new(false);
    let mut delivered = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_enough.load(Ordering::Relaxed)) {
                publish(&server, "aa", &n.to_string(), "x");
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        for _ in 0..3 {
            let line = next();
            assert_eq!(line["topic"], *topic);
            let page: Value = serde_json::from_str(line["body"].as_str().unwrap()).unwrap();
            let ids = page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap());
            delivered.extend(ids.map(|id| id.parse::<usize>().unwrap()));
        }
        is_enough.store(true, Ordering::Relaxed);
    });
    assert!(delivered.windows(2).all(|pair| pair[1] == pair[0] + 1), "{delivered:?}");
    // The end of its input has it unsubscribe.
    drop(input);
    let ended = std::iter::repeat_with(next).find(|line| line["mode"].is_string());
    assert_eq!(ended, Some(json!({ "mode": "unsubscribe", "topic": topic })));
    assert!(subscriber.wait().unwrap().success());
}
