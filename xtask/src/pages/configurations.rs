//! Configurations that a document shows: each is whole and valid, unless it says why not.

use std::path::Path;

use super::Source;
use super::blocks::Document;
use crate::console;
use crate::run::target;

/// Documents whose blocks are parts of configurations; its own test reads them.
const PARTS: [&str; 1] = ["docs/configuration.md"];

/// Value of each variable that a configuration names. As a secret of a webhook it has a form.
const VALUE: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Checks the `toml` blocks without a name.
pub(super) fn check(source: &Source, built: &Path) -> Result<(), String> {
    if PARTS.contains(&source.name.as_str()) {
        return Ok(());
    }
    let document = Document::parse(&source.text);
    for block in document.in_language("toml").filter(|block| block.file.is_none() && block.not_run.is_none())
    {
        let folder = target().join("pages/configurations");
        let file = folder.join("towpath.toml");
        let text = block.text();
        let error = |e: std::io::Error| format!("{}: {e}", file.display());
        std::fs::create_dir_all(&folder).map_err(error)?;
        std::fs::write(&file, &text).map_err(error)?;
        let mut shell = console::shell(&folder, built, "towpath config check");
        shell
            .envs(block.text().split("${").skip(1).filter_map(|rest| Some((rest.split_once('}')?.0, VALUE))));
        let output = shell.output().map_err(|e| format!("towpath config check: {e}"))?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}:{}: the configuration is not valid: {errors}", source.name, block.line));
        }
    }
    Ok(())
}
