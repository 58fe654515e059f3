//! Publishers: clients that put, change and delete items over HTTP, and note what they were told.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderName, Method};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;
use towpath_client::{Fetcher, FullResponse};
use towpath_proto::follow::{Request, RequestId};

use crate::bug::Bug;
use crate::ledger::Outcome;
use crate::world::World;
use crate::{trace, trace::count};

/// Number of items of a publisher.
const ITEMS: u64 = 12;

/// A publisher of a feed.
pub struct Publisher {
    /// The world.
    pub world: Arc<World>,
    /// Client.
    pub fetcher: Fetcher,
    /// Its name, and the beginning of its items' ids.
    pub name: String,
    /// Host that it publishes to.
    pub host: String,
    /// Feed that it publishes to.
    pub feed: String,
    /// Mean pause between two changes.
    pub pause: Duration,
    /// False while it rests.
    pub works: watch::Receiver<bool>,
}

impl Publisher {
    /// Publishes without end.
    pub async fn run(mut self) {
        let mut number = 0;
        loop {
            sleep(self.world.time(self.pause * 2)).await;
            if self.works.wait_for(|works| *works).await.is_err() {
                return;
            }
            number += 1;
            match self.world.below(10) {
                0 => self.delete().await,
                1 | 2 => self.add(number).await,
                _ => self.put(number).await,
            }
        }
    }

    fn url(&self, id: &str) -> String {
        format!("http://{}/feeds/{}/items/{id}", self.host, self.feed)
    }

    async fn send(
        &self,
        method: Method,
        id: &str,
        body: Bytes,
        condition: Option<(HeaderName, String)>,
    ) -> Option<FullResponse> {
        let mut request = Request::get(RequestId(0), self.url(id))
            .with(CONTENT_TYPE, "application/x-ndjson")
            .with(AUTHORIZATION, "Bearer simulation-token-0123456789");
        request.url = format!("{}?as=line", request.url);
        if let Some((name, value)) = condition {
            request = request.with(name, &value);
        }
        let request = Request { method, body, patience: Duration::from_secs(20), ..request };
        let answer = self.fetcher.fetch_whole(&request).await;
        answer.inspect_err(|e| trace!("{}: {id}: {e}", self.name)).ok()
    }

    fn outcome(&self, answer: Option<&FullResponse>) -> Outcome {
        match answer.map(|answer| answer.head.status) {
            Some(200..=299) => Outcome::Acknowledged,
            // The request may have come twice, and the first one have been done.
            Some(404 | 408 | 409 | 412) => Outcome::Unknown,
            Some(400..=499) => Outcome::Refused,
            None if self.world.has(Bug::AssumeDone) => Outcome::Acknowledged,
            // An error of the server tells nothing, and no answer neither.
            _ => Outcome::Unknown,
        }
    }

    async fn put(&self, number: u64) {
        let id = format!("{}-{}", self.name, self.world.below(ITEMS));
        let title = format!("{}#{number}", self.name);
        let size = if self.world.one_in(8) { self.world.below(30_000) } else { self.world.below(300) };
        let text = "0123456789abcdef".repeat(size as usize / 16 + 1);
        let body = json!({"id": id, "content": text, "content_type": "text/plain", "item": {"title": title}});
        let attempt = self.world.ledger.lock().feed(&self.feed).send(&id, Some(title.clone()));
        let answer = self.send(Method::PUT, &id, body.to_string().into(), None).await;
        self.note(&id, attempt, &title, answer.as_ref());
    }

    async fn delete(&self) {
        let id = format!("{}-{}", self.name, self.world.below(ITEMS));
        let attempt = self.world.ledger.lock().feed(&self.feed).send(&id, None);
        let answer = self.send(Method::DELETE, &id, Bytes::new(), None).await;
        self.note(&id, attempt, "deleted", answer.as_ref());
    }

    /// Adds to a counter that all publishers of the feed share, by compare and set.
    async fn add(&self, number: u64) {
        let id = "counter";
        let Some(read) = self.send(Method::GET, id, Bytes::new(), None).await else { return };
        let condition = match read.head.status {
            200 => {
                let Some(etag) = read.head.header(ETAG.as_str()) else { return };
                (IF_MATCH, etag.to_owned())
            }
            404 => (IF_NONE_MATCH, "*".to_owned()),
            _ => return,
        };
        let read: serde_json::Value = serde_json::from_slice(&read.body).unwrap_or_default();
        let title = read["item"]["title"].as_str().unwrap_or("n=0 ");
        let value = title.split('=').nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        let title = format!("n={} by {}#{number}", value.unwrap_or_default() + 1, self.name);
        let body = json!({"id": id, "item": {"title": title}});
        let attempt = self.world.ledger.lock().feed(&self.feed).send(id, Some(title.clone()));
        let answer = self.send(Method::PUT, id, body.to_string().into(), Some(condition)).await;
        let outcome = self.note(id, attempt, &title, answer.as_ref());
        if outcome != Outcome::Refused {
            self.world.ledger.lock().feed(&self.feed).count(id, outcome == Outcome::Acknowledged);
        }
    }

    fn note(&self, id: &str, attempt: usize, title: &str, answer: Option<&FullResponse>) -> Outcome {
        let outcome = self.outcome(answer);
        trace!("{}: {title} of {id}: {outcome:?}", self.name);
        count(match outcome {
            Outcome::Acknowledged => "changes acknowledged",
            Outcome::Refused => "changes refused",
            Outcome::Unknown => "changes without an answer",
        });
        self.world.ledger.lock().feed(&self.feed).answer(id, attempt, outcome);
        outcome
    }
}
