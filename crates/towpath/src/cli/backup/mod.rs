//! `towpath backup` and `towpath restore`: copies of the data folder, made while it is served.
//!
//! A backup is a list of pieces, each named by its content, so that the next backup writes only what is new. The
//! server that has the store open gives a copy of one moment by a socket; the command does the rest.

mod pace;
mod place;
mod report;
mod restore;
mod socket;
mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use indicatif::{HumanBytes, ProgressBar};
use jiff::Timestamp;
use serde_json::json;
use towpath_store::Store as _;
use towpath_store::backup::{
    self, BACKUPS, BackupStorage, BackupSummary, CopySource, LocalCopy, PieceCheck, keep_newest,
};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

use super::config_args::ConfigArgs;
use super::error::{CliError, Exit};
use super::progress::LateBar;
use super::running_server::{FolderUser, user_of};
use super::style::{OutputFormat, print_done, print_output, print_result};
use crate::config::ServerConfig;
use crate::plural::counted;

pub(super) use place::BackupPlace;
pub(super) use socket::serve;

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Place of backups: a folder, or s3://bucket/prefix, gs://bucket/prefix, az://container/prefix
    dest: String,
    /// Remove all but the newest N backups afterwards
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Read the pieces that are there already, and write damaged ones again
    #[arg(long)]
    verify: bool,
    /// Form of the receipt
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Place of backups, as for `towpath backup`
    src: String,
    /// Name of the backup [default: the newest]
    #[arg(long, value_name = "NAME")]
    backup: Option<String>,
    /// List the backups, and restore nothing
    #[arg(long, conflicts_with_all = ["check", "backup"])]
    list: bool,
    /// Read the whole backup and tell what is damaged, and restore nothing
    #[arg(long)]
    check: bool,
    /// Followers go on with their positions. Only if nothing was published after the backup
    #[arg(long, conflicts_with_all = ["list", "check"])]
    same_log: bool,
    /// Form of the list, of the result of a check, or of the receipt
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Backs up the data folder, which a server may have open.
pub(crate) async fn backup(args: &BackupArgs) -> Result<Exit, CliError> {
    let server = args.config.load()?.server;
    refuse_cluster(&server)?;
    let folder = &server.data;
    if !folder.is_dir() {
        return Err(CliError::usage(format!("there is no data folder {}", folder.display())));
    }
    let place = BackupPlace::open_or_create(&args.dest)?;
    if place.overlaps(folder) {
        return Err(CliError::usage(format!(
            "{} and the data folder {} are one within the other: a lost disk would take both",
            place.address(),
            folder.display()
        )));
    }
    let check = if args.verify { PieceCheck::Content } else { PieceCheck::Size };
    let (begin, made) = (Instant::now(), Timestamp::now());
    let late = progress();
    let bar = late.counter();
    let summary = match user_of(folder) {
        // The engine locks its folder, so the server gives the copy. It is one of a moment, while it goes on
        // publishing.
        FolderUser::Server(_) => {
            let asked = folder.clone();
            let asking = tokio::task::spawn_blocking(move || socket::request(&asked));
            let copy = asking.await.map_err(failed)?;
            let copy =
                copy.map_err(|e| CliError::failed(format!("the running server gives no copy: {e}")))?;
            back_up(copy, made, &place, check, &bar).await?
        }
        FolderUser::Process(process) => {
            let why =
                format!("process {process} has the data folder {} open; try again later", folder.display());
            return Err(CliError::failed(why));
        }
        FolderUser::Nobody => back_up_folder(folder.clone(), made, &place, check, &bar).await?,
    };
    drop(late);
    let took = begin.elapsed();
    let removed = match args.keep {
        // Only after the new one is whole: a backup that failed must not cost an older one.
        Some(keep) => keep_newest(&place, keep as usize).await.map(Some),
        None => Ok(None),
    };
    // The backup is made, whatever became of the older ones.
    let receipt = report::backup_json(&summary, &place, took, removed.as_ref().ok().copied().flatten());
    print_result(args.format, &report::backup_text(&summary, &place, took), &receipt)?;
    if let (OutputFormat::Text, Some(removed)) = (args.format, removed.map_err(failed)?) {
        print_done(&format!("removed {}", counted(removed, "older backup")));
    }
    Ok(Exit::Done)
}

/// Restores a backup into a data folder that does not exist yet, lists backups, or checks one.
pub(crate) async fn restore(args: RestoreArgs) -> Result<Exit, CliError> {
    let place = BackupPlace::open(&args.src)?;
    if args.list {
        return list(&place, args.format).await;
    }
    let manifest = restore::find(&place, args.backup.as_deref()).await.map_err(failed)?;
    let name = manifest.name();
    let late = LateBar::new("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    let bar = late.counter();
    bar.set_length(manifest.bytes());
    if args.check {
        let wrong = backup::check(&place, &manifest, &|bytes| bar.inc(bytes)).await;
        drop(late);
        let faults: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        let text = match args.format {
            OutputFormat::Text => report::check_text(&manifest, &faults),
            OutputFormat::Json => format!("{}\n", report::check_json(&manifest, &faults)),
        };
        print_output(text)?;
        return match faults.len() {
            0 => Ok(Exit::Done),
            count => Err(CliError::failed(format!(
                "the backup {name} has {}; `towpath backup {} --verify` makes a whole one, and writes again what the \
                 data folder still has of these",
                counted(count, "damaged or missing piece"),
                place.address()
            ))),
        };
    }
    let server = args.config.load()?.server;
    refuse_cluster(&server)?;
    let folder = server.data;
    // An empty folder is fine: container volumes exist before anything is in them.
    let is_used = std::fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some());
    if is_used || !matches!(user_of(&folder), FolderUser::Nobody) {
        return Err(CliError::usage(format!(
            "the data folder {} is in use or holds data, which a restore never replaces; move it away, or name \
             another folder with --data",
            folder.display()
        )));
    }
    let begin = Instant::now();
    let restored = json!({
        "backup": name, "data": folder, "entries": manifest.entries(), "bytes": manifest.bytes(), "same_log": args.same_log,
    });
    let (entries, bytes) = (manifest.entries(), manifest.bytes());
    restore::restore(place, manifest, folder.clone(), args.same_log, bar.clone()).await.map_err(failed)?;
    drop(late);
    let text = format!(
        "restored {name} into {}: {}, {}, {:.1} s",
        folder.display(),
        counted(entries, "entry"),
        HumanBytes(bytes),
        begin.elapsed().as_secs_f64()
    );
    print_result(args.format, &text, &restored)?;
    Ok(Exit::Done)
}

/// Backs up a folder that no process has open.
async fn back_up_folder(
    folder: PathBuf,
    made: Timestamp,
    place: &BackupPlace,
    check: PieceCheck,
    bar: &ProgressBar,
) -> Result<BackupSummary, CliError> {
    let opening =
        tokio::task::spawn_blocking(move || EmbeddedStore::open(folder, EmbeddedOptions::default()));
    let store = opening.await.map_err(failed)??;
    let copy = LocalCopy::new(store.copy_now().map_err(failed)?);
    let done = back_up(copy, made, place, check, bar).await;
    store.close().await;
    done
}

async fn back_up(
    copy: impl CopySource + Send + 'static,
    made: Timestamp,
    place: &BackupPlace,
    check: PieceCheck,
    bar: &ProgressBar,
) -> Result<BackupSummary, CliError> {
    let storage: Arc<dyn BackupStorage> = Arc::new(place.clone());
    let done = backup::back_up(copy, made, None, &storage, check, &|bytes| bar.inc(bytes)).await;
    done.map_err(failed)
}

async fn list(place: &BackupPlace, format: OutputFormat) -> Result<Exit, CliError> {
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for file in place.names(BACKUPS).await.map_err(failed)? {
        match backup::read(place, &file).await {
            Ok(manifest) => whole.push(manifest),
            Err(e) => damaged.push(e.to_string()),
        }
    }
    if whole.is_empty() && format == OutputFormat::Text {
        print_done(&format!("there is no backup in {}", place.address()));
    }
    let text = match format {
        OutputFormat::Text => report::list_text(&whole, &damaged),
        OutputFormat::Json => format!("{}\n", report::list_json(&whole, &damaged)),
    };
    print_output(text)?;
    Ok(Exit::Done)
}

fn refuse_cluster(server: &ServerConfig) -> Result<(), CliError> {
    match server.cluster {
        Some(_) => Err(CliError::usage(
            "this node's folder is a replica of the cluster's log; back up the streams of its NATS servers",
        )),
        None => Ok(()),
    }
}

/// Bar of the bytes of the store that were copied.
fn progress() -> LateBar {
    LateBar::new("{spinner} {bytes} of the store, {bytes_per_sec}, {elapsed}")
}

fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::failed(error.to_string())
}
