//! `/sup.json`: the feeds that were updated within the last `seconds` (Simple Update Protocol).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES};
use http::{HeaderMap, HeaderValue, Request};
use sha2::{Digest, Sha256};
use tokio::task::JoinError;
use tokio::time::Instant;
use towpath_proto::sup::discovery::MEDIA_TYPE;
use towpath_proto::sup::publish::{MAX_PERIOD, PERIODS, PublishedSupDocument};

use crate::blocking::blocking;
use crate::document::prebuilt::{Answer, Document, Valid};
use crate::document::respond::respond;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::request::parameters;
use crate::protocols::sup::state::Sup;

/// Period of a document that is requested without one, in seconds.
pub(crate) const DEFAULT_PERIOD: u64 = 60;

/// Answers with the document for the requested period, or for the default one.
pub(crate) async fn document<B>(engine: &Arc<Engine>, request: &Request<B>) -> Result<Answer, RouteError> {
    let requested = parameters(request.uri().query()).find(|(name, _)| name == "seconds");
    let seconds = match &requested {
        Some((_, text)) => period(text)?,
        None => DEFAULT_PERIOD,
    };
    let built = cached_document(engine, seconds).await;
    respond(built.map_err(|e| RouteError::internal(e.to_string()))?, request.headers()).await
}

fn period(text: &str) -> Result<u64, RouteError> {
    // `parse` also takes `+60`, which is no positive integer in the text's sense.
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let seconds = text.parse().ok().filter(|seconds| digits && *seconds > 0);
    seconds.ok_or_else(|| {
        RouteError::bad_request(format!("seconds={text:?} is not a number of seconds, from 1 on"))
            .about("seconds")
    })
}

/// Returns the document for `seconds`, built at most once a second. The longest period is [`MAX_PERIOD`].
async fn cached_document(engine: &Arc<Engine>, seconds: u64) -> Result<Arc<Document>, JoinError> {
    // Clamped before the look-up: all longer periods share one cached document.
    let seconds = seconds.clamp(1, MAX_PERIOD);
    let path = path(seconds);
    if let Some(document) = engine.documents.get(&path) {
        return Ok(document);
    }
    let _building = Sup::of(engine).building.lock().await;
    if let Some(document) = engine.documents.get(&path) {
        return Ok(document);
    }
    let building = engine.clone();
    let document = blocking(move || {
        let begun = Instant::now();
        let url = building.sup_links.document_url();
        let published = Sup::of(&building).build(building.now(), seconds, &url);
        let headers = headers(&published);
        let valid = Valid::Until(begun + fresh(begun.elapsed()));
        Document::new(Bytes::from(published.body), headers, valid)
    });
    let document = document.await?;
    engine.metrics.sup_documents.inc();
    // Periods that readers make up share the small cache of answers: they must not evict other documents.
    Ok(if seconds == DEFAULT_PERIOD {
        engine.documents.put_all(&[&path, "/sup.json"], document)
    } else if PERIODS.contains(&seconds) {
        engine.documents.put(&path, document)
    } else {
        engine.documents.put_answer(&path, document)
    })
}

/// Path and query of the document for `seconds`.
fn path(seconds: u64) -> String {
    format!("/sup.json?seconds={seconds}")
}

/// Returns the time for which a document is cached that took so long to build.
///
/// At least a second, and so long that building takes a twentieth of a core at most.
fn fresh(built_in: Duration) -> Duration {
    (built_in * 20).clamp(Duration::from_secs(1), Duration::from_secs(60))
}

/// Headers of a SUP document.
pub(crate) fn headers(published: &PublishedSupDocument) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    let tag = format!("\"{}\"", hex::encode(&Sha256::digest(&published.body)[..16]));
    for (name, value) in
        [(ETAG, &tag), (CACHE_CONTROL, &published.cache_control), (EXPIRES, &published.expires)]
    {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::route_error::RouteErrorKind;

    /// Section 3.2: "A positive integer".
    #[test]
    fn section_3_2_periods() {
        assert_eq!(period("1").ok(), Some(1));
        assert_eq!(period("0600").ok(), Some(600));
        for bad in ["", "0", "-1", "+60", "60.0", "1e3", " 60", "x", "99999999999999999999"] {
            assert_eq!(period(bad).unwrap_err().kind, RouteErrorKind::BadRequest, "{bad:?}");
        }
    }
}
