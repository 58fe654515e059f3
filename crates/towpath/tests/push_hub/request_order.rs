//! Requests for one subscription whose verifications overlap.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use super::*;

fn is_slow(call: &CallbackRequest) -> bool {
    call.argument("hub.verify_token").as_deref() == Some("slow")
}

/// Subscriber that confirms a request with the token `slow` only once it is told to.
fn slow_subscriber() -> (CallbackServer, Sender<()>) {
    let (confirm, told) = channel();
    let told = Mutex::new(told);
    let answer = move |call: &CallbackRequest| {
        if is_slow(call) {
            // An error means that the test is over.
            let _ = told.lock().unwrap().recv();
        }
        good(call)
    };
    (CallbackServer::start(answer), confirm)
}

/// Number of subscribers.
fn total(server: &TestServer) -> u64 {
    server.get("/readyz").json()["parts"]["hub"]["total"].as_u64().unwrap_or(0)
}

/// WebSub 5.1: "Each subsequent request to a hub to subscribe or unsubscribe MUST override the previous subscription
/// state for a specific topic URL and callback URL combination, but only once the action is verified".
#[test]
fn a_later_request_overrides_an_earlier_one() {
    let (server, (callback, confirm)) = (hub_folder().serve(), slow_subscriber());
    let topic = topic(&server, "");
    // Synchronous, so that each answer tells that the request has had its effect.
    let request = |token: &str, (mode, secret): (&str, &str)| {
        let more = [("hub.verify", "sync"), ("hub.verify_token", token), ("hub.secret", secret)];
        ask(&server, mode, &topic, &callback.url("/"), &more).status
    };
    let overlap = |earlier, later| {
        let before = callback.calls().len();
        std::thread::scope(|scope| {
            let earlier = scope.spawn(|| request("slow", earlier));
            callback.wait_for("a question", |calls| calls[before..].iter().any(is_slow));
            assert_eq!(request("fast", later), 204);
            confirm.send(()).unwrap();
            assert_eq!(earlier.join().unwrap(), 409);
        });
    };
    overlap(("subscribe", "one"), ("subscribe", "two"));
    assert_eq!(total(&server), 1);
    publish(&server, "aa", "first", "First");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    let header = delivery.header(signature::HEADER);
    assert_eq!(signature::check(header, b"two", &delivery.body), Ok(()));
    overlap(("subscribe", "one"), ("unsubscribe", ""));
    assert_eq!(total(&server), 0);
    overlap(("unsubscribe", ""), ("subscribe", "three"));
    assert_eq!(total(&server), 1);
}

/// WebSub 5.1.2: 202 says that the request "was received and will now be verified". A server that stops meanwhile waits for
/// the answer.
#[test]
fn a_running_verification_outlives_a_stop() {
    let (dir, (callback, confirm)) = (hub_folder(), slow_subscriber());
    let (port, slow) = (free_port(), [("hub.verify", "async"), ("hub.verify_token", "slow")]);
    let server = dir.serve_at(port);
    let topic = topic(&server, "");
    assert_eq!(ask(&server, "subscribe", &topic, &callback.url("/"), &slow).status, 202);
    callback.wait_for("a question", |calls| calls.iter().any(is_slow));
    std::thread::scope(|scope| {
        let stopped = scope.spawn(|| server.stop());
        wait_until("it takes no connections", || std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
        confirm.send(()).unwrap();
        assert_eq!(stopped.join().unwrap(), Some(0));
    });
    let server = dir.serve_at(port);
    wait_until("it is ready", || server.get("/readyz").status == 200);
    assert_eq!(total(&server), 1);
}
