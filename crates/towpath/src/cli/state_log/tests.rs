use serde_json::json;

use super::*;

fn entry(feed: &str, state: Value) -> StateEntry {
    let route = FeedRoute { protocol: Protocol::Smart, follows: Some("http://x/items".into()) };
    StateEntry { feed: feed.into(), route, state }
}

fn schedule(value: &Value) -> Option<Box<RawValue>> {
    Some(to_raw_value(value).unwrap())
}

fn scheduled(log: &StateLog) -> Option<String> {
    log.load_schedule().unwrap().map(|schedule| schedule.get().to_owned())
}

fn states(log: &StateLog) -> Vec<(String, Value)> {
    let mut feeds: Vec<_> = log.feeds.keys().cloned().collect();
    feeds.sort();
    feeds.iter().map(|feed| (feed.to_string(), log.load(feed).unwrap().unwrap().state)).collect()
}

#[test]
fn the_last_state_of_each_feed_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states");
    let mut log = StateLog::open(&path, None).unwrap();
    assert!(log.load("a").unwrap().is_none() && log.load_schedule().unwrap().is_none());
    log.save(vec![entry("a", json!(1)), entry("b", json!({"x": "é\n"}))], None).unwrap();
    log.save(vec![entry("a", json!(2))], schedule(&json!("soon"))).unwrap();
    let expected = [("a".to_owned(), json!(2)), ("b".to_owned(), json!({"x": "é\n"}))];
    assert_eq!(states(&log), expected);
    assert!(matches!(StateLog::open(&path, None), Err(StateError::InUse { .. })));
    drop(log);
    let log = StateLog::open(&path, Some(Protocol::Smart)).unwrap();
    assert_eq!((states(&log), scheduled(&log)), (expected.into(), Some("\"soon\"".into())));
    assert_eq!(log.load("a").unwrap().unwrap().route, entry("a", json!(2)).route);
}

/// After a partial last write, all earlier states are intact.
#[test]
fn a_write_that_was_cut_off_is_passed_over_at_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states");
    let mut log = StateLog::open(&path, None).unwrap();
    log.save(vec![entry("a", json!(1))], None).unwrap();
    let before = fs::read(&path).unwrap().len();
    log.save(vec![entry("a", json!(2)), entry("b", json!(3))], None).unwrap();
    drop(log);
    // Every length between the two writes is a possible crash.
    let whole = fs::read(&path).unwrap();
    for end in before..whole.len() {
        fs::write(&path, &whole[..end]).unwrap();
        let mut log = StateLog::open(&path, None).unwrap();
        let kept = states(&log);
        let newer = whole[..end].iter().filter(|b| **b == b'\n').count() == 3;
        assert_eq!(kept, [("a".to_owned(), json!(1 + i32::from(newer)))], "{end}");
        log.save(vec![entry("c", json!(4))], None).unwrap();
        drop(log);
        assert_eq!(states(&StateLog::open(&path, None).unwrap()).len(), 2, "{end}");
    }
}

#[test]
fn outdated_lines_go_once_they_are_most_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states");
    let mut log = StateLog::open(&path, None).unwrap();
    let big = "x".repeat(1 << 20);
    let mut largest = 0;
    for n in 0..20 {
        log.save(vec![entry("a", json!([n, big])), entry("b", json!(n))], schedule(&json!(n))).unwrap();
        largest = largest.max(fs::metadata(&path).unwrap().len());
    }
    assert!(largest < 8 << 20, "{largest}");
    assert!(matches!(StateLog::open(&path, None), Err(StateError::InUse { .. })), "still locked");
    drop(log);
    let log = StateLog::open(&path, None).unwrap();
    assert_eq!(states(&log), [("a".to_owned(), json!([19, big])), ("b".to_owned(), json!(19))]);
    assert_eq!(scheduled(&log).as_deref(), Some("19"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left behind");
}

#[test]
fn files_of_something_else_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("states");
    let good = format!("{HEADER}{{\"url\":\"a\",\"protocol\":\"smart\",\"state\":1}}\n");
    for (content, part) in [
        ("my notes".to_owned(), "damaged"),
        ("{\"towpath_state\":1,\"url\":\"http://x/\"}\n".into(), "for a single feed"),
        (good.replace(":1}\n", ":2}\n"), "damaged"),
        (good.replace("smart", "odd") + &good[HEADER.len()..], "line 2"),
        (format!("{HEADER}odd\n{}", &good[HEADER.len()..]), "line 2"),
    ] {
        fs::write(&path, &content).unwrap();
        let error = StateLog::open(&path, None).unwrap_err().to_string();
        assert!(error.contains(part), "{content}: {error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    fs::write(&path, &good).unwrap();
    let error = StateLog::open(&path, Some(Protocol::Rss)).unwrap_err().to_string();
    assert!(error.contains("smart, not rss"), "{error}");
    assert!(StateLog::open(folder.path(), None).is_err());
    assert!(StateLog::open(&folder.path().join("no/folder"), None).is_err());
}
