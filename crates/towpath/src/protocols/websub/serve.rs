//! `POST /feeds/{feed}/hub`: subscriptions (WebSub 5, PubSubHubbub 0.3 section 6, Smart Feeds "HTTP Push").

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use towpath_proto::follow::Call;
use towpath_proto::push::websub::request::{HubRequest, MAX_BODY, RequestError};

use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::access::{may_read, token_digest};
use crate::engine::request::known_feed;
use crate::engine::request_body;
use crate::protocols::websub::calls::inbox;
use crate::protocols::websub::request::{SubscribeError, SubscribeRequest, SubscribeResult};
use crate::protocols::websub::topic::{Topic, TopicError};
use crate::protocols::websub::verify::subscribe;

/// Largest delivery to a mirror or a source, in bytes.
const MAX_DELIVERY: usize = 64 << 20;

/// Answers a request of a client, by its address, to a feed's hub.
///
/// # Errors
///
/// To be answered as text: "In the event of an error, hubs SHOULD return a description of the error in the
/// response body as plain text" (WebSub 5.1.2).
pub(crate) async fn hub(
    engine: &Arc<Engine>,
    requester: IpAddr,
    name: &str,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    let status = accept(engine, requester, name, request).await?;
    Ok(Answer { status, headers: HeaderMap::new(), body: Bytes::new() })
}

async fn accept(
    engine: &Arc<Engine>,
    requester: IpAddr,
    name: &str,
    request: Request<Incoming>,
) -> Result<StatusCode, RouteError> {
    let feed = known_feed(engine, name)?;
    let access = may_read(&feed, &engine.tokens.load(), request.headers())?;
    let reader = token_digest(&feed, &request);
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.map(str::to_owned);
    // After the token: strangers cannot make the server buffer bodies for private feeds.
    let body = request_body::read(engine, request, MAX_BODY).await?;
    match HubRequest::parse(content_type.as_deref(), &body)? {
        HubRequest::Publish(topics) => {
            // "It is not used for receiving publish requests, as this is implied by the feed" ("HTTP Push"): the hub
            // knows its feeds' changes already.
            for topic in topics {
                Topic::of_url(engine, &feed, &topic, access)?;
            }
            Ok(StatusCode::NO_CONTENT)
        }
        HubRequest::Subscription(request) => {
            let topic = Topic::of_url(engine, &feed, &request.topic, access)?;
            let request =
                SubscribeRequest { form: *request, topic, access, reader, requester: Some(requester) };
            Ok(match subscribe(engine, request).await? {
                SubscribeResult::Verified => StatusCode::NO_CONTENT,
                SubscribeResult::Accepted => StatusCode::ACCEPTED,
            })
        }
    }
}

/// Answers `/feeds/{feed}/callback`: deliveries of another hub to a mirror or a source.
pub(crate) async fn callback(
    engine: &Arc<Engine>,
    name: &str,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, name)?;
    let (method, headers) = (request.method().clone(), request.headers().clone());
    let query = request.uri().query().unwrap_or_default().to_owned();
    let reply = match inbox(engine, feed.id(), &method, &query).await {
        Ok(inbox) => {
            let body = request_body::read(engine, request, MAX_DELIVERY).await?;
            inbox.call(engine, feed.id(), Call { method, query, headers, body }).await
        }
        Err(reply) => reply,
    };
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::NOT_FOUND);
    Ok(Answer { status, headers: HeaderMap::new(), body: reply.body })
}

impl From<RequestError> for RouteError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::ContentType(_) => Self::unsupported_type(error.to_string()),
            RequestError::TooLarge => Self::too_large(error.to_string()),
            _ => Self::bad_request(error.to_string()),
        }
    }
}

impl From<TopicError> for RouteError {
    fn from(error: TopicError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<SubscribeError> for RouteError {
    fn from(error: SubscribeError) -> Self {
        match error {
            SubscribeError::Callback(_) | SubscribeError::TooLarge(_) => Self::bad_request(error.to_string()),
            SubscribeError::Gone(reason) => Self::gone(reason),
            SubscribeError::Full(_) | SubscribeError::Busy(_) | SubscribeError::Evicted => {
                Self::busy(error.to_string())
            }
            // 409, as PubSubHubbub 0.3 answers a failed synchronous verification.
            SubscribeError::NotVerified(_) | SubscribeError::Overridden => Self::conflict(error.to_string()),
            SubscribeError::Store(error) => error.into(),
            SubscribeError::Setup(_) => Self::internal(error.to_string()),
        }
    }
}
