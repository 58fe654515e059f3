//! A receiver of what nodes send by themselves: the messages of a webhook, and a hub's deliveries.
//!
//! It is durable: what it has taken is there, whatever happens to the node. It may be unreachable, refuse a message, or
//! take one and not say so.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::time::sleep;
use towpath_proto::change::Seq;

use crate::network::{Address, Server};
use crate::subscriber::{CALLBACKS, Subscriber};
use crate::world::World;
use crate::{trace, trace::count};

/// Host of the receiver.
pub const HOST: &str = "receiver.test";
/// Path to which the webhook posts.
pub const HOOK: &str = "/hook";

/// Id and title of a change; no title for a deletion.
pub type TakenChange = (String, Option<String>);

/// The receiver.
pub struct Receiver {
    world: Arc<World>,
    /// Changes that the webhook brought, by feed, from position 1.
    taken: Mutex<BTreeMap<String, Vec<TakenChange>>>,
    /// Takes the deliveries of the hub.
    pub subscriber: Subscriber,
    /// True while a message is being taken.
    is_taking: watch::Sender<bool>,
    /// Never true.
    is_off: watch::Sender<bool>,
}

impl Receiver {
    /// Creates a receiver that has nothing.
    pub fn new(world: &Arc<World>) -> Arc<Self> {
        let (is_taking, is_off) = (watch::Sender::new(false), watch::Sender::new(false));
        let (taken, subscriber) = (Mutex::default(), Subscriber::new(world));
        Arc::new(Self { world: world.clone(), taken, subscriber, is_taking, is_off })
    }

    /// Returns its address.
    pub fn address(self: &Arc<Self>) -> Address {
        Address { server: Server::Receiver(self.clone()), is_off: self.is_off.subscribe() }
    }

    /// Returns once it takes a message.
    pub async fn taking(&self) {
        let _ = self.is_taking.subscribe().wait_for(|is_taking| *is_taking).await;
    }

    /// Compares what the webhook brought of a feed with its log. Returns what is missing.
    pub fn compare(&self, feed: &str, log: &[TakenChange]) -> Result<Option<String>, String> {
        let taken = self.taken.lock();
        let taken = taken.get(feed).map_or(&[][..], Vec::as_slice);
        if let Some((at, (one, other))) =
            taken.iter().zip(log).enumerate().find(|(_, (one, other))| one != other)
        {
            return Err(format!(
                "the webhook brought {one:?} as change {} of {feed}, which is {other:?}",
                at + 1
            ));
        }
        let (found, all) = (taken.len(), log.len());
        if found > all {
            return Err(format!("the webhook brought {found} changes of {feed}, which has {all}"));
        }
        Ok((found < all).then(|| format!("the webhook brought {found} changes of {feed}, which has {all}")))
    }

    /// Serves a connection.
    pub(crate) async fn serve(self: Arc<Self>, stream: DuplexStream) {
        let service = service_fn(move |request| {
            let receiver = self.clone();
            async move { Ok::<_, Infallible>(receiver.answer(request).await) }
        });
        // A connection that is cut ends with an error, and there is nobody to tell.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else { return status(StatusCode::BAD_REQUEST) };
        let body = body.to_bytes();
        // In a task of its own: what it has taken in does not end with the connection.
        let path = head.uri.path().to_owned();
        let taken = match (&head.method, path.strip_prefix(CALLBACKS)) {
            (&Method::GET, Some(_)) => {
                let (code, challenge) = Subscriber::confirm(head.uri.query().unwrap_or_default());
                let mut answer = status(code);
                *answer.body_mut() = Full::new(challenge);
                return answer;
            }
            (&Method::POST, _) => tokio::spawn(async move { self.take(&path, &body).await }).await,
            _ => return status(StatusCode::NOT_FOUND),
        };
        status(taken.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
    }

    /// Takes a message, in a transaction as a database would.
    async fn take(&self, path: &str, body: &[u8]) -> StatusCode {
        self.is_taking.send_replace(true);
        sleep(self.world.time(Duration::from_secs(1))).await;
        self.is_taking.send_replace(false);
        let refused = self.world.faults.borrow().refused;
        if self.world.percent(refused) {
            count("messages refused");
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        let taken = match path.strip_prefix(CALLBACKS) {
            Some(feed) => self.subscriber.take(feed, body),
            None => self.take_message(body),
        };
        if taken.is_success() && self.world.percent(refused) {
            count("messages taken, and not acknowledged");
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        taken
    }

    /// Takes a message of the webhook.
    fn take_message(&self, body: &[u8]) -> StatusCode {
        let message: Value = serde_json::from_slice(body).unwrap_or_default();
        let Some(changes) = message["data"]["changes"].as_array() else {
            self.world.violate("a message of the webhook cannot be read".into());
            return StatusCode::BAD_REQUEST;
        };
        changes.iter().for_each(|change| self.take_change(change));
        StatusCode::NO_CONTENT
    }

    /// Takes a change: the next one of its feed, or one that it has.
    fn take_change(&self, line: &Value) {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (Some(feed), Some(id)) = (text(&line["feed"]), text(&line["id"])) else {
            return self.world.violate(format!("the webhook brought {line}"));
        };
        let title = (line["op"] != "delete").then(|| text(&line["item"]["title"]).unwrap_or_default());
        let position = line["position"].as_str().and_then(|position| position.parse::<Seq>().ok());
        let at = position.unwrap_or_default() as usize;
        trace!("receiver: change {at} of {feed}: {id} {title:?}");
        count("changes delivered by webhook");
        let mut taken = self.taken.lock();
        let taken = taken.entry(feed.clone()).or_default();
        match at.checked_sub(1).and_then(|at| taken.get(at)) {
            Some(had) if *had == (id.clone(), title.clone()) => {}
            Some(had) => {
                self.world.violate(format!(
                    "the webhook brought {id} {title:?} as change {at} of {feed}, after {had:?}"
                ));
            }
            None if at == taken.len() + 1 => taken.push((id, title)),
            None => {
                let last = taken.len();
                self.world.violate(format!("the webhook brought change {at} of {feed} after change {last}"));
            }
        }
    }
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}
