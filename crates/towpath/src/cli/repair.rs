//! `towpath repair`: rebuilds the indexes of the data folder from its log, and names what is lost.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use towpath_store::Store as _;
use towpath_store::embedded::{
    EmbeddedOptions, EmbeddedStore, FolderRepair, LostChange, RepairReport, VerifyProgress,
};

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::terminal::plain;
use super::verify::{FolderCheck, check, draw, open_folder};
use crate::plural::counted;
use crate::protocols;

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// Tell what would be lost, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Builds a new store from what can be read, and puts it in the place of the damaged one, which stays beside it.
pub(crate) async fn repair(args: &RepairArgs) -> Result<Exit, CliError> {
    let server = args.config.load()?.server;
    let folder = server.data.clone();
    if server.cluster.is_none() && FolderRepair::has_lost_format(&folder) {
        let shown = plain(&folder.display().to_string());
        if args.dry_run {
            return Err(CliError::failed(format!(
                "the file towpath.format of {shown} is missing; `towpath repair` writes it again, and the rest can be checked \
                 only then"
            )));
        }
        FolderRepair::write_lost_format(&folder)?;
        println!("wrote the missing file towpath.format of {shown}");
    }
    let before = check(open_folder(&server).await?).await;
    if before.as_ref().is_ok_and(FolderCheck::is_sound) {
        println!("no damage found in {}: nothing to repair", plain(&folder.display().to_string()));
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
    let (repair, (building, report)) = built??;
    let after = finish(&building, &report).await;
    let after = match after {
        Ok(after) => after,
        Err(error) => {
            drop(repair.discard());
            return Err(error);
        }
    };
    print(&report, &after);
    let is_whole = report.lost.is_empty() && report.lost_rows.is_empty() && after.is_sound();
    let ending = if args.dry_run {
        repair.discard()?;
        "dry run: nothing was changed".to_owned()
    } else {
        let installing = tokio::task::spawn_blocking(move || repair.install());
        let kept = installing.await.map_err(|e| CliError::failed(e.to_string()))??;
        format!("the folder as it was is {}; remove it once it is not needed", kept.display())
    };
    eprintln!("{}", plain(&ending));
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

/// Repairs what the protocols keep in the new store, and checks it.
async fn finish(building: &Path, report: &RepairReport) -> Result<FolderCheck, CliError> {
    let path = building.to_owned();
    let opening = tokio::task::spawn_blocking(move || EmbeddedStore::open(path, EmbeddedOptions::default()));
    let store = opening.await.map_err(|e| CliError::failed(e.to_string()))??;
    if let Err(error) = protocols::repair::repair(&store, &report.moved).await {
        store.close().await;
        return Err(error.into());
    }
    check(store).await.map_err(|e| CliError::failed(e.to_string()))
}

/// Prints what was rebuilt, what is lost and what is left. The exit code has the result even if this cannot be written.
fn print(report: &RepairReport, after: &FolderCheck) {
    let RepairReport { feeds, changes, mended, lost, lost_rows, .. } = report;
    let mut out = format!(
        "rebuilt {} with {}; links of {} mended\n",
        counted(*feeds, "feed"),
        counted(*changes, "change"),
        counted(*mended, "change")
    );
    for LostChange { feed, position, item, reason } in lost {
        let item =
            item.as_ref().map_or_else(|| "an unknown item".to_owned(), |item| format!("item {item:?}"));
        // Writing to a string cannot fail.
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
    let _ = std::io::stdout().lock().write_all(out.as_bytes());
}
