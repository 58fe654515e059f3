//! Discovery, checks and publishing: requests that Python waits for.

use pyo3::prelude::*;
use serde_json::json;
use towpath_client::{FollowPace, ServerClient};

use crate::errors::Failure;
use crate::options;
use crate::wait::wait;

/// Returns the protocols that a URL offers, the preferred one first: protocol, URL and reason of each.
#[pyfunction]
pub(crate) fn discover(
    py: Python<'_>,
    url: String,
    token: Option<String>,
    headers: Vec<(String, String)>,
) -> PyResult<Vec<(&'static str, String, String)>> {
    wait(py, async move {
        let fetcher = options::fetcher(&url, token.as_deref(), &headers)?;
        let mut offers = towpath_client::discover_all(&fetcher, &url).await?;
        offers.sort_by_key(|offer| offer.protocol.preference(FollowPace::Held));
        offers.dedup_by(|one, other| (one.protocol, &one.url) == (other.protocol, &other.url));
        Ok(offers.into_iter().map(|offer| (offer.protocol.name(), offer.url, offer.why)).collect())
    })
}

/// Checks a feed; returns the report as JSON.
#[pyfunction]
pub(crate) fn check(
    py: Python<'_>,
    url: String,
    protocol: String,
    token: Option<String>,
    headers: Vec<(String, String)>,
) -> PyResult<String> {
    wait(py, async move {
        let fetcher = options::fetcher(&url, token.as_deref(), &headers)?;
        let checked = towpath_client::check(&fetcher, &url, options::protocol(&protocol)?).await?;
        let findings = &checked.report.findings;
        Ok(json!({
            "url": checked.url,
            "protocol": checked.protocol.name(),
            "conforms": checked.report.conforms(),
            "findings": findings,
        })
        .to_string())
    })
}

/// Sends a request of a publisher to the feed `name` of the server at `base`; returns the answer as JSON.
#[pyfunction]
pub(crate) fn publish(
    py: Python<'_>,
    base: String,
    name: String,
    token: Option<String>,
    method: String,
    id: String,
    body: String,
) -> PyResult<String> {
    wait(py, async move {
        let client = ServerClient::new(&base)?;
        let client = match &token {
            Some(token) => client.token(token)?,
            None => client,
        };
        let feed = client.feed(&name);
        let report = match method.as_str() {
            "GET" => {
                let line = feed.get(&id).await?;
                return serde_json::to_string(&line).map_err(|error| Failure::usage(error.to_string()));
            }
            "DELETE" => feed.delete(&id).await?,
            "PATCH" => {
                let changes =
                    serde_json::from_str(&body).map_err(|error| Failure::usage(error.to_string()))?;
                feed.patch(&id, &changes).await?
            }
            _ => feed.batch_text(body).await?,
        };
        serde_json::to_string(&report).map_err(|error| Failure::usage(error.to_string()))
    })
}
