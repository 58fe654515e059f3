//! `towpath backup` and `towpath restore` with object storage: a real S3 server on loopback.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use crate::common::{TestFolder, TestServer, clustered, stderr, stdout};
use crate::storage::{KEY, SECRET};

const PLACE: &str = "s3://bucket/my/backups";

fn publish(server: &TestServer, ids: std::ops::Range<u32>) {
    let line = |id| json!({ "id": format!("i{id}"), "content": format!("{id} ").repeat(50) });
    let lines: String = ids.map(|id| format!("{}\n", line(id))).collect();
    let answer = server.ask("POST", "/feeds/notes/items", &[], lines.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() { all.extend(files(&entry.path())) } else { all.push(entry.path()) }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backups_in_a_bucket_are_incremental_and_come_back() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    std::fs::create_dir_all(dir.path("storage/bucket")).unwrap();
    let endpoint = crate::storage::serve(&dir.path("storage"), true).await;
    let run = |secret: &str, args: &[&str]| -> Output {
        let mut command = dir.command(args);
        command.env("AWS_ENDPOINT", &endpoint).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", secret);
        command.output().unwrap()
    };
    let json = |args: &[&str]| -> Value {
        let output = run(SECRET, &[args, &["--format", "json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let number = |value: &Value| value.as_u64().unwrap();

    let server = dir.serve();
    publish(&server, 0..5000);
    let first = json(&["backup", PLACE]);
    assert!(number(&first["pieces"]) > 1 && first["new_pieces"] == first["pieces"], "{first}");
    publish(&server, 5000..5010);
    let second = json(&["backup", PLACE]);
    let (new, all) = (number(&second["new_pieces"]), number(&second["pieces"]));
    assert!(new > 0 && new < all, "{second}");
    let listed = json(&["restore", PLACE, "--list"]);
    let names: Vec<&Value> = listed["backups"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, [&first["backup"], &second["backup"]]);
    assert_eq!(server.stop(), Some(0));

    for (backup, data, changes) in [(&first, "one", "5000 changes"), (&second, "two", "5010 changes")] {
        let name = backup["backup"].as_str().unwrap();
        assert_eq!(json(&["restore", PLACE, "--check", "--backup", name])["problems"], json!([]));
        json(&["restore", PLACE, "--backup", name, "--data", data]);
        let verified = dir.run(&["verify", "--data", data]);
        assert!(verified.status.success(), "{}", stdout(&verified));
        assert!(stdout(&verified).contains(changes), "{}", stdout(&verified));
    }

    // Only what the newest has stays.
    assert_eq!(json(&["backup", PLACE, "--keep", "1"])["removed"], 2);
    assert_eq!(json(&["restore", PLACE, "--check"])["problems"], json!([]));
    let refused = run("another", &["restore", PLACE, "--list"]);
    assert_eq!(refused.status.code(), Some(1), "{}", stdout(&refused));
    assert!(stderr(&refused).contains(PLACE), "{}", stderr(&refused));
    let missing = run(SECRET, &["backup", "s3://nowhere/backups"]);
    assert_eq!(missing.status.code(), Some(1), "{}", stdout(&missing));

    // A lost piece is named, nothing is restored, and the next backup writes it again.
    let pieces = files(&dir.path("storage/bucket/my/backups/pieces"));
    std::fs::remove_file(&pieces[0]).unwrap();
    let checked = run(SECRET, &["restore", PLACE, "--check"]);
    let name = pieces[0].file_name().unwrap().to_str().unwrap().trim_end_matches(".object");
    assert_eq!(checked.status.code(), Some(1));
    assert!(stdout(&checked).contains(name), "{name}: {}", stdout(&checked));
    let restored = run(SECRET, &["restore", PLACE, "--data", "three"]);
    assert!(restored.status.code() == Some(1) && !dir.path("three").exists(), "{}", stderr(&restored));
    json(&["backup", PLACE]);
    assert_eq!(json(&["restore", PLACE, "--check"])["problems"], json!([]));
}
