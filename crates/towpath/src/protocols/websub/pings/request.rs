//! The request of a ping.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use tokio::time::timeout;
use towpath_client::{Fetcher, redact};
use towpath_proto::follow::{Request, RequestId, ResponseHead};
use towpath_proto::history::wire::Syntax;
use towpath_proto::push::websub::ping::{PING_MEDIA_TYPE, PingOutcome, ping_form};

/// Longest time of a ping about one document.
const PATIENCE: Duration = Duration::from_secs(15);

/// Tells a hub that the newest documents of the feed at `url` changed. Returns the reason of a failure too.
///
/// A hub that takes one document and refuses another has accepted: many take Atom and RSS only.
pub(super) async fn ping(fetcher: &Fetcher, hub: &str, url: &str) -> (PingOutcome, Option<String>) {
    // The operator names the hub, so its private network is open to this request, as that of a source.
    let fetcher = fetcher.with_named([hub]);
    let (mut is_taken, mut refused) = (false, None);
    for syntax in Syntax::ALL {
        let topic = format!("{url}/{}", syntax.name());
        match ping_topic(&fetcher, hub, &topic).await {
            (PingOutcome::Accepted, _) => is_taken = true,
            (PingOutcome::Refused, error) => {
                tracing::debug!(hub = redact::url(hub), topic, ?error, "a hub refuses a ping");
                refused = error;
            }
            failed => return failed,
        }
    }
    if is_taken { (PingOutcome::Accepted, None) } else { (PingOutcome::Refused, refused) }
}

async fn ping_topic(fetcher: &Fetcher, hub: &str, topic: &str) -> (PingOutcome, Option<String>) {
    let request = Request {
        method: Method::POST,
        body: Bytes::from(ping_form(topic)),
        patience: PATIENCE,
        ..Request::get(RequestId(0), hub)
    };
    let request = request.with(CONTENT_TYPE, PING_MEDIA_TYPE);
    match timeout(PATIENCE, fetcher.fetch(&request)).await {
        Ok(Ok(response)) => judge(hub, &response.head),
        Ok(Err(error)) => (PingOutcome::Failed(None), Some(error.to_string())),
        Err(_) => (PingOutcome::Failed(None), Some(format!("no answer within {PATIENCE:?}"))),
    }
}

fn judge(hub: &str, head: &ResponseHead) -> (PingOutcome, Option<String>) {
    let is_at_hub = url::Url::parse(hub).is_ok_and(|hub| hub.as_str() == head.url);
    match head.status {
        200..=299 if is_at_hub => (PingOutcome::Accepted, None),
        200..=299 => {
            // A redirect may have made a GET of the ping, whose 200 means nothing.
            let error = format!("it redirects to {}: name that address in `hubs`", redact::url(&head.url));
            (PingOutcome::Refused, Some(error))
        }
        status @ (408 | 425 | 429 | 500..) => {
            let wait = head.retry_after(Timestamp::now());
            (PingOutcome::Failed(wait), Some(format!("it answered {status}")))
        }
        status => (PingOutcome::Refused, Some(format!("it refused the ping with {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn outcome(status: u16, url: &str) -> PingOutcome {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", "7".parse().unwrap());
        judge("https://hub.example", &ResponseHead { status, url: url.into(), headers }).0
    }

    #[test]
    fn answers_are_judged() {
        let at_hub = "https://hub.example/";
        for (status, expected) in [
            (204, PingOutcome::Accepted),
            (200, PingOutcome::Accepted),
            (400, PingOutcome::Refused),
            (410, PingOutcome::Refused),
            (429, PingOutcome::Failed(Some(Duration::from_secs(7)))),
            (503, PingOutcome::Failed(Some(Duration::from_secs(7)))),
        ] {
            assert_eq!(outcome(status, at_hub), expected, "{status}");
        }
        assert_eq!(
            outcome(200, "https://www.hub.example/"),
            PingOutcome::Refused,
            "a redirect lost the form"
        );
    }
}
