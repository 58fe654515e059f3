//! Subscribers that share nothing with towpath: flask-websub in Python, pubsubhubbub in JavaScript.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::*;
use crate::common::npm::NpmScript;
use crate::common::python;

/// Sets a flag when it is dropped.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the ids of a delivery: a collection, or an Atom document for those who speak PubSubHubbub 0.3.
fn ids(body: &str) -> Vec<usize> {
    let page: Option<Value> = serde_json::from_str(body).ok();
    let ids: Vec<&str> = match &page {
        Some(page) => page["items"].as_array().unwrap().iter().map(|i| i["id"].as_str().unwrap()).collect(),
        None => body.split("<fo:id>").skip(1).map(|rest| rest.split_once("</fo:id>").unwrap().0).collect(),
    };
    assert!(!ids.is_empty(), "{body}");
    ids.into_iter().map(|id| id.parse().unwrap()).collect()
}

#[test]
fn flask_websub_subscribes_gets_deliveries_and_unsubscribes() {
    let server = hub_folder().serve();
    let folder = tempfile::tempdir().unwrap();
    let mut subscriber = Command::new(python());
    subscriber.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/websub.py"));
    subscriber.arg(topic(&server, "")).arg(folder.path());
    subscribes_gets_deliveries_and_unsubscribes(&server, subscriber);
}

#[test]
fn pubsubhubbub_subscribes_gets_deliveries_and_unsubscribes() {
    let server = hub_folder().serve();
    let script = NpmScript::new("websub.mjs");
    let mut subscriber = script.command();
    subscriber.arg(topic(&server, ""));
    subscribes_gets_deliveries_and_unsubscribes(&server, subscriber);
}

fn subscribes_gets_deliveries_and_unsubscribes(server: &TestServer, mut subscriber: Command) {
    let topic = topic(server, "");
    let mut subscriber = subscriber.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
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
        // Set also by a panic, else the scope would wait for ever.
        let _enough = SetAtEnd(&is_enough);
        scope.spawn(|| {
            for n in (0..).take_while(|_| !is_enough.load(Ordering::Relaxed)) {
                publish(server, "aa", &n.to_string(), "x");
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        for _ in 0..3 {
            let line = next();
            assert_eq!(line["topic"], *topic);
            delivered.extend(ids(line["body"].as_str().unwrap()));
        }
    });
    assert!(delivered.windows(2).all(|pair| pair[1] == pair[0] + 1), "{delivered:?}");
    // The end of its input has it unsubscribe.
    drop(input);
    let ended = std::iter::repeat_with(next).find(|line| line["mode"].is_string());
    assert_eq!(ended, Some(json!({ "mode": "unsubscribe", "topic": topic })));
    assert!(subscriber.wait().unwrap().success());
}
