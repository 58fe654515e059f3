//! Version of this program, with the commit that it was built from.

use std::sync::LazyLock;

/// Commit that the build names. A build from a working copy has none.
const COMMIT: Option<&str> = option_env!("TOWPATH_COMMIT");

/// Sinks and backends that this build has.
const FEATURES: &str = match (cfg!(feature = "email"), cfg!(feature = "otlp")) {
    (true, true) => "cluster, xmpp, websub, export, sinks, email, otlp",
    (true, false) => "cluster, xmpp, websub, export, sinks, email",
    (false, true) => "cluster, xmpp, websub, export, sinks, otlp",
    (false, false) => "cluster, xmpp, websub, export, sinks",
};

/// Returns the version for `--version`.
pub(super) fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let build = if cfg!(debug_assertions) { "development build" } else { "release build" };
        let commit = COMMIT.unwrap_or("unknown");
        format!("{} (commit {commit}, {build}; features: {FEATURES})", env!("CARGO_PKG_VERSION"))
    });
    &TEXT
}
