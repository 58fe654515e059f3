//! Release builds whose dependencies can be audited, and the list of these dependencies.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{self, root, status, target};

/// Plugins of cargo, each in a fixed version. They are installed below the target folder, by these commands only.
const AUDITABLE: (&str, &str) = ("cargo-auditable", "0.7.7");
const DEB: (&str, &str) = ("cargo-deb", "3.8.0");
const CYCLONEDX: (&str, &str) = ("cargo-cyclonedx", "0.5.9");

/// Profile of what is packaged.
pub(crate) const PROFILE: &str = "dist";

/// Builds the program for packages, with the list of its dependencies inside, and writes the documents of [`sbom`].
/// Returns the program.
pub(crate) fn release() -> Result<PathBuf, String> {
    let program = build(PROFILE)?;
    sbom()?;
    Ok(program)
}

/// Builds the program with a profile, with the list of its dependencies inside; returns it.
pub(crate) fn build(profile: &str) -> Result<PathBuf, String> {
    let plugins = install(AUDITABLE)?;
    let build = ["auditable", "build", "--profile", profile, "--locked", "--package", "towpath"];
    let mut cargo = cargo_with_plugins(&plugins);
    status(cargo.args(build).env("TOWPATH_COMMIT", commit()).envs(without_paths(profile)))?;
    let program = target().join(if profile == "dev" { "debug" } else { profile }).join("towpath");
    println!("{}", program.display());
    Ok(program)
}

/// Variables that keep the paths of this machine out of what is compiled, for a profile of packages. A development build
/// is left alone: with other flags everything would be compiled again.
pub(crate) fn without_paths(profile: &str) -> Vec<(&'static str, String)> {
    if profile == "dev" {
        return Vec::new();
    }
    let paths: Vec<(PathBuf, &str)> =
        std::iter::once((root(), "/towpath")).chain(cargo_home().map(|home| (home, "/cargo"))).collect();
    let flags = |option: &str, separator: &str| {
        let flags = paths.iter().map(|(path, name)| format!("{option}={}={name}", path.display()));
        flags.collect::<Vec<_>>().join(separator)
    };
    // Cargo separates the flags by a character that no path has.
    vec![
        ("CARGO_ENCODED_RUSTFLAGS", flags("--remap-path-prefix", "\x1f")),
        ("CFLAGS", flags("-ffile-prefix-map", " ")),
    ]
}

/// Folder in which cargo keeps what it has from registries.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
}

/// The command `cargo deb`, without its arguments.
pub(crate) fn deb() -> Result<Command, String> {
    let plugins = install(DEB)?;
    let mut command = cargo_with_plugins(&plugins);
    command.arg("deb");
    Ok(command)
}

/// Time of what is packaged, in seconds of Unix: `SOURCE_DATE_EPOCH`, or that of the commit. So packages of one commit have
/// the same bytes.
pub(crate) fn source_date() -> String {
    if let Ok(date) = std::env::var("SOURCE_DATE_EPOCH") {
        return date;
    }
    let shown = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()).output();
    let text = shown.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or_else(|| "0".into(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

/// Returns the commit of the working copy, for `towpath --version`.
fn commit() -> String {
    let shown = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(root()).output();
    let text = shown.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    text.map_or_else(|| "unknown".into(), |text| String::from_utf8_lossy(&text).trim().to_owned())
}

/// Writes a CycloneDX document of each crate's dependencies to `sbom` in the target folder.
pub(crate) fn sbom() -> Result<(), String> {
    let plugins = install(CYCLONEDX)?;
    let document = ["cyclonedx", "--format", "json", "--describe", "crate", "--spec-version", "1.5"];
    status(cargo_with_plugins(&plugins).args(document))?;
    let folder = target().join("sbom");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for document in documents()? {
        let to = folder.join(document.file_name().unwrap_or_default());
        // The plugin writes beside each Cargo.toml, among the sources. Copied: the folders may be on two file systems.
        std::fs::copy(&document, &to).map_err(|e| format!("{}: {e}", to.display()))?;
        std::fs::remove_file(&document).map_err(|e| format!("{}: {e}", document.display()))?;
        println!("{}", to.display());
    }
    Ok(())
}

/// Documents that the plugin left in the folders of the workspace's crates.
fn documents() -> Result<Vec<PathBuf>, String> {
    let entries = |folder: &Path| -> Result<Vec<PathBuf>, String> {
        let read = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(read.filter_map(|entry| Some(entry.ok()?.path())).collect())
    };
    let mut folders = entries(&root().join("crates"))?;
    folders.extend(["xtask", "clients/python"].map(|folder| root().join(folder)));
    let mut found = Vec::new();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let files = entries(folder)?;
        found.extend(files.into_iter().filter(|path| path.to_string_lossy().ends_with(".cdx.json")));
    }
    found.sort();
    if found.is_empty() { Err("cargo-cyclonedx has written no document".into()) } else { Ok(found) }
}

/// Installs a plugin, unless it is there in this version; returns the folder of its program.
fn install((name, version): (&str, &str)) -> Result<PathBuf, String> {
    let folder = target().join("plugins").join(format!("{name}-{version}"));
    if !folder.join("bin").join(name).exists() {
        // `--locked`: the versions that the plugin's authors tested.
        let install = ["install", "--locked", "--version", version, name, "--root"];
        status(run::command().args(install).arg(&folder))?;
    }
    Ok(folder.join("bin"))
}

/// Cargo with a plugin in its path.
fn cargo_with_plugins(plugins: &Path) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(plugins.to_owned()).chain(std::env::split_paths(&path));
    let mut command = run::command();
    if let Ok(path) = std::env::join_paths(all) {
        command.env("PATH", path);
    }
    command.current_dir(root());
    command
}
