//! `cargo xtask screenshots`: pictures of the web page for README.md and docs/, from the quickstart's data.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::run::{cargo, root, status, target};
use crate::setup;

/// A server that ends with the pictures.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server with the quickstart's data in a new folder, and takes the pictures.
pub(crate) fn take() -> Result<(), String> {
    let modules = setup::browser()?;
    cargo(&["build", "--package", "towpath"])?;
    let data = target().join("screenshots");
    // The pictures show a new server, and not what an earlier run published.
    if data.exists() {
        std::fs::remove_dir_all(&data).map_err(|e| format!("{}: {e}", data.display()))?;
    }
    let mut serve = Command::new(target().join("debug/towpath"));
    serve
        .args(["serve", "--config", "examples/quickstart.toml", "--listen", "127.0.0.1:0", "--data"])
        .arg(&data);
    serve.current_dir(root()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server(serve.spawn().map_err(|e| format!("{serve:?}: {e}"))?);
    let printed = server.0.stdout.take().ok_or("the server prints nothing")?;
    let mut lines = BufReader::new(printed).lines();
    let line = lines.next().transpose().map_err(|e| e.to_string())?.unwrap_or_default();
    let base = line.split_whitespace().find(|word| word.starts_with("http://"));
    let base = base.ok_or_else(|| format!("no address in {line:?}"))?.trim_end_matches('/').to_owned();
    // Both sources are files, which are read at the start.
    std::thread::sleep(std::time::Duration::from_secs(5));
    let mut node = Command::new("node");
    node.arg(root().join("tests/browser/screenshots.mjs")).arg(&base).arg(root().join("docs/images"));
    status(node.env("TOWPATH_BROWSER_MODULES", modules))
}
