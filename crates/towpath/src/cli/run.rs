//! `towpath run`: polls every source once.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::FutureExt as _;
use serde_json::json;
use tokio::task::JoinSet;
use towpath_client::{Fetcher, redact};
use towpath_proto::format::ProblemCounts;

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::open;
use super::progress::{LateBar, PUBLISHING, patiently};
use super::style::{OutputFormat, written};
use super::terminal::plain;
use crate::engine::Engine;
use crate::engine::roles::Lease;
use crate::plural::counted;
use crate::protocols::diffdelta;
use crate::server::DescriptorBudget;
use crate::source::fetch_permits::FetchPermits;
use crate::source::poll::{PollSummary, poll};
use crate::source::schedule::is_on;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Form of the output; `json` is a line for each source
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
}

pub(crate) async fn run(args: &RunArgs) -> Result<Exit, CliError> {
    let config = args.config.load()?;
    let budget = DescriptorBudget::raise(config.server.fetches);
    let engine = open::server_engine(config, &budget).await?;
    let fetcher = Arc::new(open::fetcher(&engine.config)?);
    let mut rows = poll_all(&engine, &fetcher).await?;
    patiently(PUBLISHING, diffdelta::publish_pending(&engine, diffdelta::HeldRole::Await)).await?;
    engine.store.close().await;
    // Polls finish in any order; the table should not.
    rows.sort_by(|a, b| a.feed.cmp(&b.feed));
    written(match args.format {
        OutputFormat::Text => print(&rows),
        OutputFormat::Json => print_json(&rows),
    })?;
    let failed = rows.iter().any(|row| row.polled.error.is_some());
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// A line of the summary table.
struct PollRow {
    feed: String,
    polled: PollSummary,
    took: Duration,
}

async fn poll_all(engine: &Arc<Engine>, fetcher: &Arc<Fetcher>) -> Result<Vec<PollRow>, CliError> {
    // All polls are tasks from the start, but only so many have a connection: descriptors are limited.
    let permits = Arc::new(FetchPermits::new(engine.config.server.fetches));
    let mut polls = JoinSet::new();
    for feed in engine.feeds().into_iter().filter(|feed| is_on(feed)) {
        let (engine, fetcher, permits) = (engine.clone(), fetcher.clone(), permits.clone());
        polls.spawn(
            async move {
                let _permit = permits.acquire(feed.config.polled().map_or("", |(_, address)| address)).await;
                // Measured without the wait for a permit.
                let began = std::time::Instant::now();
                let polled = poll(&engine, &fetcher, &Lease::alone("sources"), &feed).await?;
                Ok(PollRow { feed: feed.id().to_string(), polled, took: began.elapsed() })
            }
            .boxed(),
        );
    }
    let late = LateBar::new("{bar:30} {pos} of {len} sources, {elapsed}");
    let bar = late.counter();
    bar.set_length(polls.len() as u64);
    let mut rows = Vec::new();
    while let Some(row) = polls.join_next().await {
        let row: Result<PollRow, CliError> = row.map_err(|e| CliError::failed(e.to_string()))?;
        rows.push(row?);
        bar.inc(1);
    }
    Ok(rows)
}

/// Prints a line of JSON for each source.
fn print_json(rows: &[PollRow]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for PollRow { feed, polled, took } in rows {
        let PollSummary { new, updated, removed, unchanged, error, problems, .. } = polled;
        let line = json!({
            "feed": feed, "new": new, "updated": updated, "removed": removed, "unchanged": unchanged,
            "milliseconds": u64::try_from(took.as_millis()).unwrap_or(u64::MAX), "error": error, "problems": problems,
        });
        writeln!(out, "{line}")?;
    }
    out.flush()
}

fn print(rows: &[PollRow]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let width = rows.iter().map(|row| row.feed.len()).max().unwrap_or(0).max(4);
    writeln!(
        out,
        "{:width$}  {:>7} {:>7} {:>7} {:>9} {:>7}  state",
        "feed", "new", "updated", "removed", "unchanged", "ms"
    )?;
    for PollRow { feed, polled, took } in rows {
        let unchanged = polled.unchanged.map_or_else(|| "all".to_owned(), |n| n.to_string());
        let unchanged = if polled.error.is_some() { "-".to_owned() } else { unchanged };
        let state = match &polled.error {
            Some(error) => format!("{}: {}", error.code, redact::text(&error.message)),
            None => format!("ok{}", problems(polled)),
        };
        let PollSummary { new, updated, removed, .. } = polled;
        let took = took.as_millis();
        writeln!(
            out,
            "{feed:width$}  {new:>7} {updated:>7} {removed:>7} {unchanged:>9} {took:>7}  {}",
            plain(&state)
        )?;
    }
    out.flush()
}

/// Describes a document's problems: how many items were left out, how many other problems it has, and the first.
fn problems(polled: &PollSummary) -> String {
    let ProblemCounts { left_out, warnings } = polled.counts;
    let Some(first) = polled.problems.first() else { return String::new() };
    let of_each = match (left_out, warnings) {
        (0, _) => counted(warnings, "warning"),
        (_, 0) => format!("{left_out} left out"),
        _ => format!("{left_out} left out, {}", counted(warnings, "warning")),
    };
    format!(", {of_each}: {first}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_that_were_left_out_are_counted_apart_from_warnings() {
        let told = |left_out, warnings| {
            let counts = ProblemCounts { left_out, warnings };
            problems(&PollSummary { problems: vec!["first".into()], counts, ..PollSummary::default() })
        };
        assert_eq!(told(6, 0), ", 6 left out: first");
        assert_eq!(told(0, 6), ", 6 warnings: first");
        assert_eq!(told(2, 1), ", 2 left out, 1 warning: first");
        assert_eq!(problems(&PollSummary::default()), "");
    }
}
