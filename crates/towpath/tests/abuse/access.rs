//! Tokens, secrets, files and what readers may see.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;

use towpath::config::{Config, TokenDigest};

use super::size;

use crate::common::{TestFolder, TestResponse, TestServer, stderr, stdout, wait_until};

/// Part of every secret in these tests. No output may have it.
const SECRET: &str = "hush";

fn with_token(server: &TestServer, method: &str, path: &str, token: &str, body: &str) -> TestResponse {
    let bearer = format!("Bearer {token}");
    server.ask(method, path, &[("Authorization", &bearer), ("Content-Type", "text/plain")], body.as_bytes())
}

fn get(server: &TestServer, path: &str, token: &str) -> TestResponse {
    with_token(server, "GET", path, token, "")
}

fn hangup(server: &TestServer) {
    assert!(Command::new("kill").args(["-HUP", &server.pid().to_string()]).status().unwrap().success());
}

fn hash_of(token: &str) -> String {
    TokenDigest::of(token).to_config()
}

/// Permissions of a folder and of all that is in it.
fn modes(path: &Path, found: &mut BTreeMap<String, u32>) {
    let facts = fs::symlink_metadata(path).unwrap();
    if facts.is_symlink() {
        return;
    }
    found.insert(path.display().to_string(), facts.permissions().mode() & 0o777);
    if facts.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| modes(&entry.unwrap().path(), found));
    }
}

fn assert_private(data: &Path) {
    let mut found = BTreeMap::new();
    modes(data, &mut found);
    assert!(found.len() > 5, "{found:?}");
    let open: Vec<_> = found.iter().filter(|(_, mode)| **mode & 0o077 != 0).collect();
    assert!(open.is_empty(), "others can read {open:?}");
}

/// Another user of the machine reads the data folder.
#[test]
fn data_is_for_its_own_user_only() {
    let dir = TestFolder::new("[[feed]]\nid = \"aa\"\n");
    let data = dir.path("data");
    {
        let server = dir.serve();
        assert_eq!(server.ask("PUT", "/feeds/aa/items/1", &[], b"x").status, 201);
        assert_private(&data);
    }
    // As an earlier version left it.
    let mut found = BTreeMap::new();
    modes(&data, &mut found);
    for path in found.keys().map(Path::new) {
        let open = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, Permissions::from_mode(open)).unwrap();
    }
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/aa/items/2", &[], b"y").status, 201);
    assert_private(&data);
    assert!(dir.log().contains("other users could read the data folder"), "{}", dir.log());
    drop(server);

    // A static tree is for a web server, which is another user.
    let output = dir.run(&["export", "tree"]);
    assert!(output.status.success(), "{}", stderr(&output));
    fs::write(dir.path("usual"), "").unwrap();
    let usual = fs::metadata(dir.path("usual")).unwrap().permissions().mode() & 0o777;
    let mut found = BTreeMap::new();
    modes(&dir.path("tree/feeds"), &mut found);
    for (path, mode) in &found {
        let expected = if Path::new(path).is_dir() { usual | (usual >> 2 & 0o111) } else { usual };
        assert_eq!(*mode, expected, "{path}: {mode:o}");
    }
    assert_private(&data);
}

/// Every kind of secret that a configuration may have. It is valid.
const SECRETS: &str = r#"
[server]
base_url = "https://feeds.example"
tokens = ["hush-server", "sha256:0000000000000000000000000000000000000000000000000000000000000000"]
cluster = "nats://user:hush-cluster@127.0.0.1:1?name=feeds"

[xmpp]
server = "127.0.0.1:1"
jid = "feeds.example"
secret = "hush-xmpp"

[[token]]
name = "ci"
token = "hush-ci"
rights = ["read", "publish"]
feeds = ["own-*"]

[[feed]]
id = "own"
title = "Own"
ttl = "5m"
readers = ["hush-reader", { token = "hush-part", filter = { tags = ["a"], max_risk = 0.5 } }]
[feed.source]
url = "http://user:hush-source@127.0.0.1:1/x?key=hush-query"
headers = { Authorization = "Bearer hush-header", "X-Key" = "hush-key" }

[[feed]]
id = "mirror"
[feed.source]
follow = "http://user:hush-mirror@127.0.0.1:1/x?key=hush-signature"
"#;

/// Somebody with a typing error sends the program's message to a public place.
#[test]
fn no_error_of_the_configuration_shows_a_secret() {
    let parse = |text: &str| Config::parse(text, Path::new("towpath.toml"));
    let config = parse(SECRETS).unwrap();
    assert!(!format!("{config:?}").contains(SECRET), "{config:?}");
    let mut errors = 0;
    let step = size(3, 1);
    for at in (0..SECRETS.len()).step_by(step) {
        let (before, after) = SECRETS.split_at(at);
        let mut mutants = vec![format!("{before}{}", &after[1..]), before.to_owned()];
        for inserted in
            ["\"", "'", "[", "]", "{", "=", ",", "\n", "x", "5", "#", "\"\"\"", "\\", "\u{9b}", "@", "${"]
        {
            mutants.push(format!("{before}{inserted}{after}"));
        }
        for mutant in mutants {
            let Err(error) = parse(&mutant) else { continue };
            let error = format!("{error} {error:?}");
            assert!(!error.contains(SECRET), "{error}\n{mutant}");
            errors += 1;
        }
    }
    assert!(errors > 1000, "{errors}");
    let dir = TestFolder::new(&SECRETS.replace("tokens = [", "tokens = [5, "));
    let output = dir.run(&["run"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stdout(&output) + &stderr(&output);
    assert!(text.contains("line 4") && text.contains("server.tokens") && !text.contains(SECRET), "{text}");
}

/// A reader of logs, pages or the output of commands looks for credentials.
#[test]
fn no_log_and_no_page_shows_a_secret() {
    let config =
        SECRETS.replace("cluster = ", "# ").replace("[feed.source]", "[feed.source]\nevery = \"1s\"");
    let config = config.replace("base_url = ", "# ").replace("\"hush-xmpp\"", "\"${XMPP_SECRET}\"");
    let dir = TestFolder::new(&config);
    let mut command = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("TOWPATH_LOG", "debug").env("XMPP_SECRET", "hush-environment");
    let server = dir.start(command);
    wait_until("both sources fail", || {
        let feeds = get(&server, "/feeds?status", "hush-server").text();
        feeds.matches("\"error\":{").count() == 2
    });
    wait_until("the component fails", || dir.log().contains("XMPP") || dir.log().contains("xmpp"));
    for path in [
        "/",
        "/feeds",
        "/feeds?status",
        "/feeds/own",
        "/feeds/own/items?timeout=0",
        "/feeds/mirror",
        "/diff/head.json",
        "/diff/sources.json",
        "/diff/own/head.json",
        "/diff/mirror/head.json",
        "/healthz.json",
        "/metrics",
        "/openapi.json",
        "/sup.json?seconds=60",
        "/.well-known/diffdelta.json",
    ] {
        for (token, accept) in [("hush-server", "text/html"), ("hush-reader", "*/*"), ("wrong", "*/*")] {
            let bearer = format!("Bearer {token}");
            let answer = server.ask("GET", path, &[("Authorization", &bearer), ("Accept", accept)], b"");
            let text = format!("{:?} {}", answer.headers, answer.text());
            assert!(!text.contains(SECRET), "{path}: {text}");
        }
    }
    let put = with_token(&server, "PUT", "/feeds/own/items/a", "hush-ci", "x");
    assert_ne!(put.status, 201, "own is not own-*");
    assert!(!put.text().contains(SECRET), "{}", put.text());
    let port = server.base.rsplit_once(':').unwrap().1;
    let status = dir.command(&["status", "--server", &format!("http://127.0.0.1:{port}")]);
    let status =
        { status }.env("TOWPATH_TOKEN", "hush-server").env("XMPP_SECRET", "hush-x").output().unwrap();
    let text = stdout(&status) + &stderr(&status);
    assert!(text.contains("own") && !text.contains(SECRET), "{text}");
    drop(server);
    let ran = { dir.command(&["run"]) }.env("XMPP_SECRET", "hush-x").output().unwrap();
    let text = stdout(&ran) + &stderr(&ran);
    assert!(text.contains("own") && !text.contains(SECRET), "{text}");
    assert!(!dir.log().contains(SECRET), "{}", dir.log());
}

/// A holder of a token tries what the token is not for.
#[test]
fn tokens_have_their_rights_on_their_feeds_only() {
    let dir = TestFolder::new("");
    let made = dir.run(&["token", "new", "ci", "--rights", "publish", "--feeds", "orders-*,news"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let made = stdout(&made);
    let (ci, lines) = made.split_once('\n').unwrap();
    assert!(ci.starts_with("towpath_") && ci.len() == 8 + 43 && !lines.contains(ci), "{made}");
    let hashed = dir.run_with(&["token", "hash"], format!("{ci}\n").as_bytes());
    assert_eq!(stdout(&hashed).trim(), hash_of(ci));
    let entry = |name: &str, rights: &str, feeds: &str| {
        format!(
            "[[token]]\nname = '{name}'\nhash = '{}'\nrights = [{rights}]\nfeeds = [{feeds}]\n",
            hash_of(name)
        )
    };
    let config = format!(
        "[server]\ntokens = ['{}']\n{lines}{}{}{}{}",
        hash_of("old"),
        entry("reader", "'read'", "'orders-*'"),
        entry("both", "'read', 'publish'", "'orders-eu'"),
        entry("admin", "'admin'", "'orders-eu'"),
        "[[feed]]\nid = 'orders-eu'\nvisibility = 'private'\n[[feed]]\nid = 'news'\nreaders = ['r']\n"
    );
    dir.write("towpath.toml", config.as_bytes());
    let mut command = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("TOWPATH_LOG", "debug");
    let server = dir.start(command);

    // Rows: token; columns: put, batch, read, snapshot of orders-eu; put, read of news.
    let old = "old";
    for (token, expected) in [
        (ci, [200, 200, 401, 403, 200, 401]),
        ("reader", [403, 403, 200, 403, 403, 401]),
        ("both", [200, 200, 200, 403, 403, 401]),
        ("admin", [200, 200, 200, 201, 403, 401]),
        (old, [200, 200, 200, 201, 200, 200]),
        ("r", [401, 401, 401, 401, 401, 200]),
        ("wrong", [401, 401, 401, 401, 401, 401]),
        // The hash is in the configuration: whoever reads that has no token yet.
        (hash_of("old").as_str(), [401, 401, 401, 401, 401, 401]),
        ("", [401, 401, 401, 401, 401, 401]),
    ] {
        let line = "{\"op\":\"put\",\"id\":\"b\"}\n";
        let found = [
            with_token(&server, "PUT", "/feeds/orders-eu/items/a", token, "x"),
            with_token(&server, "POST", "/feeds/orders-eu/items", token, line),
            get(&server, "/feeds/orders-eu/items?timeout=0", token),
            with_token(&server, "POST", "/feeds/orders-eu/snapshots", token, ""),
            with_token(&server, "PUT", "/feeds/news/items/a", token, "x"),
            get(&server, "/feeds/news/items?timeout=0", token),
        ];
        // A first put creates the item.
        let statuses = found.map(|answer| answer.status);
        let same =
            statuses.iter().zip(expected).all(|(is, wanted)| *is == wanted || (*is == 201 && wanted == 200));
        assert!(same, "{token}: {statuses:?}, expected {expected:?}");
    }
    let log = dir.log();
    for name in ["token=ci", "token=both", "token=admin", "token=server.tokens 1", "token=reader"] {
        assert!(log.contains(name) || log.contains(&name.replace('=', "=\"")), "{name}: {log}");
    }
    assert!(!log.contains(ci) && !log.contains(&ci[8..]), "{log}");
}

/// The holder of a token goes on with it after it was withdrawn.
#[test]
fn a_withdrawn_token_gets_nothing_more() {
    let config = |tokens: &str| {
        format!(
            "[server]\ntokens = ['owner']\n{tokens}\n[[feed]]\nid = 'own'\nvisibility = 'private'\n\
             readers = ['kept', 'gone']\n"
        )
    };
    let filed = "[[token]]\nname = 'filed'\ntoken_file = 'token'\nrights = ['read']\n";
    let leaver = "[[token]]\nname = 'leaver'\ntoken = 'leaver'\nrights = ['read', 'publish']\n";
    let dir = TestFolder::new("");
    dir.write("token", b"filed-1\n");
    dir.write("towpath.toml", config(&format!("{filed}{leaver}")).as_bytes());
    let server = dir.serve();
    let put = |id: &str| with_token(&server, "PUT", &format!("/feeds/own/items/{id}"), "owner", "x").status;
    let reads = |token: &str| get(&server, "/feeds/own/items?timeout=0", token).status;
    assert_eq!(put("first"), 201);
    assert_eq!(["kept", "gone", "filed-1", "leaver"].map(reads), [200; 4]);

    // A file with a token changes; nothing else is needed.
    dir.write("token", b"filed-2, longer\n");
    wait_until("the new token is read", || reads("filed-2, longer") == 200);
    assert_eq!([reads("filed-1"), reads("kept")], [401, 200]);

    // Mistakes change nothing, and are logged without the secret.
    let broken = config(&format!("{leaver}[[token]]\nname = 'a'\ntoken = ['{SECRET}']\nrights = ['read']\n"));
    dir.write("towpath.toml", broken.as_bytes());
    hangup(&server);
    wait_until("the mistake is logged", || dir.log().contains("the tokens stay as they were"));
    assert!(!dir.log().contains(SECRET), "{}", dir.log());
    assert_eq!(["kept", "gone", "filed-2, longer", "leaver"].map(reads), [200; 4]);

    // Those who wait when a token is withdrawn do not get the next item either.
    let (log, base) = (dir.path("log"), &server.base);
    thread::scope(|scope| {
        let waiters: Vec<_> = ["items?since=time:4000000000&timeout=20", "events"]
            .iter()
            .flat_map(|path| ["gone", "leaver"].map(|token| (path, token)))
            .map(|(path, token)| {
                let url = format!("{base}/feeds/own/{path}");
                scope.spawn(move || {
                    let bearer = format!("Authorization: Bearer {token}");
                    let output = Command::new("curl").args(["-sN", "-m", "10", "-H", &bearer, &url]).output();
                    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
                })
            })
            .collect();
        wait_until("all wait", || {
            let metrics = server.get("/metrics").text();
            metrics.lines().any(|line| line.starts_with("towpath_waiters ") && line.ends_with(" 4"))
        });
        dir.write("towpath.toml", config(filed).replace(", 'gone'", "").as_bytes());
        hangup(&server);
        wait_until("the tokens are read again", || {
            fs::read_to_string(&log).unwrap().matches("the tokens were read again").count() == 2
        });
        assert_eq!(put("after-the-withdrawal"), 201);
        for waiter in waiters {
            let seen = waiter.join().unwrap();
            assert!(!seen.contains("after-the-withdrawal"), "{seen}");
        }
    });
    assert_eq!(["gone", "leaver", "kept", "filed-2, longer"].map(reads), [401, 401, 200, 200]);
    assert_eq!(with_token(&server, "PUT", "/feeds/own/items/x", "leaver", "x").status, 401);

    // A file without any token must not open the server to every program on this machine.
    dir.write("towpath.toml", b"[[feed]]\nid = 'own'\nvisibility = 'private'\n");
    hangup(&server);
    wait_until("the owner is gone", || put("y") == 401);
    assert_eq!(server.ask("PUT", "/feeds/own/items/z", &[], b"x").status, 401);
    assert_eq!(server.get("/feeds/own/items").status, 401);
}

/// A stranger reads a private feed through a filter on it.
#[test]
fn a_filter_shows_nothing_to_those_who_may_not_read_its_feed() {
    let dir = TestFolder::new(
        r#"
        [server]
        tokens = ["owner"]
        [[token]]
        name = "named"
        token = "named"
        rights = ["read"]
        feeds = ["own"]
        [[feed]]
        id = "own"
        readers = ["all", { token = "part", filter = { tags = ["open"] } }]
        [[feed]]
        id = "view"
        filter = { of = "own", tags = ["rust"] }
        [[feed]]
        id = "shown"
        filter = { of = "own", tags = ["rust"] }
        visibility = "public"
        [[feed]]
        id = "others"
        filter = { of = "own", tags = ["rust"] }
        readers = ["other"]
        "#,
    );
    let server = dir.serve();
    for (id, tags) in [("a", "rust"), ("b", "open"), ("c", "rust&tag=open")] {
        let path = format!("/feeds/own/items/{id}?tag={tags}");
        assert_eq!(with_token(&server, "PUT", &path, "owner", "x").status, 201);
    }
    let seen = |feed: &str, token: &str| {
        let page = get(&server, &format!("/feeds/{feed}/items?timeout=0&order=created"), token);
        if page.status != 200 {
            return Err(page.status);
        }
        let page = page.json();
        let ids = page["items"].as_array().unwrap().iter();
        let ids: Vec<_> =
            ids.map(|item| item["id"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()).collect();
        assert_eq!(page["totalItems"].as_u64().unwrap() as usize, ids.len());
        Ok(ids.concat())
    };
    for token in ["", "wrong", "other"] {
        assert_eq!(seen("view", token), Err(401), "{token}");
        for path in ["", "/events", "/atom", "/rss", "/feed.json", "/replication", "/items/a", "/hub"] {
            let answer = get(&server, &format!("/feeds/view{path}"), token);
            assert!(answer.status >= 400 && !answer.text().contains("\"a\""), "{path}: {}", answer.text());
        }
        assert!(!get(&server, "/diff/sources.json", token).text().contains("view"));
    }
    assert_eq!(seen("view", "all"), Ok("ac".into()));
    assert_eq!(seen("view", "named"), Ok("ac".into()));
    assert_eq!(seen("view", "part"), Ok("c".into()));
    assert_eq!(seen("shown", ""), Ok("ac".into()));
    assert_eq!(seen("others", "other"), Ok("ac".into()));
    assert_eq!(seen("others", "part"), Err(401));
    assert_eq!(seen("own", "part"), Ok("bc".into()));
    // Nor does its description tell how many items the private feed has, and when it changed.
    for (feed, token) in [("shown", ""), ("view", "all")] {
        let described = get(&server, &format!("/feeds/{feed}"), token).json();
        assert_eq!(described["id"], feed);
        for name in ["seq", "items", "live", "modified", "horizon"] {
            assert!(described.get(name).is_none(), "{feed} tells {name}: {described}");
        }
    }
    let listed = server.json("/feeds?status");
    assert_eq!((listed["feeds"][0]["id"].as_str(), listed["feeds"][0].get("live")), (Some("shown"), None));
    let html = [("accept", "text/html")];
    for path in ["/", "/feeds/shown"] {
        let page = server.ask("GET", path, &html, b"").text();
        assert!(page.contains("shown"), "{path}: {page}");
        for told in ["3 items", "3 changes", "last change <", "data-label=\"Items\">3"] {
            let (head, _) = page.split_once("id=\"items\"").unwrap_or((&page, ""));
            assert!(!head.contains(told), "{path} tells {told}: {head}");
        }
    }
}

/// A publisher sends terminal escapes and invisible text.
#[test]
fn follow_prints_nothing_that_a_terminal_acts_on() {
    let hidden = "\u{9b}2J\u{202e}evil\u{2066}\u{61c}\u{7f}\u{1b}[31m\u{2028}\u{feff}\u{e0041}é😀";
    let dir = TestFolder::new("[[feed]]\nid = \"aa\"\n");
    let server = dir.serve();
    let line = serde_json::json!({ "op": "put", "id": hidden, "content_type": "text/plain", "content": hidden,
        "item": { "title": hidden, "tags": [hidden], "extra": { "x": hidden } } });
    let posted = server.ask("POST", "/feeds/aa/items", &[], line.to_string().as_bytes());
    assert_eq!(posted.status, 200, "{}", posted.text());
    let output = dir.run(&["follow", "--once", &format!("{}/feeds/aa/items", server.base)]);
    let (lines, notices) = (stdout(&output), stderr(&output));
    let shown = |c: &char| matches!(*c, ' '..='~' | '\n' | 'é' | '😀');
    let raw: Vec<_> = lines.chars().chain(notices.chars()).filter(|c| !shown(c)).collect();
    assert!(raw.is_empty() && lines.contains("\\u009b2J\\u202e"), "{raw:?}: {lines:?} {notices:?}");
    let value: serde_json::Value = serde_json::from_str(&lines).unwrap();
    let values = [&value["id"], &value["content"], &value["item"]["title"], &value["item"]["extra"]["x"]];
    assert_eq!(values.map(|value| value.as_str()), [Some(hidden); 4]);
}
