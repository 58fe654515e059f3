//! Feeds that are made, changed and removed over HTTP.

use serde_json::{Value, json};

use crate::common::{TestFolder, TestServer, stderr, stdout, wait_until};

const CONFIG: &str = r#"
[server]
http_feeds = 3
[[token]]
name = "admin"
token = "admin-token"
rights = ["admin"]
feeds = ["team-*"]
[[token]]
name = "publisher"
token = "publisher-token"
rights = ["publish"]
feeds = ["*"]
[[feed]]
id = "of-file"
"#;

fn ask(server: &TestServer, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = server.ask(method, path, &headers, body.as_bytes());
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

/// A feed is there at once and after a restart, changes, and is gone with a reason for good.
#[test]
fn made_changed_and_removed() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let admin = |server: &TestServer, method: &str, path: &str, body: Value| {
        ask(server, "admin-token", method, path, &body)
    };
    let (status, made) = admin(&server, "PUT", "/feeds/team-a", json!({ "title": "Team A", "ttl": "1m" }));
    assert_eq!(
        (status, &made["title"], &made["made_over_http"]),
        (201, &json!("Team A"), &json!(true)),
        "{made}"
    );
    let (status, _) =
        ask(&server, "publisher-token", "POST", "/feeds/team-a/items", &json!([{ "id": "x", "item": {} }]));
    assert_eq!(status, 200);
    let (status, changed) = admin(&server, "PUT", "/feeds/team-a", json!({ "title": "The team" }));
    assert_eq!((status, &changed["title"], &changed["live"]), (200, &json!("The team"), &json!(1)));
    // A reload of the file leaves it alone.
    let reloaded = dir.run(&["reload"]);
    assert!(reloaded.status.success() && stdout(&reloaded).contains("no feed changed"), "{reloaded:?}");
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    assert_eq!(server.json("/feeds/team-a")["title"], "The team");
    assert_eq!(server.json("/feeds/team-a/items?as=line&timeout=0&max=1")["id"], "x");
    let (status, _) = admin(&server, "DELETE", "/feeds/team-a?reason=moved+to+team-b", Value::Null);
    assert_eq!(status, 200);
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    let gone = server.get("/feeds/team-a/items");
    assert_eq!(gone.status, 410);
    assert!(gone.text().contains("moved to team-b"), "{}", gone.text());
    // The same name is a feed again on its old log.
    assert_eq!(admin(&server, "PUT", "/feeds/team-a", Value::Null).0, 201);
    assert_eq!(server.json("/feeds/team-a")["seq"], 1);
}

/// Refused senders and refused feeds.
#[test]
fn refusals() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    for (token, path, wanted) in [
        ("publisher-token", "/feeds/team-a", 403),
        ("nonsense", "/feeds/team-a", 401),
        ("admin-token", "/feeds/other", 403),
    ] {
        assert_eq!(ask(&server, token, "PUT", path, &Value::Null).0, wanted, "{token} {path}");
        assert_eq!(ask(&server, token, "DELETE", path, &Value::Null).0, wanted, "{token} {path}");
    }
    for (settings, wanted) in [
        (json!({ "source": { "url": "/etc/passwd" } }), "a file of the server's machine"),
        (json!({ "titel": "x" }), "title"),
        (json!({ "ttl": "0s", "lang": "?" }), "lang"),
        (json!({ "readers": ["x"] }), "[[token]]"),
    ] {
        let (status, problem) = ask(&server, "admin-token", "PUT", "/feeds/team-a", &settings);
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(status == 400 && detail.contains(wanted), "{settings}: {status} {detail}");
    }
    assert_eq!(server.get("/feeds/team-a").status, 404);
    for name in ["team-a", "team-b", "team-c"] {
        assert_eq!(ask(&server, "admin-token", "PUT", &format!("/feeds/{name}"), &Value::Null).0, 201);
    }
    let (status, problem) = ask(&server, "admin-token", "PUT", "/feeds/team-d", &Value::Null);
    assert!(status == 403 && problem["detail"].as_str().unwrap().contains("http_feeds"), "{problem}");
    let (status, problem) =
        ask(&server, "admin-token", "PUT", "/feeds/team-a", &json!({ "visibility": "private" }));
    assert!(status == 409, "{problem}");
}

/// A source that is named over HTTP leads to no private address, though one of the file does.
#[test]
fn a_source_stays_out_of_private_networks() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let settings =
        json!({ "source": { "url": format!("{}/feeds/of-file/feed.json", server.base), "every": "1s" } });
    assert_eq!(ask(&server, "admin-token", "PUT", "/feeds/team-a", &settings).0, 201);
    crate::common::wait_until("the source is refused", || {
        let (_, feed) = ask(&server, "admin-token", "GET", "/feeds/team-a", &Value::Null);
        feed["source"]["error"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("public addresses only"))
    });
}

/// A feed that publishing created, without any configuration: it can be given settings, and be removed for good.
#[test]
fn of_publishing() {
    let dir = TestFolder::new(
        "[server]\ncreate_feeds = true\ntokens = ['admin-token']\n[[feed]]\nid = 'of-file'\n",
    );
    let server = dir.serve();
    let admin = |server: &TestServer, method: &str, path: &str, body: Value| {
        ask(server, "admin-token", method, path, &body)
    };
    for feed in ["news", "old"] {
        assert_eq!(
            admin(&server, "POST", &format!("/feeds/{feed}/items"), json!([{ "id": "x", "item": {} }])).0,
            200
        );
    }
    let (status, changed) = admin(&server, "PUT", "/feeds/news", json!({ "title": "The news" }));
    assert_eq!(
        (status, &changed["title"], &changed["seq"]),
        (200, &json!("The news"), &json!(1)),
        "{changed}"
    );
    let (status, problem) = admin(&server, "PUT", "/feeds/old", json!({ "visibility": "private" }));
    assert!(status == 409, "its readers know it as public: {problem}");
    assert_eq!(admin(&server, "DELETE", "/feeds/old?reason=over", Value::Null).0, 200);
    for method in ["PUT", "DELETE"] {
        let (status, problem) = admin(&server, method, "/feeds/of-file", Value::Null);
        let detail = problem["detail"].as_str().unwrap();
        assert!(status == 409 && detail.contains("in the configuration file"), "{detail}");
    }
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    assert_eq!(server.json("/feeds/news")["title"], "The news");
    let gone = server.get("/feeds/old/items");
    assert!(gone.status == 410 && gone.text().contains("over"), "{}", gone.text());
    assert_eq!(admin(&server, "POST", "/feeds/old/items", json!([{ "id": "y", "item": {} }])).0, 410);
}

/// The file's feeds are the file's, and the command line says so.
#[test]
fn by_the_command_line() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let run = |args: &[&str]| dir.run(&[args, &["--token", "admin-token"]].concat());
    let added = run(&["feed", "add", "team-a", "--title", "Team A"]);
    assert!(added.status.success() && stderr(&added).contains("feed team-a is served"), "{added:?}");
    let listed = stdout(&run(&["feed", "list"]));
    assert!(listed.lines().any(|line| line.starts_with("team-a   http")), "{listed}");
    assert!(listed.lines().any(|line| line.starts_with("of-file  file")), "{listed}");
    let refused = run(&["feed", "remove", "of-file"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let removed = run(&["--quiet", "feed", "remove", "team-a", "--reason", "over"]);
    assert!(removed.status.success() && removed.stderr.is_empty(), "{removed:?}");
    assert_eq!(server.get("/feeds/team-a").status, 410);
}

/// A thousand feeds are added one by one while readers wait on another: nobody notices.
#[test]
fn adding_feeds_disturbs_nobody() {
    let dir = TestFolder::new(&CONFIG.replace("http_feeds = 3", "http_feeds = 1000"));
    let server = dir.serve();
    let publish = |id: &str| {
        ask(&server, "publisher-token", "POST", "/feeds/of-file/items", &json!([{ "id": id, "item": {} }]))
    };
    assert_eq!(publish("first").0, 200);
    let since = server.json("/feeds/of-file/items?timeout=0")["last_cursor"].as_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..20)
            .map(|_| {
                scope.spawn(|| server.get(&format!("/feeds/of-file/items?as=line&timeout=300&since={since}")))
            })
            .collect();
        for number in 0..1000 {
            let path = format!("/feeds/team-{number}");
            assert_eq!(ask(&server, "admin-token", "PUT", &path, &Value::Null).0, 201, "{path}");
        }
        // Nobody was answered, or cut off, for nothing.
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        assert_eq!(publish("second").0, 200);
        for waiter in waiters {
            let answer = waiter.join().unwrap();
            assert_eq!((answer.status, &answer.json()["id"]), (200, &json!("second")));
        }
    });
}

/// The name of a public feed that was removed may be given to a private one, which no public document names.
#[test]
fn a_private_feed_with_the_name_of_a_public_one_is_not_told() {
    let dir = TestFolder::new("[server]\ntokens = ['t0ken']\n[[feed]]\nid = 'other'\nttl = '1s'\n");
    let server = dir.serve();
    let token = ("Authorization", "Bearer t0ken");
    let put = |path: &str, body: &[u8]| server.ask("PUT", path, &[token], body).status;
    let names = |text: &str, name: &str| text.contains(&format!("\"{name}\""));
    assert_eq!((put("/feeds/named", b""), put("/feeds/named/items/a", b"x")), (201, 201));
    wait_until("the public feed is told", || names(&server.get("/diff/latest.json").text(), "named"));
    assert_eq!(server.ask("DELETE", "/feeds/named", &[token], b"").status, 200);
    assert_eq!(put("/feeds/named", b"{\"visibility\":\"private\"}"), 201);
    assert_eq!(put("/feeds/other/items/later", b"x"), 201);
    wait_until("a later document is there", || names(&server.get("/diff/latest.json").text(), "later"));
    let latest = server.json("/diff/latest.json");
    assert!(latest["sources"].get("named").is_none(), "{latest}");
    assert!(!latest["sources_included"].to_string().contains("named"), "{latest}");
}
