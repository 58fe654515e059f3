//! Programs that end, refuse, or acknowledge nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use towpath_client::sink::SinkStateFile;
use towpath_client::{Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::Followed;
use towpath_proto::{Item, Op};
use towpath_sinks::{open, open_with_state};

fn sink(command: &str, state: &Path) -> Box<dyn Sink> {
    open_with_state(&format!("exec:{command}").parse().unwrap(), Some(state)).unwrap()
}

fn batch(ids: &[&str], checkpoint: u32) -> SinkBatch {
    let event = |id: &&str| {
        let (feed, position) = ("f".into(), (*id).into());
        let item = Item::new(*id);
        SinkEvent::Change(Box::new(Followed {
            feed,
            op: Op::Put,
            item,
            patch: None,
            modified: None,
            position,
            entry_id: None,
        }))
    };
    let events = Arc::new(ids.iter().map(event).collect());
    SinkBatch { source: "s".into(), events, checkpoint: Some(checkpoint.to_string().into_bytes().into()) }
}

/// Closes a sink as its writer does: again while it is unavailable.
async fn close(mut sink: Box<dyn Sink>) {
    while let Err(SinkError::Unavailable { .. }) = sink.close().await {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn ids(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let id = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_str().unwrap().to_owned()
    };
    text.lines().map(id).collect()
}

#[tokio::test]
async fn a_program_that_ends_is_started_again_with_what_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let (state, out) = (folder.path().join("state"), folder.path().join("out"));
    // Takes one line, acknowledges it and ends.
    let command = format!("head -n 1 | tee -a '{}'", out.display());
    let mut sink = sink(&command, &state);
    assert_eq!(sink.open("s").await.unwrap(), None);
    sink.apply(&batch(&["a", "b", "c"], 1)).await.unwrap();
    close(sink).await;
    assert_eq!(ids(&out), ["a", "b", "c"]);
    let mut again = self::sink(&command, &state);
    assert_eq!(again.open("s").await.unwrap().as_deref(), Some(&b"1"[..]));
}

#[tokio::test]
async fn the_state_moves_only_past_what_is_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let (state, out) = (folder.path().join("state"), folder.path().join("out"));
    // Reads all, acknowledges the position b only.
    let silent = format!("echo b; cat >> '{}'", out.display());
    let mut first = sink(&silent, &state);
    first.open("s").await.unwrap();
    first.apply(&batch(&["a"], 1)).await.unwrap();
    first.apply(&batch(&["b", "c"], 2)).await.unwrap();
    // The acknowledgement may come before its line; it is then written back by the next program.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    drop(first);
    let rest = format!("tee -a '{}'", out.display());
    // The state file is free once the first program's task has ended.
    while SinkStateFile::open("exec", &state).is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let mut second = sink(&rest, &state);
    let held = second.open("s").await.unwrap();
    if held.is_none() {
        second.apply(&batch(&["a"], 1)).await.unwrap();
    }
    second.apply(&batch(&["b", "c"], 2)).await.unwrap();
    close(second).await;
    let seen = ids(&out);
    assert!(["a", "b", "c"].iter().all(|id| seen.iter().any(|seen| seen == id)), "{seen:?}");
    let mut third = sink(&rest, &state);
    assert_eq!(third.open("s").await.unwrap().as_deref(), Some(&b"2"[..]));
}

#[tokio::test]
async fn a_refused_item_is_kept_beside_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let refuse = r#"while read -r line; do case "$line" in *'"b"'*) echo '{"position":"b","refused":"too odd"}';; *) echo "$line";; esac; done"#;
    let mut sink = sink(refuse, &state);
    sink.open("s").await.unwrap();
    sink.apply(&batch(&["a", "b", "c"], 1)).await.unwrap();
    close(sink).await;
    let kept = std::fs::read_to_string(folder.path().join("state.refused.ndjson")).unwrap();
    assert!(kept.lines().count() == 1 && kept.contains("too odd") && kept.contains("\"id\":\"b\""), "{kept}");
}

/// Without a state file the caller keeps what is refused, as it keeps the position. The rest is not sent again.
#[tokio::test]
async fn a_refused_item_is_told_to_a_caller_who_keeps_the_position() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let refuse = format!(
        r#"while read -r line; do printf '%s\n' "$line" >> '{}'; case "$line" in *'"b"'*) echo '{{"position":"b","refused":"too odd"}}';; *) printf '%s\n' "$line";; esac; done"#,
        out.display()
    );
    let mut sink = open(&format!("exec:{refuse}").parse().unwrap());
    sink.open("s").await.unwrap();
    let mut batch = batch(&["a", "b", "c"], 1);
    let SinkError::Items(refused) = sink.apply(&batch).await.unwrap_err() else {
        panic!("no item is refused")
    };
    assert_eq!((refused.len(), refused[0].index, refused[0].message.as_str()), (1, 1, "too odd"));
    Arc::make_mut(&mut batch.events).remove(1);
    sink.apply(&batch).await.unwrap();
    sink.apply(&self::batch(&["d"], 2)).await.unwrap();
    close(sink).await;
    assert_eq!(ids(&out), ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn garbage_moves_nothing_and_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (state, out) = (folder.path().join("state"), folder.path().join("out"));
    // Positions that it was not told, bytes, JSON without meaning, and 8 MiB without an end; then it does its work.
    let noisy = format!(
        "printf 'z\\n\\377\\000\\n{{}}\\n{{\"position\":7}}\\n\\n'; head -c 8388608 /dev/zero; echo; exec tee -a '{}'",
        out.display()
    );
    let mut first = sink(&noisy, &state);
    first.open("s").await.unwrap();
    first.apply(&batch(&["a", "b"], 1)).await.unwrap();
    close(first).await;
    assert_eq!(ids(&out), ["a", "b"]);
    let mut again = sink(&noisy, &state);
    assert_eq!(again.open("s").await.unwrap().as_deref(), Some(&b"1"[..]));
}

/// Time stands still but for waits.
#[tokio::test(start_paused = true)]
async fn a_program_that_never_acknowledges_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut mute = sink("cat > /dev/null", &state);
    mute.open("s").await.unwrap();
    mute.apply(&batch(&["a", "b"], 1)).await.unwrap();
    let error = mute.close().await.unwrap_err();
    let message = error.to_string();
    assert!(
        matches!(error, SinkError::Unavailable { .. }) && message.contains("not acknowledged 2 lines"),
        "{message}"
    );
}
