//! `cargo xtask screenshots` and `cargo xtask lighthouse`: the web page of a new server with the quickstart's data.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::run::{cargo, root, status, target};
use crate::setup;

/// Pages that Lighthouse judges: the heaviest ones.
const JUDGED: [&str; 6] = [
    "/",
    "/feeds/kev",
    "/feeds/kev/changes",
    "/feeds/kev/history",
    "/feeds/kev/follow",
    "/feeds/kev/items/CVE-2021-44228",
];

/// A server with the quickstart's data, which ends with this value.
struct QuickstartServer {
    process: Child,
    base: String,
}

impl Drop for QuickstartServer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl QuickstartServer {
    /// Starts a development build in a new folder.
    fn start(folder: &str) -> Result<Self, String> {
        cargo(&["build", "--package", "towpath"])?;
        let data = target().join(folder);
        // The pages show a new server, and not what an earlier run published.
        if data.exists() {
            std::fs::remove_dir_all(&data).map_err(|e| format!("{}: {e}", data.display()))?;
        }
        let mut serve = Command::new(target().join("debug/towpath"));
        serve
            .args(["serve", "--config", "examples/quickstart.toml", "--listen", "127.0.0.1:0", "--data"])
            .arg(&data);
        serve.current_dir(root()).stdout(Stdio::piped()).stderr(Stdio::null());
        let process = serve.spawn().map_err(|e| format!("{serve:?}: {e}"))?;
        let mut server = Self { process, base: String::new() };
        let printed = server.process.stdout.take().ok_or("the server prints nothing")?;
        let mut lines = BufReader::new(printed).lines();
        let line = lines.next().transpose().map_err(|e| e.to_string())?.unwrap_or_default();
        let base = line.split_whitespace().find(|word| word.starts_with("http://"));
        let base = base.ok_or_else(|| format!("no address in {line:?}"))?;
        server.base = base.trim_end_matches('/').to_owned();
        // Both sources are files, which are read at the start.
        std::thread::sleep(std::time::Duration::from_secs(5));
        Ok(server)
    }
}

/// Takes the pictures for README.md and docs/.
pub(crate) fn take() -> Result<(), String> {
    let modules = setup::browser()?;
    let server = QuickstartServer::start("screenshots")?;
    let mut node = Command::new("node");
    node.arg(root().join("tests/browser/screenshots.mjs")).arg(&server.base).arg(root().join("docs/images"));
    status(node.env("TOWPATH_BROWSER_MODULES", modules))
}

/// Runs Lighthouse on the heaviest pages. It takes minutes, so the tests do not.
pub(crate) fn lighthouse() -> Result<(), String> {
    let modules = setup::lighthouse()?;
    let server = QuickstartServer::start("lighthouse-data")?;
    let mut node = Command::new("node");
    node.arg(root().join("tests/browser/lighthouse/run.mjs")).arg(&server.base).args(JUDGED);
    status(node.env("TOWPATH_BROWSER_MODULES", modules))
}
