//! `POST /feeds/{feed}/hub`: subscriptions (WebSub 5, PubSubHubbub 0.3 section 6, Smart Feeds "HTTP Push").

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use towpath_proto::follow::Call;
use towpath_proto::push::websub::request::{HubRequest, MAX_BODY};

use super::document::Answer;
use super::problem::Problem;
use super::{auth, body, items};
use crate::engine::Engine;
use crate::engine::push::{self, Asking, Taken, Topic, subscribe};

/// The largest delivery to a feed that mirrors another one, in bytes.
const MAX_DELIVERY: usize = 64 << 20;

/// Answers a request to a feed's hub. "In the event of an error, hubs SHOULD return a description of the error in the
/// response body as plain text" (WebSub 5.1.2).
pub(super) async fn hub(engine: &Arc<Engine>, feed: &str, request: Request<Incoming>) -> Answer {
    match take(engine, feed, request).await {
        Ok(status) => Answer { status, headers: HeaderMap::new(), body: Bytes::new() },
        Err(problem) => problem.answer_as_text(),
    }
}

async fn take(engine: &Arc<Engine>, name: &str, request: Request<Incoming>) -> Result<StatusCode, Problem> {
    let feed = engine.feed(name).ok_or_else(|| items::no_feed(name))?;
    let access = auth::may_read(&feed, &engine.config.server.tokens, request.headers())?;
    let reader = auth::mark(&feed, request.headers());
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.map(str::to_owned);
    let body = body::read(request, MAX_BODY).await?;
    match HubRequest::parse(content_type.as_deref(), &body)? {
        HubRequest::Publish(topics) => {
            // "It is not used for receiving publish requests, as this is implied by the feed" ("HTTP Push"): what is
            // told here is known already.
            for topic in topics {
                Topic::of_url(engine, &feed, &topic, access)?;
            }
            Ok(StatusCode::NO_CONTENT)
        }
        HubRequest::Subscription(request) => {
            let topic = Topic::of_url(engine, &feed, &request.topic, access)?;
            let asking = Asking { request: *request, topic, access, reader };
            Ok(match subscribe(engine, asking).await? {
                Taken::Verified => StatusCode::NO_CONTENT,
                Taken::Accepted => StatusCode::ACCEPTED,
            })
        }
    }
}

/// `/feeds/{feed}/callback`: what a hub sends to a feed that mirrors another one.
pub(super) async fn callback(
    engine: &Arc<Engine>,
    name: &str,
    request: Request<Incoming>,
) -> Result<Answer, Problem> {
    let feed = engine.feed(name).ok_or_else(|| items::no_feed(name))?;
    let (method, headers) = (request.method().clone(), request.headers().clone());
    let query = request.uri().query().unwrap_or_default().to_owned();
    let reply = match push::inbox(engine, feed.id(), &query).await {
        Ok(inbox) => {
            let body = body::read(request, MAX_DELIVERY).await?;
            inbox.call(engine, feed.id(), Call { method, query, headers, body }).await
        }
        Err(reply) => reply,
    };
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::NOT_FOUND);
    Ok(Answer { status, headers: HeaderMap::new(), body: reply.body })
}

impl Problem {
    /// The answer with nothing but its words, for those who read no JSON.
    fn answer_as_text(&self) -> Answer {
        let mut answer = self.answer();
        answer.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        answer.body = Bytes::from(format!("{}\n", self.detail()));
        answer
    }
}
