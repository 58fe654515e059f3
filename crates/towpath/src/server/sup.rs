//! `/sup.json`: which feeds moved within the last `seconds` (Simple Update Protocol).

use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;

use super::document::Answer;
use super::items::parameters;
use super::problem::Problem;
use super::route::serve;
use crate::engine::{Engine, sup};

/// The document for the period that is asked for, else for the default one.
pub(super) async fn document(engine: &Arc<Engine>, request: &Request<Incoming>) -> Result<Answer, Problem> {
    let asked = parameters(request.uri().query()).find(|(name, _)| name == "seconds");
    let seconds = match &asked {
        Some((_, text)) => period(text)?,
        None => sup::DEFAULT_PERIOD,
    };
    let made = sup::document(engine, seconds).await;
    Ok(serve(made.map_err(|e| Problem::internal(e.to_string()))?, request).await)
}

fn period(text: &str) -> Result<u64, Problem> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let seconds = text.parse().ok().filter(|seconds| digits && *seconds > 0);
    seconds.ok_or_else(|| {
        Problem::bad_request(format!("seconds={text:?} is not a number of seconds, from 1 on"))
            .about("seconds")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 3.2: "A positive integer".
    #[test]
    fn section_3_2_periods() {
        assert_eq!(period("1").ok(), Some(1));
        assert_eq!(period("0600").ok(), Some(600));
        for bad in ["", "0", "-1", "+60", "60.0", "1e3", " 60", "x", "99999999999999999999"] {
            assert_eq!(period(bad).unwrap_err().status(), 400, "{bad:?}");
        }
    }
}
