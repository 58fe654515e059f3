//! `towpath verify`: checks the data folder against itself.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore, RepairReport, VerifyProgress, VerifyReport};
use towpath_store::{ReadError, Store as _};

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::progress::{LateBar, OPENING, patiently};
use super::style::print_output;
use super::terminal::{plain, visible_json};
use crate::config::ServerConfig;
use crate::engine::finding::{Finding, Findings};
use crate::plural::counted;
use crate::protocols;

/// Interval at which the bar moves.
const TICK: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Form of the output
    #[arg(long, value_enum, default_value_t)]
    format: VerifyFormat,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum VerifyFormat {
    /// Counts, and a line for each problem
    #[default]
    Text,
    /// A JSON object with `feeds`, `changes`, `items`, `problem_count` and `problems`
    Json,
}

/// Opens a data folder that must exist, and that is no replica.
pub(super) async fn open_folder(server: &ServerConfig) -> Result<EmbeddedStore, CliError> {
    if server.cluster.is_some() {
        return Err(CliError::usage(
            "this node's folder is a replica of the cluster's log; a damaged one is replaced by an empty folder",
        ));
    }
    // The store creates a folder that is missing, and a typing error would be said to be sound.
    if !server.data.is_dir() {
        return Err(CliError::usage(format!("there is no data folder {}", server.data.display())));
    }
    let folder = server.data.clone();
    let opening =
        tokio::task::spawn_blocking(move || EmbeddedStore::open(&folder, EmbeddedOptions::default()));
    let opened = patiently(OPENING, opening).await;
    Ok(opened.map_err(|e| CliError::failed(e.to_string()))??)
}

/// Result of a check of a data folder.
pub(super) struct FolderCheck {
    report: VerifyReport,
    pub(super) problems: Vec<Finding>,
    /// Number of problems, of which the list may have the first ones only.
    pub(super) count: u64,
}

impl FolderCheck {
    pub(super) fn is_sound(&self) -> bool {
        self.count == 0
    }

    /// Returns the report of a repair that found nothing to do.
    pub(super) fn nothing_to_repair(&self) -> RepairReport {
        let VerifyReport { feeds, changes, .. } = self.report;
        RepairReport { feeds, changes, ..RepairReport::default() }
    }

    /// Returns a line for each problem.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.problems.iter().map(|Finding { feed, place, problem }| {
            let feed = feed.as_ref().map_or_else(String::new, |feed| format!("feed {feed}, "));
            plain(&format!("{feed}{place}: {problem}"))
        })
    }
}

/// Checks the indexes and the state of all protocols against the log, and closes the store.
pub(super) async fn check(store: EmbeddedStore) -> Result<FolderCheck, ReadError> {
    let progress = Arc::new(VerifyProgress::default());
    let bar = tokio::spawn(draw(progress.clone()));
    let store = Arc::new(store);
    // Side by side: each is bound by a processor.
    let (report, state) = tokio::join!(store.verify_with(progress), protocols::verify::verify(store.clone()));
    bar.abort();
    store.close().await;
    let report = report?;
    let mut problems = problems(&report);
    match state {
        Ok(Findings(findings)) => problems.extend(findings),
        // The damage is in the list already, or keeps the rest from being read.
        Err(e) => problems.push(Finding { feed: None, place: "stored state".into(), problem: e.to_string() }),
    }
    let unlisted = report.problem_count - report.problems.len() as u64;
    let count = problems.len() as u64 + unlisted;
    Ok(FolderCheck { report, problems, count })
}

/// Checks the data folder, and prints what is wrong.
pub(crate) async fn verify(args: &VerifyArgs) -> Result<Exit, CliError> {
    let server = args.config.load()?.server;
    let folder = server.data.display();
    let advice = format!(
        "`towpath repair --dry-run` says what can be rebuilt from the log, and `towpath repair` does it; or move the folder \
         {folder} away and bring it back with `towpath restore`"
    );
    let checked = check(open_folder(&server).await?).await;
    let checked = checked.map_err(|e| CliError::failed(format!("{e}; {advice}")))?;
    let text = match args.format {
        VerifyFormat::Text => as_text(&checked),
        VerifyFormat::Json => as_json(&checked),
    };
    print_output(text)?;
    if checked.is_sound() {
        return Ok(Exit::Done);
    }
    let count = counted(checked.count, "problem");
    Err(CliError::failed(format!("{count} in the data folder {folder}; {advice}")))
}

/// Draws a bar on a terminal once the check takes long, until it is aborted.
pub(super) async fn draw(progress: Arc<VerifyProgress>) {
    let late = LateBar::new("{bar:30} {pos} of {len} changes, {per_sec}, {eta} left");
    let bar = late.counter();
    loop {
        bar.set_length(progress.total());
        bar.set_position(progress.done().min(progress.total()));
        tokio::time::sleep(TICK).await;
    }
}

fn problems(report: &VerifyReport) -> Vec<Finding> {
    let finding = |problem: &towpath_store::embedded::StoreProblem| Finding {
        feed: problem.feed.as_ref().map(ToString::to_string),
        place: problem.position.map_or_else(|| "log and indexes".to_owned(), |at| format!("change {at}")),
        problem: problem.problem.clone(),
    };
    report.problems.iter().map(finding).collect()
}

fn as_text(checked: &FolderCheck) -> String {
    let VerifyReport { feeds, changes, items, .. } = checked.report;
    let (feeds, changes) = (counted(feeds, "feed"), counted(changes, "change"));
    let mut out = format!("{feeds}, {changes}, {}\n", counted(items, "item"));
    for line in checked.lines() {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{line}");
    }
    if checked.is_sound() {
        out.push_str("no damage found\n");
    }
    out
}

fn as_json(checked: &FolderCheck) -> String {
    let FolderCheck { report: VerifyReport { feeds, changes, items, .. }, problems, count } = checked;
    let value = json!({
        "feeds": feeds, "changes": changes, "items": items, "problem_count": count, "problems": problems,
    });
    String::from_utf8(visible_json(value.to_string().into_bytes())).unwrap_or_default() + "\n"
}
