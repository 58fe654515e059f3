//! Requests that change nothing, and callbacks that may not be called.

use super::*;

/// Bad input gets an error in plain text (WebSub 5.1.2), and no callback is called.
#[test]
fn bad_requests_are_refused() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let (topic, good) = (topic(&server, "?order=modified"), callback.url("/"));
    // WebSub 5.1: a secret "MUST be less than 200 bytes in length".
    let long = "s".repeat(200);
    let foreign = "http://elsewhere.example/feeds/aa/items".to_owned();
    let other_feed = topic.replace("/aa/", "/bb/");
    let ranged = format!("{topic}&since=cursor%3A1");
    let unknown_order = topic.replace("modified", "popular");
    for (parameters, status) in [
        (vec![("hub.mode", "subscribe"), ("hub.topic", &topic)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.callback", &good)], 400),
        (vec![("hub.topic", &topic), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "dance"), ("hub.topic", &topic), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", "ftp://127.0.0.1/")], 400),
        (
            vec![("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", "http://a:b@127.0.0.1/")],
            400,
        ),
        (
            vec![("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", "http://127.0.0.1/#a")],
            400,
        ),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &foreign), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &other_feed), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &ranged), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &unknown_order), ("hub.callback", &good)], 400),
        (
            vec![
                ("hub.mode", "subscribe"),
                ("hub.topic", &topic),
                ("hub.callback", &good),
                ("hub.secret", &long),
            ],
            400,
        ),
        (
            vec![
                ("hub.mode", "subscribe"),
                ("hub.topic", &topic),
                ("hub.callback", &good),
                ("hub.lease_seconds", "-1"),
            ],
            400,
        ),
    ] {
        let answer = post(&server, "aa", &parameters);
        assert_eq!(answer.status, status, "{parameters:?}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"), "{parameters:?}");
        assert!(answer.text().contains("hub."), "{}", answer.text());
    }
    assert_eq!(
        server.ask("POST", "/feeds/aa/hub", &[("Content-Type", "application/json")], b"{}").status,
        415
    );
    assert_eq!(server.get("/feeds/aa/hub").status, 405);
    assert_eq!(post(&server, "none", &[]).status, 404);
    let large = server.try_ask("POST", "/feeds/aa/hub", &[], &vec![b'a'; 100_000]);
    // Refused by its type, by its size, or cut off while it is being sent.
    assert!(large.is_err() || large.is_ok_and(|answer| answer.status == 413 || answer.status == 415));
    assert!(callback.calls().is_empty());
    let huge = [("hub.lease_seconds", "1000000000000")];
    let question = subscribe(&server, &callback, "/", &topic, &huge);
    // Thirty days, the longest lease.
    assert_eq!(question.argument("hub.lease_seconds").as_deref(), Some("2592000"));
}

/// 0.3 section 7.1: a publisher's ping gets 204; there is nothing to fetch ("HTTP Push").
#[test]
fn a_ping_changes_nothing() {
    let server = hub_folder().serve();
    let own = topic(&server, "");
    assert_eq!(post(&server, "aa", &[("hub.mode", "publish"), ("hub.url", &own)]).status, 204);
    let foreign = [("hub.mode", "publish"), ("hub.url", "http://elsewhere.example/")];
    assert_eq!(post(&server, "aa", &foreign).status, 400);
}

/// Private addresses are never called unless that is allowed, under whatever name, nor by a redirect.
#[test]
fn private_addresses_are_not_called() {
    let server = TestFolder::new("[[feed]]\nid = \"aa\"\n").serve();
    let callback = CallbackServer::good();
    let topic = topic(&server, "");
    let port = callback.base.rsplit(':').next().unwrap();
    // Other spellings of the loopback, and the metadata service of several clouds.
    for host in
        ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"]
    {
        let answer = ask(&server, "subscribe", &topic, &format!("http://{host}:{port}/"), &[]);
        assert_eq!(answer.status, 400, "{host}: {}", answer.text());
    }
    // A name is resolved for each call, so a DNS change cannot reach a private address later.
    let sync = [("hub.verify", "sync")];
    let answer = ask(&server, "subscribe", &topic, &format!("http://localhost:{port}/"), &sync);
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(answer.text().contains("loopback"), "{}", answer.text());
    assert!(callback.calls().is_empty());
}

/// A redirect is no confirmation (WebSub 5.3.1).
#[test]
fn a_redirect_does_not_confirm() {
    let server = hub_folder().serve();
    let target = CallbackServer::good();
    let location = format!("Location: {}\r\n", target.url("/"));
    let callback = CallbackServer::start(move |_| (302, location.clone(), Vec::new()));
    let answer =
        ask(&server, "subscribe", &topic(&server, ""), &callback.url("/"), &[("hub.verify", "sync")]);
    assert_eq!(answer.status, 409);
    assert!(target.calls().is_empty());
}
