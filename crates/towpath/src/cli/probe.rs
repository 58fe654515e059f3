//! `towpath status --probe`: asks a server for its own state, as `/livez` and `/readyz` tell it.

use std::time::Duration;

use clap::ValueEnum;
use towpath_client::{FetchOptions, Fetcher};
use towpath_proto::follow::{Request, RequestId};

use super::error::{CliError, Exit};
use super::publish_target::TargetArgs;
use super::style::print_output;

/// Time for an answer, which needs no work.
const PATIENCE: Duration = Duration::from_secs(5);

/// State that a probe asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// The process answers (`/livez`)
    Live,
    /// Readers can be sent to it (`/readyz`)
    Ready,
}

impl Probe {
    fn path(self) -> &'static str {
        match self {
            Self::Live => "/livez",
            Self::Ready => "/readyz",
        }
    }
}

/// Prints the answer. The exit code tells if it was 200.
pub(super) async fn probe(target: &TargetArgs, probe: Probe) -> Result<Exit, CliError> {
    let base = target.url()?;
    let options = FetchOptions::default().with_connect_timeout(PATIENCE);
    let fetcher = Fetcher::new(options).map_err(|e| CliError::failed(e.to_string()))?;
    let url = format!("{base}{}", probe.path());
    let request = Request { patience: PATIENCE, ..Request::get(RequestId(0), &url) };
    let answer = fetcher.with_named([base.as_str()]).fetch_whole(&request).await;
    let answer = answer.map_err(|e| CliError::failed(format!("{url}: {e}")))?;
    let body = String::from_utf8_lossy(&answer.body);
    match answer.head.status {
        200 => {
            print_output(format!("{}\n", body.trim_end()))?;
            Ok(Exit::Done)
        }
        status => Err(CliError::failed(format!("{url}: {status}: {}", body.trim_end()))),
    }
}
