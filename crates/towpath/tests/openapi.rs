//! The description of the HTTP API: requests that schemathesis makes of it, and a client that is generated from it.
//!
//! `cargo xtask openapi` runs the same for minutes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{TestFolder, TestServer, python, wait_until};

const TOKEN: &str = "openapi-token";

const CONFIG: &str = r#"
[server]
tokens = ["openapi-token"]
rate_limit.per_second = 0
[[feed]]
id = "orders"
title = "Orders"
[[feed]]
id = "internal"
visibility = "private"
[[sink]]
name = "copy"
feeds = ["orders"]
into = "dir:copy"
"#;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn authorization() -> (&'static str, &'static str) {
    ("Authorization", "Bearer openapi-token")
}

/// Starts a server with items, a sealed page and a snapshot.
fn server(dir: &TestFolder) -> TestServer {
    let server = dir.serve();
    for number in 1..=3 {
        let path = format!("/feeds/orders/items/order-{number}?title=Order+{number}&tag=new");
        let headers = [authorization(), ("Content-Type", "application/json")];
        let answer = server.ask("PUT", &path, &headers, format!("{{\"n\":{number}}}").as_bytes());
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
    let snapshot = server.ask("POST", "/feeds/orders/snapshots", &[authorization()], b"");
    assert_eq!(snapshot.status, 201, "{}", snapshot.text());
    wait_until("a copy of the items", || {
        let sink = server.ask("GET", "/sinks/copy", &[authorization()], b"");
        sink.json()["lag"] == 0
    });
    server
}

/// Every check of schemathesis, for 25 seconds, or as many as `TOWPATH_OPENAPI_SECONDS` says.
#[test]
fn schemathesis_finds_nothing() {
    let seconds = std::env::var("TOWPATH_OPENAPI_SECONDS").unwrap_or_else(|_| "25".to_owned());
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    let mut run = Command::new(python());
    let settings = root().join("tests/openapi");
    run.args(["-m", "schemathesis.cli", "--config-file"]).arg(settings.join("schemathesis.toml")).arg("run");
    run.arg(format!("{}/openapi.json", server.base)).args(["--max-time", &seconds, "--report", "har"]);
    run.arg("--report-dir").arg(dir.path("report"));
    // It keeps failures for the next run in its working folder.
    run.current_dir(dir.folder.path()).env("PYTHONPATH", settings).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = run.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    // A run that reached nothing finds nothing either.
    assert!(text.contains("Fuzzing"), "{text}");
    println!(
        "{}",
        text.lines().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    );
}

/// A Python client that is generated from the description compiles, and publishes and reads.
#[test]
fn a_generated_client_works() {
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    dir.write("openapi.json", &server.get("/openapi.json").body);
    let script = root().join("tests/openapi/client.py");
    let output = Command::new(python())
        .arg(script)
        .args([server.base.as_str(), TOKEN])
        .current_dir(dir.folder.path())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("published and read"), "{printed}");
}

/// Every example fits its schema, and every JSON body has one.
#[test]
fn examples_fit_their_schemas() {
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    dir.write("openapi.json", &server.get("/openapi.json").body);
    let script = root().join("tests/openapi/examples.py");
    let output = Command::new(python()).arg(script).current_dir(dir.folder.path()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let count = printed.split_whitespace().next().and_then(|count| count.parse::<u32>().ok());
    assert!(count > Some(40), "{printed}");
}

/// Each address of the description is there, and answers the methods that it names only.
#[test]
fn addresses_answer_as_described() {
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    let description = server.json("/openapi.json");
    let paths = description["paths"].as_object().unwrap();
    assert!(paths.len() > 60, "{}", paths.len());
    for (path, operations) in paths {
        let filled = fill(path);
        let allowed = server.ask("OPTIONS", &filled, &[], b"");
        assert_eq!(allowed.status, 204, "{filled}");
        let allowed = allowed.header("allow").unwrap().to_ascii_lowercase();
        for (method, operation) in operations.as_object().unwrap() {
            assert!(allowed.split(", ").any(|one| one == method), "{method} {path}: {allowed}");
            let responses = operation["responses"].as_object().unwrap();
            // A stream has no end.
            if path.ends_with("/events") {
                continue;
            }
            let answer = server.ask(&method.to_ascii_uppercase(), &filled, &[authorization()], b"");
            let status = answer.status.to_string();
            assert!(responses.contains_key(&status), "{method} {filled}: {status} {}", answer.text());
        }
        // The table of addresses says so; before it there was none.
        let wrong = server.ask("TRACE", &filled, &[authorization()], b"");
        let told = wrong.header("allow").map(str::to_ascii_lowercase);
        assert_eq!((wrong.status, told), (405, Some(allowed)), "{filled}");
    }
    for absent in ["/nothing", "/feeds/orders/nothing", "/diff/orders/nothing.json", "/sinks/copy/nothing"] {
        assert_eq!(server.ask("GET", absent, &[authorization()], b"").status, 404, "{absent}");
    }
}

/// Fills the parameters of a path.
fn fill(path: &str) -> String {
    let values = [
        ("{feed}", "orders"),
        ("{id}", "order-1"),
        ("{sink}", "copy"),
        ("{page}", "1"),
        ("{snapshot_page}", "0"),
        ("{snapshot}", "latest"),
        ("{part}", "1"),
        ("{schema}", "diff.schema.json"),
    ];
    let filled = values.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
    filled
        .split('/')
        .map(|part| if part.starts_with('{') { "2026" } else { part })
        .collect::<Vec<_>>()
        .join("/")
}
