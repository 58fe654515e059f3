//! Subscriptions: verification, renewal, end, restarts and leases.

use super::*;

/// Hub tests 100 and 106. WebSub 5.1.2: 202. 5.3: hub.mode, hub.topic, hub.challenge and hub.lease_seconds are there.
/// 7: "MUST have a Content-Type Header corresponding to the Content-Type of the topic", "MUST include at least one
/// Link Header with rel=hub", "MUST also include one Link Header with rel=self". Without a secret, no signature.
#[test]
fn a_subscription_is_verified_and_gets_deliveries() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let topic = topic(&server, "?order=modified");
    let question = subscribe(&server, &callback, "/push?mine=1", &topic, &[("hub.lease_seconds", "3600")]);
    assert!(question.query.starts_with("mine=1&hub.mode=subscribe&"), "{}", question.query);
    assert_eq!(question.argument("hub.topic").as_deref(), Some(topic.as_str()));
    assert_eq!(question.argument("hub.lease_seconds").as_deref(), Some("3600"));
    publish(&server, "aa", "one", "One");
    publish(&server, "bb", "other", "Other");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    assert_eq!((delivery.path.as_str(), delivery.query.as_str()), ("/push", "mine=1"));
    let fetched = server.get("/feeds/aa/items?order=modified");
    assert_eq!(delivery.header("content-type"), fetched.header("content-type"));
    let links = format!("<{0}/feeds/aa/hub>; rel=\"hub\", <{topic}>; rel=\"self\"", server.base);
    assert_eq!(delivery.header("link"), Some(links.as_str()));
    assert_eq!(fetched.header("link"), Some(links.as_str()));
    assert_eq!(delivery.header(signature::HEADER), None);
    // The first push has no previous cursor: it is the topic's content.
    assert_eq!(delivery.json(), fetched.json());
    nothing_more(&callback, 1);
}

/// Hub test 102. WebSub 5.1: "Hubs MUST ignore additional request parameters they do not understand".
#[test]
fn unknown_parameters_are_ignored() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    subscribe(&server, &callback, "/", &topic(&server, ""), &[("foo", "bar"), ("hub.foo", "hub.bar")]);
    publish(&server, "aa", "one", "One");
    assert_eq!(callback.wait_for_deliveries(1)[0].ids(), ["one"]);
}

/// Hub test 103. WebSub 5.1: "Hubs MUST allow subscribers to re-request subscriptions that are already activated";
/// the new secret counts once that is verified, and "If verification fails, the subscription state MUST be left
/// unchanged".
#[test]
fn subscribing_again_renews() {
    let answer = |call: &CallbackRequest| match call.argument("hub.lease_seconds").as_deref() {
        Some("999") => (404, String::new(), Vec::new()),
        _ => good(call),
    };
    let (server, callback) = (hub_folder().serve(), CallbackServer::start(answer));
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/", &topic, &[("hub.secret", "first")]);
    subscribe(&server, &callback, "/", &topic, &[("hub.secret", "second")]);
    subscribe(&server, &callback, "/", &topic, &[("hub.secret", "third"), ("hub.lease_seconds", "999")]);
    publish(&server, "aa", "one", "One");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    let header = delivery.header(signature::HEADER);
    // The third one's verification failed, so its secret does not count.
    assert_eq!(signature::check(header, b"second", &delivery.body), Ok(()));
    nothing_more(&callback, 1);
}

/// Hub test 104. WebSub 3.1: "MUST support unsubscription requests"; verified as well.
#[test]
fn unsubscribing_ends_deliveries() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/", &topic, &[]);
    assert_eq!(ask(&server, "unsubscribe", &topic, &callback.url("/"), &[]).status, 202);
    let is_asked = |calls: &[CallbackRequest]| calls.iter().any(|c| c.query.contains("hub.mode=unsubscribe"));
    callback.wait_for("a question", is_asked);
    std::thread::sleep(Duration::from_millis(200));
    publish(&server, "aa", "one", "One");
    nothing_more(&callback, 0);
}

/// 0.3 section 6.1.2: synchronous, "the verification MUST be completed before the hub returns a response", 204; the
/// token is echoed (6.2); "HTTP Push": an Atom document.
#[test]
fn pubsubhubbub_0_3_verifies_synchronously() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let topic = topic(&server, "?order=created");
    let more = [("hub.verify", "sync"), ("hub.verify_token", "t=1")];
    let answer = ask(&server, "subscribe", &topic, &callback.url("/"), &more);
    assert_eq!(answer.status, 204, "{}", answer.text());
    assert_eq!(callback.calls()[0].argument("hub.verify_token").as_deref(), Some("t=1"));
    publish(&server, "aa", "one", "One");
    publish(&server, "aa", "one", "One, edited");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    assert_eq!(delivery.header("content-type"), Some("application/atom+xml; charset=utf-8"));
    let body = String::from_utf8(delivery.body).unwrap();
    for part in ["rel=\"hub\"", "<fo:total>1</fo:total>", "<fo:last_cursor>", "<fo:id>one</fo:id>"] {
        assert!(body.contains(part), "{part} in {body}");
    }
    assert!(!body.contains("rel=\"next\""), "{body}");
    // An edit adds nothing in the order of creation.
    nothing_more(&callback, 1);
    let no = CallbackServer::start(|_| (404, String::new(), Vec::new()));
    let refused = ask(&server, "subscribe", &topic, &no.url("/"), &more);
    assert_eq!(refused.status, 409, "{}", refused.text());
}

/// Subscriptions survive a restart, also after a crash, and continue from their positions.
#[test]
fn subscriptions_survive_restarts() {
    let (dir, callback) = (hub_folder(), CallbackServer::good());
    let port = free_port();
    let server = dir.serve_at(port);
    subscribe(&server, &callback, "/", &topic(&server, "?order=modified"), &[("hub.secret", "s")]);
    publish(&server, "aa", "one", "One");
    callback.wait_for_deliveries(1);
    assert_eq!(server.stop(), Some(0));
    // Appended while no server runs.
    let appended = dir.run(&["put", "aa", "two", "--title", "Two"]);
    assert!(appended.status.success(), "{}", crate::common::stderr(&appended));
    let server = dir.serve_at(port);
    let deliveries = callback.wait_for_deliveries(2);
    assert_eq!(deliveries[1].ids(), ["two"]);
    assert_eq!(deliveries[1].json()["prev_cursor"], deliveries[0].json()["last_cursor"]);
    server.kill();
    let server = dir.serve_at(port);
    publish(&server, "aa", "three", "Three");
    // Positions are written every second, so the crash may repeat earlier deliveries.
    let is_last =
        |call: &CallbackRequest| call.is_delivery() && call.ids().last().is_some_and(|id| id == "three");
    callback.wait_for("the third", |calls| calls.iter().any(is_last));
    drop(server);
}

/// WebSub 5.3.1: "Hubs MUST enforce lease expirations"; 0.3 section 6.3: "Before a subscription expires … Hubs MUST
/// recheck with subscribers".
#[test]
fn leases_end_and_old_subscriptions_are_refreshed() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/new", &topic, &[("hub.lease_seconds", "1")]);
    // Ten seconds is the shortest lease.
    assert_eq!(questions(&callback, "/new")[0].argument("hub.lease_seconds").as_deref(), Some("10"));
    subscribe(&server, &callback, "/old", &topic, &[("hub.lease_seconds", "10"), ("hub.verify", "async")]);
    callback.wait_for("a second question", |_| questions(&callback, "/old").len() >= 2);
    // By now the new lease has ended, and the old one was renewed.
    std::thread::sleep(Duration::from_secs(4));
    publish(&server, "aa", "one", "One");
    let deliveries = callback.wait_for_deliveries(1);
    assert_eq!(deliveries[0].path, "/old");
    nothing_more(&callback, 1);
}

/// WebSub 4: `rel=self` is the "canonical URL for the topic to which subscribers are expected to use for subscriptions". So
/// the hub takes what a page names, whatever was requested.
#[test]
fn what_pages_name_is_a_topic() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    for (query, atom) in [
        ("", false),
        ("", true),
        ("?as=line", false),
        ("?foo=bar", false),
        ("?foo=bar", true),
        ("?order=created&max=1&a", false),
    ] {
        let accept = [("Accept", if atom { "application/atom+xml" } else { "*/*" })];
        let page = server.ask("GET", &format!("/feeds/aa/items{query}"), &accept, b"");
        let links = page.header("link").unwrap();
        let topic = links.split("rel=\"hub\", <").nth(1).unwrap().split('>').next().unwrap();
        let answer = ask(&server, "subscribe", topic, &callback.url("/"), &[]);
        assert_eq!(answer.status, 202, "{query}: {links}: {}", answer.text());
        // "HTTP Pull": `rel=self` of an Atom document is the base URL. With other parameters that is no topic.
        let names_hub = page.text().contains("rel=\"hub\"");
        assert_eq!(names_hub, atom && query.is_empty(), "{query}: {}", page.text());
    }
}

/// WebSub 5.1.1: "Hubs MUST always decode non-reserved characters for these URL parameters". 5.3: the subscriber is asked
/// about the "topic URL given in the corresponding subscription request".
#[test]
fn a_topic_may_be_percent_encoded() {
    let (server, callback) = (hub_folder().serve(), CallbackServer::good());
    let topic = topic(&server, "?order=created");
    let encoded = topic.replace("/aa/", "/%61a/").replace("order", "%6Frder").replace("created", "cre%61ted");
    let question = subscribe(&server, &callback, "/", &encoded, &[]);
    assert_eq!(question.argument("hub.topic"), Some(encoded));
    publish(&server, "aa", "one", "One");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    assert!(delivery.header("link").unwrap().contains(&format!("<{topic}>; rel=\"self\"")));
    // It is the same subscription as that of the plain address.
    assert_eq!(ask(&server, "unsubscribe", &topic, &callback.url("/"), &[]).status, 202);
    callback.wait_for("a question", |_| questions(&callback, "/").len() == 2);
    std::thread::sleep(Duration::from_millis(200));
    publish(&server, "aa", "two", "Two");
    nothing_more(&callback, 1);
}
