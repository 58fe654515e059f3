//! Packages: the Debian package with manual pages and completions, the npm package with its reference, and the checks of
//! what is in `packaging/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::release;
use crate::run::{root, status, target};
use crate::setup;

/// Highest exposure of the unit that `systemd-analyze security` may find.
const MAX_EXPOSURE: f64 = 2.0;
/// Shells, with the names of their files of completions.
const SHELLS: [(&str, &str); 3] = [("bash", "towpath.bash"), ("zsh", "_towpath"), ("fish", "towpath.fish")];

/// Makes the Debian package in `target/debian`, from a release build.
pub(crate) fn package() -> Result<(), String> {
    release::release()?;
    let (program, folder) = (target().join("release/towpath"), target().join("package"));
    let _ = fs::remove_dir_all(&folder);
    let completions = folder.join("completions");
    fs::create_dir_all(&completions).map_err(|e| format!("{}: {e}", completions.display()))?;
    status(Command::new(&program).arg("man").arg(folder.join("man")))?;
    for (shell, file) in SHELLS {
        let output =
            Command::new(&program).args(["completions", shell]).output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!("towpath completions {shell}: {}", output.status));
        }
        fs::write(completions.join(file), output.stdout).map_err(|e| e.to_string())?;
    }
    release::deb()?;
    npm()?;
    check()
}

/// Makes the npm package and the reference of its names, in `target/npm`.
pub(crate) fn npm() -> Result<(), String> {
    npm_tarball()?;
    let tools = setup::js_tools()?;
    let mut reference = Command::new("node");
    reference.arg(tools.join("node_modules/typedoc/bin/typedoc")).current_dir(root().join("clients/js"));
    reference.args(["--options", "typedoc.json", "--out"]).arg(target().join("npm/reference"));
    status(&mut reference)
}

/// Makes the npm package in `target/npm`; returns its file.
pub(crate) fn npm_tarball() -> Result<PathBuf, String> {
    let mut pack = Command::new("node");
    pack.arg(root().join("clients/js/tools/pack.mjs")).arg(target().join("npm"));
    let output = pack.env("TOWPATH_JS_MODULES", setup::js_tools()?).output();
    let output = output.map_err(|e| format!("{pack:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{pack:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let tarball = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    println!("{}", tarball.display());
    Ok(tarball)
}

/// Checks the unit, the alert rules and the dashboard, with Debian's own tools.
pub(crate) fn check() -> Result<(), String> {
    let packaging = root().join("packaging");
    setup::packaging()?;
    security(&packaging.join("systemd/towpath.service"))?;
    let rules = packaging.join("prometheus");
    status(Command::new("promtool").args(["check", "rules", "towpath.rules.yml"]).current_dir(&rules))?;
    status(Command::new("promtool").args(["test", "rules", "towpath.rules.test.yml"]).current_dir(&rules))
}

/// Fails if the unit lets the service do more than it needs.
fn security(unit: &Path) -> Result<(), String> {
    let analysis = ["security", "--offline=true", "--no-pager"];
    let output =
        Command::new("systemd-analyze").args(analysis).arg(unit).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let exposure = text.lines().rev().find_map(|line| line.split_once("exposure level for"));
    let exposure =
        exposure.and_then(|(_, rest)| rest.split(':').nth(1)?.split_whitespace().next()?.parse::<f64>().ok());
    match exposure {
        Some(exposure) if exposure < MAX_EXPOSURE => {
            println!("exposure of the unit: {exposure}");
            Ok(())
        }
        Some(exposure) => Err(format!("the unit's exposure is {exposure}, not below {MAX_EXPOSURE}")),
        None => Err(format!("systemd-analyze security tells no exposure: {text}")),
    }
}
