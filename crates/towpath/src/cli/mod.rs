//! The command line.

mod check;
mod export;
mod feed_list;
mod fleet_lines;
mod follow;
mod import;
mod lines;
mod node;
mod open;
mod publish;
mod read_token;
mod run;
mod serve;
mod snapshot;
mod state_file;
mod state_log;
mod status;
mod terminal;

use std::fmt;
use std::io::IsTerminal as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError};
use crate::engine::EngineError;
use crate::engine::export::ExportError;
use crate::engine::export::target::TargetError;
use crate::server::ServeError;
use towpath_store::StoreError;

/// One ordered log per feed, and five published protocols to follow it by.
#[derive(Debug, Parser)]
#[command(name = "towpath", version, about, long_about = None, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Poll every source on its schedule and serve every feed
    Serve(serve::ServeArgs),
    /// Poll every source once, print what changed, and exit
    Run(ConfigArgs),
    /// Publish one item
    Put(publish::PutArgs),
    /// Delete one item
    Delete(publish::DeleteArgs),
    /// Publish the items of a file: NDJSON, RSS, Atom or JSON Feed
    Import(publish::ImportArgs),
    /// Follow feeds: print each change as one line of JSON
    Follow(follow::FollowArgs),
    /// Check a feed for conformance with its protocol's text
    Check(check::CheckArgs),
    /// Make a snapshot of a feed, for those who begin to follow it
    Snapshot(snapshot::SnapshotArgs),
    /// Write every feed as a static tree, into a folder or object storage: what changed since the last time
    Export(export::ExportArgs),
    /// Show the feeds, their positions, and how their sources are
    Status(publish::TargetArgs),
}

/// Which configuration to use.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file [default: towpath.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder [default: the configuration's, or "data"]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

impl ConfigArgs {
    fn load(&self) -> Result<Config, CliError> {
        let mut config = Config::load(self.config.as_deref())?;
        if let Some(data) = &self.data {
            config.server.data.clone_from(data);
        }
        Ok(config)
    }
}

/// How a command ended, as the exit code says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything was done.
    Done = 0,
    /// Something failed.
    Failed = 1,
    /// The command line or the configuration makes no sense.
    Usage = 2,
    /// Everything was delivered that the publisher still has, and something is missing.
    Incomplete = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed, for a person: what, where, and what to do.
#[derive(Debug)]
pub struct CliError {
    /// The exit code.
    pub exit: Exit,
    /// The message.
    pub message: String,
}

impl CliError {
    /// The user's mistake.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    /// Something else's failure.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into() }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<ServeError> for CliError {
    fn from(error: ServeError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Rules { .. } => Self::usage(error.to_string()),
            EngineError::Store(_) => Self::failed(error.to_string()),
        }
    }
}

impl From<TargetError> for CliError {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Place { .. } => Self::usage(error.to_string()),
            TargetError::File { .. } | TargetError::Storage { .. } => Self::failed(error.to_string()),
        }
    }
}

impl From<ExportError> for CliError {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Target(error) => error.into(),
            error => Self::failed(error.to_string()),
        }
    }
}

/// Runs the command that the arguments ask for.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if matches!(cli.command, Command::Serve(_)) {
        start_again_with_few_arenas();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return report(&CliError::failed(format!("cannot start: {e}"))),
    };
    let exit = runtime.block_on(run_command(cli.command));
    // What still reads standard input or resolves a name must not hold up the end.
    runtime.shutdown_background();
    exit.map_or_else(|e| report(&e), ExitCode::from)
}

/// Settings of glibc's allocator: few arenas, and large pieces given back to the system as soon as they are free.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_ARENA_MAX", "2"), ("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "1048576")];

/// Replaces this process by itself with settings that glibc reads at the start only.
///
/// Each thread that makes and drops whole documents would otherwise leave its own arena full of holes: a thousand
/// sources take twice the memory. Where settings are made already, or cannot be, the process goes on as it is.
fn start_again_with_few_arenas() {
    if std::env::var_os(ALLOCATOR[0].0).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut again = std::process::Command::new(program);
    let error = again.args(std::env::args_os().skip(1)).envs(ALLOCATOR).exec();
    // It returns only when it failed.
    eprintln!("towpath: runs with more memory than it needs: {error}");
}

async fn run_command(command: Command) -> Result<Exit, CliError> {
    match command {
        Command::Serve(args) => serve::serve(args).await,
        Command::Run(args) => run::run(&args).await,
        Command::Put(args) => publish::put(args).await,
        Command::Delete(args) => publish::delete(args).await,
        Command::Import(args) => publish::import(args).await,
        Command::Follow(args) => follow::follow(args).await,
        Command::Check(args) => check::check(args).await,
        Command::Snapshot(args) => snapshot::snapshot(args).await,
        Command::Export(args) => export::export(args).await,
        Command::Status(args) => status::status(&args).await,
    }
}

fn report(error: &CliError) -> ExitCode {
    eprintln!("towpath: {error}");
    error.exit.into()
}

/// Sends what happens to standard error: warnings and news by default, more with `TOWPATH_LOG=debug`.
fn log_to_stderr() {
    // A certificate that is refused is told of by whoever asked.
    let usual = || tracing_subscriber::EnvFilter::new("warn,towpath=info,rustls_platform_verifier=off");
    let filter = tracing_subscriber::EnvFilter::try_from_env("TOWPATH_LOG").unwrap_or_else(|_| usual());
    let stderr = std::io::stderr;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    let subscriber = subscriber.with_target(false).with_ansi(stderr().is_terminal());
    // A second start in one process (tests) keeps the first subscriber.
    let _ = subscriber.try_init();
}
