//! A hub of others, as public ones are: told by pings, it fetches the topic and delivers it whole.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use towpath_proto::push::websub::signature::{self, Algorithm};
use url::Url;

use super::{CallbackReply, CallbackRequest, CallbackServer};
use crate::common::{TestResponse, ask_at, wait_until};

#[derive(Debug, Clone)]
struct HubSubscriber {
    topic: String,
    callback: String,
    secret: String,
}

/// A hub at `/hub` of a free port.
pub struct TestHub {
    server: CallbackServer,
    subscribers: Arc<Mutex<Vec<HubSubscriber>>>,
    /// Status of its answers to pings.
    status: Arc<AtomicU16>,
}

impl TestHub {
    pub fn start() -> Self {
        let (subscribers, status) = (Arc::new(Mutex::default()), Arc::new(AtomicU16::new(204)));
        let (known, says) = (Arc::clone(&subscribers), Arc::clone(&status));
        let server = CallbackServer::start(move |call| answer(call, &known, says.load(Ordering::Relaxed)));
        Self { server, subscribers, status }
    }

    pub fn url(&self) -> String {
        self.server.url("/hub")
    }

    /// Has pings answered with another status.
    pub fn answer_pings_with(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Topics of the pings so far, refused ones too.
    pub fn pings(&self) -> Vec<String> {
        let calls = self.server.calls();
        let pings = calls.iter().filter(|call| parameter(call, "hub.mode").as_deref() == Some("publish"));
        pings.map(|call| parameter(call, "hub.url").unwrap()).collect()
    }

    /// Callbacks of the subscriptions.
    pub fn callbacks(&self) -> Vec<Url> {
        let subscribers = self.subscribers.lock().unwrap();
        subscribers.iter().map(|subscriber| Url::parse(&subscriber.callback).unwrap()).collect()
    }

    /// Delivers a topic without a ping.
    pub fn distribute(&self, topic: &str) {
        distribute(topic, &self.subscribers.lock().unwrap().clone());
    }

    pub fn wait_for_subscribers(&self, count: usize) {
        wait_until("subscribed", || self.subscribers.lock().unwrap().len() >= count);
    }
}

fn parameter(call: &CallbackRequest, name: &str) -> Option<String> {
    let mut pairs = url::form_urlencoded::parse(&call.body);
    pairs.find(|(known, _)| known == name).map(|(_, value)| value.into_owned())
}

fn answer(call: &CallbackRequest, known: &Arc<Mutex<Vec<HubSubscriber>>>, status: u16) -> CallbackReply {
    let known = Arc::clone(known);
    match parameter(call, "hub.mode").as_deref() {
        Some("publish") if status == 204 => {
            assert_eq!(call.header("content-type"), Some("application/x-www-form-urlencoded"));
            let topic = parameter(call, "hub.url").unwrap();
            let subscribers = known.lock().unwrap().clone();
            std::thread::spawn(move || distribute(&topic, &subscribers));
        }
        Some("publish") => return (status, String::new(), Vec::new()),
        Some("subscribe") => {
            let value = |name| parameter(call, name).unwrap_or_default();
            let (topic, callback) = (value("hub.topic"), value("hub.callback"));
            let subscriber = HubSubscriber { topic, callback, secret: value("hub.secret") };
            std::thread::spawn(move || verify(subscriber, &known));
            return (202, String::new(), Vec::new());
        }
        _ => return (400, String::new(), Vec::new()),
    }
    (status, String::new(), Vec::new())
}

pub fn ask(method: &str, url: &Url, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<TestResponse> {
    let base = format!("http://{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    ask_at(&base, method, &path, headers, body)
}

fn verify(subscriber: HubSubscriber, known: &Mutex<Vec<HubSubscriber>>) {
    let mut url = Url::parse(&subscriber.callback).unwrap();
    url.query_pairs_mut().extend_pairs([
        ("hub.mode", "subscribe"),
        ("hub.topic", &subscriber.topic),
        ("hub.challenge", "prove-it"),
        ("hub.lease_seconds", "864000"),
    ]);
    let Ok(answer) = ask("GET", &url, &[], b"") else { return };
    if answer.status == 200 && answer.body == b"prove-it" {
        known.lock().unwrap().push(subscriber);
    }
}

/// Delivers the topic's newest content to its subscribers (WebSub 7).
fn distribute(topic: &str, subscribers: &[HubSubscriber]) {
    let Ok(content) = ask("GET", &Url::parse(topic).unwrap(), &[], b"") else { return };
    let media_type = content.header("content-type").unwrap_or("application/octet-stream");
    let links = format!("<http://hub.example/>; rel=\"hub\", <{topic}>; rel=\"self\"");
    for subscriber in subscribers.iter().filter(|subscriber| subscriber.topic == topic) {
        let signature = signature::sign(Algorithm::Sha256, subscriber.secret.as_bytes(), &content.body);
        let headers = [("Content-Type", media_type), ("Link", &links), ("X-Hub-Signature", &signature)];
        let _ = ask("POST", &Url::parse(&subscriber.callback).unwrap(), &headers, &content.body);
    }
}
