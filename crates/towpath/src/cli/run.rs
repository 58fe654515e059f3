//! `towpath run`: one pass over every source.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{CliError, ConfigArgs, Exit, log_to_stderr, open};
use crate::client::{FetchOptions, Fetcher};
use crate::engine::roles::Lease;
use crate::engine::{Engine, diffdelta};
use crate::shown;
use crate::source::poll::{Polled, poll};
use crate::source::schedule::is_on;

pub(crate) async fn run(args: &ConfigArgs) -> Result<Exit, CliError> {
    log_to_stderr();
    let engine = open::engine(args.load()?).await?;
    let fetcher =
        Arc::new(Fetcher::new(FetchOptions::default()).map_err(|e| CliError::failed(e.to_string()))?);
    let mut rows = poll_all(&engine, &fetcher).await?;
    diffdelta::settle(&engine, true).await?;
    engine.store.close().await;
    rows.sort_by(|a, b| a.feed.cmp(&b.feed));
    // A closed standard output does not undo the pass.
    let _ = print(&rows);
    let failed = rows.iter().any(|row| row.polled.error.is_some());
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

struct Row {
    feed: String,
    polled: Polled,
    took: Duration,
}

async fn poll_all(engine: &Arc<Engine>, fetcher: &Arc<Fetcher>) -> Result<Vec<Row>, CliError> {
    let places = Arc::new(Semaphore::new(engine.config.server.fetches.max(1)));
    let mut polls = JoinSet::new();
    for feed in engine.feeds().into_iter().filter(|feed| is_on(feed)) {
        let (engine, fetcher, places) = (engine.clone(), fetcher.clone(), places.clone());
        polls.spawn(async move {
            let _place = places.acquire().await;
            let began = std::time::Instant::now();
            let polled = poll(&engine, &fetcher, &Lease::alone("sources"), &feed).await?;
            Ok(Row { feed: feed.id().to_string(), polled, took: began.elapsed() })
        });
    }
    let mut rows = Vec::new();
    while let Some(row) = polls.join_next().await {
        let row: Result<Row, CliError> = row.map_err(|e| CliError::failed(e.to_string()))?;
        rows.push(row?);
    }
    Ok(rows)
}

fn print(rows: &[Row]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let width = rows.iter().map(|row| row.feed.len()).max().unwrap_or(0).max(4);
    writeln!(
        out,
        "{:width$}  {:>7} {:>7} {:>7} {:>9} {:>7}  state",
        "feed", "new", "updated", "removed", "unchanged", "ms"
    )?;
    for Row { feed, polled, took } in rows {
        let unchanged = polled.unchanged.map_or_else(|| "all".to_owned(), |n| n.to_string());
        let unchanged = if polled.error.is_some() { "-".to_owned() } else { unchanged };
        let state = match &polled.error {
            Some(error) => format!("{}: {}", error.code, shown::text(&error.message)),
            None if polled.problems.is_empty() => "ok".to_owned(),
            None => format!("ok, {} left out: {}", polled.problems.len(), polled.problems[0]),
        };
        let Polled { new, updated, removed, .. } = polled;
        let took = took.as_millis();
        writeln!(out, "{feed:width$}  {new:>7} {updated:>7} {removed:>7} {unchanged:>9} {took:>7}  {state}")?;
    }
    out.flush()
}
