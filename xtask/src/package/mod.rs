//! Packages: the crates, the Debian package with manual pages and completions, the npm package, the wheel, and the checks of
//! what is in `packaging/`.

mod deb;
mod deb_check;
mod documents;
mod image;
pub(crate) mod reproducible;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) use deb_check::check_if_possible as check_debian_if_possible;
pub(crate) use documents::check as check_program;

use crate::release;
use crate::run::{self, cargo, cargo_with, root, status, target};
use crate::setup;

/// Highest exposure of the unit that `systemd-analyze security` may find.
const MAX_EXPOSURE: f64 = 2.0;

/// Largest wheel, in bytes: everyone who installs the package downloads it.
const MAX_WHEEL: u64 = 20_000_000;

/// Makes the Debian package in `target/debian`, from a release build, and the packages for other languages.
pub(crate) fn package() -> Result<(), String> {
    crates()?;
    let program = release::release()?;
    npm()?;
    wheel()?;
    check_all(&program)?;
    // Last: cargo-deb empties its folder, in which the check makes packages of its own.
    deb::deb(&program).map(drop)
}

/// Makes the Debian package.
pub(crate) fn debian() -> Result<(), String> {
    let file = deb::deb(&program()?)?;
    println!("{}", file.display());
    Ok(())
}

/// Checks everything that needs no registry, with the program of a release build, or of the folder `$TOWPATH_BUILT`.
pub(crate) fn check_built() -> Result<(), String> {
    check_all(&program()?)
}

/// The program of the folder `$TOWPATH_BUILT`, or that of a new release build.
fn program() -> Result<PathBuf, String> {
    match std::env::var_os("TOWPATH_BUILT") {
        Some(folder) => Ok(PathBuf::from(folder).join("towpath")),
        None => release::release(),
    }
}

fn check_all(program: &Path) -> Result<(), String> {
    check()?;
    check_program(program)?;
    deb_check::check(program)?;
    image::check(program)?;
    installed()
}

/// Installs the program as `docs/install.md` says, with a development profile, whose parts are built already.
fn installed() -> Result<(), String> {
    let folder = target().join("installed");
    let folder = folder.to_string_lossy();
    cargo(&["install", "--path", "crates/towpath", "--locked", "--debug", "--root", &folder])?;
    status(Command::new(format!("{folder}/bin/towpath")).arg("--version"))
}

/// Makes the crates in `target/package`, and builds each from its file.
pub(crate) fn crates() -> Result<(), String> {
    // Cargo takes a version of a registry that is there for the same, and would build crates with an older state of others.
    forget_unpacked(&release::cargo_home().unwrap_or_default().join("registry/src"))?;
    forget_built()?;
    cargo(&of_published(&["package"], &[]))?;
    // The reference of the crates' names, without a warning.
    cargo_with(&of_published(&["doc"], &["--no-deps"]), &[("RUSTDOCFLAGS", "-D warnings")])
}

/// Crates that are not published: the wheel's is for that alone, and the others are for those who work on this.
const NOT_PUBLISHED: [&str; 3] = ["towpath-python", "towpath-simulation", "xtask"];

/// Arguments of cargo for all crates that are published, between a command and its options.
fn of_published<'a>(command: &[&'a str], options: &[&'a str]) -> Vec<&'a str> {
    let others = NOT_PUBLISHED.map(|name| ["--exclude", name]).concat();
    [command, &["--workspace", "--locked"], &others, options].concat()
}

/// Removes what cargo has built of the crates in the profile in which it verifies them.
fn forget_built() -> Result<(), String> {
    let folders = fs::read_dir(root().join("crates")).map_err(|e| format!("crates: {e}"))?;
    let names: Vec<String> =
        folders.flatten().map(|folder| folder.file_name().to_string_lossy().into_owned()).collect();
    let packages = names.iter().flat_map(|name| ["--package", name.as_str()]);
    cargo(&["clean", "--quiet", "--profile", "dev"].into_iter().chain(packages).collect::<Vec<_>>())
}

/// Removes what cargo has unpacked of this workspace's crates below a folder.
fn forget_unpacked(sources: &Path) -> Result<(), String> {
    let listed =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // A registry without a host is one of this machine.
    let registries = listed(sources).filter(|registry| name(registry).starts_with('-'));
    let version = concat!("-", env!("CARGO_PKG_VERSION"));
    for unpacked in registries.flat_map(|registry| listed(&registry)) {
        if name(&unpacked).starts_with("towpath") && name(&unpacked).ends_with(version) {
            fs::remove_dir_all(&unpacked).map_err(|e| format!("{}: {e}", unpacked.display()))?;
        }
    }
    Ok(())
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
/// Returns the program and the wheel.
pub(crate) fn wheel() -> Result<(PathBuf, PathBuf), String> {
    let program = release::release()?;
    let (python, folder) = (setup::venv()?, target().join("wheels"));
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let packed = folder.join("towpath");
    // A build with the list of its dependencies keeps its symbols, a sixth of it, whatever the profile says.
    deb::strip(&program, &packed)?;
    let wheel = pack_wheel(&folder, &packed, &["--profile", release::PROFILE])?;
    println!("{}", wheel.display());
    check_size(&wheel, MAX_WHEEL)?;
    sdist()?;
    let mut reference = Command::new(&python);
    // From the wheel, which Python imports from as from a folder once it is unpacked.
    let unpacked = folder.join("unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    status(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    reference.args(["-W", "error", "-m", "pdoc", "towpath", "-o"]).arg(folder.join("reference"));
    status(reference.env("PYTHONPATH", &unpacked))?;
    Ok((program, wheel))
}

/// Fails if a file is larger than what is promised of it.
fn check_size(file: &Path, most: u64) -> Result<(), String> {
    let size = fs::metadata(file).map_err(|e| format!("{}: {e}", file.display()))?.len();
    println!("{}: {size} bytes, of at most {most}", file.display());
    if size <= most {
        return Ok(());
    }
    let advice = "see which crates grew, and their levels of optimisation in Cargo.toml (profile dist)";
    Err(format!("{} has {size} bytes, more than {most}; {advice}", file.display()))
}

/// Makes the source distribution in `target/wheels`, and installs from it into an empty environment.
pub(crate) fn sdist() -> Result<(), String> {
    let (python, folder) = (setup::venv()?, target().join("wheels"));
    let mut source = Command::new(&python);
    source.args(["-m", "maturin", "sdist", "--out"]).arg(&folder);
    run::forget_package(&mut source);
    status(source.current_dir(root().join("clients/python")))?;
    let files = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files = files.flatten().map(|entry| entry.path());
    let file = files.find(|path| path.to_string_lossy().ends_with(".tar.gz"));
    let file = file.ok_or("maturin has made no source distribution")?;
    let environment = folder.join("environment");
    let _ = fs::remove_dir_all(&environment);
    status(Command::new(&python).args(["-m", "venv"]).arg(&environment))?;
    let installed = environment.join("bin/python");
    let mut install = Command::new(&installed);
    // Without optimisation: the question is whether all files are there.
    install
        .args(["-m", "pip", "install", "--quiet", "--config-settings", "build-args=--profile dev"])
        .arg(&file);
    run::forget_package(&mut install);
    status(install.env("CARGO_TARGET_DIR", folder.join("built")))?;
    let program = "import towpath; print('installed from its sources:', towpath.__version__)";
    status(Command::new(&installed).args(["-c", program]))
}

/// Makes a wheel for pages below `docs/`, with the program of a build; returns its file.
pub(crate) fn page_wheel(built: &Path) -> Result<PathBuf, String> {
    let folder = target().join("pages/wheel");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let program = folder.join("towpath");
    deb::strip(&built.join("towpath"), &program)?;
    pack_wheel(&folder, &program, &["--profile", "dev"])
}

fn pack_wheel(folder: &Path, program: &Path, profile: &[&str]) -> Result<PathBuf, String> {
    let mut pack = Command::new(setup::venv()?);
    pack.arg(root().join("clients/python/tools/pack.py")).arg(folder).arg(program).args(profile);
    let name = profile.iter().skip_while(|arg| **arg != "--profile").nth(1).unwrap_or(&"dev");
    if *name != "dev" {
        // With another date all C code, and what depends on it, would be compiled again: for minutes in a test.
        pack.env("SOURCE_DATE_EPOCH", release::source_date());
    }
    pack.envs(release::without_paths(name));
    // maturin asks cargo, which must not take the variables of this program for its own.
    run::forget_package(&mut pack);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_files_are_refused() {
        let file = root().join("Cargo.toml");
        let size = fs::metadata(&file).unwrap().len();
        assert_eq!(check_size(&file, size), Ok(()));
        let error = check_size(&file, size - 1).unwrap_err();
        assert!(error.contains(&format!("Cargo.toml has {size} bytes, more than {}", size - 1)), "{error}");
    }

    #[test]
    fn only_this_version_of_our_crates_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let own = format!("-0123/towpath-store-{version}");
        let others = [
            format!("example.com-0123/towpath-{version}"),
            format!("-0123/a-{version}"),
            "-0123/towpath-9".into(),
        ];
        for unpacked in others.iter().chain([&own]) {
            fs::create_dir_all(folder.path().join(unpacked)).unwrap();
        }
        forget_unpacked(folder.path()).unwrap();
        assert!(!folder.path().join(&own).exists());
        assert!(others.iter().all(|other| folder.path().join(other).exists()));
        assert_eq!(forget_unpacked(&folder.path().join("missing")), Ok(()));
    }

    /// Cargo refuses to package the whole workspace because of one crate that cannot be.
    #[test]
    fn each_crate_is_published_or_left_out() {
        let crates = fs::read_dir(root().join("crates")).unwrap();
        let folders = crates.map(|entry| entry.unwrap().path());
        let folders = folders.chain(["xtask", "clients/python"].map(|folder| root().join(folder)));
        let mut left_out: Vec<String> = folders
            .map(|folder| fs::read_to_string(folder.join("Cargo.toml")).unwrap())
            .filter(|text| member(text, "publish") == Some("false"))
            .map(|text| member(&text, "name").unwrap().to_owned())
            .collect();
        left_out.sort();
        assert_eq!(left_out, NOT_PUBLISHED);
    }

    fn read(path: &str) -> String {
        let path = root().join(path);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Returns the value of a member, of TOML or JSON, in the first line that has it.
    fn member<'a>(text: &'a str, name: &str) -> Option<&'a str> {
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(['=', ':'])?;
            (key.trim().trim_matches('"') == name).then(|| value.trim().trim_matches(['"', ',']))
        })
    }

    /// Returns the folders of the crates.
    fn crates() -> Vec<PathBuf> {
        let folders = fs::read_dir(root().join("crates")).unwrap();
        folders.map(|entry| entry.unwrap().path()).filter(|path| path.join("Cargo.toml").exists()).collect()
    }

    #[test]
    fn versions_and_names_agree() {
        let workspace = read("Cargo.toml");
        let version = member(&workspace, "version").unwrap();
        let licence = member(&workspace, "license").unwrap();
        for folder in crates() {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            let own = read(&format!("crates/{name}/Cargo.toml"));
            assert_eq!(member(&own, "name"), Some(name.as_str()));
            assert_eq!(member(&own, "version.workspace"), Some("true"), "{name}");
            assert_eq!(member(&own, "license.workspace"), Some("true"), "{name}");
            // A crate that others need must be found in a registry, in this version.
            let path = format!("path = \"crates/{name}\"");
            for line in workspace.lines().filter(|line| line.contains(&path)) {
                assert!(line.contains(&format!("version = \"={version}\"")), "{line}");
            }
        }
        let npm = read("clients/js/package.json");
        assert_eq!(
            [member(&npm, "name"), member(&npm, "version"), member(&npm, "license")],
            [Some("towpath"), Some(version), Some(licence)]
        );
        let program = read("crates/towpath/Cargo.toml");
        let debian = program.split("[package.metadata.deb]").nth(1).unwrap();
        assert_eq!(member(debian, "name"), Some("towpath"));
        // The Python package takes its version from its crate, or states the same.
        if let Ok(python) = fs::read_to_string(root().join("clients/python/pyproject.toml")) {
            assert_eq!(member(&python, "name"), Some("towpath"));
            assert!(member(&python, "version").is_none_or(|stated| stated == version));
        }
    }

    /// A crate is built from its file alone, so what its program includes is in its folder.
    #[test]
    fn crates_have_what_they_include() {
        let mut left: Vec<PathBuf> = crates().iter().map(|folder| folder.join("src")).collect();
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    left.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    assert_included(&path);
                }
            }
        }
    }

    fn assert_included(file: &Path) {
        let text = fs::read_to_string(file).unwrap();
        let (inside, from) = (root().join("crates"), file.strip_prefix(root()).unwrap());
        let own = from.components().nth(1).unwrap();
        for name in ["include_str!(\"", "include_bytes!(\""] {
            for included in text.split(name).skip(1).filter_map(|rest| rest.split('"').next()) {
                let mut path = file.parent().unwrap().to_path_buf();
                for part in Path::new(included).components() {
                    match part {
                        std::path::Component::ParentDir => drop(path.pop()),
                        part => path.push(part),
                    }
                }
                // A link's target may be elsewhere: the package has the file.
                assert!(path.starts_with(inside.join(own)), "{} includes {included}", file.display());
            }
        }
    }
}
