//! The Python package: its types, examples, reference and behaviour, from the very wheel that `cargo xtask package` makes.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the folder that cargo builds into, where `cargo xtask setup` puts the tools.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs a command to its end; the test fails if it does.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("Python is installed by `cargo xtask setup`");
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{printed}\n{errors}");
    printed.into_owned()
}

/// Every test of `clients/python/tests`, by pytest, in an environment outside of the checkout.
///
/// With `TOWPATH_KILLS`, as `cargo xtask client-kills` sets it, those with kills only.
#[test]
fn the_tests_by_pytest() {
    let folder = tempfile::tempdir().unwrap();
    // Of the tools; the package itself is installed elsewhere, beside nothing of the checkout.
    let tools = target().join("venv/bin/python");
    // The program's symbols would make the wheel five times as large.
    let program = folder.path().join("towpath");
    succeeds(Command::new("strip").arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_towpath")));
    let mut pack = Command::new(&tools);
    pack.arg(root().join("clients/python/tools/pack.py")).arg(folder.path().join("wheel")).arg(&program);
    let wheel = succeeds(pack.args(["--profile", "dev"]));
    let environment = folder.path().join("environment");
    let python = environment.join("bin/python");
    succeeds(Command::new(&tools).args(["-m", "venv", "--without-pip"]).arg(&environment));
    let mut install = Command::new(&tools);
    install.args(["-m", "pip", "--python"]).arg(&python);
    // Nothing but the wheel: the package has no dependencies.
    succeeds(install.args(["install", "--quiet", "--no-index", wheel.trim()]));
    let paths = |python: &Path| {
        let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
        PathBuf::from(succeeds(Command::new(python).args(["-c", code])).trim())
    };
    let site = paths(&tools).display().to_string();
    std::fs::write(paths(&python).join("tools.pth"), site).unwrap();
    let tests = folder.path().join("tests");
    std::fs::create_dir(&tests).unwrap();
    for entry in std::fs::read_dir(root().join("clients/python/tests")).unwrap() {
        let entry = entry.unwrap();
        if entry.path().extension().is_some_and(|extension| extension == "py") {
            std::fs::copy(entry.path(), tests.join(entry.file_name())).unwrap();
        }
    }
    let mut pytest = Command::new(&python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).current_dir(&tests);
    pytest.env("TOWPATH_PROGRAM", env!("CARGO_BIN_EXE_towpath")).env("PYTHONDONTWRITEBYTECODE", "1");
    pytest.env("TOWPATH_ROOT", root()).env("TOWPATH_WHEEL", wheel.trim());
    if std::env::var_os("TOWPATH_KILLS").is_some() {
        pytest.args(["-k", "kills"]);
    }
    succeeds(pytest.env_remove("TOWPATH_TOKEN").env_remove("TOWPATH_READ_TOKEN"));
}
