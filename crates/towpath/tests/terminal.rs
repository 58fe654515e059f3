//! Commands in a terminal: `towpath tail` and `towpath status --watch`, which go on, and the progress of slow ones.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::callback::CallbackServer;
use crate::common::{TestFolder, free_port, stderr, stdout, wait_until};

/// A command that goes on, with the lines that it has printed on both of its streams.
struct Watching {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Watching {
    fn start(dir: &TestFolder, args: &[&str]) -> Self {
        let mut command = dir.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in streams {
            let into = lines.clone();
            std::thread::spawn(move || {
                let printed = BufReader::new(stream).lines();
                printed.map_while(Result::ok).for_each(|line| into.lock().push(line));
            });
        }
        Self { child, lines }
    }

    /// The lines so far, with single spaces.
    fn lines(&self) -> Vec<String> {
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        self.lines.lock().iter().map(words).collect()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn tail_begins_with_the_last_changes_and_goes_on() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let _server = dir.serve();
    for id in ["a", "b", "c"] {
        assert!(dir.run(&["put", "notes", id, "--title", &id.to_uppercase()]).status.success());
    }
    let watching = Watching::start(&dir, &["tail", "notes", "-n", "2"]);
    // Without the time, which comes first.
    let shown = || -> Vec<String> {
        watching.lines().iter().map(|line| line.splitn(3, ' ').nth(2).unwrap_or(line).to_owned()).collect()
    };
    wait_until("the last changes are shown", || shown().len() == 2);
    assert!(dir.run(&["put", "notes", "d", "--title", "D"]).status.success());
    assert!(dir.run(&["delete", "notes", "a"]).status.success());
    wait_until("the new changes are shown", || shown().len() >= 4);
    assert_eq!(shown(), ["put b B", "put c C", "put d D", "delete a"]);

    let last = dir.run(&["tail", "notes", "-n", "1", "--once", "--format", "json"]);
    let line: serde_json::Value = serde_json::from_slice(&last.stdout).unwrap();
    assert_eq!((&line["op"], &line["id"]), (&"delete".into(), &"a".into()));
    let unknown = dir.run(&["tail", "nots", "--once"]);
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(unknown.status.code() == Some(1) && said.contains("notes"), "{unknown:?}");
}

/// Numbers, the order of members and repeated ones are as they were published.
#[test]
fn tail_prints_content_as_it_is() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let server = dir.serve();
    let content = r#"{"z":12345678901234567890123,"a":1e2,"f":0.10000000000000000555,"a":3}"#;
    let json = [("content-type", "application/json")];
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &json, content.as_bytes()).status, 201);
    let tail = || stdout(&dir.run(&["tail", "notes", "--once", "--format", "json"]));
    let served = tail();
    assert!(served.contains(content), "{served}");
    assert_eq!(server.stop(), Some(0));
    let read = tail();
    assert!(read.contains(content), "{read}");
    assert_eq!(stdout(&dir.run(&["tail", "notes", "-n", "0", "--once"])), "");
}

/// Batches before a mistake stay published, which the message says.
#[test]
fn an_import_that_fails_says_how_far_it_came() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let line = |number: usize| format!("{{\"id\":\"i{number}\",\"item\":{{\"title\":\"T\"}}}}\n");
    let lines: String = (0..1500).map(line).chain(["nonsense\n".to_owned()]).collect();
    let imported = dir.run_with(&["import", "notes", "-"], lines.as_bytes());
    let message = stderr(&imported);
    assert!(imported.status.code() == Some(1) && message.contains("line 1501"), "{message}");
    assert!(message.contains("published before it: 1000 changes"), "{message}");
    let imported = dir.run_with(&["import", "notes", "-"], b"nonsense\n");
    assert!(!stderr(&imported).contains("published before"), "{}", stderr(&imported));
}

/// A result that cannot be written is an error, unless its reader has seen enough.
#[test]
fn a_full_disk_behind_standard_output_is_told() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    assert!(dir.run(&["put", "notes", "a", "--title", "A"]).status.success());
    assert!(dir.run(&["put", "notes", "a", "--title", "B"]).status.success());
    for args in [
        &["config", "example"][..],
        &["config", "schema"],
        &["config", "check"],
        &["config", "check", "--format", "json"],
        &["status"],
        &["status", "--format", "json"],
        &["tail", "notes", "--once"],
        &["diff", "notes", "a"],
        &["put", "notes", "a", "--title", "C", "--format", "json"],
        &["backup", "copies", "--format", "json"],
        &["restore", "copies", "--list"],
        &["restore", "copies", "--check"],
        &["completions", "bash"],
        &["verify"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let run = |out: Stdio| {
            let mut command = dir.command(args);
            command
                .stdin(Stdio::null())
                .stdout(out)
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
                .wait_with_output()
        };
        let output = run(full.into()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("standard output"), "{args:?}: {}", stderr(&output));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = run(writer.into()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_watched_status_is_printed_again() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let _server = dir.serve();
    let watching = Watching::start(&dir, &["status", "--watch"]);
    let shows = |position: &str| {
        let begin = format!("notes {position} ");
        watching.lines().iter().filter(|line| line.starts_with(&begin)).count()
    };
    wait_until("the feed is shown twice", || shows("0") >= 2);
    assert!(dir.run(&["put", "notes", "a", "--title", "A"]).status.success());
    wait_until("the new position is shown", || shows("1") >= 1);
}

/// While the server is away the folder is left to it, and the watch goes on with the next one.
#[test]
fn a_watched_status_waits_for_a_server_that_restarts() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let server = dir.serve_at(free_port());
    let watching = Watching::start(&dir, &["status", "--watch"]);
    let shows = |begin: &str| watching.lines().iter().any(|line| line.starts_with(begin));
    wait_until("the feed is shown", || shows("notes 0 "));
    assert_eq!(server.stop(), Some(0));
    wait_until("the server is missed", || shows("towpath: the server stopped"));
    let _server = dir.serve();
    assert!(dir.run(&["put", "notes", "a", "--title", "A"]).status.success());
    wait_until("the new server is asked", || shows("notes 1 "));
}

/// A command that takes longer than two seconds says so on a terminal, and nothing in a pipe.
#[test]
fn slow_work_is_named_on_terminals_only() {
    let is_shown = Arc::new(AtomicBool::new(false));
    let may_answer = is_shown.clone();
    let receiver = CallbackServer::start(move |call| {
        wait_until("the terminal shows the bar", || may_answer.load(Ordering::Acquire));
        crate::callback::good(call)
    });
    let webhook = format!("[alerts.webhook]\nurl = \"{}\"\nallow_private = true\n", receiver.base);
    let dir = TestFolder::new(&webhook);
    let mut piped = dir.command(&["alerts", "test"]);
    piped.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let piped = piped.spawn().unwrap();
    // Begun earlier, so it has waited for two seconds when the other one has.
    receiver.wait_for("the first message", |calls| calls.len() == 1);
    // `script` of util-linux gives a terminal to a program.
    let program = dir.command(&[]).get_program().to_owned().into_string().unwrap();
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &format!("'{program}' alerts test"), "/dev/null"]);
    script.current_dir(dir.path("")).env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let mut terminal = script.stdout.take().unwrap();
    let mut shown = String::new();
    let mut bytes = [0; 4096];
    while !shown.contains("sending the message") {
        let count = terminal.read(&mut bytes).unwrap();
        assert!(count > 0, "the command ended without a bar: {shown:?}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    is_shown.store(true, Ordering::Release);
    terminal.read_to_string(&mut shown).unwrap();
    assert!(script.wait().unwrap().success() && shown.contains("webhook: sent"), "{shown:?}");
    let piped = piped.wait_with_output().unwrap();
    assert!(piped.status.success(), "{}", stderr(&piped));
    assert_eq!((stdout(&piped), stderr(&piped)), ("webhook: sent\n".to_owned(), String::new()));
}
