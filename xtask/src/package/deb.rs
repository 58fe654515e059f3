//! The Debian package: what is in it beside the program, and its making.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::release;
use crate::run::{root, status, target};

/// Shells, with the names of their files of completions.
pub(super) const SHELLS: [(&str, &str); 3] =
    [("bash", "towpath.bash"), ("zsh", "_towpath"), ("fish", "towpath.fish")];

/// Folder of the files that `crates/towpath/Cargo.toml` names for the package.
fn staged() -> PathBuf {
    // Not the folder that cargo builds into, which a variable may move: the manifest has this path.
    root().join("target/staged")
}

/// The staged program, without symbols.
pub(super) fn staged_program() -> PathBuf {
    staged().join("towpath")
}

/// Makes the package of a program, in `target/debian`; returns its file.
pub(crate) fn deb(program: &Path) -> Result<PathBuf, String> {
    stage(program)?;
    build("1", &target().join("debian"), &[])
}

/// Makes the package of what is staged in a folder, with a revision of Debian's and more options of cargo-deb.
pub(super) fn build(revision: &str, folder: &Path, options: &[&str]) -> Result<PathBuf, String> {
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    fs::create_dir_all(folder).map_err(error)?;
    let file =
        folder.join(format!("towpath_{}-{revision}_{}.deb", env!("CARGO_PKG_VERSION"), architecture()?));
    let mut deb = release::deb()?;
    deb.args([
        "--quiet",
        "--package",
        "towpath",
        "--no-build",
        "--no-strip",
        "--deb-revision",
        revision,
        "--output",
    ]);
    status(deb.arg(&file).args(options).env("SOURCE_DATE_EPOCH", release::source_date()))?;
    Ok(file)
}

/// Puts the program, its manual pages and completions, and the changelog where the manifest names them.
pub(super) fn stage(program: &Path) -> Result<(), String> {
    let folder = staged();
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let staged = staged_program();
    strip(program, &staged)?;
    documents(&staged, &folder)?;
    let changelog = folder.join("changelog");
    fs::write(&changelog, changes()?).map_err(|e| format!("{}: {e}", changelog.display()))
}

/// Copies a program without its symbols, which are most of a development build.
pub(super) fn strip(program: &Path, to: &Path) -> Result<(), String> {
    let options = ["--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", "-o"];
    status(Command::new("strip").args(options).arg(to).arg(program))
}

/// Writes the manual pages and completions of a program to the folders `man` and `completions`.
pub(super) fn documents(program: &Path, folder: &Path) -> Result<(), String> {
    let completions = folder.join("completions");
    for old in [completions.clone(), folder.join("man")] {
        let _ = fs::remove_dir_all(old);
    }
    fs::create_dir_all(&completions).map_err(|e| format!("{}: {e}", completions.display()))?;
    status(Command::new(program).arg("man").arg(folder.join("man")))?;
    for (shell, file) in SHELLS {
        let output =
            Command::new(program).args(["completions", shell]).output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!("towpath completions {shell}: {}", output.status));
        }
        fs::write(completions.join(file), output.stdout).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The changelog in Debian's form. The changes themselves are in CHANGELOG.md.
fn changes() -> Result<String, String> {
    let date = Command::new("date")
        .args(["--utc", "--rfc-email", "--date", &format!("@{}", release::source_date())])
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| format!("date: {e}"))?;
    let date = String::from_utf8_lossy(&date.stdout).trim().to_owned();
    let version = env!("CARGO_PKG_VERSION");
    let maintainer = maintainer()?;
    Ok(format!(
        "towpath ({version}-1) stable; urgency=medium\n\n  * Release {version}; its changes are in CHANGELOG.md.\n\n \
         -- {maintainer}  {date}\n"
    ))
}

/// The maintainer that the manifest names.
fn maintainer() -> Result<String, String> {
    let path = root().join("crates/towpath/Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("maintainer = "));
    line.map(|value| value.trim_matches('"').to_owned())
        .ok_or_else(|| format!("{}: no maintainer", path.display()))
}

fn architecture() -> Result<String, String> {
    let output = Command::new("dpkg").arg("--print-architecture").output();
    let output = output.map_err(|e| format!("dpkg: {e}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
