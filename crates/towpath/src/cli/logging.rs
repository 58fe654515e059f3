//! Logs on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Levels unless `TOWPATH_LOG` sets others. The verifier's own message is redundant: the failed request names the
/// rejected certificate.
const DEFAULT_LEVELS: &str = "warn,towpath=info,rustls_platform_verifier=off";

/// Logs to standard error, at level `info` by default; `TOWPATH_LOG=debug` logs more.
pub(super) fn log_to_stderr() {
    let stderr = std::io::stderr;
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    // Module paths mean nothing to an operator.
    let lines = lines.with_target(false).with_ansi(stderr().is_terminal());
    // Tests start several commands in one process; the first subscriber stays.
    let _ =
        tracing_subscriber::registry().with(levels(std::env::var("TOWPATH_LOG").ok())).with(lines).try_init();
}

/// Levels by module path (`debug`, `warn,towpath=trace`); the default ones where the setting has none that can be read.
fn levels(setting: Option<String>) -> Targets {
    let set = setting.filter(|levels| !levels.trim().is_empty()).and_then(|levels| levels.parse().ok());
    set.unwrap_or_else(|| DEFAULT_LEVELS.parse().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

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
            (Some(""), "towpath", Level::INFO, true),
            (Some("=="), "towpath", Level::INFO, true),
        ] {
            let found = levels(setting.map(str::to_owned)).would_enable(target, &level);
            assert_eq!(found, is_logged, "{setting:?} {target} {level}");
        }
    }
}
