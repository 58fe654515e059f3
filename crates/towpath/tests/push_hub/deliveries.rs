//! Deliveries: content, order, signatures, retries and access.

use super::*;

/// Hub test 101. WebSub 7.1: with a secret, deliveries are signed; each version of the text has its own method.
#[test]
fn deliveries_are_signed() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/new", &topic, &[("hub.secret", "geheim")]);
    let old = [("hub.secret", "geheim"), ("hub.verify", "async")];
    subscribe(&server, &callback, "/old", &topic, &old);
    publish(&server, "aa", "one", "One");
    for delivery in callback.wait_for_deliveries(2) {
        let header = delivery.header(signature::HEADER);
        assert_eq!(signature::check(header, b"geheim", &delivery.body), Ok(()));
        let method = if delivery.path == "/new" { "sha256=" } else { "sha1=" };
        assert!(header.unwrap().starts_with(method), "{header:?}");
    }
}

/// "Push Interface": deliveries are in order, one at a time. Items appended meanwhile come together in the next, each
/// with the cursor of the item before it.
#[test]
fn deliveries_are_in_order_and_chained_by_cursors() {
    let slow = |call: &CallbackRequest| {
        if call.is_delivery() {
            std::thread::sleep(Duration::from_millis(300));
        }
        good(call)
    };
    let (server, callback) = (hub_folder().serve(), CallbackServer::start(slow));
    subscribe(&server, &callback, "/", &topic(&server, "?order=modified"), &[]);
    for number in 0..10 {
        publish(&server, "aa", &format!("item-{number}"), "x");
        std::thread::sleep(Duration::from_millis(20));
    }
    let is_last =
        |call: &CallbackRequest| call.is_delivery() && call.ids().last().is_some_and(|id| id == "item-9");
    callback.wait_for("the last", |calls| calls.iter().any(is_last));
    let deliveries = callback.deliveries();
    // Ten items in fewer deliveries, or nothing was collected while one was under way.
    assert!(deliveries.len() < 6, "{}", deliveries.len());
    let mut last = serde_json::Value::Null;
    for (index, delivery) in deliveries.iter().enumerate() {
        assert_eq!(delivery.json()["prev_cursor"], last);
        last = delivery.json()["last_cursor"].clone();
        if index > 0 {
            assert!(delivery.at - deliveries[index - 1].at >= Duration::from_millis(290), "two at a time");
        }
    }
    let ids: Vec<String> = deliveries.iter().flat_map(CallbackRequest::ids).collect();
    assert_eq!(ids, (0..10).map(|number| format!("item-{number}")).collect::<Vec<_>>());
}

/// WebSub 7: "Hubs SHOULD retry"; 410 "MAY terminate the subscription"; redirects are failures.
#[test]
fn failures_are_retried_and_410_ends_the_subscription() {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let flaky = move |call: &CallbackRequest| {
        if !call.is_delivery() {
            return good(call);
        }
        match (call.path.as_str(), tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst)) {
            ("/gone", _) => (410, String::new(), Vec::new()),
            (_, 0) => (302, "Location: /elsewhere\r\n".to_owned(), Vec::new()),
            _ => good(call),
        }
    };
    let callback = CallbackServer::start(flaky);
    let server = hub_folder().serve();
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/flaky", &topic, &[]);
    publish(&server, "aa", "one", "One");
    let deliveries = callback.wait_for_deliveries(2);
    assert_eq!(deliveries[0].body, deliveries[1].body);
    // The first retry is due after two seconds.
    assert!(deliveries[1].at - deliveries[0].at >= Duration::from_millis(1900));
    assert!(callback.calls().iter().all(|call| call.path != "/elsewhere"));
    subscribe(&server, &callback, "/gone", &topic, &[]);
    publish(&server, "aa", "two", "Two");
    callback.wait_for_deliveries(4);
    publish(&server, "aa", "three", "Three");
    callback.wait_for_deliveries(5);
    nothing_more(&callback, 5);
    assert_eq!(callback.deliveries().iter().filter(|call| call.path == "/gone").count(), 1);
}

/// WebSub 7, 0.3 section 7.3: "The response body from the subscriber MUST be ignored by the hub". So the status counts
/// although the body is cut off, is malformed, or never comes.
#[test]
fn bodies_of_answers_are_ignored() {
    let callback = CallbackServer::start(|call| match (call.is_delivery(), call.path.as_str()) {
        (false, _) => good(call),
        (_, "/cut") => (200, "Content-Length: 10\r\nConnection: close\r\n".into(), b"x".to_vec()),
        (_, "/chunk") => {
            (200, "Transfer-Encoding: chunked\r\nConnection: close\r\n".into(), b"zz\r\nx".to_vec())
        }
        (_, path) => {
            (if path == "/gone" { 410 } else { 200 }, "Content-Length: 10\r\n".into(), b"x".to_vec())
        }
    });
    let server = hub_folder().serve();
    let topic = topic(&server, "");
    for path in ["/cut", "/chunk", "/stalls", "/gone"] {
        subscribe(&server, &callback, path, &topic, &[]);
    }
    publish(&server, "aa", "one", "One");
    callback.wait_for_deliveries(4);
    // The first retry would come after two seconds.
    std::thread::sleep(Duration::from_millis(2500));
    publish(&server, "aa", "two", "Two");
    callback.wait_for_deliveries(7);
    nothing_more(&callback, 7);
    for (path, ids) in [
        ("/cut", vec!["one", "two"]),
        ("/chunk", vec!["one", "two"]),
        ("/stalls", vec!["one", "two"]),
        ("/gone", vec!["one"]),
    ] {
        let deliveries = callback.deliveries().into_iter().filter(|call| call.path == path);
        assert_eq!(deliveries.flat_map(|call| call.ids()).collect::<Vec<_>>(), ids, "{path}");
    }
}

/// A callback that responds for an hour byte by byte delays no other.
#[test]
fn a_slow_callback_delays_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).unwrap();
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                // The hub's challenges have 32 characters.
                if let Some(challenge) = text.split("hub.challenge=").nth(1).and_then(|rest| rest.get(..32)) {
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n{challenge}");
                    return stream.write_all(answer.as_bytes()).unwrap();
                }
                for byte in
                    b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".iter().chain([b'.'; 3600].iter())
                {
                    if stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let topic = topic(&server, "");
    assert_eq!(ask(&server, "subscribe", &topic, &slow, &[]).status, 202);
    subscribe(&server, &callback, "/", &topic, &[]);
    for number in 1..=5 {
        publish(&server, "aa", &format!("item-{number}"), "x");
        let deliveries = callback.wait_for_deliveries(number);
        assert_eq!(deliveries[number - 1].ids(), [format!("item-{number}")]);
    }
}

/// "Implementations SHOULD restrict access to (or filter) feeds and items based on authorization of the entity …
/// receiving pushes".
#[test]
fn a_protected_feed_is_pushed_as_its_reader_may_see_it() {
    let server = TestFolder::new(PRIVATE).serve();
    let callback = CallbackServer::good();
    let topic = topic(&server, "");
    assert_eq!(ask(&server, "subscribe", &topic, &callback.url("/"), &[]).status, 401);
    for token in ["all", "some"] {
        let (authorization, url) = (format!("Bearer {token}"), callback.url(&format!("/{token}")));
        let headers = [
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Authorization", authorization.as_str()),
        ];
        let body = form(&[("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", &url)]);
        assert_eq!(server.ask("POST", "/feeds/aa/hub", &headers, body.as_bytes()).status, 202);
    }
    callback.wait_for("questions", |calls| calls.len() == 2);
    std::thread::sleep(Duration::from_millis(200));
    for (id, tag) in [("one", "closed"), ("two", "open")] {
        let line = json!({ "id": id, "item": { "tags": [tag] } }).to_string();
        assert_eq!(server.ask("POST", "/feeds/aa/items", &[], line.as_bytes()).status, 200);
    }
    let is_last = |call: &CallbackRequest, path: &str| {
        call.path == path && call.is_delivery() && call.ids().contains(&"two".into())
    };
    callback.wait_for("the last", |calls| {
        ["/all", "/some"].iter().all(|path| calls.iter().any(|c| is_last(c, path)))
    });
    let received = |path: &str| -> Vec<String> {
        callback.deliveries().iter().filter(|call| call.path == path).flat_map(CallbackRequest::ids).collect()
    };
    assert_eq!(received("/all"), ["one", "two"]);
    assert_eq!(received("/some"), ["two"]);
}

/// An address with a fixed format is one representation (WebSub 4.1), and that is pushed.
#[test]
fn a_topic_may_fix_its_format() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let topic = topic(&server, "?order=modified&format=atom");
    subscribe(&server, &callback, "/", &topic, &[]);
    publish(&server, "aa", "one", "One");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    assert_eq!(delivery.header("content-type"), Some("application/atom+xml; charset=utf-8"));
    let negotiated =
        server.ask("GET", "/feeds/aa/items?order=modified", &[("Accept", "application/atom+xml")], b"");
    assert!(negotiated.header("link").unwrap().contains(&format!("<{topic}>; rel=\"self\"")));
    let fixed =
        server.ask("GET", "/feeds/aa/items?order=modified&format=atom", &[("Accept", "text/html")], b"");
    assert_eq!(fixed.header("content-type"), Some("application/atom+xml; charset=utf-8"));
}

/// An operator learns on the home page that deliveries fail; strangers learn nothing of subscribers.
#[test]
fn failing_deliveries_are_on_the_home_page() {
    let callback = CallbackServer::start(|call| match call.is_delivery() {
        true => (500, String::new(), Vec::new()),
        false => good(call),
    });
    let config = CONFIG.replace("[server]\n", "[server]\ntokens = [\"t0ken\"]\n");
    let folder = TestFolder::new(&config);
    let server = folder.serve();
    let home = |headers: &[(&str, &str)]| {
        let headers: Vec<(&str, &str)> = headers.iter().copied().chain([("accept", "text/html")]).collect();
        server.ask("GET", "/", &headers, b"").text()
    };
    let (operator, topic) = ([("authorization", "Bearer t0ken")], topic(&server, ""));
    subscribe(&server, &callback, "/refuses", &topic, &[]);
    assert!(!home(&operator).contains("The WebSub hub"));
    let line = json!({"id": "one", "item": {"title": "One"}}).to_string();
    assert_eq!(server.ask("POST", "/feeds/aa/items", &operator, line.as_bytes()).status, 200);
    callback.wait_for_deliveries(1);
    crate::common::wait_until("the failure is told", || {
        home(&operator).contains("The WebSub hub: deliveries to 1 of 1 subscriber fail")
    });
    assert!(!home(&[]).contains("The WebSub hub"));
}
