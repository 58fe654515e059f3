//! Logs on standard error: one event per line, with a constant message and fields.

mod format;
#[cfg(feature = "otlp")]
mod otlp;
mod throttle;

use std::io::IsTerminal as _;

use clap::Args;
use tokio::runtime::Handle;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use format::{LineFormat, LogFormat};

/// Levels of commands that run on, or whose notices are for the user. The verifier's own message is redundant: the
/// failed request names the rejected certificate.
const TALKATIVE: &str = "warn,towpath=info,rustls_platform_verifier=off";
/// Levels of other commands: their results are on standard output.
const QUIET: &str = "warn,rustls_platform_verifier=off";

/// Options of every command.
#[derive(Debug, Args)]
pub(super) struct LogArgs {
    /// Log lines to write to standard error: a level (error, warn, info, debug, trace, off), or levels by module such as
    /// warn,towpath::source=debug
    #[arg(long = "log", global = true, value_name = "FILTER", env = "TOWPATH_LOG", hide_env_values = true)]
    #[arg(value_parser = parse_filter, help_heading = "Logs")]
    log_filter: Option<LogFilter>,
    /// Format of log lines: text or json
    #[arg(long, global = true, value_name = "FORMAT", env = "TOWPATH_LOG_FORMAT", hide_env_values = true)]
    #[arg(value_parser = parse_format, default_value = "text", hide_default_value = true, help_heading = "Logs")]
    log_format: LogFormat,
}

/// Levels by module path; `None` for the command's own ones.
#[derive(Debug, Clone)]
struct LogFilter(Option<Targets>);

// An empty variable counts as an absent one: service managers have files with such lines.
fn parse_filter(text: &str) -> Result<LogFilter, String> {
    if text.trim().is_empty() {
        return Ok(LogFilter(None));
    }
    // To the parser any word is a module: `warning` would log nothing else, and no errors.
    if let Some(word) = text.split(',').find(|part| !is_level_or_module(part)) {
        return Err(format!(
            "{word:?} is no level; the levels are error, warn, info, debug, trace and off, for a module as {word}=debug"
        ));
    }
    let levels = text.parse().map_err(|e| format!("{e}; write a level such as debug, or module=level,…"))?;
    Ok(LogFilter(Some(levels)))
}

/// Returns false for a word that is no level, names no level and is no module of ours.
fn is_level_or_module(part: &str) -> bool {
    part.contains('=') || part.starts_with("towpath") || part.parse::<LevelFilter>().is_ok()
}

fn parse_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "" | "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("write text or json".into()),
    }
}

/// Detail of a command's log, unless `--log` sets it.
#[derive(Debug, Clone, Copy)]
pub(super) enum LogDetail {
    /// Notices of level info: they are a part of what the command tells its user.
    Notices,
    Warnings,
}

/// Kind of a program, by which its log is read by more people or fewer.
#[derive(Debug, Clone, Copy)]
pub(super) enum LoggedProgram {
    Server,
    Command,
}

impl LogArgs {
    /// Begins to log to standard error.
    ///
    /// A server hides queries of URLs as well as credentials: its log is read by more people than its configuration.
    /// The guard is finished when the command has ended.
    pub(super) fn start(&self, detail: LogDetail, program: LoggedProgram, runtime: &Handle) -> LogGuard {
        let redact: fn(&str) -> String = match program {
            LoggedProgram::Server => towpath_client::redact::text,
            LoggedProgram::Command => towpath_client::redact::credentials,
        };
        let is_terminal = std::io::stderr().is_terminal();
        let format = LineFormat::new(self.log_format, is_journal(), is_terminal, redact);
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).event_format(format);
        let lines = lines.with_filter(self.levels(detail));
        let registry = tracing_subscriber::registry().with(lines);
        let guard = LogGuard::new(program, runtime);
        // Tests start several commands in one process; the first subscriber stays.
        #[cfg(feature = "otlp")]
        let _ = registry.with(guard.layer()).try_init();
        #[cfg(not(feature = "otlp"))]
        let _ = registry.try_init();
        guard
    }

    fn levels(&self, detail: LogDetail) -> Targets {
        let set = self.log_filter.clone().and_then(|LogFilter(levels)| levels);
        let default = match detail {
            LogDetail::Notices => TALKATIVE,
            LogDetail::Warnings => QUIET,
        };
        set.unwrap_or_else(|| default.parse().unwrap_or_default())
    }
}

/// Work that is finished after a command.
#[derive(Debug)]
pub(super) struct LogGuard {
    #[cfg(feature = "otlp")]
    spans: Option<otlp::SpanExport>,
}

impl LogGuard {
    #[cfg(not(feature = "otlp"))]
    fn new(_: LoggedProgram, _: &Handle) -> Self {
        Self {}
    }

    #[cfg(feature = "otlp")]
    fn new(program: LoggedProgram, runtime: &Handle) -> Self {
        let started = match program {
            LoggedProgram::Server => otlp::SpanExport::start(runtime),
            LoggedProgram::Command => Ok(None),
        };
        let spans = started.unwrap_or_else(|error| {
            eprintln!("towpath: cannot export spans: {error}");
            None
        });
        Self { spans }
    }

    /// Sends what is left to send.
    pub(super) fn finish(self) {
        #[cfg(feature = "otlp")]
        drop(self.spans);
    }

    #[cfg(feature = "otlp")]
    fn layer<S>(&self) -> Option<impl tracing_subscriber::Layer<S> + use<S>>
    where
        S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    {
        let tracer = self.spans.as_ref()?.tracer();
        let only_spans = Targets::new().with_target(crate::spans::TARGET, tracing::Level::INFO);
        Some(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(only_spans))
    }
}

/// Returns true if standard error is connected to systemd's journal.
fn is_journal() -> bool {
    let Ok(journal) = std::env::var("JOURNAL_STREAM") else { return false };
    // A command that was started by a service may have another standard error (systemd.exec(5)).
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|file| journal == format!("{}:{}", file.st_dev, file.st_ino))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tracing::Level;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        log: LogArgs,
    }

    #[test]
    fn levels_are_set_by_module_path() {
        for (setting, target, level, is_logged) in [
            (None, "towpath::cli", Level::INFO, true),
            (None, "towpath_client", Level::INFO, true),
            (None, "towpath", Level::DEBUG, false),
            (None, "hyper", Level::INFO, false),
            (None, "rustls_platform_verifier", Level::ERROR, false),
            (Some("debug"), "hyper", Level::DEBUG, true),
            (Some("warn,towpath=trace"), "towpath::server", Level::TRACE, true),
            (Some("WARN,towpath::source"), "towpath::source", Level::TRACE, true),
            (Some("hyper=debug"), "hyper", Level::DEBUG, true),
            (Some(""), "towpath", Level::INFO, true),
        ] {
            let arguments = ["towpath"].into_iter().chain(setting.map(|_| "--log")).chain(setting);
            let command = Command::try_parse_from(arguments).unwrap();
            let found = command.log.levels(LogDetail::Notices).would_enable(target, &level);
            assert_eq!(found, is_logged, "{setting:?} {target} {level}");
        }
        let command = Command::try_parse_from(["towpath"]).unwrap();
        assert!(!command.log.levels(LogDetail::Warnings).would_enable("towpath", &Level::INFO));
    }

    #[test]
    fn mistakes_are_refused() {
        for wrong in [["--log", "=="], ["--log", "towpath=loud"], ["--log-format", "xml"]] {
            let error = Command::try_parse_from([&["towpath"][..], &wrong].concat()).unwrap_err();
            assert!(error.to_string().contains(wrong[0]), "{error}");
        }
        // As modules they would silence everything else.
        for wrong in ["warning", "err", "verbose", "warn,verbose", "hyper"] {
            let error = Command::try_parse_from(["towpath", "--log", wrong]).unwrap_err().to_string();
            assert!(error.contains("error, warn, info, debug, trace"), "{wrong}: {error}");
        }
    }
}
