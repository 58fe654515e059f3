//! Packages: the Debian package with manual pages and completions, the npm package, the wheel, and the checks of
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
    wheel()?;
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

/// Makes the wheel and the source distribution of the Python package, and the reference of its names, in `target/wheels`.
pub(crate) fn wheel() -> Result<(), String> {
    release::release()?;
    let (python, folder) = (setup::venv()?, target().join("wheels"));
    let wheel = pack_wheel(&folder, &target().join("release/towpath"), &["--release"])?;
    println!("{}", wheel.display());
    let mut source = Command::new(&python);
    source.args(["-m", "maturin", "sdist", "--quiet", "--out"]).arg(&folder);
    status(source.current_dir(root().join("clients/python")))?;
    let mut reference = Command::new(&python);
    // From the wheel, which Python imports from as from a folder once it is unpacked.
    let unpacked = folder.join("unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    status(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    reference.args(["-W", "error", "-m", "pdoc", "towpath", "-o"]).arg(folder.join("reference"));
    status(reference.env("PYTHONPATH", &unpacked))
}

/// Makes a wheel for pages below `docs/`, with the program of a build; returns its file.
pub(crate) fn page_wheel(built: &Path) -> Result<PathBuf, String> {
    let folder = target().join("pages/wheel");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let program = folder.join("towpath");
    // Symbols of a build for development are most of its size.
    status(Command::new("strip").arg("-o").arg(&program).arg(built.join("towpath")))?;
    pack_wheel(&folder, &program, &["--profile", "dev"])
}

fn pack_wheel(folder: &Path, program: &Path, profile: &[&str]) -> Result<PathBuf, String> {
    let mut pack = Command::new(setup::venv()?);
    pack.arg(root().join("clients/python/tools/pack.py")).arg(folder).arg(program).args(profile);
    // maturin asks cargo, which must not take the variables of this program for its own.
    crate::run::forget_package(&mut pack);
    let output =
        pack.stderr(std::process::Stdio::inherit()).output().map_err(|e| format!("{pack:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{pack:?}: {}", output.status));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
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
