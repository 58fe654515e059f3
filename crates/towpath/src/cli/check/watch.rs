//! `towpath check --watch`: checks on a schedule and prints what changed.

use std::io::ErrorKind;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_client::{CallQueue, Fetcher, Protocol, Stop, checker, drive_check, stopped};
use towpath_proto::report::Report;

use super::super::error::{CliError, Exit};
use super::super::terminal::{message, plain, visible_json};
use super::args::{CheckArgs, ReportFormat};
use super::changes::{OutcomeChange, changes};
use super::render::{render, write_out};
use super::result::CheckResult;

/// Content of a state file.
#[derive(Serialize, Deserialize)]
struct SavedReport {
    url: String,
    protocol: String,
    #[serde(flatten)]
    report: Report,
}

/// Checks until stopped. The exit code is that of the last check.
///
/// The first report is printed whole, unless the state file has an earlier one. JUnit and SARIF are for other
/// programs, which compare by themselves: in these formats each report is printed whole.
pub(super) async fn watch(
    args: &CheckArgs,
    fetcher: &Fetcher,
    protocol: Protocol,
    url: &str,
    stop: &Stop,
) -> Result<Exit, CliError> {
    let mut before = match &args.state {
        Some(path) => load(path, url, protocol)?,
        None => None,
    };
    let mut exit = Exit::Done;
    let mut left = args.times;
    loop {
        let mut checker = checker(protocol, url, args.limits.limits())?;
        if !drive_check(&mut *checker, fetcher, stop, CallQueue::none()).await {
            return Ok(exit);
        }
        let report = checker.report().clone();
        exit = if report.conforms() { Exit::Done } else { Exit::Failed };
        let result = CheckResult { url, protocol: protocol.name(), report: &report };
        write_out(&match &before {
            Some(before) if matches!(args.format, ReportFormat::Text | ReportFormat::Json) => {
                changed(args.format, &result, &changes(before, &report))?
            }
            _ => render(args.format, &result)?,
        })?;
        if let Some(path) = &args.state {
            save(path, &result)?;
        }
        before = Some(report);
        left = left.map(|left| left - 1);
        if left == Some(0) {
            return Ok(exit);
        }
        tokio::select! {
            () = tokio::time::sleep(args.every) => {}
            () = stopped(stop) => return Ok(exit),
        }
    }
}

/// Formats what changed: nothing if nothing did.
fn changed(
    format: ReportFormat,
    result: &CheckResult<'_>,
    changes: &[OutcomeChange<'_>],
) -> Result<String, CliError> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let conforms = result.report.conforms();
    if changes.is_empty() {
        eprintln!("towpath: {now} {}: nothing changed", message(result.url));
        return Ok(String::new());
    }
    if matches!(format, ReportFormat::Json) {
        #[derive(Serialize)]
        struct WatchLine<'a> {
            time: &'a str,
            url: &'a str,
            protocol: &'a str,
            conforms: bool,
            #[serde(flatten)]
            change: &'a OutcomeChange<'a>,
        }
        let mut text = String::new();
        for change in changes {
            let line = WatchLine { time: &now, url: result.url, protocol: result.protocol, conforms, change };
            let json = serde_json::to_vec(&line).map_err(|error| CliError::failed(error.to_string()))?;
            text.push_str(&String::from_utf8_lossy(&visible_json(json)));
            text.push('\n');
        }
        return Ok(text);
    }
    let verdict = if conforms { "conforms" } else { "does not conform" };
    let lines: String = changes.iter().map(OutcomeChange::text).collect();
    Ok(format!("{now} {} {verdict}; what changed:\n{lines}", plain(result.url)))
}

fn load(path: &Path, url: &str, protocol: Protocol) -> Result<Option<Report>, CliError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CliError::failed(format!("cannot read {}: {error}", path.display()))),
    };
    let saved: SavedReport = serde_json::from_slice(&bytes).map_err(|error| {
        let path = path.display();
        CliError::failed(format!("the state file {path} is no report ({error}); remove it to begin anew"))
    })?;
    if saved.url != url || saved.protocol != protocol.name() {
        let (path, other) = (path.display(), &saved.url);
        return Err(CliError::usage(format!(
            "the state file {path} has a report on {other} as {}; use a separate file for each feed",
            saved.protocol
        )));
    }
    Ok(Some(saved.report))
}

/// Replaces the state file, so that a crash leaves the old or the new one.
fn save(path: &Path, result: &CheckResult<'_>) -> Result<(), CliError> {
    let saved = SavedReport {
        url: result.url.to_owned(),
        protocol: result.protocol.to_owned(),
        report: result.report.clone(),
    };
    let failed = |error: String| CliError::failed(format!("cannot write {}: {error}", path.display()));
    let json = serde_json::to_vec_pretty(&saved).map_err(|error| failed(error.to_string()))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    std::fs::write(&new, json)
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(|error| failed(error.to_string()))
}
