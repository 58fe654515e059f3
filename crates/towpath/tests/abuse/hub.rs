//! Hub under attack: callbacks that are closed, slow, or somebody else's.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use towpath::config::Config;
use towpath::engine::roles::Lease;
use towpath::protocols::websub::{HubState, run};
use towpath_proto::push::websub::request::{SubscriptionRequest, VerifyMode};
use towpath_proto::push::websub::subscription::HubSubscription;
use towpath_proto::push::websub::{Dialect, Mode};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Store, Table, TableWrite};

use super::size;

use crate::callback::{CallbackRequest, CallbackServer, good};
use crate::common::{PATIENCE, TestFolder, TestResponse, TestServer, ask_on};

const CONFIG: &str =
    "[server]\nallow_private_callbacks = true\n[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"bb\"\n";

fn form(parameters: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}

/// Asks a feed's hub for a subscription, from one of this machine's addresses.
fn subscribe(server: &TestServer, from: &str, feed: &str, callback: &str) -> TestResponse {
    let to: SocketAddr = server.base.strip_prefix("http://").unwrap().parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from: SocketAddr = format!("{from}:0").parse().unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let topic = format!("{}/feeds/{feed}/items", server.base);
    let body = form(&[("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", callback)]);
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    ask_on(stream, "POST", &format!("/feeds/{feed}/hub"), &headers, body.as_bytes()).unwrap()
}

/// Subscribes, and waits until the hub has asked the subscriber to confirm it.
fn subscribe_and_confirm(server: &TestServer, from: &str, feed: &str, to: &CallbackServer, path: &str) {
    let answer = subscribe(server, from, feed, &to.url(path));
    assert_eq!(answer.status, 202, "{}", answer.text());
    to.wait_for("a verification", |calls| calls.iter().any(|call| call.path == path));
    // The subscription starts once the response to the verification has arrived.
    std::thread::sleep(Duration::from_millis(200));
}

fn publish(server: &TestServer, feed: &str, id: &str) {
    let line = serde_json::json!({ "id": id, "item": { "title": id } }).to_string();
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &[], line.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Asks for subscriptions of callbacks at ports that nobody listens at.
fn flood(server: &TestServer, from: &str, count: usize, callback: impl Fn(usize) -> String + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let status = subscribe(server, from, "aa", &callback(number)).status;
                    // Accepted, or refused as too many: nothing else.
                    assert!(status == 202 || status == 503, "{status}");
                }
            });
        }
    });
}

/// Verifications of closed ports are retried for minutes. Meanwhile every feed's hub takes other subscriptions.
#[test]
fn closed_ports_do_not_shut_the_hub() {
    let server = TestFolder::new(CONFIG).serve();
    // Every callback has an address of its own, so no limit of addresses helps.
    let closed = |number: usize| format!("http://127.2.{}.{}:9/", number / 250, number % 250 + 1);
    flood(&server, "127.0.0.1", size(2200, 12_000), closed);
    let honest = CallbackServer::good();
    // From the attacker's own address as well: behind a proxy, all clients may share one.
    for (from, feed) in [("127.0.0.1", "aa"), ("127.0.0.5", "bb")] {
        subscribe_and_confirm(&server, from, feed, &honest, &format!("/{feed}"));
        publish(&server, feed, "one");
    }
    honest.wait_for_deliveries(2);
}

/// The attacked address is the subscriber's own: it waits for its turn at this address, and gets it.
#[test]
fn a_flooded_address_still_gets_its_subscription() {
    let server = TestFolder::new(CONFIG).serve();
    // Ports that nobody listens at.
    let closed = |number: usize| format!("http://127.0.0.1:{}/{number}", number % 20 + 1);
    flood(&server, "127.0.0.1", size(2200, 5000), closed);
    let honest = CallbackServer::good();
    subscribe_and_confirm(&server, "127.0.0.5", "bb", &honest, "/");
    publish(&server, "bb", "one");
    honest.wait_for_deliveries(1);
}

/// Other ports, names and spellings of one address are one host: none of them fills a topic.
#[test]
fn all_ports_of_an_address_are_one_host() {
    let config = format!("{CONFIG}[hub]\nhost_subscribers = 2\n");
    let server = TestFolder::new(&config).serve();
    let (one, two) = (CallbackServer::good(), CallbackServer::good());
    subscribe_and_confirm(&server, "127.0.0.1", "aa", &one, "/1");
    // Counted by the address that the name has, which the hub knows once it has connected.
    let named = two.base.replace("127.0.0.1", "localhost");
    assert_eq!(subscribe(&server, "127.0.0.1", "aa", &format!("{named}/2")).status, 202);
    two.wait_for("a verification", |calls| !calls.is_empty());
    std::thread::sleep(Duration::from_millis(200));
    let third = CallbackServer::good();
    let refused = subscribe(&server, "127.0.0.1", "bb", &third.url("/3"));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("host_subscribers"), "{}", refused.text());
    let elsewhere = CallbackServer::start_at("127.0.0.8", good);
    subscribe_and_confirm(&server, "127.0.0.1", "aa", &elsewhere, "/4");
}

/// A hub sends an address no more than a few requests a minute that were not asked for there: over all topics,
/// ports, names and requesters.
#[test]
fn a_hub_does_not_flood_an_address() {
    let server = TestFolder::new(CONFIG).serve();
    let count = Arc::new(AtomicUsize::new(0));
    let victims: Vec<CallbackServer> = (0..10)
        .map(|_| {
            let count = count.clone();
            CallbackServer::start(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
                (404, String::new(), Vec::new())
            })
        })
        .collect();
    let begin = Instant::now();
    for number in 0..size(200, 2000) {
        let from = format!("127.0.1.{}", number % 200 + 1);
        let victim = &victims[number % victims.len()];
        let base =
            if number % 2 == 0 { victim.base.clone() } else { victim.base.replace("127.0.0.1", "127.1") };
        let feed = if number % 3 == 0 { "aa" } else { "bb" };
        let status = subscribe(&server, &from, feed, &format!("{base}/{number}")).status;
        assert!(status == 202 || status == 503, "{status}");
    }
    std::thread::sleep(Duration::from_secs(size(2, 40) as u64));
    let minutes = 1 + begin.elapsed().as_secs() / 60;
    let sent = count.load(Ordering::SeqCst) as u64;
    assert!((1..=6 * minutes).contains(&sent), "{sent} requests in {minutes} minutes");
}

/// Subscribers that answer after seconds have lanes of their own: another one gets its delivery before them.
#[test]
fn slow_subscribers_delay_nobody() {
    let config = format!("{CONFIG}[hub]\nconnections = 4\nhost_connections = 4\nslow_connections = 4\n");
    let server = TestFolder::new(&config).serve();
    let wait = Duration::from_secs(12);
    let answered = Arc::new(AtomicUsize::new(0));
    let slow: Vec<CallbackServer> = (0..12)
        .map(|number| {
            let answered = answered.clone();
            let answer = move |call: &CallbackRequest| {
                if call.is_delivery() {
                    std::thread::sleep(wait);
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                good(call)
            };
            CallbackServer::start_at(&format!("127.0.0.{}", 10 + number), answer)
        })
        .collect();
    for slow in &slow {
        subscribe_and_confirm(&server, "127.0.0.1", "aa", slow, "/");
    }
    let honest = CallbackServer::good();
    subscribe_and_confirm(&server, "127.0.0.1", "bb", &honest, "/");
    publish(&server, "aa", "one");
    // All connections are taken by slow subscribers now.
    std::thread::sleep(Duration::from_millis(300));
    publish(&server, "bb", "two");
    honest.wait_for_deliveries(1);
    assert_eq!(answered.load(Ordering::SeqCst), 0, "the delivery waited for slow subscribers");
    // The slow ones get theirs, in turns.
    for slow in &slow {
        slow.wait_for_deliveries(1);
    }
}

fn stored(number: usize) -> [TableWrite; 2] {
    let request = SubscriptionRequest {
        mode: Mode::Subscribe,
        dialect: Dialect::WebSub,
        topic: "http://127.0.0.1/feeds/aa/items".into(),
        callback: format!("http://10.{}.{}.{}/{number}", number >> 16, number >> 8 & 255, number & 255),
        lease_seconds: None,
        secret: Some("secret".into()),
        verify: VerifyMode::Async,
        verify_token: None,
    };
    let (topic, lease) = ("aa?order=modified", Duration::from_secs(86_400));
    let ends = jiff::Timestamp::now().saturating_add(jiff::SignedDuration::from_hours(24)).unwrap();
    let made = HubSubscription::new(&request, topic, lease, ends, None).unwrap();
    let id = HubSubscription::id(topic, &made.callback).to_be_bytes();
    let write = |prefix: &[u8], value: Vec<u8>| TableWrite {
        table: Table::Subscriptions,
        key: [prefix, &id].concat(),
        value: Some(value.into()),
    };
    [write(b"s/", made.to_bytes()), write(b"p/", 0_u64.to_be_bytes().to_vec())]
}

/// Starts a hub on a folder with stored subscribers of one topic, and returns the time until it knows all of them.
async fn restart(folder: &Path, count: usize) -> Duration {
    let open = || EmbeddedStore::open(folder.join("data"), EmbeddedOptions::default()).unwrap();
    let store = open();
    for first in (0..count).step_by(5000) {
        let rows = (first..(first + 5000).min(count)).flat_map(stored).collect();
        store.write(rows, Vec::new()).await.unwrap();
    }
    let feed = towpath_proto::FeedId::new("aa").unwrap();
    let item = towpath_proto::NewChange::put(towpath_proto::Item::new("one"));
    store.append(&feed, towpath_store::Expected::Any, vec![item]).await.unwrap();
    store.close().await;
    drop(store);
    let config =
        Config::parse(&format!("{CONFIG}[hub]\nconnections = 1\n"), &folder.join("towpath.toml")).unwrap();
    let store: Arc<dyn Store> = Arc::new(open());
    let engine = towpath::protocols::start(config, store).await.unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let begin = Instant::now();
    let running = tokio::spawn(run(engine.clone(), Lease::alone("hub"), stopped));
    while HubState::of(&engine).len() < count {
        assert!(
            begin.elapsed() < 4 * PATIENCE,
            "{} of {count} after {PATIENCE:?}",
            HubState::of(&engine).len()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = begin.elapsed();
    stop.send(true).unwrap();
    running.await.unwrap();
    engine.store.close().await;
    took
}

/// A subscriber is added in logarithmic time, so a restart with many of one topic takes seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_reads_many_subscribers_of_one_topic() {
    let folder = tempfile::tempdir().unwrap();
    let count = size(10_000, 100_000);
    let took = restart(folder.path(), count).await;
    println!("{count} subscribers of one topic restart in {took:.2?}");
    // The short form runs unoptimised, beside other tests: there, a quadratic restart took half a minute.
    let limit = Duration::from_secs(size(15, 3) as u64);
    assert!(took < limit, "{count} subscribers of one topic restart in {took:.2?}");
}
