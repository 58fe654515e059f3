//! `towpath repair`: rebuilds the indexes of the data folder from its log, and names what is lost.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use towpath_store::Store as _;
use towpath_store::embedded::{
    EmbeddedOptions, EmbeddedStore, FolderRepair, LostChange, RepairReport, VerifyProgress,
};

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::style::{OutputFormat, print_done, print_output};
use super::terminal::{plain, visible_json};
use super::verify::{FolderCheck, check, draw, open_folder};
use crate::plural::counted;
use crate::protocols;

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// Tell what would be lost, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Form of the output; `json` is an object with `lost`, `lost_rows` and `left`
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Builds a new store from what can be read, and puts it in the place of the damaged one, which stays beside it.
pub(crate) async fn repair(args: &RepairArgs) -> Result<Exit, CliError> {
    let server = args.config.load()?.server;
    let folder = server.data.clone();
    if server.cluster.is_none() && FolderRepair::has_lost_format(&folder) {
        restore_format(&folder, args)?;
    }
    let before = match open_folder(&server).await {
        Ok(store) => check(store).await.ok(),
        Err(e) if e.exit == Exit::Usage => return Err(e),
        // A file of it is damaged, perhaps: the repair sees.
        Err(_) => None,
    };
    if let Some(sound) = before.filter(FolderCheck::is_sound) {
        let text =
            format!("no damage found in {}: nothing to repair\n", plain(&folder.display().to_string()));
        print(args, &text, &sound.nothing_to_repair(), &sound)?;
        return Ok(Exit::Done);
    }
    let progress = Arc::new(VerifyProgress::default());
    let bar = tokio::spawn(draw(progress.clone()));
    let building = tokio::task::spawn_blocking(move || {
        let repair = FolderRepair::begin(&folder)?;
        let built = repair.build(&progress).map_err(|e| CliError::failed(e.to_string()))?;
        Ok::<_, CliError>((repair, built))
    });
    let built = building.await.map_err(|e| CliError::failed(e.to_string()));
    bar.abort();
    let (repair, (building, mut report)) = built??;
    let after = match finish(&building, &mut report).await {
        Ok(after) => after,
        Err(error) => {
            let _ = repair.discard();
            return Err(error);
        }
    };
    // The repair takes its place even if its result cannot be told.
    let printed = print(args, &as_text(&report, &after), &report, &after);
    let is_whole = report.lost.is_empty() && report.lost_rows.is_empty() && after.is_sound();
    let ending = if args.dry_run {
        repair.discard()?;
        "dry run: nothing was changed".to_owned()
    } else {
        let installing = tokio::task::spawn_blocking(move || repair.install());
        let kept = installing.await.map_err(|e| CliError::failed(e.to_string()))??;
        format!("the folder as it was is {}; remove it once it is not needed", kept.display())
    };
    print_done(&plain(&ending));
    printed?;
    if is_whole {
        return Ok(Exit::Done);
    }
    let lost = report.lost.len() + report.lost_rows.len();
    Err(CliError::failed(format!(
        "{lost} lost, and {} left, in {}; publish the lost items again, or restore a backup",
        counted(after.count, "problem"),
        server.data.display()
    )))
}

/// Writes the missing format file again, without which the folder cannot be opened.
fn restore_format(folder: &Path, args: &RepairArgs) -> Result<(), CliError> {
    let shown = plain(&folder.display().to_string());
    if args.dry_run {
        return Err(CliError::failed(format!(
            "the file towpath.format of {shown} is missing; `towpath repair` writes it again, and the rest can be checked \
             only then"
        )));
    }
    FolderRepair::write_lost_format(folder)?;
    print_done(&format!("wrote the missing file towpath.format of {shown}"));
    Ok(())
}

/// Repairs what the protocols keep in the new store, and checks it.
async fn finish(building: &Path, report: &mut RepairReport) -> Result<FolderCheck, CliError> {
    let path = building.to_owned();
    let opening = tokio::task::spawn_blocking(move || EmbeddedStore::open(path, EmbeddedOptions::default()));
    let store = opening.await.map_err(|e| CliError::failed(e.to_string()))??;
    match protocols::repair::repair(&store, &report.moved).await {
        Ok(lost) => report.lost_rows.extend(lost),
        Err(error) => {
            store.close().await;
            return Err(error.into());
        }
    }
    check(store).await.map_err(|e| CliError::failed(e.to_string()))
}

/// Prints the result.
fn print(args: &RepairArgs, text: &str, report: &RepairReport, after: &FolderCheck) -> Result<(), CliError> {
    let text = match args.format {
        OutputFormat::Text => text.as_bytes().to_vec(),
        OutputFormat::Json => visible_json(format!("{}\n", as_json(report, after)).into_bytes()),
    };
    print_output(text)
}

/// Describes what was rebuilt, what is lost and what is left.
fn as_text(report: &RepairReport, after: &FolderCheck) -> String {
    let RepairReport { feeds, changes, mended, lost, lost_rows, rebuilt_files, .. } = report;
    let mut out = format!(
        "rebuilt {} with {}; links of {} mended\n",
        counted(*feeds, "feed"),
        counted(*changes, "change"),
        counted(*mended, "change")
    );
    for file in rebuilt_files {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", plain(&format!("rebuilt without {file}")));
    }
    for LostChange { feed, position, item, reason } in lost {
        let item =
            item.as_ref().map_or_else(|| "an unknown item".to_owned(), |item| format!("item {item:?}"));
        let _ =
            writeln!(out, "{}", plain(&format!("lost: feed {feed}, change {position}, {item}: {reason}")));
    }
    for row in lost_rows {
        let _ = writeln!(out, "{}", plain(&format!("lost: {row}")));
    }
    for line in after.lines() {
        let _ = writeln!(out, "left: {line}");
    }
    if lost.is_empty() && lost_rows.is_empty() {
        out.push_str("nothing is lost\n");
    }
    out
}

fn as_json(report: &RepairReport, after: &FolderCheck) -> Value {
    let RepairReport { feeds, changes, mended, lost, lost_rows, rebuilt_files, .. } = report;
    let change = |LostChange { feed, position, item, reason }: &LostChange| json!({ "feed": feed, "position": position, "item": item, "reason": reason });
    let lost: Vec<Value> = lost.iter().map(change).collect();
    json!({
        "feeds": feeds, "changes": changes, "mended": mended,
        "lost": lost, "lost_rows": lost_rows, "rebuilt_files": rebuilt_files, "left_count": after.count, "left": after.problems,
    })
}
