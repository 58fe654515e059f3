//! `towpath export` into a folder: the files that it writes, and those that it leaves alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::common::notes::{NOTES, eleven, put};
use crate::common::tree::{address, listing, nginx_of, paths};
use crate::common::{PATIENCE, TestFolder, get_from, stderr, wait_until};

/// Numbers of documents that an export reports as written, unchanged and removed.
fn export(dir: &TestFolder, args: &[&str]) -> [u64; 3] {
    let output = dir.run(&[&["export", "tree"], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let printed = stderr(&output);
    let line =
        printed.lines().find(|line| line.starts_with("exported ")).unwrap_or_else(|| panic!("{printed}"));
    let before = |word: &str| {
        let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        let at = words.iter().position(|found| *found == word).unwrap();
        words[at - usize::from(word != "written") - usize::from(word == "written") * 2].parse().unwrap()
    };
    [before("written"), before("unchanged"), before("removed")]
}

fn changed(
    before: &std::collections::BTreeMap<String, (u64, std::time::SystemTime)>,
    tree: &Path,
) -> BTreeSet<String> {
    let after = listing(tree);
    let gone = before.keys().filter(|name| !after.contains_key(*name)).cloned();
    let other =
        after.iter().filter(|(name, known)| before.get(*name) != Some(known)).map(|(name, _)| name.clone());
    gone.chain(other).collect()
}

fn import(dir: &TestFolder, feed: &str, ids: std::ops::Range<u32>) {
    let line = |n: u32| {
        let item = json!({ "title": format!("T{n}"), "url": format!("https://a.example/{n}") });
        json!({ "id": format!("i{n}"), "content": n.to_string(), "item": item })
    };
    let lines: String = ids.map(|n| format!("{}\n", line(n))).collect();
    let output = dir.run_with(&["import", feed, "-"], lines.as_bytes());
    assert!(output.status.success(), "{}", stderr(&output));
}

fn hundred() -> String {
    let feeds = (0..100).map(|n| format!("[[feed]]\nid = \"f{n}\"\npage_items = 3\n"));
    format!("[server]\nlisten = \"127.0.0.1:1\"\n{}", feeds.collect::<String>())
}

#[test]
fn unchanged_documents_are_not_rewritten() {
    let dir = TestFolder::new(&hundred());
    for feed in ["f7", "f8"] {
        import(&dir, feed, 0..10);
    }
    let [written, ..] = export(&dir, &[]);
    assert!(written > 1000, "{written}");
    let tree = dir.path("tree");
    let before = listing(&tree);
    assert_eq!(export(&dir, &[]), [0, written, 0]);
    assert_eq!(changed(&before, &tree), BTreeSet::new());

    import(&dir, "f7", 10..11);
    let [again, _, removed] = export(&dir, &[]);
    assert!(again < 60 && removed == 0, "{again} {removed}");
    let touched = changed(&before, &tree);
    let around = ["diff/head.json", "diff/latest.json", "diff/sources.json", "sup", "archive/_global/"];
    let of_feed = ["feeds/f7/", "diff/f7/", "diff/source/f7/", "archive/f7/", ".towpath/bodies/feeds/f7/"];
    for name in &touched {
        assert!(around.iter().chain(&of_feed).any(|start| name.starts_with(start)), "{name}");
    }
    for kept in ["feeds/f7/atom/1", "feeds/f7/replication/pages/1", "feeds/f7/rss/2"] {
        assert!(!touched.contains(kept), "{kept}");
    }
    // Two earlier SUP windows are kept; older ones are removed.
    import(&dir, "f7", 11..12);
    assert_eq!(export(&dir, &[])[2], 3, "one window in three syntaxes");
    assert_eq!(export(&dir, &[])[..1], [0]);
}

#[test]
fn configuration_changes_rewrite_and_remove_documents() {
    let config =
        "[server]\nlisten = \"127.0.0.1:1\"\n[[feed]]\nid = \"aa\"\npage_items = 2\n[[feed]]\nid = \"bb\"\n";
    let dir = TestFolder::new(config);
    import(&dir, "aa", 0..7);
    import(&dir, "bb", 0..3);
    export(&dir, &[]);
    let tree = dir.path("tree");
    let before = paths(&tree);
    export(&dir, &["--base-url", "https://cdn.example/x"]);
    assert_eq!(paths(&tree), before);
    let read = |name: &str| std::fs::read_to_string(tree.join(name)).unwrap();
    assert!(read("feeds/bb/atom/index").contains("https://cdn.example/x/feeds/bb/atom/1-3"));
    assert!(read("diff/aa/head.json").contains("\"/x/diff/aa/latest.json\""));
    assert!(read("archive/aa/index.json").contains("\"/x/archive/aa/"));
    for name in &before {
        let at = if tree.join(&name[1..]).is_dir() {
            format!("{}/index", &name[1..])
        } else {
            name[1..].to_owned()
        };
        let text = read(&at);
        let named = text.find("127.0.0.1:1/").map(|at| &text[at.saturating_sub(100)..at + 50]);
        assert_eq!(named, None, "{name} names the server");
    }
    // A static tree has no hub, events, items or SUP periods, so no document may link to them.
    for part in ["/hub", "/events", "/items\"", "seconds="] {
        for name in
            ["feeds/aa/index", "feeds/aa/atom/index", "feeds/aa/feed.json/index", "feeds/aa/rss/index"]
        {
            assert!(!read(name).contains(part), "{name}: {part}");
        }
    }
    assert!(read(".well-known/diffdelta.json").contains("\"webhooks_supported\":false"));

    dir.write(
        "towpath.toml",
        config.replace("[[feed]]\nid = \"bb\"\n", "[[feed]]\nid = \"bb\"\nreaders = [\"s\"]\n").as_bytes(),
    );
    let output = dir.run(&["export", "tree", "--base-url", "https://cdn.example/x"]);
    assert!(
        stderr(&output).contains("not exported, because they are restricted to readers or are filters: bb"),
        "{}",
        stderr(&output)
    );
    let left = paths(&tree);
    assert!(left.iter().all(|path| !path.contains("/bb/") && !path.ends_with("/bb")), "{left:?}");
    assert!(!read("diff/sources.json").contains("\"bb\"") && !tree.join("feeds/bb").exists());
    assert!(left.contains(&"/feeds/aa/atom/1".to_owned()));
}

#[test]
fn impossible_destinations_and_exit_codes() {
    let dir = TestFolder::new("[server]\nlisten = \"127.0.0.1:1\"\n");
    dir.write("file", b"");
    for (args, code, printed) in [
        (&["export"][..], 2, "no destination"),
        (&["export", "ftp://a/b"], 2, "ftp://a/b"),
        (&["export", "tree", "--base-url", "nowhere"], 2, "base URL"),
        (&["export", "file"], 1, "file"),
        (&["export", "s3://bucket/x", "--data", "file"], 1, ""),
    ] {
        let output = dir
            .command(args)
            .env("AWS_ENDPOINT", "http://127.0.0.1:9")
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_ACCESS_KEY_ID", "a")
            .env("AWS_SECRET_ACCESS_KEY", "b")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(printed), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_server_keeps_the_tree_current_with_its_own_bytes() {
    let dir = TestFolder::new(&format!(
        "{NOTES}[[feed]]\nid = \"quiet\"\n[export]\nto = \"tree\"\nevery = \"200ms\"\n"
    ));
    let (port, base) = address();
    let server = dir.start(dir.command(&["serve", "--listen", &format!("127.0.0.1:{port}")]));
    assert_eq!(server.base, base);
    eleven(&server);
    let snapshot = server.ask("POST", "/feeds/notes/snapshots", &[], b"");
    assert_eq!(snapshot.status, 201);
    put(&server, "i12", "t12");
    let tree = dir.path("tree");
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "{what}: {}", dir.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    for path in ["/feeds/notes/replication", "/diff/notes/head.json", "/diff/head.json"] {
        let file = tree.join(&path[1..]);
        let end = Instant::now() + PATIENCE;
        loop {
            let file = if file.is_dir() { file.join("index") } else { file.clone() };
            let (here, there) = (std::fs::read_to_string(file), server.get(path).text());
            if here.as_ref().is_ok_and(|here| *here == there) {
                break;
            }
            assert!(Instant::now() < end, "{path}: {here:?}, but {there:?} here: {}", dir.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    wait("metrics", &|| server.get("/metrics").text().contains("towpath_exports_ok_total"));
    for path in paths(&tree) {
        // Documents with a creation time, documents linked from nowhere in a tree, and documents that differ by
        // design.
        let own = ["/sup", "/healthz.json", "/diff/sources.json", "/.well-known/", "/feeds/notes/atom/7-1"];
        let is_page = matches!(path.as_str(), "/feeds/notes" | "/feeds/quiet");
        // SUP's address has no query in a tree.
        let names_sup = ["/atom", "/rss", "/feed.json"].iter().any(|name| path.contains(name));
        // The server's newest documents link to its hub.
        let is_newest = ["/atom", "/rss", "/feed.json"].iter().any(|name| path.ends_with(name));
        if own.iter().any(|start| path.starts_with(start)) || is_page || is_newest {
            continue;
        }
        // The tree's last documents may follow the server's a moment later.
        wait(&path, &|| {
            let file = tree.join(&path[1..]);
            let here = std::fs::read_to_string(if file.is_dir() { file.join("index") } else { file });
            // A page of the last items goes with the next item.
            let Ok(here) = here else { return true };
            let there = server.get(&path).text();
            here == if names_sup { there.replace("?seconds=60", "") } else { there }
        });
    }
    let refused = dir.run(&["export", "tree", "--config", &with_port(&dir, port)]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("serve --export tree"), "{}", stderr(&refused));
    assert_eq!(server.stop(), Some(0));
}

/// A tree that cannot be written is no matter of the log alone: supervisors, commands and scrapes tell of it.
#[test]
fn an_export_that_fails_is_told() {
    let dir = TestFolder::new(&format!("{NOTES}[export]\nto = \"tree\"\nevery = \"50ms\"\n"));
    let server = dir.serve();
    let part = || server.get("/readyz").json()["parts"]["exports"].clone();
    let gauge = |value: u32| {
        let line = format!("\ntowpath_exports_failing {value}\n");
        server.get("/metrics").text().contains(&line)
    };
    let exported = || !server.get("/metrics").text().contains("\ntowpath_exports_ok_total 0\n");
    wait_until("the first export", exported);
    assert_eq!(part(), json!({"status": "ok", "total": 1, "failing": 0}));
    assert!(gauge(0));
    // A file where the folder was: no user may write below it.
    std::fs::rename(dir.path("tree"), dir.path("moved")).unwrap();
    dir.write("tree", b"in the way");
    put(&server, "a", "changed");
    wait_until("the failure", || part() == json!({"status": "degraded", "total": 1, "failing": 1}));
    assert!(gauge(1));
    assert_eq!(server.get("/readyz").status, 200, "readers are served");
    let status = dir.run(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    assert!(stderr(&status).contains("cannot export http://127.0.0.1"), "{}", stderr(&status));
    std::fs::remove_file(dir.path("tree")).unwrap();
    wait_until("the next export", || part() == json!({"status": "ok", "total": 1, "failing": 0}));
    assert!(gauge(0) && dir.path("tree/diff/head.json").exists());
}

/// Empties a folder but for one entry.
fn empty_but(folder: &Path, kept: &str, go_on: &dyn Fn(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with(kept) => go_on(&path),
            true => remove(&path),
            false => std::fs::remove_file(path).unwrap(),
        }
    }
}

/// Removes a folder into which an export may write at the moment.
fn remove(folder: &Path) {
    crate::common::wait_until("it is removed", || std::fs::remove_dir_all(folder).is_ok());
}

/// Somebody cleans up: the folder goes as a whole, or all but what a running export has in it.
#[test]
fn a_tree_that_is_removed_while_it_is_kept_is_written_whole() {
    let dir = TestFolder::new(&format!("{NOTES}[[feed]]\nid = \"quiet\"\n"));
    let tree = dir.path("tree");
    let args = ["--export", "tree", "--export-every", "100ms"];
    let server = dir.start(dir.command(&[&["serve", "--listen", "127.0.0.1:0"][..], &args].concat()));
    eleven(&server);
    assert_eq!(server.ask("PUT", "/feeds/quiet/items/q", &[], b"q").status, 201);
    let is_whole = |documents: &[String]| documents.iter().all(|path| tree.join(&path[1..]).exists());
    let wanted = [
        "/diff/notes/head.json",
        "/feeds/notes/atom",
        "/sup.json",
        "/.towpath/tree.json",
        "/diff/quiet/head.json",
    ]
    .map(str::to_owned);
    crate::common::wait_until("the tree is whole", || is_whole(&wanted));
    for (id, keeps_own) in [("n12", false), ("n13", true)] {
        match keeps_own {
            false => remove(&tree),
            // As in an emptied bucket: a running export goes on.
            true => empty_but(&tree, ".towpath", &|own| empty_but(own, "tmp", &|_| {})),
        }
        // One feed changes, and all others come back as well.
        put(&server, id, "text");
        crate::common::wait_until("it is whole again", || is_whole(&wanted));
        let shown = || server.get("/diff/notes/latest.json").text();
        crate::common::wait_until("it is current", || {
            std::fs::read_to_string(tree.join("diff/notes/latest.json")).is_ok_and(|there| there == shown())
        });
    }
    assert_eq!(server.stop(), Some(0));
}

/// Sets the server's port in the configuration.
fn with_port(dir: &TestFolder, port: u16) -> String {
    dir.write("port.toml", format!("[server]\nlisten = \"127.0.0.1:{port}\"\n").as_bytes());
    "port.toml".into()
}

/// SIGKILL at any moment: the next export completes the tree, with the same result as a single export.
#[test]
fn a_killed_export_is_completed_by_the_next() {
    let dir = TestFolder::new(&hundred());
    for (round, pause) in [40, 150, 300, 600, 900].into_iter().enumerate() {
        let first = 4 * u32::try_from(round).unwrap();
        for feed in ["f1", "f2", "f3"] {
            import(&dir, feed, first..first + 4);
        }
        let mut killed = dir.command(&["export", "tree"]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        let _ = killed.kill();
        killed.wait().unwrap();
    }
    export(&dir, &[]);
    assert_eq!(export(&dir, &[])[0], 0);
    let fresh = dir.run(&["export", "fresh"]);
    assert!(fresh.status.success(), "{}", stderr(&fresh));
    let (many, one) = (dir.path("tree"), dir.path("fresh"));
    // Earlier SUP windows are kept for a while.
    let is_window =
        |path: &String| path.rsplit('/').next().unwrap().split('-').all(|part| part.parse::<u64>().is_ok());
    let of = |tree: &Path| {
        paths(tree).into_iter().filter(|path| !is_window(path) || !path.contains('-')).collect::<Vec<_>>()
    };
    assert_eq!(of(&many), of(&one));
    for path in of(&one) {
        let file = |tree: &Path| match tree.join(&path[1..]).is_dir() {
            true => tree.join(&path[1..]).join("index"),
            false => tree.join(&path[1..]),
        };
        let has_times = [
            "/sup",
            "/healthz.json",
            "/diff/sources.json",
            "/.well-known/",
            "/diff/head.json",
            "/diff/latest.json",
        ];
        if !has_times.iter().any(|start| path.starts_with(start)) {
            assert_eq!(std::fs::read(file(&many)).unwrap(), std::fs::read(file(&one)).unwrap(), "{path}");
        }
    }
    // Temporary files of killed exports must not pile up.
    for unfinished in std::fs::read_dir(many.join(".towpath/tmp")).unwrap() {
        assert!(std::fs::read_dir(unfinished.unwrap().path()).unwrap().next().is_none());
    }
}

/// Bytes of a file in several chunks pass from the store to the tree piece by piece.
#[test]
fn a_large_file_is_in_the_tree() {
    let dir = TestFolder::new("[[feed]]\nid = \"films\"\n");
    // Items name their files by the server's base URL, which is that of the tree.
    let (port, base) = address();
    let server = dir.serve_as(&base);
    let film: Vec<u8> = (0..(3 << 20) + 7).map(|n: u32| (n / 7 % 251) as u8).collect();
    let metadata = format!("id {},filename {}", encode("film/1"), encode("Größe.mp4"));
    let headers = [
        ("Tus-Resumable", "1.0.0"),
        ("Upload-Length", &film.len().to_string()),
        ("Upload-Metadata", &format!("{metadata},filetype {}", encode("video/mp4"))),
        ("Content-Type", "application/offset+octet-stream"),
    ];
    let made = server.ask("POST", "/feeds/films/uploads", &headers, &film);
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(server.stop(), Some(0));
    export(&dir, &["--base-url", &base]);
    let tree = dir.path("tree");
    let _nginx = nginx_of(port, &tree);
    for document in ["atom", "rss", "feed.json", "replication"] {
        let text = get_from(&base, &format!("/feeds/films/{document}"), &[]).text();
        let at = text.find(&format!("{base}/feeds/films/attachments/")).unwrap_or_else(|| panic!("{text}"));
        let end = text[at..].find(['"', '<']).unwrap();
        let path = text[at..at + end].strip_prefix(&base).unwrap();
        let answer = get_from(&base, path, &[]);
        assert!(answer.status == 200 && answer.body == film, "{document}: {path} {}", answer.status);
        assert_eq!(answer.header("content-type"), Some("video/mp4"));
    }
    // A follower of the tree has the file, and the next export does not write it again.
    let url = format!("{base}/feeds/films");
    let followed = dir.run(&["follow", &url, "--once", "--large-content", "large"]);
    assert!(followed.status.success(), "{}", stderr(&followed));
    let files: Vec<_> =
        std::fs::read_dir(dir.path("large")).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    assert!(std::fs::read(&files[0]).unwrap() == film);
    let before = listing(&tree);
    export(&dir, &["--base-url", &base]);
    assert!(changed(&before, &tree).iter().all(|name| !name.contains("/attachments/")));
    assert!(dir.run(&["delete", "films", "film/1"]).status.success());
    export(&dir, &["--base-url", &base]);
    assert!(paths(&tree).iter().all(|path| !path.contains("/attachments/")));
}

fn encode(text: &str) -> String {
    STANDARD.encode(text)
}
