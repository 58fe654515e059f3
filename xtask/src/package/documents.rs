//! Checks of what a program says about itself, and of the files beside it: manual pages, completions, units, configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::deb::{self, SHELLS};
use crate::run::{root, target};
use crate::setup;

/// A command line for each shell that loads a file of completions, and fails unless it completes a command.
const LOADED: [&str; 3] = [
    r#"bash -n "$1" && bash -c '. "$1" && complete -p towpath && COMP_WORDS=(towpath stat) COMP_CWORD=1 &&
       _towpath towpath stat towpath && [ "${COMPREPLY[*]}" = status ]' load "$1""#,
    // Without the system's functions, which take seconds to load.
    r#"zsh -n "$1" && zsh -f -c 'autoload -Uz compinit && compinit -D -u && source "$1" &&
       [ "${_comps[towpath]}" = _towpath ] && functions _towpath_commands | grep -q status' load "$1""#,
    r#"fish --no-execute "$1" && fish --no-config -c 'source $argv[1]; complete -C "towpath stat" | grep -q "^status"' "$1""#,
];

/// Checks the manual pages and completions of a program, and that it accepts the configuration and the unit of packages.
pub(crate) fn check(program: &Path) -> Result<(), String> {
    setup::readers()?;
    let folder = target().join("packaged");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    deb::documents(program, &folder)?;
    manual_pages(&folder.join("man"))?;
    for ((shell, file), script) in SHELLS.iter().zip(LOADED) {
        let file = folder.join("completions").join(file);
        quiet(Command::new("sh").args(["-c", script, shell]).arg(file))?;
    }
    let configuration = root().join("packaging/debian/towpath.toml");
    quiet(Command::new(program).args(["config", "check", "--config"]).arg(configuration))?;
    for script in ["postinst", "postrm"] {
        quiet(Command::new("sh").arg("-n").arg(root().join("packaging/debian").join(script)))?;
    }
    units(program, &folder)
}

/// Fails if groff has a warning for a page.
fn manual_pages(folder: &Path) -> Result<(), String> {
    let pages = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for page in pages.flatten().map(|entry| entry.path()) {
        let mut man = Command::new("man");
        // As `man --warnings -l` does, without a terminal; errors and warnings are on standard error.
        man.args(["--warnings", "--encoding=UTF-8", "--ditroff", "--local-file"]).arg(&page);
        let output = man.env("MANROFFSEQ", "").env("LC_ALL", "C.UTF-8").output();
        let output = output.map_err(|e| format!("man: {e}"))?;
        let warnings = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || !warnings.trim().is_empty() {
            return Err(format!("{}: {}: {warnings}", page.display(), output.status));
        }
    }
    Ok(())
}

/// Fails unless systemd takes the units without a complaint. They name `/usr/bin/towpath`, so copies name the program.
fn units(program: &Path, folder: &Path) -> Result<(), String> {
    let mut copies: Vec<PathBuf> = Vec::new();
    for name in ["towpath.service", "towpath.socket"] {
        let unit = root().join("packaging/systemd").join(name);
        let text = fs::read_to_string(&unit).map_err(|e| format!("{}: {e}", unit.display()))?;
        let copy = folder.join(name);
        let text = text.replace("/usr/bin/towpath", &program.display().to_string());
        // The manual page is not installed here.
        let text = text.replace("Documentation=man:towpath(1)\n", "");
        fs::write(&copy, text).map_err(|e| format!("{}: {e}", copy.display()))?;
        copies.push(copy);
    }
    let mut verify = Command::new("systemd-analyze");
    quiet(verify.args(["verify", "--recursive-errors=no"]).args(&copies))
}

/// Runs a command; an error with what it printed unless it succeeds, and has nothing on standard error.
fn quiet(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|e| format!("{shown}: {e}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && errors.trim().is_empty() {
        return Ok(());
    }
    Err(format!("{shown}: {}\n{}{errors}", output.status, String::from_utf8_lossy(&output.stdout)))
}
