//! Clients of tus that share nothing with towpath: tus-js-client and tuspy.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::npm::NpmScript;
use crate::common::{TestFolder, TestServer, python, stderr, stdout};

const CONFIG: &str = "[server]\ntokens = [\"writer-token\"]\n[[feed]]\nid = \"films\"\n";

/// A server, a file to upload, and what a client printed of its uploads.
struct Uploads {
    _dir: TestFolder,
    server: TestServer,
    file: Vec<u8>,
    printed: Vec<Value>,
}

impl Uploads {
    /// Runs a client with the endpoint and the file as arguments.
    fn by(mut client: Command) -> Self {
        let dir = TestFolder::new(CONFIG);
        let server = dir.serve();
        let file: Vec<u8> = (0..(5 << 20) + 7).map(|n| (n / 7 % 251) as u8).collect();
        dir.write("film.mp4", &file);
        client.arg(format!("{}/feeds/films/uploads", server.base)).arg(dir.path("film.mp4"));
        let output: Output = client.env("TOKEN", "writer-token").output().unwrap();
        assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
        let printed = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Self { _dir: dir, server, file, printed }
    }

    fn of(&self, id: &str) -> &Value {
        let found = self.printed.iter().find(|line| line["id"] == id);
        found.unwrap_or_else(|| panic!("no {id} in {:?}", self.printed))
    }

    /// Checks an upload that began from an offset and became an item.
    fn check(&self, id: &str, path: &str, began: usize) {
        assert_eq!(self.of(id)["began"], began, "{:?}", self.of(id));
        let answer = self.server.get(&format!("/feeds/films/items/{path}"));
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("video/mp4")), "{id}");
        assert!(answer.body == self.file, "{id}");
        let item = &self.server.json(&format!("/feeds/films/items/{path}?as=line"))["item"];
        assert_eq!(item["title"], "Ein Film — 東京");
        let url = item["attachments"][0]["url"].as_str().unwrap();
        assert!(url.ends_with("/Gr%C3%B6%C3%9Fe%20%E6%9D%B1%E4%BA%AC%2Emp4"), "{url}");
    }

    /// Checks an upload that was refused.
    fn check_refused(&self, id: &str, status: &str, told: &str) {
        let error = self.of(id)["error"].as_str().unwrap_or_default();
        assert!(error.contains(status) && error.contains(told), "{:?}", self.of(id));
        assert_eq!(self.server.get(&format!("/feeds/films/items/{id}")).status, 404, "{id}");
    }
}

#[test]
fn tus_js_client_uploads() {
    let uploads = Uploads::by(NpmScript::new("tus.mjs").command());
    for (id, path) in [("whole", "whole"), ("parts/ü", "parts%2F%C3%BC"), ("tunnelled", "tunnelled")] {
        uploads.check(id, path, 0);
    }
    for id in ["with-creation", "small-with-creation", "deferred"] {
        uploads.check(id, id, 0);
    }
    uploads.check("resumed", "resumed", 2 << 20);
    assert_eq!(uploads.server.get("/feeds/films/items/ended").status, 404);
    uploads.check_refused("parallel", "400", "Upload-Concat is not supported");
    uploads.check_refused("draft", "412", "Tus-Resumable must be 1.0.0");
    uploads.check_refused("stranger", "401", "needs a token");
}

#[test]
fn tuspy_uploads() {
    let mut client = Command::new(python());
    client.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/tus.py"));
    let uploads = Uploads::by(client);
    for (id, path) in [
        ("whole", "whole"),
        ("parts/ü", "parts%2F%C3%BC"),
        ("with-checksums", "with-checksums"),
        ("async", "async"),
    ] {
        uploads.check(id, path, 0);
    }
    uploads.check("resumed", "resumed", 2 << 20);
    uploads.check_refused("no-id", "400", "must have id");
    uploads.check_refused("stranger", "401", "needs a token");
}
