//! The command line.

mod account;
mod alerts;
mod background;
mod backup;
mod check;
mod compact;
mod config;
mod config_args;
mod diff;
mod error;
mod export;
mod feed;
mod feed_list;
mod feed_url;
mod fleet_lines;
mod follow;
mod import;
mod init;
mod limit_args;
mod lines;
mod logging;
mod manual;
mod node;
mod open;
mod probe;
mod progress;
mod protocol_arg;
mod publish;
mod publish_target;
mod receipt;
mod reload;
mod repair;
mod request_headers;
mod run;
mod running_server;
mod serve;
mod server_commands;
mod sink;
mod snapshot;
mod state_log;
mod status;
mod stop_limit;
mod style;
mod tail;
mod terminal;
mod token;
mod verify;
mod version;

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use futures_util::FutureExt as _;

use crate::private_files;

pub use background::Background;
use config_args::ConfigArgs;
pub use error::{CliError, Exit};
use logging::{LogArgs, LogDetail, LoggedProgram};

/// Publish feeds as ordered logs, and follow feeds over five published protocols.
#[derive(Debug, Parser)]
#[command(name = "towpath", version = version::version(), about, long_about = None, propagate_version = true)]
pub struct Cli {
    #[command(flatten)]
    logs: LogArgs,
    /// Print nothing about success; failures are told all the same
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Write a configuration that works
    Init(init::InitArgs),
    /// Poll every source on its schedule and serve every feed
    Serve(serve::ServeArgs),
    /// Poll every source once, print what changed, and exit
    Run(run::RunArgs),
    /// Publish one item
    Put(publish::PutArgs),
    /// Delete one item
    Delete(publish::DeleteArgs),
    /// Print the last changes of a feed, and then each as it comes
    Tail(tail::TailArgs),
    /// Show what differs between two versions of an item
    Diff(diff::DiffArgs),
    /// Publish the items of a file (NDJSON, RSS, Atom or JSON Feed)
    Import(publish::ImportArgs),
    /// Follow feeds and print each change as one line of JSON
    Follow(follow::args::FollowArgs),
    /// Check a feed for conformance with its protocol's specification
    Check(check::CheckArgs),
    /// Create a snapshot from which new followers bootstrap
    Snapshot(snapshot::SnapshotArgs),
    /// Export every feed as static files to a folder or object storage; later runs write only changes
    Export(export::ExportArgs),
    /// Show feeds, positions and source health
    Status(status::StatusArgs),
    /// Check the data folder for damage; no server may have it open
    Verify(verify::VerifyArgs),
    /// Rebuild the data folder's indexes from its log, and name what is lost; no server may have it open
    Repair(repair::RepairArgs),
    /// Compact the data folder: give back space of what was removed; no server may have it open
    Compact(ConfigArgs),
    /// Back up the data folder to a folder or object storage, also while it is served; later runs write only changes
    Backup(backup::BackupArgs),
    /// Restore a backup into a new data folder, list backups, or check one
    Restore(backup::RestoreArgs),
    /// Check the configuration, or print an annotated one, its reference or its schema
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Make and remove feeds of a running server
    #[command(subcommand)]
    Feed(feed::FeedCommand),
    /// See and steer the sinks of a running server
    #[command(subcommand)]
    Sink(sink::SinkCommand),
    /// Test the destinations of alerts
    #[command(subcommand)]
    Alerts(alerts::AlertsCommand),
    /// Let the running server read its configuration again, and print what changed
    Reload(reload::ReloadArgs),
    /// Print the completions of a shell
    Completions(manual::CompletionsArgs),
    /// Write a manual page for each command to a folder
    Man(manual::ManArgs),
    /// Make tokens for the configuration
    #[command(subcommand)]
    Token(token::TokenCommand),
}

impl Subcommands {
    fn log_detail(&self) -> LogDetail {
        match self {
            Self::Serve(_) | Self::Run(_) | Self::Follow(_) | Self::Check(_) => LogDetail::Notices,
            _ => LogDetail::Warnings,
        }
    }

    fn logged_program(&self) -> LoggedProgram {
        if matches!(self, Self::Serve(_)) { LoggedProgram::Server } else { LoggedProgram::Command }
    }
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    style::set_quiet(cli.quiet);
    // Before any thread starts: exec replaces the whole process.
    if matches!(cli.command, Subcommands::Serve(_)) {
        restart_with_few_arenas();
    }
    // After the restart, which keeps the umask: the user's own one is still needed.
    private_files::restrict();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return report(&CliError::failed(format!("cannot start: {e}"))),
    };
    let (detail, program) = (cli.command.log_detail(), cli.command.logged_program());
    let guard = cli.logs.start(detail, program, runtime.handle());
    // Behind a pointer: the runtime's generic loops would each have a copy of all commands, 100 kB in size.
    let exit = runtime.block_on(run_command(cli.command).boxed_local());
    guard.finish();
    // A blocked read of standard input or a name lookup must not delay the exit.
    runtime.shutdown_background();
    exit.map_or_else(|e| report(&e), ExitCode::from)
}

/// Settings of glibc's allocator: two arenas, and large allocations returned to the system when freed.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "2"), ("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "1048576")];

/// Restarts this process with allocator settings, which glibc reads only at start.
///
/// By default each thread that builds documents fragments an arena of its own. With a thousand polled sources that
/// doubles memory use. If the settings are already present, or the restart fails, the process continues as it is.
fn restart_with_few_arenas() {
    if std::env::var_os(ALLOCATOR[0].0).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut again = std::process::Command::new(program);
    let error = again.args(std::env::args_os().skip(1)).envs(ALLOCATOR).exec();
    // exec() returns only on failure.
    eprintln!("towpath: cannot restart with allocator settings, memory use will be higher: {error}");
}

/// Runs the command, and returns its exit code.
async fn run_command(command: Subcommands) -> Result<Exit, CliError> {
    match command {
        Subcommands::Serve(args) => serve::serve(args).await,
        Subcommands::Run(args) => run::run(&args).await,
        Subcommands::Put(args) => publish::put(args).await,
        Subcommands::Delete(args) => publish::delete(args).await,
        Subcommands::Tail(args) => tail::tail(args).await,
        Subcommands::Diff(args) => diff::diff(args).await,
        Subcommands::Import(args) => publish::import(args).await,
        Subcommands::Follow(args) => follow::follow(args).await,
        Subcommands::Check(args) => check::check(args).await,
        Subcommands::Snapshot(args) => snapshot::snapshot(args).await,
        Subcommands::Export(args) => export::export(args).await,
        Subcommands::Status(args) => status::status(&args).await,
        Subcommands::Verify(args) => verify::verify(&args).await,
        Subcommands::Repair(args) => repair::repair(&args).await,
        Subcommands::Compact(args) => compact::compact(&args).await,
        Subcommands::Backup(args) => backup::backup(&args).await,
        Subcommands::Restore(args) => backup::restore(args).await,
        Subcommands::Alerts(command) => alerts::alerts(&command).await,
        Subcommands::Init(args) => init::init(&args),
        Subcommands::Reload(args) => reload::reload(&args).await,
        Subcommands::Completions(args) => manual::completions(&args, Cli::command()),
        Subcommands::Man(args) => manual::man(&args, Cli::command()),
        Subcommands::Config(command) => config::config(&command),
        Subcommands::Feed(command) => feed::feed(command).await,
        Subcommands::Sink(command) => sink::sink(&command).await,
        Subcommands::Token(command) => token::token(command),
    }
}

/// Prints an error, and returns its exit code.
fn report(error: &CliError) -> ExitCode {
    // The message may quote a server or a publisher, and name a URL with a password.
    let text = towpath_client::redact::credentials(&error.to_string());
    let name = style::Painter::of(&std::io::stderr()).paint(style::Colour::Red, "towpath:");
    eprintln!("{name} {}", terminal::plain_lines(&text));
    error.exit.into()
}
