//! Copies into the destinations of the command line.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use tokio::sync::watch;
use towpath_client::sink::{DeadLetterFile, IntoSinkNotice, IntoSinkOptions, OnRefusedItem, SinkOptions};
use towpath_client::{Follow, FollowNotice, FollowSummary};
use towpath_sinks::{Destination, open_with_state};

use crate::errors::Failure;
use crate::options;
use crate::wait::wait_stoppable;

/// File of refused items without a state file beside which it could be, as of the command line.
const REFUSED: &str = "towpath.refused.ndjson";

/// Follows a feed into a destination. `tell` receives the kind and text of each message; what it raises ends the copy.
#[pyfunction]
#[pyo3(signature = (url, destination, *, state, protocol, start, once, token, headers, large_content, stop_on_refused_item, tell))]
#[expect(clippy::too_many_arguments, reason = "the package's own call, by keywords")]
pub(crate) fn copy_into(
    py: Python<'_>,
    url: String,
    destination: &str,
    state: Option<PathBuf>,
    protocol: &str,
    start: &str,
    once: bool,
    token: Option<&str>,
    headers: Vec<(String, String)>,
    large_content: Option<PathBuf>,
    stop_on_refused_item: bool,
    tell: Py<PyAny>,
) -> PyResult<()> {
    let follow = || {
        let mut follow = Follow::new(&url).start(options::start(start)?);
        if let Some(protocol) = options::protocol(protocol)? {
            follow = follow.protocol(protocol);
        }
        follow = if once { follow.once() } else { follow };
        follow = options::large_content(follow, large_content);
        Ok(follow.fetcher(options::fetcher(&url, token, &headers)?))
    };
    let open = || {
        let destination: Destination = destination.parse()?;
        Ok((open_with_state(&destination, state.as_deref())?, destination))
    };
    let follow = follow().map_err(|failure: Failure| failure.into_exception(py))?;
    let (sink, destination) = open().map_err(|failure: Failure| failure.into_exception(py))?;
    if !sink.keeps_checkpoint() {
        let text = format!("{destination} keeps no position; with state=FILE the next start continues");
        tell.call1(py, (("warning", text),))?;
    }
    let (stop, stopped) = watch::channel(false);
    let teller = Arc::new(Teller { tell, raised: Mutex::new(None), stop: stop.clone() });
    let receiver = teller.clone();
    let on_refused_item = if stop_on_refused_item { OnRefusedItem::Stop } else { OnRefusedItem::SetAside };
    let refused = state.as_deref().map_or_else(|| DeadLetterFile::new(REFUSED), DeadLetterFile::beside);
    let writing = SinkOptions::default().with_on_refused_item(on_refused_item).with_dead_letters(refused);
    let options = IntoSinkOptions::default()
        .with_sink(writing)
        .with_on_notice(move |notice| receiver.tell(&notice))
        .with_stop(stopped);
    let copied = wait_stoppable(py, &stop, async move {
        let summary = follow.into_sink_with(sink, options).await?;
        result(summary)
    });
    let raised = teller.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
    raised.map_or(copied, Err)
}

/// Returns the error that ended a follow, if one did.
fn result(summary: FollowSummary) -> Result<(), Failure> {
    match summary.failed {
        Some(error) if !summary.stopped => Err(error.into()),
        _ => Ok(()),
    }
}

/// Passes messages to Python.
struct Teller {
    tell: Py<PyAny>,
    raised: Mutex<Option<PyErr>>,
    stop: watch::Sender<bool>,
}

impl Teller {
    fn tell(&self, notice: &IntoSinkNotice) {
        let kind = match notice {
            IntoSinkNotice::Feed(FollowNotice::Incomplete(_)) => "gap",
            _ => "warning",
        };
        let text = notice.to_string();
        let told = Python::attach(|py| self.tell.call1(py, ((kind, text),)).map(drop));
        if let Err(error) = told {
            // The first one: it is what ends the copy.
            self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            let _ = self.stop.send(true);
        }
    }
}
