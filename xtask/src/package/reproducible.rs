//! Packages of one commit have the same bytes, whatever folder they are built in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{deb, npm_tarball, of_published, pack_wheel};
use crate::run::{self, cargo, root, status, target};
use crate::{release, setup};

/// Argument of this program that makes the packages of one folder.
pub(crate) const PARTS: &str = "parts";

/// Makes all packages of the last commit in two folders, one after the other, and compares their bytes.
///
/// With the profile `dev` crates of others are compiled once; paths are not replaced in what is compiled, and symbols are
/// removed. With any other profile everything is compiled twice, as it is packaged.
pub(crate) fn check(profile: &str) -> Result<(), String> {
    setup::venv()?;
    let folder = target().join("reproducible");
    let _ = fs::remove_dir_all(&folder);
    // Paths of different lengths.
    let [first, second] = [make(&folder, "first", profile)?, make(&folder, "a second/folder", profile)?];
    let (first, second) = (files(&first)?, files(&second)?);
    if first.keys().ne(second.keys()) {
        return Err(format!("different files: {:?} and {:?}", first.keys(), second.keys()));
    }
    let mut different = Vec::new();
    for (name, path) in &first {
        let (bytes, others) = (read(path)?, read(&second[name])?);
        println!("{name}: {} bytes, {}", bytes.len(), if bytes == others { "the same" } else { "DIFFERENT" });
        if bytes != others {
            different.push(format!("{} and {}", path.display(), second[name].display()));
        }
    }
    if !different.is_empty() {
        return Err(format!("packages are not reproducible: {}", different.join(", ")));
    }
    fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))
}

/// Makes the packages in a clone; returns the folder that has them.
fn make(folder: &Path, name: &str, profile: &str) -> Result<PathBuf, String> {
    let (clone, packages) = (folder.join(name).join("towpath"), folder.join("packages").join(name));
    fs::create_dir_all(&packages).map_err(|e| format!("{}: {e}", packages.display()))?;
    status(Command::new("git").args(["clone", "--quiet"]).arg(root()).arg(&clone))?;
    let mut build = run::command();
    build.args(["run", "--quiet", "--package", "xtask", "--", "package", PARTS, profile]).arg(&packages);
    // One target folder, so that tools are there, and crates of others may be.
    status(build.current_dir(&clone).env("CARGO_TARGET_DIR", target()))?;
    Ok(packages)
}

/// Makes the packages of this checkout in a folder.
pub(crate) fn parts(profile: &str, folder: &str) -> Result<(), String> {
    let program = release::build(profile)?;
    let mut made = vec![deb::deb(&program)?, npm_tarball()?];
    let wheels = target().join("wheels");
    made.push(pack_wheel(&wheels, &deb::staged_program(), &["--profile", profile, "--strip"])?);
    cargo(&of_published(&["package"], &["--no-verify"]))?;
    let crates = target().join("package");
    let listed = fs::read_dir(&crates).map_err(|e| format!("{}: {e}", crates.display()))?;
    let is_crate = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "crate");
    made.extend(listed.flatten().map(|entry| entry.path()).filter(is_crate));
    made.push(deb::staged_program());
    for from in made {
        let to = Path::new(folder).join(from.file_name().unwrap_or_default());
        fs::copy(&from, &to).map_err(|e| format!("{}: {e}", from.display()))?;
    }
    Ok(())
}

/// Files of a folder by name.
fn files(folder: &Path) -> Result<BTreeMap<String, PathBuf>, String> {
    let listed = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(listed
        .flatten()
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .filter(|(_, path)| path.is_file())
        .collect())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}
