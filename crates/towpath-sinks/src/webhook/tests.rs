use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use towpath_client::sink::SinkEvent;
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::{Item, Op};

use super::message::TYPE;
use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A message as a receiver got it.
#[derive(Debug, Clone)]
struct Received {
    id: String,
    timestamp: String,
    signature: String,
    body: Vec<u8>,
}

impl Received {
    fn ids(&self) -> Vec<String> {
        let body: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(body["type"], TYPE);
        let changes = body["data"]["changes"].as_array().unwrap();
        changes.iter().map(|line| line["id"].as_str().unwrap_or("reset").to_owned()).collect()
    }
}

fn sink_to(url: &str, options: WebhookOptions) -> WebhookSink {
    WebhookSink::new(WebhookDestination::parse(url, options).unwrap())
}

/// Response of a receiver to a message.
type Answer = Box<dyn FnMut(&Received) -> String + Send>;

/// A receiver on loopback.
struct Receiver {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    async fn start(answer: impl FnMut(&Received) -> String + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer): (_, Arc<Mutex<Answer>>) =
            (received.clone(), Arc::new(Mutex::new(Box::new(answer))));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(receive(stream, kept.clone(), answer.clone()));
            }
        });
        Self { address, received }
    }

    /// Answers these statuses one after another, then 204.
    async fn answering(statuses: &[u16]) -> Self {
        let mut statuses: VecDeque<u16> = statuses.iter().copied().collect();
        Self::start(move |_| status(statuses.pop_front().unwrap_or(204))).await
    }

    fn sink(&self, options: WebhookOptions) -> WebhookSink {
        sink_to(&format!("http://{}/hook", self.address), WebhookOptions { allow_private: true, ..options })
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().clone()
    }

    fn delivered(&self) -> Vec<String> {
        self.received().iter().flat_map(Received::ids).collect()
    }
}

fn status(code: u16) -> String {
    format!("HTTP/1.1 {code} x\r\nContent-Length: 0\r\n\r\n")
}

async fn receive(stream: TcpStream, received: Arc<Mutex<Vec<Received>>>, answer: Arc<Mutex<Answer>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut message = Received {
            id: String::new(),
            timestamp: String::new(),
            signature: String::new(),
            body: Vec::new(),
        };
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                if line == "\r\n" { break } else { continue }
            };
            match name {
                "webhook-id" => message.id = value.into(),
                "webhook-timestamp" => message.timestamp = value.into(),
                "webhook-signature" => message.signature = value.into(),
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
        message.body = vec![0; length];
        stream.read_exact(&mut message.body).await.unwrap();
        let answer = (answer.lock())(&message);
        received.lock().push(message);
        if stream.write_all(answer.as_bytes()).await.is_err() || answer.contains("Connection: close") {
            return;
        }
    }
}

fn batch(ids: &[&str]) -> SinkBatch {
    let change = |(position, id): (usize, &&str)| {
        SinkEvent::Change(Box::new(Followed {
            feed: "f".into(),
            op: Op::Put,
            item: Item::new(*id),
            patch: None,
            modified: None,
            position: position.to_string(),
            entry_id: None,
        }))
    };
    let events = ids.iter().enumerate().map(change).collect();
    SinkBatch { source: "f".into(), events: Arc::new(events), checkpoint: None }
}

fn wait(error: SinkError) -> Duration {
    match error {
        SinkError::Unavailable { retry_after: Some(wait), .. } => wait,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_message_is_signed_with_every_secret() {
    let receiver = Receiver::answering(&[]).await;
    let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let secrets = vec![SECRET.parse().unwrap(), other.parse().unwrap()];
    let mut sink = receiver.sink(WebhookOptions { secrets, ..WebhookOptions::default() });
    sink.apply(&batch(&["a", "b"])).await.unwrap();
    let received = receiver.received();
    assert_eq!(received[0].ids(), ["a", "b"]);
    // Verified as a receiver does, apart from the code that signs.
    let base64 = base64::engine::general_purpose::STANDARD;
    for (signature, secret) in received[0].signature.split(' ').zip([SECRET, other]) {
        let key = base64.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{}.{}.", received[0].id, received[0].timestamp).as_bytes());
        mac.update(&received[0].body);
        mac.verify_slice(&base64.decode(signature.strip_prefix("v1,").unwrap()).unwrap()).unwrap();
    }
    let sent: i64 = received[0].timestamp.parse().unwrap();
    assert!((jiff::Timestamp::now().as_second() - sent).abs() < 60);
}

#[tokio::test]
async fn a_retry_has_the_same_id_and_body_and_repeats_nothing_delivered() {
    let receiver = Receiver::answering(&[204, 500, 429]).await;
    let mut sink = receiver.sink(WebhookOptions { batch: 2, ..WebhookOptions::default() });
    let batch = batch(&["a", "b", "c", "d", "e"]);
    assert!(wait(sink.apply(&batch).await.unwrap_err()) > Duration::ZERO);
    wait(sink.apply(&batch).await.unwrap_err());
    sink.apply(&batch).await.unwrap();
    let received = receiver.received();
    let ids: Vec<Vec<String>> = received.iter().map(Received::ids).collect();
    assert_eq!(ids, [vec!["a", "b"], vec!["c", "d"], vec!["c", "d"], vec!["c", "d"], vec!["e"]]);
    assert!(received[1].id == received[3].id && received[1].body == received[3].body);
    assert!(received[0].id.starts_with("msg_") && received[0].id != received[1].id);
    // After a restart, too.
    let mut again = receiver.sink(WebhookOptions { batch: 2, ..WebhookOptions::default() });
    again.apply(&batch).await.unwrap();
    assert_eq!(receiver.received()[5].id, received[0].id);
}

/// A queue merges what waits while the receiver is away, also across a reset.
#[tokio::test]
async fn a_retry_delivers_what_comes_again_behind_a_reset() {
    let receiver = Receiver::answering(&[204, 500]).await;
    let mut sink = receiver.sink(WebhookOptions { batch: 3, ..WebhookOptions::default() });
    let reset = || SinkEvent::Reset(FeedReset { feed: "f".into(), reason: "r".into() });
    let mut merged = batch(&["a", "b"]);
    let events = Arc::make_mut(&mut merged.events);
    let first = events[0].clone();
    events.insert(0, reset());
    events.extend([reset(), first]);
    wait(sink.apply(&merged).await.unwrap_err());
    sink.apply(&merged).await.unwrap();
    let ids: Vec<Vec<String>> = receiver.received().iter().map(Received::ids).collect();
    assert_eq!(ids, [vec!["reset", "a", "b"], vec!["reset", "a"], vec!["reset", "a"]]);
}

/// The status is the acknowledgement. A message whose answer is cut off would be delivered again otherwise.
#[tokio::test]
async fn a_cut_body_counts_by_its_status() {
    let mut answers = VecDeque::from([
        // The connection closes before the rest, or the rest never comes.
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\nok".to_owned(),
        "HTTP/1.1 202 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n".to_owned(),
        "HTTP/1.1 410 x\r\nContent-Length: 100\r\n\r\n".to_owned(),
    ]);
    let receiver = Receiver::start(move |_| answers.pop_front().unwrap()).await;
    let mut sink = receiver.sink(WebhookOptions { batch: 1, ..WebhookOptions::default() });
    let error = sink.apply(&batch(&["a", "b", "c"])).await.unwrap_err();
    assert!(error.to_string().contains("410"), "{error}");
    assert_eq!(receiver.delivered(), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_refused_line_is_found_and_the_others_are_delivered_in_order() {
    let receiver =
        Receiver::start(|message| status(if message.ids().iter().any(|id| id == "bad") { 422 } else { 204 }));
    let receiver = receiver.await;
    let mut sink = receiver.sink(WebhookOptions::default());
    let mut batch = batch(&["a", "bad", "b", "c", "bad", "d", "bad", "bad", "e"]);
    let mut attempts = 0;
    while let Err(error) = sink.apply(&batch).await {
        attempts += 1;
        assert!(attempts < 100, "no line is set aside");
        match error {
            SinkError::Items(refused) => {
                assert_eq!(refused.len(), 1);
                let removed = Arc::make_mut(&mut batch.events).remove(refused[0].index);
                assert_eq!(removed.change().unwrap().item.id, "bad");
            }
            other => drop(wait(other)),
        }
    }
    let good = receiver.received().into_iter().filter(|message| !message.ids().contains(&"bad".into()));
    assert_eq!(good.flat_map(|message| message.ids()).collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn gone_ends_the_deliveries_and_a_private_address_is_tried_again() {
    let receiver = Receiver::answering(&[410]).await;
    let mut sink = receiver.sink(WebhookOptions::default());
    assert!(
        matches!(sink.apply(&batch(&["a"])).await, Err(SinkError::Refused { message }) if message.contains("410"))
    );
    let url = format!("http://{}/hook?key=hush", receiver.address);
    let private = sink_to(&url, WebhookOptions::default()).open("f").await.unwrap_err();
    assert!(matches!(private, SinkError::Unavailable { .. }), "{private}");
    let private = private.to_string();
    assert!(private.contains("loopback") && !private.contains("hush"), "{private}");
    assert_eq!(receiver.received().len(), 1);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let target = Receiver::answering(&[]).await;
    let location = format!("http://{}/other", target.address);
    let redirect = format!("HTTP/1.1 307 x\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
    let receiver = Receiver::start(move |_| redirect.clone()).await;
    let error = receiver.sink(WebhookOptions::default()).apply(&batch(&["a"])).await.unwrap_err();
    assert!(error.to_string().contains(&location), "{error}");
    assert!(target.received().is_empty());
}

#[tokio::test]
async fn a_receiver_that_hangs_is_cut_off_and_given_up_in_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let options = WebhookOptions {
        timeout: Duration::from_millis(50),
        give_up: Duration::from_millis(60),
        allow_private: true,
        ..WebhookOptions::default()
    };
    let mut sink = sink_to(&url, options);
    wait(sink.apply(&batch(&["a"])).await.unwrap_err());
    let error = loop {
        match sink.apply(&batch(&["a"])).await.unwrap_err() {
            SinkError::Refused { message } => break message,
            other => drop(wait(other)),
        }
    };
    assert!(error.contains("gave up") && error.contains("nothing is lost"), "{error}");
}

#[tokio::test]
async fn failures_before_a_restart_count_until_something_is_delivered() {
    let receiver = Receiver::answering(&[503, 200, 503]).await;
    let days = Duration::from_secs(5 * 24 * 3600);
    let options =
        WebhookOptions { failing_for: days - Duration::from_secs(3600), ..WebhookOptions::default() };
    let mut sink = receiver.sink(options.clone());
    wait(sink.apply(&batch(&["a"])).await.unwrap_err());
    sink.apply(&batch(&["a"])).await.unwrap();
    wait(sink.apply(&batch(&["b"])).await.unwrap_err());
    let receiver = Receiver::answering(&[503]).await;
    let mut late = receiver.sink(WebhookOptions { failing_for: days, ..options });
    let error = late.apply(&batch(&["a"])).await.unwrap_err();
    assert!(matches!(&error, SinkError::Refused { message } if message.contains("gave up")), "{error:?}");
}

#[tokio::test]
async fn a_reset_is_a_line_and_a_bare_checkpoint_is_no_message() {
    let receiver = Receiver::answering(&[]).await;
    let mut sink = receiver.sink(WebhookOptions::default());
    let reset = SinkEvent::Reset(FeedReset { feed: "f".into(), reason: "r".into() });
    let events = Arc::new(vec![reset]);
    sink.apply(&SinkBatch { source: "f".into(), events, checkpoint: None }).await.unwrap();
    sink.apply(&SinkBatch { source: "f".into(), events: Arc::default(), checkpoint: Some((*b"1").into()) })
        .await
        .unwrap();
    assert_eq!(receiver.delivered(), ["reset"]);
}
